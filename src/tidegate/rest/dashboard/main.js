// The page: what the address says is loaded, shown, and brought up to date once a second for as long as it is looked at.
//
//   #/                                   the jobs of this driver
//   #/jobs/ID/TAB/more                   one job; `more` is a vertex, or a checkpoint
//
// A driver that does not answer is said so, and what was seen last stays.

import { Refused, get } from "./api.js";
import { h, patch } from "./dom.js";
import * as format from "./format.js";
import { jobPage } from "./job.js";
import { badge } from "./pieces.js";

const BEAT_MS = 1000, SLOW_BEAT_MS = 5000;
const page = document.getElementById("page");
let turn = 0; // a newer turn makes older ones, which may still wait for an answer, give up
let timer = 0;
let ended = false; // the job that is looked at
let silentSince = null;

function address() {
  const [place, job, tab, ...more] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return place === "jobs" && job ? { job, tab: tab || "overview", more } : null;
}

async function update() {
  clearTimeout(timer);
  const mine = ++turn;
  const where = address();
  let beat = BEAT_MS;
  try {
    const content = where ? await jobPage(where, page.clientWidth) : await jobsPage();
    if (mine !== turn) return;
    ended = content.ended;
    patch(document.getElementById("crumbs"), content.crumbs ?? []);
    patch(page, content.nodes);
    document.title = content.title;
    if (page.dataset.ready !== location.hash) for (const link of page.querySelectorAll("nav [aria-current]")) link.scrollIntoView({ block: "nearest", inline: "center" });
    page.dataset.ready = location.hash; // what a test waits for
    heard();
    if (ended) beat = SLOW_BEAT_MS;
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Refused) {
      heard();
      patch(page, [h("section", { class: "card" }, h("h2", null, error.status === 404 ? "Not found" : "The driver refuses"),
        h("p", null, error.message), error.status === 401 ? h("p", null, "Open this page once with ?token=… in its address.") : null,
        h("p", null, h("a", { href: "#/" }, "All jobs of this driver")))]);
      page.dataset.ready = location.hash;
    } else {
      silent(error);
    }
  }
  if (mine === turn && !document.hidden) timer = setTimeout(update, beat);
}

function heard() {
  silentSince = null;
  document.getElementById("silence").hidden = true;
  page.classList.remove("stale");
}

function silent(error) {
  silentSince ??= Date.now();
  const line = document.getElementById("silence");
  const isOffline = error instanceof TypeError || error.name === "TimeoutError";
  if (!isOffline) console.error(error);
  line.textContent = !isOffline ? `This page has a fault: ${error.message}`
    : ended ? "The driver has ended. This is what was seen last."
    : `The driver has not answered since ${format.time(silentSince)}. This is what was seen last; trying again.`;
  line.hidden = false;
  page.classList.add("stale");
}

async function jobsPage() {
  const [{ jobs }, { drivers }] = await Promise.all([get("/jobs/overview"), get("/drivers")]);
  if (jobs.length === 1 && !location.hash) {
    location.replace(`#/jobs/${jobs[0].jid}`);
  }
  const cards = jobs.toReversed().map((job) =>
    h("a", { class: "card job", key: job.jid, href: `#/jobs/${job.jid}` }, h("h2", null, job.name, " ", badge(job.state)),
      h("p", null, `since ${format.time(job["start-time"])} · for ${format.span(job.duration)} · ${job.tasks.total} tasks`)));
  const others = drivers.filter((driver) => !jobs.some((job) => job.jid === driver.id)).map((driver) =>
    h("a", { class: "card job", key: driver.url + driver.id, href: driver.url, rel: "noreferrer" }, h("h2", null, driver.name), h("p", null, `at ${driver.url} · since ${format.time(driver.started)}`)));
  return { nodes: [h("h1", null, "Jobs of this driver"), cards.length ? cards : h("p", null, "This driver has no job yet."), others.length ? [h("h1", null, "Other drivers of yours"), others] : null], title: "Tidegate", ended: false };
}

// -- light and dark: the system's, until someone says otherwise

const theme = document.documentElement.dataset;
try { if (localStorage.theme) theme.theme = localStorage.theme; } catch { /* no storage: the system's */ }
document.getElementById("theme").onclick = () => {
  const isDark = theme.theme ? theme.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  theme.theme = isDark ? "light" : "dark";
  try { localStorage.theme = theme.theme; } catch { /* then only for now */ }
};

// -- the foot: what this is, and where else to look

async function foot() {
  const [{ "flink-revision": release }, { jobs }] = await Promise.all([get("/config"), get("/jobs/overview")]);
  const environment = jobs.length ? await get(`/jobs/${jobs.at(-1).jid}/environment`) : {};
  patch(document.getElementById("foot"), [h("span", null, release), h("a", { href: "metrics" }, "Metrics"), h("a", { href: "openapi.json" }, "REST"), h("a", { href: "jobmanager/thread-dump" }, "Threads of the driver"),
    environment.sparkUi ? h("a", { href: environment.sparkUi, rel: "noreferrer" }, "Spark's pages") : null]);
}
foot().catch(() => { /* said by the page */ });

addEventListener("hashchange", () => { scrollTo(0, 0); update(); });
addEventListener("tidegate-changed", update);
document.addEventListener("visibilitychange", () => { if (!document.hidden) update(); });
update();
