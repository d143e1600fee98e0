// The server's own metrics (`/metrics`, Prometheus' text format): what kind of server this is, and values that
// RabbitMQ's API lacks.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** The current metrics; null if the server has none. */
export async function readMetrics(signal) {
  const response = await fetch("/metrics", { credentials: "omit", cache: "no-store", signal });
  return response.ok ? new Metrics(await response.text()) : null;
}

export class Metrics {
  #samples = new Map();

  constructor(text) {
    for (const line of text.split("\n")) {
      const [, name, labels = "", value] = SAMPLE.exec(line) ?? [];
      if (name === undefined) continue;
      const sample = { labels: readLabels(labels), value: Number(value) };
      if (this.#samples.has(name)) this.#samples.get(name).push(sample);
      else this.#samples.set(name, [sample]);
    }
  }

  /** A metric without labels; undefined if there is none. */
  value(name) {
    return this.#samples.get(name)?.[0].value;
  }

  /** All samples of a metric: `{ labels, value }`. */
  samples(name) {
    return this.#samples.get(name) ?? [];
  }

  /** Whether the process stands in front of another broker rather than being one. */
  get isProxy() {
    return this.#samples.has("leveret_upstream_up");
  }
}

function readLabels(text) {
  const unescaped = (value) => value.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) => [name, unescaped(value)]));
}
