//! `penstock endpoint` serves namespaces behind vhost-user ports.

use std::process::ExitCode;

use anyhow::Result;
use penstock_guest::endpoint::{EndpointArgs, EndpointReport};

/// Serves the NICs of network namespaces until a signal arrives, or until the requested duration
/// has passed. Prints reports as lines of JSON.
///
/// # Errors
/// Returns an error that names the NIC if a NIC failed.
pub fn run(args: &EndpointArgs) -> Result<ExitCode> {
    let show = |report: &EndpointReport| {
        if let Ok(line) = serde_json::to_string(report) {
            println!("{line}");
        }
    };
    args.spec().run(show)?;
    Ok(ExitCode::SUCCESS)
}
