//! Simulated vCPUs in virtual time. The crate `penstock_vcpu` schedules guests that compute, send,
//! answer and sleep.
//!
//! # Problem
//!
//! Scheduling delays of a VM appear only in long runs with competing VMs. A measurement of
//! scheduling delays must be reproducible.
//!
//! # Approach
//!
//! A [`Machine`] calls the production scheduler at the same events as a real machine: wake-ups,
//! ends of slices, polls, ticks and epochs. Guests generate work ([`Guest`]). If there is a driver
//! domain, which is also a guest, the driver domain forwards all frames. Context switches take no
//! time, and caches are not simulated. All random numbers of a machine come from one seed.

mod guest;
mod machine;

pub use guest::{Background, Frame, Guest, GuestSpec, Idle};
pub use machine::{GuestId, Machine, Sent, Waits};
