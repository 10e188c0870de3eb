//! The primitives of what threads share without a lock, in one place: `tests/loom.rs` compiles the
//! same sources against `loom`'s, which try every order of events that the memory model allows.

pub(crate) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
