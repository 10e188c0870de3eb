//! A diary of the controller: what it decided during a run, and when it carried out its plans.
//!
//! # Approach
//!
//! A thread asks the controller for its status once per second, and for all tenants and queues when
//! an interval has ended. The controller does not answer while it carries out a plan, so the thread
//! waits then. At the end of the run, the diary also asks for the controller's events. The
//! controller reports a change of a tenant's queues directly after it has carried out the plan.
//!
//! # Cost
//!
//! A request is a program that runs for some milliseconds. The diary starts fewer than two programs
//! per second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::operator::Operator;
use super::process::lock;
use super::transport::Moment;
use crate::rig::stats::to_f64;
use penstock_guest::clock;

/// Time between two requests for the controller's status.
const PERIOD: Duration = Duration::from_secs(1);
/// Kinds of events with which the controller reports that a plan has ended.
const ENDS: [&str; 4] = ["promoted", "demoted", "taken-back", "reverted"];

/// State of the controller at one moment, as its commands `status`, `tenants` and `bindings` print
/// it.
#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    /// Time of the controller's answer in milliseconds since 1970.
    pub at_ms: u64,
    pub status: Value,
    pub tenants: Value,
    pub bindings: Value,
}

/// A plan that the controller carried out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlanRun {
    /// Time from the beginning to the end of the plan, in milliseconds since 1970.
    pub span_ms: [u64; 2],
    /// Events of the plan as texts, such as `promoted t3`.
    pub events: Vec<String>,
    /// Length of the plan in seconds, as the controller recorded it. If the controller records only
    /// the length of its intervals, `secs` is the length of the interval with the plan.
    pub secs: f64,
}

/// What a diary contains at its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub pages: Vec<Page>,
    /// Events of the controller, oldest first, as `penstock controller events` prints them.
    pub events: Value,
    /// Connections and queues, before the first sample and after each sample. Empty if the
    /// experiment does not read them.
    pub moments: Vec<Moment>,
}

/// Events of all leaders, by their time, the leader's epoch and the number of the event.
type Events = BTreeMap<[u64; 3], Value>;

/// The thread that writes a diary. Dropping the diary ends the thread.
#[derive(Debug)]
pub(super) struct Diary {
    stop: Arc<AtomicBool>,
    pages: Arc<Mutex<Vec<Page>>>,
    events: Arc<Mutex<Events>>,
    operator: Operator,
    thread: Option<JoinHandle<()>>,
}

impl Diary {
    pub fn start(operator: Operator) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let pages: Arc<Mutex<Vec<Page>>> = Arc::default();
        let events: Arc<Mutex<Events>> = Arc::default();
        let (theirs, kept, asks) = (Arc::clone(&stop), Arc::clone(&pages), operator.clone());
        let told = Arc::clone(&events);
        let write = move || {
            while !theirs.load(Relaxed) {
                // A request that fails leaves out one page.
                if let Ok(Some(page)) = next(&asks, &kept) {
                    lock(&kept).push(page);
                    if asks.controllers() > 1
                        && let Ok(events) = asks.ask(&["events"])
                    {
                        add(&mut lock(&told), &events);
                    }
                }
                clock::wait_readable(None, PERIOD);
            }
        };
        let thread = std::thread::Builder::new().name("diary".to_owned()).spawn(write);
        let thread = Some(thread.context("starting a thread")?);
        Ok(Self { stop, pages, events, operator, thread })
    }

    /// Ends the diary, and returns what it contains.
    pub fn close(mut self) -> anyhow::Result<Log> {
        self.finish();
        let pages = std::mem::take(&mut *lock(&self.pages));
        let mut all = std::mem::take(&mut *lock(&self.events));
        match self.operator.ask(&["events"]) {
            Ok(last) => add(&mut all, &last),
            // Without a leader, the diary has the events up to its last page.
            Err(_) if self.operator.controllers() > 1 => {}
            Err(error) => return Err(error),
        }
        Ok(Log { pages, events: all.into_values().collect(), moments: Vec::new() })
    }

    fn finish(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has written its last page.
            let _ = thread.join();
        }
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Adds the events of a controller's answer.
fn add(all: &mut Events, answer: &Value) {
    for event in answer.as_array().into_iter().flatten() {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let key = [&event["at_ms"], &event["stamp"]["epoch"], &event["number"]].map(number);
        all.insert(key, event.clone());
    }
}

/// Returns the controller's state if an interval or a decision has ended since the last page.
fn next(operator: &Operator, pages: &Mutex<Vec<Page>>) -> anyhow::Result<Option<Page>> {
    let status = operator.ask(&["status"])?;
    let at_ms = clock::since_1970().0 / 1_000_000;
    let same = {
        let pages = lock(pages);
        pages.last().is_some_and(|last| {
            let number = |status: &Value| status["last_interval"]["number"].clone();
            number(&last.status) == number(&status) && last.status["stamp"] == status["stamp"]
        })
    };
    if same {
        return Ok(None);
    }
    let (tenants, bindings) = (operator.ask(&["tenants"])?, operator.ask(&["bindings"])?);
    Ok(Some(Page { at_ms, status, tenants, bindings }))
}

/// Returns the length of a plan in seconds from the controller's answer to `revert`, or from a part
/// of its status. `None` if there was no plan.
pub(super) fn plan_seconds(answer: &Value) -> Option<f64> {
    let micros = answer["plan_us"].as_u64().filter(|micros| *micros > 0)?;
    Some(to_f64(micros) / 1e6)
}

impl Page {
    /// Returns the code point of a tenant. 0 if the tenant shares queue 0.
    pub fn dscp(&self, tenant: &str) -> u64 {
        let all = self.tenants.as_array().into_iter().flatten();
        let of = all.into_iter().find(|of| of["name"] == tenant);
        of.and_then(|of| of["dscp"].as_u64()).unwrap_or(0)
    }

    /// Returns the queues of the port from node `from` to node `to`, as `penstock controller
    /// bindings` prints them.
    pub fn port(&self, from: &str, to: &str) -> Option<&Value> {
        let all = self.bindings.as_array().into_iter().flatten();
        all.into_iter().find(|port| port["node"] == from && port["to"] == to)
    }

    /// Returns the number of a tenant's queue at the port from node `from` to node `to`. 0 if the
    /// tenant shares queue 0 or if there is no such port.
    pub fn queue(&self, (from, to): (&str, &str), tenant: &str) -> u64 {
        let queues = self.port(from, to).and_then(|port| port["queues"].as_array());
        let queue = queues.into_iter().flatten().find(|queue| queue["tenant"] == tenant);
        queue.and_then(|queue| queue["queue"].as_u64()).unwrap_or(0)
    }
}

impl Log {
    /// Returns the last page before or at the time `at_ms`, in milliseconds since 1970.
    pub fn before(&self, at_ms: u64) -> Option<&Page> {
        self.pages.iter().rev().find(|page| page.at_ms <= at_ms)
    }

    /// Returns the first page after the time `at_ms`, in milliseconds since 1970.
    pub fn after(&self, at_ms: u64) -> Option<&Page> {
        self.pages.iter().find(|page| page.at_ms > at_ms)
    }

    /// Returns the moments at the begin and at the end of the span `span_ms`, which the lab reads
    /// directly after the counters of a sample.
    pub fn span(&self, span_ms: [u64; 2]) -> Option<[&Moment; 2]> {
        let [before, after] =
            span_ms.map(|at_ms| self.moments.iter().find(|moment| moment.at_ms >= at_ms));
        Some([before?, after?])
    }

    /// Returns the events from `from_ms` to `until_ms`, in milliseconds since 1970, as texts.
    pub fn events(&self, from_ms: u64, until_ms: u64) -> Vec<String> {
        let all = self.events.as_array().into_iter().flatten();
        let within = all.into_iter().filter(|event| {
            event["at_ms"].as_u64().is_some_and(|at| (from_ms..=until_ms).contains(&at))
        });
        within.map(told).collect()
    }

    /// Returns the plans that changed queues, in the order of their ends.
    pub fn plans(&self) -> Vec<PlanRun> {
        let mut ends: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
        for event in self.events.as_array().into_iter().flatten() {
            let kind = event["kind"].as_str().unwrap_or_default();
            let Some(at) = event["at_ms"].as_u64().filter(|_| ENDS.contains(&kind)) else {
                continue;
            };
            let end = ends.entry(event["stamp"].to_string()).or_default();
            end.0 = end.0.max(at);
            end.1.push(told(event));
        }
        let mut plans: Vec<PlanRun> = ends.into_values().map(|end| self.plan(end)).collect();
        plans.sort_by_key(|plan| plan.span_ms[1]);
        plans
    }

    fn plan(&self, (end_ms, events): (u64, Vec<String>)) -> PlanRun {
        let status = self.after(end_ms.saturating_sub(1)).map(|page| &page.status);
        let took = |status: &Value| {
            let interval = || status["last_interval"]["took_us"].as_u64();
            plan_seconds(&status["last_interval"]).or_else(|| Some(to_f64(interval()?) / 1e6))
        };
        let secs = status.and_then(took).unwrap_or(0.0).max(0.0);
        let length = Duration::try_from_secs_f64(secs).unwrap_or_default().as_millis();
        let begin = end_ms.saturating_sub(u64::try_from(length).unwrap_or(0));
        PlanRun { span_ms: [begin, end_ms], events, secs }
    }
}

/// Returns an event as text, such as `promoted t3`.
fn told(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let (kind, subject, text) = (text("kind"), text("subject"), text("text"));
    match kind.as_str() {
        "promoted" | "demoted" => format!("{kind} {subject}"),
        _ if subject.is_empty() => format!("{kind}: {text}"),
        _ => format!("{kind} {subject}: {text}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A log with one plan from 8.0 to 10.0 s since 1970, which gave t8 the queue of t7.
    pub fn log() -> Log {
        let stamp = json!({ "epoch": 3, "generation": 7 });
        let event = |at_ms: u64, kind: &str, subject: &str| {
            let (stamp, text) = (&stamp, "x");
            json!({
                "at_ms": at_ms, "stamp": stamp, "kind": kind, "subject": subject, "text": text
            })
        };
        let tenants = |first: u64, second: u64| {
            let [t7, t8] =
                [("t7", first), ("t8", second)].map(|(n, d)| json!({ "name": n, "dscp": d }));
            json!([t7, t8])
        };
        let port = json!([{ "node": "core-0", "to": "rack-1", "queues": [
            { "queue": 0, "weight": 30, "share_permille": 300, "tenant": null },
            { "queue": 1, "weight": 70, "share_permille": 700, "tenant": "t7" }
        ] }]);
        let page = |at_ms: u64, number: u64, took_us: u64, tenants: Value| Page {
            at_ms,
            status: json!({ "last_interval": { "number": number, "took_us": took_us } }),
            tenants,
            bindings: port.clone(),
        };
        Log {
            pages: vec![
                page(6_000, 1, 3_000, tenants(9, 0)),
                page(10_500, 2, 2_000_000, tenants(0, 9)),
            ],
            events: json!([
                event(2_000, "mode", ""),
                event(9_999, "demoted", "t7"),
                event(10_000, "promoted", "t8"),
            ]),
            moments: Vec::new(),
        }
    }

    #[test]
    fn a_plan_ends_with_its_events_and_took_its_interval() {
        let plans = log().plans();
        let events = vec!["demoted t7".to_owned(), "promoted t8".to_owned()];
        assert_eq!(plans, [PlanRun { span_ms: [8_000, 10_000], events, secs: 2.0 }]);
    }

    #[test]
    fn the_recorded_length_of_a_plan_counts_before_that_of_the_interval() {
        let mut log = log();
        log.pages[1].status["last_interval"]["plan_us"] = json!(250_000);
        assert_eq!(log.plans()[0].span_ms, [9_750, 10_000]);
        assert_eq!(plan_seconds(&json!({ "plan_us": 500_000 })), Some(0.5));
        assert_eq!(plan_seconds(&json!({ "plan_us": 0 })), None);
    }

    #[test]
    fn pages_are_found_by_their_time() {
        let log = log();
        let dscp = |page: Option<&Page>| page.map(|page| (page.dscp("t7"), page.dscp("t8")));
        assert_eq!(dscp(log.before(9_000)), Some((9, 0)));
        assert_eq!(dscp(log.after(9_000)), Some((0, 9)));
        assert_eq!(dscp(log.before(5_000)), None);
        let page = log.before(9_000).unwrap();
        assert!(page.port("core-0", "rack-1").is_some() && page.port("core-0", "rack-0").is_none());
        let queue = |to, tenant| page.queue(("core-0", to), tenant);
        let queues = [("rack-1", "t7"), ("rack-1", "t8"), ("rack-0", "t7")];
        assert_eq!(queues.map(|(to, tenant)| queue(to, tenant)), [1, 0, 0]);
        assert_eq!(log.events(9_000, 11_000), ["demoted t7", "promoted t8"]);
    }

    fn event(at_ms: u64, epoch: u64, number: u64) -> Value {
        json!({ "at_ms": at_ms, "stamp": { "epoch": epoch }, "number": number })
    }

    #[test]
    fn events_of_several_leaders_are_kept_once_and_in_the_order_of_their_times() {
        let mut all = Events::new();
        add(&mut all, &json!([event(5, 1, 1), event(5, 1, 2)]));
        add(&mut all, &json!([event(9, 2, 1)]));
        add(&mut all, &json!([event(5, 1, 2), event(7, 1, 3)]));
        let times: Vec<u64> = all.keys().map(|key| key[0]).collect();
        assert_eq!(times, [5, 5, 7, 9]);
    }
}
