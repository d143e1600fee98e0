// The management HTTP API. Credentials are sent with each request in a header and never in the address, and the browser's
// own way to remember passwords is left out (`credentials: "omit"`), so that it does not ask for one by itself either.

/** Timeout of a request in milliseconds. */
const TIMEOUT = 30_000;

/** A response with an error status, or no response at all (`status` 0). */
export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export class Api {
  #authorization;

  constructor(authorization) {
    this.#authorization = authorization;
  }

  /** Parts of a path are names as they are; `query` is an object whose empty values are left out. */
  get(parts, query = {}, signal = undefined) {
    return this.#ask("GET", parts, { query, signal });
  }

  /** The same for one object of a list; null if it has been deleted since, or a browser cannot request its name. */
  async getIfAvailable(parts, signal) {
    if (parts.some((part) => DOT_SEGMENTS.has(part))) return null;
    try {
      return await this.get(parts, {}, signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      return null;
    }
  }

  put(parts, body) {
    return this.#ask("PUT", parts, { body });
  }

  post(parts, body) {
    return this.#ask("POST", parts, { body });
  }

  delete(parts, { query = {}, headers = {} } = {}) {
    return this.#ask("DELETE", parts, { query, headers });
  }

  /**
   * A page of a list as `{ items, page, pages, found, total }`, whether the server cuts lists into pages or, for those
   * that RabbitMQ never cuts, sends all of it.
   */
  async list(parts, { page = 1, size = 50, query = {}, signal } = {}) {
    const answer = await this.get(parts, { page, page_size: size, ...query }, signal);
    if (Array.isArray(answer)) return cut(answer, page, size);
    return {
      items: answer.items,
      page: answer.page,
      pages: Math.max(1, answer.page_count),
      found: answer.filtered_count,
      total: answer.total_count,
    };
  }

  async #ask(method, parts, { query = {}, body, headers = {}, signal }) {
    const options = {
      method,
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
      // No Accept header: some of RabbitMQ's responses have no content type.
      headers: { ...headers },
      signal: signal ? AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT)]) : AbortSignal.timeout(TIMEOUT),
    };
    if (this.#authorization) options.headers.authorization = this.#authorization;
    if (body !== undefined) {
      options.headers["content-type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    const response = await reach(address(parts, query), options, signal);
    const text = await response.text();
    if (!response.ok) throw new ApiError(response.status, reason(response, text));
    // Messages are fetched by POST, and their headers are only shown. Views compare and add up the numbers of other responses.
    return text === "" ? null : parsed(text, method === "POST" ? keepLargeIntegers : undefined);
  }
}

/** Basic authentication, of which the bytes are UTF-8 (RFC 7617). */
export function basic(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** How the API writes the default exchange, which has no name, in an address. */
export function exchangePart(exchange) {
  return exchange === "" ? "amq.default" : exchange;
}

/** Browsers resolve these as path segments, even percent-encoded: the request would go to another resource. */
const DOT_SEGMENTS = new Set([".", ".."]);

function address(parts, query) {
  const step = parts.find((part) => DOT_SEGMENTS.has(part));
  if (step !== undefined) throw new ApiError(400, `A browser cannot request the name "${step}"; use leveret ctl.`);
  const path = parts.map(encodeURIComponent);
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(kept).toString();
  return `/api/${path.join("/")}${search && `?${search}`}`;
}

async function reach(url, options, signal) {
  try {
    return await fetch(url, options);
  } catch (error) {
    // A caller that aborted the request gets its own reason back.
    if (signal?.aborted) throw signal.reason;
    const why = error.name === "TimeoutError" ? "The server did not respond in time." : "Could not connect to server.";
    throw new ApiError(0, why);
  }
}

function reason(response, text) {
  try {
    const { reason, error } = JSON.parse(text);
    const words = typeof reason === "string" ? reason : error;
    if (typeof words === "string") return words;
  } catch {
    // The body is not JSON: the status is all there is.
  }
  return `The server responded ${response.status} ${response.statusText}.`;
}

function parsed(text, reviver) {
  try {
    return JSON.parse(text, reviver);
  } catch {
    throw new ApiError(0, "The server's response is not valid JSON.");
  }
}

/**
 * Headers may be 64-bit integers. One that a number would round becomes raw JSON, which is written as it was received.
 * Browsers that lack it round.
 */
function keepLargeIntegers(_, value, context) {
  const isRounded = Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source);
  return isRounded && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

function cut(all, page, size) {
  const pages = Math.max(1, Math.ceil(all.length / size));
  const shown = Math.min(page, pages);
  const items = all.slice((shown - 1) * size, shown * size);
  return { items, page: shown, pages, found: all.length, total: all.length };
}
