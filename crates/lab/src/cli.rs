//! The `penstock lab` subcommands.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::bench::Guard;
use crate::figures::plot::PlotArgs;
use crate::figures::report::ReportArgs;
use crate::figures::{self, Mode, RunArgs};
use crate::microguest::MicroguestArgs;
use penstock_guest::endpoint::{EndpointArgs, EndpointReport};
use penstock_guest::load::{IntervalReport, LoadArgs};

/// A subcommand of `penstock lab`.
#[derive(Debug, Clone, clap::Subcommand)]
#[non_exhaustive]
pub enum LabCommand {
    /// Give network namespaces a NIC on a vhost-user port, kernel stack included
    Endpoint(EndpointArgs),
    /// Drive VMs on vhost-user ports: rates, sizes, flows, verification
    Load(LoadArgs),
    /// List the lab's experiments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replay published figures, simulated or live, and say which claims hold
    ///
    /// Exit status 1: a claim does not hold; 2: a run failed.
    Run(Box<RunArgs>),
    /// Make one HTML page of the results of `run --out`
    Report(ReportArgs),
    /// Draw runs of `load --json` over time, and compare them
    Plot(PlotArgs),
    /// Run a virtual processor in ring 3, for whoever measures it
    #[command(hide = true)]
    Microguest(MicroguestArgs),
}

impl LabCommand {
    /// Whether it makes things that a [`Guard`] has to take down.
    #[must_use]
    pub fn needs_guard(&self) -> bool {
        matches!(self, Self::Run(args) if args.mode == Mode::Live)
    }
}

/// Runs a subcommand to its end; `guard` for those that need one.
///
/// # Errors
/// With a context that names the object at fault.
pub fn run(cmd: LabCommand, guard: Option<&Guard>) -> anyhow::Result<ExitCode> {
    match cmd {
        LabCommand::Endpoint(args) => endpoint(&args),
        LabCommand::Load(args) => load(&args),
        LabCommand::List { json } => {
            print!("{}", figures::run::list(json)?);
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Run(args) => figures::run::run(&args, guard),
        LabCommand::Report(args) => {
            println!("{}", figures::report::run(&args)?.display());
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Plot(args) => {
            print!("{}", figures::plot::run(&args)?);
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Microguest(args) => args.run().map(|()| ExitCode::SUCCESS),
    }
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

fn endpoint(args: &EndpointArgs) -> anyhow::Result<ExitCode> {
    let show = |report: &EndpointReport| {
        if let Ok(line) = serde_json::to_string(report) {
            println!("{line}");
        }
    };
    args.spec().run(show)?;
    Ok(ExitCode::SUCCESS)
}
