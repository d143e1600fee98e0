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

async function headers_matching(session) {
  const channel = await session.channel();
  const exchange = await declare(session, channel, 'headers');
  const bindings = {
    present: { 'x-match': 'any', colour: null },
    all: { 'x-match': 'all', colour: 'red', 'x-size': 1 },
    'all-with-x': { 'x-match': 'all-with-x', colour: 'red', 'x-size': 1 },
    any: { 'x-match': 'any', colour: 'red', 'x-size': 1 },
    'any-with-x': { 'x-match': 'any-with-x', colour: 'red', 'x-size': 1 },
    'nothing to match all': { 'x-match': 'all' },
    'nothing to match any': { 'x-match': 'any', 'x-size': 1 },
  };
  const queues = {};
  for (const [number, [short, headers]] of Object.entries(bindings).entries()) {
    queues[short] = await session.queue(channel, `q${number}`);
    await channel.bindQueue(queues[short], exchange, '', headers);
  }
  send(channel, exchange, '', 'red', { colour: 'red' });
  send(channel, exchange, '', 'red of size 1', { colour: 'red', 'x-size': 1 });
  send(channel, exchange, '', 'size 1', { 'x-size': 1 });
  send(channel, exchange, '', 'blue', { colour: 'blue' });
  send(channel, exchange, '', 'void', { colour: null });
  send(channel, exchange, '', 'none', {});
  const bind = (match) => (other) => other.bindQueue(queues.any, exchange, '', { 'x-match': match, colour: 'red' });
  return {
    ...(await drainEach(channel, queues)),
    wrong: await session.refused(bind('some')),
  };
}

async function consistent_hash_exchange(session) {
  const channel = await session.channel();
  const exchange = await declare(session, channel, 'x-consistent-hash');
  const light = await session.queue(channel, 'light');
  const heavy = await session.queue(channel, 'heavy');
  await channel.bindQueue(light, exchange, '1');
  await channel.bindQueue(heavy, exchange, '3');
  const keys = Array.from({ length: 400 }, (_, number) => `key ${number}`);
  const placed = async () => {
    for (const key of keys) send(channel, exchange, key, key);
    return [await drain(channel, light), await drain(channel, heavy)];
  };
  const first = await placed();
  const again = await placed();
  await channel.unbindQueue(light, exchange, '1');
  const hash = (short, args) => (other) =>
    other.assertExchange(session.name(short), 'x-consistent-hash', { ...TRANSIENT, arguments: args });
  return {
    each_once: JSON.stringify(first.flat().sort()) === JSON.stringify(keys.sort()),
    same_key_same_queue: JSON.stringify(first) === JSON.stringify(again),
    three_times_as_many: first[1].length / first[0].length > 2 && first[1].length / first[0].length < 4.5,
    after_unbind: (await placed()).map((bodies) => bodies.length),
    ...(await session.refusedEach({
      weight: (other) => other.bindQueue(light, exchange, 'heavy'),
      negative: (other) => other.bindQueue(light, exchange, '-1'),
      type: (other) => other.assertExchange(exchange, 'direct', TRANSIENT),
      two_ways: hash('two', { 'hash-header': 'h', 'hash-property': 'message_id' }),
      property: hash('odd', { 'hash-property': 'odd' }),
    })),
  };
}

async function consistent_hash_of_headers_and_properties(session) {
  const channel = await session.channel();
  const observed = {};
  for (const [short, args] of [
    ['header', { 'hash-header': 'who' }],
    ['property', { 'hash-property': 'message_id' }],
  ]) {
    const exchange = await declare(session, channel, 'x-consistent-hash', short, { arguments: args });
    const queues = [await session.queue(channel, `${short}0`), await session.queue(channel, `${short}1`)];
    for (const queue of queues) await channel.bindQueue(queue, exchange, '1');
    for (let number = 0; number < 200; number++) {
      const who = String(number % 20);
      channel.publish(exchange, String(number), Buffer.from(who), { headers: { who }, messageId: who });
    }
    const bodies = [await drain(channel, queues[0]), await drain(channel, queues[1])];
    observed[short] = {
      all: bodies.flat().length,
      together: !bodies[0].some((body) => bodies[1].includes(body)),
      spread: bodies.every((each) => each.length > 0),
    };
  }
  return observed;
}

async function circles(session) {
  const channel = await session.channel();
  const first = await declare(session, channel, 'fanout', 'first');
  const second = await declare(session, channel, 'fanout', 'second');
  const queue = await session.queue(channel);
  await channel.bindExchange(first, second, '');
  await channel.bindExchange(second, first, '');
  await channel.bindQueue(queue, second, '');
  send(channel, first, '', 'once round');
  // Each is the alternate of the other, or of nobody.
  const one = session.name('one');
  const other = session.name('other');
  await declare(session, channel, 'direct', 'one', { alternateExchange: other });
  await declare(session, channel, 'direct', 'other', { alternateExchange: one });
  const lost = await declare(session, channel, 'direct', 'lost', { alternateExchange: session.name('missing') });
  const returned = [];
  const both = new Promise((resolve) => {
    channel.on('return', (message) => returned.push(message.content.toString()) === 2 && resolve());
  });
  channel.publish(one, 'nowhere', Buffer.from('by nobody'), { mandatory: true });
  channel.publish(lost, 'nowhere', Buffer.from('alternate is missing'), { mandatory: true });
  await both;
  return { received: await drain(channel, queue), returned };
}

async function auto_delete_source(session) {
  const channel = await session.channel();
  const destination = await declare(session, channel, 'fanout', 'destination');
  const source = await declare(session, channel, 'fanout', 'source', { autoDelete: true });
  await channel.bindExchange(destination, source, '');
  const bound = await session.refused((other) => other.checkExchange(source));
  await channel.unbindExchange(destination, source, '');
  return { bound, unbound: await session.refused((other) => other.checkExchange(source)) };
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
  headers_matching,
  consistent_hash_exchange,
  consistent_hash_of_headers_and_properties,
  circles,
  auto_delete_source,
};
