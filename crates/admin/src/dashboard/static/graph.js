// The topology around one page of queues: their bindings, the source exchanges, and the publishers to them. The cost depends on
// what is shown, not on the number of queues.

import { exchangePart } from "./api.js";
import { rateOf } from "./format.js";

/** Maximum depth of exchange-to-exchange bindings. */
const MOST_STEPS = 3;

/**
 * `{ nodes, edges }`: nodes by key, each `{ key, kind, vhost, name, type, rate, ready }` of kind publisher, exchange or
 * queue; edges `{ from, to, keys, rate }`. Rates that the server does not report are left out.
 */
export async function readGraph(api, queues, signal) {
  const graph = { nodes: new Map(), edges: new Map() };
  for (const { vhost, name, messages_ready: ready, message_stats: stats } of queues) {
    add(graph, { kind: "queue", vhost, name, ready, rate: rateOf(stats, "publish") });
  }
  // The rest of the diagram does not depend on an object that is not available.
  const bindingsOf = async ({ vhost, name }) =>
    (await api.getIfAvailable(["queues", vhost, name, "bindings"], signal)) ?? [];
  const bound = await Promise.all(queues.map(bindingsOf));
  queues.forEach((queue, at) => addQueueBindings(graph, queue, bound[at]));
  await followExchanges(api, graph, signal);
  await addPublishers(api, graph, signal);
  return { nodes: graph.nodes, edges: [...graph.edges.values()] };
}

function nodeKey({ kind, vhost = "", name }) {
  return JSON.stringify([kind, vhost, name]);
}

function add(graph, node) {
  const key = nodeKey(node);
  if (!graph.nodes.has(key)) graph.nodes.set(key, { key, ...node });
  return graph.nodes.get(key);
}

function join(graph, from, to, routingKey) {
  const id = JSON.stringify([from.key, to.key]);
  if (!graph.edges.has(id)) graph.edges.set(id, { from: from.key, to: to.key, keys: [], rate: undefined });
  const edge = graph.edges.get(id);
  if (routingKey !== undefined) edge.keys.push(routingKey);
  return edge;
}

/** Every queue is bound to the default exchange, so that binding is only shown if there is no other. */
function addQueueBindings(graph, { vhost, name }, bindings) {
  const queue = add(graph, { kind: "queue", vhost, name });
  const explicit = bindings.filter(({ source }) => source !== "");
  for (const binding of explicit.length ? explicit : bindings) {
    const source = add(graph, { kind: "exchange", vhost, name: binding.source });
    join(graph, source, queue, binding.source === "" ? undefined : binding.routing_key);
  }
}

/** Adds the exchanges that route to those already in the graph. */
async function followExchanges(api, graph, signal) {
  let next = exchangesOf(graph);
  for (let step = 0; step < MOST_STEPS && next.length > 0; step += 1) {
    const known = new Set(graph.nodes.keys());
    const named = next.filter(({ name }) => name !== "");
    const path = ({ vhost, name }) => ["exchanges", vhost, name, "bindings", "destination"];
    const sources = await Promise.all(named.map((exchange) => api.getIfAvailable(path(exchange), signal)));
    named.forEach((exchange, at) => {
      for (const { source, routing_key: key } of sources[at] ?? []) {
        join(graph, add(graph, { kind: "exchange", vhost: exchange.vhost, name: source }), exchange, key);
      }
    });
    next = exchangesOf(graph).filter(({ key }) => !known.has(key));
  }
}

/** Adds the types, rates and publishers of the exchanges. */
async function addPublishers(api, graph, signal) {
  const exchanges = exchangesOf(graph);
  const details = await Promise.all(
    exchanges.map(({ vhost, name }) => api.getIfAvailable(["exchanges", vhost, exchangePart(name)], signal)),
  );
  addSoleRoutes(graph, await vhostsUsingDefaultExchange(api, graph, signal));
  exchanges.forEach((exchange, at) => {
    const { type, message_stats: stats, incoming = [], outgoing = [] } = details[at] ?? {};
    Object.assign(exchange, { type, rate: rateOf(stats, "publish_in") });
    for (const { channel_details: channel, stats: flow } of incoming) {
      const name = channel?.connection_name ?? channel?.name;
      if (name === undefined) continue;
      const edge = join(graph, add(graph, { kind: "publisher", name }), exchange);
      edge.rate = (edge.rate ?? 0) + (rateOf(flow, "publish") ?? 0);
    }
    for (const { queue, stats: flow } of outgoing) {
      const edge = graph.edges.get(JSON.stringify([exchange.key, nodeKey({ kind: "queue", ...queue })]));
      if (edge) edge.rate = rateOf(flow, "publish");
    }
  });
}

/** The virtual hosts whose default exchange has routed messages: it can route to every queue, without a line in the diagram. */
async function vhostsUsingDefaultExchange(api, { nodes }, signal) {
  const vhosts = [...new Set([...nodes.values()].map(({ vhost }) => vhost))];
  const exchanges = await Promise.all(
    vhosts.map((vhost) => api.getIfAvailable(["exchanges", vhost, exchangePart("")], signal)),
  );
  return new Set(vhosts.filter((_, at) => rateOf(exchanges[at]?.message_stats, "publish_out") > 0));
}

/** If only one exchange can route to a queue, the queue's publish rate is the rate of that binding. */
function addSoleRoutes({ nodes, edges }, busy) {
  for (const { key, kind, vhost, rate } of nodes.values()) {
    if (kind !== "queue") continue;
    const ways = [...edges.values()].filter((edge) => edge.to === key);
    if (ways.length === 1 && (nodes.get(ways[0].from).name === "" || !busy.has(vhost))) ways[0].rate = rate;
  }
}

function exchangesOf(graph) {
  return [...graph.nodes.values()].filter(({ kind }) => kind === "exchange");
}
