// Connections and channels: lists, and one connection, which can be closed.

import { button, el } from "../dom.js";
import { bytes, count, duration, rate, rateOf } from "../format.js";
import { ask } from "../parts/dialog.js";
import { facts, section } from "../parts/figures.js";
import { list } from "../parts/list.js";
import { go, to } from "../router.js";

export function connections({ api, vhostPath }) {
  const rows = list({
    caption: "Connections",
    filter: "Filter by name",
    empty: "No client is connected.",
    key: (connection) => connection.name,
    columns: [
      {
        title: "Connection",
        sort: "name",
        text: (each) => title(each),
        href: (each) => to(["connections", each.name]),
      },
      { title: "User", sort: "user", text: (each) => each.user ?? "" },
      { title: "Virtual host", sort: "vhost", text: (each) => each.vhost ?? "" },
      { title: "Protocol", sort: "protocol", badges: (each) => spoken(each) },
      { title: "State", sort: "state", badges: (each) => [stateBadge(each.state)] },
      { title: "Channels", sort: "channels", number: true, text: (each) => count(each.channels) },
      { title: "From client", sort: "recv_oct_details.rate", number: true, text: (each) => flow(each, "recv_oct") },
      { title: "To client", sort: "send_oct_details.rate", number: true, text: (each) => flow(each, "send_oct") },
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
    empty: "It has opened no channel.",
    key: (channel) => channel.name,
    columns: channelColumns().filter(({ title }) => title !== "User" && title !== "Virtual host"),
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
      ["User", told.user],
      ["Virtual host", told.vhost],
      ["Protocol", spoken(told).join(", ")],
      ["State", told.state],
      ["Client's address", `${told.peer_host}:${told.peer_port}`],
      ["Connected for", told.connected_at ? duration(Date.now() - told.connected_at) : null],
      ["Heartbeat", told.timeout ? `${told.timeout} s` : null],
      ["Largest frame", told.frame_max ? bytes(told.frame_max) : null],
      ["From client", bytes(told.recv_oct)],
      ["To client", bytes(told.send_oct)],
    ]);
    const properties = Object.entries(told.client_properties ?? {}).filter(([, value]) => typeof value !== "object");
    clientSection.hidden = properties.length === 0;
    client.update(properties.map(([key, value]) => [key, String(value)]));
  };
  const close = button("Close connection", () => closeConnection(api, id, back), { class: "danger" });
  return { title: "Connection", subject: id, actions: [close], element, refresh };
}

async function closeConnection(api, id, back) {
  const isDone = await ask({
    title: "Close this connection?",
    words: `${id} is told the reason; most clients connect again.`,
    fields: [{ name: "reason", label: "Reason", value: "Closed via the dashboard" }],
    confirm: "Close connection",
    danger: true,
    action: async ({ reason }) => {
      // A header holds Latin-1 at most.
      const headers = { "x-reason": reason.replace(/[^\x20-\x7e]/g, "?") };
      await api.delete(["connections", id], { headers });
      return "The connection is closed.";
    },
  });
  if (isDone) go([back]);
}

export function channels({ api, vhostPath }) {
  const rows = list({
    caption: "Channels",
    filter: "Filter by name",
    empty: "No channel is open.",
    key: (channel) => channel.name,
    columns: channelColumns(),
    fetch: ({ page, size, query, signal }) => api.list(vhostPath("channels"), { page, size, query, signal }),
  });
  return { title: "Channels", element: rows.element, refresh: rows.refresh };
}

function channelColumns() {
  return [
    {
      title: "Channel",
      sort: "name",
      text: (each) => each.name,
      href: (each) => (each.connection_details?.name ? to(["connections", each.connection_details.name]) : null),
    },
    { title: "User", sort: "user", text: (each) => each.user ?? "" },
    { title: "Virtual host", sort: "vhost", text: (each) => each.vhost ?? "" },
    { title: "Mode", badges: (each) => modes(each) },
    { title: "Consumers", sort: "consumer_count", number: true, text: (each) => count(each.consumer_count) },
    { title: "Prefetch", sort: "prefetch_count", number: true, text: (each) => count(each.prefetch_count) },
    {
      title: "Unacknowledged",
      sort: "messages_unacknowledged",
      number: true,
      text: (each) => count(each.messages_unacknowledged),
    },
    {
      title: "Published",
      sort: "message_stats.publish_details.rate",
      number: true,
      text: (each) => rate(rateOf(each.message_stats, "publish")),
    },
    {
      title: "Delivered",
      sort: "message_stats.deliver_get_details.rate",
      number: true,
      text: (each) => rate(rateOf(each.message_stats, "deliver_get")),
    },
  ];
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
  if (channel.confirm) words.push("confirm");
  if (channel.transactional) words.push("tx");
  return words;
}

/** Bytes a second, or all of them since the start where the server does not tell how many in a second. */
function flow(connection, counter) {
  const value = rateOf(connection, counter);
  return value === undefined ? bytes(connection[counter]) : `${bytes(Math.round(value))}/s`;
}
