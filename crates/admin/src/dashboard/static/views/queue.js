// One queue: its state, bindings and actions.

import { button, el } from "../dom.js";
import { attributes, bytes, count, duration, exchangeName, known, rate, rateOf, value } from "../format.js";
import { LATELY, Series, levelsBefore, ratesBefore } from "../history.js";
import { ask } from "../parts/dialog.js";
import { facts, section } from "../parts/figures.js";
import { list } from "../parts/list.js";
import { getForm, publishForm } from "../parts/messages.js";
import { sparkCard } from "../parts/sparkline.js";
import { go, to } from "../router.js";
import { addBinding, removeBinding } from "./bindings.js";

const LEVELS = [
  ["messages_ready", "Ready", "first"],
  ["messages_unacknowledged", "Unacked", "second"],
  ["messages", "Total", "third"],
];
const FLOWS = [
  ["publish", "Publish", "first"],
  ["deliver_get", "Deliver / get", "second"],
  ["ack", "Consumer ack", "third"],
];

export function queue({ api, place, refreshNow, slowly }) {
  const [, vhost, name] = place.parts;
  let details = {};
  const levels = LEVELS.map(([key, title, tone]) => ({ key, series: new Series(), ...sparkCard(title, tone) }));
  const flows = FLOWS.map(([key, title, tone]) => ({ key, series: new Series(), ...sparkCard(title, tone) }));
  const flowing = section("Message rates", el("div", { class: "cards three" }, ...flows.map((each) => each.element)));
  const about = facts();
  const consumers = consumerRows(() => details);
  const bindings = bindingRows({ api, vhost, name, refreshNow, slowly });
  const element = el(
    "div",
    { class: "stack" },
    section("Queued messages", el("div", { class: "cards three" }, ...levels.map((each) => each.element))),
    flowing,
    section("Details", about.element),
    section("Consumers", consumers.element),
    section("Bindings", bindings.element, button("Bind to an exchange", bind, { class: "quiet" })),
    el(
      "div",
      { class: "beside" },
      publishForm(api, vhost, "", { key: name, fixed: true, done: refreshNow }),
      getForm(api, vhost, name, { done: refreshNow }),
    ),
  );

  async function bind() {
    if (await addBinding(api, { vhost, destination: name, type: "queue" })) bindings.changed();
  }

  async function refresh(signal) {
    const query = details.name === undefined ? LATELY : {};
    [details] = await Promise.all([api.get(["queues", vhost, name], query, signal), bindings.refresh(signal)]);
    for (const { key, series, update } of levels) {
      series.seed(levelsBefore(details, key));
      series.push(details[key] ?? 0);
      update(series, count);
    }
    flowing.hidden = details.message_stats === undefined;
    for (const { key, series, update } of flows) {
      series.seed(ratesBefore(details.message_stats, key));
      series.push(rateOf(details.message_stats, key) ?? 0);
      update(series, rate);
    }
    about.update(describe(details));
    await consumers.refresh(signal);
  }

  const actions = [
    button("Purge", () => purge(api, vhost, name, refreshNow)),
    button("Delete", () => remove(api, vhost, name), { class: "danger" }),
  ];
  return { title: "Queue", subject: name, actions, element, refresh };
}

function describe(queue) {
  return [
    ["Virtual host", queue.vhost],
    ["Type", queue.type],
    ["State", queue.state],
    ["Features", attributes(queue).join(", ")],
    ["Arguments", argumentsOf(queue)],
    ["Policy", queue.policy],
    ["Exclusive owner", queue.owner_pid_details?.name],
    ["Message body bytes", known(bytes(queue.message_bytes ?? queue.message_bytes_ready))],
    ["Messages paged out", queue.messages_paged_out ? count(queue.messages_paged_out) : null],
    ["Memory", known(bytes(queue.memory))],
    ["Idle for", idle(queue.idle_since)],
  ];
}

/** RabbitMQ writes "2026-01-31 12:00:00", or with a "T" and milliseconds, always of UTC. */
function idle(since) {
  if (!since) return null;
  const at = Date.parse(`${since.replace(" ", "T").replace(/Z$|\+00:00$/, "")}Z`);
  return Number.isNaN(at) ? null : duration(Math.max(0, Date.now() - at));
}

function consumerRows(queue) {
  return list({
    caption: "Consumers",
    isPart: true,
    empty: "No consumers.",
    key: (consumer) => JSON.stringify([consumer.channel_details?.name, consumer.consumer_tag]),
    columns: [
      { title: "Consumer tag", text: (each) => each.consumer_tag },
      {
        title: "Channel",
        text: (each) => each.channel_details?.name ?? "",
        href: (each) =>
          each.channel_details?.connection_name ? to(["connections", each.channel_details.connection_name]) : null,
      },
      { title: "Ack required", text: (each) => (each.ack_required ? "yes" : "no") },
      { title: "Prefetch count", number: true, text: (each) => count(each.prefetch_count) },
    ],
    // The response for the queue includes its consumers; they are paged here.
    fetch: async ({ page, size }) => {
      const all = queue().consumer_details ?? [];
      const pages = Math.max(1, Math.ceil(all.length / size));
      const items = all.slice((page - 1) * size, page * size);
      return { items, page, pages, found: all.length, total: all.length };
    },
  });
}

/** Bindings are not paged by the server, so they are fetched when the view opens, by Refresh, and after a change. */
function bindingRows({ api, vhost, name, refreshNow, slowly }) {
  const rows = list({
    caption: "Bindings",
    isPart: true,
    empty: "No bindings.",
    key: (binding) => JSON.stringify([binding.source, binding.properties_key]),
    columns: [
      {
        title: "From exchange",
        text: (each) => exchangeName(each.source),
        href: (each) => to(["exchanges", vhost, each.source]),
      },
      { title: "Routing key", text: (each) => each.routing_key },
      { title: "Arguments", text: (each) => argumentsOf(each) },
      {
        title: "Remove",
        label: (each) => (each.source === "" ? null : `the binding from ${each.source} with ${each.routing_key}`),
        action: async (each) => (await removeBinding(api, each)) && rows.changed(),
      },
    ],
    fetch: ({ page, size, signal }) => api.list(["queues", vhost, name, "bindings"], { page, size, signal }),
  });
  return slowly(rows, refreshNow);
}

export function argumentsOf(thing) {
  const all = Object.entries(thing.arguments ?? {});
  return all.map(([key, any]) => `${key} = ${value(any)}`).join(", ");
}

async function purge(api, vhost, name, refreshNow) {
  const isDone = await ask({
    title: "Purge this queue?",
    words: `All ready messages of ${name} are deleted. This cannot be undone.`,
    confirm: "Purge",
    danger: true,
    action: async () => {
      await api.delete(["queues", vhost, name, "contents"]);
      return `Queue ${name} is purged.`;
    },
  });
  if (isDone) refreshNow();
}

async function remove(api, vhost, name) {
  const isDone = await ask({
    title: "Delete this queue?",
    words: `Queue ${name} is deleted with its messages and bindings. This cannot be undone.`,
    fields: [
      { name: "unused", label: "Only if it has no consumers", type: "checkbox" },
      { name: "empty", label: "Only if it has no messages", type: "checkbox" },
    ],
    confirm: "Delete",
    danger: true,
    action: async ({ unused, empty }) => {
      const query = { "if-unused": unused ? "true" : "", "if-empty": empty ? "true" : "" };
      await api.delete(["queues", vhost, name], { query });
      return `Queue ${name} is deleted.`;
    },
  });
  if (isDone) go(["queues"]);
}
