// Put behind a copy of the page by browser.rs: opens all that is folded, looks at every text, and writes what it found as JSON.
"use strict";
(() => {
  const root = document.documentElement;
  root.dataset.theme = "THEME";
  const found = { theme: root.dataset.theme, width: innerWidth, pale: [], texts: 0, figures: {} };

  // What the script of the page does, before everything is shown.
  const filter = document.querySelector(".filter");
  const [everything, first] = filter.querySelectorAll("button");
  first.click();
  const rows = () => all("tr[data-standing]");
  found.filtered = { by: first.dataset.show, shown: rows().filter((row) => !row.hidden).length };
  everything.click();
  const head = document.querySelectorAll(".claims th")[1].querySelector("button");
  const column = () => rows().map((row) => Number(row.cells[1].textContent));
  head.click();
  found.ascending = column();
  head.click();
  found.descending = column();
  const last = document.querySelector("#fig4 .tabs > .panel:last-of-type");
  location.hash = last.id;
  dispatchEvent(new HashChangeEvent("hashchange"));
  found.opened = last.getClientRects().length > 0;

  // Folded numbers come by the thousand, and look alike: evidence is opened, and one table of numbers a figure.
  document.head.insertAdjacentHTML("beforeend", "<style>.tabs > .panel { display: block !important; }</style>");
  for (const details of all(".evidence details")) details.open = true;
  for (const section of all("section")) {
    const numbers = section.querySelector(".panel > details");
    if (numbers) numbers.open = true;
  }
  const claims = document.querySelector(".claims");
  found.cut = all("th, td", claims).concat(claims.parentElement).filter((e) => e.scrollWidth > e.clientWidth)
    .slice(0, 5).map((e) => e.tagName + " " + e.textContent.slice(0, 40));
  found.needed = Math.max(root.scrollWidth, document.body.scrollWidth);
  const scrolls = (e) => e && (getComputedStyle(e).overflowX === "auto" || scrolls(e.parentElement));
  found.wide = all("body *").filter((e) => !scrolls(e) && e.getBoundingClientRect().right > innerWidth + 1)
    .slice(0, 5).map((e) => e.tagName + "." + e.className + " " + e.textContent.slice(0, 40)).join("; ");

  const parts = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([red, green, blue]) => {
    const linear = (part) => (part /= 255, part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const grounds = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style") || element.getClientRects().length === 0) continue;
    const svg = element.closest("svg");
    const style = getComputedStyle(element);
    const ink = parts(svg ? style.fill : style.color);
    // A plot paints its own ground.
    const behind = svg ? parts(getComputedStyle(svg.querySelector("rect")).fill) : ground(element);
    if (svg) grounds.add(String(behind)).add(String(ground(element)));
    const [high, low] = [luminance(ink), luminance(behind)].sort((one, other) => other - one);
    const contrast = (high + 0.05) / (low + 0.05);
    found.texts += 1;
    if (contrast < 4.5 && found.pale.length < 9) {
      found.pale.push(`${contrast.toFixed(2)} ${ink} on ${behind}: ${node.textContent.trim().slice(0, 40)}`);
    }
  }
  found.grounds = Array.from(grounds);

  const plot = (svg) => {
    const box = svg.getBoundingClientRect();
    const isOutside = ({ left, right, top, bottom }) =>
      left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1;
    const texts = all("text", svg).map((text) => text.textContent.trim());
    const count = (...starts) => texts.filter((text) => starts.some((start) => text.startsWith(start))).length;
    return {
      title: svg.getAttribute("aria-label"),
      texts: texts.length,
      outside: all("text", svg).filter((text) => isOutside(text.getBoundingClientRect())).map((text) => text.textContent),
      ours: count("ours (", "ours:", "(ours)"),
      published: count("paper (", "paper:"),
    };
  };
  found.said = {};
  for (const section of all("section")) {
    found.said[section.id] = section.querySelector(".published")?.innerText;
  }
  for (const panel of all(".panel")) {
    const name = panel.closest("section").id;
    (found.figures[name] ||= []).push({ id: panel.id, plots: all("svg", panel).map(plot) });
  }
  document.body.insertAdjacentHTML("beforeend", "<pre id=\"findings\"></pre>");
  document.getElementById("findings").textContent = JSON.stringify(found);
})();
