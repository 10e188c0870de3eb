// Requests the views every interval and shows them. If the server does not answer, the page shows
// the age of its values.

import { byId, clock, make, percent, plural, seconds } from "./words.js";
import { chooseNode, colourBy, showScale, showTree } from "./tree.js";
import {
  chosenTenant, chooseTenant, explain, follow, learn, showTenants,
} from "./tenants.js";

const EVENTS_SHOWN = 200;
const PATIENCE = 8000;

const known = {
  status: null, topology: null, tenants: [], bindings: [], events: [], learned: false,
  interval: null, stamp: null, changed: 0, problem: "",
};

async function ask(path) {
  const limit = AbortSignal.timeout(PATIENCE);
  const answer = await fetch(`/api/${path}`, { signal: limit, cache: "no-store" });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? `status ${answer.status}`);
  return { value, age: Number(answer.headers.get("age") ?? 0) * 1000 };
}

function badges(status) {
  const badge = (text, kind = "") => make("span", { class: `badge ${kind}` }, text);
  if (!status) return [badge("no answer", "bad")];
  if (!status.leads) return [badge("does not lead", "warn")];
  const mode = { active: "good" }[status.mode] ?? "warn";
  const away = status.servers - status.hosts_connected;
  return [
    badge("leads", "good"), badge(`mode ${status.mode}`, mode),
    badge(`term ${status.stamp.epoch}, decision ${status.stamp.generation}`),
    away > 0 && badge(`${plural(away, "host")} away`, "warn"),
    status.out_of_date.length > 0
      && badge(`${plural(status.out_of_date.length, "element")} out of date`, "warn"),
  ].filter(Boolean);
}

function banner(status) {
  const age = Date.now() - known.changed;
  const limit = Math.max(3 * (status?.interval_ms ?? 1000), 6000);
  const old = known.changed > 0 && age > limit;
  let [text, kind] = ["", ""];
  if (known.changed === 0 && known.problem) text = `No answer yet: ${known.problem}`;
  else if (old) text = `These values are ${seconds(age)} old: ${known.problem || "the controller is busy"}.`;
  else if (status && !status.leads) {
    kind = "warn";
    text = status.leader
      ? `This controller does not lead. The leader is ${status.leader}: see its page.`
      : "This controller does not lead, and the leader is not known.";
  } else if (status?.mode === "observe") {
    kind = "warn";
    text = "Mode observe: the controller decides, but changes no host or switch.";
  } else if (status?.mode === "hold") {
    kind = "warn";
    text = "Mode hold: tenants keep their queues until the mode is active.";
  }
  const holder = byId("banner");
  holder.hidden = !text;
  holder.className = kind;
  if (holder.textContent !== text) holder.textContent = text;
  document.body.classList.toggle("old", old || (status != null && !status.leads));
}

function figures(status) {
  if (!status?.leads) return [];
  const { last_interval: last, this_term: all } = status;
  const queues = status.tenants ? percent(status.with_queues / status.tenants) : "–";
  const list = [
    ["Tenants", status.tenants, "placed"],
    ["With queues", status.with_queues, `${queues} of tenants`],
    ["Hosts connected", status.hosts_connected, `of ${status.servers}`],
    ["Switches", status.switches, `${status.out_of_date.length} out of date`,
      status.out_of_date.length > 0],
    ["Last interval", `${(last.took_us / 1000).toFixed(1)} ms`,
      `${(last.decided_in_us / 1000).toFixed(1)} ms deciding`],
    ["Drift", all.drifted, "this term", last.drifted > 0],
    ["Rolled back", all.taken_back, "plans this term", last.taken_back],
    ["Agents refused", status.agents.refused, "since the start"],
    ["Weight error", percent(status.worst_weight_error_ppm / 1e6), "worst port"],
  ];
  return list.map(([name, value, small, bad]) => make("div", { class: bad && "bad" },
    make("dt", {}, name), make("dd", {}, String(value), " ", make("small", {}, small))));
}

function event(one) {
  return make("li", {}, make("time", { datetime: new Date(one.at_ms).toISOString() },
    clock(one.at_ms)),
  make("span", { class: `kind ${one.severity}` }, one.kind),
  make("b", {}, one.subject), one.subject ? ": " : "", one.text);
}

function showEvents() {
  const only = byId("warnings").checked;
  const newest = [...known.events].reverse();
  const shown = newest.filter((one) => !only || one.severity === "warning").slice(0, EVENTS_SHOWN);
  const none = (text) => [make("li", { class: "hint" }, text)];
  byId("events").replaceChildren(...(shown.length ? shown.map(event) : none("Nothing yet.")));
  const refused = newest.filter((one) => one.kind === "refused").slice(0, 20);
  byId("refused").replaceChildren(...(refused.length ? refused.map(event)
    : none("No tenant was refused lately.")));
}

async function openTenant(name) {
  chooseTenant(name);
  showTenants(known.tenants, openTenant);
  await whyOf(name);
}

async function whyOf(name) {
  if (chosenTenant() !== name) return;
  try {
    const { value } = await ask(`explain/${encodeURIComponent(name)}`);
    explain(value);
  } catch (problem) {
    explain({ why: [problem.message] });
  }
  showTenants(known.tenants, openTenant);
}

function openNode(name) {
  chooseNode(name);
  show();
}

function show() {
  const { status } = known;
  byId("name").textContent = status ? `· ${status.name}` : "";
  document.title = status ? `${status.name} · Penstock fabric` : "Penstock fabric";
  byId("state").replaceChildren(...badges(status));
  byId("figures").replaceChildren(...figures(status));
  banner(status);
  if (!known.topology) return;
  showTree({ ...known, openTenant }, openNode);
  showTenants(known.tenants, openTenant);
  showEvents();
}

async function refresh() {
  const { value: status, age } = await ask("status");
  known.status = status;
  if (!status.leads) {
    known.changed = Date.now();
    return;
  }
  const views = ["topology", "tenants", "bindings", "events"];
  const answers = await Promise.all(views.map(ask));
  views.forEach((view, at) => { known[view] = answers[at].value; });
  const { number } = status.last_interval;
  const term = status.stamp.epoch;
  if (!known.learned || known.term !== term) {
    learn((await ask("history")).value);
    Object.assign(known, { learned: true, term });
  } else if (number !== known.interval) {
    follow(known.tenants, status.now_ms - age);
  }
  known.interval = number;
  // The clocks of the two machines may differ, so the age starts when an answer arrives here.
  if (status.now_ms !== known.stamp) {
    known.changed = Date.now() - age;
    known.stamp = status.now_ms;
  }
}

async function turn() {
  try {
    await refresh();
    known.problem = "";
    document.body.dataset.ready = "yes";
  } catch (problem) {
    known.problem = problem.name === "TypeError" ? "the controller does not answer"
      : problem.message;
  }
  try {
    show();
    const name = chosenTenant();
    if (name != null) await whyOf(name);
  } catch (problem) {
    // The next interval starts even if this interval failed.
    console.error(problem);
  }
  const pause = Math.min(Math.max(known.status?.interval_ms ?? 1000, 1000), 10000);
  setTimeout(turn, document.hidden ? 3 * pause : pause);
}

byId("by-reserved").addEventListener("click", () => colourBy("reserved"));
byId("by-used").addEventListener("click", () => colourBy("used"));
byId("find").addEventListener("input", () => showTenants(known.tenants, openTenant));
byId("warnings").addEventListener("change", showEvents);
setInterval(() => banner(known.status), 1000);
// #tenant=NAME or #node=NAME opens one tenant or node. Users can share links with such a fragment.
const wanted = new URLSearchParams(location.hash.slice(1));
if (wanted.has("tenant")) chooseTenant(wanted.get("tenant"));
if (wanted.has("node")) chooseNode(wanted.get("node"));
showScale();
turn();
