//! `penstock-lab bench loss`: the highest rates without loss and with 0.5 % loss, and a soak.
//!
//! # Approach
//!
//! Each frame has a fixed time at which the generator sends it. The generator's loop polls the
//! clock and sends the frames whose time has come. A frame is lost if the ring is full at the
//! frame's time, or if the frame does not arrive. The generator does not send lost frames again.
//!
//! # Soak
//!
//! A soak sends at a fixed rate for a long time and counts the lost frames. The test machine itself
//! may also cause losses, for example if it takes the core from the worker. The benchmark counts
//! the losses and the disturbances of a soak in short intervals. An interval is *marked* if the
//! machine may have caused its losses, for one of three reasons:
//!
//! - The worker or the load generator waited too long for its CPU core during the interval.
//! - One turn of the generator's loop took too long in the interval.
//! - In the previous or the next interval, a wait for a CPU core or a turn of the generator's loop
//!   took too long. The kernel accounts a wait only when the wait ends, and a loss is visible only
//!   when the next frame arrives.
//!
//! A wait or a turn takes too long if it is longer than the time in which the offered load fills
//! half a ring.
//!
//! If a hypervisor takes the core from the worker alone, the benchmark cannot see the delay and
//! does not mark the interval. A timer tick may take 50 us under a hypervisor. Rings have 1,024
//! descriptors by default in `bench loss`, so that a ring can hold the frames that arrive during a
//! timer tick.
//!
//! # Source
//!
//! The benchmark follows RFC 2544 §26.1 and §26.3, and the search in [`super::mlr`].

use std::time::Duration;

use anyhow::ensure;

use super::args::{LossArgs, Sizes};
use super::mlr::{Search, Trial, search};
use super::report::{Bar, Ratio, Report, Row};
use crate::rig::Rig;
use crate::rig::link::Link;
use crate::rig::ovs::{self, OvsDpdk};
use crate::rig::pair::Paced;
use crate::rig::penstock::Penstock;
use crate::rig::stats::Spread;
use crate::rig::stats::to_f64;
use crate::rig::switch::Case;
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Guard;
use penstock_guest::load::Rate;

/// Length of the intervals into which a soak is divided.
const INTERVAL: Duration = Duration::from_millis(10);
/// Seconds for which the maximum rate is measured, after a warm-up of the same length.
const MAX_SECS: f64 = 1.0;
/// Maximum number of trials that the search runs at one rate. A trial is repeated if its losses
/// exceed the goal and the worker or the generator waited for a core.
const AGAIN: usize = 3;
/// The search for a rate ends when its bounds differ by at most `WIDTH` times the upper bound.
const WIDTH: f64 = 0.005;
/// Goals of the search: each has a permitted loss ratio and a name for the report.
const GOALS: [(f64, &str); 2] = [(0.0, "ndr"), (0.005, "pdr-0.5%")];
/// Largest percentage of a soak's intervals that may be marked as disturbed by the machine.
const MARKED_MOST: f64 = 1.0;
/// Maximum number of marked or lossy intervals that the report lists one by one.
const LISTED: usize = 1000;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Interval {
    at_secs: f64,
    lost: u64,
    worker_wait_ns: u64,
    generator_wait_ns: u64,
    gap_ns: u64,
}

#[derive(Debug, Clone, Default)]
struct Soak {
    intervals: u64,
    marked: u64,
    lost: u64,
    lost_unmarked: u64,
    /// Intervals that are marked or have losses. The flag is true if the machine may have caused
    /// the losses of the interval.
    listed: Vec<(Interval, bool)>,
}

/// Marks the intervals of a soak in which the machine may have caused losses.
#[derive(Debug)]
struct Marker {
    /// Limit in nanoseconds for a wait or a turn of the loop, above which an interval is marked.
    limit_ns: u64,
    /// Whether the last judged interval had a wait for a core or a turn of the loop above
    /// `limit_ns`.
    before: bool,
    /// The most recent interval, and whether a wait for a core or a turn of the loop in the
    /// interval exceeded `limit_ns`. An interval is judged only when the next interval has ended,
    /// because disturbances of the next interval also count.
    waiting: Option<(Interval, bool)>,
    last: Paced,
    last_worker_ns: u64,
    soak: Soak,
}

impl Marker {
    fn new(limit_ns: u64, worker_ns: u64) -> Self {
        let (last, soak) = (Paced::default(), Soak::default());
        Self { limit_ns, before: false, waiting: None, last, last_worker_ns: worker_ns, soak }
    }

    /// Records the counters at the end of an interval, and decides whether the previous interval is
    /// marked.
    fn see(&mut self, at_secs: f64, now: Paced, worker_ns: u64) {
        let interval = Interval {
            at_secs,
            // A late frame cancels a loss. The loss was counted in another interval.
            lost: now.lost().saturating_sub(self.last.lost()),
            worker_wait_ns: worker_ns - self.last_worker_ns,
            generator_wait_ns: now.waited_ns - self.last.waited_ns,
            gap_ns: now.gap_ns,
        };
        (self.last, self.last_worker_ns) = (now, worker_ns);
        let away = [interval.worker_wait_ns, interval.generator_wait_ns, interval.gap_ns];
        let own = away.iter().any(|ns| *ns > self.limit_ns);
        self.judge(own);
        self.waiting = Some((interval, own));
    }

    /// Decides whether the most recent interval is marked as disturbed by the machine. `after` says
    /// whether a wait or a turn of the loop exceeded the limit in the next interval.
    fn judge(&mut self, after: bool) {
        let Some((interval, own)) = self.waiting.take() else { return };
        let marked = own || self.before || after;
        self.before = own;
        self.soak.intervals += 1;
        self.soak.marked += u64::from(marked);
        self.soak.lost += interval.lost;
        if !marked {
            self.soak.lost_unmarked += interval.lost;
        }
        if (marked || interval.lost > 0) && self.soak.listed.len() < LISTED {
            self.soak.listed.push((interval, marked));
        }
    }

    fn finish(mut self) -> Soak {
        self.judge(false);
        self.soak
    }
}

/// # Errors
///
/// Returns an error if a switch cannot be started, or if it fails later. A ratio that misses its
/// required value is not an error.
pub fn run(args: &LossArgs, guard: &Guard) -> anyhow::Result<Report> {
    if args.peer.is_some() {
        ovs::check()?;
    }
    let bed = Bed::new(&args.bed, guard.clone())?;
    let mut platform = bed.describe();
    platform.insert("ring_size".into(), args.ring.into());
    platform.insert("interval_ms".into(), 10.into());
    let link = Link { ring_size: args.ring, packed: false, touch: true };
    let mut switches = vec![Rig::pair(&bed, Penstock::start_through(&bed, args.through)?, &link)?];
    if args.peer.is_some() {
        switches.push(Rig::pair(&bed, OvsDpdk::start_through(&bed, args.through)?, &link)?);
    }
    let mut report = Report { bench: "loss", platform, rows: Vec::new(), ratios: Vec::new() };
    for switch in &mut switches {
        switch.describe(&mut report.platform);
        switch.set_case(Case::L3)?;
    }
    for sizes in &args.sizes {
        for switch in &mut switches {
            switch.switch.resume()?;
            one_switch(&bed, switch, sizes, args, &mut report)?;
            switch.switch.pause()?;
        }
    }
    Ok(report)
}

/// Measures the maximum rate of one switch, searches its highest rates for the goals, and runs the
/// soak.
fn one_switch(
    bed: &Bed,
    switch: &mut Rig,
    sizes: &Sizes,
    args: &LossArgs,
    report: &mut Report,
) -> anyhow::Result<()> {
    let name = switch.switch.name();
    let row = |case: &str, metric: &'static str, value: f64| {
        let spread = Spread { median: value, min: value, max: value, runs: 1 };
        Row::new(case, sizes.to_json(), args.flows, name, metric, spread)
    };
    let fleet = &mut switch.fleet;
    let max = bed.on_generator_core(|| {
        fleet.send(&sizes.mix, args.flows, Rate::Max);
        fleet.run_and_settle(MAX_SECS)?;
        fleet.run_and_settle(MAX_SECS)
    })?;
    ensure!(max.rx_frames > 0, "{name}: no frame arrived");
    let max = to_f64(max.rx_frames) / max.secs;
    eprintln!("loss {}, {name}: maximum {:.3} Mpps", sizes.name, max / 1e6);
    let mut max_row = row("max", "mpps", max / 1e6);
    max_row.mpps = Some(max_row.median);
    report.rows.push(max_row);
    if !args.no_search {
        for (goal, case) in GOALS {
            let settings = Search {
                max,
                width: WIDTH,
                short_secs: args.trial,
                confirm_secs: args.confirm,
                long_secs: (3.0 * args.trial).min(args.confirm),
                limit_secs: args.search_limit,
            };
            let limit_ns = limit_ns(args.ring, max);
            let found = search(&settings, goal, |rate, secs| {
                let trial = quiet_trial(bed, switch, rate, secs, goal, limit_ns)?;
                eprintln!(
                    "loss {}, {name}, {case}: {:.3} Mpps for {secs} s: {} of {} lost",
                    sizes.name,
                    rate / 1e6,
                    trial.lost,
                    trial.offered
                );
                Ok(trial)
            })?;
            let mut found_row = row(case, "mpps", found.rate / 1e6);
            found_row.mpps = Some(found_row.median);
            found_row.note("percent_of_max", 100.0 * found.rate / max);
            found_row.note("trials", f64::from(found.trials));
            found_row.detail.insert("confirmed".into(), found.confirmed.into());
            if !found.confirmed {
                eprintln!(
                    "loss {}, {name}, {case}: not confirmed: losses that do not depend on the \
                     rate, or too little time (--search-limit)",
                    sizes.name
                );
            }
            report.rows.push(found_row);
        }
    }
    if let Some(secs) = args.soak {
        let rate = max * f64::from(args.at) / 100.0;
        let soak = soak(bed, switch, rate, secs, limit_ns(args.ring, rate))?;
        add_soak(report, row("soak", "lost_frames", to_f64(soak.lost_unmarked)), rate, &soak);
    }
    Ok(())
}

/// Returns the time in which `rate` frames per second fill half a ring, in nanoseconds.
fn limit_ns(ring: u16, rate: f64) -> u64 {
    let secs = f64::from(ring) / 2.0 / rate.max(1.0);
    penstock_guest::clock::nanos(Duration::try_from_secs_f64(secs).unwrap_or(INTERVAL))
}

/// Runs a trial, and repeats the trial if the machine may have caused its losses. At most [`AGAIN`]
/// trials run in total.
fn quiet_trial(
    bed: &Bed,
    switch: &mut Rig,
    rate: f64,
    secs: f64,
    goal: f64,
    limit_ns: u64,
) -> anyhow::Result<Trial> {
    let mut least: Option<Trial> = None;
    let mut spent = 0.0;
    for _ in 0..AGAIN {
        spent += secs;
        let before = switch.switch.waited_ns();
        let fleet = &mut switch.fleet;
        let paced = bed.on_generator_core(|| fleet.paced(rate, secs, Duration::MAX, |_| Ok(())))?;
        let waited = switch.switch.waited_ns() - before;
        let trial = Trial { offered: paced.due, lost: paced.lost(), secs };
        if least.is_none_or(|least| trial.lost < least.lost) {
            least = Some(trial);
        }
        let met = to_f64(trial.lost) <= goal * to_f64(trial.offered);
        if met || waited.max(paced.waited_ns).max(paced.gap_ns) <= limit_ns {
            break;
        }
    }
    let least = least.ok_or_else(|| anyhow::anyhow!("no trial was made"))?;
    Ok(Trial { secs: spent, ..least })
}

fn soak(bed: &Bed, switch: &mut Rig, rate: f64, secs: f64, limit_ns: u64) -> anyhow::Result<Soak> {
    let Rig { fleet, switch } = switch;
    let name = switch.name();
    let marker = bed.on_generator_core(|| {
        let mut marker = Marker::new(limit_ns, switch.waited_ns());
        let began = penstock_guest::clock::now();
        let mut next_word = 0.0;
        let last = fleet.paced(rate, secs, INTERVAL, |now| {
            let at = began.elapsed().as_secs_f64();
            marker.see(at, now, switch.waited_ns());
            if at >= next_word {
                next_word += (secs / 20.0).max(1.0);
                let soak = &marker.soak;
                eprintln!(
                    "loss soak, {name}: {at:.0} of {secs:.0} s at {:.3} Mpps, lost {} ({} in \
                     unmarked intervals), marked {:.2} %",
                    rate / 1e6,
                    soak.lost,
                    soak.lost_unmarked,
                    soak.marked_percent()
                );
            }
            Ok(())
        })?;
        // The last interval includes the frames that were in flight at the last reading.
        marker.see(secs, last, switch.waited_ns());
        Ok(marker)
    })?;
    Ok(marker.finish())
}

impl Soak {
    fn marked_percent(&self) -> f64 {
        100.0 * to_f64(self.marked) / to_f64(self.intervals.max(1))
    }
}

fn add_soak(report: &mut Report, mut row: Row, rate: f64, soak: &Soak) {
    row.mpps = Some(super::report::round(rate / 1e6));
    row.note("lost_in_all", to_f64(soak.lost));
    row.note("intervals", to_f64(soak.intervals));
    row.note("marked_percent", soak.marked_percent());
    let listed = soak.listed.iter().map(|(interval, marked)| {
        serde_json::json!({
            "at_secs": super::report::round(interval.at_secs),
            "lost": interval.lost,
            "marked": marked,
            "worker_wait_us": interval.worker_wait_ns / 1000,
            "generator_wait_us": interval.generator_wait_ns / 1000,
            "generator_gap_us": interval.gap_ns / 1000,
        })
    });
    row.detail.insert("marked_or_lossy".into(), listed.collect());
    // Only Penstock has this bar.
    if row.subject == "penstock" {
        let lost = to_f64(soak.lost_unmarked);
        report.ratios.push(Ratio::of(&row, "absolute", "lost_frames", lost, Bar::AtMost(0.0)));
        let marked = soak.marked_percent();
        let bar = Bar::AtMost(MARKED_MOST);
        report.ratios.push(Ratio::of(&row, "absolute", "marked_percent", marked, bar));
    }
    report.rows.push(row);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(refused: u64, missing: u64, gap_ns: u64, waited_ns: u64) -> Paced {
        Paced { due: 1_000_000, refused, missing, gap_ns, waited_ns }
    }

    #[test]
    fn losses_count_unless_somebody_was_away_then_or_next_to_it() {
        let mut marker = Marker::new(20_000, 500);
        marker.see(0.01, paced(0, 0, 5_000, 0), 500);
        // The worker waits. The loss is already visible, but the wait is not accounted yet.
        marker.see(0.02, paced(3, 0, 5_000, 0), 500);
        marker.see(0.03, paced(3, 1, 5_000, 0), 50_500);
        marker.see(0.04, paced(3, 2, 5_000, 0), 50_500);
        // Neither worker nor generator was away, in this interval or in the next.
        marker.see(0.05, paced(3, 4, 5_000, 0), 50_500);
        marker.see(0.06, paced(3, 4, 5_000, 0), 50_500);
        // The generator was away: its gap is above the limit.
        marker.see(0.07, paced(9, 4, 30_000, 0), 50_500);
        let soak = marker.finish();
        assert_eq!((soak.intervals, soak.marked), (7, 5));
        assert_eq!((soak.lost, soak.lost_unmarked), (13, 2));
        let listed: Vec<_> = soak.listed.iter().map(|(i, m)| (i.lost, *m)).collect();
        assert_eq!(listed, [(3, true), (1, true), (1, true), (2, false), (0, true), (6, true)]);
    }

    #[test]
    fn half_a_ring_of_256_lasts_20_us_at_6_4_million_a_second() {
        assert_eq!(limit_ns(256, 6.4e6), 20_000);
    }
}
