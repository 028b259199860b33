"use strict";
// The list of queries: a query's rankings by teacher and student, side by side.
(() => {
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  const entry = (id, text, relevant, rank) => {
    const item = make("li", undefined, relevant ? "relevant" : "");
    const head = make("p", undefined, "found");
    head.append(make("span", id));
    if (relevant) head.append(make("strong", "relevant"));
    if (rank !== undefined) head.append(make("span", rank < 0 ? "teacher: \u2013" : `teacher: ${rank + 1}`));
    item.append(head, make("p", text));
    return item;
  };

  const fill = (panel, query, { found, relevant }, documents) => {
    const columns = make("div", undefined, "rankings");
    for (const [model, ids] of Object.entries(found)) {
      const [column, list] = [make("div"), make("ol")];
      const rank = (id) => (model === "teacher" || !found.teacher ? undefined : found.teacher.indexOf(id));
      list.append(...ids.map((id) => entry(id, documents[id], relevant.includes(id), rank(id))));
      column.append(make("h4", model), list);
      columns.append(column);
    }
    panel.replaceChildren(make("h3", query), columns);
    panel.hidden = false;
  };

  for (const box of document.querySelectorAll("[data-rankings]")) {
    const tasks = JSON.parse(box.dataset.rankings);
    const panel = make("div", undefined, "panel");
    panel.tabIndex = 0;
    panel.hidden = true;
    panel.setAttribute("role", "region");
    panel.setAttribute("aria-label", "Rankings of the chosen query");
    box.append(panel);
    let chosen = null;
    for (const row of box.querySelector("table").tBodies[0].rows) {
      const [query, task] = [row.cells[0].textContent.trim(), row.cells[1].textContent.trim()];
      const { queries = {}, documents = {} } = tasks[task] || {};
      if (!queries[query]) continue;
      const button = make("button", query);
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        fill(panel, query, queries[query], documents);
        if (chosen) chosen.setAttribute("aria-pressed", "false");
        chosen = button;
        chosen.setAttribute("aria-pressed", "true");
        panel.focus({ preventScroll: false });
      });
      row.cells[0].replaceChildren(button);
    }
    const first = box.querySelector("tbody button");
    if (first) {
      const query = first.textContent;
      const { queries, documents } = tasks[first.closest("tr").cells[1].textContent.trim()];
      fill(panel, query, queries[query], documents);
      chosen = first;
      first.setAttribute("aria-pressed", "true");
    }
  }
})();
