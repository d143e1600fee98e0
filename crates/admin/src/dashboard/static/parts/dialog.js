// Modal dialogs with a form. Escape closes them, and the focus returns to where it was.

import { button, el, focusView, freshId, setAttribute, setText } from "../dom.js";
import { announce } from "./notice.js";
import { field } from "./fields.js";

/**
 * Shows the form and runs `action(values)` on confirmation. Announces the text it returns; if it throws, the
 * dialog stays open and shows the error. Resolves to whether the action succeeded.
 */
export function ask({ title, words = null, fields = [], confirm, danger = false, action }) {
  const titleId = freshId("dialog");
  const made = fields.map(field);
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const submit = el("button", { class: danger ? "danger" : "" }, confirm);
  const form = el(
    "form",
    {},
    el("h2", { id: titleId }, title),
    ...(Array.isArray(words) ? words : [words]).filter(Boolean).map((line) => el("p", {}, line)),
    ...made.map(({ element }) => element),
    problem,
    el("div", { class: "actions" }, submit, button("Cancel", () => dialog.close(), { class: "quiet" })),
  );
  const dialog = el("dialog", { "aria-labelledby": titleId }, form);
  document.body.append(dialog);
  let isDone = false;
  let isBusy = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    try {
      const values = Object.fromEntries(made.map(({ name, read }) => [name, read()]));
      const outcome = await action(values);
      isDone = true;
      dialog.close();
      if (outcome) announce(outcome);
    } catch (error) {
      setText(problem, error.message);
      setAttribute(problem, "hidden", false);
    } finally {
      isBusy = false;
    }
  });
  const closed = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      // The button that opened it may be gone.
      if (document.activeElement === document.body) focusView();
      resolve(isDone);
    });
  });
  dialog.showModal();
  return closed;
}
