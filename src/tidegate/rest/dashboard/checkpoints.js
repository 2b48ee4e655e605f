// Checkpoints: overview, history, summary, configuration; one of them in detail, and where its time went.

import { get } from "./api.js";
import { card, figure, h, table } from "./dom.js";
import { explained } from "./explain.js";
import * as format from "./format.js";
import { acknowledged, badge, place, tabs } from "./pieces.js";
import { UNITS, bars, plotWidth } from "./plot.js";

const VIEWS = [["overview", "Overview"], ["history", "History"], ["summary", "Summary"], ["configuration", "Configuration"]];

export async function checkpointsTab(context) {
  const { base, link, more } = context;
  if (more[0] === "details" && /^\d+$/.test(more[1] ?? "")) return details(context, more[1]);
  const view = VIEWS.some(([key]) => key === more[0]) ? more[0] : "overview";
  const bar = tabs(VIEWS, view, (key) => link("checkpoints", key), "choice");
  if (view === "configuration") return [bar, configuration(await get(`${base}/checkpoints/config`))];
  const statistics = await get(`${base}/checkpoints`);
  if (view === "summary") return [bar, summary(statistics)];
  if (view === "history") return [bar, history(statistics.history, link)];
  const { checkpoints } = await get(`${base}/checkpoint-history`);
  return [bar, overview(statistics, link), plots(checkpoints, link, context.width)];
}

function overview({ counts, latest }, link) {
  const line = (name, entry, ...texts) => [h("b", null, name), entry ? h("span", { class: "texts" }, texts.map((text) => h("span", null, text))) : "None"];
  const more = (entry) => h("a", { href: link("checkpoints", "details", entry.id) }, "More details");
  const { completed, failed, savepoint, restored } = latest;
  return [
    h("div", { class: "figures" }, figure("Triggered", format.count(counts.total)), figure("In progress", format.count(counts.in_progress)),
      figure("Completed", format.count(counts.completed)), figure("Failed", format.count(counts.failed)), figure("Restored", format.count(counts.restored))),
    card(null, table([["Latest"], [""]], [
      line("Completed", completed, `ID ${completed?.id}`, `completed ${format.time(completed?.latest_ack_timestamp)}`, `in ${format.span(completed?.end_to_end_duration)}`, format.bytes(completed?.state_size), completed && more(completed)),
      line("Failed", failed, `ID ${failed?.id}`, format.time(failed?.failure_timestamp), failed?.failure_message, failed && more(failed)),
      line("Savepoint", savepoint, `ID ${savepoint?.id}`, format.time(savepoint?.latest_ack_timestamp), place(savepoint?.external_path), savepoint && more(savepoint)),
      line("Restore", restored, `ID ${restored?.id}`, format.time(restored?.restore_timestamp), restored?.is_savepoint ? "savepoint" : "checkpoint", place(restored?.external_path)),
    ], { class: "latest" })),
  ];
}

function plots(checkpoints, link, width) {
  const points = (values) => checkpoints.map((c) => ({ id: c.id, at: c.trigger, failed: c.status === "FAILED", label: `checkpoint ${c.id}, ${format.time(c.trigger)}${c.status === "COMPLETED" ? "" : `, ${c.status.toLowerCase()}`}`, values: values(c) }));
  const go = { width: plotWidth(width, 4), go: (point) => { location.hash = link("checkpoints", "details", point.id); } };
  return card(checkpoints.length ? `The last ${checkpoints.length} checkpoints` : "No checkpoint yet",
    h("div", { class: "plots" },
      bars("Duration", points((c) => [c.duration]), [["duration", "one"]], UNITS.span, go),
      bars("Size", points((c) => [Math.min(c.added, c.size), Math.max(0, c.size - c.added)]), [["stored for it", "one"], ["from earlier ones", "two"]], UNITS.bytes, go),
      bars("Longest alignment of a subtask", points((c) => [c.alignment]), [["alignment", "one"]], UNITS.span, go),
      bars("Held back or stored in alignment", points((c) => [c.buffered, c.persisted]), [["held back", "one"], ["stored in flight", "two"]], UNITS.bytes, go)));
}

const COLUMNS = [["ID", 1], ["Status"], ["Acknowledged", 1], ["Trigger time"], ["Latest acknowledgement"], ["End to end duration", 1], ["State size", 1], ["Stored for it", 1], ["Buffered during alignment", 1]];
const row = (entry) => [badge(entry.status), acknowledged(entry), format.time(entry.trigger_timestamp), format.time(entry.latest_ack_timestamp), format.span(entry.end_to_end_duration), format.bytes(entry.state_size), format.bytes(entry.checkpointed_size), format.bytes(entry.alignment_buffered)];

function history(entries, link) {
  return card("History", table([...COLUMNS, ["Kind"]], entries.map((entry) => [
    h("a", { href: link("checkpoints", "details", entry.id) }, entry.id), ...row(entry), entry.checkpoint_type.toLowerCase().replace(/_/g, " ")]), { class: "stacked inline" }));
}

function summary({ summary: found, counts }) {
  const lines = [["End to end duration", "end_to_end_duration", format.span], ["State size", "state_size", format.bytes], ["Stored size", "checkpointed_size", format.bytes],
    ["Buffered during alignment", "alignment_buffered", format.bytes], ["Stored in flight (unaligned)", "persisted_data", format.bytes]];
  return card(`Summary of ${format.count(counts.completed)} completed checkpoints`, table([[""], ["Minimum", 1], ["Average", 1], ["Maximum", 1], ["P50", 1], ["P90", 1], ["P95", 1], ["P99", 1], ["P99.9", 1]],
    lines.map(([name, key, show]) => [name, ...["min", "avg", "max", "p50", "p90", "p95", "p99", "p999"].map((part) => show(found[key][part]))]), { class: "stacked inline named" }),
    h("p", { class: "hint" }, "Over the newest 1,000 that are remembered."));
}

function configuration(config) {
  const isOff = config.interval > 1e15;
  const yes = (flag) => (flag ? "Yes" : "No");
  return card("Configuration", table([["Option"], ["Value"]], [
    ["Mode", config.mode.replace("_", "-")], ["Interval", isOff ? "Off: only when asked for" : format.span(config.interval)], ["Timeout", format.span(config.timeout)],
    ["Minimum pause", format.span(config.min_pause)], ["Maximum concurrent", config.max_concurrent], ["Unaligned", yes(config.unaligned_checkpoints)],
    ["Aligned, until unaligned after", config.aligned_checkpoint_timeout ? format.span(config.aligned_checkpoint_timeout) : "never"],
    ["Tolerated failures", config.tolerable_failed_checkpoints], ["State backend", config.state_backend], ["Checkpoint storage", place(config.checkpoint_storage)],
    ["Completed checkpoints kept", config.retained], ["Kept when the job ends", yes(config.externalization.enabled)],
  ], { class: "pairs" }));
}

async function details({ base, link, vertices, more }, id) {
  const path = `${base}/checkpoints/details/${id}`;
  const [checkpoint, story] = await Promise.all([get(path), get(`${path}/explain`)]);
  const chosen = vertices.find((vertex) => vertex.id === more[2]);
  const subtasks = chosen ? await get(`${path}/subtasks/${chosen.id}`) : null;
  const open = (vertex) => (vertex === chosen ? h("a", { href: link("checkpoints", "details", id) }, "Hide\u00a0subtasks\u00a0▲") : h("a", { href: link("checkpoints", "details", id, vertex.id) }, "Show\u00a0subtasks\u00a0▼"));
  const cells = (task) => [["Acknowledged", acknowledged(task)], ["Latest acknowledgement", format.time(task.latest_ack_timestamp)], ["End to end duration", format.span(task.end_to_end_duration)],
    ["State size", format.bytes(task.state_size)], ["Stored for it", format.bytes(task.checkpointed_size)], ["Buffered during alignment", format.bytes(task.alignment_buffered)]]
    .map(([title, text]) => h("td", { class: "number", "data-title": title }, text));
  const rows = vertices.flatMap((vertex) => {
    const task = checkpoint.tasks[vertex.id];
    if (!task) return [];
    const line = h("tr", { class: vertex === chosen ? "chosen" : null }, [h("td", null, vertex.name), ...cells(task), h("td", null, open(vertex))]);
    return vertex === chosen ? [line, h("tr", { class: "inner" }, h("td", { colspan: 8 }, subtaskTable(subtasks)))] : [line];
  });
  return [
    h("p", { class: "back" }, h("a", { href: link("checkpoints", "history") }, "← History")),
    card(`Details for checkpoint ${id}`, table([...COLUMNS, ["Discarded"]], [[checkpoint.id, ...row(checkpoint), checkpoint.discarded === undefined ? format.NOTHING : checkpoint.discarded ? "Yes" : "No"]], { class: "stacked inline" }),
      checkpoint.external_path ? h("p", null, "Path ", place(checkpoint.external_path)) : null,
      checkpoint.failure_message ? h("p", { class: "cause" }, checkpoint.failure_message) : null,
      h("p", { class: "hint" }, `${checkpoint.purpose || "periodic"} · attempt ${checkpoint.attempt} · ${checkpoint.checkpoint_type.toLowerCase().replace(/_/g, " ")}`)),
    explained(story, link),
    card("Operators", table([["Name"], ["Acknowledged", 1], ["Latest acknowledgement", 1], ["End to end duration", 1], ["State size", 1], ["Stored for it", 1], ["Buffered during alignment", 1], [""]], rows, { class: "stacked inline named" })),
  ];
}

function subtaskTable({ summary: found, subtasks }) {
  const parts = [(s) => s.end_to_end_duration, (s) => s.state_size, (s) => s.checkpoint_duration?.sync ?? s.checkpoint?.sync, (s) => s.checkpoint_duration?.async ?? s.checkpoint?.async,
    (s) => s.alignment.buffered, (s) => s.alignment.persisted, (s) => s.alignment.duration, (s) => s.start_delay];
  const shows = [format.span, format.bytes, format.span, format.span, format.bytes, format.bytes, format.span, format.span];
  const aggregate = (key, name) => [name, null, ...parts.map((part, i) => shows[i](part(found)[key]))];
  const titles = ["Subtask", "Acknowledged", "End to end", "State size", "Sync", "Async", "Buffered", "In flight", "Alignment", "Start delay"];
  return table(titles.map((title, i) => [title, i > 1]), [
    ...[["min", "Minimum"], ["avg", "Average"], ["max", "Maximum"]].map(([key, name]) => h("tr", { class: "aggregate" },
      aggregate(key, name).map((text, i) => h("td", { class: i > 1 ? "number" : null, "data-title": i ? titles[i] : null }, text)))),
    ...subtasks.map((subtask) => subtask.status === "completed"
      ? [subtask.index, format.time(subtask.ack_timestamp), ...parts.map((part, i) => shows[i](part(subtask)))]
      : [subtask.index, "not acknowledged", ...parts.map(() => format.NOTHING)]),
  ]);
}
