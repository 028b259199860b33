// Every piece of visible text outside of figures with the contrast of its colour on its ground (WCAG 2.2, success criterion 1.4.3).
() => {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let part = element; part; part = part.parentElement) {
      const colour = parse(getComputedStyle(part).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg, script, style, .hidden-text") || !element.checkVisibility()) continue;
    const [a, b] = [parse(getComputedStyle(element).color), ground(element)].map(luminance);
    found.push({ text: walker.currentNode.data.trim().slice(0, 40), ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) });
  }
  return found;
}
