// Single figures: tiles with a number, bars that fill up to a limit, and lists of facts. Each is made once and updated.

import { el, setAttribute, setChildren, setText } from "../dom.js";

/** Tiles with a number each, some of which link to a list. `update({ key: text })`; tiles without a text are hidden. */
export function tiles(kinds) {
  const made = kinds.map(({ key, title, href }) => {
    const value = el("span", { class: "figure" }, "–");
    const tile = el(href ? "a" : "div", { class: "tile", href }, value, el("span", { class: "what" }, title));
    return { key, value, tile };
  });
  const element = el("div", { class: "tiles" });
  const update = (words) => {
    const known = made.filter(({ key }) => words[key] !== undefined);
    known.forEach(({ key, value }) => setText(value, words[key]));
    setChildren(element, known.map(({ tile }) => tile));
  };
  return { element, update };
}

/** A bar that shows a share of a limit. `update({ value, most, words, alarm })`; null hides it. */
export function bar(title) {
  const words = el("span", { class: "what" });
  const meter = el("meter", { min: 0, max: 1, value: 0, "aria-label": title });
  const alarm = el("strong", { class: "badge bad", hidden: true }, "alarm");
  const element = el("div", { class: "bar", hidden: true }, el("span", {}, title, " ", alarm), meter, words);
  const update = (reading) => {
    setAttribute(element, "hidden", reading === null);
    if (reading === null) return;
    const share = reading.most > 0 ? Math.min(1, reading.value / reading.most) : 0;
    setAttribute(meter, "value", share.toFixed(4));
    setText(words, reading.words);
    setAttribute(alarm, "hidden", !reading.alarm);
  };
  return { element, update };
}

/** A description list. `update([[name, text], …])`; entries whose text is null are left out. */
export function facts() {
  const element = el("dl", { class: "facts" });
  const rows = new Map();
  const update = (all) => {
    const shown = all.filter(([, text]) => text !== null && text !== undefined && text !== "");
    const wanted = shown.map(([name, text]) => {
      if (!rows.has(name)) {
        const value = el("dd");
        rows.set(name, { value, row: el("div", {}, el("dt", {}, name), value) });
      }
      const { row, value } = rows.get(name);
      setText(value, text);
      return row;
    });
    setChildren(element, wanted);
  };
  return { element, update };
}

/** A part of a view under a heading. */
export function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}
