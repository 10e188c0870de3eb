//! What the fabric did in a second in which a tenant had less than what was due to it.
//!
//! # Problem
//!
//! The lowest rate of a tenant says that a guarantee was broken, and not why. Possible causes are a
//! plan that moves queues, a queue of the wrong tenant, a wrong limit, and other traffic on the
//! core link.
//!
//! # Approach
//!
//! A diagnosis joins a sample with the controller's diary. It names the plan that ran in the
//! sample, the tenant's queue before and after, the weights and tenants of the core port's queues,
//! the segments that the tenant's VMs sent again, and the rates of all tenants in the same
//! direction. If the experiment also read the connections and queues ([`super::transport`]), the
//! diagnosis has those of the tenant in both directions.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::diary::{Log, Page, PlanRun};
use super::plan::tenant_name;
use super::samples::{Sample, WARM_UP};
use super::transport;

/// A sample in which a tenant had less than its due rate in one direction.
#[derive(Debug, Clone)]
pub(super) struct Short<'a> {
    pub sample: &'a Sample,
    pub tenant: usize,
    /// Rack whose VMs received.
    pub rack: usize,
    /// Rate that was due to the tenant, in bits per second.
    pub due: f64,
    /// Time at which the tenant began to send, counted from the start of the programs.
    pub began: Duration,
}

/// Number of diagnoses in a record.
const SHOWN: usize = 60;

impl Short<'_> {
    /// Returns the tenant's rate, divided by its due rate.
    pub fn part(&self) -> f64 {
        self.sample.rates.tenants[self.tenant][self.rack] / self.due
    }

    /// Returns a sentence about the sample, such as `t3 towards rack 1, until 4.0 s`.
    pub fn told(&self) -> String {
        let at = self.sample.until.saturating_sub(WARM_UP).as_secs_f64();
        format!("{} towards rack {}, until {at:.1} s", tenant_name(self.tenant), self.rack)
    }

    /// Describes what the fabric did during the sample.
    pub fn diagnosis(&self, log: &Log, plans: &[PlanRun]) -> Value {
        let Self { sample, tenant, rack, due, began } = self;
        let [from_ms, until_ms] = sample.at_ms;
        let name = tenant_name(*tenant);
        let (before, after) = (log.before(from_ms), log.after(until_ms));
        let queue = |page: Option<&Page>| page.map(|page| queue_of(page.dscp(&name)));
        let rates = &sample.rates.tenants;
        let others: Map<String, Value> = rates
            .iter()
            .enumerate()
            .map(|(tenant, rates)| (tenant_name(tenant), mbps(rates[*rack]).into()))
            .collect();
        let plans = plans.iter().filter_map(|plan| overlap(plan, sample.at_ms));
        let senders = sample.rates.repairs[*tenant].iter().enumerate();
        let senders = senders.filter(|(from, _)| from != rack).map(|(_, repairs)| repairs);
        let (resent, timeouts) = senders
            .fold((0, 0), |(resent, timeouts), of| (resent + of.resent, timeouts + of.timeouts));
        let span = log.span(sample.at_ms);
        let queue_at =
            |from: &str, to: &str| before.map_or(0, |page| page.queue((from, to), &name));
        let transport = span.map(|span| transport::told(span, (*tenant, *rack), queue_at));
        let sent = sample.rates.core.iter().enumerate().filter(|(from, _)| from != rack);
        json!({
            "at_s": sample.until.saturating_sub(WARM_UP).as_secs_f64(),
            "tenant": name,
            "towards_rack": rack,
            "part": self.part(),
            "rate_mbps": mbps(rates[*tenant][*rack]),
            "due_mbps": mbps(*due),
            "since_begin_s": sample.from.saturating_sub(*began).as_secs_f64(),
            "tcp_resent": resent,
            "tcp_timeouts": timeouts,
            "transport": transport,
            "queue_before": queue(before),
            "queue_after": queue(after),
            "plans": plans.collect::<Vec<_>>(),
            "events": log.events(from_ms.saturating_sub(1_000), until_ms),
            "core_port": before.and_then(|page| page.port("core-0", &format!("rack-{rack}"))),
            "others_sent_mbps": sent.map(|(_, rate)| mbps(*rate)).collect::<Vec<_>>(),
            "received_mbps": others,
            "sweep_ms": 1e3 * sample.sweep.as_secs_f64(),
        })
    }
}

fn mbps(rate: f64) -> f64 {
    rate / 1e6
}

fn queue_of(dscp: u64) -> String {
    if dscp == 0 { "shared".to_owned() } else { format!("own, DSCP {dscp}") }
}

/// Describes a plan and the part of the span `span_ms` in which the plan ran. `None` if the plan
/// did not run in the span.
fn overlap(plan: &PlanRun, span_ms: [u64; 2]) -> Option<Value> {
    let from = plan.span_ms[0].max(span_ms[0]);
    let until = plan.span_ms[1].min(span_ms[1]);
    (from <= until).then(|| {
        let [begin, end] = plan.span_ms;
        json!({
            "took_s": plan.secs,
            "began_before_sample_ms": span_ms[0].saturating_sub(begin),
            "ended_after_sample_ms": end.saturating_sub(span_ms[1]),
            "overlap_ms": until - from,
            "events": plan.events,
        })
    })
}

/// Returns diagnoses of the samples with the lowest parts of what was due, the lowest first.
pub(super) fn worst(mut short: Vec<Short<'_>>, log: &Log) -> Vec<Value> {
    short.sort_by(|a, b| a.part().total_cmp(&b.part()));
    let plans = log.plans();
    short.iter().take(SHOWN).map(|short| short.diagnosis(log, &plans)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::counters::{Rates, Repairs};
    use super::super::diary::tests::log;
    use super::super::transport::tests::moments;
    use super::*;

    fn sample(at_ms: [u64; 2]) -> Sample {
        let mut tenants = vec![vec![0.0, 0.0]; 8];
        tenants[7] = vec![4e6, 3e6];
        let mut repairs = vec![vec![Repairs::default(); 2]; 8];
        repairs[7] = vec![Repairs { resent: 9, timeouts: 2 }, Repairs { resent: 70, timeouts: 7 }];
        Sample {
            from: WARM_UP,
            until: WARM_UP + Duration::from_secs(1),
            at_ms,
            rates: Rates { tenants, core: vec![49e6, 48e6], repairs },
            sweep: Duration::from_millis(2),
            link: 50e6,
        }
    }

    fn short(sample: &Sample) -> Short<'_> {
        let began = WARM_UP - Duration::from_secs(2);
        Short { sample, tenant: 7, rack: 1, due: 4e6, began }
    }

    #[test]
    fn a_short_second_names_the_plan_that_ran_in_it() {
        let (sample, log) = (sample([9_500, 10_500]), log());
        let found = short(&sample).diagnosis(&log, &log.plans());
        assert_eq!((&found["tenant"], &found["part"]), (&json!("t8"), &json!(0.75)));
        assert_eq!(found["queue_before"], "shared");
        assert_eq!(found["since_begin_s"], 2.0);
        let repairs = (&found["tcp_resent"], &found["tcp_timeouts"]);
        assert_eq!(repairs, (&json!(9), &json!(2)), "of the VMs in rack 0, which sent");
        let plan = &found["plans"][0];
        assert_eq!((&plan["overlap_ms"], &plan["took_s"]), (&json!(500), &json!(2.0)));
        assert_eq!(plan["events"], json!(["demoted t7", "promoted t8"]));
        assert_eq!(found["core_port"]["queues"][0]["share_permille"], 300);
        assert_eq!(found["others_sent_mbps"], json!([49.0]), "rack 0 sends to rack 1");
        assert_eq!(short(&sample).told(), "t8 towards rack 1, until 1.0 s");
    }

    #[test]
    fn a_plan_at_another_time_is_not_named() {
        let (sample, log) = (sample([10_600, 11_600]), log());
        let found = short(&sample).diagnosis(&log, &log.plans());
        assert_eq!(found["plans"], json!([]));
        assert_eq!(found["queue_before"], "own, DSCP 9");
        assert_eq!(found["queue_after"], Value::Null, "no page follows");
    }

    #[test]
    fn a_short_second_has_the_connections_of_both_directions() {
        let (sample, mut log) = (sample([9_500, 10_500]), log());
        let found = short(&sample).diagnosis(&log, &[]);
        assert_eq!(found["transport"], Value::Null, "not read");
        log.moments = moments(9_510).into();
        let found = short(&sample).diagnosis(&log, &[]);
        assert_eq!(found["transport"]["tcp"]["window_bytes"][1], 30_000);
        assert_eq!(found["transport"]["tcp_back"]["window_bytes"][1], 90_000);
        log.moments.truncate(1);
        let found = short(&sample).diagnosis(&log, &[]);
        assert_eq!(found["transport"], Value::Null, "no moment ends the sample");
    }

    #[test]
    fn the_worst_comes_first() {
        let (sample, log) = (sample([0, 1_000]), log());
        let other = Short { rack: 0, ..short(&sample) };
        let found = worst(vec![other, short(&sample)], &log);
        assert_eq!((&found[0]["part"], &found[1]["part"]), (&json!(0.75), &json!(1.0)));
    }
}
