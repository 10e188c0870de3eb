//! Live turns of a worker that gets a new snapshot ([`crate::turns`]).
//!
//! # Approach
//!
//! A thread of the lab runs the production worker on the worker's core, with the TSC of the core. A
//! second thread, on the generator's core, compiles the snapshots and frees the former ones, as the
//! threads of the control plane do. The value is the worst turn, and nothing is subtracted.
//!
//! Another program, the kernel or the hypervisor may take the core in a turn. A turn does not count
//! if one of these values grew since the turn before:
//!
//! - the thread's involuntary context switches (`getrusage`);
//! - the thread's wait for its core (`/proc/thread-self/schedstat`);
//! - the core's stolen time (`/proc/stat`), which the kernel reports in steps of 10 ms.
//!
//! Changes of which the turn did not count are made again, in at most [`ROUNDS`] rounds. If turns
//! are missing then, the value counts as not measured.
//!
//! # Limits
//!
//! - The VMs' rings are in the memory of the lab. VMs fill their rings between two turns, on the
//!   worker's core.
//! - The answer to the control plane's thread, which may take a system call of the worker, is not
//!   part of the turn.
//! - Interrupts, and stolen time that does not complete a step of 10 ms, count as part of a turn.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;
use penstock_dataplane::snapshot::Snapshot;
use penstock_dataplane::tsc::{self, Tsc};
use penstock_dataplane::worker::RunQueueWait;
use penstock_guest::bed::{self, pin};
use penstock_units::{Cycles, Nanos, TscRate};

use super::machine::Reading;
use super::vcpu::steal;
use crate::evidence::{Context, Outcome};
use crate::rig::stats::to_f64;
use crate::turns::{Bed, Change, Control, GAP, Timed, Turns, check};

/// Longest turn in microseconds with which the claim holds.
const MOST_US: f64 = 100.0;
/// Number of changes of each kind.
const CHANGES: u32 = 300;
/// Highest number of rounds of changes of one kind.
const ROUNDS: u32 = 3;
/// Number of turns before the first change.
const WARM_UP: u32 = 20_000;

/// Measures turns with and without new snapshots.
pub(super) fn measure(
    context: &Context<'_>,
    machine: &bed::Bed,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let core = tsc::calibrate();
    let mut control = Control::new(core);
    let _pinned = Pinned::new(machine.worker_core())?;
    let bed = Bed::new(control.snapshot(), (core, context.seed), Tsc, None)?;
    let watch = Watch::new(machine.worker_core())?;
    let mut worker = Measured { bed, core, watch };
    context.progress(0.95, "snapshots");
    for _ in 0..WARM_UP {
        worker.bed.fill();
        worker.bed.turn(None);
    }
    let before = Reading::take(&[machine.worker_core()]);
    for change in Change::ALL {
        let mut turns = Turns::default();
        let wanted = usize::try_from(CHANGES)?;
        for _ in 0..ROUNDS {
            let due = u32::try_from(wanted.saturating_sub(turns.changed.len()))?;
            if due == 0 {
                break;
            }
            let compiler = machine.generator_core();
            control = round(&mut worker, control, (change, due), compiler, &mut turns)?;
        }
        turns.conclude(outcome, change, (MOST_US, wanted));
    }
    let taken = before.until(&Reading::take(&[machine.worker_core()]));
    outcome.note("snapshots_stolen_pct", taken.stolen_pct);
    outcome.note("snapshots_other_programs_pct", taken.programs_pct);
    Ok(())
}

/// Makes `due` changes of one kind, and adds the turns that count to `turns`. Returns the control
/// plane, whose last snapshot the worker has.
fn round(
    worker: &mut Measured,
    mut control: Control,
    (change, due): (Change, u32),
    generator_core: u32,
    turns: &mut Turns,
) -> anyhow::Result<Control> {
    std::thread::scope(|scope| {
        let (give, given) = sync_channel(1);
        let (put_back, former) = channel::<Arc<Snapshot>>();
        let compiler = scope.spawn(move || {
            pin(generator_core)?;
            for _ in 0..due {
                if give.send(control.next(change)?).is_err() {
                    break;
                }
                former.try_iter().for_each(drop);
            }
            drop(give);
            // The worker ends first, so that this thread frees all former snapshots.
            former.iter().for_each(drop);
            anyhow::Ok(control)
        });
        let measured = worker.measure(change, &given, &put_back, turns);
        drop((given, put_back));
        let control = compiler.join().map_err(|_| anyhow::anyhow!("the compiler panicked"))?;
        measured?;
        control
    })
}

/// The worker, and what shows that its thread had the core.
struct Measured {
    bed: Bed<Tsc>,
    core: TscRate,
    watch: Watch,
}

impl Measured {
    /// Runs turns until the last of the snapshots in `given`.
    fn measure(
        &mut self,
        change: Change,
        given: &Receiver<Arc<Snapshot>>,
        put_back: &Sender<Arc<Snapshot>>,
        turns: &mut Turns,
    ) -> anyhow::Result<()> {
        loop {
            for _ in 0..GAP {
                let (timed, undisturbed) = self.turn(None)?;
                if undisturbed {
                    turns.add(&timed, self.us(timed.cycles));
                }
            }
            let new = match given.try_recv() {
                Ok(new) => new,
                // These turns are like those between two changes.
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => return Ok(()),
            };
            let (timed, undisturbed) = self.turn(Some(new))?;
            if let Some((work, _)) = &timed.swapped {
                check(change, *work)?;
            }
            if undisturbed {
                turns.add(&timed, self.us(timed.cycles));
            } else {
                turns.repeated += 1;
            }
            if let Some((_, former)) = timed.swapped {
                // If the compiler failed, its error ends the run.
                let _ = put_back.send(former);
            }
        }
    }

    /// Runs a turn. Returns the turn, and whether the thread had its core for the whole turn.
    fn turn(&mut self, new: Option<Arc<Snapshot>>) -> anyhow::Result<(Timed, bool)> {
        self.bed.fill();
        let timed = self.bed.turn(new);
        Ok((timed, self.watch.was_calm()?))
    }

    fn us(&self, cycles: Cycles) -> f64 {
        to_f64(self.core.to_nanos(cycles).0) / 1e3
    }
}

/// Counters that grow when the thread loses its core.
struct Watch {
    core: u32,
    wait: RunQueueWait,
    last: (i64, Nanos, std::time::Duration),
}

impl Watch {
    /// Watches the calling thread, which must be pinned to `core`.
    fn new(core: u32) -> anyhow::Result<Self> {
        let wait = RunQueueWait::of_this_thread();
        let wait = wait.context("/proc/thread-self/schedstat: the kernel has no statistics")?;
        let mut watch = Self { core, wait, last: Default::default() };
        watch.was_calm()?;
        Ok(watch)
    }

    /// Whether the thread had its core since the last call.
    fn was_calm(&mut self) -> anyhow::Result<bool> {
        let switches = getrusage(UsageWho::RUSAGE_THREAD)?.involuntary_context_switches();
        let now = (switches, self.wait.read(), steal::of(self.core)?);
        Ok(std::mem::replace(&mut self.last, now) == now)
    }
}

/// Binds the calling thread to one core until the value is dropped. The value has the cores that
/// the thread was allowed to use before.
struct Pinned(CpuSet);

impl Pinned {
    fn new(core: u32) -> anyhow::Result<Self> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        pin(core)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // This affinity was in force before, so the kernel allows it.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}
