"use strict";
// Texts of a figure's points: under the pointer or a finger, and by the arrow keys.
(() => {
  const status = document.getElementById("status");
  const REACH = 28; // CSS pixels

  const explore = (svg) => {
    const spots = JSON.parse(svg.dataset.spots);
    const picture = svg.parentElement;
    const [tip, ring] = ["p", "span"].map((tag) => document.createElement(tag));
    tip.className = "tip";
    ring.className = "ring";
    tip.hidden = ring.hidden = true;
    tip.setAttribute("aria-hidden", "true");
    picture.append(ring, tip);
    picture.tabIndex = 0;
    picture.setAttribute("role", "group");
    picture.setAttribute("aria-label", "Points of the figure: read them with the arrow keys");
    let current = -1;

    const hide = () => { tip.hidden = ring.hidden = true; };
    const show = (place) => {
      current = place;
      const [x, y, text] = spots[place];
      const scale = svg.clientWidth / svg.viewBox.baseVal.width;
      tip.textContent = text;
      tip.hidden = ring.hidden = false;
      const left = Math.min(Math.max(scale * x - tip.offsetWidth / 2, 0), picture.clientWidth - tip.offsetWidth);
      const above = scale * y - tip.offsetHeight - 12;
      tip.style.left = `${left}px`;
      tip.style.top = `${above > 0 ? above : scale * y + 14}px`;
      ring.style.left = `${scale * x}px`;
      ring.style.top = `${scale * y}px`;
    };
    const nearest = (event) => {
      const box = svg.getBoundingClientRect();
      const scale = box.width / svg.viewBox.baseVal.width;
      const [left, top] = [event.clientX - box.left, event.clientY - box.top];
      let [found, best] = [-1, REACH * REACH];
      spots.forEach(([x, y], place) => {
        const far = (scale * x - left) ** 2 + (scale * y - top) ** 2;
        if (far < best) [found, best] = [place, far];
      });
      return found;
    };

    const follow = (event) => {
      const place = nearest(event);
      if (place < 0) hide();
      else if (place !== current || tip.hidden) show(place);
    };
    picture.addEventListener("pointermove", follow);
    picture.addEventListener("pointerdown", follow);
    picture.addEventListener("pointerleave", hide);
    picture.addEventListener("blur", hide);
    picture.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!way) return;
      event.preventDefault();
      show(current < 0 ? (way > 0 ? 0 : spots.length - 1) : (current + way + spots.length) % spots.length);
      status.textContent = tip.textContent;
    });
  };

  document.querySelectorAll("svg[data-spots]").forEach(explore);
})();
