// Creates elements without parsing markup: text is always inserted as text, so a queue's name can never inject HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an element. Properties that begin with "on" are listeners, `true` is an attribute without a value;
 * null and false are omitted. Children are elements, texts or numbers; null is omitted.
 */
export function el(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), properties, children);
}

/** Updates a text only if it changed, to preserve selections and what a screen reader has announced. */
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Updates an attribute only if it changed; null removes it. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const wanted = value === true ? "" : String(value);
  if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
}

/** Replaces the children with minimal moves, so that remaining ones keep the focus. Returns the parent. */
export function setChildren(parent, children) {
  const wanted = children.filter((child) => child !== null && child !== undefined);
  const stays = new Set(wanted);
  for (const child of [...parent.childNodes]) if (!stays.has(child)) child.remove();
  wanted.forEach((child, at) => {
    if (parent.childNodes[at] !== child) parent.insertBefore(child, parent.childNodes[at] ?? null);
  });
  return parent;
}

/** A name chosen by a user, isolated from the text direction around it (bdi). */
export function name(text, properties = {}) {
  return el("bdi", { class: "name", ...properties }, text);
}

/** A button with an action. */
export function button(text, action, properties = {}) {
  return el("button", { type: "button", onclick: action, ...properties }, text);
}

/** Moves the focus to the heading of the view, after the element that had it was removed. */
export function focusView() {
  document.querySelector("#view h1")?.focus({ preventScroll: true });
}

let lastId = 0;

/** A unique id, to associate a label or a description with an element. */
export function freshId(kind) {
  lastId += 1;
  return `${kind}-${lastId}`;
}

function furnish(node, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else setAttribute(node, key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
