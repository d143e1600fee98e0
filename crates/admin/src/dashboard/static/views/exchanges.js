// The exchanges: a list, and one exchange with its bindings.

import { button, el } from "../dom.js";
import { exchangePart } from "../api.js";
import { attributes, exchangeName, features, known, rate, rateOf } from "../format.js";
import { rateColumn } from "../parts/columns.js";
import { declare } from "../parts/declare.js";
import { ask } from "../parts/dialog.js";
import { facts, section } from "../parts/figures.js";
import { list } from "../parts/list.js";
import { publishForm } from "../parts/messages.js";
import { announce } from "../parts/notice.js";
import { go, to } from "../router.js";
import { addBinding, removeBinding } from "./bindings.js";
import { argumentsOf } from "./queue.js";

const TYPES = ["direct", "fanout", "topic", "headers"];
const DEFAULT_BINDINGS = "Every queue is implicitly bound to it, with the queue's name as the routing key.";

export function exchanges({ api, vhostPath, vhostColumn, vhost, vhosts, sampler }) {
  const rows = list({
    caption: "Exchanges",
    empty: "No exchanges.",
    filter: "Filter by name",
    key: (exchange) => JSON.stringify([exchange.vhost, exchange.name]),
    columns: [
      ...vhostColumn("vhost", "Overview"),
      {
        title: "Name",
        sort: "name",
        group: "Overview",
        isName: true,
        text: (each) => exchangeName(each.name),
        href: (each) => to(["exchanges", each.vhost, each.name]),
      },
      { title: "Type", sort: "type", group: "Overview", badges: (each) => [each.type] },
      { title: "Features", group: "Overview", badges: (each) => features(each) },
      rateColumn("rate in", "publish_in"),
      rateColumn("rate out", "publish_out"),
    ],
    fetch: ({ page, size, query, signal }) => api.list(vhostPath("exchanges"), { page, size, query, signal }),
  });
  const types = () => sampler.overview?.exchange_types?.map((type) => type.name) ?? TYPES;
  const actions = [button("Declare an exchange", () => declareExchange(api, vhost() || "/", vhosts(), types()))];
  return { title: "Exchanges", actions, element: rows.element, refresh: rows.refresh };
}

export function exchange({ api, place, refreshNow, slowly }) {
  const [, vhost, name] = place.parts;
  const about = facts();
  const isDefault = name === "";
  const bindings = isDefault ? null : bindingRows({ api, vhost, name, refreshNow, slowly });
  const element = el(
    "div",
    { class: "stack" },
    section("Details", about.element),
    isDefault
      ? section("Bindings", el("p", { class: "hint" }, DEFAULT_BINDINGS))
      : section("Bindings", bindings.element, button("Bind a queue or exchange", bind, { class: "quiet" })),
    publishForm(api, vhost, name, { done: refreshNow }),
  );

  async function bind() {
    if (await addBinding(api, { vhost, source: name })) bindings.changed();
  }

  async function refresh(signal) {
    const path = ["exchanges", vhost, exchangePart(name)];
    const [told] = await Promise.all([api.get(path, {}, signal), bindings?.refresh(signal)]);
    about.update([
      ["Virtual host", told.vhost],
      ["Type", told.type],
      ["Features", attributes(told).join(", ")],
      ["Arguments", argumentsOf(told)],
      ["Policy", told.policy],
      ["Rate in", known(rate(rateOf(told.message_stats, "publish_in")))],
      ["Rate out", known(rate(rateOf(told.message_stats, "publish_out")))],
    ]);
  }

  const isBuiltIn = isDefault || name.startsWith("amq.");
  const actions = isBuiltIn ? [] : [button("Delete", () => remove(api, vhost, name), { class: "danger" })];
  return { title: "Exchange", subject: exchangeName(name), actions, element, refresh };
}

function bindingRows({ api, vhost, name, refreshNow, slowly }) {
  const rows = list({
    caption: "Bindings",
    isPart: true,
    empty: "No bindings.",
    key: (binding) => JSON.stringify([binding.destination_type, binding.destination, binding.properties_key]),
    columns: [
      {
        title: "To",
        text: (each) => each.destination,
        href: (each) => to([`${each.destination_type}s`, vhost, each.destination]),
      },
      { title: "Type", badges: (each) => [each.destination_type] },
      { title: "Routing key", text: (each) => each.routing_key },
      { title: "Arguments", text: (each) => argumentsOf(each) },
      {
        title: "Remove",
        label: (each) => `the binding to ${each.destination} with ${each.routing_key}`,
        action: async (each) => (await removeBinding(api, each)) && rows.changed(),
      },
    ],
    fetch: ({ page, size, signal }) => api.list(["exchanges", vhost, name, "bindings", "source"], { page, size, signal }),
  });
  return slowly(rows, refreshNow);
}

async function declareExchange(api, vhost, vhosts, types) {
  let declared;
  const isDone = await ask({
    title: "Declare an exchange",
    fields: [
      { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhost },
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", options: types, value: "direct" },
      { name: "durable", label: "Durable: survives a restart", type: "checkbox", value: true },
      { name: "autoDelete", label: "Auto-delete: deleted with its last binding", type: "checkbox" },
      { name: "internal", label: "Internal: clients cannot publish to it", type: "checkbox" },
      { name: "arguments", label: "Arguments", type: "arguments", suggestions: ["alternate-exchange"] },
    ],
    confirm: "Declare",
    action: async (typed) => {
      await declare(api, ["exchanges", typed.vhost, typed.name], {
        type: typed.type,
        durable: typed.durable,
        auto_delete: typed.autoDelete,
        internal: typed.internal,
        arguments: typed.arguments,
      });
      declared = ["exchanges", typed.vhost, typed.name];
    },
  });
  if (!isDone) return;
  go(declared);
  announce(`Exchange ${declared[2]} is declared.`);
}

async function remove(api, vhost, name) {
  const isDone = await ask({
    title: "Delete this exchange?",
    words: `Exchange ${name} is deleted with its bindings. Clients that publish to it get an error.`,
    fields: [{ name: "unused", label: "Only if it has no bindings", type: "checkbox" }],
    confirm: "Delete",
    danger: true,
    action: async ({ unused }) => {
      await api.delete(["exchanges", vhost, name], { query: { "if-unused": unused ? "true" : "" } });
      return `Exchange ${name} is deleted.`;
    },
  });
  if (isDone) go(["exchanges"]);
}
