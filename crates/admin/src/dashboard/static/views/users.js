// The users with their tags, and the permissions of one user.

import { button, el } from "../dom.js";
import { ask } from "../parts/dialog.js";
import { section } from "../parts/figures.js";
import { list } from "../parts/list.js";
import { slowly } from "../parts/slow.js";
import { go, to } from "../router.js";

const TAGS = ["administrator", "monitoring", "policymaker", "management"];

export function users({ api, refreshNow }) {
  const rows = list({
    caption: "Users",
    empty: "No users.",
    key: (user) => user.name,
    columns: [
      { title: "Name", text: (each) => each.name, href: (each) => to(["users", each.name]) },
      { title: "Tags", badges: (each) => tagsOf(each) },
      { title: "Has password", text: (each) => (each.password_hash ? "yes" : "no") },
    ],
    fetch: ({ page, size, signal }) => api.list(["users"], { page, size, signal }),
  });
  slowly(rows, refreshNow);

  async function add() {
    const isDone = await ask({
      title: "Add a user",
      fields: [{ name: "name", label: "Name", required: true }, ...credentials("")],
      confirm: "Add",
      action: async (typed) => {
        await api.put(["users", typed.name], { password: typed.password, tags: typed.tags });
        return `User ${typed.name} is added.`;
      },
    });
    if (isDone) rows.changed();
  }

  return { title: "Users", actions: [button("Add a user", add)], element: rows.element, refresh: rows.refresh };
}

export function user({ api, place, vhost, vhosts, refreshNow }) {
  const name = place.parts[1];
  let details = {};
  const rows = list({
    caption: "Permissions",
    isPart: true,
    empty: "No permissions in any virtual host.",
    key: (permission) => permission.vhost,
    columns: [
      { title: "Virtual host", text: (each) => each.vhost },
      { title: "Configure regexp", text: (each) => each.configure },
      { title: "Write regexp", text: (each) => each.write },
      { title: "Read regexp", text: (each) => each.read },
      { title: "Remove", label: (each) => `the permissions in ${each.vhost}`, action: (each) => removePermission(each) },
    ],
    fetch: ({ page, size, signal }) => api.list(["users", name, "permissions"], { page, size, signal }),
  });
  slowly(rows, refreshNow);

  async function permit() {
    const isDone = await ask({
      title: "Set permissions",
      words: "Regular expressions for names. An empty one matches nothing.",
      fields: [
        { name: "vhost", label: "Virtual host", type: "select", options: vhosts(), value: vhost() || "/" },
        { name: "configure", label: "Configure regexp", value: ".*" },
        { name: "write", label: "Write regexp", value: ".*" },
        { name: "read", label: "Read regexp", value: ".*" },
      ],
      confirm: "Set permissions",
      action: async ({ vhost, ...permissions }) => {
        await api.put(["permissions", vhost, name], permissions);
        return `The permissions of ${name} in ${vhost} are set.`;
      },
    });
    if (isDone) rows.changed();
  }

  async function removePermission({ vhost }) {
    const isDone = await ask({
      title: "Remove these permissions?",
      words: `User ${name} loses access to virtual host ${vhost}.`,
      confirm: "Remove",
      danger: true,
      action: () => api.delete(["permissions", vhost, name]),
    });
    if (isDone) rows.changed();
  }

  async function change() {
    await ask({
      title: "Change this user",
      words: "Replaces both the password and the tags.",
      fields: credentials(tagsOf(details).join(",")),
      confirm: "Change",
      action: async ({ password, tags }) => {
        await api.put(["users", name], { password, tags });
        return `User ${name} is changed.`;
      },
    });
  }

  async function remove() {
    const isDone = await ask({
      title: "Delete this user?",
      words: `User ${name} can no longer log in.`,
      confirm: "Delete",
      danger: true,
      action: async () => {
        await api.delete(["users", name]);
        return `User ${name} is deleted.`;
      },
    });
    if (isDone) go(["users"]);
  }

  const refresh = async (signal) => {
    [details] = await Promise.all([api.get(["users", name], {}, signal), rows.refresh(signal)]);
  };
  const element = el(
    "div",
    { class: "stack" },
    section("Permissions", rows.element, button("Set permissions", permit, { class: "quiet" })),
  );
  const actions = [button("Change", change), button("Delete", remove, { class: "danger" })];
  return { title: "User", subject: name, actions, element, refresh };
}

function credentials(tags) {
  return [
    { name: "password", label: "Password", type: "password", required: true },
    { name: "tags", label: "Tags, separated by commas", value: tags, suggestions: TAGS, hint: TAGS.join(", ") },
  ];
}

function tagsOf({ tags = [] }) {
  return (typeof tags === "string" ? tags.split(",") : tags).filter(Boolean);
}
