// Confirms and returns, with many messages in flight.
'use strict';

const { confirmed, drain, ready } = require('./session');

const IN_FLIGHT = 1000;

async function confirms(session) {
  const channel = await session.channel('createConfirmChannel');
  const queue = await session.queue(channel);
  const numbers = Array.from({ length: IN_FLIGHT }, (_, number) => String(number));
  const outcomes = await Promise.all(numbers.map((number) => confirmed(channel, queue, number, {})));
  const stored = await ready(channel, queue);
  const bodies = await drain(channel, queue);
  return {
    acked: outcomes.filter((outcome) => outcome === 'ack').length,
    nacked: outcomes.filter((outcome) => outcome === 'nack').length,
    stored,
    in_order: bodies.every((body, number) => body === String(number)),
  };
}

async function mandatory_return(session) {
  const channel = await session.channel('createConfirmChannel');
  const queue = await session.queue(channel);
  const missing = session.name('missing');
  const events = [];
  channel.on('return', ({ fields, content }) => {
    events.push(`return ${fields.replyCode} ${fields.replyText} ${content}`);
  });
  events.push(await confirmed(channel, missing, 'returned', { mandatory: true }));
  events.push(await confirmed(channel, queue, 'kept', { mandatory: true }));
  events.push(await confirmed(channel, missing, 'dropped', {}));
  return { events, received: await drain(channel, queue) };
}

module.exports = { confirms, mandatory_return };
