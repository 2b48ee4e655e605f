// One job: its head with the buttons, the tabs, and what is below them.

import { get } from "./api.js";
import { accumulatorsTab, metricsTab, pressureTab, subtasksTab, watermarksTab } from "./vertex.js";
import { buttons } from "./actions.js";
import { checkpointsTab } from "./checkpoints.js";
import { card, figure, h, table } from "./dom.js";
import { exceptionsTab, configTab, logTab } from "./records.js";
import * as format from "./format.js";
import { graph } from "./graph.js";
import { badge, tabs } from "./pieces.js";
import { load } from "./plot.js";

const TABS = [
  ["overview", "Overview"], ["subtasks", "Subtasks"], ["metrics", "Task metrics"], ["watermarks", "Watermarks"],
  ["accumulators", "Accumulators"], ["backpressure", "Back-pressure"], ["checkpoints", "Checkpoints"],
  ["exceptions", "Exceptions"], ["log", "Log"], ["configuration", "Configuration"],
];
const OF_VERTEX = { subtasks: subtasksTab, metrics: metricsTab, watermarks: watermarksTab, accumulators: accumulatorsTab, backpressure: pressureTab };
const OTHERS = { checkpoints: checkpointsTab, exceptions: exceptionsTab, log: logTab, configuration: configTab };
const ENDED = ["FINISHED", "CANCELED", "FAILED"];

export async function jobPage({ job: id, tab, more }, width) {
  const base = `/jobs/${encodeURIComponent(id)}`;
  const link = (...parts) => `#${[base, ...parts.map(encodeURIComponent)].join("/")}`;
  const job = await get(base);
  const context = { base, job, link, more, tab, vertices: job.vertices };
  const ended = ENDED.includes(job.state);
  const below = OTHERS[tab] ? await OTHERS[tab](context) : await withGraph(context, width);
  return {
    title: `${job.name} · ${job.state} · Tidegate`,
    crumbs: [h("span", null, job.name)],
    ended,
    nodes: [head(context, ended), tabs(TABS, tab, (key) => (OF_VERTEX[key] && OF_VERTEX[tab] && more[0] ? link(key, more[0]) : link(key))), below],
  };
}

function head({ base, job }, ended) {
  const since = job.timestamps[job.state] || job["start-time"];
  return h("div", { class: "head" },
    h("div", null,
      h("h1", null, job.name, " ", badge(job.state)),
      h("p", { class: "facts" },
        job["status-detail"] ? h("strong", null, job["status-detail"], " · ") : null,
        `started ${format.time(job["start-time"])} · for ${format.span(job.duration)} · ${job.state.toLowerCase()} since ${format.time(since)}`,
        ` · attempt ${job.attempt || format.NOTHING} · ${format.count(job.restarts)} ${job.restarts === 1 ? "restart" : "restarts"}`)),
    buttons(base, job, ended));
}

async function withGraph(context, width) {
  const { base, job, link, tab, more } = context;
  const { operators, now } = await get(`${base}/operators`);
  const of = OF_VERTEX[tab] ?? null;
  const selected = of ? job.vertices.find((vertex) => vertex.id === more[0]) ?? job.vertices[0] : null;
  const picture = graph(job.plan, operators, { width, selected: selected?.id, link: (vertex) => link(of ? tab : "subtasks", vertex) });
  if (of) {
    const chosen = tabs(job.vertices.map((vertex) => [vertex.id, vertex.name]), selected.id, (vertex) => link(tab, vertex), "choice");
    return [picture, chosen, await of({ ...context, vertex: selected, path: `${base}/vertices/${selected.id}`, operators })];
  }
  return [picture, await summary(context, operators, now)];
}

async function summary({ base, job, link }, operators, now) {
  const [checkpoints, exceptions] = await Promise.all([get(`${base}/checkpoints`), get(`${base}/exceptions?maxExceptions=1`)]);
  const latest = checkpoints.latest.completed;
  const failure = exceptions.exceptionHistory.entries[0];
  const sources = operators.filter((operator) => operator.isHead && !job.plan.nodes.find((node) => node.id === operator.vertex)?.inputs.length);
  const produced = sources.reduce((sum, operator) => sum + (operator.outPerSecond ?? 0), 0);
  const age = latest ? now - latest.latest_ack_timestamp : null;
  return [
    h("div", { class: "figures" },
      figure("Records from sources", format.rate(sources.some((s) => s.outPerSecond !== null) ? produced : null)),
      figure("Latest checkpoint", latest ? h("a", { href: link("checkpoints", "details", latest.id) }, `#${latest.id}`) : "None",
        latest ? `${format.span(latest.end_to_end_duration)} · ${format.bytes(latest.state_size)} · ${format.span(Math.max(0, age))} ago` : null),
      figure("Checkpoints", format.count(checkpoints.counts.completed), `${format.count(checkpoints.counts.failed)} failed · ${format.count(checkpoints.counts.in_progress)} in progress`),
      figure("State", format.bytes(latest?.state_size)),
      figure("Restarts", format.count(job.restarts), failure ? h("a", { href: link("exceptions") }, `last failure ${format.time(failure.timestamp)}`) : "no failure")),
    card("Operators", table(
      [["Operator"], ["Parallelism", 1], ["In", 1], ["Out", 1], ["In /s", 1], ["Out /s", 1], ["Busy", 1], ["Back-pressured", 1], ["Load"], ["Watermark lag", 1], ["State", 1]],
      operators.map((operator) => [
        h("a", { href: link("subtasks", operator.vertex), title: operator.line, class: operator.isHead ? null : "chained" }, operator.name),
        operator.parallelism, format.count(operator.recordsIn), format.count(operator.recordsOut), format.rate(operator.inPerSecond), format.rate(operator.outPerSecond),
        format.percent(operator.busy), format.percent(operator.backPressured), load(operator.busy, operator.backPressured, operator.idle),
        format.span(operator.watermarkLag), format.bytes(operator.stateSize),
      ]))),
  ];
}
