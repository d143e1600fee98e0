// Notices of completed actions, at the edge of the page and for screen readers.

import { el, setChildren, setText } from "../dom.js";

/** Milliseconds that a notice is visible. */
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
  // A new element, so that screen readers announce repeated texts.
  const line = el("p", { class: tone });
  setText(line, text);
  setChildren(place, [line]);
  timer = setTimeout(() => setChildren(place, []), STAYS);
}
