// The tabs of one vertex: subtasks, task metrics, watermarks, accumulators, back-pressure.

import { get, values } from "./api.js";
import { card, h, table } from "./dom.js";
import { hotKeys } from "./explain.js";
import * as format from "./format.js";
import { badge } from "./pieces.js";
import { bars, load } from "./plot.js";

const indexes = (vertex) => Array.from({ length: vertex.parallelism }, (_, index) => index);

export async function subtasksTab({ path, vertex, operators }) {
  const [details, pressure, found] = await Promise.all([get(path), get(`${path}/backpressure`),
    values(`${path}/metrics`, indexes(vertex).flatMap((i) => ["numRecordsInPerSecond", "numRecordsOutPerSecond", "inboxBytes"].map((name) => `${i}.${name}`)))]);
  const hot = operators.filter((operator) => operator.vertex === vertex.id).flatMap((operator) => operator.hotKeys);
  return [card("Subtasks", table(
    [["Subtask", 1], ["Status"], ["Attempt", 1], ["Host: process"], ["Records in", 1], ["Records out", 1], ["Bytes in", 1], ["Bytes out", 1], ["In /s", 1], ["Out /s", 1], ["Load"], ["Inbox", 1], ["Started"], ["For", 1]],
    details.subtasks.map((task, i) => {
      const part = pressure.subtasks[i];
      const isKnown = part && part.busyRatio + part.idleRatio + part.ratio > 0;
      return [task.subtask, badge(task.status), task.attempt + 1, task.endpoint, format.count(task.metrics["read-records"]), format.count(task.metrics["write-records"]),
        format.bytes(task.metrics["read-bytes"]), format.bytes(task.metrics["write-bytes"]),
        format.rate(found.get(`${i}.numRecordsInPerSecond`)), format.rate(found.get(`${i}.numRecordsOutPerSecond`)),
        isKnown ? load(part.busyRatio, part.ratio, part.idleRatio) : load(null), format.bytes(found.get(`${i}.inboxBytes`)), format.time(task["start-time"]), format.span(task.duration)];
    }))), hot.length ? card("Hottest keys of late", hotKeys(hot), h("p", { class: "hint" }, "From a sample. A key is processed by one subtask: one that has a large part of the records cannot be spread.")) : null];
}

export async function pressureTab({ path }) {
  const pressure = await get(`${path}/backpressure`);
  return card("Back-pressure", h("p", null, "A subtask is back-pressured while it waits for those behind it. The slow one is the first busy vertex behind it."),
    table([["Subtask", 1], ["Back-pressured", 1], ["Idle", 1], ["Busy", 1], ["Load"], ["Level"]],
      pressure.subtasks.map((part) => [part.subtask, format.percent(part.ratio), format.percent(part.idleRatio), format.percent(part.busyRatio),
        part.busyRatio + part.idleRatio + part.ratio > 0 ? load(part.busyRatio, part.ratio, part.idleRatio) : load(null), h("span", { class: `level-${part.backpressureLevel}` }, part.backpressureLevel.toUpperCase())])));
}

export async function watermarksTab({ base, path, vertex }) {
  const [marks, { now }] = await Promise.all([get(`${path}/watermarks`), get(base)]);
  const found = new Map(marks.map(({ id, value }) => [Number(id.split(".")[0]), value]));
  const lag = (value) => (value === undefined || Number(value) > 8.64e15 ? format.NOTHING : format.span(Math.max(0, now - Number(value))));
  return card("Watermarks", table([["Subtask", 1], ["Watermark (UTC)"], ["Behind the clock", 1], ["Milliseconds", 1]],
    indexes(vertex).map((i) => [i, found.has(i) ? format.eventTime(found.get(i)) : "No watermark", lag(found.get(i)), found.get(i) ?? format.NOTHING])));
}

export async function accumulatorsTab({ base, path }) {
  const [whole, subtasks] = await Promise.all([get(`${base}/accumulators`), get(`${path}/subtasks/accumulators`)]);
  const names = [...new Set(subtasks.subtasks.flatMap((task) => task["user-accumulators"].map(({ name }) => name)))].sort();
  const of = (task, name) => task["user-accumulators"].find((entry) => entry.name === name)?.value;
  const total = (name) => subtasks.subtasks.reduce((sum, task) => sum + Number(of(task, name) ?? 0), 0);
  return [
    card("Accumulators of this vertex", table([["Name"], ["Total", 1], ...subtasks.subtasks.map((task) => [`Subtask ${task.subtask}`, 1])],
      names.map((name) => [name, format.count(total(name)), ...subtasks.subtasks.map((task) => format.count(of(task, name)))]), { none: "None: ctx.counter(\"name\") makes one" })),
    card("Of the whole job", table([["Name"], ["Type"], ["Total", 1]], whole["user-task-accumulators"].map((entry) => [entry.name, entry.type, format.count(entry.value)])),
      h("p", { class: "hint" }, "Counters count from zero in each attempt.")),
  ];
}

// Metrics: all of them in a table, the chosen one as a plot of what has been seen since it was chosen.

const seen = { key: "", points: [] };
const SEEN = 120;

export async function metricsTab({ path, vertex, more, link }) {
  const names = (await get(`${path}/metrics`)).map(({ id }) => id);
  const found = await values(`${path}/metrics`, names);
  const plain = [...new Set(names.map((name) => name.replace(/^\d+\./, "")))].sort((a, b) => a.includes(".") - b.includes(".") || (a < b ? -1 : 1));
  const reads = indexes(vertex).some((i) => found.get(`${i}.numRecordsIn`) > 0); // a source does not
  const chosen = plain.includes(more[1]) ? more[1] : `numRecords${reads ? "In" : "Out"}PerSecond`;
  const key = `${path} ${chosen}`;
  if (seen.key !== key) Object.assign(seen, { key, points: [] });
  const now = indexes(vertex).map((i) => found.get(`${i}.${chosen}`) ?? 0);
  const last = seen.points.at(-1);
  if (!last || Date.now() - last.at > 800) seen.points.push({ at: Date.now(), label: format.time(Date.now()), tick: format.time(Date.now()), values: [Math.max(0, now.reduce((a, b) => a + b, 0))] });
  seen.points.splice(0, seen.points.length - SEEN);
  const number = (value) => (value === undefined ? format.NOTHING : Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumFractionDigits: 1 }));
  return [
    card(null, bars(`${chosen}, all subtasks together, since this page shows it`, seen.points, [[chosen, "one"]], number, { tick: format.short })),
    card("Task metrics", table([["Metric"], ...indexes(vertex).map((i) => [`Subtask ${i}`, 1])],
      plain.map((name) => [h("a", { href: link("metrics", vertex.id, name), "aria-current": name === chosen ? "true" : null }, name), ...indexes(vertex).map((i) => number(found.get(`${i}.${name}`)))]),
      { none: "None yet: they come with the first heartbeats" })),
  ];
}
