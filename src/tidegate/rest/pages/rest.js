// The driver's REST, at the address that the page came from.

export class Refused extends Error {}

export async function ask(path, method = "GET", body = undefined) {
  const options = { method, headers: { "Content-Type": "application/json" }, cache: "no-store" };
  if (body !== undefined) options.body = JSON.stringify(body);
  const answer = await fetch(path, options);
  const content = await answer.json();
  if (!answer.ok) throw new Refused(content.errors ? content.errors[0] : `${answer.status}`);
  return content;
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Trigger something that takes its time; its result when it has ended. */
export async function operate(method, path, results, body) {
  const { "request-id": id } = await ask(path, method, body);
  for (let wait = 50; ; wait = Math.min(wait * 1.5, 1000)) {
    const { status, operation } = await ask(`${results}/${id}`);
    if (status.id === "COMPLETED") {
      const failure = operation && (operation["failure-cause"] || operation.failureCause);
      if (failure) throw new Refused(failure["stack-trace"]);
      return operation || {};
    }
    await pause(wait);
  }
}
