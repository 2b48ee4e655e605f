// The job graph: vertices as boxes in the order of the flow, edges as curves. Left to right, or downwards on a narrow screen.

import { h, svg } from "./dom.js";
import { count, percent, rate } from "./format.js";
import { load } from "./plot.js";

const BOX = { wide: [250, 74], narrow: [290, 30] }; // width of a box, space between layers

export function graph(plan, operators, options) {
  const isWide = options.width >= 720;
  const [width, gap] = isWide ? BOX.wide : BOX.narrow;
  const depths = depthsOf(plan.nodes);
  const layers = [];
  for (const node of plan.nodes) (layers[depths.get(node.id)] ??= []).push(node);
  const heights = new Map(plan.nodes.map((node) => [node.id, 46 + 36 * node.operators.length]));
  const places = new Map();
  let total = [0, 0], along = 0;
  for (const layer of layers) {
    let across = 0, thickest = 0;
    for (const node of layer) {
      const size = isWide ? heights.get(node.id) : width;
      places.set(node.id, isWide ? [along, across] : [across, along]);
      across += size + 18;
      thickest = Math.max(thickest, isWide ? width : heights.get(node.id));
    }
    along += thickest + gap;
    total = isWide ? [along - gap, Math.max(total[1], across - 18)] : [Math.max(total[0], across - 18), along - gap];
  }
  if (isWide) {
    for (const layer of layers) { // the middle of each layer on one line
      const last = layer.at(-1);
      const shift = (total[1] - places.get(last.id)[1] - heights.get(last.id)) / 2;
      for (const node of layer) places.get(node.id)[1] += shift;
    }
  }
  const edges = plan.nodes.flatMap((node) => node.inputs.map((input) => edge(input, node, places, heights, width, isWide)));
  const boxes = plan.nodes.map((node) => box(node, operators, places.get(node.id), width, heights.get(node.id), options));
  return h("div", { class: "graph scroll" },
    h("div", { class: "plane", style: { width: `${total[0]}px`, height: `${total[1]}px` } },
      svg("svg", { width: total[0], height: total[1], "aria-hidden": "true" }, edges), boxes));
}

function depthsOf(nodes) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const depths = new Map();
  const depth = (id) => {
    if (!depths.has(id)) {
      depths.set(id, 0);
      depths.set(id, Math.max(0, ...byId.get(id).inputs.map((input) => depth(input.id) + 1)));
    }
    return depths.get(id);
  };
  for (const node of nodes) depth(node.id);
  return depths;
}

function edge(input, node, places, heights, width, isWide) {
  const [x1, y1] = places.get(input.id), [x2, y2] = places.get(node.id);
  const from = isWide ? [x1 + width, y1 + heights.get(input.id) / 2] : [x1 + width / 2, y1 + heights.get(input.id)];
  const to = isWide ? [x2, y2 + heights.get(node.id) / 2] : [x2 + width / 2, y2];
  const middle = [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2];
  const path = isWide
    ? `M${from} C${middle[0]},${from[1]} ${middle[0]},${to[1]} ${to}`
    : `M${from} C${from[0]},${middle[1]} ${to[0]},${middle[1]} ${to}`;
  return svg("g", { class: "edge" }, svg("path", { d: path }),
    svg("text", { x: middle[0] + (isWide ? 0 : 8), y: middle[1] + (isWide ? -6 : 4), "text-anchor": isWide ? "middle" : "start" }, input.ship_strategy.toLowerCase()));
}

function box(node, operators, [x, y], width, height, options) {
  const own = operators.filter((operator) => operator.vertex === node.id);
  const head = own[0] ?? {};
  const level = `busy ${percent(head.busy)} · back-pressured ${percent(head.backPressured)}`;
  const sign = options.failed === node.id ? "failed here" : options.bottleneck === node.id ? "bottleneck" : null;
  const signed = (sign === "failed here" && own.find((operator) => operator.uid === options.failedUid)?.uid) || head.uid;
  return h("a", { class: `box ${kindOf(node, head, options)}${options.selected === node.id ? " selected" : ""}`, href: options.link(node.id), "data-vertex": node.id,
    style: { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` } },
    own.map((operator, i) => h("span", { class: "operator", title: `${operator.name} (${operator.uid})\n${operator.line}` },
      h("b", null, sign && operator.uid === signed ? h("em", { class: "sign" }, sign) : null, operator.name),
      h("small", null, `in ${rate(operator.inPerSecond)} · out ${rate(operator.outPerSecond)}`))),
    load(head.busy, head.backPressured, head.idle),
    h("small", { class: "level", title: `${count(head.recordsOut)} records out` }, level, h("em", null, `×${node.parallelism}`)));
}

// The edge of a box: where the job failed, else what it does; grey where it does nothing.
function kindOf(node, head, { state, failed, bottleneck }) {
  if (failed === node.id) return "failed";
  if (state !== "RUNNING") return "still";
  if (bottleneck === node.id) return "slow";
  return (head.backPressured ?? 0) > 0.5 ? "pressed" : (head.busy ?? 0) > 0.8 ? "slow" : "calm";
}
