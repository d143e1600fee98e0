// The spool of a pool: waiting messages by user and virtual host, and the messages that the upstream has refused permanently.

import { button, el, setAttribute } from "../dom.js";
import { bytes, count, duration, exchangeName, short } from "../format.js";
import { ask } from "../parts/dialog.js";
import { section, tiles } from "../parts/figures.js";
import { list } from "../parts/list.js";

export function spool({ api, sampler, session, refreshNow }) {
  const figures = tiles([
    { key: "messages", title: "Messages" },
    { key: "oldest", title: "Oldest message age" },
    { key: "deferred", title: "Deferred messages" },
    { key: "parked", title: "Parked messages" },
    { key: "blocked", title: "Blocked connections" },
    { key: "offline", title: "Offline logins" },
  ]);
  const rows = list({
    caption: "Spool",
    filter: "Filter by user name",
    empty: "No spooled messages, and no client with a matching spool rule has logged in.",
    key: (queue) => [queue.vhost, queue.user].join("\0"),
    columns: [
      { title: "User name", sort: "user", text: (each) => each.user },
      { title: "Virtual host", sort: "vhost", text: (each) => each.vhost },
      { title: "State", sort: "state", badges: (each) => [[each.state, STATES[each.state]]] },
      { title: "Messages", sort: "messages", number: true, text: (each) => count(each.messages) },
      { title: "Bytes", sort: "bytes", number: true, text: (each) => bytes(each.bytes) },
      { title: "Oldest", sort: "oldest_seconds", number: true, text: age },
      { title: "Accepted/s", sort: "accept_rate", number: true, text: (each) => short(each.accept_rate) },
      { title: "Forwarded/s", sort: "forward_rate", number: true, text: (each) => short(each.forward_rate) },
      { title: "Forwarded", sort: "forwarded", number: true, text: (each) => count(each.forwarded) },
      { title: "Waits for", sort: "waits_for", text: (each) => each.waits_for ?? "–" },
    ],
    fetch: ({ page, size, query, signal }) => api.list(["leveret", "spool"], { page, size, query, signal }),
  });
  const mayAct = session.may("administrator");
  const parked = mayAct ? parkedMessages(api, refreshNow) : null;
  const element = el("div", { class: "stack" }, figures.element, rows.element, ...(parked ? [parked.element] : []));
  const refresh = async (signal) => {
    const { metrics } = sampler;
    const values = (name) => metrics.samples(`leveret_spool_${name}`).map(({ value }) => value);
    const sum = (name) => values(name).reduce((one, other) => one + other, 0);
    figures.update({
      messages: short(sum("messages")),
      oldest: duration(1000 * Math.max(0, ...values("oldest_seconds"))),
      deferred: short(sum("deferred_messages")),
      parked: short(sum("parked_messages")),
      blocked: short(sum("blocked_connections")),
      offline: short(sum("offline_logins_total")),
    });
    await Promise.all([rows.refresh(signal), parked?.refresh(metrics, signal)]);
  };
  const act = (action) => steer(api, action, refreshNow);
  const actions = mayAct
    ? [
        button("Pause", () => act("pause")),
        button("Resume", () => act("resume")),
        button("Drain", () => act("drain"), { class: "danger" }),
      ]
    : [];
  return { title: "Spool", actions, element, refresh };
}

const STATES = { running: "good", paused: "wait", draining: "wait" };

function age({ oldest_seconds: seconds }) {
  return seconds === null ? "–" : duration(1000 * seconds);
}

/** The first of the parked messages; hidden while there are none. */
function parkedMessages(api, refreshNow) {
  const rows = list({
    caption: "Parked messages",
    empty: "No parked messages.",
    // Messages that were refused at the same time may differ in nothing that is shown.
    key: (_, at) => at,
    columns: [
      { title: "User name", sort: "user", text: (each) => each.user },
      { title: "Virtual host", sort: "vhost", text: (each) => each.vhost },
      { title: "Exchange", sort: "exchange", text: (each) => exchangeName(each.exchange) },
      { title: "Routing key", sort: "routing_key", text: (each) => each.routing_key },
      { title: "Bytes", sort: "body_bytes", number: true, text: (each) => bytes(each.body_bytes) },
      { title: "Refused", sort: "refused_at", number: true, text: (each) => duration(Math.max(0, Date.now() - each.refused_at)) },
      { title: "Reason", sort: "reason", text: (each) => each.reason },
    ],
    fetch: ({ page, size, query, signal }) => api.list(["leveret", "spool", "parked"], { page, size, query, signal }),
    isPart: true,
  });
  const again = button("Forward again", () => requeue(api, refreshNow), { class: "quiet" });
  const drop = button("Drop all", () => purge(api, refreshNow), { class: "danger" });
  const element = section("Parked messages", rows.element, el("div", { class: "actions" }, again, drop));
  setAttribute(element, "hidden", true);
  const refresh = async (metrics, signal) => {
    const isUsed = metrics.value("leveret_spool_parked_messages") > 0;
    setAttribute(element, "hidden", !isUsed);
    if (isUsed) await rows.refresh(signal);
  };
  return { element, refresh };
}

const STEPS = {
  pause: ["Pause the spool?", "Nothing is forwarded until it is resumed. Publishes are accepted as before.", "The spool is paused."],
  resume: ["Resume the spool?", "Publishes are accepted and forwarded.", "The spool is resumed."],
  drain: [
    "Drain the spool?",
    "Publishers to the spool are blocked until everything is forwarded, and publish directly to the upstream then, until it is resumed.",
    "The spool is being drained.",
  ],
};

async function steer(api, action, refreshNow) {
  const [title, words, done] = STEPS[action];
  const confirm = action[0].toUpperCase() + action.slice(1);
  const isDone = await ask({
    title,
    words,
    confirm,
    danger: action === "drain",
    action: async () => {
      await api.post(["leveret", "spool", action]);
      return done;
    },
  });
  if (isDone) refreshNow();
}

async function requeue(api, refreshNow) {
  const isDone = await ask({
    title: "Forward parked messages again?",
    words: "They are queued after the waiting messages. Messages that are refused again are parked again.",
    confirm: "Forward again",
    action: async () => {
      const { requeued } = await api.post(["leveret", "spool", "parked", "requeue"]);
      return `${count(requeued)} parked messages are forwarded again.`;
    },
  });
  if (isDone) refreshNow();
}

async function purge(api, refreshNow) {
  const isDone = await ask({
    title: "Drop all parked messages?",
    words: "They are deleted from this host's disk. This cannot be undone.",
    confirm: "Drop all",
    danger: true,
    action: async () => {
      const { purged } = await api.delete(["leveret", "spool", "parked"]);
      return `${count(purged)} parked messages are dropped.`;
    },
  });
  if (isDone) refreshNow();
}
