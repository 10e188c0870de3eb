//! A worker's thread is pinned to a core and polls. When idle, the thread may sleep if the
//! configuration permits sleeping.

use core::sync::atomic::Ordering;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::Pid;
use penstock_units::Nanos;

use super::handle::{MAILBOX, Mailbox};
use super::{Reply, Request, RunQueueWait, Turn, Worker, WorkerConfig, WorkerError, WorkerHandle};
use crate::confine::{Role, confine};
use crate::peers::Peers;
use crate::tsc::Tsc;
use crate::wake::{Interrupter, stall};

/// Number of empty turns after which an idle worker begins to pause between polls.
const SPIN_TURNS: u32 = 256;
/// Number of pause instructions between two polls of a pausing worker. A pause of 64 pause
/// instructions takes about 2.5 us. Guests are faster if an idle worker does not touch their cache
/// lines (datapath rule 34).
const PAUSES: u32 = 64;

/// Starts a worker's thread and waits until the thread runs on its core.
///
/// # Errors
/// Returns [`WorkerError::Start`] if the core does not exist or the thread cannot be started.
pub fn spawn(config: WorkerConfig) -> Result<WorkerHandle, WorkerError> {
    spawn_one(config, None)
}

/// Starts a worker like [`spawn`], with rings to and from other workers.
pub(super) fn spawn_one(
    config: WorkerConfig,
    peers: Option<Peers>,
) -> Result<WorkerHandle, WorkerError> {
    let id = config.id;
    let failed = move |call, problem: String| WorkerError::Start { worker: id, call, problem };
    let (ready, started) = crossbeam_channel::bounded(1);
    let thread = std::thread::Builder::new().name(format!("penstock-w{id}")).spawn(move || {
        if let Err(problem) = pin(config.core) {
            let _ = ready.send(Err(failed("pin to its core", problem)));
            return;
        }
        // Exists until the thread ends, so that no system call blocks for longer than the timer's
        // period.
        let _interrupter = match Interrupter::arm() {
            Ok(interrupter) => interrupter,
            Err(e) => {
                let _ = ready.send(Err(failed("create its timer", e.to_string())));
                return;
            }
        };
        let wait = RunQueueWait::of_this_thread();
        if let Err(e) = confine(Role::Worker) {
            let _ = ready.send(Err(failed("give up its privileges", e.to_string())));
            return;
        }
        let peers = peers.unwrap_or_else(|| Peers::none(config.max_ports));
        let worker = Worker::new(&config, Tsc, wait).with_peers(peers);
        let (handle, mailbox) = WorkerHandle::new(id, config.max_ports, &worker);
        if ready.send(Ok(handle)).is_ok() {
            let (backoff, patience) = (config.idle_backoff, config.idle_turns);
            Runner { worker, mailbox, backoff, patience, served: 0, idle: 0, held: false }.run();
        }
    });
    let thread = thread.map_err(|e| failed("start its thread", e.to_string()))?;
    let gone = || failed("start its thread", "it ended at once".to_owned());
    let handle = started.recv().map_err(|_| gone())??;
    handle.set_thread(thread);
    Ok(handle)
}

fn pin(core: Option<u32>) -> Result<(), String> {
    let Some(core) = core else { return Ok(()) };
    let mut set = CpuSet::new();
    usize::try_from(core)
        .map_err(|e| e.to_string())
        .and_then(|core| set.set(core).map_err(|e| e.to_string()))
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set).map_err(|e| e.to_string()))
        .map_err(|e| format!("CPU {core}: {e}"))
}

/// Shortest sleep that an idle worker makes. If an idle worker may sleep for less time, the worker
/// polls instead, because the kernel's shortest sleep takes longer.
const NAP_LEAST: Nanos = Nanos::from_micros(100);

struct Runner {
    worker: Worker<Tsc>,
    mailbox: Mailbox,
    backoff: Nanos,
    /// Number of empty turns before the thread may sleep, if the configuration permits sleeping.
    patience: u32,
    served: u32,
    idle: u32,
    /// Whether the control plane has paused all workers (hold), so that this worker receives no
    /// frames from its ports.
    held: bool,
}

impl Runner {
    fn run(mut self) {
        loop {
            if self.mailbox.posted.load(Ordering::Relaxed) != self.served && self.serve_all() {
                return;
            }
            if self.held {
                if self.worker.held_turn() == Turn::Idle {
                    // Another worker, for which control waits, may need this core.
                    std::thread::yield_now();
                }
                continue;
            }
            match self.worker.turn() {
                Turn::Busy(_) => self.idle = 0,
                Turn::Idle => self.rest(),
            }
        }
    }

    /// Answers the requests that wait in the mailbox. The number of requests per call is limited to
    /// the capacity of the mailbox. The limit per call ensures that an endless series of requests
    /// does not stop the forwarding of frames. Returns true if the thread must stop.
    #[cold]
    fn serve_all(&mut self) -> bool {
        self.mailbox.posted.load(Ordering::Acquire);
        for _ in 0..MAILBOX {
            let Ok(envelope) = self.mailbox.requests.try_recv() else { break };
            self.served = self.served.wrapping_add(1);
            let stop = matches!(envelope.request, Request::Stop);
            if let Request::Hold(held) = envelope.request {
                self.held = held;
            }
            stall::leave();
            let reply = self.worker.serve(envelope.request);
            stall::leave();
            // If the client has given up, the reply is dropped here.
            let _: Result<(), crossbeam_channel::SendError<Reply>> = envelope.reply.send(reply);
            if stop {
                return true;
            }
        }
        false
    }

    /// Waits after an empty turn: the thread first spins, then pauses, then sleeps if the
    /// configuration permits sleeping.
    fn rest(&mut self) {
        self.idle = self.idle.saturating_add(1);
        if self.idle < SPIN_TURNS.min(self.patience) {
            core::hint::spin_loop();
            return;
        }
        if self.idle < self.patience || self.backoff == Nanos::ZERO {
            (0..PAUSES).for_each(|_| core::hint::spin_loop());
        } else {
            // A sleep must end before the next waiting frame is due.
            let nap = self.worker.may_sleep(self.backoff);
            if nap < self.backoff.min(NAP_LEAST) {
                core::hint::spin_loop();
                self.worker.rested();
                return;
            }
            self.worker.count_sleep();
            // The port polled last is not the cause of this sleep.
            stall::leave();
            let request = TimeSpec::from_duration(core::time::Duration::from_nanos(nap.0));
            let _ =
                clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &request);
            stall::rested();
        }
        self.worker.rested();
    }
}

impl Worker<Tsc> {
    fn count_sleep(&self) {
        self.ctx.counters().sleeps.add(1);
    }
}
