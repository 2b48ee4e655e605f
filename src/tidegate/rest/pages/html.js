// Text into HTML, escaped by default; numbers, times and sizes as people read them.

class Safe { constructor(text) { this.text = text; } toString() { return this.text; } }

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escaped = (value) => String(value).replace(/[&<>"']/g, (c) => ESCAPES[c]);

function shown(value) {
  if (value instanceof Safe) return value.text;
  if (Array.isArray(value)) return value.map(shown).join("");
  return value === null || value === undefined || value === false ? "" : escaped(value);
}

/** html`<b>${anything}</b>`: what is put in is escaped, unless html made it. */
export const html = (parts, ...values) => new Safe(parts.reduce((all, part, n) => all + shown(values[n - 1]) + part));

/** Draw into an element, only when something has changed: focus, selection and scrolling stay. */
export function draw(element, content) {
  const text = shown(content);
  if (element.drawn !== text) {
    const scrolled = [...element.querySelectorAll("[data-keep]")].map((e) => [e.dataset.keep, e.scrollTop, e.scrollHeight - e.clientHeight - e.scrollTop < 30]);
    element.innerHTML = text;
    element.drawn = text;
    for (const [name, top, atEnd] of scrolled) {
      const again = element.querySelector(`[data-keep="${name}"]`);
      if (again) again.scrollTop = atEnd ? again.scrollHeight : top;
    }
  }
}

export const count = (n) => n === null || n === undefined ? "" : n >= 9999500 ? `${(n / 1e6).toFixed(1)} M` : n >= 100 || Number.isInteger(n) ? Math.round(n).toLocaleString("en") : n.toFixed(1);
export const rate = (n) => n === null || n === undefined ? "" : `${count(n)}/s`;
export const percent = (part) => part === null || part === undefined ? "" : `${Math.round(part * 100)} %`;

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.floor(ms / 1000);
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor(s % 3600 / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let n = 0;
  while (bytes >= 1000 && n < units.length - 1) { bytes /= 1024; n++; }
  return `${n && bytes < 100 ? bytes.toFixed(bytes < 10 ? 2 : 1) : Math.round(bytes)} ${units[n]}`;
}

export const at = (ms) => !ms || ms < 0 ? "" : new Date(ms).toLocaleTimeString("en-GB");
export const state = (word) => html`<span class="state ${word}">${word.replace("_", " ")}</span>`;

/** Columns: [heading, row => cell, "n" for numbers]. */
export const table = (columns, rows, none = "none yet") => !rows.length ? html`<p class="soft">${none}</p>` : html`
<table><thead><tr>${columns.map(([name, , kind]) => html`<th class="${kind || ""}">${name}</th>`)}</tr></thead>
<tbody>${rows.map((row) => html`<tr>${columns.map(([, cell, kind]) => html`<td class="${kind || ""}">${cell(row)}</td>`)}</tr>`)}</tbody></table>`;

export const load = (busy, held) => html`<span class="bar" title="busy ${percent(busy)}, back-pressured ${percent(held)}"><i class="busy" style="width:${(busy || 0) * 100}%"></i><i class="held" style="width:${(held || 0) * 100}%"></i></span>`;
