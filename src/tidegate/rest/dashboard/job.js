// One job: its head with the buttons, the tabs, and what is below them.

import { get } from "./api.js";
import { accumulatorsTab, pressureTab, subtasksTab, watermarksTab } from "./vertex.js";
import { buttons } from "./actions.js";
import { checkpointsTab } from "./checkpoints.js";
import { h } from "./dom.js";
import { exceptionsTab } from "./failures.js";
import { flameTab } from "./flame.js";
import * as format from "./format.js";
import { graph } from "./graph.js";
import { logTab } from "./log.js";
import { metricsTab } from "./metrics.js";
import { overviewTab } from "./overview.js";
import { badge, tabs } from "./pieces.js";
import { configTab } from "./settings.js";
import { timelineTab } from "./timeline.js";
import { workersTab } from "./workers.js";

const OF_VERTEX = {
  subtasks: ["Subtasks", subtasksTab], metrics: ["Metrics", metricsTab], backpressure: ["Back-pressure", pressureTab], watermarks: ["Watermarks", watermarksTab],
  accumulators: ["Accumulators", accumulatorsTab], flamegraph: ["Flame graph", flameTab],
};
const OF_JOB = {
  checkpoints: ["Checkpoints", checkpointsTab], exceptions: ["Failures", exceptionsTab], timeline: ["Timeline", timelineTab], workers: ["Workers", workersTab],
  log: ["Log", logTab], configuration: ["Configuration", configTab],
};
const ENDED = ["FINISHED", "CANCELED", "FAILED"];
const WIDE = 720; // pixels: below, a vertex is chosen from a list, and its tabs show no graph

export async function jobPage({ job: id, tab, more }, width) {
  const base = `/jobs/${encodeURIComponent(id)}`;
  const link = (...parts) => `#${[base, ...parts.map(encodeURIComponent)].join("/")}`;
  const [job, { groups }] = await Promise.all([get(base), get(`${base}/failures`)]);
  const context = { base, job, link, more, tab, width, vertices: job.vertices, failures: groups, isWide: width >= WIDE };
  const ended = ENDED.includes(job.state);
  const below = OF_JOB[tab] ? await OF_JOB[tab][1](context) : await withGraph(context);
  const shown = [["overview", "Overview"], ...Object.entries(OF_VERTEX).map(([key, [title]]) => [key, title]), ...Object.entries(OF_JOB).map(([key, [title]]) => [key, title])];
  return {
    title: `${job.name} · ${job.state} · Tidegate`,
    crumbs: [h("span", null, job.name)],
    ended,
    nodes: [head(context, ended), tabs(shown, tab, (key) => (OF_VERTEX[key] && OF_VERTEX[tab] && more[0] ? link(key, more[0]) : link(key))), below],
  };
}

function head({ base, job, failures, link }, ended) {
  const since = job.timestamps[job.state] || job["start-time"];
  const word = `${job.state.toLowerCase()} ${ended ? "at" : "since"}`;
  return h("div", { class: "head" },
    h("div", null,
      h("h1", null, job.name, " ", badge(job.state)),
      h("p", { class: "facts" },
        `started ${format.time(job["start-time"])} · for ${format.span(job.duration)}${since > job["start-time"] ? ` · ${word} ${format.time(since)}` : ""}`,
        ` · attempt ${job.attempt || format.NOTHING} · ${format.count(job.restarts)} ${job.restarts === 1 ? "restart" : "restarts"}`),
      trouble(job, failures, link)),
    buttons(base, job, ended));
}

// What a job that does not run waits for, or died of.
function trouble(job, failures, link) {
  if (!["CREATED", "RESTARTING", "FAILED"].includes(job.state)) return null;
  const failure = failures[0];
  const newest = failure?.times[0];
  if (job.state !== "RESTARTING" || !newest || newest.restartIn === null || newest.attempt !== job.attempt) {
    if (!job["status-detail"]) return null;
    return h("p", { class: "trouble" }, failure && job.state === "FAILED" ? h("a", { href: link("exceptions") }, job["status-detail"]) : job["status-detail"]);
  }
  const left = newest.at + newest.restartIn - job.now;
  return h("p", { class: "trouble" }, left > 500 ? `Restarts in ${Math.ceil(left / 1000)} s, after ` : "Restarts now, after ", h("a", { href: link("exceptions") }, failure.message.split("\n")[0]),
    failure.task ? ` in ${failure.task}` : null, failure.count > 1 ? `, ${failure.count} times so far` : null);
}

// The newest failure, while the job has not recovered from it.
const unsettled = (job, failures) => (["RUNNING", "FINISHED", "CANCELED"].includes(job.state) ? null : failures[0] ?? null);

async function withGraph(context) {
  const { base, job, link, tab, more, width, failures, isWide } = context;
  const { operators, now, bottleneck } = await get(`${base}/operators`);
  const of = OF_VERTEX[tab]?.[1] ?? null;
  const selected = of ? job.vertices.find((vertex) => vertex.id === more[0]) ?? job.vertices[0] : null;
  const failure = unsettled(job, failures);
  const picture = !of || isWide
    ? graph(job.plan, operators, { width, selected: selected?.id, state: job.state, failed: failure?.vertex, failedUid: failure?.uid, bottleneck: bottleneck?.isBottleneck ? bottleneck.vertex : null, link: (vertex) => link(of ? tab : "subtasks", vertex) })
    : null;
  if (!of) return overviewTab({ ...context, operators, now, bottleneck, picture });
  // One way to choose a vertex: its box, or where there is no room for boxes its name.
  const chosen = isWide ? h("h2", { class: "of" }, selected.name) : tabs(job.vertices.map((vertex) => [vertex.id, vertex.name]), selected.id, (vertex) => link(tab, vertex), "choice");
  return [picture, chosen, await of({ ...context, vertex: selected, path: `${base}/vertices/${selected.id}`, operators })];
}
