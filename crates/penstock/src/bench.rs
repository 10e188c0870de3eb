//! `penstock bench` and what else runs under a guard: taken down also when a signal ends it.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_lab::bench::{self, BenchCommand, Guard};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Exit status of an error: 1 says that a bar does not hold.
const FAILED: u8 = 2;

/// Runs the benchmark; whatever ends it, what it made is gone before this returns.
///
/// # Errors
/// It cannot be started. Its own errors are printed, with exit status 2.
pub fn run(command: BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Run(benchmark) => {
            guarded("bench", move |guard| bench::run(&benchmark, guard))
        }
        BenchCommand::Guard => {
            bench::guard::watch(std::io::stdin().lock())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Does `work` under a guard of its own, which has taken everything down before this returns.
///
/// # Errors
/// It cannot be started. Its own errors are printed after `name`, with exit status 2.
pub fn guarded(
    name: &'static str,
    work: impl FnOnce(&Guard) -> Result<ExitCode> + Send + 'static,
) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("runtime cannot start")?;
    let guard = Guard::start()?;
    let own = guard.clone();
    let outcome = runtime.block_on(until_end(name, move || work(&own)));
    guard.finish();
    match outcome? {
        Ok(code) => Ok(code),
        Err(error) => {
            eprint!("penstock: {name}: {}", crate::verbs::printable_lines(&format!("{error:#}")));
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// The work's outcome, or 128 and the signal's number.
async fn until_end(
    name: &'static str,
    work: impl FnOnce() -> Result<ExitCode> + Send + 'static,
) -> Result<Result<ExitCode>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be handled")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be handled")?;
    let (done, ended) = oneshot::channel();
    // A thread of its own, because it polls; it dies with the process if a signal comes first.
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || done.send(work()))
        .context("starting a thread")?;
    tokio::select! {
        outcome = ended => Ok(outcome.context("its thread panicked")?),
        _ = interrupt.recv() => Ok(Ok(ExitCode::from(130))),
        _ = terminate.recv() => Ok(Ok(ExitCode::from(143))),
    }
}
