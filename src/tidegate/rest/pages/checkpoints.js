// Checkpoints of one job: overview, history, summary, configuration, and one explained.

import { html, table, state, count, duration, size, at } from "./html.js";
import { plot } from "./plots.js";

const PHASES = [["startDelay", "barrier's way"], ["alignment", "alignment"], ["sync", "synchronous part"], ["upload", "upload"], ["other", "other"]];

export function overview(data) {
  const { counts, latest } = data;
  const row = (name, c) => html`<tr><th>${name}</th><td>${c ? html`<b>${c.id}</b> <span class="soft">${at(c.trigger_timestamp || c.restore_timestamp)}</span>
${c.end_to_end_duration !== undefined ? `${duration(c.end_to_end_duration)}, ${size(c.state_size)}` : ""} <span class="FAILED">${c.failure_message || ""}</span> <span class="soft">${c.external_path || ""}</span>` : html`<span class="soft">none</span>`}</td></tr>`;
  const tiles = [["triggered", counts.total], ["in progress", counts.in_progress], ["completed", counts.completed], ["failed", counts.failed], ["restored", counts.restored]];
  return html`<div class="tiles" id="checkpoint-counts">${tiles.map(([name, n]) => html`<div class="tile"><span class="soft">${name}</span><b data-count="${name}">${count(n)}</b></div>`)}</div>
<div class="card"><table>${row("latest completed", latest.completed)}${row("latest failed", latest.failed)}${row("latest savepoint", latest.savepoint)}${row("latest restore", latest.restored)}</table></div>
${plots(data.history)}`;
}

export function plots(history) {
  const done = history.filter((c) => c.status === "COMPLETED").slice().reverse();
  const points = (of) => done.map((c) => [c.trigger_timestamp, of(c)]);
  return html`<div class="card plots">${plot("duration", points((c) => c.end_to_end_duration), duration)}${plot("size", points((c) => c.state_size), size)}${plot("held back in alignment", points((c) => c.alignment_buffered), size)}</div>`;
}

export const history = (data, base) => html`<div class="card">${table([
  ["id", (c) => html`<a href="${base}/checkpoints/id/${c.id}">${c.id}</a>`, "n"], ["status", (c) => state(c.status)], ["type", (c) => c.checkpoint_type.toLowerCase().replaceAll("_", " ")],
  ["triggered", (c) => at(c.trigger_timestamp)], ["last ack", (c) => at(c.latest_ack_timestamp)], ["took", (c) => duration(c.end_to_end_duration), "n"], ["size", (c) => size(c.state_size), "n"],
  ["acks", (c) => `${c.num_acknowledged_subtasks}/${c.num_subtasks}`, "n"], ["held back", (c) => size(c.alignment_buffered), "n"], ["in flight", (c) => size(c.persisted_data), "n"],
  ["", (c) => html`<span class="FAILED">${c.failure_message || ""}</span><span class="soft">${c.is_savepoint ? c.external_path : ""}</span>`, "wide"],
], data.history)}</div>`;

export function summary(data) {
  const rows = [["end to end", "end_to_end_duration", duration], ["size", "state_size", size], ["held back in alignment", "alignment_buffered", size], ["in-flight data stored", "persisted_data", size]];
  const of = (key, words) => ["min", "avg", "p50", "p90", "p99", "max"].map((stat) => words(data.summary[key][stat]));
  return html`<div class="card"><table><thead><tr><th></th>${["lowest", "average", "median", "90 %", "99 %", "highest"].map((n) => html`<th class="n">${n}</th>`)}</tr></thead>
<tbody>${rows.map(([name, key, words]) => html`<tr><th>${name}</th>${of(key, words).map((v) => html`<td class="n">${v}</td>`)}</tr>`)}</tbody></table></div>${plots(data.history)}`;
}

export function configuration(config) {
  const off = config.interval > 9e15;
  const rows = [
    ["mode", config.mode.replace("_", " ")], ["interval", off ? "off" : duration(config.interval)], ["timeout", duration(config.timeout)], ["pause between two, at least", duration(config.min_pause)],
    ["under way at a time", config.max_concurrent], ["failures tolerated in a row", config.tolerable_failed_checkpoints], ["unaligned", config.unaligned_checkpoints ? "yes" : "no"],
    ["aligned for, at first", duration(config.aligned_checkpoint_timeout)], ["kept", config.retained], ["state backend", config.state_backend], ["storage", config.checkpoint_storage],
  ];
  return html`<div class="card">${table([["setting", (r) => r[0]], ["value", (r) => r[1], "wide"]], rows)}</div>`;
}

const bar = (v) => {
  const whole = PHASES.reduce((sum, [key]) => sum + v[key], 0) || 1;
  return html`<span class="phases">${PHASES.map(([key, name], n) => html`<i class="p${n}" style="width:${v[key] / whole * 100}%" title="${name} ${duration(v[key])}"></i>`)}</span>`;
};

export function one(details, explained, subtasks) {
  const s = explained.slowest;
  return html`<div class="card" id="explain"><h2>Checkpoint ${details.id} ${state(details.status)}</h2>
<p>${details.purpose} · triggered ${at(details.trigger_timestamp)} · took <b>${duration(explained.duration)}</b> · ${size(details.state_size)} · ${details.num_acknowledged_subtasks}/${details.num_subtasks} acks · held back ${size(details.alignment_buffered)}</p>
<p class="FAILED">${details.failure_message || ""}</p><p class="soft">${details.external_path || ""}</p>
${s ? html`<p>Slowest: subtask ${s.subtask} of <b>${s.vertex}</b>, ${duration(s.total)}: ${PHASES.map(([key, name]) => `${name} ${duration(s[key])}`).join(", ")}.${explained.storing === null ? "" : ` Then storing metadata and log record: ${duration(explained.storing)}.`}</p>` : ""}
${explained.missing.length ? html`<p class="FAILED">No answer from ${explained.missing.slice(0, 8).map((m) => `${m.vertex}#${m.subtask}`).join(", ")}</p>` : ""}
<p class="soft">${PHASES.map(([, name], n) => html`<i class="key p${n}"></i>${name}`)}</p>
${table([["vertex", (v) => v.name], ["acks", (v) => `${v.acknowledged}/${v.parallelism}`, "n"], ["longest", (v) => duration(v.total), "n"], ["where its time went", bar],
  ...PHASES.slice(0, 4).map(([key, name]) => [name, (v) => duration(v[key]), "n"]), ["state", (v) => size(v.stateSize), "n"]], explained.vertices)}</div>
${subtasks.map(([name, data]) => html`<div class="card"><h2>${name}</h2>${table([["subtask", (t) => t.index, "n"], ["status", (t) => t.status], ["ack", (t) => at(t.ack_timestamp)], ["total", (t) => duration(t.end_to_end_duration), "n"], ["start delay", (t) => duration(t.start_delay), "n"],
  ["alignment", (t) => t.alignment ? duration(t.alignment.duration) : "", "n"], ["held back", (t) => t.alignment ? size(t.alignment.buffered) : "", "n"], ["sync", (t) => t.checkpoint ? duration(t.checkpoint.sync) : "", "n"], ["async", (t) => t.checkpoint ? duration(t.checkpoint.async) : "", "n"],
  ["size", (t) => size(t.state_size), "n"], ["unaligned", (t) => t.unaligned_checkpoint === undefined ? "" : t.unaligned_checkpoint ? "yes" : "no"]], data.subtasks)}</div>`)}
<div class="card"><h2>Largest states</h2>${table([["operator", (e) => e.uid], ["subtask", (e) => e.subtask, "n"], ["size", (e) => size(e.size), "n"]], explained.largestStates, "no state")}</div>`;
}
