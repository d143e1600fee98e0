// The bindings: all of a virtual host in a list, adding one and removing one.

import { button, el } from "../dom.js";
import { exchangeName } from "../format.js";
import { ask } from "../parts/dialog.js";
import { list } from "../parts/list.js";
import { to } from "../router.js";
import { argumentsOf } from "./queue.js";

export function bindings({ api, vhostPath, vhostColumn, vhost, vhosts, refreshNow, slowly }) {
  const rows = list({
    caption: "Bindings",
    empty: "No bindings.",
    key: ({ vhost, source, destination_type: type, destination, properties_key: key }) =>
      JSON.stringify([vhost, source, type, destination, key]),
    columns: [
      {
        title: "From exchange",
        text: (each) => exchangeName(each.source),
        href: (each) => to(["exchanges", each.vhost, each.source]),
      },
      {
        title: "To",
        text: (each) => each.destination,
        href: (each) => to([`${each.destination_type}s`, each.vhost, each.destination]),
      },
      { title: "Type", badges: (each) => [each.destination_type] },
      ...vhostColumn(),
      { title: "Routing key", text: (each) => each.routing_key },
      { title: "Arguments", text: (each) => argumentsOf(each) },
      {
        title: "Remove",
        label: (each) => (each.source === "" ? null : `the binding from ${each.source} to ${each.destination}`),
        action: async (each) => (await removeBinding(api, each)) && slow.changed(),
      },
    ],
    fetch: ({ page, size, signal }) => api.list(vhostPath("bindings"), { page, size, signal }),
  });
  const slow = slowly(rows, refreshNow);
  const add = button("Add a binding", async () => {
    if (await addBinding(api, { vhost: vhost() || "/", vhosts: vhosts() })) slow.changed();
  });
  const hint = el("p", { class: "hint" }, "Updated when this page opens and by Refresh.");
  const element = el("div", { class: "stack" }, hint, slow.element);
  const actions = [add, button("Refresh", slow.changed, { class: "quiet" })];
  return { title: "Bindings", actions, element, refresh: slow.refresh };
}

const KINDS = [
  ["queue", "queue"],
  ["exchange", "exchange"],
];

/** Asks for the missing fields (`vhosts` are the choices) and binds. Resolves to whether it was done. */
export function addBinding(api, { vhost, vhosts, source, destination, type }) {
  return ask({
    title: "Add a binding",
    words: [source && `From exchange ${source}.`, destination && `To ${type} ${destination}.`],
    fields: [
      vhosts && { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhost },
      source === undefined && { name: "source", label: "From exchange", required: true, value: "amq.topic" },
      destination === undefined && { name: "type", label: "Destination type", type: "select", options: KINDS },
      destination === undefined && { name: "destination", label: "Destination", required: true },
      { name: "key", label: "Routing key" },
      { name: "arguments", label: "Arguments", type: "arguments", suggestions: ["x-match"] },
    ].filter(Boolean),
    confirm: "Bind",
    action: async (typed) => {
      const to = { vhost, type, destination, source, ...typed };
      const path = ["bindings", to.vhost, "e", to.source, to.type === "queue" ? "q" : "e", to.destination];
      await api.post(path, { routing_key: to.key, arguments: to.arguments });
      return `${to.destination} is bound to ${to.source}.`;
    },
  });
}

/** Removes a binding after confirmation. Resolves to whether it was done. */
export function removeBinding(api, { vhost, source, destination, destination_type: type, properties_key: key, ...rest }) {
  return ask({
    title: "Remove this binding?",
    words: `${type} ${destination} is unbound from ${source} with routing key "${rest.routing_key}".`,
    confirm: "Remove",
    danger: true,
    action: async () => {
      await api.delete(["bindings", vhost, "e", source, type === "queue" ? "q" : "e", destination, key]);
      return "The binding is removed.";
    },
  });
}
