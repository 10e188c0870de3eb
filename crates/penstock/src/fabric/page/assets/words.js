// Makes elements, and formats numbers and times. Text from the server is never shown as markup.

const SVG = "http://www.w3.org/2000/svg";

// Creates an element with attributes and children: make("p", { class: "hint" }, "text", child).
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, String(value));
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

// A rate in bit/s with three digits.
export function rate(bits) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (bits >= size) return `${Number((bits / size).toPrecision(3))} ${unit}bit/s`;
  }
  return `${Math.round(bits)} bit/s`;
}

export const percent = (part) => `${(100 * part).toFixed(part < 0.0995 && part > 0 ? 1 : 0)} %`;

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

export function seconds(ms) {
  const s = Math.round(ms / 1000);
  return s < 120 ? `${s} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
}

export const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

// Points of a line through values, in a box. The index of a value is its time.
export function line(values, top, width, height) {
  const step = width / Math.max(values.length - 1, 1);
  const y = (value) => (height - 2 - (value / (top || 1)) * (height - 4)).toFixed(1);
  return values.map((value, at) => `${(at * step).toFixed(1)},${y(value)}`).join(" ");
}
