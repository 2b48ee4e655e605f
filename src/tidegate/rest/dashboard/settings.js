// What the job was told: its settings by key, with where each came from; versions; Spark's settings; its operators.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";

// What somebody has set comes first.
const sorted = (settings) => [...settings].sort((a, b) => (a.source === "default") - (b.source === "default"));

export async function configTab({ base, job }) {
  const [{ settings }, environment] = await Promise.all([get(`${base}/config`), get(`${base}/environment`)]);
  const pairs = (entries) => table([["Name"], ["Value"]], entries.map(([name, value]) => [h("code", null, name), String(value)]), { class: "pairs" });
  return [
    card("Settings", table([["Key"], ["Value"], ["From"]], sorted(settings).map((setting) => h("tr", { class: setting.source === "default" ? "by-default" : null },
      h("td", { title: setting.says }, h("code", null, setting.key)), h("td", null, setting.value), h("td", { "data-title": "From" }, setting.origin))), { class: "pairs stacked" })),
    card("Versions", pairs(Object.entries(environment.versions))),
    card("Spark", pairs(Object.entries(environment.spark))),
    card("Operators", table([["Operator"], ["uid"], ["Your line"]], job.plan.nodes.flatMap((node) => node.operators).map((operator) => [operator.name, h("code", null, operator.uid), h("code", null, operator.line)]), { class: "pairs stacked" })),
  ];
}
