//! The `penstock lab` subcommands.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::load::{IntervalReport, LoadArgs};

/// A subcommand of `penstock lab`.
#[derive(Debug, Clone, clap::Subcommand)]
#[non_exhaustive]
pub enum LabCommand {
    /// Drive VMs on vhost-user ports: rates, sizes, flows, verification
    Load(LoadArgs),
    /// List the lab's experiments
    List,
}

/// Runs a subcommand to its end.
///
/// # Errors
/// With a context that names the object at fault.
pub fn run(cmd: LabCommand) -> anyhow::Result<ExitCode> {
    match cmd {
        LabCommand::Load(args) => load(&args),
        LabCommand::List => {
            println!("no experiments yet; `load` and `endpoint` are here");
            Ok(ExitCode::SUCCESS)
        }
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
