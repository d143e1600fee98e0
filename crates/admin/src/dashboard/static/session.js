// The logged-in user. The credentials are stored per tab (sessionStorage), as the value of the Authorization header, until
// the tab is closed or the user logs out.

import { Api, ApiError, basic } from "./api.js";

const KEY = "leveret.authorization";

/** The server does not distinguish these causes. */
const LOGIN_REFUSED =
  "Login failed: wrong user name or password, or no tag such as management or administrator; " +
  "guest may log in from the server's machine only.";

/** The tags that each tag of RabbitMQ implies: an administrator sees everything, a monitor what a manager does. */
const IMPLIED = {
  administrator: ["administrator", "monitoring", "policymaker", "management"],
  monitoring: ["monitoring", "management"],
  policymaker: ["policymaker", "management"],
  management: ["management"],
};

export class Session {
  constructor(api, { name, tags = [] }) {
    this.api = api;
    this.user = name;
    // Older servers send them as one string.
    const list = typeof tags === "string" ? tags.split(",") : tags;
    this.tags = new Set(list.flatMap((tag) => IMPLIED[tag.trim()] ?? []));
  }

  may(tag) {
    return this.tags.has(tag);
  }
}

/** Logs in; throws the ApiError that says why not. */
export async function logIn(user, password) {
  const authorization = basic(user, password);
  try {
    const session = await enter(authorization);
    sessionStorage.setItem(KEY, authorization);
    return session;
  } catch (error) {
    if (error.status === 401) throw new ApiError(401, LOGIN_REFUSED);
    throw error;
  }
}

/** The session that a reload interrupted; null if there is none. */
export async function resume() {
  const authorization = sessionStorage.getItem(KEY);
  if (authorization === null) return null;
  try {
    return await enter(authorization);
  } catch (error) {
    if (error.status === 401) logOut();
    return null;
  }
}

export function logOut() {
  sessionStorage.removeItem(KEY);
}

async function enter(authorization) {
  const api = new Api(authorization);
  return new Session(api, await api.get(["whoami"]));
}
