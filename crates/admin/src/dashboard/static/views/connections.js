// Connections and channels: lists, and one connection, which can be closed.

import { button, el } from "../dom.js";
import { bytes, count, duration, rateOf } from "../format.js";
import { countColumn, rateColumn } from "../parts/columns.js";
import { ask } from "../parts/dialog.js";
import { facts, section } from "../parts/figures.js";
import { list } from "../parts/list.js";
import { go, to } from "../router.js";

const USER_NAME = { title: "User name", sort: "user", group: "Overview", text: (each) => each.user ?? "" };

export function connections({ api, vhostPath, vhostColumn }) {
  const rows = list({
    caption: "Connections",
    filter: "Filter by name",
    empty: "No connections.",
    key: (connection) => connection.name,
    columns: [
      ...vhostColumn("vhost", "Overview"),
      {
        title: "Name",
        sort: "name",
        group: "Overview",
        isName: true,
        text: (each) => title(each),
        href: (each) => to(["connections", each.name]),
      },
      USER_NAME,
      { title: "State", sort: "state", group: "Overview", badges: (each) => [stateBadge(each.state)] },
      { title: "SSL / TLS", sort: "ssl", group: "Details", text: (each) => (each.ssl ? "yes" : "no") },
      { title: "Protocol", sort: "protocol", group: "Details", badges: (each) => spoken({ ...each, ssl: false }) },
      countColumn("Channels", "channels", "Details"),
      flowColumn("From client", "recv_oct"),
      flowColumn("To client", "send_oct"),
    ],
    fetch: ({ page, size, query, signal }) => api.list(vhostPath("connections"), { page, size, query, signal }),
  });
  return { title: "Connections", element: rows.element, refresh: rows.refresh };
}

export function connection({ api, place, sampler }) {
  const id = place.parts[1];
  const back = sampler.isProxy ? "clients" : "connections";
  const about = facts();
  const client = facts();
  const clientSection = section("Client properties", client.element);
  const channelRows = list({
    caption: "Channels of this connection",
    isPart: true,
    empty: "No channels.",
    key: (channel) => channel.name,
    columns: channelColumns(),
    fetch: ({ page, size, query, signal }) => api.list(["connections", id, "channels"], { page, size, query, signal }),
  });
  const element = el(
    "div",
    { class: "stack" },
    section("Details", about.element),
    clientSection,
    section("Channels", channelRows.element),
  );
  const refresh = async (signal) => {
    const [told] = await Promise.all([api.get(["connections", id], {}, signal), channelRows.refresh(signal)]);
    about.update([
      ["User name", told.user],
      ["Virtual host", told.vhost],
      ["Protocol", spoken(told).join(", ")],
      ["State", told.state],
      ["Client address", `${told.peer_host}:${told.peer_port}`],
      ["Connected for", told.connected_at ? duration(Date.now() - told.connected_at) : null],
      ["Heartbeat", told.timeout ? `${told.timeout} s` : null],
      ["Frame max", told.frame_max ? bytes(told.frame_max) : null],
      ["From client", bytes(told.recv_oct)],
      ["To client", bytes(told.send_oct)],
      ...sessionFacts(told.session),
    ]);
    const properties = Object.entries(told.client_properties ?? {}).filter(([, value]) => typeof value !== "object");
    clientSection.hidden = properties.length === 0;
    client.update(properties.map(([key, value]) => [key, String(value)]));
  };
  const close = button("Close connection", () => closeConnection(api, id, back), { class: "danger" });
  return { title: "Connection", subject: id, actions: [close], element, refresh };
}

/** Facts of sessions of MQTT and STOMP alone. */
function sessionFacts(session) {
  if (!session) return [];
  const seconds = session.expiry_seconds;
  const lasts = seconds === null ? "forever" : `${duration(seconds * 1000)} after the connection`;
  return [
    ["Session", session.persistent ? `stays ${lasts}` : "ends with the connection"],
    ["Subscriptions", count(session.subscriptions)],
    ["Messages published", count(session.messages_published)],
    ["Messages delivered", count(session.messages_delivered)],
  ];
}

async function closeConnection(api, id, back) {
  const isDone = await ask({
    title: "Close this connection?",
    words: `${id} receives the reason. Most clients reconnect.`,
    fields: [{ name: "reason", label: "Reason", value: "Closed via the dashboard" }],
    confirm: "Close connection",
    danger: true,
    action: async ({ reason }) => {
      // Header values are Latin-1.
      const headers = { "x-reason": reason.replace(/[^\x20-\x7e]/g, "?") };
      await api.delete(["connections", id], { headers });
      return "The connection is closed.";
    },
  });
  if (isDone) go([back]);
}

export function channels({ api, vhostPath, vhostColumn }) {
  const rows = list({
    caption: "Channels",
    filter: "Filter by name",
    empty: "No channels.",
    key: (channel) => channel.name,
    columns: channelColumns({ before: vhostColumn("vhost", "Overview"), after: [USER_NAME] }),
    fetch: ({ page, size, query, signal }) => api.list(vhostPath("channels"), { page, size, query, signal }),
  });
  return { title: "Channels", element: rows.element, refresh: rows.refresh };
}

/** `before` and `after` are columns around the name, with values that all channels of one connection share. */
function channelColumns({ before = [], after = [] } = {}) {
  return [
    ...before,
    {
      title: "Channel",
      sort: "name",
      group: "Overview",
      isName: true,
      text: (each) => each.name,
      href: (each) => (each.connection_details?.name ? to(["connections", each.connection_details.name]) : null),
    },
    ...after,
    { title: "Mode", group: "Overview", badges: (each) => modes(each) },
    { title: "State", sort: "state", group: "Overview", badges: (each) => [stateBadge(each.state)] },
    countColumn("Consumers", "consumer_count", "Details"),
    countColumn("Unconfirmed", "messages_unconfirmed", "Details"),
    { title: "Prefetch", sort: "prefetch_count", group: "Details", number: true, text: (each) => prefetch(each) },
    countColumn("Unacked", "messages_unacknowledged", "Details"),
    rateColumn("publish", "publish"),
    rateColumn("confirm", "confirm"),
    rateColumn("deliver / get", "deliver_get"),
    rateColumn("ack", "ack"),
  ];
}

/** The limit of each consumer and, if there is one, that of the whole channel; nothing if there is no limit. */
function prefetch({ prefetch_count: each, global_prefetch_count: all }) {
  return [each && count(each), all && `${count(all)} (global)`].filter(Boolean).join(", ");
}

function title(connection) {
  return connection.client_properties?.connection_name ?? connection.user_provided_name ?? connection.name;
}

export function spoken({ protocol, ssl, websocket }) {
  return [protocol, websocket && "WebSocket", ssl && "TLS"].filter(Boolean);
}

export function stateBadge(state = "unknown") {
  return [state, { running: "good", idle: "", blocked: "bad", blocking: "bad", flow: "wait" }[state] ?? ""];
}

function modes(channel) {
  const words = [];
  if (channel.confirm) words.push(["C", "", "confirm"]);
  if (channel.transactional) words.push(["T", "", "transactional"]);
  return words;
}

/** A column with bytes per second. */
function flowColumn(title, counter) {
  const text = (each) => `${bytes(Math.round(rateOf(each, counter)))}/s`;
  return { title, sort: `${counter}_details.rate`, group: "Network", number: true, text };
}
