// The upstream connections: their users, and how many clients share them.

import { bytes, count, duration } from "../format.js";
import { list } from "../parts/list.js";

export function upstreams({ api }) {
  const rows = list({
    caption: "Upstream connections",
    filter: "Filter by name",
    empty: "No upstream connections. The first client opens one.",
    key: (connection) => connection.name,
    columns: [
      { title: "Name", sort: "name", text: (each) => each.name },
      { title: "Address", sort: "address", text: (each) => each.address },
      { title: "User name", sort: "user", text: (each) => each.user },
      { title: "Virtual host", sort: "vhost", text: (each) => each.vhost },
      { title: "State", badges: (each) => states(each) },
      { title: "Clients", sort: "clients", number: true, text: (each) => count(each.clients) },
      { title: "Channels", sort: "channels", number: true, text: (each) => count(each.channels) },
      { title: "Idle channels", sort: "idle_channels", number: true, text: (each) => count(each.idle_channels) },
      { title: "Waiting", sort: "waiting_bytes", number: true, text: (each) => bytes(each.waiting_bytes) },
      { title: "Connected for", sort: "age_seconds", number: true, text: (each) => duration(each.age_seconds * 1000) },
    ],
    fetch: ({ page, size, query, signal }) => api.list(["leveret", "connections"], { page, size, query, signal }),
  });
  return { title: "Upstream connections", element: rows.element, refresh: rows.refresh };
}

function states({ open, own, blocked }) {
  const words = [open ? ["open", "good"] : ["closing", "wait"]];
  words.push(own ? "dedicated" : "shared");
  if (blocked) words.push(["blocked", "bad"]);
  return words;
}
