//! When a driver kicks, another thread rings the bell of the queue pair, and the worker wakes the
//! queue pair. A timer finds the port that made a worker sleep.

mod doorbell;
mod interrupter;
pub(crate) mod stall;

pub use doorbell::Doorbell;
pub(crate) use interrupter::{Interrupter, SIGNAL, install};
pub use stall::Cause;
