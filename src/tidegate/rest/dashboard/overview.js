// The first page of a job: the graph, what holds it back, its numbers now and over the last half hour, its operators.

import { get } from "./api.js";
import { card, figure, h, table } from "./dom.js";
import * as format from "./format.js";
import { COLOURS, UNITS, lines, load, loadLegend, plotWidth } from "./plot.js";

export async function overviewTab(context) {
  const { base, job, picture } = context;
  const [checkpoints, past, timeline] = await Promise.all([get(`${base}/checkpoints`), get(`${base}/past`), get(`${base}/timeline`)]);
  return [verdict(context), h("section", { class: "card graph-card" }, picture, loadLegend()), figures(context, checkpoints), plots(context, past, timeline.attempts), operatorTable(context)];
}

function verdict({ bottleneck, job, link }) {
  if (!bottleneck || job.state !== "RUNNING") return null;
  return h("p", { class: `verdict ${bottleneck.isBottleneck ? "slow" : ""}` }, bottleneck.vertex ? h("a", { href: link("subtasks", bottleneck.vertex) }, bottleneck.sentence) : bottleneck.sentence,
    bottleneck.advice ? h("span", { class: "hint" }, ` ${bottleneck.advice}`) : null);
}

function figures({ job, link, operators, now, failures }, checkpoints) {
  const latest = checkpoints.latest.completed;
  const failure = failures[0];
  const sources = operators.filter((operator) => operator.isHead && !job.plan.nodes.find((node) => node.id === operator.vertex)?.inputs.length);
  const produced = sources.reduce((sum, operator) => sum + (operator.outPerSecond ?? 0), 0);
  const age = latest ? now - latest.latest_ack_timestamp : null;
  const restored = checkpoints.latest.restored;
  return h("div", { class: "figures" },
    figure("Records from sources", format.rate(sources.some((s) => s.outPerSecond !== null) ? produced : null)),
    figure("Latest checkpoint", latest ? h("a", { href: link("checkpoints", "details", latest.id) }, `#${latest.id}`) : "None",
      latest ? `${format.span(latest.end_to_end_duration)} · ${format.span(Math.max(0, age))} ago` : null),
    figure("Checkpoints", format.count(checkpoints.counts.completed), `${format.count(checkpoints.counts.failed)} failed · ${format.count(checkpoints.counts.in_progress)} in progress`),
    figure("State", format.bytes(latest?.state_size), restored ? `restored from #${restored.id}` : null),
    figure("Restarts", format.count(job.restarts), failure ? h("a", { href: link("exceptions") }, `last failure ${format.time(failure.last)}`) : "no failure"));
}

function plots({ width, job }, past, attempts) {
  const each = plotWidth(width, 4);
  const marks = attempts.filter((attempt) => attempt.ended !== null && attempt.end !== "FINISHED").map((attempt) => [attempt.ended, attempt.end === "RESCALED" ? "rescaled" : `${attempt.attempt} ended: ${attempt.why || attempt.end}`]);
  const shared = { width: each, marks, none: job["end-time"] > 0 ? "Nothing was seen" : "Nothing yet", gap: past.step * 3, from: past.at[0], to: Math.max(past.at.at(-1) ?? 0, job["end-time"] > 0 ? job["end-time"] : past.now) };
  const busiest = [...past.vertices].sort((a, b) => Math.max(0, ...b.busy) - Math.max(0, ...a.busy)).slice(0, 4);
  return card("The last 30 minutes", h("div", { class: "plots" },
    lines("Records from sources", past.at, [["records", COLOURS[0], past.fromSourcesPerSecond]], UNITS.rate, shared),
    lines("Busiest subtask of each vertex", past.at, busiest.map((vertex, i) => [vertex.name, COLOURS[i], vertex.busy]), UNITS.part, shared),
    lines("Watermark lag", past.at, [["lag", COLOURS[0], past.lag.map((lag) => (lag === null ? null : Math.max(0, lag)))]], UNITS.span, { ...shared, none: "No event time" }),
    lines("Newest checkpoint took", past.at, [["duration", COLOURS[0], past.checkpointDuration]], UNITS.span, { ...shared, none: "No checkpoint" })),
  marks.length ? h("p", { class: "hint" }, h("i", { class: "mark-sign" }), "an attempt ended: a failure, or a rescale") : null);
}

// By columns or record by record; why, and what to change, when it is pointed at.
function form(found) {
  if (!found) return null;
  const reason = [found.why, found.instead].filter(Boolean).join(". ");
  return h("span", { title: reason || null }, found.byColumns ? "columns" : "records");
}

function operatorTable({ link, operators }) {
  return card("Operators", table(
    [["Operator"], ["Works"], ["Subtasks", 1], ["In", 1], ["Out", 1], ["In /s", 1], ["Out /s", 1], ["Busy", 1], ["Back-pressured", 1], ["Load"], ["Watermark lag", 1], ["State", 1]],
    operators.map((operator) => {
      const of = (value) => (operator.isHead ? value : h("span", { class: "none", title: "as above: it shares the time of the operator that it is chained to" }, "↑"));
      return [
        h("a", { href: link("subtasks", operator.vertex), title: operator.line, class: operator.isHead ? null : "chained" }, operator.name),
        form(operator.form), operator.parallelism, format.count(operator.recordsIn), format.count(operator.recordsOut), format.rate(operator.inPerSecond), format.rate(operator.outPerSecond),
        of(format.percent(operator.busy)), of(format.percent(operator.backPressured)), operator.isHead ? load(operator.busy, operator.backPressured, operator.idle) : null,
        format.span(operator.watermarkLag), format.bytes(operator.stateSize),
      ];
    }), { class: "stacked inline named" }));
}
