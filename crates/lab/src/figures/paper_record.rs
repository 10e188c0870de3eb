//! Counters of all VMs of a simulated host over time, and the rates that follow from them.

use penstock_sim::testbed::VmReading;
use penstock_units::Nanos;

use super::paper_platform as paper;
use super::paper_testbed::float;
use crate::evidence::Outcome;

/// Counters of all VMs at equal intervals.
#[derive(Clone, Debug)]
pub struct Record {
    /// Time between two readings.
    pub step: Nanos,
    /// Readings of all VMs.
    pub readings: Vec<Vec<VmReading>>,
}

impl Record {
    fn secs(&self) -> f64 {
        float(self.step.0) / 1e9
    }

    fn at(&self, secs: f64) -> usize {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let at = (secs / self.secs()).round() as usize;
        at.min(self.readings.len() - 1)
    }

    fn mean(&self, (from, to): (f64, f64), of: impl Fn(&VmReading) -> u64, vm: usize) -> f64 {
        let (from, to) = (self.at(from), self.at(to).max(self.at(from) + 1));
        let to = to.min(self.readings.len() - 1);
        let grown = of(&self.readings[to][vm]) - of(&self.readings[from][vm]);
        float(grown) / (self.secs() * float((to - from) as u64))
    }

    /// Returns the rate of a VM on the link in Gbit/s, between two times in seconds.
    pub fn gbps(&self, vm: usize, span: (f64, f64)) -> f64 {
        self.mean(span, |r| r.carried.bytes, vm) * 8.0 / 1e9
    }

    /// Returns the rate of a VM on the link in million frames/s, between two times in seconds.
    pub fn mpps(&self, vm: usize, span: (f64, f64)) -> f64 {
        self.mean(span, |r| r.carried.frames, vm) / 1e6
    }

    /// Returns the share of a core that a VM's batches took, between two times in seconds.
    pub fn core_share(&self, vm: usize, span: (f64, f64)) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a frequency")]
        let hz = paper::HZ as f64;
        self.mean(span, |r| r.port.cycles, vm) / hz
    }

    /// Adds two series over time for each VM: its bandwidth and its share of the core. The names of
    /// the added series begin with `prefix`.
    pub fn add_to(&self, outcome: &mut Outcome, prefix: &str) {
        let vms = self.readings.first().map_or(0, Vec::len);
        let spans = |of: &dyn Fn((f64, f64)) -> f64| -> Vec<(f64, f64)> {
            (1..self.readings.len())
                .map(|i| {
                    let to = float(i as u64) * self.secs();
                    (to, of((to - self.secs(), to)))
                })
                .collect()
        };
        for vm in 0..vms {
            let name = format!("{prefix} vm{}", vm + 1);
            outcome.series(&format!("{name} bandwidth"), "Gbit/s", spans(&|s| self.gbps(vm, s)));
            let share = spans(&|s| 100.0 * self.core_share(vm, s));
            outcome.series(&format!("{name} core"), "% of a core", share);
        }
    }
}
