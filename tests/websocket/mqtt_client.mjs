// mqtt.js in Node: `node mqtt_client.mjs MODULE URL PREFIX EXCEPTION…` runs the scenarios of a module; prints what they saw as
// JSON. Exceptions are those that are known to wait in vain, which they then do not do for long.
import { setPatience } from "./mqtt_peer.mjs";

const [module, url, prefix, ...exceptions] = process.argv.slice(2);
// The former as that of the tests that start this (harness/patience.py).
const [PATIENT_MS, IMPATIENT_MS] = [1000 * Number(process.env.LEVERET_PATIENCE ?? 180), 1_000];

const seen = {};
for (const [name, scenario] of Object.entries(await import(module))) {
  const milliseconds = exceptions.includes(name) ? IMPATIENT_MS : PATIENT_MS;
  setPatience(milliseconds);
  // Also of what mqtt.js never answers.
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error("too late")), 2 * milliseconds));
  try {
    seen[name] = await Promise.race([scenario(url, `${prefix}-${name}`), late]);
  } catch (error) {
    seen[name] = { failed: String(error.stack ?? error) };
  }
}
console.log(JSON.stringify(seen));
process.exit(0);
