//! `penstock bench`: a benchmark of the lab's, taken down also when a signal ends it.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_lab::bench::{self, BenchCommand, Benchmark, Guard};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Exit status of an error: 1 says that a bar does not hold.
const FAILED: u8 = 2;

/// Runs the benchmark; whatever ends it, what it made is gone before this returns.
///
/// # Errors
/// It cannot be started. Its own errors are printed, with exit status 2.
pub fn run(command: BenchCommand) -> Result<ExitCode> {
    let benchmark = match command {
        BenchCommand::Run(benchmark) => benchmark,
        BenchCommand::Guard => {
            bench::guard::watch(std::io::stdin().lock())?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("runtime cannot start")?;
    let guard = Guard::start()?;
    let outcome = runtime.block_on(until_end(benchmark, guard.clone()));
    guard.finish();
    match outcome? {
        Ok(code) => Ok(code),
        Err(error) => {
            eprint!("penstock: bench: {}", crate::verbs::printable_lines(&format!("{error:#}")));
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// The benchmark's outcome, or 128 and the signal's number.
async fn until_end(benchmark: Benchmark, guard: Guard) -> Result<Result<ExitCode>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be handled")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be handled")?;
    let (done, ended) = oneshot::channel();
    // A thread of its own, because it polls; it dies with the process if a signal comes first.
    std::thread::Builder::new()
        .name("bench".to_owned())
        .spawn(move || done.send(bench::run(&benchmark, &guard)))
        .context("starting a thread")?;
    tokio::select! {
        outcome = ended => Ok(outcome.context("the benchmark panicked")?),
        _ = interrupt.recv() => Ok(Ok(ExitCode::from(130))),
        _ = terminate.recv() => Ok(Ok(ExitCode::from(143))),
    }
}
