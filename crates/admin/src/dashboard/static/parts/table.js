// A table of one page of a list. Rows are updated where they stand, so that what has the focus keeps it.

import { button, el, name, setAttribute, setChildren, setText } from "../dom.js";

/** Texts of cells that tell nothing. */
const BLANK = new Set(["", "–"]);

/**
 * Columns are `{ title, text(item) }`, with `href(item)` for a link, `badges(item)` in place of a text, `action(item)`
 * for a button (`isHarmless`, if so) and `label(item)` for what it is done to (null for no button), `number` for the
 * right side, and `sort`, the API's name for it, where the list can be sorted by it. `key(item)` tells rows apart.
 * `sorted(column)` is called when a heading is used.
 */
export class Table {
  #columns;
  #key;
  // Roles are written out, for what a phone lays out as cards would be no table to screen readers any more.
  #body = el("tbody", { role: "rowgroup" });
  #headings = new Map();
  #rows = new Map();
  #titles = [];

  constructor({ caption, columns, key, sorted = () => {} }) {
    this.#columns = columns;
    this.#key = key;
    const head = el("tr", { role: "row" }, ...columns.map((column) => this.#heading(column, sorted)));
    this.element = el(
      "table",
      { class: "list", role: "table" },
      el("caption", { class: "unseen" }, caption),
      el("thead", { role: "rowgroup" }, head),
      this.#body,
    );
  }

  show(items) {
    const rows = new Map();
    for (const item of items) {
      const key = this.#key(item);
      const row = this.#rows.get(key) ?? this.#row();
      row.update(item);
      rows.set(key, row);
    }
    this.#rows = rows;
    setChildren(this.#body, [...rows.values()].map((row) => row.element));
    this.#hideBlankColumns();
  }

  /** What the server tells of no row is not shown empty. */
  #hideBlankColumns() {
    const rows = [...this.#body.children];
    this.#titles.forEach((heading, at) => {
      const isBlank = at > 0 && rows.length > 0 && rows.every((row) => BLANK.has(row.children[at].textContent));
      setAttribute(heading, "hidden", isBlank);
      for (const row of rows) setAttribute(row.children[at], "hidden", isBlank);
    });
  }

  /** Marks the column that the list is sorted by. */
  markSorted(sort, reverse) {
    for (const [key, heading] of this.#headings) {
      setAttribute(heading, "aria-sort", key === sort ? (reverse ? "descending" : "ascending") : null);
    }
  }

  #heading({ title, sort, number, action }, sorted) {
    const content = sort ? button(title, () => sorted(sort), { class: "sort" }) : el("span", {}, title);
    if (action) content.classList.add("unseen");
    const heading = el("th", { scope: "col", role: "columnheader", class: number ? "number" : null }, content);
    if (sort) this.#headings.set(sort, heading);
    this.#titles.push(heading);
    return heading;
  }

  #row() {
    const cells = this.#columns.map(cell);
    const element = el("tr", { role: "row" }, ...cells.map((each) => each.element));
    return { element, update: (item) => cells.forEach((each) => each.update(item)) };
  }
}

function cell(column, at) {
  const { title, number, action } = column;
  // The first cell names its row.
  const element = el(at === 0 ? "th" : "td", {
    scope: at === 0 ? "row" : null,
    role: at === 0 ? "rowheader" : "cell",
    class: number ? "number" : action ? "does" : null,
    "data-label": title,
  });
  if (column.badges) return { element, update: badges(element, column) };
  if (action) return { element, update: actions(element, column) };
  return { element, update: texts(element, column) };
}

function texts(element, { text, href }) {
  const words = name("");
  const link = href ? el("a", {}, words) : null;
  element.append(link ?? words);
  return (item) => {
    setText(words, text(item));
    if (!link) return;
    const target = href(item);
    setAttribute(link, "href", target);
    // What leads nowhere is no link.
    setChildren(element, [target ? link : words]);
    if (target && words.parentNode !== link) link.append(words);
  };
}

function badges(element, { badges }) {
  let shown = null;
  return (item) => {
    const words = badges(item);
    const key = JSON.stringify(words);
    if (key === shown) return;
    shown = key;
    setChildren(element, words.map((word) => badge(word)));
  };
}

/** A short word in a frame; of a pair, the second part is its tone. */
export function badge(word) {
  const [text, tone = ""] = Array.isArray(word) ? word : [word];
  return el("span", { class: `badge ${tone}` }, text);
}

function actions(element, { action, title, label, isHarmless }) {
  let current = null;
  const does = button(title, () => action(current), { class: isHarmless ? "quiet" : "quiet danger" });
  return (item) => {
    current = item;
    const what = label ? label(item) : "";
    setAttribute(does, "aria-label", `${title} ${what ?? ""}`.trim());
    setChildren(element, what === null ? [] : [does]);
  };
}
