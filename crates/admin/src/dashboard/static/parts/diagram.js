// A graph of publishers, exchanges and queues as SVG: columns from left to right, joined by lines.

import { el, svg } from "../dom.js";
import { exchangeName, rate, short } from "../format.js";
import { to } from "../router.js";

const NODE = { width: 190, height: 44 };
const GAP = { column: 150, row: 14 };
const MARGIN = 8;
/** Maximum characters in a node, and on an edge. */
const LETTERS = 20;
/** Maximum characters if there is a rate beside them. */
const LETTERS_BESIDE = 12;
/** Columns of exchanges. */
const MOST_COLUMNS = 4;
/** Edges with more parallel ones than this get no label: the labels would overlap. */
const MAX_LABELLED = 40;
/** Maximum routing keys in a tooltip. */
const MAX_TOOLTIP_KEYS = 20;

/** The diagram; null if it would be empty. */
export function diagram({ nodes, edges }) {
  const { columns, ways } = arrange([...nodes.values()], edges);
  if (columns.length === 0) return null;
  const most = Math.max(...columns.map((column) => column.length));
  const width = columns.length * NODE.width + (columns.length - 1) * GAP.column + 2 * MARGIN;
  const height = most * (NODE.height + GAP.row) - GAP.row + 2 * MARGIN;
  const places = place(columns, height);
  const lines = edges.map((edge, at) => line(edge, ways[at].map((key) => places.get(key)), edges.length <= MAX_LABELLED));
  const boxes = [...places.values()].filter(({ node }) => node.kind !== BEND).map(box);
  const size = { viewBox: `0 0 ${width} ${height}`, width, height };
  const picture = svg(
    "svg",
    { ...size, class: "diagram", role: "group", "aria-label": "Topology" },
    svg("g", {}, ...lines.map(({ path }) => path)),
    svg("g", {}, ...lines.map(({ words }) => words).filter(Boolean)),
    svg("g", {}, ...boxes),
  );
  light(picture, edges, lines, boxes);
  return el("div", { class: "scroll" }, picture);
}

/** A point where a long edge crosses an intermediate column. */
const BEND = "bend";

/**
 * Arranges nodes in columns, ordered to reduce crossings: publishers, exchanges by their distance from the
 * queues, queues. `ways` lists the keys along each edge.
 */
function arrange(nodes, edges) {
  const depth = depths(nodes, edges);
  const deepest = Math.max(0, ...depth.values());
  const columns = Array.from({ length: deepest + 1 }, () => []);
  for (const node of nodes) columns[deepest - depth.get(node.key)].push(node);
  const ways = edges.map(({ from, to }) => {
    const way = [from];
    for (let between = depth.get(from) - 1; between > depth.get(to); between -= 1) {
      const key = JSON.stringify([BEND, from, to, between]);
      columns[deepest - between].push({ kind: BEND, key });
      way.push(key);
    }
    return [...way, to];
  });
  return { columns: sortColumns(columns.filter((column) => column.length > 0), ways), ways };
}

/** The column of each node, counted from the right: 0 for queues, otherwise the length of the longest path to a queue. */
function depths(nodes, edges) {
  const depth = new Map(nodes.map(({ key, kind }) => [key, kind === "queue" ? 0 : 1]));
  // Exchange-to-exchange bindings may form cycles, so the number of rounds is limited.
  for (let round = 0; round < MOST_COLUMNS; round += 1) {
    for (const { from, to } of edges) {
      const reached = depth.get(to) + 1;
      if (reached > depth.get(from) && reached <= MOST_COLUMNS) depth.set(from, reached);
    }
  }
  const deepest = Math.max(0, ...nodes.filter(({ kind }) => kind === "exchange").map(({ key }) => depth.get(key)));
  for (const { key, kind } of nodes) if (kind === "publisher") depth.set(key, deepest + 1);
  return depth;
}

/** Sorts each column by the positions of its neighbours; a few passes in both directions remove most crossings. */
function sortColumns(columns, ways) {
  const joined = { before: new Map(), after: new Map() };
  const note = (map, key, other) => map.set(key, [...(map.get(key) ?? []), other]);
  for (const way of ways) {
    for (let at = 1; at < way.length; at += 1) {
      note(joined.after, way[at - 1], way[at]);
      note(joined.before, way[at], way[at - 1]);
    }
  }
  const rank = new Map();
  const number = (column) => column.forEach(({ key }, at) => rank.set(key, (at + 0.5) / column.length));
  columns.forEach(number);
  const sort = (column, side) => {
    const mean = ({ key }) => {
      const others = joined[side].get(key) ?? [];
      return others.length ? others.reduce((sum, other) => sum + rank.get(other), 0) / others.length : rank.get(key);
    };
    const means = new Map(column.map((node) => [node, mean(node)]));
    column.sort((a, b) => means.get(a) - means.get(b));
    number(column);
  };
  for (let round = 0; round < 4; round += 1) {
    columns.toReversed().forEach((column) => sort(column, "after"));
    columns.forEach((column) => sort(column, "before"));
  }
  return columns;
}

function place(columns, height) {
  const places = new Map();
  columns.forEach((column, across) => {
    const x = MARGIN + across * (NODE.width + GAP.column);
    const step = (height - 2 * MARGIN + GAP.row) / column.length;
    column.forEach((node, down) => {
      places.set(node.key, { node, x, y: MARGIN + step * (down + 0.5) - GAP.row / 2 - NODE.height / 2 });
    });
  });
  return places;
}

/** A line from the right side of its first node to the left side of its last; horizontal at the bends between. */
function line({ keys, rate: flow }, way, isLabelled) {
  let drawn = "";
  let last;
  for (let at = 1; at < way.length; at += 1) {
    const [x1, y1] = [way[at - 1].x + NODE.width, way[at - 1].y + NODE.height / 2];
    const [x2, y2] = [way[at].x, way[at].y + NODE.height / 2];
    const bend = Math.max(40, Math.abs(x2 - x1) / 2);
    drawn += `${at === 1 ? "M" : "L"}${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
    last = [(x1 + x2) / 2, (y1 + y2) / 2];
  }
  const path = svg("path", {
    d: drawn,
    class: flow > 0 ? "edge flows" : "edge",
    // Width from 1 to 5 by the order of magnitude of the rate.
    "stroke-width": flow > 0 ? Math.min(5, 1.5 + Math.log10(1 + flow)).toFixed(1) : 1.5,
  });
  const named = keys.length > 1 ? `${keys.length} keys` : (keys[0] ?? "");
  const text = flow > 0 ? [clipped(named, LETTERS_BESIDE), rate(flow)].filter(Boolean).join(" · ") : clipped(named);
  const words =
    isLabelled && text !== "" ? svg("text", { x: last[0], y: last[1] - 4, class: "edge-words" }, text) : null;
  words?.append(svg("title", {}, keys.slice(0, MAX_TOOLTIP_KEYS).join("\n")));
  return { path, words };
}

function box({ node, x, y }) {
  return svg(
    node.kind === "publisher" ? "g" : "a",
    { class: `node ${node.kind}`, transform: `translate(${x} ${y})`, href: hrefOf(node), "data-key": node.key },
    svg("rect", { width: NODE.width, height: NODE.height, rx: 8 }),
    svg("text", { x: 12, y: 18, class: "what" }, clipped(exchangeName(node.name))),
    svg("text", { x: 12, y: 34, class: "more" }, moreOf(node)),
    svg("title", {}, `${node.kind} ${exchangeName(node.name)}`),
  );
}

function hrefOf({ kind, vhost, name }) {
  return kind === "publisher" ? null : to([`${kind}s`, vhost, name]);
}

function moreOf({ kind, type, rate: flow, ready }) {
  const waiting = ready === undefined ? "queue" : `${short(ready)} ready`;
  const words = [{ publisher: "publisher", exchange: type, queue: waiting }[kind]];
  if (flow !== undefined) words.push(rate(flow));
  return words.join(" · ");
}

/** Cuts by code points, not UTF-16 units. */
function clipped(text, most = LETTERS) {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

/** Highlights the neighbours of the node under the pointer or with the focus. */
function light(picture, edges, lines, boxes) {
  const byKey = new Map(boxes.map((each) => [each.dataset.key, each]));
  const show = (key) => {
    picture.classList.toggle("dimmed", key !== null);
    boxes.forEach((each) => each.classList.remove("lit"));
    byKey.get(key)?.classList.add("lit");
    edges.forEach(({ from, to: target }, at) => {
      const isLit = from === key || target === key;
      lines[at].path.classList.toggle("lit", isLit);
      lines[at].words?.classList.toggle("lit", isLit);
      if (isLit) for (const end of [from, target]) byKey.get(end).classList.add("lit");
    });
  };
  const keyOf = (event) => event.target.closest(".node")?.dataset.key ?? null;
  for (const kind of ["pointerover", "focusin"]) picture.addEventListener(kind, (event) => show(keyOf(event)));
  for (const kind of ["pointerleave", "focusout"]) picture.addEventListener(kind, () => show(null));
}
