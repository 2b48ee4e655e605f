// The job's log: search, level, follow or pause, download.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";

const SHOWN = 500, KEPT = 5000;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];
const RANK = { DEBUG: 0, INFO: 1, WARNING: 2, ERROR: 3, CRITICAL: 3 };
const log = { base: "", next: 0, lines: [], search: "", paused: false };

const changed = () => dispatchEvent(new Event("tidegate-changed"));

export async function logTab({ base, job, more, link }) {
  if (log.base !== base) Object.assign(log, { base, next: 0, lines: [], search: "", paused: false });
  if (!log.paused || !log.next) {
    const answer = await get(`${base}/logs?from=${log.next}`);
    if (answer.next < log.next) Object.assign(log, { next: 0, lines: [] }); else { log.next = answer.next; log.lines.push(...answer.lines); }
    log.lines.splice(0, log.lines.length - KEPT);
  }
  const level = LEVELS.includes(more[0]) ? more[0] : "DEBUG";
  const words = log.search.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (line) => `${line.message} ${line.logger} ${line.operator} ${line.uid} ${line.slot} ${line.attempt}`.toLowerCase();
  const found = log.lines.filter((line) => (RANK[line.level] ?? 1) >= RANK[level] && words.every((word) => text(line).includes(word)));
  return card("Log",
    h("div", { class: "tools" },
      h("input", { type: "search", name: "search", placeholder: "Search", "aria-label": "Search the log", oninput: (event) => { log.search = event.target.value; changed(); } }),
      h("nav", { class: "choice" }, LEVELS.map((name) => h("a", { href: link("log", name), "aria-current": name === level ? "page" : null }, name === "DEBUG" ? "All" : `${name[0]}${name.slice(1).toLowerCase()}`))),
      h("button", { type: "button", "aria-pressed": String(log.paused), onclick: () => { log.paused = !log.paused; changed(); } }, log.paused ? "Follow" : "Pause"),
      h("a", { class: "button", href: `jobmanager/logs/${job.jid}.log`, download: `${job.name}.log` }, "Download")),
    table([["Time"], ["Level"], ["Where"], ["Message"]], found.slice(-SHOWN).reverse().map((line) => h("tr", { class: line.level.toLowerCase() },
      h("td", null, format.time(line.at * 1000)), h("td", null, line.level),
      h("td", null, line.uid ? `${line.operator || line.uid} #${line.subtask}` : line.slot || "driver", h("small", null, line.attempt)), h("td", { class: "message" }, line.message))),
    { class: "log stacked", none: log.lines.length ? "No line has all of that" : "No line yet" }),
    h("p", { class: "hint" }, `${format.count(found.length)} of ${format.count(log.lines.length)} lines, the newest first${found.length > SHOWN ? `; the newest ${SHOWN} are shown` : ""}${log.paused ? ". Paused: new lines wait." : "."}`));
}
