//! Structures that threads share without a lock import their atomics from this module.
//! `tests/loom.rs` compiles the structures' sources against the types of `loom`, which explore
//! every order of events that the memory model allows.

pub(crate) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
