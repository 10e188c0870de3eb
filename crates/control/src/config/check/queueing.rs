//! `queue`, `shape`, `egress`, `wfq`: that what is asked for can be done, and by this port.

use penstock_qos::policer::{RATE_MAX as LIMIT_MAX, RATE_MIN as LIMIT_MIN};
use penstock_qos::shaper::{RATE_MAX, RATE_MIN};
use penstock_qos::wfq::QUEUES_MAX;
use penstock_toml::{Object, Report};

use super::super::model::Port;
use super::super::queueing::{BYTES, Excess, FRAMES, PERIOD_MS, Shaper, WAIT_US};
use super::super::release::Egress;
use super::super::wfq::QUEUES;
use super::world::check_range;

pub(super) fn check(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    check_queue(object, port, report);
    check_shape(object, port, report);
    check_wfq(object, port, report);
    let several = port.attachment().is_some_and(|attachment| attachment.queues() > 1);
    if several && port.is_one_workers() && port.shape.is_some_and(|shape| shape.send.is_some()) {
        // One shaper for all, but each queue pair has frames of its own time.
        let problem = "`shape.send` needs a single queue pair, and this port has several";
        report.at(
            object,
            "shape",
            problem,
            "set queues = 1, or shape with `shape.receive` of the receivers",
        );
    }
}

fn outside<T: PartialOrd + core::fmt::Display>(
    object: &Object<'_, Port>,
    key: &str,
    value: T,
    range: &core::ops::RangeInclusive<T>,
    report: &mut Report<'_>,
) {
    if !range.contains(&value) {
        let problem = format!("`{key}` {value} is out of range");
        report.at(object, key, problem, format!("write {} to {}", range.start(), range.end()));
    }
}

fn check_queue(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    let Some(queue) = port.queue else { return };
    outside(object, "queue.bytes", queue.bytes, &BYTES, report);
    outside(object, "queue.frames", queue.frames, &FRAMES, report);
    if let Some(wait) = queue.wait_us {
        outside(object, "queue.wait_us", wait, &WAIT_US, report);
    }
    if queue.excess == Some(Excess::Hold) && port.egress != Egress::FairShare {
        let problem = "only a `fair-share` output can leave frames in the senders' rings";
        let remedy = "set excess = \"drop\", or egress = \"fair-share\" on a shared port";
        report.at(object, "queue.excess", problem, remedy);
    }
}

fn check_wfq(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    let Some(wfq) = &port.wfq else { return };
    if port.egress != Egress::Wfq {
        let problem = format!("`wfq` has no effect with egress = \"{}\"", port.egress);
        report.at(object, "wfq", problem, "set egress = \"wfq\", or remove it");
    }
    let queues = wfq.queues;
    check_range(object, "wfq.queues", queues.into(), QUEUES, report);
    if wfq.weights.len() > queues.into() {
        let problem =
            format!("{} weights are too many, there are {queues} queues", { wfq.weights.len() });
        report.at(object, "wfq.weights", problem, "remove some, or raise `wfq.queues`");
    }
    for (dscp, queue) in wfq.map.iter().filter(|(_, queue)| **queue >= queues) {
        let problem = format!("DSCP {dscp} is mapped to queue {queue}, which does not exist");
        let remedy = format!("write a queue from 0 to {}", queues.saturating_sub(1));
        report.at(object, &format!("wfq.map.{dscp}"), problem, remedy);
    }
    let lanes = usize::from(queues) + wfq.ceilings.len();
    if lanes > QUEUES_MAX && !wfq.ceilings.is_empty() {
        let problem = format!(
            "{queues} queues and {} tenants with a ceiling are more than {QUEUES_MAX}",
            wfq.ceilings.len()
        );
        report.at(
            object,
            "wfq.ceilings",
            problem,
            "limit some tenants with `send` of [[tenant]] instead",
        );
    }
    for (tenant, rate) in &wfq.ceilings {
        let range = LIMIT_MIN.0..=LIMIT_MAX.0;
        outside(object, &format!("wfq.ceilings.{tenant}"), rate.0.0, &range, report);
    }
}

/// That tenants with a ceiling are there.
pub(super) fn check_ceilings(
    object: &Object<'_, Port>,
    port: &Port,
    is_there: impl Fn(&str) -> bool,
    report: &mut Report<'_>,
) {
    let named = port.wfq.iter().flat_map(|wfq| wfq.ceilings.keys());
    for name in named.filter(|name| !is_there(name)) {
        let problem = format!("tenant {name:?} does not exist");
        let remedy = "name a [[tenant]] of this file";
        report.at(object, &format!("wfq.ceilings.{name}"), problem, remedy);
    }
}

fn check_shape(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    let Some(shape) = port.shape else { return };
    for (key, rate) in [("shape.send", shape.send), ("shape.receive", shape.receive)] {
        if let Some(rate) = rate {
            outside(object, key, rate.0, &(RATE_MIN..=RATE_MAX), report);
        }
    }
    if shape.send.is_none() && shape.receive.is_none() {
        let remedy = "add `send` or `receive`, as in shape = { send = \"4M\" }";
        report.at(object, "shape", "`shape` has no rate", remedy);
    }
    match (shape.shaper, shape.period_ms) {
        (Shaper::TokenBucket, Some(period)) => {
            outside(object, "shape.period_ms", period, &PERIOD_MS, report);
        }
        (Shaper::Smooth, Some(_)) => {
            let problem = "`period_ms` belongs to the shaper `token-bucket`";
            report.at(object, "shape.period_ms", problem, "remove it");
        }
        (_, None) => {}
    }
    if shape.receive.is_some() && port.egress != Egress::Fifo {
        let problem = format!("`{}` uses `link` as its rate, not `shape.receive`", port.egress);
        report.at(object, "shape.receive", problem, "write the rate as `link`");
    }
    let segments = port.attachment().is_some_and(|attachment| attachment.offloads().tso);
    if shape.send.is_some() && segments {
        let problem = "a large TCP segment would leave in one burst despite `shape`";
        let remedy = "set offloads = { tso = false }, so that the VM segments itself";
        report.at(object, "shape.send", problem, remedy);
    }
}
