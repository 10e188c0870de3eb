//! `penstock-lab`: experiments and benchmarks of Penstock. Live measurements start the `penstock`
//! program as a separate process. The environment variable `PENSTOCK_BIN` has the path of
//! `penstock`. If `PENSTOCK_BIN` is not set, the lab searches its own directory and then `PATH`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_lab::cli::main()
}
