//! Virtual processors on virtual time: guests that compute, send, answer and sleep, on processors
//! scheduled by `penstock_vcpu`.
//!
//! # Problem
//!
//! A VM's delay until it runs becomes visible only over minutes, when other VMs compete for the
//! processor. The measurement must be reproducible.
//!
//! # Approach
//!
//! A [`Machine`] calls the production scheduler whenever a real machine would: at wake-ups, ends of
//! slices, polls, ticks and epochs. Guests generate work ([`Guest`]). Their frames pass through the
//! driver domain, which is a guest itself. Context switches cost nothing, and caches have no state.
//! All random numbers come from one seed.

mod guest;
mod machine;

pub use guest::{Background, Frame, Guest, GuestSpec, Idle};
pub use machine::{GuestId, Machine, Sent, Waits};
