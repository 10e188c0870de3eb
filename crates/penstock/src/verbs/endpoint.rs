//! `penstock endpoint` serves namespaces behind vhost-user ports.

use std::process::ExitCode;

use anyhow::Result;
use penstock_guest::endpoint::{EndpointArgs, EndpointReport};

/// Serves the NICs until a signal arrives or their time is over. Reports are lines of JSON.
///
/// # Errors
/// A NIC failed. The context of the error names it.
pub fn run(args: &EndpointArgs) -> Result<ExitCode> {
    let show = |report: &EndpointReport| {
        if let Ok(line) = serde_json::to_string(report) {
            println!("{line}");
        }
    };
    args.spec().run(show)?;
    Ok(ExitCode::SUCCESS)
}
