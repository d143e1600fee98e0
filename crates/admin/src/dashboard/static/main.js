// The dashboard: logs in, shows the view that the address names, and refreshes it every few seconds while it is visible.

import { Api } from "./api.js";
import { el, name, setAttribute, setChildren, setText } from "./dom.js";
import { readMetrics } from "./metrics.js";
import { complain } from "./parts/notice.js";
import { slowly } from "./parts/slow.js";
import { go, here, to } from "./router.js";
import { Sampler } from "./sampler.js";
import { Session, logIn, logOut, resume } from "./session.js";
import { placesOf, viewOf } from "./places.js";
import { Vhosts } from "./vhosts.js";

/** Milliseconds between two refreshes. */
const INTERVAL = 5_000;

const element = (id) => document.getElementById(id);

let app = null;

start();

async function start() {
  element("login").addEventListener("submit", submitLogin);
  element("logout").addEventListener("click", leave);
  element("skip").addEventListener("click", (event) => {
    event.preventDefault();
    (app ? element("view") : element("login")).querySelector("h1").focus();
  });
  addEventListener("hashchange", () => app?.show());
  document.addEventListener("visibilitychange", () => app?.refreshNow());
  element("view").addEventListener("refresh", () => app?.refreshNow());
  const metrics = await readMetrics().catch(() => null);
  showMessagesLink();
  const session = (await resume()) ?? (await anonymous(metrics));
  if (session) enter(session, metrics);
  else showLogin();
}

/**
 * A pool has no users of its own: requests from the same machine are those of its operator, and other clients see only
 * the metrics, which need no login.
 */
async function anonymous(metrics) {
  if (!metrics?.isProxy) return null;
  const api = new Api(null);
  return new Session(api, await api.get(["whoami"]).catch(() => ({ name: "" })));
}

async function submitLogin(event) {
  event.preventDefault();
  const form = event.target;
  const state = element("login-state");
  setText(state, "Logging in…");
  try {
    const session = await logIn(form.elements.user.value, form.elements.password.value);
    form.reset();
    setText(state, "");
    enter(session, await readMetrics().catch(() => null));
  } catch (error) {
    setText(state, error.message);
    form.elements.password.select();
  }
}

function enter(session, metrics) {
  app = new App(session, metrics);
  setAttribute(element("login"), "hidden", true);
  for (const part of ["nav", "who", "view"]) setAttribute(element(part), "hidden", false);
  setAttribute(element("logout"), "hidden", metrics?.isProxy);
  setText(element("user"), session.user);
  app.start();
}

function leave() {
  logOut();
  app.stop();
  app = null;
  showLogin();
}

function showLogin() {
  for (const part of ["nav", "who", "view"]) setAttribute(element(part), "hidden", true);
  setChildren(element("view"), []);
  setAttribute(element("login"), "hidden", false);
  document.title = "Log in · Leveret";
  element("login").elements.user.focus();
}

/** The link to the page for trying out messages, if there is a WebSocket listener for it. */
async function showMessagesLink() {
  const response = await fetch("/page/listeners.json", { credentials: "omit" }).catch(() => null);
  const { ws = null, wss = null } = response?.ok ? await response.json() : {};
  setAttribute(element("messages-link"), "hidden", ws === null && wss === null);
}

class App {
  #session;
  #sampler;
  #vhosts;
  #view = null;
  #leaving = new AbortController();
  #stopped = false;
  #timer;
  /** The refresh in progress; one that is requested during it runs after it. */
  #busy = null;
  #again = false;
  #problem = el("p", { class: "problem", role: "alert", hidden: true });

  constructor(session, metrics) {
    this.#session = session;
    this.#sampler = new Sampler(session, metrics);
    this.#vhosts = new Vhosts(session.api, () => this.show());
  }

  async start() {
    if (!this.#sampler.isProxy) await this.#vhosts.read().catch((error) => complain(error.message));
    // The user may have logged out while the request was in progress.
    if (this.#stopped) return;
    this.show();
    this.#timer = setInterval(() => document.hidden || this.refreshNow(), INTERVAL);
  }

  stop() {
    this.#stopped = true;
    clearInterval(this.#timer);
    this.#leaving.abort();
  }

  /** Shows what the address names. */
  show() {
    if (this.#stopped) return;
    this.#leaving.abort();
    this.#leaving = new AbortController();
    const place = here();
    this.#showPlaces(place.parts[0] ?? "");
    const view = viewOf(this.#context(place));
    this.#view = view;
    this.#busy = null;
    setAttribute(this.#problem, "hidden", true);
    const heading = el("h1", { tabindex: -1 }, view.title);
    if (view.subject !== undefined) heading.append(" ", name(view.subject));
    const actions = el("div", { class: "actions" }, ...(view.actions ?? []));
    setChildren(element("view"), [el("div", { class: "head" }, heading, actions), this.#problem, view.element]);
    // Views stay hidden until they have data.
    setAttribute(view.element, "hidden", true);
    setAttribute(element("view"), "aria-busy", "true");
    document.title = `${[view.title, view.subject].filter(Boolean).join(" ")} · Leveret`;
    heading.focus({ preventScroll: true });
    scrollTo(0, 0);
    this.refreshNow();
  }

  /** Refreshes everything; one requested during a refresh runs after it. */
  refreshNow() {
    if (this.#stopped) return;
    if (this.#busy) {
      this.#again = true;
      return;
    }
    const { signal } = this.#leaving;
    this.#busy = this.#refresh(signal).finally(() => {
      if (signal.aborted) return;
      this.#busy = null;
      if (!this.#again) return;
      this.#again = false;
      this.refreshNow();
    });
  }

  async #refresh(signal) {
    const view = this.#view;
    try {
      await this.#sampler.take(signal);
      await view.refresh(signal);
      if (signal.aborted) return;
      setAttribute(this.#problem, "hidden", true);
      setAttribute(view.element, "hidden", false);
    } catch (error) {
      if (!signal.aborted) await this.#tell(error);
    }
    if (!signal.aborted) setAttribute(element("view"), "aria-busy", "false");
  }

  async #tell(error) {
    // A 401 may concern this one resource, or the password has been changed.
    if (error.status === 401 && !this.#sampler.isProxy && (await resume()) === null) return leave();
    const words = error.status === 404 ? "Not found. It may have been deleted." : error.message;
    setText(this.#problem, words);
    setAttribute(this.#problem, "hidden", false);
  }

  #context(place) {
    const vhosts = this.#vhosts;
    return {
      place,
      session: this.#session,
      api: this.#session.api,
      sampler: this.#sampler,
      vhost: () => vhosts.chosen,
      vhosts: () => vhosts.names,
      /** The path of a list for the selected virtual host, or for all. */
      vhostPath: (kind) => vhosts.path(kind),
      vhostColumn: (sort, group) => vhosts.column(sort, group),
      chooseVhost: (name) => {
        vhosts.choose(name);
        go(["queues"]);
      },
      vhostsChanged: () => vhosts.read(),
      refreshNow: () => this.refreshNow(),
      slowly,
    };
  }

  #showPlaces(current) {
    const links = placesOf(this.#session, this.#sampler.isProxy).filter(({ title }) => title).map(({ part, title }) => {
      const isHere = part === current;
      return el("li", {}, el("a", { href: to(part ? [part] : []), "aria-current": isHere ? "page" : null }, title));
    });
    setChildren(element("places"), links);
    // On a phone the navigation is a single line that may be wider than the screen.
    element("places").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    this.#vhosts.show(!this.#sampler.isProxy);
  }
}
