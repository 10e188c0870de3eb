//! Micro-guests: virtual processors that do only the measured work.
//!
//! # Problem
//!
//! The effect of a scheduler on a vCPU is visible only inside a guest. If the guest has an
//! operating system, its timers, idle loops and drivers also affect a measurement. Under nested
//! virtualization, the kernel of a guest may not run at all.
//!
//! # Approach
//!
//! A guest has one page of memory and about forty instructions in ring 3 of long mode (CPL 3, IOPL
//! 3, no interrupts). A micro-guest needs no emulation of devices. The guest counts rounds of its
//! loop. When the guest sees an event in its memory, it records its time stamp counter. The guest
//! can also send a stream of packets. An event and the guest's answer cause no VM exit. The guest's
//! thread runs in `KVM_RUN` and has the thread name that QEMU uses. Because of the thread's name, a
//! scheduler for QEMU's vCPUs also schedules the thread of a micro-guest.
//!
//! | Module | Content |
//! |---|---|
//! | [`board`] | the guest's memory |
//! | `program` | the guest's program |
//! | `machine` | the virtual processor |
//!
//! Each micro-guest is a process, `penstock-lab microguest` ([`MicroguestArgs`]). The process of a
//! guest ends after a given time, or when [`Board::stop`] is called. The process also ends when its
//! standard input closes, because its parent process has died.

pub mod board;
mod machine;
mod program;

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

pub use board::{Board, Stream};
use machine::Machine;

use penstock_guest::clock;

/// Name of the thread that runs the guest's virtual processor, as in QEMU.
pub const VCPU_THREAD: &str = "CPU 0/KVM";
/// Line that a guest's process prints on standard output when the guest starts.
pub const RUNNING: &str = "running";
/// Longest time between two checks whether the guest has ended.
const LOOK: Duration = Duration::from_millis(50);

/// `penstock-lab microguest`.
#[derive(Debug, Clone, clap::Args)]
pub struct MicroguestArgs {
    /// Name of the guest. Schedulers find the guest's process by its name
    #[arg(long)]
    name: String,
    /// Core of the guest's virtual processor
    #[arg(long)]
    core: u32,
    /// Path of the guest's memory, from the process that starts the guest
    #[arg(long, value_name = "PATH")]
    memory: PathBuf,
    /// Longest run time of the guest in seconds
    #[arg(long, value_name = "SECS", value_parser = crate::bench::seconds)]
    secs: f64,
}

impl MicroguestArgs {
    /// Runs the micro-guest until it ends.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no KVM, or if KVM refuses a request.
    pub fn run(&self) -> anyhow::Result<()> {
        let board = Arc::new(Board::open(&self.memory)?);
        let guest = start(&board, Some(self.core));
        let guest = guest.with_context(|| format!("micro-guest {}", self.name))?;
        println!("{RUNNING}");
        std::io::stdout().flush().context("saying that the guest runs")?;
        let begin = clock::now();
        let limit = Duration::from_secs_f64(self.secs);
        let stdin = std::io::stdin();
        while begin.elapsed() < limit && !guest.is_finished() {
            // Nobody writes to standard input. It becomes readable when its other end is closed.
            if clock::wait_readable(Some(stdin.as_fd()), LOOK) {
                return Ok(());
            }
        }
        if !guest.is_finished() {
            // The end of the process also ends the guest's thread.
            return Ok(());
        }
        guest.join().unwrap_or_else(|_| anyhow::bail!("the guest's thread panicked"))
    }
}

/// Checks whether micro-guests can run on this machine.
///
/// # Errors
///
/// Returns an error with the missing feature and the remedy if micro-guests cannot run.
pub fn is_available() -> anyhow::Result<()> {
    machine::is_available()
}

/// Starts a micro-guest in a thread of this process, on `core` if a core is given. [`Board::stop`]
/// or the end of the process ends the guest.
///
/// # Errors
///
/// Returns an error if there is no KVM, or if KVM refuses a request.
pub fn start(
    board: &Arc<Board>,
    core: Option<u32>,
) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
    let machine = Machine::new(board)?;
    let board = Arc::clone(board);
    let thread = std::thread::Builder::new().name(VCPU_THREAD.to_owned());
    let run = move || {
        if let Some(core) = core {
            let mut cpus = CpuSet::new();
            cpus.set(usize::try_from(core)?)
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus))
                .with_context(|| format!("pinning the guest to core {core}"))?;
        }
        // Makes the guest's sleeps end on time. With the default timer slack, they end 50 us late.
        let _ = nix::sys::prctl::set_timerslack(1);
        machine.run(&board)
    };
    thread.spawn(run).context("starting the guest's thread")
}

#[cfg(test)]
mod tests;
