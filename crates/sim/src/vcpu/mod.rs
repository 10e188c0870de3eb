//! Virtual processors on virtual time: guests that compute, send, answer and sleep, on processors
//! that `penstock_vcpu` schedules.
//!
//! **Problem.** How soon a VM runs shows only beside neighbours, over minutes, and must replay.
//! **Rule.** A [`Machine`] asks the production scheduler whenever a real one would be asked: at
//! wake-ups, at the end of slices, at polls, ticks and epochs. Guests are generators of work
//! ([`Guest`]); what they send goes through the driver domain, which is a guest itself. Switching
//! between vCPUs costs nothing, caches have no state. Everything random comes from one seed.

mod guest;
mod machine;

pub use guest::{Background, Frame, Guest, GuestSpec, Idle};
pub use machine::{GuestId, Machine, Sent, Waits};
