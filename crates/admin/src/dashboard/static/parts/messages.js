// Publishing a message, and getting messages out of a queue.

import { el, freshId, name, setAttribute, setChildren, setText } from "../dom.js";
import { bytes, count, exchangeName, value } from "../format.js";
import { exchangePart } from "../api.js";
import { badge } from "./table.js";
import { field } from "./fields.js";
import { section } from "./figures.js";

/** Maximum messages per get, and maximum bytes of each that are shown. */
const MOST_MESSAGES = 50;
const MOST_BYTES = 50_000;

/** A form that publishes to an exchange; `key` is the initial routing key, `fixed` makes it read-only. */
export function publishForm(api, vhost, exchange, { key = "", fixed = false, done = () => {} } = {}) {
  const parts = [
    fixed ? null : field({ name: "key", label: "Routing key", value: key }),
    field({ name: "payload", label: "Payload", type: "textarea", value: "" }),
    field({ name: "type", label: "Content type", value: "text/plain", suggestions: ["application/json"] }),
    field({ name: "persistent", label: "Persistent: survives a restart", type: "checkbox", value: true }),
    field({ name: "headers", label: "Headers", type: "arguments" }),
  ].filter(Boolean);
  const state = el("p", { class: "state", role: "status" });
  const submit = el("button", {}, "Publish");
  const form = el("form", {}, ...parts.map(({ element }) => element), el("div", { class: "actions" }, submit, state));
  onSubmit(form, state, async () => {
    const typed = Object.fromEntries(parts.map(({ name, read }) => [name, read()]));
    const { routed } = await api.post(["exchanges", vhost, exchangePart(exchange), "publish"], {
      routing_key: fixed ? key : typed.key,
      payload: typed.payload,
      payload_encoding: "string",
      properties: {
        delivery_mode: typed.persistent ? 2 : 1,
        headers: typed.headers,
        ...(typed.type && { content_type: typed.type }),
      },
    });
    done();
    return routed ? ["good", "Message published."] : ["wait", "Message published, but not routed."];
  });
  return section("Publish message", form);
}

const ACK_MODES = [
  ["ack_requeue_true", "Nack message requeue true: it stays in the queue"],
  ["ack_requeue_false", "Automatic ack: it is removed"],
  ["reject_requeue_false", "Reject requeue false: it is dead-lettered or removed"],
];

/** A form that gets messages from a queue, and shows them. */
export function getForm(api, vhost, queue, { done = () => {} } = {}) {
  const parts = [
    field({ name: "ackmode", label: "Ack mode", type: "select", options: ACK_MODES }),
    field({ name: "count", label: "Messages", type: "number", value: "1", required: true }),
  ];
  const state = el("p", { class: "state", role: "status" });
  const submit = el("button", {}, "Get");
  const got = el("ol", { class: "messages" });
  const form = el("form", {}, ...parts.map(({ element }) => element), el("div", { class: "actions" }, submit, state));
  onSubmit(form, state, async () => {
    const { ackmode, count: wanted } = Object.fromEntries(parts.map(({ name, read }) => [name, read()]));
    const messages = await api.post(["queues", vhost, queue, "get"], {
      count: Math.min(MOST_MESSAGES, Math.max(1, Number(wanted) || 1)),
      ackmode,
      encoding: "auto",
      truncate: MOST_BYTES,
    });
    setChildren(got, messages.map(message));
    done();
    if (messages.length === 0) return ["wait", "Queue is empty."];
    return ["good", `${messages.length === 1 ? "One message" : `${count(messages.length)} messages`} below.`];
  });
  return section("Get messages", form, got);
}

function message(each) {
  const head = el(
    "p",
    { class: "from" },
    el("bdi", {}, `${exchangeName(each.exchange)} → ${each.routing_key}`),
    el("span", {}, bytes(each.payload_bytes)),
    each.redelivered ? badge("redelivered") : null,
    each.payload_encoding === "base64" ? badge("base64") : null,
    each.payload_bytes > MOST_BYTES ? badge(`first ${count(MOST_BYTES)} bytes`) : null,
  );
  const { headers = {}, ...properties } = Array.isArray(each.properties) ? {} : each.properties;
  return el(
    "li",
    {},
    head,
    el("pre", { tabindex: 0, "aria-label": "Payload" }, each.payload),
    pairs("Properties", properties),
    // Apart from the properties, because a publisher may give a header the name of one.
    pairs("Headers", headers),
  );
}

/** A list of names and values under a title; null for none. */
function pairs(title, values) {
  const all = Object.entries(values);
  if (all.length === 0) return null;
  const pair = ([key, any]) => el("div", {}, el("dt", {}, name(key)), el("dd", {}, name(value(any))));
  const id = freshId("pairs");
  const list = el("dl", { class: "facts small", "aria-labelledby": id }, ...all.map(pair));
  return el("div", {}, el("h3", { id }, title), list);
}

/** Runs an action, one at a time, when a form is submitted, and shows the result. */
function onSubmit(form, state, action) {
  let isBusy = false;
  const tell = (tone, text) => {
    setAttribute(state, "data-state", tone);
    setText(state, text);
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    try {
      tell(...(await action()));
    } catch (error) {
      tell("bad", error.message);
    } finally {
      isBusy = false;
    }
  });
}
