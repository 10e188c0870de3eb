//! Drivers that shorten, punch and replace their memory between a session's messages, in the middle
//! of them and under running rings: 10,000 sequences, each from its own seed. A run that fails is
//! named with the command that repeats it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use penstock_dataplane::port::peer_memory::{guarded_mappings, mapped_bytes, pages_replaced};
use penstock_fuzz::bounded::Rng;
use penstock_fuzz::vhost_session;

const RUNS: u64 = 10_000;
const VARIABLE: &str = "PENSTOCK_FAULT_SEED";

/// What a driver does in run `seed`.
fn script(seed: u64) -> Vec<u8> {
    // Far from each other, as a xorshift's first numbers resemble those of the next seed.
    let mut rng = Rng::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let len = 30 + rng.below(100);
    (0..len).map(|_| rng.byte()).collect()
}

fn run(seed: u64) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| vhost_session::run(&script(seed)))) {
        let test = "cargo test -p penstock-fuzz --test session_faults";
        eprintln!("run {seed} fails; repeat it alone: {VARIABLE}={seed} {test}");
        resume_unwind(panic);
    }
}

/// Descriptors and mappings of this process; `None` of a directory that cannot be read.
fn left() -> (usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (open, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

/// Alone in its process: what is counted is everybody's.
#[test]
fn a_driver_that_takes_its_memory_away_leaves_nothing_behind() {
    if let Ok(seed) = std::env::var(VARIABLE) {
        run(seed.parse().unwrap());
        return;
    }
    // What the process needs once is there after a few runs.
    (0..10).for_each(run);
    let (open, mapped) = left();
    (10..RUNS).for_each(run);
    let (open_after, mapped_after) = left();
    assert_eq!(open_after, open, "descriptors");
    assert_eq!((mapped_bytes(), guarded_mappings()), (0, 0), "mappings of drivers");
    // The allocator's own come and go.
    assert!(mapped_after < mapped + 50, "{mapped} mappings became {mapped_after}");
    assert!(pages_replaced() > 1_000, "the faults were not felt");
}
