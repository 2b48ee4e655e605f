// The attempts of a job over time: why each began, how long it took to start, how it ended; what a rescale changed.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";

const BEGAN = { INITIAL_SCHEDULE: "first start", UPDATE_REQUIREMENT: "rescale", RECOVERABLE_FAILOVER: "restart" };
const ENDED = { FAILED: "failed", RESCALED: "rescaled", FINISHED: "finished", CANCELED: "canceled" };

export async function timelineTab({ base, job, link }) {
  const { attempts, now } = await get(`${base}/timeline`);
  const last = job["end-time"] > 0 ? job["end-time"] : now;
  const first = Math.min(last, ...attempts.map((attempt) => attempt.started));
  const part = (from, to) => Math.max(0, ((to ?? last) - from) / Math.max(1, last - first));
  const at = (time) => `min(${part(first, time) * 100}%, calc(100% - 2px))`; // what is short is still seen at the end
  const bar = (attempt) => {
    const ran = attempt.running ?? attempt.ended ?? last;
    return h("div", { class: "track" },
      h("i", { class: "starting", style: { left: at(attempt.started), width: `${part(attempt.started, ran) * 100}%` } }),
      attempt.running === null ? null : h("i", { class: `ran ${(attempt.end ?? "going").toLowerCase()}`, style: { left: at(attempt.running), width: `${part(attempt.running, attempt.ended) * 100}%` } }));
  };
  const changes = (attempt) => attempt.parallelism.map((change) => h("span", null, `${change.name}: ${change.before} → ${change.after}`));
  return card("Attempts",
    h("p", { class: "legends" }, [["starting", "starting, restoring"], ["ran going", "runs"], ["ran failed", "ran until it failed"], ["ran rescaled", "ran until it was rescaled"], ["ran finished", "ran to the end"]]
      .map(([kind, name]) => h("span", { class: "legend" }, h("i", { class: kind }), name))),
    table([["Attempt"], [`${format.time(first)} to ${format.time(last)}`], ["Began by"], ["Started"], ["Ran after", 1], ["Ran for", 1], ["Subtasks", 1], ["Continued from"], ["Ended"]],
      attempts.toReversed().map((attempt) => [attempt.attempt, bar(attempt), h("span", { class: "texts" }, BEGAN[attempt.began], changes(attempt)), format.time(attempt.started),
        format.span(attempt.running === null ? null : attempt.running - attempt.started), format.span(attempt.running === null ? null : (attempt.ended ?? last) - attempt.running), attempt.subtasks,
        attempt.restoredFrom === null ? "the beginning" : h("a", { href: link("checkpoints", "details", attempt.restoredFrom) }, `checkpoint ${attempt.restoredFrom}`),
        attempt.end === null ? "it runs" : h("span", { class: attempt.end === "FAILED" ? "cause" : null }, ENDED[attempt.end], attempt.why ? `: ${attempt.why}` : null)]), { class: "timeline stacked", none: "No attempt yet" }));
}
