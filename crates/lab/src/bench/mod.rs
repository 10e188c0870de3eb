//! Benchmarks that compare Penstock with other switches under the same load.
//!
//! # Problem
//!
//! A single measurement of one switch says little, because the machine's state changes the result
//! more than most code changes.
//!
//! # Approach
//!
//! The result of a benchmark is the ratio of two switches' values, measured in the same run. The
//! two switches take turns (A B A B) and get the same generator, sockets, rings and load. A *bar*
//! is the value that a ratio must reach or must not exceed.
//!
//! The report of a benchmark has medians and their spread. The report also has values that reveal a
//! disturbed measurement: waits for a core, a generator at its limit, and lost frames.
//!
//! # Source
//!
//! The methods of the benchmarks follow RFC 2544. Results of the benchmarks are in
//! `docs/internals/measurements.md`.
//!
//! | Module | Content |
//! |---|---|
//! | `v2v`, `mesh`, `tcp`, `rr`, `loss` | the benchmarks |
//! | `live_pair` | two VMs and the stages' cycles, for figures |
//! | `mlr` | the search for the rates of `loss` |
//! | `report` | results as JSON and text: rows, ratios and bars |

mod args;
pub(crate) mod live_pair;
mod loss;
mod mesh;
mod mlr;
mod report;
mod rr;
mod tcp;
mod v2v;

use std::process::ExitCode;

use anyhow::Context as _;
use penstock_guest::bed::Guard;

pub use crate::rig::switch::Case;
pub use crate::rig::through::Through;
pub(crate) use args::seconds;
pub use args::{
    Benchmark, LossArgs, MeshArgs, OnOff, OutputArgs, Peer, RrArgs, Sizes, TcpArgs, V2vArgs,
};
pub use report::{Ratio, Report, Row};

/// Runs a benchmark and prints its results.
///
/// Returns exit status 1 if a ratio misses its required value, and 0 otherwise.
///
/// # Errors
///
/// Returns an error if a switch or program fails, or if the report cannot be written. The caller's
/// [`Guard::finish`] removes everything that the benchmark created.
pub fn run(benchmark: &Benchmark, guard: &Guard) -> anyhow::Result<ExitCode> {
    let (report, output) = match benchmark {
        Benchmark::V2v(args) => (v2v::run(args, guard)?, &args.output),
        Benchmark::Mesh(args) => (mesh::run(args, guard)?, &args.output),
        Benchmark::Tcp(args) => (tcp::run(args, guard)?, &args.output),
        Benchmark::Rr(args) => (rr::run(args, guard)?, &args.output),
        Benchmark::Loss(args) => (loss::run(args, guard)?, &args.output),
    };
    print(&report, output)?;
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report, output: &OutputArgs) -> anyhow::Result<()> {
    let Some(file) = &output.json else {
        match report.bench {
            mesh::NAME => println!("{}", mesh::Table(report)),
            _ => println!("{report}"),
        }
        return Ok(());
    };
    let json = serde_json::to_string_pretty(report).context("writing the report")?;
    if file.as_os_str() == "-" {
        println!("{json}");
        return Ok(());
    }
    std::fs::write(file, json + "\n").with_context(|| format!("writing {}", file.display()))
}
