"use strict";
(() => {
  const status = document.getElementById("status");

  // A cell's number as it is shown, or its text where it has none; what is not known comes last in both orders.
  const key = (row, place) => {
    const cell = row.cells[place];
    const text = cell.textContent.trim();
    const value = parseFloat(text.replaceAll(",", "").replace("\u2212", "-"));
    return cell.classList.contains("number") && !Number.isNaN(value) ? value : text;
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
    table.dispatchEvent(new Event("sorted"));
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

  // Long tables: pages, a search box, and a choice for every column of text that has few values.
  const LONG = 15;
  const FEW = 12;
  const PAGE = 20;
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const labelled = (text, field) => {
    const label = make("label", text);
    label.append(field);
    return label;
  };
  const explore = (table) => {
    const body = table.tBodies[0];
    const tests = [];
    const [count, pager] = [make("span", ""), make("div", "", "pager")];
    const [earlier, later] = ["Previous", "Next"].map((text) => make("button", text));
    let first = 0;
    const show = () => {
      const left = [...body.rows].filter((row) => tests.every((test) => test(row)));
      first = Math.max(0, Math.min(first, left.length - 1));
      first -= first % PAGE;
      for (const row of body.rows) row.hidden = true;
      const shown = left.slice(first, first + PAGE);
      for (const row of shown) row.hidden = false;
      earlier.disabled = first === 0;
      later.disabled = first + PAGE >= left.length;
      pager.hidden = left.length <= PAGE;
      count.textContent = `${first + 1} to ${first + shown.length} of ${left.length}`;
      return left.length;
    };
    const filter = () => {
      first = 0;
      status.textContent = `${show()} of ${body.rows.length} rows`;
    };
    const turn = (pages) => {
      first += pages * PAGE;
      show();
      status.textContent = `Rows ${count.textContent}`;
    };
    const bar = make("div", "", "filter");
    const search = document.createElement("input");
    search.type = "search";
    const texts = new Map([...body.rows].map((row) => [row, row.textContent.toLowerCase()]));
    tests.push((row) => texts.get(row).includes(search.value.trim().toLowerCase()));
    search.addEventListener("input", filter);
    bar.append(labelled("Search", search));
    [...table.tHead.rows[0].cells].forEach((header, place) => {
      const values = [...new Set([...body.rows].map((row) => row.cells[place].textContent.trim()))];
      if (header.classList.contains("number") || values.length < 2 || values.length > FEW) return;
      const choice = document.createElement("select");
      choice.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
      tests.push((row) => !choice.value || row.cells[place].textContent.trim() === choice.value);
      choice.addEventListener("change", filter);
      bar.append(labelled(header.textContent, choice));
    });
    earlier.addEventListener("click", () => turn(-1));
    later.addEventListener("click", () => turn(1));
    table.addEventListener("sorted", show);
    pager.append(earlier, count, later);
    table.closest(".scroll").before(bar);
    table.closest(".scroll").after(pager);
    show();
  };
  document.querySelectorAll("table[data-sortable]").forEach((table) => {
    if (table.tBodies[0].rows.length > LONG) explore(table);
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
