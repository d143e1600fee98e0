// Messages arrive as they were sent: properties, header values, bodies of any size.
'use strict';

const { Collector } = require('./session');
const { patterned } = require('./patterned');

const TIMESTAMP = 1_700_000_000;
const SIZES = [0, 1, 4088, 4089, 131_064, 131_065, 1_048_576, 16_777_216];

async function properties(session) {
  const sent = {
    contentType: 'text/plain',
    contentEncoding: 'identity',
    headers: { animal: 'hare' },
    deliveryMode: 2,
    priority: 5,
    correlationId: 'correlation',
    replyTo: 'reply',
    expiration: '60000',
    messageId: 'message',
    timestamp: TIMESTAMP,
    type: 'greeting',
    userId: 'guest',
    appId: 'scenarios',
  };
  const message = await throughQueue(session, sent, 'häre');
  const observed = { body: message.content.toString() };
  for (const key of Object.keys(sent)) observed[snakeCase(key)] = message.properties[key];
  for (const key of ['exchange', 'routingKey', 'redelivered']) observed[snakeCase(key)] = message.fields[key];
  return observed;
}

async function header_values(session) {
  const headers = {
    true: true,
    false: false,
    byte: { '!': 'byte', value: -8 },
    short: { '!': 'short', value: -300 },
    int: { '!': 'int', value: -100_000 },
    long: { '!': 'long', value: 2 ** 40 },
    float: { '!': 'float', value: 0.5 },
    double: { '!': 'double', value: 1.1 },
    decimal: { '!': 'decimal', value: { places: 2, digits: 125 } },
    text: 'häre',
    empty: '',
    binary: Buffer.from([0x00, 0x01, 0xff]),
    timestamp: { '!': 'timestamp', value: TIMESTAMP },
    void: null,
    list: [1, 'two', true, null, [3]],
    table: { inner: { deep: 7 } },
  };
  return plain((await throughQueue(session, { headers }, '')).properties.headers);
}

async function throughQueue(session, sent, body) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const collector = await Collector.start(channel, queue, { noAck: true });
  channel.sendToQueue(queue, Buffer.from(body), sent);
  return (await collector.wait(1))[0];
}

function snakeCase(key) {
  return key.replace(/[A-Z]/g, (letter) => '_' + letter.toLowerCase());
}

/** A field value as JSON shows it: decimals as text, bytes in hex, timestamps in seconds. */
function plain(value) {
  if (value === null || typeof value !== 'object') return value;
  if (Buffer.isBuffer(value)) return value.toString('hex');
  if (Array.isArray(value)) return value.map(plain);
  if (value['!'] === 'decimal') return (value.value.digits / 10 ** value.value.places).toFixed(value.value.places);
  if (value['!']) return plain(value.value);
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, plain(inner)]));
}

async function body_sizes(session) {
  const channel = await session.channel();
  const queue = await session.queue(channel);
  const collector = await Collector.start(channel, queue);
  const intact = [];
  for (const size of SIZES) {
    const sent = patterned(size);
    channel.sendToQueue(queue, sent);
    const [message] = await collector.wait(1);
    channel.ack(message);
    collector.deliveries.length = 0;
    if (message.content.equals(sent)) intact.push(message.content.length);
  }
  return { intact };
}

module.exports = { properties, header_values, body_sizes };
