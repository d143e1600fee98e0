// The AMQP 0-9-1 methods and message properties that the client uses: names, numbers and fields
// (<https://www.rabbitmq.com/amqp-0-9-1-reference>), with their encoding.

import { Reader, Writer, seconds } from "./wire.js";

/** Class, method, and the fields in order. Fields named `_` are reserved: written as zero, ignored when read. */
const METHODS = {
  "connection.start": [10, 10, "major:octet minor:octet serverProperties:table mechanisms:longstr locales:longstr"],
  "connection.start-ok": [10, 11, "clientProperties:table mechanism:shortstr response:longstr locale:shortstr"],
  "connection.tune": [10, 30, "channelMax:short frameMax:long heartbeat:short"],
  "connection.tune-ok": [10, 31, "channelMax:short frameMax:long heartbeat:short"],
  "connection.open": [10, 40, "vhost:shortstr _:shortstr _:bit"],
  "connection.open-ok": [10, 41, "_:shortstr"],
  "connection.close": [10, 50, "code:short text:shortstr classId:short methodId:short"],
  "connection.close-ok": [10, 51, ""],
  "connection.blocked": [10, 60, "reason:shortstr"],
  "connection.unblocked": [10, 61, ""],
  "channel.open": [20, 10, "_:shortstr"],
  "channel.open-ok": [20, 11, "_:longstr"],
  "channel.close": [20, 40, "code:short text:shortstr classId:short methodId:short"],
  "channel.close-ok": [20, 41, ""],
  "queue.declare": [
    50,
    10,
    "_:short queue:shortstr passive:bit durable:bit exclusive:bit autoDelete:bit noWait:bit arguments:table",
  ],
  "queue.declare-ok": [50, 11, "queue:shortstr messageCount:long consumerCount:long"],
  "queue.bind": [50, 20, "_:short queue:shortstr exchange:shortstr routingKey:shortstr noWait:bit arguments:table"],
  "queue.bind-ok": [50, 21, ""],
  "queue.delete": [50, 40, "_:short queue:shortstr ifUnused:bit ifEmpty:bit noWait:bit"],
  "queue.delete-ok": [50, 41, "messageCount:long"],
  "basic.qos": [60, 10, "prefetchSize:long prefetchCount:short global:bit"],
  "basic.qos-ok": [60, 11, ""],
  "basic.consume": [
    60,
    20,
    "_:short queue:shortstr consumerTag:shortstr noLocal:bit noAck:bit exclusive:bit noWait:bit arguments:table",
  ],
  "basic.consume-ok": [60, 21, "consumerTag:shortstr"],
  "basic.cancel": [60, 30, "consumerTag:shortstr noWait:bit"],
  "basic.cancel-ok": [60, 31, "consumerTag:shortstr"],
  "basic.publish": [60, 40, "_:short exchange:shortstr routingKey:shortstr mandatory:bit immediate:bit"],
  "basic.return": [60, 50, "code:short text:shortstr exchange:shortstr routingKey:shortstr"],
  "basic.deliver": [
    60,
    60,
    "consumerTag:shortstr deliveryTag:longlong redelivered:bit exchange:shortstr routingKey:shortstr",
  ],
  "basic.ack": [60, 80, "deliveryTag:longlong multiple:bit"],
  "basic.nack": [60, 120, "deliveryTag:longlong multiple:bit requeue:bit"],
  "confirm.select": [85, 10, "noWait:bit"],
  "confirm.select-ok": [85, 11, ""],
};

/** Message properties in the order of their flags, beginning with the highest bit. */
const PROPERTIES = fields(
  "contentType:shortstr contentEncoding:shortstr headers:table deliveryMode:octet priority:octet " +
    "correlationId:shortstr replyTo:shortstr expiration:shortstr messageId:shortstr timestamp:longlong " +
    "type:shortstr userId:shortstr appId:shortstr clusterId:shortstr",
);

const CLASS_BASIC = 60;
const NOTHING = { shortstr: "", longstr: "", short: 0, long: 0, longlong: 0, octet: 0, bit: false, table: {} };

function fields(list) {
  return list.split(" ").filter(Boolean).map((field) => field.split(":"));
}

const BY_NAME = new Map(
  Object.entries(METHODS).map(([name, [classId, methodId, list]]) => [name, { classId, methodId, fields: fields(list) }]),
);
const BY_NUMBER = new Map([...BY_NAME].map(([name, { classId, methodId }]) => [`${classId}.${methodId}`, name]));

/** The payload of a method frame. Fields missing in `values` are written as "", 0, false or {}. */
export function writeMethod(name, values = {}) {
  const method = BY_NAME.get(name);
  const out = new Writer();
  out.short(method.classId);
  out.short(method.methodId);
  // Consecutive bits share a byte, beginning with the lowest. No method here has more than eight in a row.
  let bits = [];
  const flush = () => {
    if (bits.length) out.octet(bits.reduce((octet, bit, index) => octet | (bit ? 1 << index : 0), 0));
    bits = [];
  };
  for (const [field, type] of method.fields) {
    const value = values[field] ?? NOTHING[type];
    if (type === "bit") {
      bits.push(value);
    } else {
      flush();
      out[type](value);
    }
  }
  flush();
  return out.finish();
}

/** The method name and the fields of a method frame. */
export function readMethod(payload) {
  const reader = new Reader(payload);
  const number = `${reader.short()}.${reader.short()}`;
  const name = BY_NUMBER.get(number);
  if (!name) throw new RangeError(`unknown method ${number}`);
  const values = {};
  let bits = 0;
  let bit = 8;
  for (const [field, type] of BY_NAME.get(name).fields) {
    if (type !== "bit") {
      bit = 8;
      values[field] = reader[type]();
      continue;
    }
    if (bit === 8) {
      bits = reader.octet();
      bit = 0;
    }
    values[field] = (bits & (1 << bit)) !== 0;
    bit += 1;
  }
  return { name, values };
}

/** The payload of a content header frame. A timestamp is a Date. */
export function writeContentHeader(bodySize, properties) {
  const unknown = Object.keys(properties).filter((key) => !PROPERTIES.some(([name]) => name === key));
  if (unknown.length) throw new TypeError(`no such property: ${unknown.join(", ")}`);
  const values = { ...properties };
  if (values.timestamp instanceof Date) values.timestamp = seconds(values.timestamp);
  const out = new Writer();
  out.short(CLASS_BASIC);
  out.short(0);
  out.longlong(bodySize);
  const present = PROPERTIES.map(([name]) => values[name] !== undefined);
  out.short(present.reduce((flags, is, index) => flags | (is ? 0x8000 >> index : 0), 0));
  PROPERTIES.forEach(([name, type], index) => present[index] && out[type](values[name]));
  return out.finish();
}

/** The size of the body in bytes, and the message properties. */
export function readContentHeader(payload) {
  const reader = new Reader(payload);
  reader.short();
  reader.short();
  const bodySize = reader.longlong();
  const flags = reader.short();
  const properties = {};
  PROPERTIES.forEach(([name, type], index) => {
    if (flags & (0x8000 >> index)) properties[name] = reader[type]();
  });
  if (properties.timestamp !== undefined) properties.timestamp = new Date(properties.timestamp * 1000);
  return { bodySize, properties };
}
