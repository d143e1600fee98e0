// What every scenario is handed: connections to the target, names of its own, and ways to observe.
'use strict';

const { EventEmitter, once } = require('node:events');
const { setTimeout: pause } = require('node:timers/promises');
const { isDeepStrictEqual } = require('node:util');
const amqp = require('amqplib');

// As that of the tests that start this (harness/patience.py).
const WAIT_MILLISECONDS = 1000 * Number(process.env.LEVERET_PATIENCE ?? 180);
const TRANSIENT = { durable: false };

class Session {
  constructor(uri, prefix) {
    this.uri = uri;
    this.prefix = prefix;
    this.connections = [];
  }

  /** A queue's or exchange's name that no other run of any scenario uses. */
  name(short) {
    return this.prefix + short;
  }

  /** Connects; `changes` are parts of the URL object or, under `query`, amqplib's own parameters. */
  async connect({ query = {}, ...changes } = {}) {
    const url = Object.assign(new URL(this.uri), changes);
    for (const [key, value] of Object.entries(query)) url.searchParams.set(key, value);
    const connection = await amqp.connect(url.href);
    connection.failure = once(connection, 'error').then(([error]) => error);
    this.connections.push(connection);
    return connection;
  }

  /** A channel on the scenario's main connection, which is made on first use. */
  async channel(kind = 'createChannel') {
    const connection = this.connections[0] ?? (await this.connect());
    return watch(await connection[kind]());
  }

  /** Declares a queue of this run and returns its full name. */
  async queue(channel, short = 'q', options = {}) {
    await channel.assertQueue(this.name(short), { ...TRANSIENT, ...options });
    return this.name(short);
  }

  /** Runs `action` on a fresh channel; returns the error that closed the channel, the connection staying usable. */
  async refused(action) {
    const channel = await this.channel();
    try {
      await action(channel);
      await roundTrip(channel);
    } catch {
      const error = closeOf(await channel.failure);
      await (await this.channel()).assertQueue('', { exclusive: true });
      return error;
    }
    return 'accepted';
  }

  /**
   * What `refused` gives as soon as that is not `before`: RabbitMQ 4 deletes an exclusive queue some time after it has answered its
   * owner's close.
   */
  async refusedOtherwise(action, before) {
    const deadline = Date.now() + WAIT_MILLISECONDS;
    for (;;) {
      const now = await this.refused(action);
      if (!isDeepStrictEqual(now, before) || Date.now() > deadline) return now;
      await pause(10);
    }
  }

  /** The answers to several attempts, each made by `refused` and one after the other. */
  async refusedEach(attempts) {
    const answers = {};
    for (const [short, action] of Object.entries(attempts)) answers[short] = await this.refused(action);
    return answers;
  }

  async close() {
    await Promise.all(this.connections.map((connection) => connection.close().catch(() => {})));
  }
}

/** A consumer that keeps what it is given. */
class Collector {
  static async start(channel, queue, options = {}) {
    const collector = new Collector();
    collector.deliveries = [];
    collector.events = new EventEmitter();
    const take = (message) => {
      if (message) collector.deliveries.push(message);
      else collector.cancelled = true;
      collector.events.emit('change');
    };
    collector.tag = (await channel.consume(queue, take, options)).consumerTag;
    return collector;
  }

  async wait(count) {
    await this.until(() => this.deliveries.length >= count);
    return this.deliveries;
  }

  async until(condition) {
    const signal = AbortSignal.timeout(WAIT_MILLISECONDS);
    while (!condition()) await once(this.events, 'change', { signal });
  }

  get bodies() {
    return this.deliveries.map((message) => message.content.toString());
  }
}

/** Keeps the error that closes the channel, which amqplib reports by an event. */
function watch(channel) {
  channel.failure = once(channel, 'error').then(([error]) => error);
  return channel;
}

/** Runs `action` on a fresh channel; returns the error that closed the whole connection, or says that it closed the channel alone. */
async function connectionRefused(connection, action) {
  const channel = watch(await connection.createChannel());
  try {
    await action(channel);
    await roundTrip(channel);
  } catch {
    const closed = channel.failure.then((error) => ({ ...closeOf(error), closed: 'channel' }));
    return Promise.race([connection.failure.then(closeOf), closed]);
  }
  return 'accepted';
}

/** The code and text of the server's close, out of the message amqplib makes of them. */
function closeOf(error) {
  const found = /(\d{3}) \([A-Z-]+\) with message "(.*)"$/s.exec(error.message);
  if (!found) throw error;
  return { code: Number(found[1]), text: found[2] };
}

/** Returns once the server has handled everything sent on `channel`, throwing what it objected to. */
function roundTrip(channel) {
  return channel.checkExchange('amq.direct');
}

function publish(channel, queue, ...bodies) {
  for (const body of bodies) channel.sendToQueue(queue, Buffer.from(body));
}

/** Publishes and returns once the queue has them all, for what is to be counted or taken on another channel. */
async function store(session, queue, ...bodies) {
  const channel = await session.channel('createConfirmChannel');
  publish(channel, queue, ...bodies);
  await channel.waitForConfirms();
  await channel.close();
}

async function ready(channel, queue) {
  return (await channel.checkQueue(queue)).messageCount;
}

/** Waits for a message, which may have been sent on its way by something that has no answer. */
async function taken(channel, queue, options = {}) {
  const deadline = Date.now() + WAIT_MILLISECONDS;
  while (Date.now() < deadline) {
    const message = await channel.get(queue, options);
    if (message) return message;
    await pause(10);
  }
  throw new Error('waited in vain');
}

/** Publishes and waits for the confirm. */
function confirmed(channel, queue, body, options) {
  return new Promise((resolve) => {
    channel.sendToQueue(queue, Buffer.from(body), options, (error) => resolve(error ? 'nack' : 'ack'));
  });
}

/** Gets everything in `queue`, in order. */
async function getAll(channel, queue, options = {}) {
  const taken = [];
  for (;;) {
    const message = await channel.get(queue, options);
    if (!message) return taken;
    taken.push(message);
  }
}

/** Gets and acknowledges everything in `queue`; the bodies in order. */
async function drain(channel, queue) {
  return (await getAll(channel, queue, { noAck: true })).map((message) => message.content.toString());
}

/** What `seen` gives, once that many are back: a server may answer a close before its queue has the messages. */
async function seenAgain(channel, queue, count) {
  const deadline = Date.now() + WAIT_MILLISECONDS;
  while ((await ready(channel, queue)) !== count) {
    if (Date.now() > deadline) throw new Error('waited in vain');
    await pause(10);
  }
  return seen(channel, queue);
}

/** Gets everything in `queue`: body and whether it was marked as redelivered. */
async function seen(channel, queue) {
  return marked(await getAll(channel, queue));
}

function marked(messages) {
  return messages.map((message) => [message.content.toString(), message.fields.redelivered]);
}

module.exports = {
  Collector,
  Session,
  TRANSIENT,
  WAIT_MILLISECONDS,
  closeOf,
  confirmed,
  connectionRefused,
  drain,
  getAll,
  marked,
  publish,
  ready,
  roundTrip,
  seen,
  seenAgain,
  store,
  taken,
};
