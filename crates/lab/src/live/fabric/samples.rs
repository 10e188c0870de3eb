//! Runs programs in the VMs of a [`World`], and reads the rates of tenants and of the core link
//! every second.

use std::time::Duration;

use super::counters::Rates;
use super::programs::{Client, Programs};
use super::world::{Vm, World};
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;
use penstock_guest::clock;

/// Warm-up before samples count: two decision intervals of 4 s and a report interval of 1 s.
pub(super) const WARM_UP: Duration = Duration::from_secs(9);
/// Time between two samples of the rates.
const SAMPLE: Duration = Duration::from_secs(1);

/// Starts the clients and servers in all VMs of the world.
pub(super) fn start(
    bed: &Bed,
    world: &World,
    clients: Vec<Client>,
    seed: u64,
) -> anyhow::Result<Programs> {
    let places = world.vms.iter().map(|vm| vm.place.clone()).collect();
    bed.on_generator_core(|| Programs::start(places, clients, seed))
}

/// Returns the indices of the VMs of `vm`'s tenant for which `fit` returns true.
pub(super) fn others(vms: &[Vm], vm: usize, fit: impl Fn(&Vm) -> bool) -> Vec<usize> {
    let tenant = vms[vm].tenant;
    let all = vms.iter().enumerate();
    all.filter(|(_, of)| of.tenant == tenant && fit(of)).map(|(nth, _)| nth).collect()
}

/// Rates of tenants and of the core link between the times `from` and `until`. The times `from` and
/// `until` count from the start of the programs.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub from: Duration,
    pub until: Duration,
    /// The times `from` and `until` in milliseconds since 1970.
    pub at_ms: [u64; 2],
    pub rates: Rates,
    /// Time for which the longer of the two readings swept over the counters.
    pub sweep: Duration,
    pub link: f64,
}

/// Takes samples of the rates for `secs` seconds after the warm-up.
pub(super) fn watch(
    world: &mut World,
    programs: &mut Programs,
    secs: f64,
) -> anyhow::Result<Vec<Sample>> {
    watch_and((world, programs), secs, || ())
}

/// Takes samples of the rates as [`watch`] does, and also calls `look` before the first sample and
/// after each sample.
pub(super) fn watch_and(
    (world, programs): (&mut World, &mut Programs),
    secs: f64,
    look: impl FnMut(),
) -> anyhow::Result<Vec<Sample>> {
    watch_until((world, programs), |measured| measured >= secs, look)
}

/// Takes samples of the rates after the warm-up, until `done` returns true. `done` gets the number
/// of seconds since the warm-up. Calls `look` as [`watch_and`] does.
pub(super) fn watch_until(
    (world, programs): (&mut World, &mut Programs),
    done: impl Fn(f64) -> bool,
    mut look: impl FnMut(),
) -> anyhow::Result<Vec<Sample>> {
    while let Some(rest) = WARM_UP.checked_sub(programs.elapsed()) {
        clock::wait_readable(None, rest.min(SAMPLE));
        programs.check()?;
        world.check()?;
    }
    let link = to_f64(world.plan().link);
    let mut before = world.read()?;
    look();
    let mut samples = Vec::new();
    while !done(programs.elapsed().saturating_sub(WARM_UP).as_secs_f64()) {
        let due = programs.since_start(before.at) + SAMPLE;
        clock::wait_readable(None, due.saturating_sub(programs.elapsed()));
        programs.check()?;
        world.check()?;
        let now = world.read()?;
        samples.push(Sample {
            from: programs.since_start(before.at),
            until: programs.since_start(now.at),
            at_ms: [before.at_ms, now.at_ms],
            rates: Rates::between(&before, &now),
            sweep: before.took.max(now.took),
            link,
        });
        look();
        before = now;
    }
    Ok(samples)
}

/// Returns the utilization of the core link in percent, as the mean of the uplinks of all racks.
pub(super) fn used_pct(sample: &Sample) -> f64 {
    let core = &sample.rates.core;
    let racks = to_f64(u64::try_from(core.len()).unwrap_or(u64::MAX));
    100.0 * core.iter().sum::<f64>() / (racks * sample.link)
}

/// Returns the longest sweep over the counters of all samples, in milliseconds.
pub(super) fn longest_sweep_ms(samples: &[Sample]) -> f64 {
    samples.iter().map(|sample| 1e3 * sample.sweep.as_secs_f64()).fold(0.0, f64::max)
}

/// Returns a curve's points: for each sample, the seconds since the warm-up and the sample's
/// `value`.
pub(super) fn points<'a>(
    samples: &'a [Sample],
    value: impl Fn(&Sample) -> f64 + 'a,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    samples.iter().map(move |s| ((s.until.saturating_sub(WARM_UP)).as_secs_f64(), value(s)))
}
