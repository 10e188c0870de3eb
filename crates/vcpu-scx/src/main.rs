//! Runs Penstock's vCPU scheduler inside the kernel (sched_ext), and prints run times and waits of
//! threads.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use penstock_vcpu_scx::kernel::{Scheduler, shared_reports, state};
use penstock_vcpu_scx::plan::{Plan, Thread, plan};
use penstock_vcpu_scx::threads::{Kept, find, is_there};
use penstock_vcpu_scx::{config, report};

/// Interval between two checks whether the scheduler and its threads still exist.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Directory on a bpffs in which the scheduler shares its reports
    #[arg(long, default_value = "/sys/fs/bpf/penstock-vcpu", global = true)]
    share: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run as the kernel's scheduler until a signal or the time limit, then print reports
    Run {
        /// Contracts of threads, as a TOML file
        #[arg(long)]
        config: PathBuf,
        /// Number of seconds after which the program stops (default: run until a signal)
        #[arg(long)]
        seconds: Option<u64>,
        /// Number of seconds after which the scheduler stops dispatching, for tests
        #[arg(long)]
        stall_after: Option<u64>,
    },
    /// Check whether the contracts fit, without loading the scheduler
    Check {
        /// Contracts of threads, as a TOML file
        #[arg(long)]
        config: PathBuf,
    },
    /// Print run time and waits of each thread since the running scheduler started
    Show,
}

fn main() -> ExitCode {
    match act(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(args: Args) -> Result<ExitCode> {
    match args.verb {
        Verb::Run { config, seconds, stall_after } => {
            let seconds = [seconds, stall_after].map(|s| s.map(Duration::from_secs));
            return run(&config, &args.share, seconds);
        }
        Verb::Check { config } => {
            let (threads, plan) = read(&config)?;
            println!(
                "the vCPU contracts fit: {} vCPU threads, {} with deadlines",
                threads.len(),
                plan.places.len()
            );
        }
        Verb::Show => print!("{}", report::table(&shared_reports(&args.share)?)),
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<(Vec<Thread>, Plan)> {
    let name = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(name)?;
    let threads = find(&config::parse(&text).with_context(name)?)?;
    let plan = plan(&threads)?;
    Ok((threads, plan))
}

fn run(path: &Path, share: &Path, [seconds, stall]: [Option<Duration>; 2]) -> Result<ExitCode> {
    let (threads, plan) = read(path)?;
    let signals = signals()?;
    let _kept = Kept::keep(&threads)?;
    let mut scheduler = Scheduler::start(&plan)?;
    if let Err(error) = scheduler.share(share) {
        eprintln!("warning: cannot share the reports: {error:#}");
    }
    println!("running: {} threads, {} with deadlines", threads.len(), plan.places.len());
    let ended = watch(&scheduler, threads, &plan, &signals, [seconds, stall])?;
    print!("{}", report::table(&scheduler.reports()?));
    drop(scheduler);
    println!("sched_ext state: {}", state()?);
    Ok(if ended { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Watches the scheduler until a signal arrives, the time limit is over, or an error occurs.
/// Returns true if the kernel removed the scheduler.
#[expect(
    clippy::disallowed_methods,
    reason = "this program measures its time limit by the real clock"
)]
fn watch(
    scheduler: &Scheduler,
    mut threads: Vec<Thread>,
    plan: &Plan,
    signals: &Receiver<Signal>,
    [seconds, mut stall]: [Option<Duration>; 2],
) -> Result<bool> {
    let start = Instant::now();
    let over = |limit: Option<Duration>| limit.is_some_and(|limit| start.elapsed() >= limit);
    while !over(seconds) {
        match signals.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(false),
        }
        if let Some(ended) = scheduler.ended()? {
            eprintln!("error: the kernel removed the scheduler ({}): {}", ended.kind, ended.reason);
            return Ok(true);
        }
        if over(stall) {
            stall = None;
            scheduler.stall()?;
        }
        let (there, gone): (Vec<_>, Vec<_>) = threads.into_iter().partition(is_there);
        threads = there;
        for thread in gone {
            eprintln!("{}: thread {} has ended", thread.wanted.label(), thread.tid);
            let seat = plan.places.iter().find(|(_, place)| place.tid == thread.tid);
            scheduler.forget(thread.tid, seat.map(|(seat, _)| *seat))?;
        }
    }
    Ok(false)
}

/// Returns a channel that receives the signals that end the program.
fn signals() -> Result<Receiver<Signal>> {
    let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    set.thread_block().context("cannot block signals")?;
    let (tell, told) = channel();
    std::thread::spawn(move || {
        while let Ok(signal) = set.wait() {
            if tell.send(signal).is_err() {
                break;
            }
        }
    });
    Ok(told)
}
