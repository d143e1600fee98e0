// Direct reply-to, copies by header, and properties that the server looks at.
'use strict';

const { Collector, TRANSIENT, connectionRefused, drain, taken } = require('./session');

const REPLY_TO = 'amq.rabbitmq.reply-to';

async function direct_reply_to(session) {
  const channel = await session.channel();
  const server = await (await session.connect()).createConfirmChannel();
  const queue = await session.queue(channel);
  const replies = await Collector.start(channel, REPLY_TO, { noAck: true });
  request(channel, queue);
  const secret = (await taken(server, queue, { noAck: true })).properties.replyTo;
  const found = await server.checkQueue(secret);
  let returned = false;
  server.on('return', () => (returned = true));
  server.publish('', secret, Buffer.from('reply'), { correlationId: '1' });
  server.publish('', secret, Buffer.from('counts as unroutable'), { mandatory: true });
  await server.waitForConfirms();
  await replies.wait(2);
  const { fields } = replies.deliveries[0];
  const observed = {
    pattern: secret.startsWith(REPLY_TO + '.'),
    found: [found.messageCount, found.consumerCount, found.queue === secret],
    bodies: replies.bodies,
    returned,
    exchange: fields.exchange,
    key_is_secret: fields.routingKey === secret,
    get: told(await connectionRefused(await session.connect(), (other) => other.get(secret)), secret),
    bind: told(await connectionRefused(await session.connect(), (other) => other.bindQueue(secret, 'amq.direct', 'key')), secret),
  };
  await channel.cancel(replies.tag);
  server.publish('', secret, Buffer.from('nobody there'));
  observed.after_cancel = told(await connectionRefused(await session.connect(), (other) => other.checkQueue(secret)), secret);
  return observed;
}

async function direct_reply_to_refused(session) {
  const queue = await session.queue(await session.channel());
  const start = (channel) => Collector.start(channel, REPLY_TO, { noAck: true });
  const attempts = {
    acknowledging: (channel) => Collector.start(channel, REPLY_TO),
    twice: async (channel) => [await start(channel), await start(channel)],
    without_consumer: (channel) => request(channel, queue),
    after_cancel: async (channel) => {
      await channel.cancel((await start(channel)).tag);
      request(channel, queue);
    },
    declare: (channel) => channel.assertQueue(REPLY_TO, TRANSIENT),
    declare_secret: (channel) => channel.checkQueue(REPLY_TO + '.guessed'),
    get: (channel) => channel.get(REPLY_TO),
  };
  const observed = {};
  for (const [short, action] of Object.entries(attempts)) {
    observed[short] = await connectionRefused(await session.connect(), action);
  }
  return observed;
}

async function copies(session) {
  const channel = await session.channel();
  const queues = {};
  for (const short of ['to', 'cc', 'bcc']) queues[short] = await session.queue(channel, short);
  const headers = { CC: [queues.cc, queues.to], BCC: [queues.bcc], mine: 'kept' };
  channel.publish('', queues.to, Buffer.from('body'), { headers });
  const observed = {};
  for (const [short, queue] of Object.entries(queues)) {
    const { content, fields, properties } = await taken(channel, queue, { noAck: true });
    observed[short] = [content.toString(), fields.routingKey, properties.headers];
  }
  observed.left = [];
  for (const queue of Object.values(queues)) observed.left.push(await drain(channel, queue));
  observed.no_array = await session.refused((other) =>
    other.publish('', queues.to, Buffer.alloc(0), { headers: { CC: queues.cc } }),
  );
  return observed;
}

async function judged_properties(session) {
  const queue = await session.queue(await session.channel());
  const attempts = {
    user_id: { userId: 'somebody' },
    own_user_id: { userId: 'guest' },
    expiration_of_words: { expiration: 'soon' },
    expiration_empty: { expiration: '' },
    expiration_negative: { expiration: '-1' },
    expiration_with_unit: { expiration: '5s' },
  };
  const observed = {};
  for (const [short, properties] of Object.entries(attempts)) {
    observed[short] = await session.refused((other) => other.publish('', queue, Buffer.alloc(0), properties));
  }
  return observed;
}

async function through_an_internal_exchange(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const [outer, inner] = [session.name('outer'), session.name('inner')];
  await channel.assertExchange(outer, 'fanout', TRANSIENT);
  await channel.assertExchange(inner, 'fanout', { ...TRANSIENT, internal: true });
  await channel.bindExchange(inner, outer, '');
  await channel.bindQueue(queue, inner, '');
  channel.publish(outer, '', Buffer.from('through both'));
  return { received: [(await taken(channel, queue, { noAck: true })).content.toString()] };
}

async function update_secret(session) {
  const connection = await session.connect();
  await connection.updateSecret(Buffer.from('guest'), 'because it is time');
  const channel = await connection.createChannel();
  return { still_open: (await channel.assertQueue('', { exclusive: true })).messageCount === 0 };
}

function request(channel, queue) {
  channel.sendToQueue(queue, Buffer.from('request'), { replyTo: REPLY_TO, correlationId: '1' });
}

/** An error whose text must not hold what is different in each run. */
function told(answer, secret) {
  return { ...answer, text: answer.text.replace(secret, 'SECRET') };
}

module.exports = {
  direct_reply_to,
  direct_reply_to_refused,
  copies,
  judged_properties,
  through_an_internal_exchange,
  update_secret,
};
