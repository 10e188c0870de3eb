//! Runs the double run queue as the kernel's scheduler, and shows what threads get.
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

/// Between two looks at whether the scheduler and its threads are still there.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Where reports are shared, on a bpffs
    #[arg(long, default_value = "/sys/fs/bpf/penstock-vcpu", global = true)]
    share: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes it the kernel's scheduler until it is ended, and prints reports then
    Run {
        /// Which threads have which contract
        #[arg(long)]
        config: PathBuf,
        /// Ends by itself after so many seconds
        #[arg(long)]
        seconds: Option<u64>,
        /// Test: the scheduler dispatches nothing after so many seconds
        #[arg(long)]
        stall_after: Option<u64>,
    },
    /// Whether the contracts fit, without loading anything
    Check {
        /// Which threads have which contract
        #[arg(long)]
        config: PathBuf,
    },
    /// What threads got since the scheduler that runs was started
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
            println!("{} threads, {} with deadlines: fit", threads.len(), plan.places.len());
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
        eprintln!("warning: reports are not shared: {error:#}");
    }
    println!("running: {} threads, {} with deadlines", threads.len(), plan.places.len());
    let ended = watch(&scheduler, threads, &plan, &signals, [seconds, stall])?;
    print!("{}", report::table(&scheduler.reports()?));
    drop(scheduler);
    println!("sched_ext is {}", state()?);
    Ok(if ended { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Until a signal, the end of the time, or the kernel's end of it: that is true.
#[expect(clippy::disallowed_methods, reason = "a program's limit in time")]
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
            eprintln!(
                "error: the kernel took the scheduler out ({}): {}",
                ended.kind, ended.reason
            );
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

/// Signals that end it, as messages.
fn signals() -> Result<Receiver<Signal>> {
    let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    set.thread_block().context("signals")?;
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
