// Small plots over time, as SVG.

import { html } from "./html.js";

const W = 300, H = 100, TOP = 14, LEFT = 4;

/** Points: [x, y], in order of x. */
export function plot(title, points, words) {
  if (points.length < 2) return html`<div class="plot"><b>${title}</b><p class="soft">not enough yet</p></div>`;
  const xs = points.map((p) => p[0]), top = Math.max(...points.map((p) => p[1]), 1);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const px = (x) => LEFT + (x - x0) / (x1 - x0 || 1) * (W - 2 * LEFT);
  const py = (y) => H - y / top * (H - TOP);
  const line = points.map(([x, y], n) => `${n ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
  const newest = points[points.length - 1][1];
  return html`<div class="plot"><b>${title}</b> <span class="soft">now ${words(newest)}, highest ${words(top)}</span>
<svg viewBox="0 0 ${W} ${H + 4}" preserveAspectRatio="none" role="img" aria-label="${title}"><line x1="0" y1="${H}" x2="${W}" y2="${H}"></line><path d="${line}"></path></svg></div>`;
}
