// The overview: message rates, queued messages, global counts, and resource headroom.

import { el, setChildren } from "../dom.js";
import { bytes, count, duration, rate, short } from "../format.js";
import { badge } from "../parts/table.js";
import { bar, facts, section, tiles } from "../parts/figures.js";
import { sparkCard } from "../parts/sparkline.js";
import { to } from "../router.js";

const FLOWS = [
  ["publish", "Publish", "first"],
  ["deliver_get", "Deliver / get", "second"],
  ["ack", "Consumer ack", "third"],
];
const WAITING = [
  ["messages_ready", "Ready", "first"],
  ["messages_unacknowledged", "Unacked", "second"],
  ["messages", "Total", "third"],
];

export function overview({ sampler }) {
  const flows = FLOWS.map(([key, title, tone]) => ({ key, words: rate, ...sparkCard(title, tone) }));
  const waiting = WAITING.map(([key, title, tone]) => ({ key, words: short, ...sparkCard(title, tone) }));
  const cards = [...flows, ...waiting];
  const things = tiles([
    { key: "connections", title: "Connections", href: to(["connections"]) },
    { key: "channels", title: "Channels", href: to(["channels"]) },
    { key: "exchanges", title: "Exchanges", href: to(["exchanges"]) },
    { key: "queues", title: "Queues", href: to(["queues"]) },
    { key: "consumers", title: "Consumers" },
  ]);
  const node = nodeFigures();
  const spoken = protocols();
  const about = facts();
  const element = el(
    "div",
    { class: "stack" },
    section("Message rates", el("div", { class: "cards three" }, ...flows.map((card) => card.element))),
    section("Queued messages", el("div", { class: "cards three" }, ...waiting.map((card) => card.element))),
    section("Global counts", things.element),
    spoken.element,
    node.element,
    section("Node", about.element),
  );
  const refresh = async () => {
    const { overview: told, nodes, metrics, history } = sampler;
    if (!told) return;
    for (const { key, words, update } of cards) update(history.series(key), words);
    const totals = told.object_totals ?? {};
    things.update(Object.fromEntries(Object.entries(totals).map(([key, value]) => [key, short(value)])));
    node.update(nodes[0]);
    spoken.update(told, metrics);
    about.update([
      ["Product", [told.product_name, told.product_version ?? told.rabbitmq_version].filter(Boolean).join(" ")],
      ["Cluster", told.cluster_name],
      ["Node", told.node],
      ["Uptime", nodes[0]?.uptime === undefined ? null : duration(nodes[0].uptime)],
    ]);
  };
  return { title: "Overview", element, refresh };
}

/** Memory, disk and descriptors with their limits; values that the server does not report are hidden. */
function nodeFigures() {
  const memory = bar("Memory");
  const disk = bar("Free disk");
  const files = bar("File descriptors");
  const element = section("Resources", el("div", { class: "bars" }, memory.element, disk.element, files.element));
  const update = (node) => {
    element.hidden = !node;
    if (!node) return;
    const { mem_used: used, mem_limit: limit, disk_free: free, disk_free_limit: least } = node;
    const { fd_used: open, fd_total: most } = node;
    const known = (...values) => values.every((value) => typeof value === "number" && value > 0);
    memory.update(
      known(used, limit)
        ? { value: used, most: limit, words: `${bytes(used)} of ${bytes(limit)}`, alarm: node.mem_alarm }
        : null,
    );
    // The bar fills up as free space falls to its limit.
    disk.update(
      known(free, least)
        ? { value: least, most: free, words: `${bytes(free)}, alarm below ${bytes(least)}`, alarm: node.disk_free_alarm }
        : null,
    );
    files.update(known(open, most) ? { value: open, most, words: `${count(open)} of ${count(most)}` } : null);
  };
  return { element, update };
}

/** The listeners with their protocols, and the number of connections of each protocol if the server counts them. */
export function protocols() {
  const gauges = tiles([]);
  const rows = el("ul", { class: "listeners" });
  const element = section("Protocols", gauges.element, rows);
  let shown = "";
  const update = (told, metrics) => {
    const counts = metrics?.samples("leveret_protocol_connections") ?? [];
    const listeners = (told?.listeners ?? []).map(({ protocol, ip_address: ip, port }) => ({ protocol, ip, port }));
    element.hidden = counts.length === 0 && listeners.length === 0;
    const state = JSON.stringify([counts, listeners]);
    if (state === shown) return;
    shown = state;
    setChildren(gauges.element, counts.map(({ labels, value }) => protocolTile(labels, value)));
    gauges.element.hidden = counts.length === 0;
    setChildren(rows, listeners.map(({ protocol, ip, port }) => listener(protocol, ip, port)));
  };
  return { element, update };
}

function protocolTile({ protocol, transport }, value) {
  const where = { tcp: "", tls: " over TLS", unix: " on a Unix socket", websocket: " over WebSocket" }[transport];
  const what = `${protocol.toUpperCase()}${where ?? ` over ${transport}`}`;
  return el("div", { class: "tile" }, el("span", { class: "figure" }, short(value)), el("span", { class: "what" }, what));
}

function listener(protocol, ip, port) {
  const host = ip?.includes(":") ? `[${ip}]` : ip;
  return el("li", {}, badge(protocol), " ", el("span", { class: "address" }, `${host}:${port}`));
}
