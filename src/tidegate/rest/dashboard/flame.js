// Where the threads of a vertex are: a flame graph. To look is to sample.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import * as format from "./format.js";

const TYPES = [["on_cpu", "On CPU"], ["off_cpu", "Waiting"], ["full", "Both"]];
const ENDED = -1;
const LINES = 5; // of the user's that are listed

export async function flameTab({ path, vertex, more, link, job }) {
  const type = TYPES.some(([key]) => key === more[1]) ? more[1] : "on_cpu";
  const choice = h("nav", { class: "choice" }, TYPES.map(([key, name]) => h("a", { href: link("flamegraph", vertex.id, key), "aria-current": key === type ? "page" : null }, name)));
  const { data, endTimestamp } = await get(`${path}/flamegraph?type=${type}`);
  if (endTimestamp === ENDED) return card("Flame graph", h("p", null, "The job has ended: there is nothing to sample."));
  if (job.state !== "RUNNING" && !data?.value) return card("Flame graph", choice, h("p", null, "The job is not running at the moment: there is nothing to sample."));
  if (!data || !data.value) return card("Flame graph", choice, h("p", null, "Samples are being taken; the first are there in a few seconds."));
  const [top, shared] = whereTheyPart(data);
  const left = shared.length ? h("span", { title: shared.join("\n") }, ` Left out: ${shared.length} outer ${shared.length === 1 ? "call" : "calls"} that all samples share.`) : null;
  return card("Flame graph", choice, h("p", { class: "hint" }, `${format.count(data.value)} samples, the newest of ${format.time(endTimestamp)}. The wider a line, the more of the time is spent there.`, left),
    usersLines(data),
    h("div", { class: "flames" }, flame(top, top.value)));
}

// The innermost call that all samples have in common, unless it is the user's; and the names of those around it.
function whereTheyPart(root) {
  let node = root;
  const shared = [];
  while (node.children?.length === 1 && node.children[0].value === node.value && node.children[0].owner !== "user") {
    if (node !== root) shared.push(node.name);
    node = node.children[0];
  }
  return [node, shared];
}

// A sample counts for the innermost line of the user's, whatever that line calls.
function usersLines(root) {
  const found = new Map();
  const count = (node) => {
    const below = (node.children ?? []).reduce((sum, child) => sum + count(child), 0);
    if (node.owner !== "user") return below;
    const line = found.get(node.line) ?? { name: node.name, samples: 0 };
    found.set(node.line, { ...line, samples: line.samples + node.value - below });
    return node.value;
  };
  count(root);
  const lines = [...found].filter(([, { samples }]) => samples).sort(([, a], [, b]) => b.samples - a.samples).slice(0, LINES);
  if (!lines.length) return null;
  return table([["Share", 1], ["Your line"], ["Function"]], lines.map(([line, { name, samples }]) => [format.percent(samples / root.value, 1), h("code", null, line), name.split(" (")[0]]), { class: "stacked inline" });
}

function flame(node, total) {
  const children = [...(node.children ?? [])].sort((a, b) => b.value - a.value);
  return h("div", { class: "flame", style: { width: `${(100 * node.value) / total}%` } },
    h("span", { class: node.owner === "user" ? "mine" : null, title: `${node.name}\n${format.count(node.value)} samples` }, node.name),
    children.length ? h("div", { class: "flame-row" }, children.map((child) => flame(child, node.value))) : null);
}
