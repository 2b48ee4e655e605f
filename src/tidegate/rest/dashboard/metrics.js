// Metrics of a vertex: all of them in a table that can be searched; those that are chosen as plots with a line for each subtask.

import { get, values } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";
import { COLOURS, UNITS, lines, plotWidth } from "./plot.js";

const KEPT = 900; // moments: a quarter of an hour at one a second
const MAX_CHOSEN = 4;
const seen = { key: "", times: [], found: [] }; // since this vertex is looked at
let search = "";

const indexes = (vertex) => Array.from({ length: vertex.parallelism }, (_, index) => index);

function unitOf(name) {
  const last = name.split(".").at(-1);
  if (/TimeMsPerSecond$/.test(last)) return [UNITS.part, (value) => value / 1000];
  if (/Bytes(In|Out)?(PerSecond)?$|Size$|Memory/.test(last)) return [UNITS.bytes, (value) => value];
  if (/Nanos$|^checkpointAlignmentTime$/.test(last)) return [UNITS.span, (value) => value / 1e6];
  if (/TimeMs$|Lag$|Duration$/.test(last)) return [UNITS.span, (value) => value];
  if (/PerSecond$/.test(last)) return [UNITS.rate, (value) => value];
  return [UNITS.count, (value) => value];
}

export async function metricsTab({ path, vertex, more, link, width }) {
  const names = (await get(`${path}/metrics`)).map(({ id }) => id);
  const found = await values(`${path}/metrics`, names);
  if (seen.key !== path) Object.assign(seen, { key: path, times: [], found: [] });
  if (!seen.times.length || Date.now() - seen.times.at(-1) > 800) {
    seen.times.push(Date.now());
    seen.found.push(found);
    seen.times.splice(0, seen.times.length - KEPT);
    seen.found.splice(0, seen.found.length - KEPT);
  }
  const plain = [...new Set(names.map((name) => name.replace(/^\d+\./, "")))].sort((a, b) => a.includes(".") - b.includes(".") || (a < b ? -1 : 1));
  const reads = indexes(vertex).some((i) => found.get(`${i}.numRecordsIn`) > 0); // a source does not
  const asked = (more[1] ?? "").split(",").filter((name) => plain.includes(name));
  const chosen = asked.length ? asked : [`numRecords${reads ? "In" : "Out"}PerSecond`, "busyTimeMsPerSecond"].filter((name) => plain.includes(name));
  const toggled = (name) => (chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen, name].slice(-MAX_CHOSEN)).join(",");
  const each = plotWidth(width, chosen.length);
  const plots = chosen.map((name) => {
    const [unit, convert] = unitOf(name);
    const of = (i) => seen.found.map((at) => (at.has(`${i}.${name}`) ? Math.max(0, convert(at.get(`${i}.${name}`))) : null));
    return lines(name, seen.times, indexes(vertex).slice(0, COLOURS.length).map((i) => [`subtask ${i}`, COLOURS[i], of(i)]), unit, { width: each, gap: 5000 });
  });
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = plain.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
  return [
    plots.length ? card("Since this page was opened", h("div", { class: "plots" }, plots), vertex.parallelism > COLOURS.length ? h("p", { class: "hint" }, `The first ${COLOURS.length} subtasks.`) : null) : null,
    card("Metrics",
      h("div", { class: "tools" }, h("input", { type: "search", name: "metric", placeholder: "Search", "aria-label": "Search metrics", oninput: (event) => { search = event.target.value; dispatchEvent(new Event("tidegate-changed")); } }),
        h("span", { class: "hint" }, `Click to plot, up to ${MAX_CHOSEN} at a time.`)),
      table([["Metric"], ...indexes(vertex).map((i) => [`Subtask ${i}`, 1])],
        shown.map((name) => [h("a", { href: link("metrics", vertex.id, toggled(name)), "aria-current": chosen.includes(name) ? "true" : null }, name), ...indexes(vertex).map((i) => format.metric(name, found.get(`${i}.${name}`)))]),
        { class: "pairs stacked named", none: plain.length ? "None has that in its name" : "None yet: they come with the first heartbeats" })),
  ];
}
