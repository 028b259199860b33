"use strict";
// The list of contents marks the section that is read.
(() => {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const sections = [...document.querySelectorAll("main > section")].filter((section) => links.has(section.id));
  if (!sections.length) return;
  let frame = 0;
  const mark = () => {
    frame = 0;
    const above = sections.filter((section) => section.getBoundingClientRect().top < 160);
    const current = above.at(-1) ?? sections[0];
    for (const [name, link] of links) {
      if (name === current.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", () => { frame ||= requestAnimationFrame(mark); }, { passive: true });
  mark();
})();
