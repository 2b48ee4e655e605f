// Plots as SVG, drawn in the pixels that they get: letters keep their size on every screen. Bars for things that happened one
// after another, lines for what changes over time.

import { h, svg } from "./dom.js";
import * as format from "./format.js";

const HEIGHT = 150, LEFT = 62, BOTTOM = 20, TOP = 8, RIGHT = 8;
export const COLOURS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];

// What the axis counts in: how it is written, and where its round numbers are.
export const UNITS = {
  count: { show: format.short, steps: [1, 2, 2.5, 5, 10] },
  rate: { show: format.rate, steps: [1, 2, 2.5, 5, 10] },
  bytes: { show: format.bytes, base: 1024, steps: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] },
  span: { show: format.span, tops: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 4e3, 10e3, 20e3, 30e3, 60e3, 120e3, 240e3, 600e3, 1200e3, 1800e3, 3600e3, 7200e3, 14400e3, 43200e3, 86400e3] },
  part: { show: (value) => format.percent(value), tops: [1] },
};

// How wide each plot is in a card on a page of `width` pixels: two side by side where there is room for two.
export function plotWidth(width, number) {
  const room = width - (width > 640 ? 66 : 46); // what the page and the card keep free, see style.css
  return Math.floor(width >= 680 && number > 1 ? (room - 24) / 2 : room);
}

export function topOf(value, unit) {
  if (!(value > 0)) return unit.tops ? unit.tops[0] : 1;
  if (unit.tops) return unit.tops.find((top) => top >= value) ?? 86400e3 * Math.ceil(value / 86400e3);
  const base = unit.base ?? 10;
  const power = base ** Math.floor(Math.log(value) / Math.log(base) + 1e-9);
  return unit.steps.map((step) => step * power).find((top) => top >= value - 1e-9);
}

function axes(width, top, unit) {
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const lines = [0, top / 2, top].map((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value).toFixed(1), y2: y(value).toFixed(1) }),
    svg("text", { class: "tick", x: LEFT - 6, y: (y(value) + 4).toFixed(1), "text-anchor": "end" }, unit.show(value)),
  ]);
  return [y, lines];
}

const legend = (series) => (series.length > 1 ? series.map(([name, kind]) => h("span", { class: "legend" }, h("i", { class: kind }), name)) : null);

const framed = (title, series, width, ...content) => h("figure", { class: "plot", style: { width: `${width}px` } }, h("figcaption", null, h("b", null, title), legend(series)),
  svg("svg", { width, height: HEIGHT, role: "img", "aria-label": title }, content));

const span = (from, to, width) => [
  svg("text", { class: "tick", x: LEFT, y: HEIGHT - 5 }, format.time(from)),
  svg("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, format.time(to)),
];

// points: [{at, label, values: [..]}], the oldest first; series: [[name, class]]; values are stacked.
export function bars(title, points, series, unit, options) {
  const { width } = options;
  const top = topOf(Math.max(0, ...points.map((p) => p.values.reduce((a, b) => a + b, 0))), unit);
  const step = (width - LEFT - RIGHT) / Math.max(points.length, 12);
  const [y, lines] = axes(width, top, unit);
  const columns = points.map((point, i) => {
    let below = 0;
    const x = LEFT + i * step;
    const parts = point.values.map((value, n) => {
      const from = y(below), to = y(below + value);
      below += value;
      return svg("rect", { class: `bar ${point.failed ? "failed" : series[n][1]}`, x: x.toFixed(1), y: to.toFixed(1),
        width: Math.max(1, step - (step > 4 ? 1 : 0)).toFixed(1), height: Math.max(value > 0 ? 1 : 0, from - to).toFixed(1) });
    });
    const texts = point.values.map((value, n) => (series.length > 1 ? `${series[n][0]}: ` : "") + unit.show(value));
    const target = svg("rect", { class: "target", x: x.toFixed(1), y: TOP, width: Math.max(1, step).toFixed(1), height: HEIGHT - TOP - BOTTOM },
      svg("title", null, `${point.label}\n${texts.join("\n")}`));
    return svg("g", { class: options.go ? "go" : null, onclick: options.go ? () => options.go(point) : null }, parts, target);
  });
  return framed(title, series, width, lines, columns, points.length ? span(points[0].at, points.at(-1).at, width) : null);
}

// times: [ms, ..], the oldest first; series: [[name, class, [value or null, ..]]]; marks: [[ms, text]] are upright lines.
// Where nothing is known for longer than `gap` ms, the line is broken.
export function lines(title, times, series, unit, options) {
  const { width, gap = 15000, marks = [] } = options;
  const known = series.flatMap(([, , values]) => values).filter((value) => value !== null && value !== undefined);
  const top = topOf(Math.max(0, ...known), unit);
  const [first, last] = [options.from ?? times[0] ?? 0, options.to ?? times.at(-1) ?? 1];
  const x = (at) => LEFT + (width - LEFT - RIGHT) * Math.min(1, Math.max(0, last > first ? (at - first) / (last - first) : 1));
  const [y, grid] = axes(width, top, unit);
  const paths = series.map(([, kind, values]) => {
    let path = "", before = null;
    values.forEach((value, i) => {
      if (value === null || value === undefined) return;
      const isNew = before === null || times[i] - before > gap;
      path += `${isNew ? "M" : "L"}${x(times[i]).toFixed(1)},${y(value).toFixed(1)}`;
      if (isNew) path += "h.1"; // one moment alone is a dot
      before = times[i];
    });
    return svg("path", { class: `line ${kind}`, d: path });
  });
  const upright = marks.filter(([at]) => at >= first && at <= last).map(([at, text]) =>
    svg("g", { class: "mark" }, svg("line", { x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: TOP, y2: HEIGHT - BOTTOM }), svg("title", null, `${text}\n${format.time(at)}`)));
  const targets = times.map((at, i) => {
    const from = i ? (x(times[i - 1]) + x(at)) / 2 : LEFT, to = i + 1 < times.length ? (x(at) + x(times[i + 1])) / 2 : width - RIGHT;
    const texts = series.map(([name, , values]) => `${series.length > 1 ? `${name}: ` : ""}${unit.show(values[i])}`);
    return svg("rect", { class: "target", x: from.toFixed(1), y: TOP, width: Math.max(.5, to - from).toFixed(1), height: HEIGHT - TOP - BOTTOM }, svg("title", null, `${format.time(at)}\n${texts.join("\n")}`));
  });
  const ends = times.length ? span(first, last, width) : null;
  const none = known.length ? null : svg("text", { class: "tick", x: (LEFT + width) / 2, y: HEIGHT / 2 - 4, "text-anchor": "middle" }, options.none ?? "Nothing yet");
  return framed(title, series, width, grid, upright, paths, targets, ends, none);
}

// A share of one whole: parts are [class, 0..1, text].
export function share(parts, title) {
  return h("div", { class: "share", title: title ?? parts.map(([, part, text]) => `${text} ${Math.round(part * 100)}%`).join(" · ") },
    parts.map(([kind, part]) => h("i", { class: kind, style: { width: `${(Math.max(0, Math.min(1, part)) * 100).toFixed(1)}%` } })));
}

const HIGH = 0.8; // of its time; only then is busy a warning

export const load = (busy, pressed, idle) =>
  busy === null || busy === undefined ? share([], "not known yet") : share([[busy > HIGH ? "busy high" : "busy", busy, "busy"], ["pressed", pressed, "back-pressured"], ["idle", idle, "idle"]]);

export const loadLegend = () => h("p", { class: "legends" }, [["busy", "busy"], ["busy high", "busy, over 80%"], ["pressed", "back-pressured: waits for those after it"], ["idle", "idle"]]
  .map(([kind, name]) => h("span", { class: "legend" }, h("i", { class: kind }), name)));
