//! `wfq`: the queues of a port with `egress = "wfq"`, their weights and code points.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use penstock_dataplane::queue::{Classes, HeldLane};
use penstock_qos::policer::{RATE_MAX, RATE_MIN};
use penstock_qos::wfq::QUEUES_MAX;
use penstock_toml::{BitsPerSecond, Object, Report, text_value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::Egress;
use super::share::Weight;
use super::values::{check_range, outside};

/// Range of `queues`.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const QUEUES: core::ops::RangeInclusive<u32> = 2..=QUEUES_MAX as u32;
/// Valid numbers of DSCP code points.
pub(super) const DSCPS: core::ops::RangeInclusive<u32> = 0..=63;

/// A code point (DSCP, RFC 2474) as the key of a table, 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodePoint(u8);

impl CodePoint {
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for CodePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for CodePoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<u8>().ok().filter(|number| DSCPS.contains(&(*number).into()));
        // With `08` and `+8`, a map could have a code point twice.
        let number = number.filter(|number| number.to_string() == text);
        number.map(Self).ok_or_else(|| format!("{text} is not a DSCP; write a number from 0 to 63"))
    }
}

text_value!(CodePoint, "CodePoint", "a DSCP from 0 to 63", {
    "type": "string",
    "pattern": "^([0-9]|[1-5][0-9]|6[0-3])$"
});

/// Queues of a port with `egress = "wfq"`, such as `{ weights = [1, 10, 20], map = { 8 = 1, 16 = 2
/// } }`. All keys of `wfq` may change while frames flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a wfq table such as { weights = [1, 10] }")]
pub struct Wfq {
    /// Number of queues, 2 to 64. Queue 0 serves all frames whose code point is not mapped. Default
    /// 8.
    #[schemars(range(min = 2, max = 64))]
    pub queues: u8,
    /// Weights of the queues, from queue 0 on, 1 to 10000 each. A queue without a weight in the
    /// list has weight 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<Weight>,
    /// Map from DSCP code points to the queue, 0 to `queues` - 1, that serves them. Queue 0 serves
    /// frames whose code points the map does not contain, and frames that are not IP.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub map: BTreeMap<CodePoint, u8>,
    /// Rate limits of tenants in queue 0, in bits per second, FCS included, 8k to 400G. Each limit
    /// applies to the sum of all frames that the tenant's VMs send through this port. Frames above
    /// the limit wait at most about 200 ms in a separate queue of the tenant, its lane. The port
    /// has at most 64 queues and lanes together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ceilings: BTreeMap<String, BitsPerSecond>,
    /// Rate limits of single queues from queue 1 on, in bits per second, FCS included. Only the
    /// fabric's controller sets them, for tenants with their own queues while queues change hands.
    #[serde(skip)]
    pub queue_ceilings: BTreeMap<u8, BitsPerSecond>,
}

impl Default for Wfq {
    fn default() -> Self {
        let (map, ceilings, queue_ceilings) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { queues: 8, weights: Vec::new(), map, ceilings, queue_ceilings }
    }
}

impl Wfq {
    /// Checks a port's table `wfq`, which must agree with the port's `egress`.
    pub(super) fn check<T>(&self, object: &Object<'_, T>, egress: Egress, report: &mut Report<'_>) {
        if egress != Egress::Wfq {
            let problem = format!("`wfq` has no effect with egress = \"{}\"", egress);
            report.at(object, "wfq", problem, "set egress = \"wfq\", or remove `wfq`");
        }
        let queues = self.queues;
        check_range(object, "wfq.queues", queues.into(), QUEUES, report);
        if self.weights.len() > queues.into() {
            let problem =
                format!("{} weights are too many, there are {queues} queues", self.weights.len());
            report.at(object, "wfq.weights", problem, "remove some weights, or raise `wfq.queues`");
        }
        for (dscp, queue) in self.map.iter().filter(|(_, queue)| **queue >= queues) {
            let problem = format!("DSCP {dscp} is mapped to queue {queue}, which does not exist");
            let remedy = format!("write a queue from 0 to {}", queues.saturating_sub(1));
            report.at(object, &format!("wfq.map.{dscp}"), problem, remedy);
        }
        let lanes = usize::from(queues) + self.ceilings.len();
        if lanes > QUEUES_MAX && !self.ceilings.is_empty() {
            let problem = format!(
                "{queues} queues and {} tenants with a ceiling are more than {QUEUES_MAX}",
                self.ceilings.len()
            );
            report.at(
                object,
                "wfq.ceilings",
                problem,
                "remove some ceilings, and limit these tenants with `send` of [[tenant]]",
            );
        }
        for (tenant, rate) in &self.ceilings {
            let range = RATE_MIN..=RATE_MAX;
            outside(object, &format!("wfq.ceilings.{tenant}"), rate.0, &range, report);
        }
    }

    /// Checks that all tenants with a ceiling exist.
    pub(super) fn check_ceilings<T>(
        &self,
        object: &Object<'_, T>,
        exists: impl Fn(&str) -> bool,
        report: &mut Report<'_>,
    ) {
        for name in self.ceilings.keys().filter(|name| !exists(name)) {
            let problem = format!("tenant {name:?} does not exist");
            let remedy = "name a [[tenant]] of this file";
            report.at(object, &format!("wfq.ceilings.{name}"), problem, remedy);
        }
    }

    /// Converts the key `wfq` to queues for the data path. The argument `tenant` is a function that
    /// returns a tenant's number for the tenant's name. A tenant with a ceiling has a separate
    /// queue, its lane, and keeps the lane that it had in the queues `old`.
    pub(super) fn classes(&self, tenant: impl Fn(&str) -> Option<u16>, old: &Classes) -> Classes {
        let mut classes = Classes::new(self.queues.into());
        for (queue, weight) in self.weights.iter().enumerate() {
            classes = classes.with_weight(queue, weight.0);
        }
        for (dscp, queue) in &self.map {
            classes = classes.with_mapped(dscp.get(), *queue);
        }
        for (queue, rate) in &self.queue_ceilings {
            classes = classes.with_ceiling(*queue, rate.0);
        }
        let held = |(name, rate): (&String, &BitsPerSecond)| {
            Some(HeldLane { tenant: tenant(name)?, rate: rate.0 })
        };
        let held: Vec<HeldLane> = self.ceilings.iter().filter_map(held).collect();
        // The check has limited the number of ceilings.
        classes.clone().with_held(&held, old).unwrap_or(classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_classes_and_text_again() {
        let text = "queues = 4\nweights = [1, 10, 20]\nmap = { 8 = 1, 46 = 3 }\n";
        let wfq: Wfq = toml_edit::de::from_str(text).unwrap();
        let old = Classes::default();
        let classes = wfq.classes(|_| None, &old);
        let weights: Vec<_> = classes.weights().iter().map(|weight| weight.get()).collect();
        assert_eq!(weights, [1, 10, 20, 1]);
        assert_eq!([0, 8, 46, 47].map(|dscp| classes.queue_of(dscp)), [0, 1, 3, 0]);
        assert_eq!(toml_edit::ser::to_string(&wfq).unwrap(), text);
        assert_eq!(
            toml_edit::de::from_str::<Wfq>("").unwrap().classes(|_| None, &old),
            Classes::default()
        );
        let text = "queues = 4\n\n[ceilings]\nblue = \"3M\"\nred = \"5M\"\n";
        let wfq: Wfq = toml_edit::de::from_str(text).unwrap();
        let classes = wfq.classes(|name| (name == "red").then_some(9), &old);
        let held: Vec<_> = classes.held().map(|(lane, h)| (lane, h.tenant, h.rate.0)).collect();
        assert_eq!(held, [(4, 9, 5_000_000)]);
        for wrong in ["64", "08", "+8"] {
            let text = format!("map = {{ {wrong:?} = 1 }}");
            let error = toml_edit::de::from_str::<Wfq>(&text).unwrap_err();
            let says = format!("{wrong} is not a DSCP; write a number from 0 to 63");
            assert!(error.message().contains(&says), "{error}");
        }
    }
}
