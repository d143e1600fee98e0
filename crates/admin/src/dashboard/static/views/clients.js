// The clients of the pool, and the bytes that they have sent and received.

import { bytes, duration } from "../format.js";
import { list } from "../parts/list.js";
import { to } from "../router.js";
import { spoken } from "./connections.js";

export function clients({ api }) {
  const rows = list({
    caption: "Clients",
    filter: "Filter by name",
    empty: "No clients.",
    key: (client) => client.name,
    columns: [
      {
        title: "Client",
        sort: "name",
        text: (each) => each.connection_name ?? each.name,
        href: (each) => to(["connections", each.name]),
      },
      { title: "User name", sort: "user", text: (each) => each.user ?? "" },
      { title: "Virtual host", sort: "vhost", text: (each) => each.vhost ?? "" },
      { title: "Protocol", sort: "protocol", badges: (each) => spoken(each) },
      { title: "Connected for", sort: "connected_at", number: true, text: (each) => age(each.connected_at) },
      { title: "From client", sort: "received_bytes", number: true, text: (each) => bytes(each.received_bytes) },
      { title: "To client", sort: "sent_bytes", number: true, text: (each) => bytes(each.sent_bytes) },
      { title: "Waiting", sort: "waiting_bytes", number: true, text: (each) => bytes(each.waiting_bytes) },
    ],
    fetch: ({ page, size, query, signal }) => api.list(["leveret", "clients"], { page, size, query, signal }),
  });
  return { title: "Clients", element: rows.element, refresh: rows.refresh };
}

function age(since) {
  return since ? duration(Math.max(0, Date.now() - since)) : "–";
}
