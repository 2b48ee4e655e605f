// The worker processes: what runs in each, when it was heard, memory and CPU where they are told, its log.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";

export async function workersTab({ base, job }) {
  const [{ taskmanagers }, details] = await Promise.all([get("/taskmanagers"), Promise.all(job.vertices.map((vertex) => get(`${base}/vertices/${vertex.id}/taskmanagers`)))]);
  const own = new Set(details.flatMap((vertex) => vertex.taskmanagers.map((worker) => worker["taskmanager-id"])));
  const workers = taskmanagers.filter((worker) => own.has(worker.id));
  const has = (of) => workers.some((worker) => of(worker) > 0);
  const memory = (worker) => worker.memoryConfiguration.totalProcessMemory;
  const cpu = (worker) => worker.cpuLoad ?? 0;
  const columns = [["Worker: host, process"], ["Runs"], ["Heard", 1], has(memory) ? ["Memory", 1] : null, has(cpu) ? ["CPU", 1] : null, ["Log"]];
  return card("Workers", table(columns.filter(Boolean), workers.map((worker) => [
    h("code", null, worker.id), worker.path, `${format.span(Math.max(0, job.now - worker.timeSinceLastHeartbeat))} ago`,
    ...(has(memory) ? [format.bytes(memory(worker))] : []), ...(has(cpu) ? [format.percent(cpu(worker))] : []),
    h("a", { href: `taskmanagers/${encodeURIComponent(worker.id)}/log` }, "Log"),
  ]), { none: "None at the moment: workers live as long as an attempt" }));
}
