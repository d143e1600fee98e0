// For a real browser: the public client's sessions, which come back by themselves when their connection is lost.
// `begin` starts one that consumes from a durable queue; `publish` and `until` work with it.
import { AMQPSession } from "@cloudamqp/amqp-client";

const PREFETCH = 5;
// Milliseconds between attempts; the client takes turns that are always as long, so that a test ends soon.
const RECONNECT = { reconnectInterval: 100, maxReconnectInterval: 100 };

/** What has happened so far, in order: "connected", "disconnected (1011)", and bodies of messages. */
export const events = [];
const watchers = new Set();
let session;
let queue;

function happened(event) {
  events.push(event);
  for (const watcher of watchers) watcher();
}

export async function begin(url, name) {
  session = await AMQPSession.connect(url, {
    ...RECONNECT,
    frameMax: 8192,
    onconnect: () => happened("connected"),
    ondisconnect: (error) => happened(`disconnected ${error.message.match(/\(\d+\)/)?.[0] ?? error.message}`),
  });
  queue = await session.queue(name, { durable: true });
  await queue.subscribe({ prefetch: PREFETCH }, (message) => happened(message.bodyString()));
}

/** Publishes messages one after another, each of them confirmed. */
export async function publish(...bodies) {
  for (const body of bodies) await queue.publish(body);
}

/** Publishes a message, again after each reconnect, until it is confirmed. */
export async function publishUntilConfirmed(body) {
  for (;;) {
    const connections = count("connected");
    try {
      await queue.publish(body);
      return;
    } catch {
      await until("connected", connections + 1);
    }
  }
}

/** Waits until something has happened, so many times. */
export function until(wanted, times = 1) {
  return new Promise((resolve) => {
    const look = () => {
      if (count(wanted) < times) return;
      watchers.delete(look);
      resolve();
    };
    watchers.add(look);
    look();
  });
}

function count(wanted) {
  return events.filter((event) => event === wanted).length;
}

export async function end() {
  await session.stop();
}
