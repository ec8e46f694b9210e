// Elements and words. Text becomes text nodes alone: nothing that others wrote is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const h = (tag, given, ...children) => fill(document.createElement(tag), given, children);
export const s = (tag, given, ...children) => fill(document.createElementNS(SVG, tag), given, children);
export const card = (title, ...children) => h("section", { class: "card" }, h("h2", {}, title), ...children);
export const facts = (rows) => h("dl", {}, rows.filter(([, value]) => value !== "" && value !== null).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const number = (value) => Math.round(value).toLocaleString("en-US");
export const counted = (value, word) => `${number(value)} ${word}${value === 1 ? "" : "s"}`;
export const share = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)}%` : "");

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function seconds(value) {
  if (value > 0 && value < 1) return `${Math.ceil(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

// Control characters and those that turn the direction of a line are shown as their numbers.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
export const visible = (text) => String(text).replace(HIDDEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

// Make a place look like these children and change only what looks otherwise: focus, scrolling and what is selected stay.
// What listens bears a data-key that says what it does, and is exchanged as a whole.
export function show(place, ...children) {
  const made = h("div", {}, ...children);
  const old = place.firstElementChild;
  if (!old || place.childElementCount !== 1) place.replaceChildren(made);
  else morph(old, made);
}

function morph(old, made) {
  if (old.isEqualNode(made)) return;
  if (old.nodeName !== made.nodeName || old.nodeType !== Node.ELEMENT_NODE || old.dataset.key !== undefined || made.dataset.key !== undefined) {
    const focused = old === document.activeElement;
    old.replaceWith(made);
    if (focused) made.focus();
    return;
  }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const [before, after] = [[...old.childNodes], [...made.childNodes]];
  before.slice(after.length).forEach((child) => child.remove());
  after.forEach((child, at) => (before[at] ? morph(before[at], child) : old.append(child)));
}
