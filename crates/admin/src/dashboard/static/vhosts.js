// The virtual hosts, and the selection of one or all. The selection lasts until the tab is closed.

import { el, setAttribute, setChildren } from "./dom.js";

const KEY = "leveret.vhost";
/** Maximum entries of the menu; others can be chosen in the list of virtual hosts. */
const MOST_OFFERED = 100;

export class Vhosts {
  /** The selected virtual host; empty for all. */
  chosen = sessionStorage.getItem(KEY) ?? "";
  /** The names that a form offers. */
  names = [];

  #api;
  #menu = document.getElementById("vhost");

  constructor(api, changed) {
    this.#api = api;
    this.#menu.onchange = () => {
      this.choose(this.#menu.value);
      changed();
    };
  }

  /** Fetches the names. */
  async read() {
    const { items } = await this.#api.list(["vhosts"], { size: MOST_OFFERED });
    this.names = items.map(({ name }) => name);
    if (this.chosen !== "" && !this.names.includes(this.chosen)) {
      // It exceeds the maximum of the menu, or was deleted.
      if (this.names.length < MOST_OFFERED) this.choose("");
      else this.names.push(this.chosen);
    }
    this.#fill();
  }

  choose(name) {
    this.chosen = name;
    sessionStorage.setItem(KEY, name);
    if (name !== "" && !this.names.includes(name)) this.names.push(name);
    this.#fill();
  }

  /** The virtual host column of a list, if there is more than one virtual host. */
  column(sort, group) {
    const isOne = this.chosen !== "" || this.names.length < 2;
    return isOne ? [] : [{ title: "Virtual host", sort, group, text: (each) => each.vhost ?? "" }];
  }

  /** The path of a list for the selected virtual host, or for all. */
  path(kind) {
    return this.chosen === "" ? [kind] : [kind, this.chosen];
  }

  /** Shows the menu if there is more than one virtual host. */
  show(isWanted) {
    setAttribute(document.getElementById("vhost-choice"), "hidden", !isWanted || this.names.length < 2);
  }

  #fill() {
    const options = [["", "All virtual hosts"], ...this.names.map((name) => [name, name])];
    setChildren(this.#menu, options.map(([value, words]) => el("option", { value }, words)));
    this.#menu.value = this.chosen;
  }
}
