//! Runs 10,000 vhost-user sessions, each from its own seed. The drivers shorten and replace their
//! memory files, and punch holes into them, at any point of a session. If a run fails, the test
//! prints the command that repeats the run.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use penstock_dataplane::port::peer_memory::{guarded_mappings, mapped_bytes, pages_replaced};
use penstock_fuzz::bounded::Rng;
use penstock_fuzz::vhost_session;

const RUNS: u64 = 10_000;
const VARIABLE: &str = "PENSTOCK_FAULT_SEED";

/// Returns the random input of the run with number `seed`.
fn script(seed: u64) -> Vec<u8> {
    // Seeds are far apart, because neighbouring seeds of a xorshift generator give similar first
    // numbers.
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

/// Counts the open descriptors and the memory mappings of this process.
fn left() -> (usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (open, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

/// The test must run alone in its process, because it counts the descriptors and mappings of the
/// whole process.
#[test]
fn a_driver_that_takes_its_memory_away_leaves_nothing_behind() {
    if let Ok(seed) = std::env::var(VARIABLE) {
        run(seed.parse().unwrap());
        return;
    }
    // After a few runs, all lazily created objects of the process exist.
    (0..10).for_each(run);
    let (open, mapped) = left();
    (10..RUNS).for_each(run);
    let (open_after, mapped_after) = left();
    assert_eq!(open_after, open, "descriptors");
    assert_eq!((mapped_bytes(), guarded_mappings()), (0, 0), "mappings of drivers");
    // The number of the allocator's own mappings varies.
    assert!(mapped_after < mapped + 50, "{mapped} mappings became {mapped_after}");
    assert!(pages_replaced() > 1_000, "faults replaced too few pages");
}
