//! Benchmarks that compare our switch with others under our load.
//!
//! # Problem
//!
//! A number for one switch on one machine in one minute says little. The machine's state changes
//! the number by more than most code changes do.
//!
//! # Approach
//!
//! Every claim is a ratio within one run: the same generator, sockets, rings and load, and switches
//! that take turns (A B A B). The report has medians with their spread. It also has the conditions
//! that would make the medians wrong: waits for a core, a generator at its limit, and lost frames.
//!
//! # Source
//!
//! RFC 2544, and the notes behind `docs/internals/measurements.md`.
//!
//! | Module | Content |
//! |---|---|
//! | `v2v`, `tcp`, `rr`, `loss` | the benchmarks |
//! | `live_pair` | two VMs and the stages' cycles, for figures |
//! | `mlr` | the search for the rates of `loss` |
//! | `report` | rows, ratios and bars; JSON and text |

mod args;
pub(crate) mod live_pair;
mod loss;
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
pub use args::{Benchmark, LossArgs, OnOff, OutputArgs, Peer, RrArgs, Sizes, TcpArgs, V2vArgs};
pub use report::{Ratio, Report, Row};

/// Runs a benchmark to its end and prints its results.
///
/// Returns 0, or 1 if a bar does not hold.
///
/// # Errors
///
/// The context of an error names the object at fault. The caller's [`Guard::finish`] removes
/// everything that the benchmark created.
pub fn run(benchmark: &Benchmark, guard: &Guard) -> anyhow::Result<ExitCode> {
    let (report, output) = match benchmark {
        Benchmark::V2v(args) => (v2v::run(args, guard)?, &args.output),
        Benchmark::Tcp(args) => (tcp::run(args, guard)?, &args.output),
        Benchmark::Rr(args) => (rr::run(args, guard)?, &args.output),
        Benchmark::Loss(args) => (loss::run(args, guard)?, &args.output),
    };
    print(&report, output)?;
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report, output: &OutputArgs) -> anyhow::Result<()> {
    let Some(file) = &output.json else {
        println!("{report}");
        return Ok(());
    };
    let json = serde_json::to_string_pretty(report).context("writing the report")?;
    if file.as_os_str() == "-" {
        println!("{json}");
        return Ok(());
    }
    std::fs::write(file, json + "\n").with_context(|| format!("writing {}", file.display()))
}
