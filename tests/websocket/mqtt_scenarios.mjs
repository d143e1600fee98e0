// What MQTT 3.1.1 clients observe: each function is called with a URL and a prefix of its own and returns what it saw.
import { Peer, bytes } from "./mqtt_peer.mjs";

const COUNT = 500;

export async function every_quality(url, prefix) {
  const [writer, reader] = [await Peer.connect(url), await Peer.connect(url)];
  const seen = {};
  for (const qos of [0, 1, 2]) {
    const granted = await reader.subscribe(`${prefix}/${qos}/+`, qos);
    await writer.publish(`${prefix}/${qos}/x`, `at ${qos}`, qos);
    const { payload, qos: came, retain } = await reader.message();
    seen[qos] = { granted, payload, came, retain };
  }
  await writer.end();
  await reader.end();
  return seen;
}

export async function wildcards(url, prefix) {
  const [writer, reader] = [await Peer.connect(url), await Peer.connect(url)];
  await reader.subscribe([`${prefix}/+/b`, `${prefix}/deep/#`], 1);
  for (const topic of ["a/b", "a/c", "a/b/c", "deep", "deep/1", "deep/1/2", "b"]) {
    await writer.publish(`${prefix}/${topic}`, topic);
  }
  const seen = (await reader.all()).map(({ payload }) => payload);
  await reader.client.unsubscribeAsync(`${prefix}/+/b`);
  await writer.publish(`${prefix}/a/b`, "unsubscribed");
  await writer.publish(`${prefix}/deep/3`, "deep/3");
  const after = (await reader.all()).map(({ payload }) => payload);
  await writer.end();
  await reader.end();
  return { seen, after };
}

export async function retained(url, prefix) {
  const writer = await Peer.connect(url);
  for (const number of [1, 2]) await writer.publish(`${prefix}/kept`, `${number}`, 1, { retain: true });
  const reader = await Peer.connect(url);
  await reader.subscribe(`${prefix}/kept`);
  const { payload, retain } = await reader.message();
  await writer.publish(`${prefix}/kept`, "3", 1, { retain: true });
  const live = await reader.message();
  await writer.publish(`${prefix}/kept`, "", 1, { retain: true });
  const late = await Peer.connect(url);
  await late.subscribe(`${prefix}/kept`);
  const left = await late.all();
  await Promise.all([writer.end(), reader.end(), late.end()]);
  return { payload, retain, live: { payload: live.payload, retain: live.retain }, left };
}

export async function will(url, prefix) {
  const heir = await Peer.connect(url);
  await heir.subscribe(`${prefix}/#`);
  const options = (name) => ({ will: { topic: `${prefix}/${name}`, payload: bytes("gone"), qos: 1, retain: false } });
  // Who says goodbye leaves none.
  await (await Peer.connect(url, options("polite"))).end();
  await (await Peer.connect(url, options("mortal"))).vanish();
  const { topic, payload } = await heir.message();
  await heir.end();
  return { topic: topic.slice(prefix.length + 1), payload };
}

export async function kept_session(url, prefix) {
  const keeper = { clientId: `${prefix}-keeper`, clean: false };
  const first = await Peer.connect(url, keeper);
  await first.subscribe(`${prefix}/#`);
  await first.end();
  const writer = await Peer.connect(url);
  for (let number = 0; number < 10; number++) await writer.publish(`${prefix}/${number}`, `${number}`);
  const second = await Peer.connect(url, keeper);
  const payloads = [];
  while (payloads.length < 10) payloads.push((await second.message()).payload);
  await second.end();
  const clean = await Peer.connect(url, { ...keeper, clean: true });
  await writer.publish(`${prefix}/later`, "later");
  const left = await clean.all();
  await Promise.all([clean.end(), writer.end()]);
  return {
    present: [first, second, clean].map(({ connack }) => connack.sessionPresent),
    payloads: payloads.sort(),
    left,
  };
}

export async function takeover(url, prefix) {
  const first = await Peer.connect(url, { clientId: `${prefix}-me` });
  const second = await Peer.connect(url, { clientId: `${prefix}-me` });
  const outcome = await first.closed.next("the end of the first");
  await second.subscribe(`${prefix}/t`);
  await second.publish(`${prefix}/t`, "still here");
  const { payload } = await second.message();
  await second.end();
  return { outcome, payload };
}

export async function refusals(url) {
  return {
    password: await Peer.refused(url, { password: "wrong" }),
    vhost: await Peer.refused(url, { username: "nowhere:guest" }),
    named: await Peer.refused(url, { username: "/:guest" }),
  };
}

export async function order_and_size(url, prefix) {
  const [writer, reader] = [await Peer.connect(url), await Peer.connect(url)];
  await reader.subscribe(`${prefix}/#`);
  const sent = [];
  for (let number = 0; number < COUNT; number++) sent.push(writer.publish(`${prefix}/n`, `${number}`));
  await Promise.all(sent);
  let inOrder = 0;
  for (let number = 0; number < COUNT; number++) inOrder += (await reader.message()).payload === `${number}`;
  const large = new Uint8Array(300_000).map((_, at) => (at * 31) % 256);
  await writer.publish(`${prefix}/large`, globalThis.Buffer ? Buffer.from(large) : large);
  const { payload } = await reader.whole();
  const same = payload.length === large.length && large.every((byte, at) => payload[at] === byte);
  await writer.end();
  await reader.end();
  return { inOrder, same };
}

export async function keep_alive(url) {
  const peer = await Peer.connect(url, { keepalive: 1 });
  const { cmd } = await peer.packet("pingresp");
  await peer.end();
  return { cmd };
}

export async function reconnecting(url, prefix) {
  const peer = await Peer.connect(url, { clientId: `${prefix}-back`, reconnectPeriod: 100 });
  await peer.subscribe(`${prefix}/#`);
  const again = new Promise((resolve) => peer.client.once("connect", resolve));
  peer.client.stream.destroy();
  await again;
  // It subscribes again by itself, before what it publishes now.
  await peer.publish(`${prefix}/x`, "after");
  const { payload } = await peer.message();
  await peer.end();
  return { payload };
}
