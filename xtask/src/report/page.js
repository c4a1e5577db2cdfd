// Sorting, filter, theme, and links into a tab. The page is whole without it.
"use strict";
const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));

// Theme: the reader's choice stays, where the browser keeps it.
const theme = document.getElementById("theme");
const themes = ["", "light", "dark"];
const kept = (value) => {
  try {
    if (value === undefined) return localStorage.getItem("doorbell-theme") || "";
    localStorage.setItem("doorbell-theme", value);
  } catch (refused) { /* A page that was opened from a file may keep nothing. */ }
  return "";
};
const show = (value) => {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  theme.textContent = "theme: " + (value || "system");
};
theme.hidden = false;
show(themes.includes(kept()) ? kept() : "");
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme || "") + 1) % themes.length];
  kept(next);
  show(next);
});

// A number with its unit of a million, else the text.
const value = (row, column) => {
  const cell = row.cells[column].textContent.trim();
  const number = /^(-?[\d.]+)( M)?$/.exec(cell);
  return number ? Number(number[1]) * (number[2] ? 1e6 : 1) : cell;
};
const before = (one, other) => {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
};
for (const table of all("table.sortable")) {
  const heads = all("thead th", table);
  heads.forEach((head, column) => {
    if (head.querySelector("a")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "sort by this column";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = Array.from(table.tBodies[0].rows);
      rows.sort((one, other) => (down ? -1 : 1) * before(value(one, column), value(other, column)));
      table.tBodies[0].append(...rows);
    });
  });
}

// Claims by verdict.
for (const filter of all(".filter")) {
  filter.hidden = false;
  filter.addEventListener("click", (event) => {
    const wanted = event.target.dataset.show;
    if (wanted === undefined) return;
    all("button", filter).forEach((button) => button.setAttribute("aria-pressed", String(button === event.target)));
    all("tr[data-standing]").forEach((row) => { row.hidden = wanted !== "" && row.dataset.standing !== wanted; });
  });
}

// A link to an entry opens its tab.
const open = () => {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const tab = target && target.classList.contains("panel") && document.getElementById("t" + target.id.slice(1));
  if (tab) {
    tab.checked = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", open);
open();
