// mqtt.js in Node: `node mqtt_client.mjs MODULE URL PREFIX` runs the scenarios of a module; prints what they saw as JSON.
const [module, url, prefix] = process.argv.slice(2);

const seen = {};
for (const [name, scenario] of Object.entries(await import(module))) {
  try {
    seen[name] = await scenario(url, `${prefix}-${name}`);
  } catch (error) {
    seen[name] = { failed: String(error.stack ?? error) };
  }
}
console.log(JSON.stringify(seen));
process.exit(0);
