//! When a driver kicks, another thread rings the bell of the queue pair, and the worker wakes the
//! queue pair. A timer finds the port that made a worker sleep, and a witness tells such a sleep
//! from a stop of the whole process.

mod doorbell;
mod interrupter;
pub(crate) mod stall;
mod witness;

pub use doorbell::Doorbell;
pub(crate) use interrupter::{Interrupter, SIGNAL};
pub use stall::Cause;

/// Prepares the process for ports of VMs: installs the handler of the timer's signals, and starts
/// the witness.
///
/// # Errors
/// Returns an error if the kernel refuses the handler or another thread.
pub(crate) fn prepare() -> std::io::Result<()> {
    interrupter::install()?;
    witness::start()
}
