//! Runs every fuzz target on its corpus and on a few thousand mutated inputs, which are equal in
//! every run. `PENSTOCK_FUZZ_RUNS=N` tests N times as many inputs, and `PENSTOCK_FUZZ_SEED=N` tests
//! other inputs.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use penstock_fuzz::{TARGETS, bounded};

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn run(name: &str, inputs: usize) {
    let target = TARGETS.into_iter().find(|(n, _)| *n == name).unwrap();
    let seed = number("PENSTOCK_FUZZ_SEED", 20_261_121) as u64;
    let ran = bounded::run(target, inputs * number("PENSTOCK_FUZZ_RUNS", 1), seed).unwrap();
    assert!(ran > inputs, "{name}: no corpus");
}

#[test]
fn split_rings() {
    run("split_ring", 4000);
}

#[test]
fn packed_rings() {
    run("packed_ring", 4000);
}

#[test]
fn headers() {
    run("headers", 20_000);
}

#[test]
fn rules() {
    run("rules", 3000);
}

#[test]
fn configurations() {
    run("config", 3000);
}

#[test]
fn agents_and_controllers() {
    run("agents", 2000);
}

#[test]
fn gnmi_answers() {
    run("gnmi", 3000);
}

#[test]
fn sonic_tables() {
    run("sonic", 3000);
}

#[test]
fn saved_files() {
    run("saved", 1000);
}

#[test]
fn api_requests() {
    run("api", 200);
}

#[test]
fn vhost_sessions() {
    run("vhost_session", 500);
}

#[test]
fn inflight_regions() {
    run("inflight", 4000);
}

#[test]
fn dirty_logs() {
    run("dirty_log", 4000);
}

#[test]
fn xdp_rings() {
    run("xdp_rings", 4000);
}
