// The virtual hosts: a list, adding one, deleting one, and choosing the one that the other views show.

import { button } from "../dom.js";
import { countColumn } from "../parts/columns.js";
import { ask } from "../parts/dialog.js";
import { list } from "../parts/list.js";

export function virtualHosts({ api, refreshNow, chooseVhost, vhostsChanged }) {
  const rows = list({
    caption: "Virtual hosts",
    empty: "No virtual hosts.",
    key: (vhost) => vhost.name,
    columns: [
      { title: "Name", text: (each) => each.name },
      { title: "Show queues", label: (each) => each.name, isHarmless: true, action: (each) => chooseVhost(each.name) },
      { title: "Description", text: (each) => each.description ?? each.metadata?.description ?? "" },
      countColumn("Ready", "messages_ready"),
      countColumn("Unacked", "messages_unacknowledged"),
      countColumn("Total", "messages"),
      { title: "Delete", label: (each) => each.name, action: (each) => remove(each) },
    ],
    fetch: ({ page, size, signal }) => api.list(["vhosts"], { page, size, signal }),
  });

  async function add() {
    const isDone = await ask({
      title: "Add a virtual host",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "description", label: "Description" },
      ],
      confirm: "Add",
      action: async ({ name, description }) => {
        await api.put(["vhosts", name], { description });
        return `Virtual host ${name} is added.`;
      },
    });
    if (isDone) await changed();
  }

  async function remove({ name }) {
    const isDone = await ask({
      title: "Delete this virtual host?",
      words: `Virtual host ${name} is deleted with all its exchanges, queues and messages. This cannot be undone.`,
      confirm: "Delete",
      danger: true,
      action: async () => {
        await api.delete(["vhosts", name]);
        return `Virtual host ${name} is deleted.`;
      },
    });
    if (isDone) await changed();
  }

  async function changed() {
    await vhostsChanged();
    refreshNow();
  }

  const actions = [button("Add a virtual host", add)];
  return { title: "Virtual hosts", actions, element: rows.element, refresh: rows.refresh };
}
