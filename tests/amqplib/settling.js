// Ack, nack, reject and recover: what is gone, what comes back, and where in the queue.
'use strict';

const { drain, getAll, marked, publish, seen, seenAgain } = require('./session');

async function ack_multiple(session) {
  const { channel, queue, taken } = await holdingFive(session);
  channel.ack(taken[2], true);
  await channel.close();
  return { back: await seenAgain(await session.channel(), queue, 2) };
}

async function ack_all_outstanding(session) {
  const { channel, queue } = await holdingFive(session);
  channel.ackAll();
  // What was left would come back, and before what is published behind it.
  await channel.recover();
  publish(channel, queue, 'marker');
  return { left: (await drain(channel, queue)).indexOf('marker') };
}

async function nack_requeue_order(session) {
  const { channel, queue, taken } = await holdingFive(session);
  channel.nack(taken[4], true, true);
  const again = await getAll(channel, queue);
  for (const message of [again[3], again[1]]) channel.nack(message, false, true);
  return { all: marked(again), middle: await seen(channel, queue) };
}

async function nack_drops(session) {
  const { channel, queue, taken } = await holdingFive(session);
  channel.nack(taken[2], true, false);
  await channel.close();
  return { back: await seenAgain(await session.channel(), queue, 2) };
}

async function reject(session) {
  const { channel, queue, taken } = await holdingFive(session);
  channel.reject(taken[0], false);
  channel.reject(taken[1], true);
  return { back: await seen(channel, queue) };
}

async function recover(session) {
  const { channel, queue } = await holdingFive(session);
  await channel.recover();
  return { back: await seen(channel, queue) };
}

async function unknown_delivery_tag(session) {
  const five = { fields: { deliveryTag: 5 } };
  return session.refusedEach({
    ack: (channel) => channel.ack(five),
    ack_multiple: (channel) => channel.ack(five, true),
    nack: (channel) => channel.nack(five),
    reject: (channel) => channel.reject(five),
    twice: async (channel) => {
      const queue = await session.queue(channel);
      publish(channel, queue, 'once');
      const message = await channel.get(queue);
      channel.ack(message);
      channel.ack(message);
    },
  });
}

/** A channel that holds five unacknowledged messages of a queue. */
async function holdingFive(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  publish(channel, queue, '1', '2', '3', '4', '5');
  return { channel, queue, taken: await getAll(channel, queue) };
}

module.exports = {
  ack_multiple,
  ack_all_outstanding,
  nack_requeue_order,
  nack_drops,
  reject,
  recover,
  unknown_delivery_tag,
};
