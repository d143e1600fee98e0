// Sparkline of recent values, without axes, beside the latest value as a number.

import { el, setAttribute, setText, svg } from "../dom.js";

const WIDTH = 120;
const HEIGHT = 32;
/** Padding for half of the stroke. */
const EDGE = 2;
/** Steps along the width: a line grows from the right until there are as many points. */
const STEPS = 59;

/** A card with a title, the latest value and its sparkline. `update(series, words)` redraws it. */
export function sparkCard(title, tone) {
  const value = el("p", { class: "figure" }, "–");
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" },
    area,
    line,
  );
  const element = el("div", { class: "card", "data-tone": tone }, el("h3", {}, title), value, picture);
  const update = (series, words) => {
    setText(value, series.points.length ? words(series.last) : "–");
    const points = places(series.points);
    const path = points.map(([x, y], at) => `${at ? "L" : "M"}${x} ${y}`).join("");
    setAttribute(line, "d", path);
    const closed = points.length > 1 ? `${path}L${points.at(-1)[0]} ${HEIGHT}L${points[0][0]} ${HEIGHT}Z` : "";
    setAttribute(area, "d", closed);
  };
  return { element, update };
}

/** The coordinates of the points; the maximum is at the top, and zero is always at the bottom. */
export function places(points) {
  const highest = Math.max(...points, 0);
  return points.map((point, at) => {
    const x = WIDTH - ((points.length - 1 - at) * WIDTH) / STEPS;
    const share = highest > 0 ? point / highest : 0;
    return [round(x), round(HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE))];
  });
}

function round(number) {
  return Math.round(number * 10) / 10;
}
