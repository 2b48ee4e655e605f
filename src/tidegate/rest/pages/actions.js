// Buttons that act on a job: each asks first, then says what became of it.

import { html, draw } from "./html.js";
import { ask, operate } from "./rest.js";

const dialog = document.getElementById("dialog");
const toasts = document.getElementById("toasts");

export function toast(kind, content, stays = 8000) {
  const made = document.createElement("div");
  made.className = `toast ${kind}`;
  draw(made, content);
  toasts.append(made);
  if (stays) setTimeout(() => made.remove(), stays);
  return made;
}

/** Ask for confirmation; the fields of the form, or null. */
function confirmed(title, text, fields, button, risky) {
  draw(dialog, html`<form method="dialog"><h2>${title}</h2><p>${text}</p>${fields}
<div class="buttons"><button value="">Leave it</button><button class="main ${risky ? "risky" : ""}" value="yes" id="confirm">${button}</button></div></form>`);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      done(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(dialog.querySelector("form"))) : null);
      dialog.drawn = null;
    }, { once: true });
  });
}

const folder = html`<label>Folder, inside the job's storage (may be empty)<input name="folder" autocomplete="off"></label>
<label>Format<select name="format"><option value="CANONICAL">canonical: Parquet and JSON</option><option value="NATIVE">native: quicker</option></select></label>`;

const ACTIONS = {
  checkpoint: {
    ask: (job) => confirmed("Checkpoint now", `Take a checkpoint of ${job.name}?`, "", "Take it"),
    act: (path) => operate("POST", `${path}/checkpoints`, `${path}/checkpoints`, { checkpointType: "CONFIGURED" }),
    says: (done) => html`checkpoint ${done.checkpointId} is complete`,
  },
  savepoint: {
    ask: (job) => confirmed("Savepoint", `Take a savepoint of ${job.name}? It goes on.`, folder, "Take it"),
    act: (path, given) => operate("POST", `${path}/savepoints`, `${path}/savepoints`, { "target-directory": given.folder || null, formatType: given.format }),
    says: (done) => html`savepoint: <code id="location">${done.location}</code>`,
  },
  stop: {
    ask: (job) => confirmed("Stop", `Stop ${job.name} with a savepoint? Whoever resumes from it goes on exactly there.`,
      html`${folder}<label><input type="checkbox" name="drain" style="width:auto"> drain: end the stream before, for a job that will not go on</label>`, "Stop it", true),
    act: (path, given) => operate("POST", `${path}/stop`, `${path}/savepoints`, { targetDirectory: given.folder || null, formatType: given.format, drain: given.drain === "on" }),
    says: (done) => html`stopped; savepoint: <code id="location">${done.location}</code>`,
  },
  rescale: {
    ask: (job) => confirmed("Rescale", `Run ${job.name} with another parallelism? It pauses for the change.`,
      html`<label>Parallelism<input name="parallelism" type="number" min="1" max="32768" required value="${Math.max(...job.vertices.map((v) => v.parallelism))}"></label>`, "Rescale"),
    act: (path, given) => operate("PATCH", `${path}/rescaling?parallelism=${encodeURIComponent(given.parallelism)}`, `${path}/rescaling`, {}),
    says: (done) => html`parallelism ${done.parallelism}; the gap was ${(done["gap-ms"] / 1000).toFixed(1)} s`,
  },
  cancel: {
    ask: (job) => confirmed("Cancel", `End ${job.name} without a savepoint? Its checkpoints stay.`, "", "Cancel it", true),
    act: (path) => ask(`${path}?mode=cancel`, "PATCH", {}),
    says: () => html`the job is being canceled`,
  },
};

export const buttons = (job) => !job.isStoppable ? "" : html`
<button data-act="checkpoint">Checkpoint</button><button data-act="savepoint">Savepoint</button><button data-act="rescale">Rescale</button>
<button data-act="stop" class="risky">Stop</button><button data-act="cancel" class="risky">Cancel</button>`;

export async function act(name, job) {
  const action = ACTIONS[name];
  const given = await action.ask(job);
  if (given === null) return;
  const waiting = toast("wait", html`${name} of ${job.name} …`, 0);
  try {
    const done = await action.act(`jobs/${job.jid}`, given);
    toast("done", action.says(done), 20000);
  } catch (error) {
    toast("bad", html`${name}: ${error.message}`, 20000);
  } finally {
    waiting.remove();
  }
}
