// Form fields: each has a label, and returns what was typed as a value.

import { button, el, freshId } from "../dom.js";

/**
 * A field: `{ name, label, type, value, hint, required, options, suggestions }`, of type text, password, number,
 * select, checkbox, textarea or arguments. `read()` returns its value; for `arguments` it throws an Error if the
 * input is invalid.
 */
export function field(description) {
  if (description.type === "arguments") return argumentList(description);
  const { name, label, hint, suggestions, type = "text" } = description;
  const id = freshId("field");
  const control = makeControl(description, id);
  const notes = [];
  if (hint) {
    notes.push(el("p", { class: "hint", id: `${id}-hint` }, hint));
    control.setAttribute("aria-describedby", `${id}-hint`);
  }
  if (suggestions) {
    control.setAttribute("list", `${id}-list`);
    notes.push(el("datalist", { id: `${id}-list` }, ...suggestions.map((value) => el("option", { value }))));
  }
  const parts = [el("label", { for: id }, label), control];
  if (type === "checkbox") parts.reverse();
  return {
    name,
    element: el("div", { class: `field ${type}` }, ...parts, ...notes),
    read: () => (type === "checkbox" ? control.checked : control.value),
  };
}

function makeControl({ name, type = "text", value = "", required, options, rows = 4 }, id) {
  const plain = { autocapitalize: "none", spellcheck: "false" };
  if (type === "select") {
    const made = options.map((option) => {
      const [key, words] = Array.isArray(option) ? option : [option, option];
      return el("option", { value: key, selected: key === value }, words);
    });
    return el("select", { id, name, required }, ...made);
  }
  if (type === "textarea") {
    const made = el("textarea", { id, name, rows, required, ...plain });
    made.value = value;
    return made;
  }
  if (type === "checkbox") return el("input", { id, name, type, checked: value === true });
  const autocomplete = type === "password" ? "new-password" : "off";
  return el("input", { id, name, type, value, required, autocomplete, min: type === "number" ? 0 : null, ...plain });
}

/** Arguments of a queue, exchange, binding or policy: any number of rows with name, type and value. */
function argumentList({ name, label, value = {}, suggestions = [] }) {
  const rows = el("div", { class: "rows" });
  const known = freshId("known");
  const add = (key = "", any = "") => {
    const row = argumentRow(known, key, any, () => more.focus());
    rows.append(row.element);
    return row;
  };
  Object.entries(value).forEach(([key, any]) => add(key, any));
  const more = button("Add", () => add().focus(), { class: "quiet", "aria-label": `Add to ${label}` });
  const element = el(
    "fieldset",
    { class: "field arguments" },
    el("legend", {}, label),
    el("datalist", { id: known }, ...suggestions.map((value) => el("option", { value }))),
    rows,
    more,
  );
  const read = () => Object.fromEntries([...rows.children].map(readRow).filter(([key]) => key !== ""));
  return { name, element, read };
}

const TYPES = [
  ["text", "text"],
  ["number", "number"],
  ["boolean", "true or false"],
  ["json", "JSON"],
];

/** Calls `removed` after the row was removed, because the button that had the focus is gone. */
function argumentRow(known, key, any, removed) {
  const type = { number: "number", boolean: "boolean", object: "json" }[typeof any] ?? "text";
  const text = typeof any === "string" ? any : JSON.stringify(any);
  const plain = { autocomplete: "off", autocapitalize: "none", spellcheck: "false" };
  const name = el("input", { class: "key", value: key, list: known, "aria-label": "Name", ...plain });
  const kinds = TYPES.map(([value, words]) => el("option", { value, selected: value === type }, words));
  const kind = el("select", { class: "kind", "aria-label": "Type" }, ...kinds);
  const value = el("input", { class: "any", value: text, "aria-label": "Value", ...plain });
  const removeRow = () => {
    element.remove();
    removed();
  };
  const remove = button("Remove", removeRow, { class: "quiet", "aria-label": "Remove this row" });
  // Selects the type Number for RabbitMQ's numeric arguments.
  name.addEventListener("change", () => {
    if (value.value === "" && /ttl|length|expires|priority|limit|bytes/.test(name.value)) kind.value = "number";
  });
  const element = el("div", { class: "row" }, name, kind, value, remove);
  return { element, focus: () => name.focus() };
}

function readRow(row) {
  const [key, kind, text] = [".key", ".kind", ".any"].map((part) => row.querySelector(part).value);
  return [key, readValue(key, kind, text)];
}

function readValue(key, kind, text) {
  if (kind === "text") return text;
  if (kind === "boolean" && !["true", "false"].includes(text)) throw new Error(`${key} is neither true nor false.`);
  if (kind === "number" && (text.trim() === "" || !Number.isFinite(Number(text)))) {
    throw new Error(`${key} is not a number.`);
  }
  if (kind === "number") return Number(text);
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${key} is not JSON.`);
  }
}
