//! Benchmarks: our load on our switch and on others, side by side.
//!
//! **Problem.** A number for one switch on one machine in one minute says little: the machine's
//! mood moves it by more than most changes do. **Rule.** Every claim is a ratio within one run: the
//! same generator, sockets, rings and load, switches taking turns (A B A B), medians with their
//! spread, and beside them what would make them wrong: waits for a core, a generator at its limit,
//! frames that were lost. **Source.** RFC 2544 and the notes behind
//! `docs/internals/measurements.md`.
//!
//! | Module | What it is |
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

/// Runs a benchmark to its end and prints what it found.
///
/// Returns 0, or 1 if a bar does not hold.
///
/// # Errors
/// With a context that names the object at fault. What was made is taken down by the caller's
/// [`Guard::finish`].
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
