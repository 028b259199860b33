"use strict";
// Dimensions and precision of stored vectors: what a choice keeps and what it takes.
(() => {
  const table = document.getElementById("data-compression");
  if (!table) return;
  const BITS = { float32: 32, float16: 16, int8: 8, binary: 1 };
  const FIXED = 3; // columns: task, model, precision
  const MODEL = "student";
  const widths = [...table.tHead.rows[0].cells].slice(FIXED).map((cell) => cell.textContent.trim());
  const rows = [...table.tBodies[0].rows].map((row) => {
    const [task, model, precision] = [...row.cells].slice(0, FIXED).map((cell) => cell.textContent.trim());
    const values = [...row.cells].slice(FIXED).map((cell) => {
      const value = parseFloat(cell.textContent);
      return Number.isNaN(value) ? null : value;
    });
    return { task, model, precision, values };
  });
  const own = rows.filter((row) => row.model === MODEL);
  if (!own.length) return;
  const last = (row) => row?.values.findLastIndex((value) => value !== null) ?? -1;
  const whole = Math.max(...own.map(last)); // the student's dimensions; the teacher may have more

  const choice = (title, values, first) => {
    const [label, select] = [document.createElement("label"), document.createElement("select")];
    select.append(...[...new Set(values)].map((value) => new Option(value, value, value === first, value === first)));
    label.append(title, select);
    return [label, select];
  };
  const [ofTask, task] = choice("Task", own.map((row) => row.task), "average");
  const [ofWidth, width] = choice("Dimensions", widths.slice(0, whole + 1), widths[whole]);
  const [ofPrecision, precision] = choice("Vectors as", own.map((row) => row.precision), "int8 vectors");
  const shown = document.createElement("output");
  const bar = document.createElement("div");
  bar.className = "filter";
  bar.append(ofTask, ofWidth, ofPrecision, shown);

  const find = (model, stored) => rows.find((row) => row.task === task.value && row.model === model && row.precision === stored);
  const bytes = (stored, count) => (BITS[stored.split(" ")[0]] * Number(count.replace(/\D/g, ""))) / 8;
  const update = () => {
    const place = widths.indexOf(width.value);
    const value = find(MODEL, precision.value)?.values[place];
    const [best, teacher] = [MODEL, "teacher"].map((model) => find(model, "float32 vectors")?.values.findLast((found) => found !== null));
    if (value === null || value === undefined) {
      shown.textContent = "Not measured.";
      return;
    }
    const [taken, most] = [bytes(precision.value, width.value), bytes("float32", widths[whole])];
    const parts = [`Score ${value.toFixed(1)}`];
    if (best > 0) parts.push(`${((100 * value) / best).toFixed(1)}% of the student's with float32 and all dimensions`);
    if (teacher > 0) parts.push(`${((100 * value) / teacher).toFixed(1)}% of the teacher's`);
    parts.push(`${taken.toLocaleString("en")} bytes a vector instead of ${most.toLocaleString("en")}`);
    parts.push(`${taken.toLocaleString("en")} MB for a million documents`);
    shown.textContent = `${parts.join(", ")}.`;
  };
  bar.addEventListener("change", update);
  update();
  document.getElementById("figure-compression").after(bar);
})();
