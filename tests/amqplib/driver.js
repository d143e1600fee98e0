// Runs scenarios with amqplib: one JSON request a line on standard input, one JSON answer a line on standard output.
// The first line out lists the scenarios this driver knows. `tests/README.md` describes the protocol.
'use strict';

const readline = require('node:readline');
const { Session } = require('./session');

const SCENARIOS = {
  ...require('./connecting'),
  ...require('./content'),
  ...require('./exchanges'),
  ...require('./publishing'),
  ...require('./consuming'),
  ...require('./settling'),
  ...require('./queues'),
  ...require('./refusals'),
  ...require('./replies'),
  ...require('./retention'),
};

async function main() {
  answer({ scenarios: Object.keys(SCENARIOS).sort() });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { scenario, uri, prefix } = JSON.parse(line);
    answer(await run(scenario, uri, prefix));
  }
}

async function run(scenario, uri, prefix) {
  const session = new Session(uri, prefix);
  try {
    return { scenario, ok: true, observed: await SCENARIOS[scenario](session) };
  } catch (error) {
    return { scenario, ok: false, error: error.stack };
  } finally {
    await session.close();
  }
}

function answer(message) {
  process.stdout.write(JSON.stringify(message) + '\n');
}

main();
