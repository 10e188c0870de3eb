//! Tests the credit accounts of the BPF program (`src/bpf/credit.h`), compiled for this machine
//! instead of the kernel. In the test program `tests/host/credit.c`, three simulated processors
//! steal threads from each other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

#[test]
fn threads_that_move_between_processors_keep_their_accounts() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("credit");
    // The linker of Rust programs can also compile C programs.
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-I"]).arg(here.join("tests/host")).arg("-I").arg(here.join("src/bpf"));
    let built = cc.arg(here.join("tests/host/credit.c")).arg("-o").arg(&program).status().unwrap();
    assert!(built.success(), "cc: {built}");
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}
