//! Starts threads that compete for one processor, for `scripts/test-scx.sh`. The program is called
//! with four arguments: `contend CPU HOGS ROUNDS SECONDS`.
//!
//! The thread `rt` never stops and records each time for which it did not run. The other threads,
//! of which there are HOGS, have the names `hog0`, `hog1` and so on, and compute without a pause.
//! After each round of SECONDS seconds, the program prints one line:
//!
//! ```text
//! round 1 away_p50_ms .. away_p99_ms .. away_p999_ms .. away_max_ms .. gaps .. shares_pct ..
//! ```
//!
//! The first line of the program's output is `ready`. When the program prints `ready`, all threads
//! exist and can be configured.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Shortest time without running that the thread `rt` records. Interrupts cause gaps in the
/// thread's run time that are shorter than 300 us.
const GAP: Duration = Duration::from_micros(300);
/// Number of clock readings between two updates of a thread's processor time.
const UPDATE: u32 = 256;

/// Processor time of the calling thread, in nanoseconds.
fn used() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX))
}

fn stay(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &only)?)
}

/// Computes without pause until `stop` is true. The function sends each time for which the thread
/// did not run to `gaps`.
fn spin(used_ns: &AtomicU64, stop: &AtomicBool, gaps: Option<&mpsc::Sender<Duration>>) {
    let mut last = Instant::now();
    let mut reads = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let away = now - last;
        last = now;
        reads = reads.wrapping_add(1);
        if let Some(gaps) = gaps.filter(|_| away > GAP) {
            let _ = gaps.send(away);
        }
        if away > GAP || reads.is_multiple_of(UPDATE) {
            used_ns.store(used(), Ordering::Relaxed);
        }
    }
}

fn percentile(sorted: &[Duration], permille: usize) -> f64 {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted.get(rank - 1).map_or(0.0, |d| d.as_secs_f64() * 1e3)
}

fn main() -> Result<()> {
    let args: Vec<u64> =
        std::env::args().skip(1).map(|arg| arg.parse().context(arg)).collect::<Result<_>>()?;
    let [cpu, hogs, rounds, seconds] = args[..] else {
        anyhow::bail!("contend CPU HOGS ROUNDS SECONDS");
    };
    let cpu = usize::try_from(cpu)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let names = std::iter::once("rt".to_owned()).chain((0..hogs).map(|n| format!("hog{n}")));
    let mut counters = Vec::new();
    let mut threads = Vec::new();
    for (n, name) in names.enumerate() {
        let counter = Arc::new(AtomicU64::new(0));
        counters.push(Arc::clone(&counter));
        let (stop, gaps) = (Arc::clone(&stop), (n == 0).then(|| tell.clone()));
        let run = move || {
            stay(cpu)?;
            spin(&counter, &stop, gaps.as_ref());
            anyhow::Ok(())
        };
        threads.push(std::thread::Builder::new().name(name).spawn(run)?);
    }
    println!("ready");
    let read = || counters.iter().map(|c| c.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let start = Instant::now();
    for round in 1..=rounds {
        let before = read();
        while told.try_recv().is_ok() {}
        let end = start + Duration::from_secs(seconds * round);
        let mut gaps: Vec<Duration> = Vec::new();
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            gaps.extend(told.recv_timeout(left).ok());
        }
        gaps.sort_unstable();
        let mine: Vec<u64> = read().iter().zip(&before).map(|(now, old)| now - old).collect();
        let all = Duration::from_nanos(mine.iter().sum()).as_secs_f64();
        print!("round {round}");
        for (name, permille) in [("p50", 500), ("p99", 990), ("p999", 999), ("max", 1000)] {
            print!(" away_{name}_ms {:.2}", percentile(&gaps, permille));
        }
        print!(" gaps {} shares_pct", gaps.len());
        for one in mine {
            print!(" {:.2}", 100.0 * Duration::from_nanos(one).as_secs_f64() / all);
        }
        println!();
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}
