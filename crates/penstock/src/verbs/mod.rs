//! The commands. Each command sends a request to the daemon, renders the reply and prints it.
//!
//! Code that renders a reply is separate from code that sends a request. Replies are converted to
//! text by separate functions, so that tests can compare the text. Errors return to `main`, which
//! prints one line and chooses the exit status.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use penstock_control::api::ChangeReport;
use serde::Serialize;

use crate::client::refused;
use crate::table::printable;

pub mod capture;
pub mod check;
pub mod controller;
pub mod delays;
pub mod endpoint;
pub mod explain;
pub mod fdb;
pub mod flow;
pub mod host;
mod planned_vcpus;
pub mod port;
pub mod queues;
pub mod report;
pub mod stats;
pub mod support;
pub mod tenant;
pub mod vcpu;
mod what_if;

/// Writes `text` to standard output. If the reader has ended (`| head`), the program ends silently.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

/// Prints a value as indented JSON.
///
/// # Errors
/// Returns an error in the same cases as [`print()`].
pub fn print_json<T: Serialize + ?Sized>(value: &T) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Prints the effect of a change of the configuration. Warnings go to standard error.
pub(crate) fn report(
    reply: Result<tonic::Response<ChangeReport>, tonic::Status>,
    json: bool,
) -> Result<ExitCode> {
    let report = reply.map_err(refused)?.into_inner();
    if json {
        print_json(&report)?;
    } else {
        print(&changes(&report))?;
        for warning in &report.warnings {
            eprintln!("penstock: warning: {}", printable(warning));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn changes(report: &ChangeReport) -> String {
    if report.changes.is_empty() {
        return format!("nothing changed (generation {})\n", report.generation);
    }
    let lines = report.changes.iter().map(|change| format!("{}\n", printable(change)));
    lines.collect()
}

/// Makes each line of a text safe for a terminal.
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines()
        .map(|line| {
            format!("{}\n", line.split('\t').map(printable).collect::<Vec<_>>().join("    "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_in_words() {
        let mut report = ChangeReport { generation: 4, ..ChangeReport::default() };
        assert_eq!(changes(&report), "nothing changed (generation 4)\n");
        report.changes = vec!["port vm3 added".into(), "rule web changed".into()];
        assert_eq!(changes(&report), "port vm3 added\nrule web changed\n");
    }
}
