//! The `penstock lab` subcommands.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::endpoint::{EndpointArgs, EndpointReport};
use crate::load::{IntervalReport, LoadArgs};

/// A subcommand of `penstock lab`.
#[derive(Debug, Clone, clap::Subcommand)]
#[non_exhaustive]
pub enum LabCommand {
    /// Give network namespaces a NIC on a vhost-user port, kernel stack included
    Endpoint(EndpointArgs),
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
        LabCommand::Endpoint(args) => endpoint(&args),
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

fn endpoint(args: &EndpointArgs) -> anyhow::Result<ExitCode> {
    let show = |report: &EndpointReport| {
        if let Ok(line) = serde_json::to_string(report) {
            println!("{line}");
        }
    };
    args.spec().run(show)?;
    Ok(ExitCode::SUCCESS)
}
