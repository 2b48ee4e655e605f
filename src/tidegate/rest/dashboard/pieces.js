// What several pages have.

import { h } from "./dom.js";
import * as format from "./format.js";

export const badge = (status) => h("span", { class: `badge ${status.toLowerCase().replace(/[^a-z]/g, "-")}` }, status.replace("_", " "));

// A checkpoint's acknowledgements: 2/2 (100%)
export const acknowledged = (entry) =>
  `${entry.num_acknowledged_subtasks}/${entry.num_subtasks} (${entry.num_subtasks ? Math.floor((100 * entry.num_acknowledged_subtasks) / entry.num_subtasks) : 0}%)`;

export const place = (path) => (path ? h("code", { class: "path" }, path) : format.NOTHING);

// Links that choose one of several; `now` is the key of the one that is shown.
export const tabs = (entries, now, link, kind = "tabs") =>
  h("nav", { class: kind }, entries.map(([key, title]) => h("a", { href: link(key), "aria-current": key === now ? "page" : null }, title)));
