// Each exchange type routes by its own rule, and exchanges feed exchanges.
'use strict';

const { once } = require('node:events');
const { TRANSIENT, drain, publish } = require('./session');

const TOPIC_PATTERNS = ['*.orange.*', '*.*.rabbit', 'lazy.#', '#', '*', '#.orange.#', 'a.#.b', '', 'lazy'];
const TOPIC_KEYS = [
  'quick.orange.rabbit',
  'lazy.orange.elephant',
  'lazy.brown.fox',
  'lazy',
  'orange',
  'a.b',
  'a.x.y.b',
  'quick.orange.male.rabbit',
  '',
];

async function default_exchange(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  publish(channel, queue, 'by name');
  publish(channel, session.name('missing'), 'dropped in silence');
  return { received: await drain(channel, queue) };
}

async function predeclared_exchanges(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  for (const exchange of ['amq.direct', 'amq.fanout', 'amq.topic', 'amq.headers', 'amq.match']) {
    await channel.bindQueue(queue, exchange, queue, { run: queue });
    send(channel, exchange, queue, exchange, { run: queue });
  }
  return { received: await drain(channel, queue) };
}

async function direct_exchange(session) {
  const channel = await session.channel();
  const exchange = await declare(session, channel, 'direct');
  const queue = await session.queue(channel);
  for (const key of ['red', 'green']) await channel.bindQueue(queue, exchange, key);
  for (const key of ['red', 'blue', 'green', 'red.green']) send(channel, exchange, key, key);
  await channel.unbindQueue(queue, exchange, 'red');
  for (const key of ['red', 'green']) send(channel, exchange, key, `${key} after unbind`);
  return { received: await drain(channel, queue) };
}

async function fanout_exchange(session) {
  const channel = await session.channel();
  const exchange = await declare(session, channel, 'fanout');
  const first = await session.queue(channel, 'first');
  const second = await session.queue(channel, 'second');
  await channel.bindQueue(first, exchange, 'one');
  await channel.bindQueue(first, exchange, 'another');
  await channel.bindQueue(second, exchange, '');
  for (const body of ['1', '2']) send(channel, exchange, 'any', body);
  return { first: await drain(channel, first), second: await drain(channel, second) };
}

async function topic_exchange(session) {
  const channel = await session.channel();
  const exchange = await declare(session, channel, 'topic');
  const queues = {};
  for (const [number, pattern] of TOPIC_PATTERNS.entries()) {
    queues[pattern] = await session.queue(channel, `q${number}`);
    await channel.bindQueue(queues[pattern], exchange, pattern);
  }
  for (const key of TOPIC_KEYS) send(channel, exchange, key, key);
  return drainEach(channel, queues);
}

async function headers_exchange(session) {
  const channel = await session.channel();
  const exchange = await declare(session, channel, 'headers');
  const bindings = {
    all: { 'x-match': 'all', colour: 'red', size: 1 },
    any: { 'x-match': 'any', colour: 'red', size: 1 },
    unsaid: { colour: 'red', size: 1 },
    present: { 'x-match': 'all', colour: null },
  };
  const queues = {};
  for (const [short, headers] of Object.entries(bindings)) {
    queues[short] = await session.queue(channel, short);
    await channel.bindQueue(queues[short], exchange, '', headers);
  }
  send(channel, exchange, '', 'both', { colour: 'red', size: 1, more: 'x' });
  send(channel, exchange, '', 'colour', { colour: 'red', size: 2 });
  send(channel, exchange, '', 'other', { colour: 'blue' });
  send(channel, exchange, '', 'none', {});
  return drainEach(channel, queues);
}

async function exchange_to_exchange(session) {
  const channel = await session.channel();
  const source = await declare(session, channel, 'topic', 'source');
  const middle = await declare(session, channel, 'fanout', 'middle');
  const queue = await session.queue(channel);
  await channel.bindQueue(queue, middle, '');
  await channel.bindExchange(middle, source, 'to.#');
  send(channel, source, 'to.you', 'bound');
  send(channel, source, 'elsewhere', 'not matched');
  await channel.unbindExchange(middle, source, 'to.#');
  send(channel, source, 'to.you', 'unbound');
  return { received: await drain(channel, queue) };
}

async function alternate_exchange(session) {
  const channel = await session.channel();
  const alternate = await declare(session, channel, 'fanout', 'alternate');
  const main = await declare(session, channel, 'direct', 'main', { alternateExchange: alternate });
  const known = await session.queue(channel, 'known');
  const unknown = await session.queue(channel, 'unknown');
  await channel.bindQueue(known, main, 'known');
  await channel.bindQueue(unknown, alternate, '');
  const returned = [];
  channel.on('return', (message) => returned.push(message.content.toString()));
  for (const key of ['known', 'unknown']) channel.publish(main, key, Buffer.from(key), { mandatory: true });
  // A message that is returned for certain, so that no other return can still be on its way.
  channel.publish('', session.name('missing'), Buffer.from('nowhere'), { mandatory: true });
  await once(channel, 'return');
  return { known: await drain(channel, known), unknown: await drain(channel, unknown), returned };
}

async function declare(session, channel, kind, short = 'e', options = {}) {
  await channel.assertExchange(session.name(short), kind, { ...TRANSIENT, ...options });
  return session.name(short);
}

function send(channel, exchange, key, body, headers) {
  channel.publish(exchange, key, Buffer.from(body), { headers });
}

async function drainEach(channel, queues) {
  const bodies = {};
  for (const [short, queue] of Object.entries(queues)) bodies[short] = await drain(channel, queue);
  return bodies;
}

module.exports = {
  default_exchange,
  predeclared_exchanges,
  direct_exchange,
  fanout_exchange,
  topic_exchange,
  headers_exchange,
  exchange_to_exchange,
  alternate_exchange,
};
