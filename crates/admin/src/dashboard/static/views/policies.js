// The policies of a virtual host: settings of all queues or exchanges whose names match a pattern.

import { button } from "../dom.js";
import { count, value } from "../format.js";
import { ask } from "../parts/dialog.js";
import { list } from "../parts/list.js";
import { slowly } from "../parts/slow.js";

const KEYS = [
  "message-ttl",
  "expires",
  "max-length",
  "max-length-bytes",
  "overflow",
  "dead-letter-exchange",
  "dead-letter-routing-key",
  "alternate-exchange",
];
const APPLIES = ["all", "queues", "exchanges"];

export function policies({ api, session, vhostPath, vhostColumn, vhost, vhosts, refreshNow }) {
  const mayChange = session.may("policymaker");
  const rows = list({
    caption: "Policies",
    empty: "No policies.",
    key: (policy) => JSON.stringify([policy.vhost, policy.name]),
    columns: [
      { title: "Name", text: (each) => each.name },
      ...vhostColumn(),
      { title: "Pattern", text: (each) => each.pattern },
      { title: "Apply to", badges: (each) => [each["apply-to"]] },
      { title: "Definition", text: (each) => definition(each) },
      { title: "Priority", number: true, text: (each) => count(each.priority) },
      ...(mayChange ? [{ title: "Delete", label: (each) => each.name, action: (each) => remove(each) }] : []),
    ],
    fetch: ({ page, size, signal }) => api.list(vhostPath("policies"), { page, size, signal }),
  });
  slowly(rows, refreshNow);

  async function add() {
    const isDone = await ask({
      title: "Set a policy",
      words: "A policy with the same name is replaced.",
      fields: [
        { name: "vhost", label: "Virtual host", type: "select", options: vhosts(), value: vhost() || "/" },
        { name: "name", label: "Name", required: true },
        { name: "pattern", label: "Pattern", required: true, hint: "A regular expression for names, such as ^orders\\." },
        { name: "applyTo", label: "Apply to", type: "select", options: APPLIES, value: "queues" },
        { name: "priority", label: "Priority", type: "number", value: "0", hint: "The highest of those that match applies." },
        { name: "definition", label: "Definition", type: "arguments", suggestions: KEYS },
      ],
      confirm: "Set policy",
      action: async (typed) => {
        await api.put(["policies", typed.vhost, typed.name], {
          pattern: typed.pattern,
          "apply-to": typed.applyTo,
          priority: Number(typed.priority),
          definition: typed.definition,
        });
        return `Policy ${typed.name} is set.`;
      },
    });
    if (isDone) rows.changed();
  }

  async function remove(policy) {
    const isDone = await ask({
      title: "Delete this policy?",
      words: `Policy ${policy.name} no longer applies.`,
      confirm: "Delete",
      danger: true,
      action: async () => {
        await api.delete(["policies", policy.vhost, policy.name]);
        return `Policy ${policy.name} is deleted.`;
      },
    });
    if (isDone) rows.changed();
  }

  const actions = mayChange ? [button("Set a policy", add)] : [];
  return { title: "Policies", actions, element: rows.element, refresh: rows.refresh };
}

function definition(policy) {
  return Object.entries(policy.definition)
    .map(([key, any]) => `${key} = ${value(any)}`)
    .join(", ");
}
