// Where we are (the part of the address behind #), what it needs, and drawing it once a second.
//   #/JOB   #/JOB/vertex/ID/TAB   #/JOB/checkpoints[/history|summary|configuration|id/N]   #/JOB/accumulators|failures|log|settings

import { html, draw, state, duration } from "./html.js";
import { ask, Refused } from "./rest.js";
import { act, buttons } from "./actions.js";
import * as views from "./views.js";
import * as checkpoints from "./checkpoints.js";

const top = document.getElementById("top"), page = document.getElementById("page"), trouble = document.getElementById("trouble");
const EVERY_MS = 1000, LINES = 2000;
let shownJob = null, lines = { job: null, next: 0, all: [] }, turn = 0;

const place = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);

async function draws() {
  const [id, section = "", ...more] = place();
  if (!id) {
    const { jobs } = await ask("jobs/overview");
    if (jobs.length === 1) { location.replace(`#/${jobs[0].jid}`); return; }
    shownJob = null;
    draw(top, html`<h1>Tidegate</h1><span class="soft">${jobs.length} jobs</span>`);
    draw(page, views.jobList(jobs));
    document.title = "Tidegate";
    return;
  }
  const path = `jobs/${encodeURIComponent(id)}`, base = `#/${id}`;
  const [job, { operators }, statistics] = await Promise.all([ask(path), ask(`${path}/operators`), ask(`${path}/checkpoints`)]);
  const content = await body({ job, operators, checkpoints: statistics }, path, base, section, more);
  shownJob = job;
  document.title = `${job.name} ${job.state}`;
  draw(top, html`<h1><a href="#/">Tidegate</a> / ${job.name}</h1><span id="state">${state(job.state)}</span>
<span class="soft">${job.attempt ? `attempt ${job.attempt} · ` : ""}${job.restarts ? `restarts: ${job.restarts} · ` : ""}up ${duration(job.duration - job.duration % 1000)}</span>
<span class="soft">${job["status-detail"]}</span><span class="grow"></span>${buttons(job)}`);
  const entries = [["", "Overview"], ["checkpoints", "Checkpoints"], ["accumulators", "Accumulators"], ["failures", "Failures"], ["log", "Log"], ["settings", "Settings"]];
  draw(page, html`${views.tabs(entries.map(([key, name]) => [key, name, key ? `${base}/${key}` : base]), section === "vertex" ? "" : section, "outer")}${content}`);
}

async function body(known, path, base, section, more) {
  switch (section) {
    case "": return views.overview(known, base);
    case "vertex": {
      const [id, tab = ""] = more;
      const vertexPath = `${path}/vertices/${encodeURIComponent(id)}`;
      let data = await ask(`${vertexPath}${views.vertexPaths[tab] ?? ""}`);
      if (tab === "metrics") data = await ask(`${vertexPath}/subtasks/metrics?get=${data.map((m) => encodeURIComponent(m.id)).join(",")}`);
      return views.vertex(known, base, id, tab in views.vertexPaths ? tab : "", data);
    }
    case "checkpoints": return checkpointPage(known, path, base, more);
    case "accumulators": return views.accumulators(await ask(`${path}/accumulators`));
    case "failures": return views.failures(await ask(`${path}/exceptions`));
    case "log": return views.log(await readLines(path));
    case "settings": return views.settings(await ask(`${path}/config`));
    default: return html`<p>There is no such page.</p>`;
  }
}

async function checkpointPage(known, path, base, [tab = "", id]) {
  const entries = [["", "Overview"], ["history", "History"], ["summary", "Summary"], ["configuration", "Configuration"]];
  const links = views.tabs(entries.map(([key, name]) => [key, name, `${base}/checkpoints${key ? `/${key}` : ""}`]), tab === "id" ? "history" : tab, "inner");
  let content;
  if (tab === "history") content = checkpoints.history(known.checkpoints, base);
  else if (tab === "summary") content = checkpoints.summary(known.checkpoints);
  else if (tab === "configuration") content = checkpoints.configuration(await ask(`${path}/checkpoints/config`));
  else if (tab === "id") {
    const one = `${path}/checkpoints/details/${encodeURIComponent(id)}`;
    const [details, explained] = await Promise.all([ask(one), ask(`${one}/explain`)]);
    const subtasks = await Promise.all(explained.vertices.map(async (v) => [v.name, await ask(`${one}/subtasks/${v.id}`)]));
    content = checkpoints.one(details, explained, subtasks);
  } else content = checkpoints.overview(known.checkpoints);
  return html`${links}${content}`;
}

async function readLines(path) {
  if (lines.job !== path) lines = { job: path, next: 0, all: [] };
  const answer = await ask(`${path}/logs?from=${lines.next}`);
  lines.next = answer.next;
  lines.all = lines.all.concat(answer.lines).slice(-LINES);
  return lines.all;
}

async function tick() {
  const mine = ++turn;
  try {
    await draws();
    trouble.hidden = true;
  } catch (error) {
    if (error instanceof Refused) draw(page, html`<div class="card"><p>${error.message}</p><p><a href="#/">all jobs of this driver</a></p></div>`);
    else {
      trouble.hidden = false;
      draw(trouble, html`The driver does not answer: it has ended, or the network is gone. What you see is the last of it.`);
      for (const button of top.querySelectorAll("button")) button.disabled = true;
    }
  }
  if (mine === turn) setTimeout(() => { if (mine === turn) tick(); }, document.hidden ? 10 * EVERY_MS : EVERY_MS);
}

top.addEventListener("click", (event) => {
  const name = event.target.dataset && event.target.dataset.act;
  if (name && shownJob) act(name, shownJob);
});
window.addEventListener("hashchange", () => { page.drawn = null; tick(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
tick();
