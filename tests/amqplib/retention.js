// What queues keep, for how long, in which order, and where the rest goes: TTL, lengths, priorities, dead letters.
'use strict';

const { setTimeout: pause } = require('node:timers/promises');
const { Collector, TRANSIENT, WAIT_MILLISECONDS, confirmed, drain, publish, ready, store, taken } = require('./session');

const TO_DEFAULT_EXCHANGE = { 'x-dead-letter-exchange': '' };
// Looks in a row, ten milliseconds apart: a message that went round and round would be seen in some of them.
const LOOKS = 20;

async function message_ttl(session) {
  const channel = await session.channel();
  const zero = await session.queue(channel, 'zero', { arguments: { 'x-message-ttl': 0 } });
  const short = await session.queue(channel, 'short', { arguments: { 'x-message-ttl': 50 } });
  const long = await session.queue(channel, 'long', { arguments: { 'x-message-ttl': 600_000 } });
  const plain = await session.queue(channel, 'plain');
  await store(session, zero, 'nobody waits');
  await store(session, short, 'not for long');
  for (const queue of [plain, long]) expiring(channel, queue, 'not for long', '50');
  const gone = [];
  for (const queue of [zero, short, long, plain]) gone.push(await emptied(channel, queue));
  const collector = await Collector.start(channel, zero, { noAck: true });
  publish(channel, zero, 'somebody waits');
  await collector.wait(1);
  return { gone, to_consumer: collector.bodies };
}

async function queue_expires(session) {
  const queue = await session.queue(await session.channel(), 'q', { arguments: { 'x-expires': 100 } });
  for (;;) {
    // Asking renews the lease, so leave it the time to end.
    await pause(400);
    const answer = await session.refused((channel) => ready(channel, queue));
    if (answer !== 'accepted') return answer;
  }
}

async function max_length_drops_the_head(session) {
  const channel = await session.channel();
  const few = await session.queue(channel, 'few', { arguments: { 'x-max-length': 2 } });
  const small = await session.queue(channel, 'small', { arguments: { 'x-max-length-bytes': 5 } });
  const outcomes = [
    await outcomesOf(session, few, '1', '2', '3', '4'),
    await outcomesOf(session, small, 'aa', 'bb', 'cc', '123456'),
  ];
  return { outcomes, few: await drain(channel, few), small: await drain(channel, small) };
}

async function max_length_rejects(session) {
  const channel = await session.channel();
  const dead = await session.queue(channel, 'dead');
  const limits = { 'x-max-length': 2, ...TO_DEFAULT_EXCHANGE, 'x-dead-letter-routing-key': dead };
  const limited = (short, overflow) =>
    session.queue(channel, short, { arguments: { ...limits, 'x-overflow': overflow } });
  const silent = await limited('silent', 'reject-publish');
  const telling = await limited('telling', 'reject-publish-dlx');
  const outcomes = [];
  for (const queue of [silent, telling]) outcomes.push(await outcomesOf(session, queue, '1', '2', '3', '4'));
  const letters = [await letter(channel, dead), await letter(channel, dead)];
  return { outcomes, silent: await drain(channel, silent), telling: await drain(channel, telling), letters };
}

async function dead_letters(session) {
  const channel = await session.channel();
  const exchange = session.name('e');
  const dead = await session.queue(channel, 'dead');
  await channel.assertExchange(exchange, 'fanout', TRANSIENT);
  await channel.bindQueue(dead, exchange, '');
  const target = { 'x-dead-letter-exchange': exchange };
  const observed = {};
  let queue = await session.queue(channel, 'rejected', { arguments: target });
  publish(channel, queue, 'body');
  await reject(channel, queue);
  observed.rejected = await letter(channel, dead);
  queue = await session.queue(channel, 'expired', { arguments: target });
  expiring(channel, queue, 'body', '20');
  observed.expired = await letter(channel, dead);
  const full = { ...target, 'x-max-length': 1, 'x-dead-letter-routing-key': 'new' };
  queue = await session.queue(channel, 'maxlen', { arguments: full });
  publish(channel, queue, 'body', 'other');
  observed.maxlen = await letter(channel, dead);
  return observed;
}

async function dead_letters_and_copies(session) {
  const channel = await session.channel();
  const dead = await session.queue(channel, 'dead');
  const copied = await session.queue(channel, 'copied');
  const renamed = { ...TO_DEFAULT_EXCHANGE, 'x-dead-letter-routing-key': dead };
  const observed = {};
  for (const [short, options] of [['renamed', renamed], ['kept', TO_DEFAULT_EXCHANGE]]) {
    const queue = await session.queue(channel, short, { arguments: options });
    channel.publish('', queue, Buffer.from('body'), { headers: { CC: [copied], mine: 'kept' } });
    // The copy made by publishing is taken out first.
    const before = await letter(channel, copied);
    await reject(channel, queue);
    observed[short] = [before, await letter(channel, short === 'renamed' ? dead : copied)];
  }
  return observed;
}

async function dead_letter_cycles(session) {
  const channel = await session.channel();
  const [one, two] = [session.name('one'), session.name('two')];
  for (const [name, other] of [[one, two], [two, one]]) {
    const options = { ...TO_DEFAULT_EXCHANGE, 'x-dead-letter-routing-key': other, 'x-message-ttl': 50 };
    await channel.assertQueue(name, { ...TRANSIENT, arguments: options });
  }
  await store(session, one, 'goes round once');
  const dropped = await stayEmpty(channel, [one, two]);
  const queue = await session.queue(channel, 'self', { arguments: TO_DEFAULT_EXCHANGE });
  publish(channel, queue, 'rejected over and over');
  for (let round = 0; round < 3; round++) await reject(channel, queue);
  return { dropped, rejected: await letter(channel, queue) };
}

async function priorities(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel, 'q', { arguments: { 'x-max-priority': 5 } });
  for (const priority of [1, 5, undefined, 3, 0, 9, 1]) {
    channel.sendToQueue(queue, Buffer.from(String(priority ?? 0)), { priority });
  }
  // Taken on the channel that has published, so that nothing is still on its way.
  publish(channel, queue, 'last');
  return { order: await drain(channel, queue) };
}

async function single_active_consumer(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel, 'q', { arguments: { 'x-single-active-consumer': true } });
  const first = await Collector.start(channel, queue, { noAck: true });
  const second = await Collector.start(channel, queue, { noAck: true });
  publish(channel, queue, '1', '2', '3');
  await first.wait(3);
  await channel.cancel(first.tag);
  publish(channel, queue, '4');
  await second.wait(1);
  return { first: first.bodies, second: second.bodies };
}

async function quorum_queue(session) {
  const channel = await session.channel();
  const dead = await session.queue(channel, 'dead');
  const quorum = { 'x-queue-type': 'quorum', 'x-delivery-limit': 1, 'x-dead-letter-routing-key': dead };
  const options = { durable: true, arguments: { ...quorum, ...TO_DEFAULT_EXCHANGE } };
  const queue = await session.queue(channel, 'q', options);
  await store(session, queue, 'body');
  const seen = [];
  for (let round = 0; round < 2; round++) {
    // What counts as a failure for every release is a channel that goes.
    const taker = await session.channel();
    const message = await taken(taker, queue);
    seen.push([message.fields.redelivered, message.properties.headers?.['x-delivery-count'] ?? null]);
    await taker.close();
  }
  const observed = { seen, letter: await letter(channel, dead) };
  await channel.deleteQueue(queue);
  observed.transient = await session.refused((other) =>
    session.queue(other, 'transient', { arguments: { 'x-queue-type': 'quorum' } }),
  );
  return observed;
}

/** Publishes one after the other; what became of each. */
async function outcomesOf(session, queue, ...bodies) {
  const channel = await session.channel('createConfirmChannel');
  const outcomes = [];
  for (const body of bodies) outcomes.push(await confirmed(channel, queue, body, {}));
  await channel.close();
  return outcomes;
}

function expiring(channel, queue, body, expiration) {
  channel.sendToQueue(queue, Buffer.from(body), { expiration });
}

async function reject(channel, queue) {
  channel.reject(await taken(channel, queue), false);
}

/** Waits until nothing is in `queue`; how much is left. */
async function emptied(channel, queue) {
  while ((await ready(channel, queue)) > 0) await pause(10);
  return ready(channel, queue);
}

/** Waits until several looks in a row find nothing in any of the queues; how much is left in each. */
async function stayEmpty(channel, queues) {
  const deadline = Date.now() + WAIT_MILLISECONDS;
  for (let looks = 0; ; await pause(10)) {
    const left = [];
    for (const queue of queues) left.push(await ready(channel, queue));
    looks = left.some((count) => count > 0) ? 0 : looks + 1;
    if (looks === LOOKS || Date.now() > deadline) return left;
  }
}

/** A message as dead-lettering has left it, without the times of death. */
async function letter(channel, queue) {
  const { content, fields, properties } = await taken(channel, queue, { noAck: true });
  for (const death of properties.headers['x-death'] ?? []) delete death.time;
  return {
    body: content.toString(),
    exchange: fields.exchange,
    routing_key: fields.routingKey,
    expiration: properties.expiration ?? null,
    headers: properties.headers,
  };
}

async function requeue_into_a_full_queue(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel, 'q', { arguments: { 'x-max-length': 2 } });
  publish(channel, queue, '1', '2');
  const first = await channel.get(queue);
  await store(session, queue, '3');
  // What is unacknowledged does not count.
  const counted = await ready(channel, queue);
  channel.nack(first);
  return { counted, left: await drain(channel, queue) };
}

module.exports = {
  message_ttl,
  queue_expires,
  max_length_drops_the_head,
  max_length_rejects,
  dead_letters,
  dead_letters_and_copies,
  dead_letter_cycles,
  priorities,
  single_active_consumer,
  quorum_queue,
  requeue_into_a_full_queue,
};
