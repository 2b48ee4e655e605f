// Failures: equal ones together, each time with what was lost and what the job continued from.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";

export async function exceptionsTab({ base, link }) {
  const { groups } = await get(`${base}/failures`);
  if (!groups.length) return card("Failures", h("p", null, "No failure so far."));
  return groups.map((group, i) => h("article", { class: "card failure", key: `${group.first} ${group.message}` },
    h("h2", null, h("span", null, group.title, group.count > 1 ? h("b", { class: "times" }, ` ×${group.count}`) : null),
      h("time", null, group.count > 1 ? `${format.time(group.first)} to ${format.time(group.last)}` : format.time(group.last))),
    h("p", { class: "cause" }, group.message),
    h("dl", { class: "facts" },
      group.userLine ? [h("dt", null, "Your line"), h("dd", null, h("code", { class: "user-line" }, group.userLine))] : null,
      group.task ? [h("dt", null, "Where"), h("dd", null, group.vertex ? h("a", { href: link("subtasks", group.vertex) }, group.task) : group.task)] : null),
    table([["When"], ["Attempt"], ["Subtask", 1], ["Worker"], ["Then"], ["Continued from"], ["Stood still", 1], ["Read again", 1]], group.times.map((time) => [
      format.time(time.at), time.attempt, time.subtask >= 0 ? time.subtask : format.NOTHING, time.worker ?? format.NOTHING,
      time.restartIn === null ? "the job failed for good" : `${time.isRestored ? "restarted" : "restarts"} ${time.restartIn < 1000 ? "at once" : `after ${format.span(time.restartIn)}`}`,
      !time.isRestored ? format.NOTHING : time.restoredFrom === null ? "the beginning" : h("a", { href: link("checkpoints", "details", time.restoredFrom) }, `checkpoint ${time.restoredFrom}`),
      format.span(time.stoodStill), time.replayed === null ? format.NOTHING : `about ${format.count(time.replayed)}`,
    ]), { class: "stacked" }),
    group.count > group.times.length ? h("p", { class: "hint" }, `The newest ${group.times.length} of ${group.count}.`) : null,
    group.stacktrace.includes("\n\n") ? h("details", { open: i === 0 }, h("summary", null, "Everything that is known of the newest"), h("pre", null, group.stacktrace)) : null));
}
