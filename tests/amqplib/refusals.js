// What a server refuses, with which code and words, and that only the channel pays for it.
'use strict';

const { Collector, TRANSIENT, connectionRefused, publish, ready } = require('./session');

const DURABLE = { durable: true };

async function redeclare(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const exchange = session.name('e');
  await channel.assertExchange(exchange, 'direct', TRANSIENT);
  const queueAs = (options) => (other) => other.assertQueue(queue, { ...TRANSIENT, ...options });
  const exchangeAs = (kind, options) => (other) => other.assertExchange(exchange, kind, { ...TRANSIENT, ...options });
  return session.refusedEach({
    same: queueAs({}),
    durable: queueAs(DURABLE),
    auto_delete: queueAs({ autoDelete: true }),
    exclusive: queueAs({ exclusive: true }),
    exchange_same: exchangeAs('direct', {}),
    exchange_type: exchangeAs('fanout', {}),
    exchange_durable: exchangeAs('direct', DURABLE),
    exchange_auto_delete: exchangeAs('direct', { autoDelete: true }),
    exchange_internal: exchangeAs('direct', { internal: true }),
  });
}

async function redeclare_with_arguments(session) {
  const channel = await session.channel();
  const plain = await session.queue(channel, 'plain');
  const limited = await session.queue(channel, 'limited', { messageTtl: 60000 });
  const queueAs = (queue, options) => (other) => other.assertQueue(queue, { ...TRANSIENT, ...options });
  return session.refusedEach({
    same: queueAs(limited, { messageTtl: 60000 }),
    added: queueAs(plain, { messageTtl: 60000 }),
    missing: queueAs(limited, {}),
    different: queueAs(limited, { messageTtl: 50000 }),
    unknown: queueAs(plain, { arguments: { 'x-of-no-meaning': 'any' } }),
  });
}

async function missing_queues_and_exchanges(session) {
  const queue = await session.queue(await session.channel());
  const missing = session.name('missing');
  return session.refusedEach({
    get: (channel) => channel.get(missing),
    consume: (channel) => Collector.start(channel, missing),
    purge: (channel) => channel.purgeQueue(missing),
    bind_missing_queue: (channel) => channel.bindQueue(missing, 'amq.direct', 'key'),
    bind_missing_exchange: (channel) => channel.bindQueue(queue, missing, 'key'),
    bind_missing_source: (channel) => channel.bindExchange('amq.fanout', missing, 'key'),
    bind_missing_destination: (channel) => channel.bindExchange(missing, 'amq.fanout', 'key'),
    publish: (channel) => channel.publish(missing, 'key', Buffer.alloc(0)),
    delete_queue: (channel) => channel.deleteQueue(missing),
    delete_exchange: (channel) => channel.deleteExchange(missing),
    unbind: (channel) => channel.unbindQueue(missing, missing, 'key'),
    no_last_queue: (channel) => channel.purgeQueue(''),
  });
}

async function reserved_names(session) {
  return session.refusedEach({
    queue: (channel) => channel.assertQueue('amq.mine', TRANSIENT),
    exchange: (channel) => channel.assertExchange('amq.mine', 'direct', TRANSIENT),
    passive: (channel) => channel.checkQueue('amq.mine'),
    delete: (channel) => channel.deleteExchange('amq.direct'),
    redeclare: (channel) => channel.assertExchange('amq.direct', 'direct', DURABLE),
    redeclare_otherwise: (channel) => channel.assertExchange('amq.direct', 'fanout', DURABLE),
  });
}

async function default_exchange_is_fixed(session) {
  const queue = await session.queue(await session.channel());
  return session.refusedEach({
    declare: (channel) => channel.assertExchange('', 'direct', DURABLE),
    passive: (channel) => channel.checkExchange(''),
    delete: (channel) => channel.deleteExchange(''),
    bind: (channel) => channel.bindQueue(queue, '', 'key'),
    unbind: (channel) => channel.unbindQueue(queue, '', 'key'),
    source: (channel) => channel.bindExchange('amq.fanout', '', 'key'),
    destination: (channel) => channel.bindExchange('', 'amq.fanout', 'key'),
  });
}

async function internal_exchange(session) {
  const exchange = session.name('e');
  await (await session.channel()).assertExchange(exchange, 'fanout', { ...TRANSIENT, internal: true });
  return session.refusedEach({ publish: (channel) => channel.publish(exchange, '', Buffer.from('x')) });
}

async function unknown_exchange_type(session) {
  const exchange = session.name('e');
  return connectionRefused(await session.connect(), (channel) => channel.assertExchange(exchange, 'no-such-type'));
}

async function pipelined_after_an_error(session) {
  const queue = await session.queue(await session.channel());
  const refused = await session.refused((channel) => {
    channel.publish(session.name('missing'), 'key', Buffer.from('closes the channel'));
    publish(channel, queue, 'discarded');
  });
  return { refused, stored: await ready(await session.channel(), queue) };
}

module.exports = {
  redeclare,
  redeclare_with_arguments,
  missing_queues_and_exchanges,
  reserved_names,
  default_exchange_is_fixed,
  internal_exchange,
  unknown_exchange_type,
  pipelined_after_an_error,
};
