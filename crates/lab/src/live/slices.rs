//! Short slices of two cases in one running switch, and sums over such slices.
//!
//! # Problem
//!
//! A cache line from the other core may cost 70 or 500 cycles on a shared machine, and changes
//! within seconds. Two runs of several seconds, each with a new switch, then compare two states of
//! the machine and not the two cases.
//!
//! # Approach
//!
//! The cases alternate in short slices, in the order A B B A ([`alternate`]). Two successive slices
//! of different cases make a pair, and only the slices of a pair are compared
//! ([`crate::rig::stats`]). A state that changes slowly favours each case equally often. The
//! counters of a case are summed over all its slices ([`Spans`]).

use super::stage::Reading;
use crate::rig::stats::to_f64;

/// Two readings of the counters: at the beginning and at the end of the counted part of a slice.
pub(super) type Slice = [Reading; 2];

/// Runs `pairs` pairs of slices. `slice` measures a slice of the case 0 or 1. Returns the slices of
/// each case: the slices with the same index are a pair.
pub(super) fn alternate<T>(
    pairs: u32,
    mut slice: impl FnMut(usize) -> anyhow::Result<T>,
) -> anyhow::Result<[Vec<T>; 2]> {
    let mut slices = [Vec::new(), Vec::new()];
    for pair in 0..pairs {
        let first = usize::from(pair % 2 == 1);
        for case in [first, 1 - first] {
            slices[case].push(slice(case)?);
        }
    }
    Ok(slices)
}

/// Times that are counted together, each from one reading of the counters to another.
#[derive(Debug)]
pub(super) struct Spans<'a>(Vec<[&'a Reading; 2]>);

impl<'a> Spans<'a> {
    pub fn one(first: &'a Reading, last: &'a Reading) -> Self {
        Self(vec![[first, last]])
    }

    pub fn all(slices: &'a [Slice]) -> Self {
        Self(slices.iter().map(|[first, last]| [first, last]).collect())
    }

    fn sum(&self, of: impl Fn(&Reading, &Reading) -> u64) -> u64 {
        self.0.iter().map(|[first, last]| of(first, last)).sum()
    }

    fn secs(&self) -> f64 {
        self.0.iter().map(|[first, last]| last.secs_since(first)).sum()
    }

    /// Returns the increase of the port's counter `name`.
    pub fn grown(&self, port: &str, name: &str) -> f64 {
        to_f64(self.sum(|first, last| last.grown(first, port, name)))
    }

    /// Returns the increase of the counter `name` of the first worker.
    pub fn worker_grown(&self, name: &str) -> f64 {
        to_f64(self.sum(|first, last| last.worker_grown(first, name)))
    }

    /// Returns the increase per second of the counter `name` of the first worker.
    pub fn worker_per_second(&self, name: &str) -> f64 {
        self.worker_grown(name) / self.secs()
    }

    /// Returns the increase per second of the port's counter `name`.
    pub fn per_second(&self, port: &str, name: &str) -> f64 {
        self.grown(port, name) / self.secs()
    }

    /// Returns the mean bits per second that the VM at `port` sent ([`Reading::bps`]).
    pub fn bps(&self, port: &str) -> f64 {
        let bits = |[first, last]: &[&Reading; 2]| last.bps(first, port) * last.secs_since(first);
        self.0.iter().map(bits).sum::<f64>() / self.secs()
    }

    /// Returns the number of frames from the port that left a queue of an output.
    pub fn waited(&self, port: &str) -> f64 {
        to_f64(self.sum(|first, last| last.waited(first, port)))
    }

    /// Returns the number of frames from and to the port that were dropped.
    pub fn dropped(&self, port: &str) -> f64 {
        to_f64(self.sum(|first, last| last.dropped(first, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_of_all_slices_are_added_without_the_time_between_them() {
        let at = |ms: u64, frames: u64, charged: u64| {
            let counters = json!({ "rx_frames": frames, "rx_bytes": 1_000 * frames });
            let stats = json!({
                "ports": [{ "port": "vm", "counters": counters }],
                "workers": [{ "counters": { "cycles_charged": charged } }]
            });
            Reading::new(1_000_000 * ms, stats)
        };
        let slices =
            [[at(0, 10, 500), at(1_000, 110, 700)], [at(1_500, 900, 0), at(4_500, 1_200, 60)]];
        let spans = Spans::all(&slices);
        assert_eq!(
            (spans.grown("vm", "rx_frames"), spans.worker_grown("cycles_charged")),
            (400.0, 260.0)
        );
        assert_eq!((spans.per_second("vm", "rx_frames"), spans.secs()), (100.0, 4.0));
        // With the FCS, a frame has 1,004 bytes.
        assert!((spans.bps("vm") - 803_200.0).abs() < 1e-3);
        let [[first, last], _] = &slices;
        assert_eq!(Spans::one(first, last).worker_per_second("cycles_charged"), 200.0);
    }

    #[test]
    fn neighbours_are_pairs_and_each_case_is_first_in_half_of_them() {
        let mut order = String::new();
        let slices = alternate(4, |case| {
            order.push(if case == 0 { 'A' } else { 'B' });
            Ok(order.len())
        });
        assert_eq!(slices.unwrap(), [vec![1, 4, 5, 8], vec![2, 3, 6, 7]]);
        assert_eq!(order, "ABBAABBA");
    }

    #[test]
    fn a_failed_slice_ends_the_run() {
        let mut count = 0;
        let failed = alternate(4, |_| {
            count += 1;
            anyhow::ensure!(count < 3, "the switch ended");
            Ok(())
        });
        assert!(failed.is_err() && count == 3);
    }
}
