// The virtual hosts, and which of them everything is about: one, or all. The choice is kept as long as the tab is open.

import { el, setAttribute, setChildren } from "./dom.js";

const KEY = "leveret.vhost";
/** Most that the menu offers; any other can be chosen in the list of virtual hosts. */
const MOST_OFFERED = 100;

export class Vhosts {
  /** The chosen one; empty for all. */
  chosen = sessionStorage.getItem(KEY) ?? "";
  /** Those that a form offers. */
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

  /** Reads which there are. */
  async read() {
    const { items } = await this.#api.list(["vhosts"], { size: MOST_OFFERED });
    this.names = items.map(({ name }) => name);
    if (this.chosen !== "" && !this.names.includes(this.chosen)) {
      // More than there was room for; or it is gone.
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

  /** The column of a list that tells them apart, where there is more than one. */
  column(sort, group) {
    const isOne = this.chosen !== "" || this.names.length < 2;
    return isOne ? [] : [{ title: "Virtual host", sort, group, text: (each) => each.vhost ?? "" }];
  }

  /** The path of a list: of the chosen one or of all. */
  path(kind) {
    return this.chosen === "" ? [kind] : [kind, this.chosen];
  }

  /** Shows the menu where there is a choice. */
  show(isWanted) {
    setAttribute(document.getElementById("vhost-choice"), "hidden", !isWanted || this.names.length < 2);
  }

  #fill() {
    const options = [["", "All virtual hosts"], ...this.names.map((name) => [name, name])];
    setChildren(this.#menu, options.map(([value, words]) => el("option", { value }, words)));
    this.#menu.value = this.chosen;
  }
}
