// The job graph as SVG: vertices by layer from left to right, with rates and load.

import { html, rate, percent } from "./html.js";

const W = 230, H = 96, GAP_X = 70, GAP_Y = 22, PAD = 8;

function layersOf(nodes) {
  const depth = new Map();
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const of = (node) => {
    if (!depth.has(node.id)) depth.set(node.id, node.inputs.length ? 1 + Math.max(...node.inputs.map((i) => of(byId.get(i.id)))) : 0);
    return depth.get(node.id);
  };
  const layers = [];
  for (const node of nodes) (layers[of(node)] ||= []).push(node);
  return layers;
}

const cut = (text, length) => text.length <= length ? text : `${text.slice(0, length - 1)}…`;

export function graph(plan, operators, chosen, link) {
  const layers = layersOf(plan.nodes);
  const place = new Map();
  layers.forEach((layer, x) => layer.forEach((node, y) => place.set(node.id, [PAD + x * (W + GAP_X), PAD + y * (H + GAP_Y)])));
  const width = layers.length * (W + GAP_X) - GAP_X + 2 * PAD;
  const height = Math.max(...layers.map((layer) => layer.length)) * (H + GAP_Y) - GAP_Y + 2 * PAD;
  const edges = plan.nodes.flatMap((node) => node.inputs.map((input) => {
    const [x1, y1] = place.get(input.id), [x2, y2] = place.get(node.id);
    const from = [x1 + W, y1 + H / 2], to = [x2, y2 + H / 2], middle = (from[0] + to[0]) / 2;
    return html`<path d="M${from[0]} ${from[1]} C${middle} ${from[1]} ${middle} ${to[1]} ${to[0]} ${to[1]}"><title>${input.ship_strategy}</title></path>
<text class="small" x="${from[0] + 4}" y="${from[1] - 5}">${input.ship_strategy.toLowerCase()}</text>`;
  }));
  const boxes = plan.nodes.map((node) => {
    const [x, y] = place.get(node.id);
    const own = operators.filter((operator) => operator.vertex === node.id);
    const head = own.find((operator) => operator.isHead) || {};
    const last = own[own.length - 1] || {};
    const busy = head.busy || 0, held = head.backPressured || 0;
    const mood = `${held > 0.1 ? "pressed" : busy > 0.8 ? "hot" : ""} ${node.id === chosen ? "chosen" : ""}`;
    const inner = W - 20;
    return html`<a href="${link(node.id)}"><g data-vertex="${node.id}"><title>${node.description}</title>
<rect class="node ${mood}" x="${x}" y="${y}" width="${W}" height="${H}"></rect>
<text x="${x + 10}" y="${y + 19}">${cut(node.description, 33)}</text>
<text class="small" x="${x + 10}" y="${y + 37}">parallelism ${node.parallelism}</text>
<text class="small" x="${x + 10}" y="${y + 54}">in ${rate(head.inPerSecond) || "–"}   out ${rate(last.outPerSecond || head.outPerSecond) || "–"}</text>
<text class="small" x="${x + 10}" y="${y + 71}">busy ${percent(head.busy) || "–"}   back-pressured ${percent(head.backPressured) || "–"}</text>
<rect x="${x + 10}" y="${y + 80}" width="${inner}" height="6" rx="3" style="fill:var(--idle)"></rect>
<rect x="${x + 10}" y="${y + 80}" width="${inner * busy}" height="6" rx="3" style="fill:var(--busy)"></rect>
<rect x="${x + 10 + inner * busy}" y="${y + 80}" width="${inner * held}" height="6" rx="3" style="fill:var(--held)"></rect></g></a>`;
  });
  return html`<div class="card graph"><svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-label="job graph">${edges}${boxes}</svg></div>`;
}
