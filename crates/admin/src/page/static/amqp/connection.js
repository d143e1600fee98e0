// An AMQP 0-9-1 connection inside of a WebSocket, for browsers. No dependencies; open it and go:
//
//   const connection = await Connection.open("ws://127.0.0.1:15670/", { user: "guest", password: "guest" });
//   const channel = await connection.openChannel();
//   const { queue } = await channel.declareQueue("", { exclusive: true });
//   await channel.consume(queue, (message) => { console.log(message.text()); channel.ack(message); });
//   await channel.confirmSelect();
//   await channel.publish("", queue, "hello");       // resolves once the server has confirmed it
//   await connection.close();
//
// Errors are AmqpErrors. When a connection or channel closes, all pending promises reject with the reason.

import { Channel } from "./channel.js";
import { AmqpError, deferred, tell } from "./errors.js";
import { FrameParser, HEARTBEAT, METHOD, OVERHEAD, PROTOCOL_HEADER, frame } from "./frames.js";
import { readMethod, writeMethod } from "./methods.js";

/** Timeout in milliseconds for opening and for the reply to connection.close. */
const OPEN_TIMEOUT = 15_000;
const CLOSE_TIMEOUT = 5_000;

/** Capabilities of this client. The server reports a wrong password only to clients that announce the first one. */
const CAPABILITIES = {
  authentication_failure_close: true,
  "basic.nack": true,
  "connection.blocked": true,
  consumer_cancel_notify: true,
  publisher_confirms: true,
};

export class Connection {
  /** Called with the reason when the server blocks publishers, and with null when it unblocks them. */
  onblocked = () => {};
  /** Resolves once the connection has closed: with null after `close`, otherwise with the error. */
  closed;
  /** The server's properties: product, version, and so on. */
  serverProperties = {};

  #socket;
  #parser = new FrameParser();
  #opened = deferred();
  #ended = deferred();
  #answer = null;
  #channels = new Map();
  #channelMax = 0;
  #frameMax = 0;
  #heartbeat = null;
  /** Whether anything was received at all, and since the last heartbeat check. */
  #heard = false;
  #heardSince = true;
  #error = undefined;

  /**
   * Opens a connection. Options: `user`, `password`, `vhost` ("/"), `name` (shown to operators), and `heartbeat`,
   * the maximum heartbeat interval in seconds. Browsers throttle the timers of a hidden page to one per minute, so
   * use less than 60 only for pages that stay visible.
   */
  static open(url, { user = "guest", password = "guest", vhost = "/", name, heartbeat = 60 } = {}) {
    let socket;
    try {
      socket = new WebSocket(url);
    } catch (error) {
      return Promise.reject(new AmqpError(`${url} cannot be connected to: ${error.message}`));
    }
    const connection = new Connection(socket, url);
    const timer = setTimeout(() => connection.#fail("The server did not respond in time."), OPEN_TIMEOUT);
    connection.#handshake({ user, password, vhost, name, heartbeat }).then(
      () => connection.#opened.resolve(connection),
      (error) => connection.#fail(error.message, error.code),
    );
    return connection.#opened.promise.finally(() => clearTimeout(timer));
  }

  /** Called by `open` only. */
  constructor(socket, url) {
    this.closed = this.#ended.promise;
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.#socket.send(PROTOCOL_HEADER);
    socket.onmessage = ({ data }) => this.#receive(data);
    // The error event has no details, and a close event follows it.
    socket.onclose = (event) => this.#socketClosed(event, url);
  }

  /** Opens a channel. Channels are cheap, and a channel error closes only that channel. */
  async openChannel() {
    this.#check();
    let id = 1;
    while (this.#channels.has(id)) id += 1;
    if (id > this.#channelMax) throw new AmqpError("No more channels are allowed on this connection.");
    const channel = new Channel(id, this.#frameMax - OVERHEAD, {
      send: (type, payload) => this.#send(type, id, payload),
      ended: () => this.#channels.delete(id),
    });
    this.#channels.set(id, channel);
    await channel.open();
    return channel;
  }

  /** Sends connection.close and waits until the connection is closed. */
  async close() {
    if (this.#error !== undefined) return;
    const timer = setTimeout(() => this.#end(null), CLOSE_TIMEOUT);
    this.#call("connection.close", { code: 200, text: "Goodbye" }, "connection.close-ok").then(
      () => this.#end(null),
      () => {},
    );
    await this.closed;
    clearTimeout(timer);
  }

  async #handshake({ user, password, vhost, name, heartbeat }) {
    const start = await this.#expect("connection.start");
    this.serverProperties = start.serverProperties;
    const clientProperties = { product: "Leveret's page", platform: "Browser", capabilities: CAPABILITIES };
    if (name) clientProperties.connection_name = name;
    const response = `\0${user}\0${password}`;
    this.#method("connection.start-ok", { clientProperties, mechanism: "PLAIN", response, locale: "en_US" });
    const offered = await this.#expect("connection.tune");
    const tuned = {
      // Zero is no limit.
      channelMax: offered.channelMax || 65535,
      frameMax: Math.min(offered.frameMax || Infinity, this.#parser.frameMax),
      heartbeat: Math.min(offered.heartbeat || heartbeat, heartbeat),
    };
    this.#channelMax = tuned.channelMax;
    this.#frameMax = this.#parser.frameMax = tuned.frameMax;
    this.#method("connection.tune-ok", tuned);
    this.#beat(tuned.heartbeat);
    await this.#call("connection.open", { vhost }, "connection.open-ok");
  }

  /** Sends a heartbeat twice per interval, and closes the connection if the server is silent for two intervals. */
  #beat(seconds) {
    if (seconds === 0) return;
    let silentHalves = 0;
    const beat = frame(HEARTBEAT, 0, new Uint8Array(0));
    this.#heartbeat = setInterval(() => {
      silentHalves = this.#heardSince ? 0 : silentHalves + 1;
      this.#heardSince = false;
      if (silentHalves >= 4) this.#fail("Missed heartbeats from the server.");
      else this.#socket.send(beat);
    }, seconds * 500);
  }

  #receive(data) {
    if (this.#error !== undefined) return;
    this.#heard = this.#heardSince = true;
    try {
      if (typeof data === "string") throw new RangeError("the server sent text");
      for (const { type, channel, payload } of this.#parser.push(new Uint8Array(data))) {
        if (type === HEARTBEAT) continue;
        if (channel === 0) this.#handle(readMethod(payload));
        else this.#channels.get(channel)?.receive(type, payload);
        // Nothing after the close is processed.
        if (this.#error !== undefined) return;
      }
    } catch (error) {
      this.#fail(`The server's data is malformed: ${error.message}.`);
    }
  }

  #handle({ name, values }) {
    if (name === "connection.close") {
      this.#method("connection.close-ok");
      this.#fail(values.text, values.code);
    } else if (name === "connection.blocked") {
      tell(this.onblocked, values.reason);
    } else if (name === "connection.unblocked") {
      tell(this.onblocked, null);
    } else if (name === this.#answer?.name) {
      const { resolve } = this.#answer;
      this.#answer = null;
      resolve(values);
    } else {
      throw new RangeError(`${name} at this point`);
    }
  }

  #call(name, values, answer) {
    this.#method(name, values);
    return this.#expect(answer);
  }

  #expect(name) {
    const waiting = deferred();
    this.#answer = { name, ...waiting };
    return waiting.promise;
  }

  #method(name, values) {
    this.#send(METHOD, 0, writeMethod(name, values));
  }

  #send(type, channel, payload) {
    this.#check();
    this.#socket.send(frame(type, channel, payload));
  }

  #check() {
    if (this.#error !== undefined) throw this.#error ?? new AmqpError("The connection is closed.");
  }

  /** The socket has closed: expected after `close`, otherwise the close code says why. */
  #socketClosed({ code, reason }, url) {
    // 1006 means that no close frame arrived; browsers do not reveal the HTTP response to the handshake.
    const message =
      code !== 1006
        ? `The server closed the connection: ${reason || "no reason given"} (WebSocket code ${code}).`
        : !this.#heard
          ? `No connection to ${url}. Either it has no listener, or pages from ${location.origin} are not among the server's ws_origins.`
          : "The connection was lost.";
    this.#fail(message);
  }

  #parserIsFresh() {
    return Object.keys(this.serverProperties).length === 0;
  }

  #fail(message, code) {
    this.#end(new AmqpError(message, code));
  }

  /** Every close ends here; `error` is null after `close`. */
  #end(error) {
    if (this.#error !== undefined) return;
    this.#error = error;
    clearInterval(this.#heartbeat);
    this.#socket.close();
    const reason = error ?? new AmqpError("The connection is closed.");
    this.#answer?.reject(reason);
    for (const channel of [...this.#channels.values()]) channel.end(reason);
    this.#opened.reject(reason);
    this.#ended.resolve(error);
  }
}
