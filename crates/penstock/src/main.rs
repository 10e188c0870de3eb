//! `penstock`: the switch daemon and its command line in one binary.
//!
//! | Module | Content |
//! |---|---|
//! | [`cli`] | grammar and help of the command line |
//! | [`pairs`] | `key=value` arguments as TOML |
//! | [`verbs`] | commands that send a request to the daemon and print the reply |
//! | [`top`] | the live view |
//! | [`mod@calibrate`] | `calibrate`: measures and writes the cost model |
//! | [`daemon`] | `host run`: API, metrics, signals, service manager around `Host` |
//! | [`fabric`] | `controller run`: sockets, agents, page around the fabric's controller |
//! | [`exposition`] | text formats of `/metrics` |
//! | [`wire`], [`client`] | gRPC service of the host, connection to a daemon |
//! | [`rates`] | converts two readings of the counters to rates |
//! | [`table`] | text tables, and numbers with units |
//!
//! Exit status: 0 success, 1 failure or a negative answer, 2 wrong usage.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a program has no public API")]

mod affinity;
mod calibrate;
mod cli;
mod client;
mod daemon;
mod exposition;
mod fabric;
mod grpc;
mod pages;
mod pairs;
mod rates;
mod table;
mod top;
mod unix_time;
mod verbs;
mod wire;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Command, DEFAULT_SOCKET, HostCommand};
use client::{Whose, at_socket_of};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            // The causes follow on the same line. A text from the daemon may have several lines.
            eprint!("penstock: {}", verbs::printable_lines(&told(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Returns an error with its causes on one line. Some errors contain the text of their cause, and
/// this function does not repeat it.
fn told(error: &anyhow::Error) -> String {
    let mut told = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    told
}

fn run(cli: Cli) -> Result<ExitCode> {
    let socket = cli.socket.as_deref();
    match cli.command {
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => man(&dir),
        Command::Vcpu(command) => verbs::vcpu::run(&command),
        Command::Endpoint(args) => verbs::endpoint::run(&args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Report(args) => verbs::report::run(&args),
        Command::SupportBundle(args) => {
            verbs::support::run(&args, socket.unwrap_or(Path::new(DEFAULT_SOCKET)))
        }
        Command::Lab(moved) => Ok(usage(&moved.text("lab"))),
        Command::Bench(moved) => Ok(usage(&moved.text("bench"))),
        Command::Guard => {
            penstock_guest::bed::guard::watch(std::io::stdin().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Controller(command) => verbs::controller::run(&command),
        Command::Host(HostCommand::Run(args)) => daemon::run(&args, socket),
        Command::Host(HostCommand::Check { config, what_if, json }) => {
            verbs::check::run(&config, what_if.as_ref(), json.json)
        }
        Command::Host(HostCommand::Schema { kind }) => verbs::host::schema(&kind),
        Command::Host(HostCommand::Helper { log_format }) => daemon::help(log_format),
        command => {
            let socket = socket.unwrap_or(Path::new(DEFAULT_SOCKET));
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("runtime cannot start")?;
            runtime.block_on(at_socket_of(Whose::Host, socket, ask(socket, command)))
        }
    }
}

/// Runs a command that sends a request to the daemon.
async fn ask(socket: &Path, command: Command) -> Result<ExitCode> {
    match command {
        Command::Host(HostCommand::Show(json)) => verbs::host::show(socket, json.json).await,
        Command::Host(HostCommand::Config { migrate: None }) => verbs::host::config(socket).await,
        Command::Host(HostCommand::Config { migrate: Some(file) }) => verbs::host::migrate(&file),
        Command::Host(HostCommand::Reload(json)) => verbs::host::reload(socket, json.json).await,
        Command::Port(command) => verbs::port::run(socket, command).await,
        Command::Tenant(command) => verbs::tenant::run(socket, command).await,
        Command::Flow(command) => verbs::flow::run(socket, command).await,
        Command::Fdb(command) => verbs::fdb::run(socket, command).await,
        Command::Stats(args) => verbs::stats::run(socket, args).await,
        Command::Top(args) => top::run(socket, args).await,
        Command::Explain(args) => verbs::explain::run(socket, args).await,
        Command::Capture(args) => verbs::capture::run(socket, &args).await,
        Command::Host(_)
        | Command::Endpoint(_)
        | Command::Calibrate(_)
        | Command::Report(_)
        | Command::SupportBundle(_)
        | Command::Lab(_)
        | Command::Bench(_)
        | Command::Guard
        | Command::Controller(_)
        | Command::Vcpu(_)
        | Command::Completions { .. }
        | Command::Man { .. } => {
            unreachable!("handled without a daemon")
        }
    }
}

fn usage(wrong: &str) -> ExitCode {
    eprintln!("penstock: {wrong}");
    ExitCode::from(2)
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "penstock", &mut script);
    verbs::print(&String::from_utf8(script).context("completions")?)?;
    Ok(ExitCode::SUCCESS)
}

fn man(dir: &Path) -> Result<ExitCode> {
    penstock_guest::manual::write(Cli::command(), dir)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = || anyhow::Error::new(std::io::Error::other("no room"));
        assert_eq!(told(&cause().context("file a")), "file a: no room");
        let repeats = cause().context("file a: no room; free disk space");
        assert_eq!(told(&repeats), "file a: no room; free disk space");
    }
}
