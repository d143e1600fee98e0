// Samples the statistics of the whole server every few seconds, whichever view is open, so that the sparklines of the
// overview have no gaps.

import { rateOf } from "./format.js";
import { History, LATELY, levelsBefore, ratesBefore } from "./history.js";
import { readMetrics } from "./metrics.js";

/** Counters of the API's message_stats that have sparklines. */
const RATES = ["publish", "confirm", "deliver_get", "ack", "return_unroutable"];
const QUEUED = ["messages_ready", "messages_unacknowledged", "messages"];
const PROXIED = {
  sent: "leveret_upstream_sent_messages_total",
  received: "leveret_upstream_received_messages_total",
  spared: "leveret_upstream_round_trips_saved_total",
};

export class Sampler {
  history = new History();
  /** The previous responses; null before the first, and for what this user may not see. */
  overview = null;
  nodes = [];
  metrics = null;

  #session;

  constructor(session, metrics) {
    this.#session = session;
    this.metrics = metrics;
  }

  get isProxy() {
    return this.metrics?.isProxy ?? false;
  }

  async take(signal) {
    await (this.isProxy ? this.#takePool(signal) : this.#takeBroker(signal));
  }

  async #takePool(signal) {
    const { api } = this.#session;
    [this.overview, this.metrics] = await Promise.all([
      this.#session.may("monitoring") ? api.get(["overview"], {}, signal) : null,
      readMetrics(signal),
    ]);
    const now = performance.now();
    for (const [name, metric] of Object.entries(PROXIED)) this.history.counter(name, this.metrics.value(metric), now);
  }

  async #takeBroker(signal) {
    const { api } = this.#session;
    [this.overview, this.nodes, this.metrics] = await Promise.all([
      api.get(["overview"], this.overview ? {} : LATELY, signal),
      this.#session.may("monitoring") ? api.get(["nodes"], {}, signal) : [],
      this.metrics && readMetrics(signal),
    ]);
    const { message_stats: stats = {}, queue_totals: queued = {} } = this.overview;
    for (const name of RATES) this.history.series(name).seed(ratesBefore(stats, name));
    for (const name of QUEUED) this.history.series(name).seed(levelsBefore(queued, name));
    for (const name of RATES) this.history.gauge(name, rateOf(stats, name) ?? 0);
    for (const name of QUEUED) this.history.gauge(name, queued[name] ?? 0);
  }
}
