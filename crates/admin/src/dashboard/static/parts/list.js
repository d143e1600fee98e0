// A list paged by the server: a filter, a table, and buttons to change the page. Its state is in the URL, so "back" and reload
// show the same rows. A document contains at most one page of a list.

import { button, el, freshId, setAttribute, setText } from "../dom.js";
import { count } from "../format.js";
import { amend, here } from "../router.js";
import { Table } from "./table.js";

const SIZE = 50;
/** Milliseconds after the last key press before the filter is applied. */
const PAUSE = 250;

/**
 * `fetch({ page, size, query, signal })` returns a page like Api.list. `filter` labels the filter, if the list
 * can be filtered by name; `columns` and `key` are the table's; `empty` is the text of an empty list. A list
 * that is only a part of its view (`isPart`) does not change the URL.
 */
export function list({ caption, columns, key, fetch, filter = null, empty, size = SIZE, isPart = false }) {
  const chosen = isPart ? new URLSearchParams() : here().query;
  const state = {
    page: Math.max(1, Number.parseInt(chosen.get("page") ?? "1", 10) || 1),
    name: chosen.get("name") ?? "",
    sort: chosen.get("sort") ?? "",
    reverse: chosen.get("reverse") === "true",
  };
  const table = new Table({ caption, columns, key, sorted: (sort) => sortBy(sort) });
  const nothing = el("p", { class: "hint", hidden: true }, empty);
  const pager = makePager(caption, (page) => change({ page }));
  const field = filter ? makeFilter(filter, state.name, (name) => change({ name, page: 1 })) : null;
  const scroll = el("div", { class: "scroll" }, table.element);
  const element = el("div", { class: "paged" }, field, scroll, nothing, pager.element);

  function sortBy(sort) {
    // Clicks cycle through descending, ascending and unsorted.
    if (state.sort !== sort) change({ sort, reverse: true, page: 1 });
    else if (state.reverse) change({ reverse: false, page: 1 });
    else change({ sort: "", reverse: false, page: 1 });
  }

  function change(changes) {
    Object.assign(state, changes);
    if (!isPart) remember();
    element.dispatchEvent(new CustomEvent("refresh", { bubbles: true }));
  }

  function remember() {
    const { page, name, sort, reverse } = state;
    amend({ page: page > 1 ? page : "", name, sort, reverse: reverse ? "true" : "" });
  }

  async function refresh(signal) {
    const query = { name: state.name, sort: state.sort, sort_reverse: state.sort && state.reverse ? "true" : "" };
    const asked = state.page;
    const answer = await firstIfBeyond(asked, (page) => fetch({ page, size, query, signal }));
    signal?.throwIfAborted();
    // If the user changed the page during the request, fetch that page next.
    if (state.page === asked) state.page = answer.page;
    table.show(answer.items);
    table.markSorted(state.sort, state.reverse);
    setAttribute(scroll, "hidden", answer.items.length === 0);
    setAttribute(nothing, "hidden", answer.items.length > 0);
    setText(nothing, state.name && answer.total > 0 ? "No matches for the filter." : empty);
    pager.update(answer);
  }

  return { element, refresh };
}

/** RabbitMQ answers 400 for a page after the last one; this happens when the only row of the last page is deleted. */
async function firstIfBeyond(page, fetch) {
  try {
    return await fetch(page);
  } catch (error) {
    if (error.status !== 400 || page === 1) throw error;
    return await fetch(1);
  }
}

function makeFilter(label, text, changed) {
  const id = freshId("filter");
  let timer;
  const use = () => changed(input.value);
  const input = el("input", {
    id,
    type: "search",
    value: text,
    autocomplete: "off",
    autocapitalize: "none",
    spellcheck: "false",
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(use, PAUSE);
    },
  });
  return el("div", { class: "filter" }, el("label", { for: id }, label), input);
}

function makePager(caption, turn) {
  let shown = { page: 1, pages: 1 };
  const first = button("« First", () => turn(1), { class: "quiet" });
  const back = button("‹ Back", () => turn(shown.page - 1), { class: "quiet" });
  const next = button("Next ›", () => turn(shown.page + 1), { class: "quiet" });
  const last = button("Last »", () => turn(shown.pages), { class: "quiet" });
  const where = el("p", { class: "where", role: "status" });
  const turns = el("div", { class: "turns" }, first, back, next, last);
  const element = el("nav", { class: "pager", "aria-label": `Pages: ${caption}` }, where, turns);
  const update = (answer) => {
    shown = answer;
    const { page, pages, found, total } = answer;
    const of = found === total ? count(total) : `${count(found)} of ${count(total)}`;
    setText(where, pages > 1 ? `Page ${count(page)} of ${count(pages)}, ${of} total` : `${of} total`);
    setAttribute(turns, "hidden", pages <= 1);
    // A focused button would lose the focus if it were disabled.
    for (const [each, off] of [[first, page <= 1], [back, page <= 1], [next, page >= pages], [last, page >= pages]]) {
      setAttribute(each, "aria-disabled", off ? "true" : null);
    }
  };
  element.addEventListener("click", stopIfOff, true);
  return { element, update };
}

function stopIfOff(event) {
  if (event.target.closest("[aria-disabled=true]")) event.stopPropagation();
}
