// @stomp/stompjs in Node: `node --experimental-websocket stomp_client.mjs URL QUEUE`; prints what it saw as JSON.
import { run } from "./stomp_conversation.mjs";

const [url, queue] = process.argv.slice(2);
try {
  console.log(JSON.stringify(await run(url, queue)));
  process.exit(0);
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
