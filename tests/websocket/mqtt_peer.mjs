// A client of mqtt.js with what scenarios wait for; for Node and for browsers.
import mqtt from "mqtt";

// For as long as whoever runs the scenarios says.
let patience_ms = 60_000;

export const setPatience = (milliseconds) => (patience_ms = milliseconds);

export const bytes = (text) => new TextEncoder().encode(text);
export const text = (payload) => new TextDecoder().decode(payload);

// Things that arrive, in order, for whoever waits for them.
class Arrivals {
  constructor() {
    this.things = [];
    this.waiting = [];
  }

  add(thing) {
    const waiting = this.waiting.shift();
    waiting ? waiting(thing) : this.things.push(thing);
  }

  next(what) {
    if (this.things.length) return Promise.resolve(this.things.shift());
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`waited in vain for ${what}`)), patience_ms);
      this.waiting.push((thing) => {
        clearTimeout(timer);
        resolve(thing);
      });
    });
  }
}

export class Peer {
  // Connects; `options` are those of mqtt.js.
  static async connect(url, options = {}) {
    const peer = new Peer();
    peer.client = mqtt.connect(url, {
      protocolVersion: 4,
      username: "guest",
      password: "guest",
      reconnectPeriod: 0,
      connectTimeout: patience_ms,
      ...options,
    });
    peer.messages = new Arrivals();
    peer.closed = new Arrivals();
    peer.disconnects = new Arrivals();
    peer.packets = new Arrivals();
    peer.client.on("message", (topic, payload, packet) => peer.messages.add({ topic, payload, packet }));
    peer.client.on("close", () => peer.closed.add("closed"));
    peer.client.on("disconnect", (packet) => peer.disconnects.add(packet));
    peer.client.on("packetreceive", (packet) => peer.packets.add(packet));
    peer.connack = await new Promise((resolve, reject) => {
      peer.client.once("connect", resolve);
      peer.client.once("error", reject);
      peer.client.once("close", () => reject(new Error("closed before CONNACK")));
    });
    // Later errors show in what does not arrive.
    peer.client.on("error", () => {});
    return peer;
  }

  // What CONNACK says to a client that is not let in.
  static async refused(url, options) {
    try {
      (await Peer.connect(url, options)).end();
      return "let in";
    } catch (error) {
      return error.code ?? "closed";
    }
  }

  async subscribe(topic, qos = 1, properties = {}) {
    const { identifier, ...options } = properties;
    const more = identifier ? { properties: { subscriptionIdentifier: identifier } } : {};
    const granted = await this.client.subscribeAsync(topic, { qos, ...options, ...more });
    return granted.map((grant) => grant.qos);
  }

  // Returns when it is acknowledged, at QoS 0 when it is sent; the acknowledgement.
  publish(topic, payload, qos = 1, options = {}) {
    return this.client.publishAsync(topic, payload, { qos, ...options });
  }

  async message() {
    const { topic, payload, packet } = await this.messages.next(`a message for ${this.client.options.clientId}`);
    return { topic, payload: text(payload), qos: packet.qos, retain: packet.retain, dup: packet.dup };
  }

  // With its properties.
  async whole() {
    const { topic, payload, packet } = await this.messages.next("a message");
    return { topic, payload, qos: packet.qos, retain: packet.retain, properties: packet.properties ?? {} };
  }

  // Everything that has come before an answer to PINGREQ: what a server had to send is then there.
  async all() {
    const name = `all/${this.client.options.clientId}`;
    await this.subscribe(name, 1);
    await this.publish(name, "end", 1);
    const all = [];
    for (;;) {
      const message = await this.message();
      if (message.topic === name) return all;
      all.push(message);
    }
  }

  async packet(kind) {
    for (;;) {
      const packet = await this.packets.next(kind);
      if (packet.cmd === kind) return packet;
    }
  }

  // Goes without a word.
  async vanish() {
    this.client.stream.destroy();
    await this.closed.next("the end");
    await this.client.endAsync(true);
  }

  end() {
    return this.client.endAsync();
  }
}
