// The sessions of MQTT and STOMP in front of an upstream, with and without a connection, their groups, and what is retained.

import { el, setAttribute } from "../dom.js";
import { bytes, count, duration, short } from "../format.js";
import { section, tiles } from "../parts/figures.js";
import { list } from "../parts/list.js";
import { to } from "../router.js";

export function sessions({ api, sampler }) {
  const figures = tiles([
    { key: "mqtt", title: "MQTT subscriptions" },
    { key: "stomp", title: "STOMP subscriptions" },
    { key: "persistent", title: "Connected clients with a persistent session" },
    { key: "detached", title: "Sessions without a connection" },
    { key: "groups", title: "Shared subscriptions" },
    { key: "retained", title: "Retained topics" },
  ]);
  const rows = list({
    caption: "Sessions",
    filter: "Filter by name",
    empty: "No sessions.",
    key: (session) => [session.vhost, session.name, session.state].join("\0"),
    columns: [
      { title: "Client", sort: "name", text: (each) => each.name, href: connectionOf },
      { title: "User name", sort: "user", text: (each) => each.user },
      { title: "Virtual host", sort: "vhost", text: (each) => each.vhost },
      { title: "Protocol", sort: "protocol", text: (each) => each.protocol ?? "MQTT" },
      { title: "State", sort: "state", badges: (each) => [[each.state, each.connection ? "good" : "wait"]] },
      { title: "For", sort: "since", number: true, text: (each) => duration(Math.max(0, Date.now() - each.since)) },
      { title: "Expiry", sort: "expiry_seconds", number: true, text: expiry },
      { title: "Keep alive", sort: "keep_alive", number: true, text: (each) => (each.keep_alive ? `${each.keep_alive} s` : "–") },
      { title: "Subscriptions", sort: "subscriptions", number: true, text: (each) => count(each.subscriptions) },
      { title: "Published", sort: "messages_published", number: true, text: (each) => counted(each.messages_published) },
      { title: "Delivered", sort: "messages_delivered", number: true, text: (each) => counted(each.messages_delivered) },
    ],
    fetch: ({ page, size, query, signal }) => api.list(["leveret", "sessions"], { page, size, query, signal }),
  });
  const parts = [sharedGroups(api), retainedMessages(api)];
  const element = el("div", { class: "stack" }, figures.element, rows.element, ...parts.map((part) => part.element));
  const refresh = async (signal) => {
    const { metrics } = sampler;
    const subscriptions = (protocol) =>
      metrics.samples("leveret_protocol_subscriptions").find(({ labels }) => labels.protocol === protocol)?.value;
    const read = (name) => metrics.value(`leveret_mqtt_${name}`);
    const known = {
      mqtt: subscriptions("mqtt"),
      stomp: subscriptions("stomp"),
      persistent: read("persistent_session_clients"),
      detached: read("detached_sessions"),
      groups: read("shared_groups"),
      retained: read("retained_topics"),
    };
    const shown = Object.entries(known).filter(([, value]) => value !== undefined);
    figures.update(Object.fromEntries(shown.map(([key, value]) => [key, short(value)])));
    await Promise.all([rows.refresh(signal), ...parts.map((part) => part.refresh(metrics, signal))]);
  };
  return { title: "Sessions", element, refresh };
}

function connectionOf({ connection }) {
  return connection ? to(["connections", connection]) : null;
}

function expiry({ persistent, expiry_seconds: seconds }) {
  if (!persistent) return "with the connection";
  return seconds === null ? "never" : duration(seconds * 1000);
}

function counted(value) {
  return value === undefined ? "–" : count(value);
}

/** The groups of shared subscriptions; hidden while there are none. */
function sharedGroups(api) {
  const columns = [
    { title: "Group", sort: "filter", text: (each) => each.filter },
    { title: "Virtual host", sort: "vhost", text: (each) => each.vhost },
    { title: "Queue", sort: "name", text: (each) => each.name },
    { title: "Members", sort: "members", number: true, text: (each) => count(each.members) },
    { title: "Delivered", sort: "messages_delivered", number: true, text: (each) => count(each.messages_delivered) },
  ];
  const key = (group) => [group.vhost, group.name].join("\0");
  const isUsed = (metrics) => metrics.value("leveret_mqtt_shared_groups") > 0;
  return part({ api, title: "Shared subscriptions", path: "shared-groups", key, columns, isUsed });
}

/** The retained messages of each virtual host; hidden where MQTT is not served. */
function retainedMessages(api) {
  const columns = [
    { title: "Virtual host", sort: "vhost", text: (each) => each.vhost },
    { title: "Queue", sort: "queue", text: (each) => each.queue },
    { title: "State", sort: "state", badges: (each) => [[each.state, STATES[each.state] ?? "wait"]] },
    { title: "Topics", sort: "topics", number: true, text: (each) => count(each.topics) },
    { title: "Bytes", sort: "bytes", number: true, text: (each) => bytes(each.bytes) },
  ];
  const isUsed = (metrics) => metrics.value("leveret_mqtt_retained_topics") !== undefined;
  return part({ api, title: "Retained messages", path: "retained", key: (log) => log.vhost, columns, isUsed });
}

const STATES = { running: "good", connecting: "wait", refused: "bad" };

/** A list under a heading; both are hidden unless `isUsed(metrics)`. */
function part({ api, title, path, key, columns, isUsed }) {
  const rows = list({
    caption: title,
    empty: `No ${title.toLowerCase()}.`,
    key,
    columns,
    fetch: ({ page, size, query, signal }) => api.list(["leveret", path], { page, size, query, signal }),
    isPart: true,
  });
  const element = section(title, rows.element);
  setAttribute(element, "hidden", true);
  const refresh = async (metrics, signal) => {
    setAttribute(element, "hidden", !isUsed(metrics));
    if (isUsed(metrics)) await rows.refresh(signal);
  };
  return { element, refresh };
}
