// The pool: whether the upstream is reachable, which clients share its connections, and what that saves.

import { el, setAttribute, setChildren } from "../dom.js";
import { bytes, count, percent, rate, short } from "../format.js";
import { bar, section, tiles } from "../parts/figures.js";
import { list } from "../parts/list.js";
import { badge } from "../parts/table.js";
import { sparkCard } from "../parts/sparkline.js";
import { protocols } from "./overview.js";

const FLOWS = [
  ["sent", "To the upstream", "first"],
  ["received", "From the upstream", "second"],
  ["spared", "Round trips saved", "third"],
];

const TROUBLES = [
  ["connect_failures_total", "Failed connection attempts"],
  ["connections_lost_total", "Connections lost"],
  ["recovered_channels_total", "Channels recovered"],
  ["replayed_messages_total", "Messages republished"],
  ["unconfirmed_channels_total", "Channels that may have lost messages"],
  ["moved_channels_total", "Channels moved to a dedicated connection"],
  ["refused_logins_total", "Logins refused"],
];

export function pool({ api, sampler }) {
  const health = upstreamHealth();
  const flows = FLOWS.map(([key, title, tone]) => ({ key, ...sparkCard(title, tone) }));
  const sharing = sharingFigures();
  const subscriptions = multiplexedSubscriptions(api);
  const savings = tiles([
    { key: "handshakes", title: "Handshakes avoided" },
    { key: "handshakesShare", title: "Share of all logins" },
    { key: "leases", title: "Channels opened without a round trip" },
    { key: "leasesShare", title: "Share of all channels" },
    { key: "trips", title: "Round trips saved" },
    { key: "copies", title: "Messages saved by multiplexed subscriptions" },
    { key: "queues", title: "Queues saved now" },
    { key: "connections", title: "Connections saved now" },
  ]);
  const troubles = tiles(TROUBLES.map(([key, title]) => ({ key, title })));
  const spoken = protocols();
  const element = el(
    "div",
    { class: "stack" },
    health.element,
    section("Rates", el("div", { class: "cards three" }, ...flows.map((card) => card.element))),
    sharing.element,
    subscriptions.element,
    section("Savings since start", savings.element),
    section("Errors since start", troubles.element),
    spoken.element,
  );
  const refresh = async (signal) => {
    const { metrics, history } = sampler;
    const read = (name) => metrics.value(`leveret_upstream_${name}`);
    health.update(metrics, await api.get(["leveret", "upstreams"], {}, signal));
    for (const { key, update } of flows) update(history.series(key), rate);
    sharing.update(metrics);
    const [handshakes, avoided] = [read("handshakes_total"), read("handshakes_avoided_total")];
    const [leases, reused] = [read("leases_total"), read("leases_reused_total")];
    savings.update({
      handshakes: short(avoided),
      handshakesShare: percent(avoided, handshakes + avoided),
      leases: short(reused),
      leasesShare: percent(reused, leases),
      trips: short(read("round_trips_saved_total")),
      copies: savedCopies(metrics),
      queues: saved(metrics.value("leveret_multiplexed_subscribers"), metrics.value("leveret_multiplexed_queues")),
      connections: saved(metrics.value("rabbitmq_connections"), metrics.value("leveret_upstream_connections")),
    });
    const known = TROUBLES.filter(([key]) => read(key) !== undefined);
    troubles.update(Object.fromEntries(known.map(([key]) => [key, short(read(key))])));
    spoken.update(sampler.overview, metrics);
    await subscriptions.refresh(metrics, signal);
  };
  return { title: "Overview", element, refresh };
}

/** The addresses of the upstream: which are reachable, why others are not, and how many connections each has. */
function upstreamHealth() {
  const verdict = el("p", { class: "verdict" });
  const rows = el("ul", { class: "listeners" });
  let shown = "";
  const update = (metrics, addresses) => {
    const isUp = metrics.value("leveret_upstream_up") === 1;
    const state = JSON.stringify([isUp, addresses]);
    if (state === shown) return;
    shown = state;
    setChildren(verdict, [badge(isUp ? ["reachable", "good"] : ["not reachable", "bad"])]);
    setChildren(rows, addresses.map(upstreamRow));
  };
  return { element: section("Upstream", verdict, rows), update };
}

function upstreamRow({ address, up, connections: open, cause }) {
  const state = up === null ? ["not probed yet"] : up ? ["up", "good"] : ["down", "bad"];
  const connections = open === 1 ? "1 connection" : `${count(open)} connections`;
  return el(
    "li",
    {},
    badge(state),
    " ",
    el("span", { class: "address" }, address),
    ` ${connections}`,
    cause ? ` (${cause})` : "",
  );
}

/** The number of clients, and of the upstream connections that they use. */
function sharingFigures() {
  const clients = bar("Clients");
  const connections = bar("Upstream connections");
  const figures = tiles([
    { key: "ratio", title: "Clients per connection" },
    { key: "dedicated", title: "Dedicated connections" },
    { key: "channels", title: "Channels in use" },
    { key: "idle", title: "Idle channels" },
    { key: "unconfirmed", title: "Unconfirmed bytes" },
  ]);
  const element = section("Sharing", el("div", { class: "bars" }, clients.element, connections.element), figures.element);
  const update = (metrics) => {
    const read = (name) => metrics.value(`leveret_${name}`);
    const [all, needed] = [read("pool_clients"), read("upstream_connections")];
    const most = Math.max(all, needed, 1);
    clients.update({ value: all, most, words: count(all) });
    connections.update({ value: needed, most, words: count(needed) });
    figures.update({
      ratio: needed > 0 ? (all / needed).toFixed(1) : "–",
      dedicated: short(read("upstream_dedicated_connections")),
      channels: short(read("upstream_channels")),
      idle: short(read("upstream_idle_channels")),
      unconfirmed: bytes(read("upstream_replay_buffer_bytes")),
    });
  };
  return { element, update };
}

/** By how much clients outnumber the upstream objects that they share; undefined if they do not. */
function saved(clients, there) {
  return clients > there ? short(clients - there) : undefined;
}

/** Copies that the upstream would otherwise have sent to further subscribers; undefined if there were none. */
function savedCopies(metrics) {
  const copies = metrics.value("leveret_multiplexed_delivered_copies_total");
  if (!copies) return undefined;
  return short(Math.max(0, copies - metrics.value("leveret_multiplexed_received_messages_total")));
}

/** The upstream queues of multiplexed subscriptions; hidden while there are none. */
function multiplexedSubscriptions(api) {
  const rows = list({
    caption: "Multiplexed subscriptions",
    empty: "No multiplexed subscriptions.",
    // Several queues may not have a name yet.
    key: (_, at) => at,
    columns: [
      { title: "Queue", sort: "name", text: (each) => each.name ?? "not connected" },
      { title: "Protocol", sort: "protocol", text: (each) => each.protocol.toUpperCase() },
      { title: "User name", sort: "user", text: (each) => each.user },
      { title: "Virtual host", sort: "vhost", text: (each) => each.vhost },
      { title: "Subscribers", sort: "subscribers", number: true, text: (each) => count(each.subscribers) },
      { title: "Bindings", sort: "bindings", number: true, text: (each) => count(each.bindings) },
      { title: "Messages in", sort: "messages_received", number: true, text: (each) => count(each.messages_received) },
      { title: "Copies out", sort: "copies_delivered", number: true, text: (each) => count(each.copies_delivered) },
    ],
    fetch: ({ page, size, query, signal }) => api.list(["leveret", "multiplexed-queues"], { page, size, query, signal }),
    isPart: true,
  });
  const element = section("Multiplexed subscriptions", rows.element);
  setAttribute(element, "hidden", true);
  const refresh = async (metrics, signal) => {
    const isUsed = metrics.value("leveret_multiplexed_queues") > 0;
    setAttribute(element, "hidden", !isUsed);
    if (isUsed) await rows.refresh(signal);
  };
  return { element, refresh };
}
