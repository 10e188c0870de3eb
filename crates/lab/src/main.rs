//! `penstock-lab`: experiments and benchmarks of Penstock. Live measurements use a `penstock` in a
//! process of its own. The lab finds this program by `PENSTOCK_BIN`, in its own directory, or in
//! `PATH`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_lab::cli::main()
}
