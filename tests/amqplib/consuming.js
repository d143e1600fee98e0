// Getting, consuming, prefetch, cancelling, and who gets what among consumers.
'use strict';

const { Collector, TRANSIENT, connectionRefused, getAll, publish, ready, seenAgain, store } = require('./session');

const FIVE = ['1', '2', '3', '4', '5'];
const MANUAL = {};
const AUTOMATIC = { noAck: true };

async function get(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const empty = (await channel.get(queue)) === false;
  publish(channel, queue, '1', '2', '3');
  const got = [];
  let keyIntact = true;
  for (let count = 0; count < 3; count++) {
    const message = await channel.get(queue);
    const { deliveryTag, redelivered, messageCount, exchange, routingKey } = message.fields;
    got.push([deliveryTag, message.content.toString(), redelivered, messageCount]);
    keyIntact &&= exchange === '' && routingKey === queue;
    channel.ack(message);
  }
  return { empty, got, key_intact: keyIntact, left: await ready(channel, queue) };
}

async function consume_and_ack(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const collector = await Collector.start(channel, queue, MANUAL);
  publish(channel, queue, ...FIVE);
  const deliveries = await collector.wait(5);
  for (const message of deliveries) channel.ack(message);
  await channel.close();
  return {
    bodies: collector.bodies,
    tags: deliveries.map((message) => message.fields.deliveryTag),
    redelivered: deliveries.map((message) => message.fields.redelivered),
    left: await ready(await session.channel(), queue),
  };
}

async function consume_without_ack(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  publish(channel, queue, ...FIVE);
  const collector = await Collector.start(channel, queue, AUTOMATIC);
  await collector.wait(5);
  await channel.close();
  return { bodies: collector.bodies, left: await ready(await session.channel(), queue) };
}

async function prefetch_per_consumer(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  publish(channel, queue, ...Array.from({ length: 10 }, (_, number) => String(number)));
  await channel.prefetch(3);
  const collector = await Collector.start(channel, queue, MANUAL);
  await collector.wait(3);
  const firstReady = await ready(channel, queue);
  const first = collector.deliveries.length;
  channel.ack(collector.deliveries[0]);
  await collector.wait(4);
  const readyAfterAck = await ready(channel, queue);
  return { first, ready: firstReady, after_ack: collector.deliveries.length, ready_after_ack: readyAfterAck };
}

async function prefetch_of_later_consumers_only(session) {
  const channel = await session.channel();
  const earlierQueue = await session.queue(channel, 'earlier');
  const laterQueue = await session.queue(channel, 'later');
  for (const queue of [earlierQueue, laterQueue]) publish(channel, queue, ...FIVE);
  const earlier = await Collector.start(channel, earlierQueue, MANUAL);
  await channel.prefetch(2);
  const later = await Collector.start(channel, laterQueue, MANUAL);
  await earlier.wait(5);
  await later.wait(2);
  return { earlier_ready: await ready(channel, earlierQueue), later_ready: await ready(channel, laterQueue) };
}

async function prefetch_global(session) {
  const channel = await session.channel();
  const queues = [await session.queue(channel, 'a'), await session.queue(channel, 'b')];
  for (const queue of queues) publish(channel, queue, ...FIVE);
  await channel.prefetch(3, true);
  const first = await Collector.start(channel, queues[0], MANUAL);
  const second = await Collector.start(channel, queues[1], MANUAL);
  second.events.on('change', () => first.events.emit('change'));
  const delivered = () => first.deliveries.length + second.deliveries.length;
  await first.until(() => delivered() >= 3);
  const left = (await ready(channel, queues[0])) + (await ready(channel, queues[1]));
  await first.until(() => delivered() >= 2 * FIVE.length - left);
  return { delivered: delivered(), ready: left };
}

async function cancel(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const collector = await Collector.start(channel, queue, MANUAL);
  publish(channel, queue, 'before');
  await collector.wait(1);
  await channel.cancel(collector.tag);
  await store(session, queue, 'after');
  const state = await channel.checkQueue(queue);
  channel.ack(collector.deliveries[0]);
  return { bodies: collector.bodies, ready: state.messageCount, consumers: state.consumerCount };
}

async function server_cancel(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const collector = await Collector.start(channel, queue, { consumerTag: 'watcher' });
  await (await session.channel()).deleteQueue(queue);
  // amqplib tells a consumer of its end by a null message.
  await collector.until(() => collector.cancelled);
  await channel.assertQueue('', { ...TRANSIENT, exclusive: true });
  return { cancelled: [collector.tag], channel_open: true };
}

async function consumer_priority(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  await channel.prefetch(3);
  const low = await Collector.start(channel, queue, MANUAL);
  const high = await Collector.start(channel, queue, { priority: 10 });
  publish(channel, queue, ...FIVE);
  await high.wait(3);
  await low.wait(2);
  return { high: high.bodies, low: low.bodies };
}

async function exclusive_consumer(session) {
  const queue = await session.queue(await session.channel());
  const holder = await session.channel();
  const { tag } = await Collector.start(holder, queue, { exclusive: true });
  const second = await session.refused((channel) => Collector.start(channel, queue));
  await holder.cancel(tag);
  await Collector.start(holder, queue);
  const exclusiveSecond = await session.refused((channel) => Collector.start(channel, queue, { exclusive: true }));
  return { second, exclusive_second: exclusiveSecond };
}

async function duplicate_consumer_tag(session) {
  const queue = await session.queue(await session.channel());
  return connectionRefused(await session.connect(), async (channel) => {
    for (let count = 0; count < 2; count++) await Collector.start(channel, queue, { consumerTag: 'twice' });
  });
}

async function requeue_on_close(session) {
  const holder = await (await session.connect()).createChannel();
  const queue = await session.queue(holder);
  publish(holder, queue, '1', '2', '3');
  await getAll(holder, queue);
  await holder.close();
  const other = await session.connect();
  const afterChannel = await seenAgain(await other.createChannel(), queue, 3);
  await other.close();
  const afterConnection = await seenAgain(await session.channel(), queue, 3);
  return { after_channel: afterChannel, after_connection: afterConnection };
}

async function reused_tag_without_a_queue(session) {
  const queue = await session.queue(await session.channel());
  return session.refused(async (channel) => {
    await channel.consume(queue, () => {}, { consumerTag: 'twice' });
    await channel.consume('', () => {}, { consumerTag: 'twice' });
  });
}

async function tags_of_get_and_deliver(session) {
  const channel = await session.channel();
  const got = await session.queue(channel, 'got');
  const delivered = await session.queue(channel, 'delivered');
  publish(channel, got, '1', '2');
  const tags = [(await channel.get(got)).fields.deliveryTag];
  const collector = await Collector.start(channel, delivered);
  publish(channel, delivered, '3');
  tags.push((await collector.wait(1))[0].fields.deliveryTag);
  tags.push((await channel.get(got)).fields.deliveryTag);
  const other = await session.channel();
  publish(other, got, '4');
  return { tags, on_another_channel: (await other.get(got)).fields.deliveryTag };
}

async function prefetch_does_not_limit(session) {
  const channel = await session.channel();
  const queues = {};
  for (const short of ['automatic', 'unlimited', 'got']) {
    queues[short] = await session.queue(channel, short);
    publish(channel, queues[short], ...FIVE);
  }
  await channel.prefetch(1);
  await (await Collector.start(channel, queues.automatic, AUTOMATIC)).wait(5);
  const gets = [];
  for (let count = 0; count < 2; count++) gets.push((await channel.get(queues.got)).content.toString());
  await channel.prefetch(0);
  const unlimited = (await (await Collector.start(channel, queues.unlimited)).wait(5)).length;
  return { get: gets, unlimited, automatic: await ready(channel, queues.automatic) };
}

async function prefetch_raised(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  publish(channel, queue, ...FIVE);
  await channel.prefetch(1, true);
  const collector = await Collector.start(channel, queue);
  await collector.wait(1);
  const left = [await ready(channel, queue)];
  for (const [limit, delivered] of [
    [3, 3],
    [0, 5],
  ]) {
    await channel.prefetch(limit, true);
    await collector.wait(delivered);
    left.push(await ready(channel, queue));
  }
  return { left, bodies: collector.bodies };
}

async function cancel_of_an_unknown_tag(session) {
  return session.refused((channel) => channel.cancel('nobody has it'));
}

module.exports = {
  get,
  consume_and_ack,
  consume_without_ack,
  prefetch_per_consumer,
  prefetch_of_later_consumers_only,
  prefetch_global,
  cancel,
  server_cancel,
  consumer_priority,
  exclusive_consumer,
  duplicate_consumer_tag,
  requeue_on_close,
  reused_tag_without_a_queue,
  tags_of_get_and_deliver,
  prefetch_does_not_limit,
  prefetch_raised,
  cancel_of_an_unknown_tag,
};
