//! `penstock-lab`: experiments and benchmarks of Penstock. What it measures live is a `penstock`
//! of its own process, found by `PENSTOCK_BIN`, beside this program, or in `PATH`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_lab::cli::main()
}
