// The worker processes: what runs in each, when it was heard, its memory and CPU, its log.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";

export async function workersTab({ base, job }) {
  const [{ taskmanagers }, details] = await Promise.all([get("/taskmanagers"), Promise.all(job.vertices.map((vertex) => get(`${base}/vertices/${vertex.id}/taskmanagers`)))]);
  const own = new Set(details.flatMap((vertex) => vertex.taskmanagers.map((worker) => worker["taskmanager-id"])));
  const workers = taskmanagers.filter((worker) => own.has(worker.id));
  return card("Workers", table([["Worker: host, process"], ["Runs"], ["Heard", 1], ["Memory", 1], ["CPU: cores busy", 1], [""]], workers.map((worker) => [
    h("code", null, worker.id), worker.path, `${format.span(Math.max(0, job.now - worker.timeSinceLastHeartbeat))} ago`,
    format.bytes(worker.residentBytes), worker.coresBusy === null ? format.NOTHING : worker.coresBusy.toFixed(2),
    h("a", { href: `taskmanagers/${encodeURIComponent(worker.id)}/log` }, "Log"),
  ]), { class: "stacked inline", none: job["end-time"] > 0 ? "The job has ended, and its workers with it" : "None at the moment: workers live as long as an attempt" }));
}
