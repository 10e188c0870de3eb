//! `penstock-lab`: experiments and benchmarks of Penstock. Live measurements use a `penstock` in a
//! process of its own. It is found by `PENSTOCK_BIN`, in the directory of this program, or in
//! `PATH`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_lab::cli::main()
}
