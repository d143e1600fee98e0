// The topology: a page of queues, the exchanges that lead to them, and the publishers to those, as a diagram and as
// text.

import { button, el, setChildren } from "../dom.js";
import { exchangeName, rate } from "../format.js";
import { readGraph } from "../graph.js";
import { diagram } from "../parts/diagram.js";
import { list } from "../parts/list.js";
import { slowly } from "../parts/slow.js";

/** Maximum number of queues in one diagram, so that it stays readable. */
const QUEUES = 15;

export function topology({ api, vhostPath, refreshNow }) {
  const canvas = el("div", { class: "canvas" });
  const words = el("ul", { class: "plain" });
  const inWords = el("details", {}, el("summary", {}, "As text"), words);
  // The rows are drawn rather than listed; filter and paging work as in a list.
  const rows = list({
    caption: "Queues shown",
    filter: "Queues by name",
    empty: "No queues.",
    size: QUEUES,
    key: (queue) => JSON.stringify([queue.vhost, queue.name]),
    columns: [],
    fetch: async ({ page, size, query, signal }) => {
      const found = await api.list(vhostPath("queues"), { page, size, query, signal });
      const graph = await readGraph(api, found.items, signal);
      signal?.throwIfAborted();
      setChildren(canvas, [diagram(graph)]);
      setChildren(words, graph.edges.map((edge) => sentence(edge, graph.nodes)));
      inWords.hidden = graph.edges.length === 0;
      return found;
    },
  });
  slowly(rows, refreshNow);
  const filter = rows.element.querySelector(".filter");
  const pager = rows.element.querySelector(".pager");
  rows.element.replaceChildren(filter, canvas, rows.element.querySelector(".hint"), pager, inWords);
  return {
    title: "Topology",
    actions: [button("Refresh", rows.changed, { class: "quiet" })],
    element: rows.element,
    refresh: rows.refresh,
  };
}

function sentence({ from, to, keys, rate: flow }, nodes) {
  const [source, target] = [nodes.get(from), nodes.get(to)];
  const by = keys.length ? ` by ${keys.map((key) => `"${key}"`).join(", ")}` : "";
  const much = flow === undefined ? "" : ` (${rate(flow)})`;
  return el(
    "li",
    {},
    `${source.kind} `,
    el("bdi", {}, exchangeName(source.name)),
    ` → ${target.kind} `,
    el("bdi", {}, exchangeName(target.name)),
    el("bdi", {}, by),
    much,
  );
}
