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
    const { documents, rows } = JSON.parse(box.dataset.rankings); // rows as in the table, which is sorted later
    const panel = make("div", undefined, "panel");
    panel.tabIndex = 0;
    panel.hidden = true;
    panel.setAttribute("role", "region");
    panel.setAttribute("aria-label", "Rankings of the chosen query");
    box.append(panel);
    let chosen = null;
    [...box.querySelector("table").tBodies[0].rows].forEach((row, number) => {
      const [query, ranking] = [row.cells[0].textContent.trim(), rows[number]];
      if (!ranking) return;
      const button = make("button");
      button.append(make("span", query));
      button.type = "button";
      const choose = () => {
        fill(panel, query, ranking, documents[ranking.task]);
        if (chosen) chosen.setAttribute("aria-pressed", "false");
        chosen = button;
        chosen.setAttribute("aria-pressed", "true");
      };
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        choose();
        panel.focus({ preventScroll: false });
      });
      row.cells[0].replaceChildren(button);
      if (!chosen) choose();
    });
  }
})();
