// Publishes a number of messages at QoS 1 with MQTT 5.0 without waiting for any, as applications do, and prints how many were
// acknowledged on the connection that they were sent on.
import mqtt from "mqtt";

const [url, count] = [process.argv[2], Number(process.argv[3])];
const client = mqtt.connect(url, { protocolVersion: 5, username: "guest", password: "guest", reconnectPeriod: 0 });
client.on("disconnect", (packet) => fail(`disconnected: ${packet.reasonCode}`));
client.on("error", fail);
client.on("connect", async () => {
  const all = [];
  for (let number = 0; number < count; number += 1) all.push(client.publishAsync("burst", `${number}`, { qos: 1 }));
  await Promise.all(all);
  console.log(all.length);
  await client.endAsync();
});

function fail(error) {
  console.error(error);
  process.exit(1);
}
