// The pages of the dashboard: which users see them, and the view of each.

import { el } from "./dom.js";
import { bindings } from "./views/bindings.js";
import { clients } from "./views/clients.js";
import { channels, connection, connections } from "./views/connections.js";
import { exchange, exchanges } from "./views/exchanges.js";
import { limits } from "./views/limits.js";
import { overview } from "./views/overview.js";
import { policies } from "./views/policies.js";
import { pool } from "./views/pool.js";
import { queue } from "./views/queue.js";
import { queues } from "./views/queues.js";
import { sessions } from "./views/sessions.js";
import { spool } from "./views/spool.js";
import { topology } from "./views/topology.js";
import { upstreams } from "./views/upstreams.js";
import { user, users } from "./views/users.js";
import { virtualHosts } from "./views/vhosts.js";

/**
 * `title` is the label in the menu, `tag` the tag that a user needs; `all` is the view of the list, `one` the
 * view of a single object, identified by `names` names in the path.
 */
const BROKER = [
  { part: "", title: "Overview", all: overview },
  { part: "connections", title: "Connections", all: connections, one: connection, names: 1 },
  { part: "channels", title: "Channels", all: channels },
  { part: "exchanges", title: "Exchanges", all: exchanges, one: exchange, names: 2 },
  { part: "queues", title: "Queues", all: queues, one: queue, names: 2 },
  { part: "bindings", title: "Bindings", all: bindings },
  { part: "topology", title: "Topology", all: topology },
  { part: "policies", title: "Policies", all: policies, tag: "policymaker" },
  { part: "users", title: "Users", all: users, one: user, names: 1, tag: "administrator" },
  { part: "vhosts", title: "Virtual hosts", all: virtualHosts, tag: "administrator" },
];

const PROXY = [
  { part: "", title: "Overview", all: pool },
  { part: "clients", title: "Clients", all: clients, tag: "monitoring" },
  { part: "connections", one: connection, names: 1, tag: "monitoring" },
  { part: "sessions", title: "Sessions", all: sessions, tag: "monitoring" },
  { part: "spool", title: "Spool", all: spool, tag: "monitoring" },
  { part: "upstreams", title: "Upstream connections", all: upstreams, tag: "monitoring" },
  { part: "limits", title: "Limits", all: limits, tag: "monitoring" },
];

/** The pages that this user may see. */
export function placesOf(session, isProxy) {
  return (isProxy ? PROXY : BROKER).filter(({ tag }) => tag === undefined || session.may(tag));
}

/** The view of the page that the context names. */
export function viewOf(context) {
  const [part = "", ...names] = context.place.parts;
  const place = placesOf(context.session, context.sampler.isProxy).find((each) => each.part === part);
  if (place?.all && names.length === 0) return place.all(context);
  if (place?.one && names.length === place.names) return place.one(context);
  const words = el("p", {}, "There is no such page. Choose one from the menu.");
  return { title: "Page not found", element: words, refresh: async () => {} };
}
