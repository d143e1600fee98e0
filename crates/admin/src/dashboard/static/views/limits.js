// The limits on clients and on the pool: how much of each is in use, and how often it was reached; and the button that
// drains this server.

import { button, el, setChildren } from "../dom.js";
import { bytes, count, rate } from "../format.js";
import { ask } from "../parts/dialog.js";
import { bar, section } from "../parts/figures.js";
import { Table, badge } from "../parts/table.js";

/** By the API's names: label, format, and for rates the counter whose growth is the current value. */
const KINDS = [
  ["connections", "Connections", count, null],
  ["connection_rate", "New connections", rate, "rabbitmq_connections_opened_total"],
  ["channels", "Channels", count, null],
  ["receive_rate", "Bytes received", (value) => `${bytes(Math.round(value))}/s`, "leveret_received_bytes_total"],
];
const SCOPES = [
  ["total", (kind) => `Total ${kind[0].toLowerCase()}${kind.slice(1)}`, ""],
  ["per_ip", (kind) => `${kind} from one address`, "_per_ip"],
  ["per_user", (kind) => `${kind} of one user`, "_per_user"],
];
const OF_THE_POOL = [
  ["connections", "Upstream connections", count],
  ["replay_bytes", "Unconfirmed bytes", bytes],
];

const MODES = {
  enforce: [["enforced", "good"], "Clients above a limit are refused or delayed."],
  alarm: [["alarm only", "wait"], "Clients above a limit are counted and logged, but not refused."],
};

export function limits({ api, session, sampler }) {
  const mode = el("p", { class: "verdict" });
  const bars = barsByKey();
  const none = el("p", {}, "No limit is set on clients.");
  const table = new Table({
    caption: "Client limits",
    key: (each) => each.title,
    columns: [
      { title: "Name", text: (each) => each.title },
      { title: "In use", number: true, text: (each) => (each.value === undefined ? "–" : each.words(each.value)) },
      { title: "Limit", number: true, text: (each) => (each.most === null ? "no limit" : each.words(each.most)) },
      { title: "Exceeded", number: true, text: (each) => count(each.exceeded) },
    ],
  });
  const ofPool = barsByKey();
  const element = el(
    "div",
    { class: "stack" },
    section("Configured limits", mode, bars.element, none),
    section("Pool limits", ofPool.element),
    section("Client limits", el("div", { class: "scroll" }, table.element)),
  );
  const rates = ratesOf(sampler);
  let shownMode = "";
  const refresh = async (signal) => {
    const reported = await api.get(["leveret", "limits"], {}, signal);
    const rows = rowsOf(reported, rates());
    if (reported.mode !== shownMode) {
      shownMode = reported.mode;
      const [word, meaning] = MODES[reported.mode] ?? [reported.mode, ""];
      setChildren(mode, [badge(word), el("span", {}, meaning)]);
    }
    const set = rows.filter(({ most, value }) => most !== null && value !== undefined);
    bars.update(set);
    none.hidden = rows.some(({ most }) => most !== null);
    ofPool.update(OF_THE_POOL.map(([key, title, words]) => ({ title, words, ...read(reported.upstream?.[key]) })));
    table.show(rows);
  };
  const actions = session.may("administrator") ? [button("Drain", () => drain(api), { class: "danger" })] : [];
  return { title: "Limits", actions, element, refresh };
}

function read(limit) {
  return { value: limit?.in_use, most: limit?.total ?? null };
}

/** Every client limit, whether set or not. */
function rowsOf(reported, rates) {
  return KINDS.flatMap(([kind, title, words]) =>
    SCOPES.map(([scope, titled, suffix]) => ({
      title: titled(title),
      words,
      most: reported[kind]?.[scope] ?? null,
      value: reported.in_use?.[kind]?.[scope] ?? (scope === "total" ? rates[kind] : undefined),
      exceeded: reported.exceeded?.[`${kind}${suffix}`],
    })),
  );
}

/** Rates per second since the last call, by the counters of the metrics; none at the first call. */
function ratesOf(sampler) {
  let last = null;
  return () => {
    const now = performance.now();
    const counted = KINDS.filter(([, , , counter]) => counter !== null);
    const values = new Map(counted.map(([kind, , , counter]) => [kind, sampler.metrics?.value(counter)]));
    const before = last;
    last = { now, values };
    if (before === null || now <= before.now) return {};
    const seconds = (now - before.now) / 1000;
    const grown = [...values].map(([kind, value]) => [kind, Math.max(0, value - before.values.get(kind)) / seconds]);
    return Object.fromEntries(grown);
  };
}

/** A bar for each limit; full ones are marked. */
function barsByKey() {
  const element = el("div", { class: "bars" });
  const made = new Map();
  const update = (all) => {
    const shown = all.filter(({ most, value }) => most !== null && value !== undefined);
    const elements = shown.map(({ title, words, value, most }) => {
      if (!made.has(title)) made.set(title, bar(title));
      const each = made.get(title);
      each.update({ value, most, words: `${words(value)} of ${words(most)}`, alarm: value >= most });
      return each.element;
    });
    setChildren(element, elements);
  };
  return { element, update };
}

function drain(api) {
  return ask({
    title: "Drain this server?",
    words: [
      "New clients are refused, every client is disconnected (320 CONNECTION_FORCED) once its published messages are " +
        "handed over, and the server stops.",
      "It must then be restarted by an operator or the service manager.",
    ],
    confirm: "Drain",
    danger: true,
    action: async () => {
      await api.post(["leveret", "drain"]);
      return "The server drains, and stops when all clients have disconnected.";
    },
  });
}
