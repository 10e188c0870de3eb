//! Atomics of the structures that threads share without a lock. These structures import their
//! atomics from this module. `tests/loom.rs` compiles the same sources against the types of `loom`,
//! which explore every order of events that the memory model allows.

pub(crate) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
