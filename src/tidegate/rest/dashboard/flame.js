// Where the threads of a vertex are: a flame graph. To look is to sample.

import { get } from "./api.js";
import { card, h } from "./dom.js";
import * as format from "./format.js";

const TYPES = [["on_cpu", "On CPU"], ["off_cpu", "Waiting"], ["full", "Both"]];
const ENDED = -1;

export async function flameTab({ path, vertex, more, link, job }) {
  const type = TYPES.some(([key]) => key === more[1]) ? more[1] : "on_cpu";
  const choice = h("nav", { class: "choice" }, TYPES.map(([key, name]) => h("a", { href: link("flamegraph", vertex.id, key), "aria-current": key === type ? "page" : null }, name)));
  const { data, endTimestamp } = await get(`${path}/flamegraph?type=${type}`);
  if (endTimestamp === ENDED) return card("Flame graph", h("p", null, "The job has ended: there is nothing to sample."));
  if (job.state !== "RUNNING" && !data?.value) return card("Flame graph", choice, h("p", null, "The job is not running at the moment: there is nothing to sample."));
  if (!data || !data.value) return card("Flame graph", choice, h("p", null, "Samples are being taken; the first are there in a few seconds."));
  return card("Flame graph", choice, h("p", { class: "hint" }, `${format.count(data.value)} samples, the newest of ${format.time(endTimestamp)}. The wider a line, the more of the time is spent there.`),
    h("div", { class: "flames" }, flame(data, data.value)));
}

function flame(node, total) {
  const children = [...(node.children ?? [])].sort((a, b) => b.value - a.value);
  return h("div", { class: "flame", style: { width: `${(100 * node.value) / total}%` } },
    h("span", { class: node.owner === "user" ? "mine" : null, title: `${node.name}\n${format.count(node.value)} samples` }, node.name),
    children.length ? h("div", { class: "flame-row" }, children.map((child) => flame(child, node.value))) : null);
}
