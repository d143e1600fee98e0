// Formats numbers and names for display.

/** Stands for a missing value. */
const NOTHING = "–";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A count with all its digits. */
export function count(value) {
  return isNumber(value) ? WHOLE.format(value) : NOTHING;
}

/** A compact count, such as 1.2M. */
export function short(value) {
  if (!isNumber(value)) return NOTHING;
  return Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value);
}

/** A rate per second. */
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

/** The name of the default exchange in RabbitMQ's UI; its actual name is empty. */
export function exchangeName(name) {
  return name === "" ? "(AMQP default)" : name;
}

/** Attributes of queues and exchanges: the field of the API, its abbreviation in RabbitMQ's UI, and its meaning. */
const ATTRIBUTES = [
  ["durable", "D", "durable"],
  ["auto_delete", "AD", "auto-delete"],
  ["internal", "I", "internal"],
  ["exclusive", "Excl", "exclusive"],
];
/** Likewise the optional arguments of queues and exchanges, with the unit of their value. */
const ARGUMENTS = [
  ["alternate-exchange", "AE", "alternate exchange"],
  ["x-message-ttl", "TTL", "message TTL", " ms"],
  ["x-expires", "Exp", "deleted when unused for", " ms"],
  ["x-max-length", "Lim", "max length", " messages"],
  ["x-max-length-bytes", "Lim B", "max length", " bytes"],
  ["x-overflow", "Ovfl", "overflow behaviour"],
  ["x-dead-letter-exchange", "DLX", "dead letter exchange"],
  ["x-dead-letter-routing-key", "DLK", "dead letter routing key"],
  ["x-max-priority", "Pri", "maximum priority"],
  ["x-single-active-consumer", "SAC", "single active consumer"],
];

/** The attributes of a queue or exchange in words. */
export function attributes(thing) {
  return attributesOf(thing).map(([, , meaning]) => meaning);
}

/** Features as in RabbitMQ's lists: badges with an abbreviation and its meaning as the title, and the policy's name. */
export function features(thing) {
  const { arguments: given = {}, policy } = thing;
  const told = (key) => value(given[key]);
  const known = ARGUMENTS.filter(([key]) => Object.hasOwn(given, key));
  const others = Object.keys(given).filter((key) => !known.some(([each]) => each === key));
  return [
    ...attributesOf(thing).map(([, short, meaning]) => [short, "", meaning]),
    ...known.map(([key, short, meaning, unit = ""]) => [short, "", `${meaning}: ${told(key)}${unit}`]),
    ...(others.length > 0 ? [["Args", "", others.map((key) => `${key}: ${told(key)}`).join(", ")]] : []),
    ...(policy ? [[policy, "good", `policy: ${policy}`]] : []),
  ];
}

function attributesOf(thing) {
  const is = { ...thing, exclusive: thing.exclusive || thing.owner_pid_details };
  return ATTRIBUTES.filter(([key]) => is[key]);
}

/** A value of an argument or header: JSON, but for texts, which stand for themselves. */
export function value(any) {
  return typeof any === "string" ? any : JSON.stringify(any);
}

/** The current rate of a counter of the API, such as "publish" of a queue's message_stats. */
export function rateOf(stats, counter) {
  return stats?.[`${counter}_details`]?.rate;
}

/** The text, or null if it is the placeholder for a missing value. */
export function known(words) {
  return words === NOTHING ? null : words;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
