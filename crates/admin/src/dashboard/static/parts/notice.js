// Notices of completed actions, at the edge of the page and for screen readers.

import { el, setChildren, setText } from "../dom.js";

/** Milliseconds that it stays in sight. */
const STAYS = 8_000;

let timer;

export function announce(text) {
  tell(text, "good");
}

export function complain(text) {
  tell(text, "bad");
}

function tell(text, tone) {
  const place = document.getElementById("notice");
  clearTimeout(timer);
  // A new element, so that the same words twice are told twice.
  const line = el("p", { class: tone });
  setText(line, text);
  setChildren(place, [line]);
  timer = setTimeout(() => setChildren(place, []), STAYS);
}
