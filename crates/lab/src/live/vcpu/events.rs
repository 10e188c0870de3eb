//! Sends events to guests that compute, and measures the times at which the guests see the events.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::errno::Errno;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use penstock_dataplane::tsc::{CycleCounter as _, Tsc};
use penstock_sim::Rng;
use penstock_units::Nanos;
use penstock_vcpu_host::boost;

use super::bed::{Guest, Mode, Scheduler, Stage, Terms};
use super::steal;
use crate::evidence::percentile;

/// Parameters of one measurement of reaction times.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    /// Scheduling terms of the VMs that receive events. Each VM that receives events also computes
    /// all the time.
    pub tested: Vec<Terms>,
    /// Number of other VMs that compute all the time. The other VMs have weight 1 and no deadline.
    pub hogs: usize,
    /// Whether the Penstock scheduler schedules the VMs, instead of Linux's fair class.
    pub ours: bool,
    pub secs: f64,
    /// Minimum and maximum time between two events of a VM.
    pub gap: (Nanos, Nanos),
}

/// Results of one measurement of reaction times.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// For each VM that receives events: the times from an event to the VM's first instruction, in
    /// ms.
    pub answers: Vec<Vec<f64>>,
    /// The longest reaction times, as pairs in ms: the time from an event to the VM's first
    /// instruction, and the time that the program needed to send the event. If the program needed a
    /// long time to send an event, the program itself was delayed.
    pub worst: Vec<(f64, f64)>,
    /// Largest deviation of a VM's share of the VMs' total CPU time from an equal share, in
    /// percent.
    pub share_error: f64,
    /// Share of the first VM that receives events in the VMs' total CPU time, in percent.
    pub share: f64,
    /// Share of the core that the scheduling thread used, in percent.
    pub own: f64,
    /// Number of polls that the scheduling thread missed because it did not have the core in time.
    pub skipped: u64,
    /// Number of waits of a VM that were longer than its deadline plus 1 ms, according to the
    /// scheduler.
    pub missed: u64,
    /// Number of polls of the scheduling thread per second.
    pub polls: f64,
    /// Share of the core that the scheduling thread spent on work, in percent, according to the
    /// scheduler.
    pub work: f64,
    /// Share of the core that the hypervisor of this machine took, in percent.
    pub stolen: f64,
}

impl Found {
    /// Returns a percentile of the reaction times of all VMs that receive events, in ms.
    pub fn at(&self, percent: f64) -> f64 {
        let all: Vec<f64> = self.answers.iter().flatten().copied().collect();
        percentile(&all, percent)
    }

    /// Returns a percentile of the reaction times of VM number `nth`, in ms.
    pub fn at_of(&self, nth: usize, percent: f64) -> f64 {
        percentile(&self.answers[nth], percent)
    }
}

/// Time before the measurement in which the scheduling credits of the VMs become equal.
const SETTLE: Duration = Duration::from_secs(1);
/// Time in ms after which a missing answer of a guest is an error.
const LOST: f64 = 5_000.0;
/// Number of longest reaction times that a measurement reports.
const WORST: usize = 4;
/// Time between two checks for a late answer of a guest.
const AGAIN: Nanos = Nanos::from_micros(200);

pub(super) fn measure(stage: &Stage, cell: &Cell, seed: u64) -> anyhow::Result<Found> {
    let vms = cell.tested.len() + cell.hogs;
    let guests = stage.guests(vms, cell.secs)?;
    let mut terms = cell.tested.clone();
    terms.resize(vms, Terms::HOG);
    let mut scheduler = None;
    if cell.ours {
        scheduler.insert(stage.schedule(&terms)?).await_seated(vms)?;
    }
    sleep_until(now() + Nanos(penstock_guest::clock::nanos(SETTLE)));
    let own = || scheduler.as_ref().map_or(Ok(Duration::ZERO), Scheduler::own);
    let core = stage.bed.worker_core();
    let (told_before, stolen) = (Told::of(scheduler.as_ref())?, steal::of(core)?);
    let (begin, own_before) = (now(), own()?);
    let before = guests.iter().map(Guest::ran).collect::<anyhow::Result<Vec<_>>>()?;
    let told = stage.bed.on_generator_core(|| tell(stage, cell, &guests, seed))?;
    let mut worst: Vec<(f64, f64)> = told.iter().flatten().copied().collect();
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    worst.truncate(WORST);
    let answers = told.iter().map(|vm| vm.iter().map(|(answer, _)| *answer).collect()).collect();
    let after = guests.iter().map(Guest::ran).collect::<anyhow::Result<Vec<_>>>()?;
    let elapsed = Duration::from_nanos(now().saturating_sub(begin).0).as_secs_f64();
    let ran: Vec<f64> =
        before.iter().zip(&after).map(|(a, b)| b.saturating_sub(*a).as_secs_f64()).collect();
    let all: f64 = ran.iter().sum();
    let even = 100.0 / f64::from(u32::try_from(vms)?);
    let error = ran.iter().map(|ran| (100.0 * ran / all - even).abs()).fold(0.0, f64::max);
    let told = Told::of(scheduler.as_ref())?;
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / elapsed;
    Ok(Found {
        answers,
        worst,
        share_error: error,
        share: 100.0 * ran[0] / all,
        own: percent(own()?.saturating_sub(own_before)),
        missed: told.missed.saturating_sub(told_before.missed),
        skipped: told.skipped.saturating_sub(told_before.skipped),
        polls: (told.polls - told_before.polls) / elapsed,
        // This share covers the scheduler's whole life. Its load before the measurement was about
        // the same.
        work: told.work,
        stolen: percent(steal::of(core)?.saturating_sub(stolen)),
    })
}

/// Counters that the scheduler reports about itself, summed over CPUs and vCPUs.
#[derive(Debug, Default)]
struct Told {
    missed: u64,
    skipped: u64,
    polls: f64,
    work: f64,
}

impl Told {
    fn of(scheduler: Option<&Scheduler>) -> anyhow::Result<Self> {
        let Some(scheduler) = scheduler else { return Ok(Self::default()) };
        let state = scheduler.state()?;
        let polls: u64 = state.cpus.iter().map(|cpu| cpu.polls).sum();
        Ok(Self {
            missed: state.vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.missed).sum(),
            skipped: state.cpus.iter().map(|cpu| cpu.skipped).sum(),
            polls: f64::from(u32::try_from(polls)?),
            work: state.cpus.iter().map(|cpu| cpu.work_percent).sum(),
        })
    }
}

/// The events that are sent to one VM, and the times of the VM's answers.
struct Source<'a> {
    guest: &'a Guest,
    /// Whether the sender notifies the scheduler of each event that it sends to the VM.
    told: bool,
    /// Time at which the VM's next event is due.
    next: Nanos,
    number: u64,
    /// Two TSC values of the unanswered event: its creation, and the end of notifying guest and
    /// scheduler. `None` if the last event was answered.
    open: Option<(u64, u64)>,
    /// For each event: the time until the guest's answer, and the time that notifying took, in ms.
    answers: Vec<(f64, f64)>,
}

/// Sends events to the guests at pseudo-random times that depend on `seed`. Returns the answers of
/// each guest, as in [`Source::answers`].
fn tell(
    stage: &Stage,
    cell: &Cell,
    guests: &[Guest],
    seed: u64,
) -> anyhow::Result<Vec<Vec<(f64, f64)>>> {
    let mut rng = Rng::new(seed).fork(u64::try_from(guests.len())?);
    let (least, most) = cell.gap;
    let mut gap = || least + Nanos(rng.below((most.0 - least.0).max(1)));
    let begin = now();
    let end = begin + Nanos(penstock_guest::clock::nanos(Duration::from_secs_f64(cell.secs)));
    let mut sources: Vec<Source<'_>> = guests
        .iter()
        .zip(&cell.tested)
        .map(|(guest, terms)| Source {
            guest,
            told: cell.ours && terms.mode == Mode::Event,
            next: begin + gap(),
            number: guest.board.answered().0,
            open: None,
            answers: Vec::new(),
        })
        .collect();
    while let Some(source) = sources.iter_mut().min_by_key(|source| source.next) {
        if source.next >= end {
            break;
        }
        sleep_until(source.next);
        source.look(stage)?;
        if source.open.is_some() {
            source.next = now() + AGAIN;
            continue;
        }
        source.number += 1;
        let at = Tsc.now().0;
        source.guest.board.tell(source.number);
        if source.told {
            boost::event(stage.run_dir(), &source.guest.name).context("reporting an event")?;
        }
        source.open = Some((at, Tsc.now().0));
        source.next = now() + gap();
    }
    for source in &mut sources {
        while source.open.is_some() {
            sleep_until(now() + AGAIN);
            source.look(stage)?;
        }
    }
    Ok(sources.into_iter().map(|source| source.answers).collect())
}

impl Source<'_> {
    /// Records the answer and its time if the guest has answered the event. Returns an error if the
    /// answer is overdue.
    fn look(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let Some((came, told)) = self.open else { return Ok(()) };
        let (number, at) = self.guest.board.answered();
        if number == self.number {
            // The guest's TSC and ours agree within one or two microseconds.
            let after = |came: u64, at: u64| stage.ms(at.saturating_sub(came));
            self.answers.push((after(came, at), after(came, told)));
            self.open = None;
        }
        let waited = stage.ms(Tsc.now().0.saturating_sub(came));
        ensure!(
            self.open.is_none() || waited < LOST,
            "{} did not answer an event within {LOST} ms",
            self.guest.name
        );
        Ok(())
    }
}

pub(super) fn now() -> Nanos {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    Nanos(now.map_or(0, |now| penstock_guest::clock::nanos(now.into())))
}

/// Sleeps until the monotonic clock reaches `at`, accurate to a few microseconds.
pub(super) fn sleep_until(at: Nanos) {
    let wake = Duration::from_nanos(at.0).into();
    let absolute = ClockNanosleepFlags::TIMER_ABSTIME;
    while clock_nanosleep(ClockId::CLOCK_MONOTONIC, absolute, &wake) == Err(Errno::EINTR) {}
}
