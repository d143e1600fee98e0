// Where one is, in the part of the address behind the "#": `#/queues/%2F/orders?page=2`. It never leaves the browser, and
// a reload or a bookmark leads back there.

/** The names in the path, decoded, and the rest as URLSearchParams. */
export function here() {
  const hash = location.hash.startsWith("#/") ? location.hash.slice(2) : "";
  const [path, search = ""] = hash.split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(search) };
}

/** A link to a place. Empty parts are written as "~", for the default exchange has no name. */
export function to(parts, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(kept).toString();
  return `#/${parts.map(encoded).join("/")}${search && `?${search}`}`;
}

/** Goes there, as if a link had been followed. */
export function go(parts, query = {}) {
  location.hash = to(parts, query);
}

/** Changes the query of the present place without a step in the history: typing into a filter is no journey. */
export function amend(changes) {
  const { parts, query } = here();
  const merged = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", to(parts, merged));
}

const EMPTY = "~";

function encoded(part) {
  if (part === "") return EMPTY;
  // A name that is, or begins with, our sign for the empty one gets one more of it.
  return encodeURIComponent(part.startsWith(EMPTY) ? EMPTY + part : part);
}

function decoded(part) {
  if (part === EMPTY) return "";
  let name;
  try {
    name = decodeURIComponent(part);
  } catch {
    // Written by hand, then; nothing has such a name.
    return part;
  }
  return name.startsWith(EMPTY) ? name.slice(EMPTY.length) : name;
}
