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
