// Hash router: the current page is the fragment of the URL, such as `#/queues/%2F/orders?page=2`, so that reloads and
// bookmarks work. It is never sent to the server.

/** The names in the path, decoded, and the rest as URLSearchParams. */
export function here() {
  const hash = location.hash.startsWith("#/") ? location.hash.slice(2) : "";
  const [path, search = ""] = hash.split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(search) };
}

/** A link to a page. Empty parts are written as "~", for the default exchange has no name. */
export function to(parts, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(kept).toString();
  return `#/${parts.map(encoded).join("/")}${search && `?${search}`}`;
}

/** Navigates to a page, as a link does. */
export function go(parts, query = {}) {
  location.hash = to(parts, query);
}

/** Replaces the query of the current page without adding a history entry, for example while a filter is typed. */
export function amend(changes) {
  const { parts, query } = here();
  const merged = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", to(parts, merged));
}

const EMPTY = "~";

function encoded(part) {
  if (part === "") return EMPTY;
  // A name that begins with "~" is escaped with another one.
  return encodeURIComponent(part.startsWith(EMPTY) ? EMPTY + part : part);
}

function decoded(part) {
  if (part === EMPTY) return "";
  let name;
  try {
    name = decodeURIComponent(part);
  } catch {
    // Malformed, so typed by hand: nothing has such a name.
    return part;
  }
  return name.startsWith(EMPTY) ? name.slice(EMPTY.length) : name;
}
