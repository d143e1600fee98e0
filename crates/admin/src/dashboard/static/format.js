// Numbers and names in words for people.

/** In place of a figure that there is not. */
const NOTHING = "–";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A count with all its digits. */
export function count(value) {
  return isNumber(value) ? WHOLE.format(value) : NOTHING;
}

/** A count in little room, such as 1.2M. */
export function short(value) {
  if (!isNumber(value)) return NOTHING;
  return Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value);
}

/** What happens in a second. */
export function rate(value) {
  if (!isNumber(value)) return NOTHING;
  return `${value < 10 ? FINE.format(value) : short(value)}/s`;
}

/** Bytes in binary units. */
export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? rest : FINE.format(rest)} ${UNITS[unit]}`;
}

/** Milliseconds as the two largest units. */
export function duration(milliseconds) {
  if (!isNumber(milliseconds)) return NOTHING;
  const seconds = Math.floor(milliseconds / 1000);
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3_600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first === -1) return "0 s";
  const told = parts.slice(first, first + 2).filter(([amount]) => amount > 0);
  return told.map(([amount, unit]) => `${amount} ${unit}`).join(" ");
}

/** A share of a whole in percent. */
export function percent(part, whole) {
  return whole > 0 ? `${FINE.format((100 * part) / whole)} %` : NOTHING;
}

/** The default exchange has no name; people call it by this one. */
export function exchangeName(name) {
  return name === "" ? "(AMQP default)" : name;
}

/** What sets a queue or exchange apart, as short words. */
export function features(thing) {
  const words = [];
  if (thing.durable) words.push("durable");
  if (thing.exclusive || thing.owner_pid_details) words.push("exclusive");
  if (thing.auto_delete) words.push("auto-delete");
  if (thing.internal) words.push("internal");
  for (const key of Object.keys(thing.arguments ?? {})) words.push(key);
  return words;
}

/** A value of an argument or header: JSON, but for texts, which stand for themselves. */
export function value(any) {
  return typeof any === "string" ? any : JSON.stringify(any);
}

/** The present rate of a counter of the API, such as "publish" of a queue's message_stats. */
export function rateOf(stats, counter) {
  return stats?.[`${counter}_details`]?.rate;
}

/** Words that tell something; null for those that do not. */
export function known(words) {
  return words === NOTHING ? null : words;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
