// For Node and for browsers: publishes `count` messages with confirms and consumes them with a prefetch; tells what it saw.
import { AMQPWebSocketClient } from "@cloudamqp/amqp-client";

const PREFETCH = 7;
// Larger than a frame of this client (8 KiB), so that some bodies are split.
const body = (n) => `${n}:${"x".repeat((n * 997) % 20000)}`;

export async function run(url, count) {
  const client = new AMQPWebSocketClient({ url, vhost: "/", username: "guest", password: "guest", frameMax: 8192 });
  const connection = await client.connect();
  const channel = await connection.channel();
  await channel.confirmSelect();
  const queue = await channel.queueDeclare("", { exclusive: true });

  const tags = [];
  for (let n = 0; n < count; n++) {
    tags.push(channel.basicPublish("", queue.name, body(n), { deliveryMode: 2, messageId: String(n) }));
  }
  const confirmed = (await Promise.all(tags)).filter((tag) => tag > 0).length;

  const other = await connection.channel();
  await other.basicQos(PREFETCH);
  const seen = [];
  let mostUnsettled = 0;
  let unsettled = 0;
  await new Promise((resolve, reject) => {
    client.onerror = reject;
    other
      .basicConsume(queue.name, { noAck: false }, async (message) => {
        unsettled += 1;
        mostUnsettled = Math.max(mostUnsettled, unsettled);
        const n = seen.length;
        seen.push(message.bodyString() === body(n) && message.properties.messageId === String(n));
        // Later, so that deliveries would gather if the prefetch did not hold them.
        setTimeout(async () => {
          unsettled -= 1;
          await message.ack();
          if (seen.length === count && unsettled === 0) resolve();
        }, 1);
      })
      .catch(reject);
  });
  await client.close();
  return { confirmed, received: seen.filter(Boolean).length, prefetch: mostUnsettled };
}
