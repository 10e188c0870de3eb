//! Collects the reports of the scheduling threads, and computes shares and percentiles of waits.

use std::collections::HashMap;

use hdrhistogram::Histogram;
use penstock_units::Nanos;

use crate::boost::{Report, VcpuReport};
use crate::lease::Identity;
use crate::state::{CpuState, VcpuState};

/// Upper end of the histograms of waits, in nanoseconds: a minute. A wait of more than a minute
/// counts as a minute.
const LONGEST: u64 = 60_000_000_000;

/// The last report of each scheduling thread, and the waits of all reports.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    threads: HashMap<Identity, Measured>,
    reports: HashMap<u32, Report>,
}

#[derive(Debug)]
struct Measured {
    /// Histogram of the vCPU's waits. The histogram is `None` only if its bounds are invalid, which
    /// does not happen.
    waits: Option<Histogram<u64>>,
    last: VcpuReport,
    /// The vCPU's run time in nanoseconds when the set of VMs last changed.
    base: Nanos,
}

impl Gauge {
    /// Adds a scheduling thread's report to the measurements.
    pub fn add(&mut self, report: Report) {
        for vcpu in &report.vcpus {
            let measured = self.threads.entry(vcpu.thread).or_insert_with(|| Measured {
                waits: Histogram::new_with_bounds(1, LONGEST, 3).ok(),
                last: vcpu.clone(),
                base: vcpu.tally.ran,
            });
            measured.last = vcpu.clone();
        }
        for (thread, wait) in &report.waits {
            if let Some(Measured { waits: Some(waits), .. }) = self.threads.get_mut(thread) {
                waits.saturating_record(wait.0.max(1));
            }
        }
        self.reports.insert(report.cpu, report);
    }

    /// Restarts the measurement of shares, because the set of VMs has changed. The function removes
    /// the threads for which `keep` returns false.
    pub fn begin_anew(&mut self, keep: impl Fn(&Identity) -> bool) {
        self.threads.retain(|thread, _| keep(thread));
        for measured in self.threads.values_mut() {
            measured.base = measured.last.tally.ran;
        }
    }

    /// Total run time of `threads` in nanoseconds since the set of VMs last changed.
    pub fn ran(&self, threads: &[Identity]) -> u64 {
        let ran = |thread| self.threads.get(thread).map_or(0, Measured::ran);
        threads.iter().map(ran).sum()
    }

    /// State of a vCPU on processor `cpu`, for the state file. All vCPUs of the processor ran for
    /// `all` nanoseconds in total.
    pub fn vcpu(&self, thread: Identity, cpu: u32, share_ppm: u64, all: u64) -> VcpuState {
        let entitled_percent = float(share_ppm) / 10_000.0;
        let empty = VcpuState { tid: thread.tid, cpu, entitled_percent, ..VcpuState::default() };
        let Some(measured) = self.threads.get(&thread) else { return empty };
        let VcpuReport { tally, credit, blocked, .. } = &measured.last;
        // A histogram rounds up to the end of a bucket, which may exceed the longest wait.
        let longest = if tally.longest.0 > 0 { tally.longest.0 } else { u64::MAX };
        let at = |q| {
            let waits = measured.waits.as_ref();
            waits.map_or(0, |waits| waits.value_at_quantile(q).min(longest))
        };
        VcpuState {
            share_percent: 100.0 * float(measured.ran()) / float(all.max(1)),
            blocked: *blocked,
            credit_ms: float(credit.unsigned_abs()) / 1e6 * if *credit < 0 { -1.0 } else { 1.0 },
            wait_p50_us: float(at(0.5)) / 1e3,
            wait_p99_us: float(at(0.99)) / 1e3,
            wait_p999_us: float(at(0.999)) / 1e3,
            wait_max_us: float(tally.longest.0) / 1e3,
            waits: measured.waits.as_ref().map_or(0, Histogram::len),
            boosts: tally.boosts,
            events: tally.events,
            missed: tally.missed,
            ..empty
        }
    }

    /// State of processor `cpu`, for the state file.
    pub fn cpu(&self, cpu: u32) -> CpuState {
        let Some(report) = self.reports.get(&cpu) else {
            return CpuState { cpu, ..CpuState::default() };
        };
        let own_percent = 100.0 * float(report.own.0) / float(report.elapsed.0.max(1));
        let work_percent = 100.0 * float(report.work.0) / float(report.elapsed.0.max(1));
        CpuState { cpu, own_percent, work_percent, polls: report.polls, skipped: report.skipped }
    }
}

impl Measured {
    fn ran(&self) -> u64 {
        self.last.tally.ran.0.saturating_sub(self.base.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers for people")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boost::seat::Tally;

    fn report(ran_ms: [u64; 2], waits_us: &[u64]) -> Report {
        let thread = |tid| Identity { pid: 1, tid, started: 1 };
        let vcpu = |(tid, ran)| VcpuReport {
            thread: thread(tid),
            tally: Tally {
                ran: Nanos::from_millis(ran),
                longest: Nanos::from_micros(5_000),
                ..Tally::default()
            },
            credit: -2_000_000,
            reserve: 0,
            blocked: false,
            parts: 0,
        };
        let waits = waits_us.iter().map(|us| (thread(1), Nanos::from_micros(*us))).collect();
        let vcpus = (1..).zip(ran_ms).map(vcpu).collect();
        let (own, elapsed) = (Nanos::from_millis(10), Nanos::from_secs(1));
        Report { cpu: 3, vcpus, waits, own, elapsed, ..Report::default() }
    }

    #[test]
    fn reports_add_up_and_shares_count_from_the_last_change() {
        let mut gauge = Gauge::default();
        gauge.add(report([100, 0], &[1_000; 99]));
        let both = [1, 2].map(|tid| Identity { pid: 1, tid, started: 1 });
        gauge.begin_anew(|_| true);
        gauge.add(report([125, 75], &[5_000]));
        let all = gauge.ran(&both);
        let first = gauge.vcpu(both[0], 3, 500_000, all);
        assert_eq!((all, first.waits), (100_000_000, 100));
        assert!((first.share_percent - 25.0).abs() < 0.01 && first.credit_ms < -1.9);
        assert!((first.entitled_percent - 50.0).abs() < 0.01);
        assert!((first.wait_p50_us - 1_000.0).abs() < 2.0, "{first:?}");
        assert!((first.wait_p999_us - 5_000.0).abs() < 10.0, "{first:?}");
        assert!(first.wait_p999_us <= first.wait_max_us, "{first:?}");
        assert!((gauge.cpu(3).own_percent - 1.0).abs() < 0.01);
        gauge.begin_anew(|thread| thread.tid == 2);
        assert_eq!(gauge.vcpu(both[0], 3, 0, 1).waits, 0);
        assert_eq!(gauge.cpu(9).polls, 0);
    }
}
