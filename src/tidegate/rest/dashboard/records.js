// What a job has said and was told: failures, log, settings.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";

export async function exceptionsTab({ base, job, link }) {
  const { entries, truncated } = (await get(`${base}/exceptions`)).exceptionHistory;
  if (!entries.length) return card("Exceptions", h("p", null, "No failure so far."));
  const vertexOf = (uid) => job.plan.nodes.find((node) => node.operators.some((operator) => operator.uid === uid))?.id;
  const shown = entries.map((entry, i) => {
    const vertex = vertexOf(entry.uid);
    return h("article", { class: "card failure", key: `${entry.timestamp} ${entry.attempt}` },
      h("h2", null, entry.exceptionName, h("time", null, format.time(entry.timestamp))),
      h("p", { class: "cause" }, entry.stacktrace.split("\n\n")[0]),
      h("dl", { class: "facts" },
        entry["user-line"] ? [h("dt", null, "Your line"), h("dd", null, h("code", { class: "user-line" }, entry["user-line"]))] : null,
        entry.taskName ? [h("dt", null, "Where"), h("dd", null, vertex ? h("a", { href: link("subtasks", vertex) }, entry.taskName) : entry.taskName)] : null,
        h("dt", null, "Attempt"), h("dd", null, entry.attempt),
        h("dt", null, "Then"), h("dd", null, entry["restart-in-ms"] === null ? "the job failed for good" : `restarted in ${format.span(entry["restart-in-ms"])}`)),
      !entry.stacktrace.includes("\n\n") ? null : h("details", { open: i === 0 }, h("summary", null, "Everything that is known"), h("pre", null, entry.stacktrace)));
  });
  return [shown, truncated ? h("p", { class: "hint" }, "Older ones are left out.") : null];
}

const LINES = 300;
const log = { base: "", next: 0, lines: [] };

export async function logTab({ base, more, link }) {
  if (log.base !== base) Object.assign(log, { base, next: 0, lines: [] });
  const answer = await get(`${base}/logs?from=${log.next}`);
  if (answer.next < log.next) { log.next = 0; log.lines = []; } else { log.next = answer.next; log.lines.push(...answer.lines); }
  log.lines.splice(0, log.lines.length - 5000);
  const isGrave = more[0] === "warnings";
  const lines = log.lines.filter((line) => !isGrave || line.level === "WARNING" || line.level === "ERROR" || line.level === "CRITICAL");
  return card("Log",
    h("nav", { class: "choice" }, h("a", { href: link("log"), "aria-current": isGrave ? null : "page" }, "Everything"), h("a", { href: link("log", "warnings"), "aria-current": isGrave ? "page" : null }, "Warnings and errors")),
    table([["Time"], ["Level"], ["Where"], ["Message"]], lines.slice(-LINES).reverse().map((line) => h("tr", { class: line.level.toLowerCase() },
      h("td", null, format.time(line.at * 1000)), h("td", null, line.level),
      h("td", null, line.uid ? `${line.operator || line.uid} #${line.subtask}` : line.slot || "driver", h("small", null, line.attempt)), h("td", { class: "message" }, line.message))),
    { class: "log", none: "No line yet" }),
    h("p", { class: "hint" }, `The newest first; at most ${LINES}. `, h("code", null, "tidegate logs"), " shows more."));
}

export async function configTab({ base, job }) {
  const config = (await get(`${base}/config`))["execution-config"];
  const main = [["Restart strategy", config["restart-strategy"]], ["Parallelism", config["job-parallelism"]], ["Max parallelism", job.maxParallelism], ["Job id", job.jid]];
  return [
    card("Job", table([["Setting"], ["Value"]], main.map(([name, value]) => [name, String(value)]))),
    card("Settings", table([["Field"], ["Value"]], Object.entries(config["user-config"]).sort().map(([name, value]) => [h("code", null, name), value]))),
    card("Operators", table([["Operator"], ["uid"], ["Your line"]], job.plan.nodes.flatMap((node) => node.operators).map((operator) => [operator.name, h("code", null, operator.uid), h("code", null, operator.line)]))),
  ];
}
