// A table of one page of a list. Rows are updated in place, so a focused element keeps the focus.

import { button, el, focusView, name, setAttribute, setChildren, setText } from "../dom.js";

/** Texts of cells that count as empty. */
const BLANK = new Set(["", "–"]);

/**
 * Columns are `{ title, text(item) }`, with `href(item)` for a link, `badges(item)` in place of a text, `action(item)`
 * for a button (`isHarmless`, if so) and `label(item)` for what it is done to (null for no button), `number` for the
 * right side, `sort`, the API's name for it, where the list can be sorted by it, `group` for the heading that it shares
 * with its neighbours, and `isName` for the column that names the row, if that is not the first. `key(item, at)` tells rows
 * apart, if need be by their place in the table. `sorted(column)` is called when a heading is used.
 */
export class Table {
  #columns;
  #key;
  // Explicit roles: the card layout on phones would otherwise remove the table semantics for screen readers.
  #body = el("tbody", { role: "rowgroup" });
  #headings = new Map();
  #rows = new Map();
  #titles = [];
  /** The group headings, and the columns below each. */
  #groups = [];
  /** The index of the column that names the row. */
  #named;

  constructor({ caption, columns, key, sorted = () => {} }) {
    this.#columns = columns;
    this.#key = key;
    this.#named = Math.max(0, columns.findIndex(({ isName }) => isName));
    const groups = columns.some(({ group }) => group) ? this.#groupRow(columns) : null;
    const head = el("tr", { role: "row" }, ...columns.map((column) => this.#heading(column, sorted)));
    this.element = el(
      "table",
      { class: "list", role: "table" },
      el("caption", { class: "unseen" }, caption),
      el("thead", { role: "rowgroup" }, groups, head),
      this.#body,
    );
  }

  show(items) {
    const rows = new Map();
    for (const [at, item] of items.entries()) {
      const key = this.#key(item, at);
      const row = this.#rows.get(key) ?? this.#row();
      row.update(item);
      rows.set(key, row);
    }
    this.#rows = rows;
    const hadFocus = this.#body.contains(document.activeElement);
    setChildren(this.#body, [...rows.values()].map((row) => row.element));
    if (hadFocus && !this.#body.contains(document.activeElement)) focusView();
    this.#hideBlankColumns();
  }

  /** A column without a value in any row is hidden. */
  #hideBlankColumns() {
    const rows = [...this.#body.children];
    this.#titles.forEach((heading, at) => {
      const isBlank = at !== this.#named && rows.length > 0 && rows.every((row) => BLANK.has(row.children[at].textContent));
      setAttribute(heading, "hidden", isBlank);
      for (const row of rows) setAttribute(row.children[at], "hidden", isBlank);
    });
    for (const { heading, columns } of this.#groups) {
      const shown = columns.filter((at) => !this.#titles[at].hidden).length;
      setAttribute(heading, "colspan", Math.max(1, shown));
      setAttribute(heading, "hidden", shown === 0);
    }
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

  /** One heading over each run of columns of the same group. */
  #groupRow(columns) {
    columns.forEach(({ group }, at) => {
      if (at === 0 || columns[at - 1].group !== group) {
        const heading = el("th", { scope: "colgroup", role: "columnheader" }, group);
        this.#groups.push({ heading, columns: [] });
      }
      this.#groups.at(-1).columns.push(at);
    });
    return el("tr", { role: "row" }, ...this.#groups.map(({ heading }) => heading));
  }

  #row() {
    const cells = this.#columns.map((column, at) => cell(column, at === this.#named));
    const element = el("tr", { role: "row" }, ...cells.map((each) => each.element));
    return { element, update: (item) => cells.forEach((each) => each.update(item)) };
  }
}

function cell(column, isName) {
  const { title, number, action } = column;
  const element = el(isName ? "th" : "td", {
    scope: isName ? "row" : null,
    role: isName ? "rowheader" : "cell",
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
    // A name without a target is shown without a link.
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

/** A badge: a text, or a text, its tone and, for an abbreviation, its meaning. */
export function badge(word) {
  const [text, tone = "", title = null] = Array.isArray(word) ? word : [word];
  return el(title ? "abbr" : "span", { class: `badge ${tone}`, title }, text);
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
