//! Runs programs in a world, and reads their rates second by second.

use std::time::Duration;

use super::programs::{Client, Programs};
use super::world::{Rates, Vm, World};
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;
use penstock_guest::clock;

/// Time before samples count: two intervals of 4 s and a report.
pub(super) const WARM_UP: Duration = Duration::from_secs(9);
/// Time between two samples.
const SAMPLE: Duration = Duration::from_secs(1);

/// Starts clients in the VMs.
pub(super) fn start(
    bed: &Bed,
    world: &World,
    clients: Vec<Client>,
    seed: u64,
) -> anyhow::Result<Programs> {
    let places = world.vms.iter().map(|vm| vm.place.clone()).collect();
    bed.on_generator_core(|| Programs::start(places, clients, seed))
}

/// VMs of the tenant of `vm` for which `fit` is true.
pub(super) fn others(world: &World, vm: usize, fit: impl Fn(&Vm) -> bool) -> Vec<usize> {
    let tenant = world.vms[vm].tenant;
    let all = world.vms.iter().enumerate();
    all.filter(|(_, of)| of.tenant == tenant && fit(of)).map(|(nth, _)| nth).collect()
}

/// Rates in one interval. Times count since the clients began.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub from: Duration,
    pub until: Duration,
    pub rates: Rates,
    link: f64,
}

/// Takes samples for `secs` after the warm-up.
pub(super) fn watch(
    world: &mut World,
    programs: &mut Programs,
    secs: f64,
) -> anyhow::Result<Vec<Sample>> {
    watch_and((world, programs), secs, || ())
}

/// Like [`watch`], and calls `look` before the first sample and after each.
pub(super) fn watch_and(
    (world, programs): (&mut World, &mut Programs),
    secs: f64,
    mut look: impl FnMut(),
) -> anyhow::Result<Vec<Sample>> {
    while let Some(rest) = WARM_UP.checked_sub(programs.elapsed()) {
        clock::wait_readable(None, rest.min(SAMPLE));
        programs.check()?;
        world.check()?;
    }
    let link = to_f64(world.link());
    let tenants = 1 + world.vms.iter().map(|vm| vm.tenant).max().unwrap_or(0);
    let (mut from, mut before) = (programs.elapsed(), world.read()?);
    look();
    let mut samples = Vec::new();
    while programs.elapsed().saturating_sub(WARM_UP).as_secs_f64() < secs {
        clock::wait_readable(None, (from + SAMPLE).saturating_sub(programs.elapsed()));
        programs.check()?;
        world.check()?;
        let (until, now) = (programs.elapsed(), world.read()?);
        let rates = Rates::between(&before, &now, tenants);
        samples.push(Sample { from, until, rates, link });
        look();
        (from, before) = (until, now);
    }
    Ok(samples)
}

/// Utilization of the core in percent, as the mean of both directions.
pub(super) fn used_pct(sample: &Sample) -> f64 {
    let both: f64 = sample.rates.core.iter().sum();
    100.0 * both / (2.0 * sample.link)
}

/// Values of samples over time.
pub(super) fn points<'a>(
    samples: &'a [Sample],
    value: impl Fn(&Sample) -> f64 + 'a,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    samples.iter().map(move |s| ((s.until.saturating_sub(WARM_UP)).as_secs_f64(), value(s)))
}
