"use strict";
// The theme puts every copy button into a landmark without a name; a page with ten blocks would have ten of them.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "presentation");
}).observe(document.documentElement, { childList: true, subtree: true });
