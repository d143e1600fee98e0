// A channel of an AMQP connection: queues, publishing with confirms, consuming with acknowledgements.

import { AmqpError, deferred, tell } from "./errors.js";
import { BODY, HEADER, METHOD } from "./frames.js";
import { readContentHeader, readMethod, writeContentHeader, writeMethod } from "./methods.js";

export class Channel {
  /** Resolves once the channel has closed: with null after `close`, otherwise with the error. */
  closed;

  #id;
  #bodyMax;
  #connection;
  #ended = deferred();
  #error = undefined;
  /** Pending replies; a server replies in the order of the requests. */
  #answers = [];
  /** Consumers by tag: the callbacks for messages and for a cancellation by the server. */
  #consumers = new Map();
  #nextConsumer = 1;
  /** The message being received: method, header, then body frames. */
  #incoming = null;
  /** The sequence number of the next publish in confirm mode, and the unconfirmed publishes in order. */
  #nextPublish = 0;
  #unconfirmed = new Map();

  /** Called by `Connection.openChannel`. `bodyMax` is the largest body that fits into a frame, in bytes. */
  constructor(id, bodyMax, connection) {
    this.#id = id;
    this.#bodyMax = bodyMax;
    this.#connection = connection;
    this.closed = this.#ended.promise;
  }

  open() {
    return this.#call("channel.open", {}, "channel.open-ok");
  }

  async close() {
    if (this.#error !== undefined) return;
    await this.#call("channel.close", { code: 200, text: "Goodbye" }, "channel.close-ok");
    this.end(null);
  }

  /** Declares a queue; the server generates a name if none is given. Returns `{ queue, messageCount, consumerCount }`. */
  declareQueue(queue, { passive, durable, exclusive, autoDelete, arguments: args } = {}) {
    const values = { queue, passive, durable, exclusive, autoDelete, arguments: args };
    return this.#call("queue.declare", values, "queue.declare-ok");
  }

  bindQueue(queue, exchange, routingKey, args = {}) {
    return this.#call("queue.bind", { queue, exchange, routingKey, arguments: args }, "queue.bind-ok");
  }

  deleteQueue(queue) {
    return this.#call("queue.delete", { queue }, "queue.delete-ok");
  }

  /** Sets the prefetch of each later consumer; 0 means no limit. */
  prefetch(count) {
    return this.#call("basic.qos", { prefetchCount: count }, "basic.qos-ok");
  }

  /**
   * Calls `onmessage` for each message, and `oncancel` if the server cancels the consumer, for example because the
   * queue was deleted. Unless `noAck`, pass each handled message to `ack` or `nack`. Returns the consumer tag.
   */
  async consume(queue, onmessage, { noAck, exclusive, oncancel = () => {}, arguments: args } = {}) {
    const consumerTag = `page-${this.#id}-${this.#nextConsumer++}`;
    // Before the reply, because messages may arrive together with it.
    this.#consumers.set(consumerTag, { onmessage, oncancel });
    const values = { queue, consumerTag, noAck, exclusive, arguments: args };
    await this.#call("basic.consume", values, "basic.consume-ok");
    return consumerTag;
  }

  /** Cancels a consumer. Messages in flight are still delivered to it. */
  async cancel(consumerTag) {
    await this.#call("basic.cancel", { consumerTag }, "basic.cancel-ok");
    this.#consumers.delete(consumerTag);
  }

  ack(message) {
    this.#method("basic.ack", { deliveryTag: message.deliveryTag });
  }

  /** Rejects a message; it is requeued, or dead-lettered. */
  nack(message, { requeue = true } = {}) {
    this.#method("basic.nack", { deliveryTag: message.deliveryTag, requeue });
  }

  /** Puts the channel into confirm mode. */
  async confirmSelect() {
    await this.#call("confirm.select", {}, "confirm.select-ok");
    this.#nextPublish = 1;
  }

  /**
   * Publishes text or bytes. In confirm mode it resolves once the server has confirmed the message, to `{ tag,
   * returned }`, and rejects if the server nacks it. With `mandatory`, `returned` says why the message was
   * unroutable, otherwise it is null; a message without a messageId then gets one, to recognise it.
   */
  async publish(exchange, routingKey, body, { mandatory = false, properties = {} } = {}) {
    const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
    const tag = this.#nextPublish;
    const all = { ...properties };
    if (mandatory && tag) all.messageId ??= `${this.#id}-${tag}`;
    // Encode everything before the first frame is sent, so that an error leaves no partial message.
    const method = writeMethod("basic.publish", { exchange, routingKey, mandatory });
    const header = writeContentHeader(bytes.length, all);
    this.#send(METHOD, method);
    this.#send(HEADER, header);
    for (let at = 0; at < bytes.length; at += this.#bodyMax) {
      this.#send(BODY, bytes.subarray(at, at + this.#bodyMax));
    }
    if (!tag) return { tag: 0, returned: null };
    this.#nextPublish += 1;
    const confirm = deferred();
    this.#unconfirmed.set(tag, { ...confirm, messageId: all.messageId, returned: null });
    return confirm.promise;
  }

  /** Called by the connection for each frame. */
  receive(type, payload) {
    if (type === METHOD) this.#handle(readMethod(payload));
    else if (type === HEADER) this.#contentHeader(readContentHeader(payload));
    else this.#contentBody(payload);
  }

  /** Called by the connection when it closes; `error` is null after `close`. */
  end(error) {
    if (this.#error !== undefined) return;
    this.#error = error;
    this.#connection.ended();
    const reason = error ?? closedError();
    for (const { reject } of [...this.#answers, ...this.#unconfirmed.values()]) reject(reason);
    this.#consumers.clear();
    this.#ended.resolve(error);
  }

  #handle({ name, values }) {
    switch (name) {
      case "basic.deliver":
      case "basic.return":
        this.#incoming = { name, values };
        return;
      case "basic.ack":
        this.#settle(values, ({ resolve, returned }, tag) => resolve({ tag, returned }));
        return;
      case "basic.nack":
        this.#settle(values, ({ reject }) => reject(new AmqpError("The server rejected the message (basic.nack).")));
        return;
      case "basic.cancel":
        tell(this.#consumers.get(values.consumerTag)?.oncancel);
        this.#consumers.delete(values.consumerTag);
        return;
      case "channel.close":
        this.#method("channel.close-ok");
        this.end(new AmqpError(values.text, values.code));
        return;
    }
    const answer = this.#answers.shift();
    if (answer?.name !== name) throw new RangeError(`${name} at this point`);
    answer.resolve(values);
  }

  /** A confirm settles one publish, or all publishes up to it. */
  #settle({ deliveryTag, multiple }, outcome) {
    for (const [tag, publish] of this.#unconfirmed) {
      if (tag > deliveryTag) break;
      if (tag < deliveryTag && !multiple) continue;
      this.#unconfirmed.delete(tag);
      outcome(publish, tag);
    }
  }

  #contentHeader({ bodySize, properties }) {
    if (!this.#incoming) throw new RangeError("a message's header without its method");
    Object.assign(this.#incoming, { bodySize, properties, parts: [], received: 0 });
    this.#passOnIfWhole();
  }

  #contentBody(bytes) {
    const incoming = this.#incoming;
    if (!incoming?.parts) throw new RangeError("a message's body without its header");
    incoming.parts.push(bytes);
    incoming.received += bytes.length;
    if (incoming.received > incoming.bodySize) throw new RangeError("a message longer than it was said to be");
    this.#passOnIfWhole();
  }

  #passOnIfWhole() {
    const { name, values, properties, parts, received, bodySize } = this.#incoming;
    if (received < bodySize) return;
    this.#incoming = null;
    if (name === "basic.deliver") {
      const message = new Message(values, properties, join(parts, bodySize));
      tell(this.#consumers.get(values.consumerTag)?.onmessage, message);
      return;
    }
    for (const publish of this.#unconfirmed.values()) {
      if (publish.messageId !== properties.messageId || publish.returned) continue;
      publish.returned = { code: values.code, text: values.text };
      return;
    }
  }

  async #call(name, values, answer) {
    this.#method(name, values);
    const waiting = deferred();
    this.#answers.push({ name: answer, ...waiting });
    return waiting.promise;
  }

  #method(name, values) {
    this.#send(METHOD, writeMethod(name, values));
  }

  #send(type, payload) {
    if (this.#error !== undefined) throw this.#error ?? closedError();
    this.#connection.send(type, payload);
  }
}

/** A delivered message. */
export class Message {
  constructor({ deliveryTag, redelivered, exchange, routingKey }, properties, body) {
    Object.assign(this, { deliveryTag, redelivered, exchange, routingKey, properties, body });
  }

  /** The body as text; null if it is not UTF-8. */
  text() {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(this.body);
    } catch {
      return null;
    }
  }
}

function closedError() {
  return new AmqpError("The channel is closed.");
}

function join(parts, length) {
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
