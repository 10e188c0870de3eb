//! A worker is a polling thread that owns one I/O core.
//!
//! # Approach
//!
//! In a turn, a worker picks a unit, runs the unit and settles the unit's bill (C2QoS §IV;
//! ARCHITECTURE.md). A unit is a queue pair, the queue of an output, or the inbox of frames from
//! other workers. The module `pick` checks before a batch that the port has tokens, and the module
//! `bill` charges the port for the batch. The worker reads the cycle counter only once for each
//! bill, because a bill begins where the previous bill ended. In one batch of
//! [`SAMPLE_EVERY`], the worker also reads the cycle counter between the stages.
//!
//! A turn takes no lock and makes no allocation. In a turn, the worker makes only the system calls
//! that a type of port needs, for example a send call on an AF_XDP socket. The crate `sim`
//! simulates a worker: it calls [`Worker::turn`] with a virtual cycle counter.
//!
//! | Type | State |
//! |---|---|
//! | `Context` | shared state of all steps: ports, counters, snapshot, batch, account |
//! | `Roster` | units that take part in the schedule, and times at which other units return |
//! | `Input` | the classifier, and shapers of the frames that ports send |
//! | `Outputs` | output queues, and the sources that full output queues hold back |
//! | `Ranks` | sums of the ports' latency classes and purchased cycles |

mod absent;
mod account;
mod aside;
mod bill;
mod claims;
mod clock;
mod config;
mod context;
mod cutter;
mod delay;
mod draining;
mod handle;
mod inbox;
mod input;
mod kicks;
mod membership;
mod metering;
mod outputs;
mod pick;
mod pressure;
mod ranks;
mod refill;
mod request;
mod resting;
mod roster;
mod sampler;
mod shaping;
mod sharing;
mod thread;
mod workers;

pub use account::{RunQueueWait, bucket_terms};
pub use config::WorkerConfig;
pub use handle::{FdbChunk, WorkerError, WorkerHandle};
pub use membership::Arrival;
pub use metering::SwapWork;
pub use request::{Reply, Request};
pub use resting::{AWAKE_MIN, IDLE_AFTER, LOOK_EVERY, bell_of};
pub use thread::spawn;
pub use workers::Workers;

pub use penstock_qos::c2tb::Ledger;

use crate::tsc::{CycleCounter, Stage, Work};
use aside::Why;
use context::Context;
use input::Input;
use outputs::Outputs;
use ranks::Ranks;
use roster::{Event, Roster};

/// Mean number of batches between two samples: the worker times the stages of one batch in 64, at
/// random.
pub const SAMPLE_EVERY: u32 = 64;

/// A worker's state. [`spawn`] runs a worker in a thread, and `sim` calls [`Worker::turn`]
/// directly.
#[derive(Debug)]
pub struct Worker<C> {
    ctx: Context<C>,
    roster: Roster,
    input: Input,
    outputs: Outputs,
    /// Whether the next turn begins with a check for frames from other workers instead of the
    /// schedule.
    inbox_first: bool,
    /// Work that the last new snapshot caused.
    swapped: SwapWork,
    ranks: Ranks,
}

/// What a worker did in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The worker moved a batch of the given number of frames. If a port refused all frames of a
    /// batch, the refused frames count as one frame.
    Busy(usize),
    /// No unit of the worker had work.
    Idle,
}

impl<C: CycleCounter> Worker<C> {
    /// Creates a worker without ports.
    pub fn new(config: &WorkerConfig, counter: C, wait: Option<RunQueueWait>) -> Self {
        let ctx = Context::new(config, counter, wait);
        let roster = Roster::new(config, ctx.nanos());
        let (input, outputs) = (Input::new(config), Outputs::new(config));
        let (swapped, ranks) = (SwapWork::default(), Ranks::new(config.max_ports));
        Self { ctx, roster, input, outputs, inbox_first: false, swapped, ranks }
    }

    /// Picks a unit of the schedule, runs one batch of the unit, and charges the cycles of the
    /// batch.
    pub fn turn(&mut self) -> Turn {
        if self.ctx.account.rests() {
            return self.idle();
        }
        let ran = if self.pass_time() { self.pick_by_share() } else { self.pick::<false>() };
        let Some(ran) = ran else { return self.idle() };
        self.settle(&ran.bill);
        self.finish(ran.sweep_ends);
        Turn::Busy(ran.bill.frames().max(1))
    }

    /// Runs a turn while the control plane holds the workers. While the workers are held, a turn
    /// delivers handed-over frames and takes no frame from a port.
    pub fn held_turn(&mut self) -> Turn {
        let Some(bill) = inbox::run(&mut self.ctx, &mut self.input) else {
            self.end_idle();
            return Turn::Idle;
        };
        self.settle(&bill);
        self.finish(false);
        Turn::Busy(bill.frames())
    }

    /// Returns units to the schedule if their time in the timing wheel has come. Returns whether a
    /// source has a claim at an output ([`claims`]).
    #[inline]
    fn pass_time(&mut self) -> bool {
        self.roster.has_events() && self.expire()
    }

    #[inline(never)]
    fn expire(&mut self) -> bool {
        let now = self.ctx.nanos();
        while let Some(event) = self.roster.expire(now) {
            match event {
                Event::Shaped(port) => self.roster.take_back(&self.ctx, port, Why::Shaped),
                Event::Policed(port) => self.input.release(&self.ctx, &mut self.roster, port),
                Event::Output(port) => self.outputs.wake(&self.ctx, &mut self.roster, port),
            }
        }
        let has_claims = !self.outputs.claims.is_empty();
        self.roster.note_claims(has_claims);
        has_claims
    }

    /// Called at the end of a turn that ran a batch: counts the turn, refills buckets if a refill
    /// is due, and notifies drivers.
    fn finish(&mut self, sweep_ends: bool) {
        self.stop_sleeper_if_due();
        let counters = self.ctx.counters();
        counters.turns.add(1);
        counters.busy_turns.add(1);
        counters.heartbeat.set(self.ctx.last().0);
        self.tell_peers();
        self.refill_if_due();
        self.ctx.until_notify -= 1;
        if sweep_ends || self.ctx.until_notify == 0 {
            self.age();
            self.ctx.end_round();
            let _ = self.roster.wake_some(&mut self.ctx);
        }
    }

    fn idle(&mut self) -> Turn {
        self.age();
        self.end_idle();
        Turn::Idle
    }

    fn end_idle(&mut self) {
        self.stop_sleeper_if_due();
        self.ctx.end_round();
        self.tell_peers();
        self.ctx.counter.spent(Stage::Idle, &Work::NONE);
        self.ctx.counters().turns.add(1);
        self.rested();
        self.ctx.counters().heartbeat.set(self.ctx.last().0);
        self.refill_if_due();
    }

    /// The caller must call this function after a pause between two turns of the worker. The cycles
    /// of the pause count as idle time, so that the sender of the next batch does not pay for the
    /// pause.
    pub fn rested(&mut self) {
        self.ctx.charge_nobody();
    }

    #[inline]
    fn refill_if_due(&mut self) {
        if self.ctx.account.buckets().is_due(self.ctx.last()) {
            refill::run(&mut self.ctx, &mut self.roster, &self.input);
        }
    }

    fn age(&mut self) {
        let second = self.ctx.second();
        if self.input.classifier_mut().age(second, &self.ctx.snapshot) {
            refill::look_at_waiting(&mut self.ctx, &mut self.roster);
        }
        self.outputs.publish_delays(&mut self.ctx, second);
    }
}
