// The queues: a list of them, by pages, and declaring another.

import { button } from "../dom.js";
import { count, features, rate, rateOf } from "../format.js";
import { ask } from "../parts/dialog.js";
import { list } from "../parts/list.js";
import { announce } from "../parts/notice.js";
import { go, to } from "../router.js";
import { stateBadge } from "./connections.js";

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
];

export function queues({ api, vhostPath, vhostColumn, vhost, vhosts }) {
  const rows = list({
    caption: "Queues",
    filter: "Filter by name",
    empty: "There is no queue yet.",
    key: (queue) => JSON.stringify([queue.vhost, queue.name]),
    columns: [
      { title: "Queue", sort: "name", text: (each) => each.name, href: (each) => to(["queues", each.vhost, each.name]) },
      ...vhostColumn("vhost"),
      { title: "Features", badges: (each) => queueFeatures(each) },
      { title: "State", sort: "state", badges: (each) => [stateBadge(each.state)] },
      { title: "Ready", sort: "messages_ready", number: true, text: (each) => count(each.messages_ready) },
      {
        title: "Unacknowledged",
        sort: "messages_unacknowledged",
        number: true,
        text: (each) => count(each.messages_unacknowledged),
      },
      { title: "Consumers", sort: "consumers", number: true, text: (each) => count(each.consumers) },
      {
        title: "In",
        sort: "message_stats.publish_details.rate",
        number: true,
        text: (each) => rate(rateOf(each.message_stats, "publish")),
      },
      {
        title: "Out",
        sort: "message_stats.deliver_get_details.rate",
        number: true,
        text: (each) => rate(rateOf(each.message_stats, "deliver_get")),
      },
      {
        title: "Acknowledged",
        sort: "message_stats.ack_details.rate",
        number: true,
        text: (each) => rate(rateOf(each.message_stats, "ack")),
      },
    ],
    fetch: ({ page, size, query, signal }) => api.list(vhostPath("queues"), { page, size, query, signal }),
  });
  const declare = button("Declare a queue", () => declareQueue(api, vhost() || "/", vhosts()));
  return { title: "Queues", actions: [declare], element: rows.element, refresh: rows.refresh };
}

function queueFeatures(queue) {
  const words = features(queue);
  if (queue.type && queue.type !== "classic") words.unshift(queue.type);
  if (queue.policy) words.push([`policy ${queue.policy}`, "good"]);
  return words;
}

async function declareQueue(api, vhost, vhosts) {
  let declared;
  const isDone = await ask({
    title: "Declare a queue",
    fields: [
      { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhost },
      { name: "name", label: "Name", required: true },
      { name: "durable", label: "Durable: kept over a restart", type: "checkbox", value: true },
      { name: "autoDelete", label: "Auto-delete: gone with its last consumer", type: "checkbox" },
      { name: "arguments", label: "Arguments", type: "arguments", suggestions: ARGUMENTS },
    ],
    confirm: "Declare",
    action: async (typed) => {
      await api.put(["queues", typed.vhost, typed.name], {
        durable: typed.durable,
        auto_delete: typed.autoDelete,
        arguments: typed.arguments,
      });
      declared = ["queues", typed.vhost, typed.name];
    },
  });
  if (!isDone) return;
  go(declared);
  announce(`Queue ${declared[2]} is declared.`);
}
