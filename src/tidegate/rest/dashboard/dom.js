// Elements, and how a page is brought up to date. Text is always set as text: nothing that a job says is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

// h("a", {href: "#/", onclick: act, style: {width: "3px"}}, "text", child, [children], null)
export const h = (tag, props, ...children) => build(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => build(document.createElementNS(SVG, tag), props, children);

function build(element, props, children) {
  element.handlers = {};
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element[name] = element.handlers[name] = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "key") element.key = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map(asNode));
  return element;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

// Makes the children of `parent` equal to `wanted` and touches only what differs: scrolling, focus, an opened <details>, a
// marked text and a half-filled field survive an update.
export function patch(parent, wanted) {
  const fresh = wanted.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map(asNode);
  const now = [...parent.childNodes];
  for (let i = 0; i < Math.max(now.length, fresh.length); i++) {
    if (i >= fresh.length) now[i].remove();
    else if (i >= now.length) parent.append(fresh[i]);
    else morph(now[i], fresh[i]);
  }
}

function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.key !== fresh.key) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "style" && name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "style" && name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  for (const name of Object.keys(old.handlers ?? {})) if (!(name in (fresh.handlers ?? {}))) old[name] = null;
  for (const [name, handler] of Object.entries(fresh.handlers ?? {})) old[name] = handler;
  old.handlers = fresh.handlers;
  if (old.nodeName !== "TEXTAREA") patch(old, [...fresh.childNodes]);
}

// A table that scrolls in itself where the screen is narrow; one of the class "stacked" has each row's cells below each other
// there, with their titles. Columns: [title, is it a number].
export function table(columns, rows, options = {}) {
  const cells = (row, tag) => row.map((cell, i) => h(tag, { class: columns[i]?.[1] ? "number" : null, "data-title": columns[i]?.[0] || null }, cell));
  const head = h("thead", null, h("tr", null, columns.map(([title, number]) => h("th", { class: number ? "number" : null }, title))));
  const body = rows.map((row) => (row instanceof Node ? row : h("tr", null, cells(row, "td"))));
  if (!body.length) body.push(h("tr", null, h("td", { class: "none", colspan: columns.length }, options.none ?? "None")));
  return h("div", { class: "scroll" }, h("table", { class: options.class }, head, h("tbody", null, body)));
}

export const card = (title, ...content) => h("section", { class: "card" }, title ? h("h2", null, title) : null, content);

export const figure = (name, value, more) =>
  h("div", { class: "figure", "data-figure": name }, h("span", { class: "name" }, name), h("span", { class: "value" }, value), more ? h("span", { class: "more" }, more) : null);
