//! Micro-guests: virtual processors that do only the measured work.
//!
//! # Problem
//!
//! Only the inside of a guest shows the effect of a scheduler on a vCPU. A guest with an operating
//! system adds timers, idle loops and drivers of its own. Under nested virtualization its kernel
//! may not run at all.
//!
//! # Approach
//!
//! A guest has one page of memory and some forty instructions in ring 3 of long mode (CPL 3, IOPL
//! 3, no interrupts). It needs no emulation. It counts, notes by its time stamp counter when it
//! sees an event in its memory, and sends a stream of packets by itself. No exit lies between an
//! event and its answer. The guest's thread is in `KVM_RUN`, and has the name that QEMU gives such
//! threads. So a scheduler of QEMU's vCPUs also schedules this thread.
//!
//! | Module | Content |
//! |---|---|
//! | [`board`] | the guest's memory, and what each side reads and writes there |
//! | `program` | what the guest computes |
//! | `machine` | the virtual processor |
//!
//! A guest is a process of its own, `penstock-lab microguest` ([`MicroguestArgs`]). It ends after
//! the given time, when its standard input ends (the process that started it died), or when it is
//! stopped.

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

/// Name of the thread that is the virtual processor, as in QEMU.
pub const VCPU_THREAD: &str = "CPU 0/KVM";
/// Text that a guest's process prints on standard output when the guest is about to run.
pub const RUNNING: &str = "running";
/// Interval between checks whether the guest has ended.
const LOOK: Duration = Duration::from_millis(50);

/// `penstock-lab microguest`.
#[derive(Debug, Clone, clap::Args)]
pub struct MicroguestArgs {
    /// Name of the guest, by which its process is found
    #[arg(long)]
    name: String,
    /// Core of its virtual processor
    #[arg(long)]
    core: u32,
    /// Path of its memory, given by the process that starts it
    #[arg(long, value_name = "PATH")]
    memory: PathBuf,
    /// Longest run time of the guest in seconds
    #[arg(long, value_name = "SECS", value_parser = crate::bench::seconds)]
    secs: f64,
}

impl MicroguestArgs {
    /// Runs the guest to its end.
    ///
    /// # Errors
    ///
    /// Fails if there is no KVM, or if KVM refuses something.
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
            // Nothing is ever written to standard input. It becomes readable when the other end is
            // closed.
            if clock::wait_readable(Some(stdin.as_fd()), LOOK) {
                return Ok(());
            }
        }
        if !guest.is_finished() {
            // When the process ends, so does a thread that is in the guest.
            return Ok(());
        }
        guest.join().unwrap_or_else(|_| anyhow::bail!("the guest's thread panicked"))
    }
}

/// Checks whether micro-guests can run here.
///
/// # Errors
///
/// Says what is missing, and how to get it.
pub fn is_available() -> anyhow::Result<()> {
    machine::is_available()
}

/// Starts a guest in a thread of this process, on `core` if one is given. It ends by
/// [`Board::stop`], or with the process.
///
/// # Errors
///
/// Fails if there is no KVM, or if KVM refuses something.
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
        // Makes the guest's sleeps end on time. Without this permission they are 50 us late.
        let _ = nix::sys::prctl::set_timerslack(1);
        machine.run(&board)
    };
    thread.spawn(run).context("starting the guest's thread")
}

#[cfg(test)]
mod tests;
