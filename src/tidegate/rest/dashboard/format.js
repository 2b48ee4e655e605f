// Numbers, sizes and times, as people read them.

export const NOTHING = "–";
const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en") : NOTHING;
}

// Where there is little room, as at the axis of a plot.
export function short(value) {
  return known(value) ? value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }) : NOTHING;
}

export function rate(value) {
  if (!known(value)) return NOTHING;
  if (value >= 1e6) return `${rounded(value / 1e6)} M/s`;
  if (value >= 1e4) return `${rounded(value / 1e3)} k/s`;
  return `${value >= 10 ? Math.round(value) : Number(value.toFixed(1))}/s`;
}

// Three digits, and none that say nothing: 128, 1.5, 0.25.
const rounded = (value) => String(Number(value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)));

export function bytes(value) {
  if (!known(value)) return NOTHING;
  if (value < 1024) return `${Math.round(value)} B`;
  const units = ["KB", "MB", "GB", "TB", "PB"];
  let n = -1;
  do { value /= 1024; n++; } while (value >= 1024 && n < units.length - 1);
  return `${rounded(value)} ${units[n]}`;
}

export function span(ms) {
  if (!known(ms) || ms < 0) return NOTHING;
  if (ms < 1000) return `${rounded(ms < 1 ? ms : Math.round(ms))} ms`;
  const s = ms / 1000;
  if (s < 60) return `${rounded(s)} s`;
  const two = (whole, unit, rest, smaller) => (rest ? `${whole} ${unit} ${rest} ${smaller}` : `${whole} ${unit}`);
  if (s < 3600) return two(Math.floor(s / 60), "min", Math.floor(s % 60), "s");
  if (s < 86400) return two(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  const days = Math.floor(s / 86400);
  return two(days, "d", days < 10 ? Math.floor((s % 86400) / 3600) : 0, "h");
}

export function time(ms) {
  if (!known(ms) || ms <= 0) return NOTHING;
  const date = new Date(ms);
  const clock = date.toLocaleTimeString("en-GB");
  if (date.toDateString() === new Date().toDateString()) return clock;
  return `${date.toLocaleDateString("sv-SE")} ${clock}`.replace(/-/g, "\u2011").replace(" ", "\u00a0"); // stays on one line
}

export const percent = (part, digits = 0) => (known(part) ? `${(part * 100).toFixed(digits)}%` : NOTHING);

// Of a watermark: the end of event time is not a date.
export function eventTime(value) {
  const ms = Number(value);
  if (!known(value)) return NOTHING;
  if (ms > 8.64e15) return "end of input";
  return ms < -8.64e15 ? NOTHING : new Date(ms).toISOString().replace("T", " ").replace("Z", "");
}

// A metric by Flink's name, in the unit that the name means.
export function metric(name, value) {
  if (!known(value)) return NOTHING;
  const last = name.split(".").at(-1);
  if (/Watermark$/.test(last)) return eventTime(value);
  if (/Nanos$|^checkpointAlignmentTime$/.test(last)) return span(value / 1e6);
  if (/TimeMsPerSecond$/.test(last)) return percent(value / 1000);
  if (/TimeMs$|Lag$|Duration$|^uptime$/.test(last)) return span(value);
  if (/Bytes(In|Out)PerSecond$/.test(last)) return `${bytes(value)}/s`;
  if (/PerSecond$/.test(last)) return rate(value);
  if (/Bytes(In|Out)?$|Size$|Memory/.test(last)) return bytes(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumFractionDigits: 2 });
}
