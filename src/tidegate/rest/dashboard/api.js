// Requests to the driver: the routes of docs/rest.md, and nothing else on the network.

const TIMEOUT_MS = 15000;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body) {
  const response = await fetch(path.replace(/^\//, ""), {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  let content = {};
  try { content = await response.json(); } catch { /* said by the status */ }
  if (!response.ok) throw new Refused(response.status, content.errors?.join("\n") ?? `the driver answers ${response.status}`);
  return content;
}

export const get = (path) => ask("GET", path);
export const send = (method, path, body = {}) => ask(method, path, body);

// Triggers what takes its time and waits for its result. `results` is where it is asked for.
export async function operate(method, path, body, results) {
  const id = (await send(method, path, body))["request-id"];
  for (;;) {
    const answer = await get(`${results}/${id}`);
    if (answer.status.id === "COMPLETED") {
      const failure = answer.operation["failure-cause"] ?? answer.operation.failureCause;
      if (failure) throw new Error(reason(failure));
      return answer.operation;
    }
    await new Promise((done) => setTimeout(done, 300));
  }
}

const reason = (failure) => failure["stack-trace"] ?? failure.stackTrace ?? failure.class ?? "it failed; the log has more";

// Many values by name, in requests whose addresses stay short.
export async function values(path, names) {
  const found = new Map();
  for (let i = 0; i < names.length; i += 60) {
    const part = names.slice(i, i + 60).map(encodeURIComponent).join(",");
    for (const { id, value } of await get(`${path}?get=${part}`)) found.set(id, Number(value));
  }
  return found;
}
