// @stomp/stompjs, for Node and for browsers: texts, bytes, nack, a transaction and a large message; tells what it saw.
import { Client } from "@stomp/stompjs";

// Not UTF-8, with NULs in it.
const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);

export function run(url, queue) {
  return new Promise((resolve, reject) => {
    const client = new Client({
      brokerURL: url,
      connectHeaders: { login: "guest", passcode: "guest", host: "/" },
      reconnectDelay: 0,
      heartbeatIncoming: 0,
      heartbeatOutgoing: 0,
    });
    client.onConnect = () => converse(client, queue).then(resolve, reject);
    client.onStompError = (frame) => reject(new Error(`${frame.headers.message} ${frame.body}`));
    client.onWebSocketError = (error) => reject(new Error(error.message ?? "the WebSocket failed"));
    client.activate();
  });
}

async function converse(client, queue) {
  const seen = { errors: [], version: client.connectedVersion, protocol: client.webSocket.protocol };
  const messages = [];
  let told;
  const message = () => new Promise((resolve) => (messages.length ? resolve(messages.shift()) : (told = resolve)));
  const heard = (frame) => {
    if (told) {
      told(frame);
      told = undefined;
    } else {
      messages.push(frame);
    }
  };
  const receipt = (id) => new Promise((resolve) => client.watchForReceipt(id, resolve));

  const destination = `/queue/${queue}`;
  const subscription = client.subscribe(destination, heard, { ack: "client-individual", receipt: "subscribed" });
  await receipt("subscribed");
  client.publish({ destination, body: "größe", headers: { "x-own": "a:b\nc", receipt: "text" } });
  await receipt("text");
  const text = await message();
  seen.text = { body: text.body, own: text.headers["x-own"] };
  text.ack();
  client.publish({ destination, binaryBody: bytes, headers: { receipt: "bytes" } });
  await receipt("bytes");
  const binary = await message();
  seen.bytes = binary.binaryBody.length === 256 && binary.binaryBody.every((byte, i) => byte === bytes[i]);
  binary.nack();
  const again = await message();
  seen.redelivered = again.headers.redelivered;
  again.ack();
  const transaction = client.begin();
  client.publish({ destination, body: "committed", headers: { transaction: transaction.id } });
  transaction.commit();
  const committed = await message();
  seen.committed = committed.body;
  committed.ack();
  const large = "x".repeat(1_000_000);
  client.publish({ destination, body: large });
  const got = await message();
  seen.large = got.body === large;
  got.ack();
  subscription.unsubscribe();
  await client.deactivate();
  return seen;
}
