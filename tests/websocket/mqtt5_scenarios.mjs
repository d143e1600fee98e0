// What MQTT 5.0 clients observe: each function is called with a URL and a prefix of its own and returns what it saw.
import { Peer, bytes, text } from "./mqtt_peer.mjs";

const connect = (url, { properties, ...options } = {}) => Peer.connect(url, { protocolVersion: 5, properties, ...options });

export async function properties(url, prefix) {
  const [writer, reader] = [await connect(url), await connect(url)];
  await reader.subscribe(`${prefix}/p`);
  const sent = {
    contentType: "application/json",
    responseTopic: "answers/me",
    correlationData: bytes("\u00ff\0"),
    payloadFormatIndicator: true,
    messageExpiryInterval: 1000,
    userProperties: { a: ["1", "2"], b: "3" },
  };
  const correlationData = globalThis.Buffer ? Buffer.from(sent.correlationData) : sent.correlationData;
  await writer.publish(`${prefix}/p`, "{}", 1, { properties: { ...sent, correlationData } });
  const { properties: came } = await reader.whole();
  await writer.end();
  await reader.end();
  return {
    contentType: came.contentType,
    responseTopic: came.responseTopic,
    correlationData: [...came.correlationData],
    payloadFormatIndicator: came.payloadFormatIndicator,
    expires: came.messageExpiryInterval > 0 && came.messageExpiryInterval <= 1000,
    userProperties: { ...came.userProperties },
  };
}

export async function reason_codes(url, prefix) {
  const peer = await connect(url);
  await peer.publish(`${prefix}/nobody`, "x");
  const puback = await peer.packet("puback");
  await peer.publish(`${prefix}/nobody`, "x", 2);
  const pubrec = await peer.packet("pubrec");
  peer.client.unsubscribe(`${prefix}/never`);
  const unsuback = await peer.packet("unsuback");
  await peer.end();
  const wrong = await Peer.refused(url, { protocolVersion: 5, password: "wrong" });
  return { puback: puback.reasonCode, pubrec: pubrec.reasonCode, unsuback: [...unsuback.granted], wrong };
}

export async function topic_aliases(url, prefix) {
  const aliases = { autoAssignTopicAlias: true, properties: { topicAliasMaximum: 5 } };
  const [writer, reader] = [await connect(url, aliases), await connect(url, aliases)];
  await reader.subscribe(`${prefix}/#`);
  const topics = ["a", "b", "a", "b", "a"];
  for (const topic of topics) await writer.publish(`${prefix}/a/long/topic/to/be/said/once/${topic}`, topic);
  const seen = [];
  for (const _ of topics) seen.push((await reader.message()).topic.slice(-1));
  const offered = writer.connack.properties.topicAliasMaximum > 0;
  await writer.end();
  await reader.end();
  return { seen, offered };
}

export async function receive_maximum(url, prefix) {
  // One at a time: the next comes when the one before is acknowledged.
  const [writer, reader] = [await connect(url), await connect(url, { properties: { receiveMaximum: 1 } })];
  await reader.subscribe(`${prefix}/#`, 2);
  for (let number = 0; number < 20; number++) await writer.publish(`${prefix}/x`, `${number}`, 1 + (number % 2));
  let inOrder = 0;
  for (let number = 0; number < 20; number++) inOrder += (await reader.message()).payload === `${number}`;
  await writer.end();
  await reader.end();
  return { inOrder };
}

export async function shared_subscriptions(url, prefix) {
  const workers = [await connect(url), await connect(url)];
  for (const worker of workers) await worker.subscribe(`$share/group/${prefix}/jobs/#`);
  const writer = await connect(url);
  for (let number = 0; number < 20; number++) await writer.publish(`${prefix}/jobs/1`, `${number}`);
  const shares = [await workers[0].all(), await workers[1].all()];
  await Promise.all([writer.end(), ...workers.map((worker) => worker.end())]);
  const payloads = new Set(shares.flat().map(({ payload }) => payload));
  return { each: payloads.size, all: shares.flat().length, both: shares.every((share) => share.length > 0) };
}

export async function subscription_options(url, prefix) {
  const peer = await connect(url);
  await peer.publish(`${prefix}/kept`, "kept", 1, { retain: true });
  await peer.subscribe(`${prefix}/own`, 1, { nl: true });
  await peer.publish(`${prefix}/own`, "own");
  await peer.subscribe(`${prefix}/kept`, 1, { rh: 2 });
  const unasked = await peer.all();
  await peer.subscribe(`${prefix}/#`, 1, { identifier: 7, rap: true });
  const { payload, retain, properties: came } = await peer.whole();
  await peer.publish(`${prefix}/kept`, "again", 1, { retain: true });
  const live = await peer.message();
  await peer.end();
  const identifiers = [came.subscriptionIdentifier].flat();
  return { unasked, payload: text(payload), retain, identifiers, live: live.retain };
}

export async function session_expiry(url, prefix) {
  const options = (seconds) => ({ clientId: `${prefix}-s`, clean: false, properties: { sessionExpiryInterval: seconds } });
  const first = await connect(url, options(60));
  await first.subscribe(`${prefix}/#`);
  await first.end();
  const second = await connect(url, options(60));
  // From now on it goes with its connection.
  await second.client.endAsync(false, { reasonCode: 0, properties: { sessionExpiryInterval: 0 } });
  const third = await connect(url, options(0));
  await third.end();
  return { present: [first, second, third].map(({ connack }) => connack.sessionPresent) };
}

export async function takeover_is_told(url, prefix) {
  const first = await connect(url, { clientId: `${prefix}-me` });
  const second = await connect(url, { clientId: `${prefix}-me` });
  const { reasonCode } = await first.disconnects.next("DISCONNECT");
  await second.end();
  return { reasonCode };
}

export async function maximum_packet_size(url, prefix) {
  const [writer, reader] = [await connect(url), await connect(url, { properties: { maximumPacketSize: 500 } })];
  await reader.subscribe(`${prefix}/#`);
  await writer.publish(`${prefix}/x`, "x".repeat(600));
  await writer.publish(`${prefix}/x`, "small");
  const { payload } = await reader.message();
  await writer.end();
  await reader.end();
  return { payload };
}

export async function will_delay(url, prefix) {
  const heir = await connect(url);
  await heir.subscribe(`${prefix}/#`);
  const mortal = async (name, clean) => {
    const will = { topic: `${prefix}/${name}`, payload: bytes(name), qos: 1, retain: false, properties: { willDelayInterval: 3600 } };
    const options = { clientId: `${prefix}-${name}`, clean: false, properties: { sessionExpiryInterval: 3600 } };
    await (await connect(url, { ...options, will })).vanish();
    await heir.publish(`${prefix}/first`, `before ${name}`);
    // Who comes back takes the will back; who comes as somebody new ends the session, and so the delay.
    await (await connect(url, { ...options, clean })).end();
  };
  await mortal("resumed", false);
  await mortal("ended", true);
  const order = (await heir.all()).map(({ payload }) => payload);
  await heir.end();
  return { order };
}

export async function request_and_response(url, prefix) {
  const [asker, answerer] = [await connect(url), await connect(url)];
  await answerer.subscribe(`${prefix}/questions`);
  await asker.subscribe(`${prefix}/answers/#`);
  const correlationData = globalThis.Buffer ? Buffer.from("7") : bytes("7");
  await asker.publish(`${prefix}/questions`, "?", 1, { properties: { responseTopic: `${prefix}/answers/me`, correlationData } });
  const { properties: question } = await answerer.whole();
  const { responseTopic, correlationData: id } = question;
  await answerer.publish(responseTopic, "!", 1, { properties: { correlationData: id } });
  const answer = await asker.whole();
  await asker.end();
  await answerer.end();
  return { payload: text(answer.payload), id: text(answer.properties.correlationData) };
}

export async function assigned_name(url) {
  const peer = await connect(url, { clientId: "", clean: true });
  const { assignedClientIdentifier } = peer.connack.properties;
  await peer.end();
  return { given: assignedClientIdentifier.length > 0 };
}
