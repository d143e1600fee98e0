// Recent measurements, for as long as this page is open: the sparklines' points.

/** Maximum number of points: five minutes at one every five seconds. */
const POINTS = 60;

export class Series {
  /** Oldest first. */
  points = [];

  push(value) {
    if (typeof value !== "number" || !Number.isFinite(value)) return;
    this.points.push(value);
    if (this.points.length > POINTS) this.points.shift();
  }

  /** Adds points that the server recorded before this page was opened. */
  seed(points) {
    if (this.points.length === 0) points.slice(-POINTS).forEach((point) => this.push(point));
  }

  get last() {
    return this.points.at(-1);
  }
}

/** The query for recent samples of RabbitMQ's API, at the interval of this page. */
export const LATELY = { msg_rates_age: 300, msg_rates_incr: 5, lengths_age: 300, lengths_incr: 5 };

/** Past rates per second of a counter from its samples, which come newest first; the caller adds the current rate. */
export function ratesBefore(stats, counter) {
  const samples = (stats?.[`${counter}_details`]?.samples ?? []).toReversed();
  const steps = samples.slice(1).map(({ sample, timestamp }, at) => {
    const before = samples[at];
    return Math.max(0, ((sample - before.sample) * 1000) / (timestamp - before.timestamp));
  });
  return steps.slice(0, -1);
}

/** Past values of a gauge, in the same way. */
export function levelsBefore(stats, number) {
  const samples = (stats?.[`${number}_details`]?.samples ?? []).toReversed();
  return samples.map(({ sample }) => sample).slice(0, -1);
}

/** Named series, which are not reset when the view changes. */
export class History {
  #series = new Map();
  #counters = new Map();

  series(name) {
    if (!this.#series.has(name)) this.#series.set(name, new Series());
    return this.#series.get(name);
  }

  gauge(name, value) {
    this.series(name).push(value);
  }

  /** Turns a counter into a rate per second. The first value gives no rate; a value that decreased was reset. */
  counter(name, value, now) {
    const before = this.#counters.get(name);
    if (typeof value !== "number") return;
    this.#counters.set(name, { value, now });
    if (before && now > before.now && value >= before.value) {
      this.series(name).push(((value - before.value) * 1000) / (now - before.now));
    }
  }
}
