//! `penstock endpoint`: namespaces behind vhost-user ports.

use std::process::ExitCode;

use anyhow::Result;
use penstock_guest::endpoint::{EndpointArgs, EndpointReport};

/// Serves the NICs until a signal or their time ends it; reports are lines of JSON.
///
/// # Errors
/// With a context that names the NIC at fault.
pub fn run(args: &EndpointArgs) -> Result<ExitCode> {
    let show = |report: &EndpointReport| {
        if let Ok(line) = serde_json::to_string(report) {
            println!("{line}");
        }
    };
    args.spec().run(show)?;
    Ok(ExitCode::SUCCESS)
}
