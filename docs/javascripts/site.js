"use strict";
// The theme puts every copy button into a landmark without a name; a page with ten blocks would have ten of them.
// Its tables scroll on a phone, and keys scroll only what can have the focus.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "presentation");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) table.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });
