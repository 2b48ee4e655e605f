// Small plots as SVG: bars over time, one or more series, with a line to point at.

import { h, svg } from "./dom.js";

const WIDTH = 600, HEIGHT = 130, LEFT = 58, BOTTOM = 18, TOP = 8;

// points: [{at, label, values: [..]}], the oldest first; series: [[name, class]]; values are stacked.
export function bars(title, points, series, show, options = {}) {
  const top = niceTop(Math.max(0, ...points.map((p) => p.values.reduce((a, b) => a + b, 0))));
  const step = (WIDTH - LEFT - 4) / Math.max(points.length, 12);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const columns = points.map((point, i) => {
    let below = 0;
    const x = LEFT + i * step;
    const parts = point.values.map((value, n) => {
      const from = y(below), to = y(below + value);
      below += value;
      return svg("rect", { class: `bar ${point.failed ? "failed" : series[n][1]}`, x: x.toFixed(1), y: to.toFixed(1),
        width: Math.max(1, step - (step > 4 ? 1 : 0)).toFixed(1), height: Math.max(value > 0 ? 1 : 0, from - to).toFixed(1) });
    });
    const texts = point.values.map((value, n) => (series.length > 1 ? `${series[n][0]}: ` : "") + show(value));
    const target = svg("rect", { class: "target", x: x.toFixed(1), y: TOP, width: Math.max(1, step).toFixed(1), height: HEIGHT - TOP - BOTTOM },
      svg("title", null, `${point.label}\n${texts.join("\n")}`));
    return svg("g", { class: options.go ? "go" : null, onclick: options.go ? () => options.go(point) : null }, parts, target);
  });
  const lines = [0, top / 2, top].map((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(value).toFixed(1), y2: y(value).toFixed(1) }),
    svg("text", { class: "tick", x: LEFT - 6, y: (y(value) + 3.5).toFixed(1), "text-anchor": "end" }, (options.tick ?? show)(value)),
  ]);
  const ends = points.length ? [
    svg("text", { class: "tick", x: LEFT, y: HEIGHT - 4 }, points[0].tick),
    points.length * step > 260 ? svg("text", { class: "tick", x: (LEFT + points.length * step).toFixed(1), y: HEIGHT - 4, "text-anchor": "end" }, points.at(-1).tick) : null,
  ] : [];
  const legend = series.length > 1 ? series.map(([name, kind]) => h("span", { class: "legend" }, h("i", { class: kind }), name)) : null;
  return h("figure", { class: "plot" }, h("figcaption", null, title, legend),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title }, lines, columns, ends));
}

function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= value);
}

// A share of one whole: parts are [class, 0..1, text].
export function share(parts, title) {
  return h("div", { class: "share", title: title ?? parts.map(([, part, text]) => `${text} ${Math.round(part * 100)}%`).join(" · ") },
    parts.map(([kind, part]) => h("i", { class: kind, style: { width: `${(Math.max(0, Math.min(1, part)) * 100).toFixed(1)}%` } })));
}

export const load = (busy, pressed, idle) =>
  busy === null || busy === undefined ? share([], "not known yet") : share([["busy", busy, "busy"], ["pressed", pressed, "back-pressured"], ["idle", idle, "idle"]]);
