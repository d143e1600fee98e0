// Opening, negotiating and keeping connections and channels.
'use strict';

const { setTimeout: pause } = require('node:timers/promises');
const { Collector, closeOf, drain, publish, ready, roundTrip } = require('./session');
const { patterned } = require('./patterned');

const MEBIBYTE = 1 << 20;

async function connect(session) {
  const { connection } = await session.connect();
  return {
    capabilities: connection.serverProperties.capabilities,
    properties: Object.keys(connection.serverProperties).sort(),
    channel_max: connection.channelMax,
    frame_max: connection.frameMax,
    heartbeat: connection.heartbeat,
  };
}

async function wrong_password(session) {
  try {
    await session.connect({ password: 'not-the-password' });
  } catch (error) {
    return closeOf(error);
  }
  return 'accepted';
}

async function wrong_vhost(session) {
  try {
    await session.connect({ pathname: '/nowhere' });
  } catch (error) {
    // amqplib says that the server closed the connection, and keeps the reason to itself.
    if (error.message.includes('got <ConnectionClose')) return {};
    throw error;
  }
  return 'accepted';
}

async function heartbeat_two_seconds(session) {
  const connection = await session.connect({ query: { heartbeat: 2 } });
  // amqplib closes the connection should the server's heartbeats fail to arrive, as the server does should its own.
  const failed = await Promise.race([connection.failure, pause(5_000, null)]);
  if (failed) throw failed;
  await roundTrip(await connection.createChannel());
  return { heartbeat: connection.connection.heartbeat, alive: true };
}

function frame_max_4096(session) {
  return throughFramesOf(session, 4096);
}

function frame_max_131072(session) {
  return throughFramesOf(session, 131072);
}

async function throughFramesOf(session, frameMax) {
  const connection = await session.connect({ query: { frameMax } });
  const channel = await connection.createChannel();
  const queue = await session.queue(channel);
  const collector = await Collector.start(channel, queue, { noAck: true });
  const bodies = [0, 1, frameMax - 8, frameMax - 7, MEBIBYTE].map(patterned);
  for (const body of bodies) channel.sendToQueue(queue, body);
  const got = await collector.wait(bodies.length);
  return {
    frame_max: connection.connection.frameMax,
    intact: bodies.filter((body, index) => body.equals(got[index].content)).map((body) => body.length),
  };
}

async function many_channels(session) {
  const channels = [await session.channel()];
  channels.push(...(await Promise.all(Array.from({ length: 499 }, () => session.channel()))));
  const queues = await Promise.all(channels.map((channel) => channel.assertQueue('', { exclusive: true })));
  channels.forEach((channel, number) => publish(channel, queues[number].queue, String(number)));
  const bodies = await Promise.all(channels.map((channel, number) => drain(channel, queues[number].queue)));
  return {
    channels: channels.length,
    own_messages: bodies.filter(([body], number) => body === String(number)).length,
  };
}

async function ten_connections(session) {
  const queue = await session.queue(await session.channel());
  const publishOn = async (publisher) => {
    const channel = await (await session.connect()).createConfirmChannel();
    for (let number = 0; number < 100; number++) publish(channel, queue, `${publisher} ${number}`);
    await channel.waitForConfirms();
  };
  await Promise.all(Array.from({ length: 10 }, (_, publisher) => publishOn(publisher)));
  const channel = await session.channel();
  const stored = await ready(channel, queue);
  const collector = await Collector.start(channel, queue, { noAck: true });
  await collector.wait(1000);
  const last = new Map();
  const disordered = new Set();
  for (const body of collector.bodies) {
    const [publisher, number] = body.split(' ').map(Number);
    if (number !== (last.get(publisher) ?? -1) + 1) disordered.add(publisher);
    last.set(publisher, number);
  }
  return { stored, in_order: last.size - disordered.size };
}

module.exports = {
  connect,
  wrong_password,
  wrong_vhost,
  heartbeat_two_seconds,
  frame_max_4096,
  frame_max_131072,
  many_channels,
  ten_connections,
};
