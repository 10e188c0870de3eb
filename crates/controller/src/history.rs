//! Keeps the tenants' usage in the last intervals in memory. The web page shows the usage as
//! graphs.
//!
//! # Approach
//!
//! Every tenant gets one sample in each interval, so a tenant with n samples has the samples of the
//! last n intervals. Samples of removed tenants are deleted. A new leading controller starts with
//! an empty history of tenants' usage, because the history is only for a web page. Operators should
//! keep older data in a monitoring system.
//!
//! # Cost
//!
//! The history has at most [`INTERVALS_MAX`] intervals and [`SAMPLES_MAX`] samples of 40 bytes (40
//! MB). If the fabric has more than 3,333 tenants, the history has fewer intervals.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

/// Maximum number of intervals in the history.
pub const INTERVALS_MAX: usize = 300;
/// Maximum number of samples of all tenants together in the history.
pub const SAMPLES_MAX: usize = 1_000_000;
/// Maximum number of samples in the answer to a request for all tenants. An answer with the maximum
/// number of samples takes about 2 MB as JSON.
pub const SHOWN_MAX: usize = 60_000;

/// Usage of a tenant in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Rate at which all VMs of the tenant together sent, in bit/s.
    pub sent: u64,
    /// Rate at which all VMs of the tenant together received, in bit/s.
    pub received: u64,
    /// Smoothed score of the tenant in bit/s, from the tenant's recent traffic. The score says how
    /// much the tenant needs its own queues.
    pub score: u64,
    /// Largest fraction of the tenant's guarantee that its VMs used on any server, in thousandths.
    pub used_permille: u64,
    /// DSCP of the tenant's packets. 0 if the tenant shared queue 0.
    pub dscp: u8,
}

/// Samples of all tenants' usage in the last intervals.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// End of each interval, in milliseconds since 1970.
    times: VecDeque<u64>,
    /// Number of intervals since the leader's start.
    intervals: u64,
    tenants: BTreeMap<String, Line>,
}

#[derive(Clone, Debug, Default)]
struct Line {
    /// Number of the last interval, from 1, in which the tenant got a sample of its usage.
    last: u64,
    samples: VecDeque<Sample>,
}

impl History {
    /// Adds an interval that ended at `at_ms`, in milliseconds since 1970, with a sample for each
    /// tenant.
    pub fn push<'a>(&mut self, at_ms: u64, samples: impl Iterator<Item = (&'a str, Sample)>) {
        self.intervals += 1;
        let now = self.intervals;
        for (name, sample) in samples {
            let line = match self.tenants.get_mut(name) {
                Some(line) => line,
                None => self.tenants.entry(name.to_owned()).or_default(),
            };
            line.last = now;
            line.samples.push_back(sample);
        }
        self.tenants.retain(|_, line| line.last == now);
        self.times.push_back(at_ms);
        let most = (SAMPLES_MAX / self.tenants.len().max(1)).clamp(1, INTERVALS_MAX);
        for list in self.tenants.values_mut().map(|line| &mut line.samples) {
            list.drain(..list.len().saturating_sub(most));
        }
        self.times.drain(..self.times.len().saturating_sub(most));
    }

    /// Returns the usage samples of one tenant as JSON, with an array for each kind of value. If
    /// the name is empty, returns the last samples of all tenants. `None` if no tenant has this
    /// name.
    #[must_use]
    pub fn view(&self, name: &str, interval_ms: u64) -> Option<Value> {
        let most = match name {
            "" => (SHOWN_MAX / self.tenants.len().max(1)).clamp(1, INTERVALS_MAX),
            name if self.tenants.contains_key(name) => INTERVALS_MAX,
            _ => return None,
        };
        let shown = self.tenants.iter().filter(|(tenant, _)| name.is_empty() || *tenant == name);
        let tenants: BTreeMap<&str, Value> =
            shown.map(|(tenant, line)| (tenant.as_str(), columns(&line.samples, most))).collect();
        let times: Vec<u64> = last(&self.times, most).copied().collect();
        Some(json!({ "interval_ms": interval_ms, "times": times, "tenants": tenants }))
    }
}

fn last<T>(list: &VecDeque<T>, most: usize) -> impl Iterator<Item = &T> {
    list.iter().skip(list.len().saturating_sub(most))
}

fn columns(list: &VecDeque<Sample>, most: usize) -> Value {
    let of = |value: fn(&Sample) -> u64| last(list, most).map(value).collect::<Vec<_>>();
    json!({
        "sent": of(|s| s.sent),
        "received": of(|s| s.received),
        "score": of(|s| s.score),
        "used_permille": of(|s| s.used_permille),
        "dscp": of(|s| s.dscp.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sent: u64) -> Sample {
        Sample { sent, ..Sample::default() }
    }

    #[test]
    fn the_last_intervals_are_kept_and_removed_tenants_are_forgotten() {
        let mut history = History::default();
        for at in 0..310 {
            let late = (at >= 308).then_some(("late", sample(at)));
            history.push(at, [("a", sample(at))].into_iter().chain(late));
        }
        let all = history.view("", 1_000).unwrap();
        let length = |list: &Value| list.as_array().unwrap().len();
        assert_eq!((length(&all["times"]), &all["times"][0]), (INTERVALS_MAX, &json!(10)));
        assert_eq!(all["tenants"]["a"]["sent"][299], 309);
        assert_eq!(all["tenants"]["late"]["sent"], json!([308, 309]), "the last of the times");
        let one = history.view("late", 1_000).unwrap();
        assert_eq!(one["tenants"].as_object().unwrap().len(), 1);
        history.push(310, [("late", sample(1))].into_iter());
        assert_eq!(history.view("a", 1_000), None);
    }

    #[test]
    fn many_tenants_have_fewer_samples_each() {
        let names: Vec<String> = (0..20_000).map(|n| format!("t{n}")).collect();
        let mut history = History::default();
        for at in 0..53 {
            history.push(at, names.iter().map(|name| (name.as_str(), sample(at))));
        }
        let kept: usize = history.tenants.values().map(|line| line.samples.len()).sum();
        assert_eq!((kept, history.times.len()), (SAMPLES_MAX, 50));
        let all = history.view("", 1_000).unwrap();
        assert_eq!(all["tenants"]["t7"]["sent"], json!([50, 51, 52]));
        assert_eq!(all["times"], json!([50, 51, 52]));
    }
}
