// The buttons: checkpoint, savepoint, stop, rescale, cancel. Each asks before it acts, and says what became of it.

import { operate, send } from "./api.js";
import { h, patch } from "./dom.js";

const dialog = document.getElementById("dialog");
const notes = document.getElementById("notes");

const ACTIONS = [
  {
    name: "Checkpoint", title: "Take a checkpoint now", says: "The job continues meanwhile.", fields: [], confirm: "Take it",
    act: (base) => operate("POST", `${base}/checkpoints`, {}, `${base}/checkpoints`), done: (result) => `Checkpoint ${result.checkpointId} is complete.`,
  },
  {
    name: "Savepoint", title: "Take a savepoint", says: "The job continues meanwhile. The savepoint is yours: it is never deleted by the job.", confirm: "Take it",
    fields: [["folder", "Folder (empty: the job's own)", "text"], ["format", "Format", ["CANONICAL", "NATIVE"]]],
    act: (base, given) => operate("POST", `${base}/savepoints`, { "target-directory": given.folder || null, formatType: given.format }, `${base}/savepoints`), done: (result) => `Savepoint: ${result.location}`,
  },
  {
    name: "Stop", title: "Stop the job with a savepoint", says: "Sources stop, a savepoint is taken, sinks commit, the job ends.", confirm: "Stop the job",
    fields: [["folder", "Folder (empty: the job's own)", "text"], ["format", "Format", ["CANONICAL", "NATIVE"]], ["drain", "Drain: the stream ends for good, every timer fires", "checkbox"]],
    act: (base, given) => operate("POST", `${base}/stop`, { targetDirectory: given.folder || null, formatType: given.format, drain: given.drain }, `${base}/savepoints`), done: (result) => `Stopped. Savepoint: ${result.location}`,
  },
  {
    name: "Rescale", title: "Run the job at another parallelism", says: "A checkpoint is taken with stopped sources; the job starts from it again.", confirm: "Rescale",
    fields: [["parallelism", "Parallelism", "number"]],
    act: (base, given) => operate("PATCH", `${base}/rescaling?parallelism=${encodeURIComponent(given.parallelism)}`, {}, `${base}/rescaling`),
    done: (result) => `Runs with parallelism ${result.parallelism}; the gap was ${result["gap-ms"]} ms.`,
  },
  {
    name: "Cancel", title: "Cancel the job", says: "It ends at once, without another checkpoint. Its checkpoints stay.", fields: [], confirm: "Cancel the job", kind: "danger", keep: "Keep it running",
    act: (base) => send("PATCH", `${base}?mode=cancel`, {}), done: () => "The job is being cancelled.",
  },
];

export function buttons(base, job, ended) {
  if (ended) return null;
  return h("div", { class: "buttons" }, ACTIONS.map((action) => h("button", { type: "button", class: action.kind, "data-action": action.name, title: action.title, onclick: () => confirm(action, base, job) }, action.name)));
}

function confirm(action, base, job) {
  const field = ([name, title, kind]) => {
    if (Array.isArray(kind)) return h("label", null, title, h("select", { name }, kind.map((word) => h("option", null, word))));
    if (kind === "checkbox") return h("label", { class: "check" }, h("input", { name, type: "checkbox" }), title);
    const now = kind === "number" ? Math.max(1, ...job.vertices.map((vertex) => vertex.parallelism)) : null;
    return h("label", null, title, h("input", { name, type: kind, value: now, min: kind === "number" ? 1 : null, required: kind === "number", autocomplete: "off" }));
  };
  const form = h("form", { method: "dialog", key: action.name + Date.now() }, h("h2", null, action.title), h("p", null, h("b", null, job.name), ": ", action.says), action.fields.map(field),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, action.keep ?? "Back"), h("button", { type: "submit", class: action.kind ?? "primary", "data-confirm": action.name }, action.confirm)));
  form.onsubmit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(action.fields.map(([name, , kind]) => [name, kind === "checkbox" ? form.elements[name].checked : form.elements[name].value]));
    dialog.close();
    run(action, base, job, given);
  };
  patch(dialog, [form]);
  dialog.showModal();
}

async function run(action, base, job, given) {
  const note = noted(`${action.name} of ${job.name} …`, "going");
  try {
    note(action.done(await action.act(base, given)), "done");
  } catch (error) {
    note(`${action.name} failed: ${error.message}`, "failed");
  }
  dispatchEvent(new Event("tidegate-changed"));
}

// A note in the corner, which stays until it is closed. Gives the way to change it.
function noted(text, kind) {
  const message = h("p", null, text);
  const element = h("div", { class: `note ${kind}` }, message, h("button", { type: "button", "aria-label": "Close", onclick: () => element.remove() }, "×"));
  notes.append(element);
  return (newText, newKind) => {
    message.textContent = newText;
    element.className = `note ${newKind}`;
  };
}
