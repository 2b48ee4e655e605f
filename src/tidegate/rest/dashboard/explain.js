// Where one checkpoint's time went, in words and as bars.

import { card, h, table } from "./dom.js";
import * as format from "./format.js";
import { share } from "./plot.js";

const PHASES = [["startDelay", "barrier's way"], ["alignment", "alignment"], ["sync", "synchronous part"], ["upload", "upload"], ["other", "other"]];
const REMEDIES = {
  startDelay: "The barrier waited for the records before it on its way: something after the sources is slow. See Back-pressure; unaligned checkpoints overtake.",
  alignment: "One input was slower than the others. See Back-pressure; unaligned checkpoints do not wait for it.",
  sync: "The subtask stood still while its state was marked. User hooks and prepared sinks count here.",
  upload: "Writing the snapshot took longest: large state or slow storage.",
  other: "Between the parts that are measured: waiting for a thread, and the messages' way to the driver.",
};

export function explained(story, link) {
  const { slowest, storing, missing } = story;
  if (!slowest) return card("Where the time went", h("p", null, "No subtask has acknowledged yet."), waiting(missing));
  const [key, name] = PHASES.reduce((best, phase) => (slowest[phase[0]] > slowest[best[0]] ? phase : best));
  const isStoring = storing !== null && storing > slowest[key];
  const sentence = isStoring
    ? [`The largest part, ${format.span(storing)}, was storing the metadata and the record in the log, after the last acknowledgement.`]
    : [`The last to acknowledge was `, h("b", null, `${slowest.vertex}, subtask ${slowest.subtask}`), `, after ${format.span(slowest.total)}. ${key === "other" ? "The largest part of that lies between the measured ones" : `The largest part of that was the ${name}`}: ${format.span(slowest[key])}.`];
  const longest = Math.max(1, ...story.vertices.map((vertex) => vertex.total));
  return card("Where the time went",
    h("p", { class: "verdict" }, sentence),
    isStoring ? null : h("p", { class: "hint" }, REMEDIES[key], key === "upload" && !story.incremental ? " Incremental checkpoints store less." : null),
    waiting(missing),
    h("div", { class: "legends" }, PHASES.map(([phase, title]) => h("span", { class: "legend" }, h("i", { class: phase }), title))),
    table([["Vertex"], ["The longest of each part"], ...PHASES.map(([, title]) => [title, 1]), ["Total", 1], ["Longest pause", 1]], [
      ["Slowest subtask", timeline(slowest, longest), ...PHASES.map(([phase]) => format.span(slowest[phase])), format.span(slowest.total), format.span(slowest.pause)],
      ...story.vertices.map((vertex) => [vertex.name, timeline(vertex, longest), ...PHASES.map(([phase]) => format.span(vertex[phase])), format.span(vertex.total), format.span(vertex.pause)]),
    ], { class: "stacked inline named" }),
    storing === null ? null : h("p", { class: "hint" }, `Then, in the driver: ${format.span(storing)} until the checkpoint was in the log.`),
    h("h3", null, "Largest states"), table([["Operator"], ["Subtask", 1], ["Size", 1]], story.largestStates.map((entry) => [h("code", null, entry.uid), entry.subtask, format.bytes(entry.size)]), { class: "pairs" }),
    h("h3", null, "Hottest keys when it ended"), hotKeys(story.hottestKeys));
}

// From a sample: about so much.
export const hotKeys = (keys) => table([["Key"], ["Operator"], ["Subtask", 1], ["Part of its records", 1]],
  keys.map((hot) => [h("code", { class: "key" }, hot.key), h("code", null, hot.uid), hot.subtask, format.percent(hot.share, 1)]), { class: "pairs", none: "None stands out" });

const timeline = (part, longest) => share(PHASES.map(([phase, title]) => [phase, part[phase] / longest, title]), PHASES.map(([phase, title]) => `${title} ${format.span(part[phase])}`).join(" · "));

const waiting = (missing) => (missing.length
  ? h("p", { class: "cause" }, `Not acknowledged: ${missing.slice(0, 8).map((task) => `${task.vertex} #${task.subtask}`).join(", ")}${missing.length > 8 ? ` and ${missing.length - 8} more` : ""}`)
  : null);
