// The queues: a list of them, by pages, and declaring another.

import { button } from "../dom.js";
import { count, features } from "../format.js";
import { countColumn, rateColumn } from "../parts/columns.js";
import { declare } from "../parts/declare.js";
import { ask } from "../parts/dialog.js";
import { list } from "../parts/list.js";
import { announce } from "../parts/notice.js";
import { go, to } from "../router.js";
import { stateBadge } from "./connections.js";

const TYPES = [["", "default of the virtual host"], "classic", "quorum"];
const ARGUMENTS = [
  "x-message-ttl",
  "x-expires",
  "x-max-length",
  "x-max-length-bytes",
  "x-overflow",
  "x-max-priority",
  "x-dead-letter-exchange",
  "x-dead-letter-routing-key",
  "x-single-active-consumer",
  "x-queue-type",
  "x-delivery-limit",
];

export function queues({ api, vhostPath, vhostColumn, vhost, vhosts }) {
  const rows = list({
    caption: "Queues",
    filter: "Filter by name",
    empty: "No queues.",
    key: (queue) => JSON.stringify([queue.vhost, queue.name]),
    columns: [
      ...vhostColumn("vhost", "Overview"),
      {
        title: "Name",
        sort: "name",
        group: "Overview",
        isName: true,
        text: (each) => each.name,
        href: (each) => to(["queues", each.vhost, each.name]),
      },
      { title: "Type", sort: "type", group: "Overview", badges: (each) => [each.type] },
      { title: "Features", group: "Overview", badges: (each) => features(each) },
      { title: "Consumers", sort: "consumers", group: "Overview", number: true, text: (each) => count(each.consumers) },
      { title: "State", sort: "state", group: "Overview", badges: (each) => [stateBadge(each.state)] },
      countColumn("Ready", "messages_ready", "Messages"),
      countColumn("Unacked", "messages_unacknowledged", "Messages"),
      countColumn("Total", "messages", "Messages"),
      rateColumn("incoming", "publish"),
      rateColumn("deliver / get", "deliver_get"),
      rateColumn("ack", "ack"),
    ],
    fetch: ({ page, size, query, signal }) => api.list(vhostPath("queues"), { page, size, query, signal }),
  });
  const actions = [button("Declare a queue", () => declareQueue(api, vhost() || "/", vhosts()))];
  return { title: "Queues", actions, element: rows.element, refresh: rows.refresh };
}

async function declareQueue(api, vhost, vhosts) {
  let declared;
  const isDone = await ask({
    title: "Declare a queue",
    fields: [
      { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhost },
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", options: TYPES },
      { name: "durable", label: "Durable: survives a restart", type: "checkbox", value: true },
      { name: "autoDelete", label: "Auto-delete: deleted with its last consumer", type: "checkbox" },
      { name: "arguments", label: "Arguments", type: "arguments", suggestions: ARGUMENTS },
    ],
    confirm: "Declare",
    action: async (typed) => {
      await declare(api, ["queues", typed.vhost, typed.name], {
        durable: typed.durable,
        auto_delete: typed.autoDelete,
        arguments: { ...typed.arguments, ...(typed.type && { "x-queue-type": typed.type }) },
      });
      declared = ["queues", typed.vhost, typed.name];
    },
  });
  if (!isDone) return;
  go(declared);
  announce(`Queue ${declared[2]} is declared.`);
}
