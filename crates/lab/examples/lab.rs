//! The lab's subcommands as a program of their own, until `penstock lab` is there.

use std::process::ExitCode;

use clap::Parser;
use penstock_lab::cli::{LabCommand, run};

/// The lab's subcommands.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    run(Cli::parse().command, None)
}
