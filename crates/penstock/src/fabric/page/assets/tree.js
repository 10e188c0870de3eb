// Draws the topology. Colours show the load of links. A selected node shows its queues.

import { byId, draw, make, percent, plural, rate } from "./words.js";

// Number of servers above which a rack is drawn as one box with its fullest link.
const SERVERS_MAX = 64;
// Largest number of boxes in a row.
const ROW_MAX = 200;
const STEPS = [0, 0.5, 0.8, 0.95];
const WIDTH = 96;
const GAP = 14;
const LAYER = 84;

let chosen = null;
let colour = "reserved";
let last = null;

const step = (share) => (share <= 0 ? 0 : STEPS.filter((from) => share > from || from === 0).length);

function share(link, by) {
  return Math.max(link[`${by}_up`], link[`${by}_down`]) / link.rate;
}

// Nodes to draw, by layer from the top. Each node is centred below its parents.
function layout(topology) {
  const layers = [];
  const servers = topology.nodes.filter((node) => node.kind === "server").length;
  for (const node of topology.nodes) {
    if (node.layer === 0 && servers > SERVERS_MAX) continue;
    (layers[node.layer] ??= []).push(node);
  }
  const rows = layers.filter(Boolean).map((row) => row.slice(0, ROW_MAX)).reverse();
  const left = layers.flat().length - rows.flat().length;
  return { rows, folded: servers > SERVERS_MAX ? servers : 0, left };
}

function place(rows, links) {
  const above = new Map();
  for (const link of links) above.set(link.below, [...(above.get(link.below) ?? []), link.above]);
  const at = new Map();
  const bottom = rows.at(-1);
  const wide = Math.max(...rows.map((row) => row.length)) * (WIDTH + GAP) + GAP;
  const spread = (row, y) => row.forEach((node, n) => {
    const x = ((n + 0.5) * wide) / row.length;
    at.set(node.name, { x, y, node });
  });
  rows.forEach((row, n) => spread(row, 30 + n * LAYER));
  return { at, width: wide, height: 60 + (rows.length - 1) * LAYER, bottom };
}

function short(name) {
  return name.length > 13 ? `${name.slice(0, 12)}…` : name;
}

function box(spot, choose, folded) {
  const { x, y, node } = spot;
  const notes = [];
  if (!node.connected) notes.push(node.kind === "server" ? "agent away" : "out of date");
  if (node.service !== "in") notes.push(node.service);
  const below = folded.get(node.name);
  const words = [node.name, node.kind, ...notes, below && plural(below, "server")].filter(Boolean);
  const state = [!node.connected && "away", node.service !== "in" && "out"];
  const classes = ["node", ...state, chosen === node.name && "chosen"];
  const open = () => choose(node.name);
  const key = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open();
    }
  };
  const sub = notes[0] ?? (below ? plural(below, "server") : null);
  return draw("g", {
    class: classes.filter(Boolean).join(" "), tabindex: 0, role: "button",
    "aria-label": words.join(", "), "aria-pressed": chosen === node.name,
    "data-node": node.name, onclick: open, onkeydown: key,
  },
  draw("title", {}, words.join(", ")),
  draw("rect", { x: x - WIDTH / 2, y: y - 17, width: WIDTH, height: 34, rx: 5 }),
  draw("text", { x, y: sub ? y - 6 : y }, short(node.name)),
  sub && draw("text", { x, y: y + 8, class: "soft" }, sub));
}

function edge(link, at) {
  const [low, high] = [at.get(link.below), at.get(link.above)];
  if (!low || !high) return null;
  const [held, used] = [share(link, "reserved"), share(link, "used")];
  const text = `${link.below} to ${link.above}, ${rate(link.rate)}: ${percent(held)} reserved, `
    + `${percent(used)} used, ${plural(link.tenants, "tenant")}`;
  const full = colour === "reserved" ? held : used;
  return draw("line", {
    x1: low.x, y1: low.y - 17, x2: high.x, y2: high.y + 17, class: `s${step(full)}`,
  }, draw("title", {}, text));
}

// Servers below a rack that are not drawn, and the rack's fullest link to such a server.
function fold(topology, rows, folded) {
  const counts = new Map();
  const drawn = new Set(rows.flat().map((node) => node.name));
  if (!folded) return counts;
  for (const link of topology.links) {
    if (!drawn.has(link.below)) counts.set(link.above, (counts.get(link.above) ?? 0) + 1);
  }
  return counts;
}

export function showTree(data, choose) {
  last = { data, choose };
  const { topology } = data;
  const { rows, folded, left } = layout(topology);
  const { at, width, height } = place(rows, topology.links);
  const counts = fold(topology, rows, folded);
  const svg = draw("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(...topology.links.map((link) => edge(link, at)).filter(Boolean));
  svg.append(...[...at.values()].map((spot) => box(spot, choose, counts)));
  const holder = byId("tree");
  const focused = document.activeElement?.getAttribute?.("data-node");
  const back = holder.scrollLeft;
  holder.replaceChildren(svg);
  if (left > 0) holder.append(make("p", { class: "hint" }, `and ${left} more, not drawn`));
  if (!holder.dataset.placed && holder.clientWidth) {
    holder.dataset.placed = "yes";
    const first = at.get(chosen) ?? at.get(rows[0][0].name);
    holder.scrollLeft = first.x - holder.clientWidth / 2;
  } else {
    holder.scrollLeft = back;
  }
  if (focused != null) {
    for (const node of svg.querySelectorAll(".node")) {
      if (node.getAttribute("data-node") === focused) node.focus({ preventScroll: true });
    }
  }
  showNode(data, choose);
}

export function colourBy(by) {
  colour = by;
  byId("by-reserved").setAttribute("aria-pressed", by === "reserved");
  byId("by-used").setAttribute("aria-pressed", by === "used");
  if (last) showTree(last.data, last.choose);
}

export function showScale() {
  const words = ["nothing", "up to 50 %", "to 80 %", "to 95 %", "above"];
  byId("scale").replaceChildren(...words.map((text, n) =>
    make("span", {}, make("i", { class: `s${n}` }), text)));
}

export function chooseNode(name) {
  chosen = chosen === name ? null : name;
}

function queue(one, open) {
  const bar = make("i");
  bar.style.width = `${one.share_permille / 10}%`;
  const who = one.queue === 0 ? "shared by all others" : one.tenant
    ? `${one.tenant}, DSCP ${one.dscp}` : "free";
  const holder = one.tenant ? make("button", { type: "button", class: "link", onclick: () =>
    open(one.tenant) }, one.tenant) : null;
  const text = make("span", { class: one.tenant || one.queue === 0 ? "" : "free" });
  text.append(...(holder ? [holder, `, DSCP ${one.dscp}`] : [who]));
  return make("div", { class: "queue" },
    make("span", { "aria-label": `queue ${one.queue}` }, `q${one.queue}`),
    make("div", { class: "bar" }, bar, text),
    make("span", { class: "num" }, percent(one.share_permille / 1000)));
}

function links(topology, name) {
  const near = topology.links.filter((link) => link.below === name || link.above === name);
  return near.slice(0, 40).map((link) => {
    const other = link.below === name ? link.above : link.below;
    const two = (by) => `${percent(link[`${by}_up`] / link.rate)} up, `
      + `${percent(link[`${by}_down`] / link.rate)} down`;
    const used = link.used_up + link.used_down > 0 ? `; used ${two("used")}` : "";
    return make("li", {}, `${other}, ${rate(link.rate)}: reserved ${two("reserved")}${used}`);
  });
}

function facts(node) {
  const state = node.connected ? "up to date" : "out of date or away";
  const parts = [node.kind, node.driver && `driver ${node.driver}`, `service ${node.service}`];
  if (node.kind === "server") {
    parts.push(node.connected ? "agent connected" : "agent away");
    parts.push(`${node.free_slots} of ${node.slots} slots free`);
    if (node.stamp) parts.push(`has decision ${node.stamp.epoch}.${node.stamp.generation}`);
  } else {
    parts.push(state);
  }
  return parts.filter(Boolean).join(", ");
}

function showNode(data, choose) {
  const { topology, bindings, openTenant } = data;
  const holder = byId("node");
  const node = topology.nodes.find((one) => one.name === chosen);
  if (!node) {
    const text = "Choose a switch or server for its queues and tenants.";
    holder.replaceChildren(make("p", { class: "hint" }, text));
    return;
  }
  if (holder.contains(document.activeElement)) return;
  const ports = bindings.filter((port) => port.node === chosen);
  const cards = ports.map((port) => make("div", { class: "port" },
    make("h4", {}, `to ${port.to}`),
    ...port.queues.map((one) => queue(one, openTenant)),
    make("p", { class: "hint" }, `weights within ${percent(port.weight_error_ppm / 1e6)}`)));
  holder.replaceChildren(
    make("h3", {}, node.name),
    make("p", {}, facts(node)),
    cards.length ? make("div", { class: "ports" }, ...cards)
      : make("p", { class: "hint" }, "No tenant uses a port here."),
    make("ul", {}, ...links(topology, chosen)));
}
