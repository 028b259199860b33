"use strict";
(() => {
  const status = document.getElementById("status");

  // A cell's number, or its text where it has none; what is not known comes last in both orders.
  const key = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.value !== undefined ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b, way) => {
    if (typeof a === "number" && typeof b === "number") return way * (a - b);
    if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? -1 : 1;
    return way * a.localeCompare(b, undefined, { numeric: true });
  };

  const sort = (table, header) => {
    const headers = [...table.tHead.rows[0].cells];
    const place = headers.indexOf(header);
    const first = header.classList.contains("number") ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = header.getAttribute("aria-sort") === first ? other : first;
    const way = order === "ascending" ? 1 : -1;
    headers.forEach((cell) => cell.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", order);
    const rows = [...table.tBodies[0].rows].map((row) => [key(row, place), row]);
    rows.sort((a, b) => compare(a[0], b[0], way));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    status.textContent = `Sorted by ${header.textContent}, ${order}.`;
  };

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    for (const header of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      button.addEventListener("click", () => sort(table, header));
      header.append(button);
    }
  }

  // Long tables: a search box, and a choice for every column of text that has few values.
  const LONG = 15;
  const FEW = 12;
  const labelled = (text, field) => {
    const label = document.createElement("label");
    label.append(text, field);
    return label;
  };
  const filter = (table) => {
    const rows = [...table.tBodies[0].rows];
    const tests = [];
    const apply = () => {
      for (const row of rows) row.hidden = !tests.every((test) => test(row));
      const left = rows.filter((row) => !row.hidden).length;
      status.textContent = count.textContent = `${left} of ${rows.length} rows`;
    };
    const bar = document.createElement("div");
    const count = document.createElement("span");
    bar.className = "filter";
    const search = document.createElement("input");
    search.type = "search";
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    tests.push((row) => texts.get(row).includes(search.value.trim().toLowerCase()));
    search.addEventListener("input", apply);
    bar.append(labelled("Search", search));
    [...table.tHead.rows[0].cells].forEach((header, place) => {
      const values = [...new Set(rows.map((row) => row.cells[place].textContent.trim()))];
      if (header.classList.contains("number") || values.length < 2 || values.length > FEW) return;
      const choice = document.createElement("select");
      choice.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
      tests.push((row) => !choice.value || row.cells[place].textContent.trim() === choice.value);
      choice.addEventListener("change", apply);
      bar.append(labelled(header.textContent, choice));
    });
    bar.append(count);
    table.closest(".scroll").before(bar);
  };
  document.querySelectorAll("table[data-sortable]").forEach((table) => {
    if (table.tBodies[0].rows.length > LONG) filter(table);
  });

  const copy = async (element) => {
    try {
      await navigator.clipboard.writeText(element.textContent);
    } catch {
      getSelection().selectAllChildren(element);
      if (!document.execCommand("copy")) return "Selected; copy it with your keyboard.";
      getSelection().removeAllRanges();
    }
    return "Copied.";
  };

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      status.textContent = await copy(document.getElementById(button.dataset.copy));
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1500);
    });
  }
})();
