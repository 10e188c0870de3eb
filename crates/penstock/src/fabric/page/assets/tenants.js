// Shows a table of tenants with guarantees and rates, and the reasons for placement and queue.

import { byId, clock, draw, line, make, percent, plural, rate } from "./words.js";

// Limit of rows shown. The search finds the other tenants.
const ROWS_MAX = 200;
// Number of samples in a line, the same as on the server.
const KEPT = 300;

const lines = new Map();
let times = [];
let order = { by: "name", down: false };
let chosen = null;
let why = null;

const COLUMNS = [
  ["name", "Tenant", (t) => t.name],
  ["guarantee", "Guarantee", (t) => t.guarantee_send],
  ["sent", "Sent", (t) => t.sent],
  ["received", "Received", (t) => t.received],
  ["used", "Used", (t) => t.used_permille],
  ["queue", "Queue", (t) => (t.queue ? t.dscp : 0)],
  ["score", "Score", (t) => t.score],
  ["line", "Sent over time", null],
];

export const chosenTenant = () => chosen;

// Loads the server's history of intervals before the page was opened.
export function learn(history) {
  times = history.times;
  lines.clear();
  for (const [name, columns] of Object.entries(history.tenants)) lines.set(name, columns);
}

// Appends one interval.
export function follow(tenants, at) {
  times = [...times, at].slice(-KEPT);
  const now = new Set();
  for (const t of tenants) {
    now.add(t.name);
    const kept = lines.get(t.name) ?? { sent: [], received: [], score: [], dscp: [] };
    for (const [key, value] of Object.entries({
      sent: t.sent, received: t.received, score: t.score, dscp: t.queue ? t.dscp : 0,
    })) kept[key] = [...kept[key], value].slice(-KEPT);
    lines.set(t.name, kept);
  }
  for (const name of lines.keys()) if (!now.has(name)) lines.delete(name);
}

function spark(t) {
  const values = lines.get(t.name)?.sent ?? [];
  const top = Math.max(t.guarantee_send, ...values);
  const points = line(values, top, 120, 26);
  const y = (26 - 2 - (t.guarantee_send / (top || 1)) * 22).toFixed(1);
  const most = values.length ? rate(Math.max(...values)) : "nothing known";
  const label = `sent in the last ${plural(values.length, "interval")}: at most ${most}`;
  return draw("svg", { class: "spark", viewBox: "0 0 120 26", role: "img", "aria-label": label },
    draw("title", {}, label),
    values.length > 1 && draw("polygon", { class: "fill", points: `0,26 ${points} 120,26` }),
    draw("line", { class: "guarantee", x1: 0, x2: 120, y1: y, y2: y }),
    values.length > 1 && draw("polyline", { class: "got", points }));
}

function badge(t) {
  if (!t.network) return make("span", { class: "badge" }, "one server");
  if (!t.queue) return make("span", { class: "badge" }, "shared");
  return make("span", { class: "badge good", title: `since interval ${t.since_interval}` },
    `own, DSCP ${t.dscp}`);
}

function row(t, open) {
  const cell = (label, content, kind = "num") =>
    make("td", { class: kind, "data-label": label }, content);
  const away = t.hosts_away.length
    && make("span", { class: "badge warn", title: t.hosts_away.join(", ") },
      `${plural(t.hosts_away.length, "host")} away`);
  const name = make("button", {
    type: "button", class: "link", "aria-expanded": chosen === t.name, "data-tenant": t.name,
    onclick: () => open(t.name),
  }, t.name);
  const promised = t.guarantee_send === t.guarantee_recv ? rate(t.guarantee_send)
    : `${rate(t.guarantee_send)} / ${rate(t.guarantee_recv)}`;
  return make("tr", { class: chosen === t.name && "chosen" },
    make("td", {}, name, " ", away || null),
    cell("Guarantee", promised), cell("Sent", rate(t.sent)), cell("Received", rate(t.received)),
    cell("Used", percent(t.used_permille / 1000)), cell("Queue", badge(t), ""),
    cell("Score", rate(t.score)), cell("Sent over time", spark(t), ""));
}

function columns(redraw) {
  const head = COLUMNS.map(([by, text, value]) => {
    if (!value) return make("th", { scope: "col" }, text);
    const sorted = order.by === by;
    const sort = () => {
      order = { by, down: sorted ? !order.down : by !== "name" };
      redraw();
      byId("columns").querySelector(`[data-by=${by}]`).focus();
    };
    const mark = sorted ? (order.down ? " ↓" : " ↑") : "";
    return make("th", {
      scope: "col", class: ["name", "queue"].includes(by) ? "" : "num",
      "aria-sort": sorted ? (order.down ? "descending" : "ascending") : "none",
    }, make("button", { type: "button", "data-by": by, onclick: sort }, text + mark));
  });
  byId("columns").replaceChildren(...head);
}

export function showTenants(tenants, open) {
  const redraw = () => showTenants(tenants, open);
  const sought = byId("find").value.trim().toLowerCase();
  const value = COLUMNS.find(([by]) => by === order.by)[2];
  const found = tenants.filter((t) => t.name.toLowerCase().includes(sought));
  found.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const less = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
    return order.down ? -less : less;
  });
  const shown = found.slice(0, ROWS_MAX);
  const text = shown.length < tenants.length ? `${shown.length} of ${tenants.length} shown`
    : plural(tenants.length, "tenant");
  byId("shown").textContent = text;
  const focused = document.activeElement?.getAttribute?.("data-tenant");
  if (!byId("columns").contains(document.activeElement)) columns(redraw);
  else if (byId("columns").dataset.order !== JSON.stringify(order)) columns(redraw);
  byId("columns").dataset.order = JSON.stringify(order);
  const none = make("tr", {}, make("td", { colspan: 8, class: "hint" },
    tenants.length ? "No tenant of that name." : "No tenants yet."));
  byId("rows").replaceChildren(...(shown.length ? shown.map((t) => row(t, open)) : [none]));
  if (focused != null) {
    for (const button of byId("rows").querySelectorAll("[data-tenant]")) {
      if (button.dataset.tenant === focused) button.focus({ preventScroll: true });
    }
  }
  showTenant(tenants.find((t) => t.name === chosen));
}

export function chooseTenant(name) {
  chosen = chosen === name ? null : name;
  why = null;
}

export function explain(answer) {
  why = answer;
}

function chart(t) {
  const kept = lines.get(t.name);
  if (!kept || kept.sent.length < 2) return make("p", { class: "hint" }, "No intervals yet.");
  const [wide, high] = [900, 170];
  const top = Math.max(t.guarantee_send, ...kept.sent, ...kept.received, ...kept.score);
  const y = (high - 2 - (t.guarantee_send / (top || 1)) * (high - 4)).toFixed(1);
  const from = times.at(-kept.sent.length);
  const label = `sent, received and score since ${clock(from)}; the top is ${rate(top)}`;
  const key = (n, text) => make("span", { class: `k${n}` }, text);
  return make("div", {},
    make("p", { class: "lines" }, key(1, "— sent"), key(2, "- - received"), key(3, "— score"),
      key(4, "··· guarantee"), make("span", { class: "hint" }, `top: ${rate(top)}`)),
    draw("svg", { class: "chart", viewBox: `0 0 ${wide} ${high + 16}`, role: "img",
      "aria-label": label },
    draw("line", { class: "axis", x1: 0, x2: wide, y1: high, y2: high }),
    draw("line", { class: "guarantee", x1: 0, x2: wide, y1: y, y2: y }),
    draw("polyline", { class: "score", points: line(kept.score, top, wide, high) }),
    draw("polyline", { class: "received", points: line(kept.received, top, wide, high) }),
    draw("polyline", { class: "got", points: line(kept.sent, top, wide, high) }),
    draw("text", { x: 0, y: high + 13, class: "soft" }, clock(from)),
    draw("text", { x: wide, y: high + 13, class: "soft", "text-anchor": "end" },
      clock(times.at(-1)))));
}

function showTenant(t) {
  const holder = byId("tenant");
  if (!t) {
    holder.replaceChildren();
    return;
  }
  const places = Object.entries(t.servers).map(([server, vms]) => `${server} (${vms})`);
  const many = places.length > 24 ? `, and ${places.length - 24} more` : "";
  const reasons = why?.why ?? ["loading …"];
  holder.replaceChildren(
    make("h3", {}, `${t.name}: reasons for its placement and queue`),
    make("ul", { id: "why" }, ...reasons.map((text) => make("li", {}, text))),
    chart(t),
    make("p", { class: "hint" }, `${plural(t.vms, "VM")} below ${t.root}, by server: `
      + places.slice(0, 24).join(", ") + many));
}
