// The tabs of one vertex: subtasks, watermarks, accumulators, back-pressure. Metrics have a module of their own.

import { get, values } from "./api.js";
import { card, h, table } from "./dom.js";
import { hotKeys } from "./explain.js";
import * as format from "./format.js";
import { badge } from "./pieces.js";
import { load, loadLegend } from "./plot.js";

const indexes = (vertex) => Array.from({ length: vertex.parallelism }, (_, index) => index);

export async function subtasksTab({ path, vertex, operators }) {
  const [details, pressure, found] = await Promise.all([get(path), get(`${path}/backpressure`),
    values(`${path}/metrics`, indexes(vertex).flatMap((i) => ["numRecordsInPerSecond", "numRecordsOutPerSecond", "inboxBytes"].map((name) => `${i}.${name}`)))]);
  const hot = operators.filter((operator) => operator.vertex === vertex.id).flatMap((operator) => operator.hotKeys);
  return [card("Subtasks", table(
    [["Subtask", 1], ["Status"], ["Attempt", 1], ["Host: process"], ["Records in", 1], ["Records out", 1], ["Bytes in", 1], ["Bytes out", 1], ["In /s", 1], ["Out /s", 1], ["Load"], ["Inbox", 1], ["Started"], ["For", 1]],
    [...details.subtasks.map((task, i) => {
      const part = pressure.subtasks[i];
      const isKnown = part && part.busyRatio + part.idleRatio + part.ratio > 0;
      return [task.subtask, badge(task.status), task.attempt + 1, task.endpoint, format.count(task.metrics["read-records"]), format.count(task.metrics["write-records"]),
        format.bytes(task.metrics["read-bytes"]), format.bytes(task.metrics["write-bytes"]),
        format.rate(found.get(`${i}.numRecordsInPerSecond`)), format.rate(found.get(`${i}.numRecordsOutPerSecond`)),
        isKnown ? load(part.busyRatio, part.ratio, part.idleRatio) : load(null), format.bytes(found.get(`${i}.inboxBytes`)), format.time(task["start-time"]), format.span(task.duration)];
    }), ...(vertex.parallelism > 1 ? [["min", "Least"], ["avg", "Mean"], ["max", "Most"]].map(([key, name]) => aggregate(details.aggregated.metrics, key, name)) : [])], { class: "stacked inline" }), loadLegend()), hot.length ? card("Hottest keys of late", hotKeys(hot), h("p", { class: "hint" }, "From a sample. A key is processed by one subtask: one that has a large part of the records cannot be spread.")) : null];
}

function aggregate(metrics, key, name) {
  const of = (title, metric, show) => h("td", { class: "number", "data-title": title }, show(metrics[metric][key]));
  return h("tr", { class: "aggregate" }, h("td", { colspan: 4 }, name), of("Records in", "read-records", format.count), of("Records out", "write-records", format.count),
    of("Bytes in", "read-bytes", format.bytes), of("Bytes out", "write-bytes", format.bytes), h("td", { colspan: 6 }));
}

export async function pressureTab({ path }) {
  const pressure = await get(`${path}/backpressure`);
  return card("Back-pressure", h("p", null, "A subtask is back-pressured while it waits for those after it. The slow one is the first vertex after it that is busy and does not wait."),
    table([["Subtask", 1], ["Level"], ["Back-pressured", 1], ["Idle", 1], ["Busy", 1], ["Load"]],
      pressure.subtasks.map((part) => [part.subtask, h("span", { class: `level-${part.backpressureLevel}` }, part.backpressureLevel.toUpperCase()), format.percent(part.ratio), format.percent(part.idleRatio), format.percent(part.busyRatio),
        part.busyRatio + part.idleRatio + part.ratio > 0 ? load(part.busyRatio, part.ratio, part.idleRatio) : load(null)]), { class: "stacked inline" }));
}

export async function watermarksTab({ base, path, vertex }) {
  const [marks, { now }] = await Promise.all([get(`${path}/watermarks`), get(base)]);
  const found = new Map(marks.map(({ id, value }) => [Number(id.split(".")[0]), value]));
  const lag = (value) => (value === undefined || Number(value) > 8.64e15 ? format.NOTHING : format.span(Math.max(0, now - Number(value))));
  return card("Watermarks", table([["Subtask", 1], ["Watermark (UTC)"], ["Lag", 1], ["Milliseconds", 1]],
    indexes(vertex).map((i) => [i, found.has(i) ? format.eventTime(found.get(i)) : "No watermark", lag(found.get(i)), found.get(i) ?? format.NOTHING]), { class: "pairs stacked inline" }));
}

export async function accumulatorsTab({ base, path }) {
  const [whole, subtasks] = await Promise.all([get(`${base}/accumulators`), get(`${path}/subtasks/accumulators`)]);
  const names = [...new Set(subtasks.subtasks.flatMap((task) => task["user-accumulators"].map(({ name }) => name)))].sort();
  const of = (task, name) => task["user-accumulators"].find((entry) => entry.name === name)?.value;
  const total = (name) => subtasks.subtasks.reduce((sum, task) => sum + Number(of(task, name) ?? 0), 0);
  return [
    card("Accumulators of this vertex", table([["Name"], ["Total", 1], ...subtasks.subtasks.map((task) => [`Subtask ${task.subtask}`, 1])],
      names.map((name) => [name, format.count(total(name)), ...subtasks.subtasks.map((task) => format.count(of(task, name)))]), { class: "pairs", none: "None: ctx.counter(\"name\") makes one" })),
    card("Of the whole job", table([["Name"], ["Type"], ["Total", 1]], whole["user-task-accumulators"].map((entry) => [entry.name, entry.type, format.count(entry.value)]), { class: "pairs" }),
      h("p", { class: "hint" }, "Counters count from zero in each attempt.")),
  ];
}
