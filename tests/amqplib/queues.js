// Queues and exchanges from declaration to deletion.
'use strict';

const { Collector, TRANSIENT, drain, publish, ready, store } = require('./session');

async function server_named_queue(session) {
  const channel = await session.channel();
  const name = (await channel.assertQueue('', { ...TRANSIENT, exclusive: true })).queue;
  // The empty name now means that queue, and an empty key its name.
  await channel.bindQueue('', 'amq.direct', '');
  channel.publish('amq.direct', name, Buffer.from('bound'));
  const received = await drain(channel, '');
  publish(channel, name, '1', '2');
  const purged = (await channel.purgeQueue('')).messageCount;
  publish(channel, name, '3');
  const deleted = (await channel.deleteQueue('')).messageCount;
  const onAnotherChannel = await session.refused((other) => other.purgeQueue(''));
  return { name, received, purged, deleted, on_another_channel: onAnotherChannel };
}

async function exclusive_queue(session) {
  const stranger = await session.connect();
  const owner = await session.connect();
  const queue = await session.queue(await owner.createChannel(), 'q', { exclusive: true });
  const answers = await session.refusedEach({
    declare: (channel) => channel.assertQueue(queue, { ...TRANSIENT, exclusive: true }),
    passive: (channel) => channel.checkQueue(queue),
    bind: (channel) => channel.bindQueue(queue, 'amq.direct', 'any'),
    get: (channel) => channel.get(queue),
    consume: (channel) => Collector.start(channel, queue),
    purge: (channel) => channel.purgeQueue(queue),
    delete: (channel) => channel.deleteQueue(queue),
  });
  await store(session, queue, 'publishing is open to all');
  answers.received = await drain(await owner.createChannel(), queue);
  await owner.close();
  answers.after_close = await session.refusedOtherwise((other) => other.checkQueue(queue), answers.passive);
  const again = await (await stranger.createChannel()).assertQueue(queue, { ...TRANSIENT, exclusive: true });
  answers.redeclared = again.queue === queue;
  return answers;
}

async function auto_delete_queue(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel, 'q', { autoDelete: true });
  await channel.get(queue);
  const afterGet = await ready(channel, queue);
  const first = await Collector.start(channel, queue);
  const last = await Collector.start(channel, queue);
  await channel.cancel(first.tag);
  const afterFirst = await ready(channel, queue);
  await channel.cancel(last.tag);
  const afterLast = await session.refused((other) => ready(other, queue));
  return { after_get: afterGet, after_first_cancel: afterFirst, after_last_cancel: afterLast };
}

async function auto_delete_exchange(session) {
  const channel = await session.channel();
  const exchange = session.name('e');
  const queue = await session.queue(channel);
  await channel.assertExchange(exchange, 'direct', { ...TRANSIENT, autoDelete: true });
  for (const key of ['one', 'two']) await channel.bindQueue(queue, exchange, key);
  await channel.unbindQueue(queue, exchange, 'one');
  const afterFirst = await session.refused((other) => other.checkExchange(exchange));
  await channel.unbindQueue(queue, exchange, 'two');
  const afterLast = await session.refused((other) => other.checkExchange(exchange));
  return { after_first_unbind: afterFirst, after_last_unbind: afterLast };
}

async function passive_declare(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  await store(session, queue, '1', '2');
  const consumer = await session.channel();
  await consumer.prefetch(1);
  await (await Collector.start(consumer, queue)).wait(1);
  const state = await channel.checkQueue(queue);
  const missing = session.name('missing');
  return {
    messages: state.messageCount,
    consumers: state.consumerCount,
    ...(await session.refusedEach({
      // A passive declaration compares nothing but the name; amqplib always says durable in it.
      other_flags: (other) => other.checkQueue(queue),
      queue: (other) => other.checkQueue(missing),
      exchange: (other) => other.checkExchange(missing),
    })),
  };
}

async function purge_and_delete_counts(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  publish(channel, queue, '1', '2', '3');
  const purged = (await channel.purgeQueue(queue)).messageCount;
  publish(channel, queue, '4', '5');
  const deleted = (await channel.deleteQueue(queue)).messageCount;
  const missing = (await channel.deleteQueue(queue)).messageCount;
  return { purged, deleted, missing };
}

async function if_unused_if_empty(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const exchange = session.name('e');
  await channel.assertExchange(exchange, 'direct', TRANSIENT);
  await channel.bindQueue(queue, exchange, 'key');
  const inUse = await session.refused((other) => other.deleteExchange(exchange, { ifUnused: true }));
  await store(session, queue, '1');
  const notEmpty = await session.refused((other) => other.deleteQueue(queue, { ifEmpty: true }));
  const collector = await Collector.start(channel, queue, { noAck: true });
  await collector.wait(1);
  const queueInUse = await session.refused((other) => other.deleteQueue(queue, { ifUnused: true }));
  await channel.cancel(collector.tag);
  await channel.deleteQueue(queue, { ifUnused: true, ifEmpty: true });
  await channel.deleteExchange(exchange, { ifUnused: true });
  return {
    exchange_in_use: inUse,
    queue_not_empty: notEmpty,
    queue_in_use: queueInUse,
    queue_gone: await session.refused((other) => ready(other, queue)),
    exchange_gone: await session.refused((other) => other.checkExchange(exchange)),
  };
}

async function names(session) {
  const channel = await session.channel();
  const stripped = (await channel.assertQueue(session.name('a\r\nb\n'), TRANSIENT)).queue;
  publish(channel, stripped, 'found');
  const longest = session.name('').padEnd(255, 'x');
  return {
    stripped: stripped === session.name('ab'),
    received: await drain(channel, session.name('ab')),
    longest: (await channel.assertQueue(longest, TRANSIENT)).queue === longest,
    ...(await session.refusedEach({
      exchange: (other) => other.assertExchange(session.name('e\n'), 'direct', TRANSIENT),
      exchange_stripped: (other) => other.checkExchange(session.name('e')),
    })),
  };
}

module.exports = {
  server_named_queue,
  exclusive_queue,
  auto_delete_queue,
  auto_delete_exchange,
  passive_declare,
  purge_and_delete_counts,
  if_unused_if_empty,
  names,
};
