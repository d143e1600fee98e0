// The client that browsers use, in Node: `node --experimental-websocket amqp_client.mjs URL COUNT`; prints what it saw as JSON.
import { run } from "./confirms_and_prefetch.mjs";

console.log(JSON.stringify(await run(process.argv[2], Number(process.argv[3]))));
