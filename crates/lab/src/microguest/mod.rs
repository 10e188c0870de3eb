//! Micro-guests: virtual processors that do nothing but what is measured.
//!
//! **Problem.** What a scheduler does to a vCPU is seen from inside the guest only, and a guest
//! with an operating system has timers, idle loops and drivers of its own in between; under nested
//! virtualisation its kernel may not run at all. **Rule.** A guest of one page of memory and some
//! forty instructions in ring 3 of long mode (CPL 3, IOPL 3, no interrupts), which needs no
//! emulation: it counts, notes by its time stamp counter when it sees an event in its memory, and
//! sends a stream of packets by itself. No exit lies between an event and its answer. Its thread is
//! one in `KVM_RUN`, named as QEMU names them: what schedules QEMU's vCPUs schedules it as well.
//!
//! | Module | What it is |
//! |---|---|
//! | [`board`] | the guest's memory, and what each side reads and writes there |
//! | `program` | what the guest computes |
//! | `machine` | the virtual processor |
//!
//! A guest is a process of its own, `penstock-lab microguest` ([`MicroguestArgs`]). It ends after
//! the time it is given, when its standard input ends (its starter died), or when it is told to.

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

/// Name of the thread that is the virtual processor, as QEMU has it.
pub const VCPU_THREAD: &str = "CPU 0/KVM";
/// What a guest's process says on standard output when the guest is about to run.
pub const RUNNING: &str = "running";
/// Between two looks at whether the guest has ended.
const LOOK: Duration = Duration::from_millis(50);

/// `penstock-lab microguest`.
#[derive(Debug, Clone, clap::Args)]
pub struct MicroguestArgs {
    /// Its name, by which its process is found
    #[arg(long)]
    name: String,
    /// Core of its virtual processor
    #[arg(long)]
    core: u32,
    /// Its memory, as its starter names it
    #[arg(long, value_name = "PATH")]
    memory: PathBuf,
    /// It ends after so many seconds at the latest
    #[arg(long, value_name = "SECS", value_parser = crate::bench::seconds)]
    secs: f64,
}

impl MicroguestArgs {
    /// Runs the guest to its end.
    ///
    /// # Errors
    /// There is no KVM, or it refuses something.
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
            // Nothing is ever written there: there is something when the other end is closed.
            if clock::wait_readable(Some(stdin.as_fd()), LOOK) {
                return Ok(());
            }
        }
        if !guest.is_finished() {
            // The end of the process ends a thread that is in the guest.
            return Ok(());
        }
        guest.join().unwrap_or_else(|_| anyhow::bail!("the guest's thread panicked"))
    }
}

/// Whether micro-guests can run here.
///
/// # Errors
/// What is missing, and how to get it.
pub fn is_available() -> anyhow::Result<()> {
    machine::is_available()
}

/// Starts a guest in a thread of this process, on `core` if one is named. It ends by
/// [`Board::stop`], or with the process.
///
/// # Errors
/// There is no KVM, or it refuses something.
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
        // Its sleeps end when they should; who may not say so has them 50 us late.
        let _ = nix::sys::prctl::set_timerslack(1);
        machine.run(&board)
    };
    thread.spawn(run).context("starting the guest's thread")
}

#[cfg(test)]
mod tests;
