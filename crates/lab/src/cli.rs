//! The command line of `penstock-lab`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;

use crate::bench::{self, Benchmark};
use crate::evidence::Mode;
use crate::figures::plot::PlotArgs;
use crate::figures::report::ReportArgs;
use crate::figures::{self, RunArgs};
use crate::microguest::MicroguestArgs;
use penstock_guest::bed::guard::{self, Guard};
use penstock_guest::load::{IntervalReport, LoadArgs};
use penstock_guest::manual;

/// Exit status of a run that failed. Status 1 means that a claim does not hold, or that a benchmark
/// missed a required result.
const FAILED: u8 = 2;

/// Experiments and benchmarks of Penstock: replay published figures, compare switches.
#[derive(Debug, clap::Parser)]
#[command(name = "penstock-lab", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum LabCommand {
    /// List the experiments
    List {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Replay published figures, simulated or live, and report which claims hold
    ///
    /// Exit status: 0 if all claims hold, 1 if a claim does not hold, 2 if a run failed.
    Run(Box<RunArgs>),
    /// Write an HTML page from the results of `run --out`
    Report(ReportArgs),
    /// Draw runs of `load --json` over time and compare them
    Plot(PlotArgs),
    /// Benchmark Penstock, alone or against another switch
    #[command(subcommand)]
    Bench(Benchmark),
    /// Send and receive frames as VMs on vhost-user ports
    Load(LoadArgs),
    /// Write manual pages of all commands to a directory
    Man {
        /// Directory for the pages, which must exist
        dir: PathBuf,
    },
    /// Run a vCPU in ring 3, for measurements
    #[command(hide = true)]
    Microguest(MicroguestArgs),
    /// Remove everything that a run created, when the pipe on standard input closes
    #[command(name = guard::VERB, hide = true)]
    Guard,
}

/// Runs `penstock-lab` with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("penstock-lab: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::List { json } => {
            print!("{}", figures::run::list(json)?);
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Man { dir } => {
            manual::write(<Cli as clap::CommandFactory>::command(), &dir)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Run(args) if args.mode == Mode::Live => {
            under_guard("run", move |guard| figures::run::run(&args, Some(guard)))
        }
        LabCommand::Run(args) => figures::run::run(&args, None),
        LabCommand::Report(args) => {
            println!("{}", figures::report::run(&args)?.display());
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Plot(args) => {
            print!("{}", figures::plot::run(&args)?);
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Bench(benchmark) => {
            under_guard("bench", move |guard| bench::run(&benchmark, guard))
        }
        LabCommand::Load(args) => load(&args),
        LabCommand::Microguest(args) => args.run().map(|()| ExitCode::SUCCESS),
        LabCommand::Guard => {
            guard::watch(std::io::stdin().lock())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs `work` under a [`Guard`], which removes everything that a live run creates. If `work`
/// fails, the function prints the error and returns exit status 2.
fn under_guard(
    name: &'static str,
    work: impl FnOnce(&Guard) -> anyhow::Result<ExitCode> + Send + 'static,
) -> anyhow::Result<ExitCode> {
    Ok(guard::guarded(name, work)?.unwrap_or_else(|error| {
        eprintln!("penstock-lab: {name}: {error:#}");
        ExitCode::from(FAILED)
    }))
}

fn load(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let spec = args.spec()?;
    let json = args.json;
    let show = |report: &IntervalReport| match serde_json::to_string(report) {
        Ok(line) if json => println!("{line}"),
        _ => println!("{report}"),
    };
    let report = spec.run(show)?;
    if json {
        println!("{}", serde_json::to_string(&report).context("writing the report")?);
    } else {
        println!("{report}");
    }
    let bad = report.vms.iter().any(|vm| vm.rx_bad > 0);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
        for line in [
            "penstock-lab list --json",
            "penstock-lab run all --seeds 1-20 --out results",
            "penstock-lab bench v2v --peer ovs-dpdk --sizes 64,imix --flows 1,1000 --json -",
            "penstock-lab bench mesh --ports 2,64 --workers 1,2 --sizes 64,1518 --peer ovs-dpdk",
            "penstock-lab bench mesh --uplink --ports 1,4,16 --no-touch",
            "penstock-lab bench tcp --peer ovs-dpdk --streams 1,4 --offloads on --secs 2",
            "penstock-lab bench rr --sizes 64,1518 --runs 3",
            "penstock-lab bench loss --soak 600 --at 80 --no-search",
            "penstock-lab guard",
        ] {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
        }
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            "penstock-lab bench v2v --sizes 63",
            "penstock-lab bench v2v --flows 0",
            "penstock-lab bench mesh --ports 0",
            "penstock-lab bench mesh --ports 1025",
            "penstock-lab bench mesh --ports 2,many",
            "penstock-lab bench mesh --workers 0",
            "penstock-lab bench loss --no-search",
            "penstock-lab bench loss --at 101",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
