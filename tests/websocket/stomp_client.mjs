// @stomp/stompjs in Node: `node --experimental-websocket stomp_client.mjs URL QUEUE`; prints what it saw as JSON.
import { Client } from "@stomp/stompjs";

const [url, queue] = process.argv.slice(2);
const seen = { errors: [] };

// Not UTF-8, with NULs in it.
const octets = Uint8Array.from({ length: 256 }, (_, i) => i);

const client = new Client({
  brokerURL: url,
  connectHeaders: { login: "guest", passcode: "guest", host: "/" },
  reconnectDelay: 0,
  heartbeatIncoming: 0,
  heartbeatOutgoing: 0,
});

const receipt = (id) => new Promise((resolve) => client.watchForReceipt(id, resolve));
const messages = [];
let told;
const message = () => new Promise((resolve) => (messages.length ? resolve(messages.shift()) : (told = resolve)));

function heard(frame) {
  if (told) {
    told(frame);
    told = undefined;
  } else {
    messages.push(frame);
  }
}

async function run() {
  seen.version = client.connectedVersion;
  seen.protocol = client.webSocket.protocol;
  const subscription = client.subscribe(`/queue/${queue}`, heard, { ack: "client-individual", receipt: "subscribed" });
  await receipt("subscribed");
  client.publish({ destination: `/queue/${queue}`, body: "größe", headers: { "x-own": "a:b\nc", receipt: "text" } });
  await receipt("text");
  const text = await message();
  seen.text = { body: text.body, own: text.headers["x-own"] };
  text.ack();
  client.publish({ destination: `/queue/${queue}`, binaryBody: octets, headers: { receipt: "octets" } });
  await receipt("octets");
  const binary = await message();
  seen.octets = binary.binaryBody.length === 256 && binary.binaryBody.every((octet, i) => octet === octets[i]);
  binary.nack();
  const again = await message();
  seen.redelivered = again.headers.redelivered;
  again.ack();
  const transaction = client.begin();
  client.publish({ destination: `/queue/${queue}`, body: "committed", headers: { transaction: transaction.id } });
  transaction.commit();
  const committed = await message();
  seen.committed = committed.body;
  committed.ack();
  const large = "x".repeat(1_000_000);
  client.publish({ destination: `/queue/${queue}`, body: large });
  const got = await message();
  seen.large = got.body === large;
  got.ack();
  subscription.unsubscribe();
  await client.deactivate();
  console.log(JSON.stringify(seen));
  process.exit(0);
}

client.onConnect = run;
client.onStompError = (frame) => {
  console.error(frame.headers.message, frame.body);
  process.exit(1);
};
client.onWebSocketError = (error) => {
  console.error(error.message ?? error);
  process.exit(1);
};
client.activate();
