// One job: graph, vertices, accumulators, failures, log. Data in, HTML out.

import { html, table, state, count, rate, percent, duration, size, at, load } from "./html.js";
import { graph } from "./graph.js";

export function jobList(jobs) {
  const columns = [
    ["job", (j) => html`<a href="#/${j.jid}"><b>${j.name}</b></a>`],
    ["state", (j) => state(j.state)],
    ["since", (j) => at(j["start-time"])],
    ["duration", (j) => duration(j.duration), "n"],
    ["tasks", (j) => j.tasks.total, "n"],
  ];
  return html`<div class="card"><h2>Jobs of this driver</h2>${table(columns, jobs, "no job has been started")}</div>`;
}

export function overview({ job, operators, checkpoints }, base) {
  const counts = checkpoints.counts, latest = checkpoints.latest.completed;
  const source = operators.filter((o) => o.isHead && !o.recordsIn).reduce((sum, o) => sum + (o.outPerSecond || 0), 0);
  const tiles = [
    ["records/s from sources", rate(source) || "–"],
    ["checkpoints", html`${count(counts.completed)} <span class="soft">${counts.failed ? `${counts.failed} failed` : ""}</span>`],
    ["latest checkpoint", latest ? `${duration(latest.end_to_end_duration)}, ${size(latest.state_size)}` : "–"],
    ["restarts", job.restarts],
    ["up", duration(job.duration)],
  ];
  const columns = [
    ["operator", (o) => html`${o.isHead ? "" : html`<span class="soft">└ </span>`}${o.name} <span class="soft">${o.uid === o.name || o.uid.includes("~") ? "" : o.uid}</span>`],
    ["par", (o) => o.parallelism, "n"],
    ["in", (o) => count(o.recordsIn), "n"],
    ["out", (o) => count(o.recordsOut), "n"],
    ["in/s", (o) => count(o.inPerSecond), "n"],
    ["out/s", (o) => count(o.outPerSecond), "n"],
    ["load", (o) => o.isHead && o.busy !== null ? load(o.busy, o.backPressured) : ""],
    ["busy", (o) => o.isHead ? percent(o.busy) : "", "n"],
    ["back-pressured", (o) => o.isHead ? percent(o.backPressured) : "", "n"],
    ["state", (o) => o.stateSize ? size(o.stateSize) : "", "n"],
    ["event time lag", (o) => duration(o.watermarkLag), "n"],
    ["line", (o) => html`<span class="soft">${o.line.split("/").pop()}</span>`],
  ];
  return html`<div class="tiles">${tiles.map(([name, value]) => html`<div class="tile"><span class="soft">${name}</span><b>${value}</b></div>`)}</div>
${graph(job.plan, operators, null, (id) => `${base}/vertex/${id}`)}
<div class="card">${table(columns, operators)}</div>`;
}

const TABS = [["", "Subtasks"], ["metrics", "Task metrics"], ["watermarks", "Watermarks"], ["accumulators", "Accumulators"], ["backpressure", "Back-pressure"]];

export const vertexPaths = { "": "", metrics: "/subtasks/metrics", watermarks: "/watermarks", accumulators: "/subtasks/accumulators", backpressure: "/backpressure" };

export const tabs = (entries, current, label) => html`<nav class="${label}">${entries.map(([key, name, href]) => key === current ? html`<a href="${href}" aria-current="true">${name}</a>` : html`<a href="${href}">${name}</a>`)}</nav>`;

export function vertex({ job, operators }, base, id, tab, data) {
  const own = job.vertices.find((v) => v.id === id);
  const links = TABS.map(([key, name]) => [key, name, `${base}/vertex/${id}${key ? `/${key}` : ""}`]);
  return html`${graph(job.plan, operators, id, (other) => `${base}/vertex/${other}${tab ? `/${tab}` : ""}`)}
<div class="card"><h2>${own ? own.name : "unknown vertex"}</h2>${tabs(links, tab, "inner")}${data === null ? html`<p class="soft">loading</p>` : TAB_VIEWS[tab](data)}</div>`;
}

const TAB_VIEWS = {
  "": (data) => table([
    ["subtask", (s) => s.subtask, "n"], ["status", (s) => state(s.status)], ["records in", (s) => count(s.metrics["read-records"]), "n"],
    ["records out", (s) => count(s.metrics["write-records"]), "n"], ["busy", (s) => duration(s.metrics["accumulated-busy-time"]), "n"],
    ["idle", (s) => duration(s.metrics["accumulated-idle-time"]), "n"], ["back-pressured", (s) => duration(s.metrics["accumulated-backpressured-time"]), "n"],
    ["since", (s) => at(s["start-time"])], ["where", (s) => s.endpoint],
  ], data.subtasks),
  metrics: (data) => table([["metric", (m) => m.id], ["min", (m) => count(m.min), "n"], ["max", (m) => count(m.max), "n"], ["average", (m) => count(m.avg), "n"], ["sum", (m) => count(m.sum), "n"]], data),
  watermarks: (data) => table([["subtask", (w) => w.id.split(".")[0], "n"], ["watermark", (w) => w.value, "n"], ["event time", (w) => Math.abs(Number(w.value)) < 8e15 ? new Date(Number(w.value)).toISOString() : "the end"]], data, "no watermark has come"),
  accumulators: (data) => table([["subtask", (a) => a.subtask, "n"], ["counter", (a) => a.name], ["value", (a) => count(Number(a.value)), "n"]],
    data.subtasks.flatMap((s) => s["user-accumulators"].map((a) => ({ ...a, subtask: s.subtask }))), "no counters: ctx.counter(name) makes one"),
  backpressure: (data) => table([["subtask", (s) => s.subtask, "n"], ["level", (s) => s["backpressure-level"]], ["", (s) => load(s.busyRatio, s.ratio)],
    ["back-pressured", (s) => percent(s.ratio), "n"], ["idle", (s) => percent(s.idleRatio), "n"], ["busy", (s) => percent(s.busyRatio), "n"]], data.subtasks),
};

export const accumulators = (data) => html`<div class="card"><h2>Counters, added up over subtasks</h2>${table([["counter", (a) => a.name], ["value", (a) => count(Number(a.value)), "n"]], data["user-task-accumulators"], "no counters: ctx.counter(name) makes one")}</div>`;

export function failures(data) {
  const entries = data.exceptionHistory.entries;
  if (!entries.length) return html`<div class="card"><p class="soft">no failure so far</p></div>`;
  return entries.map((e) => html`<div class="card"><b class="FAILED">${e.exceptionName}</b> <span class="soft">${at(e.timestamp)} · attempt ${e.attempt}${e.taskName ? ` · ${e.taskName}` : ""}${e["user-line"] ? ` · ${e["user-line"]}` : ""}
· ${e["restart-in-ms"] === null ? "no restart" : `restarted after ${duration(e["restart-in-ms"])}`}</span><pre>${e.stacktrace}</pre></div>`);
}

export const log = (lines) => html`<div class="card"><h2>Log of the driver and of your functions</h2><pre class="log" data-keep="log">${lines.map((l) => html`<span class="soft">${at(l.at * 1000)}</span> <span class="${l.level === "ERROR" ? "FAILED" : l.level === "WARNING" ? "RESTARTING" : ""}">${l.level}</span> <span class="soft">[${l.attempt}${l.uid ? ` ${l.uid}#${l.subtask}` : ""}] ${l.logger}:</span> ${l.message}
`)}</pre></div>`;

export const settings = (config, url) => html`<div class="card"><h2>Settings</h2>${table([["setting", (e) => e[0]], ["value", (e) => e[1], "wide"]], Object.entries(config["execution-config"]["user-config"]))}</div>`;
