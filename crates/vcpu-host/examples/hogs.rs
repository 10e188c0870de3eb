//! Runs threads that compute without a pause on one processor, like busy vCPUs. Prints each
//! thread's share of the processor, and the thread's delay for events at random times.
//!
//! `cargo run --release -p penstock-vcpu-host --example hogs -- THREADS CPU SECONDS [OUT]` starts
//! the threads `hog0` to `hogN`, at most 64. Events occur every 1 to 12 ms. If a thread runs at the
//! time of an event, the thread answers at once. If a thread does not run at the time of an event,
//! the event waits until the thread runs.
#![deny(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// If the thread reads the clock twice within this time in nanoseconds, the thread was running.
const GAP_NS: u64 = 20_000;

fn clock(id: ClockId) -> u64 {
    clock_gettime(id)
        .map_or(0, |at| at.tv_sec().unsigned_abs() * 1_000_000_000 + at.tv_nsec().unsigned_abs())
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

struct Done {
    ran: u64,
    late: Vec<u64>,
    longest: u64,
}

fn hog(cpu: usize, stop: &AtomicBool, mut seed: u64) -> Done {
    let mut set = CpuSet::new();
    if set.set(cpu).is_err() || sched_setaffinity(Pid::from_raw(0), &set).is_err() {
        eprintln!("processor {cpu} cannot be used; name an existing processor");
    }
    let mut before = clock(ClockId::CLOCK_MONOTONIC);
    // The scheduler finds the thread in the first half second.
    let from = before + 500_000_000;
    let (mut done, mut event) = (Done { ran: 0, late: Vec::new(), longest: 0 }, from);
    let mut base = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = clock(ClockId::CLOCK_MONOTONIC);
        if now < from {
            base = clock(ClockId::CLOCK_THREAD_CPUTIME_ID);
        } else {
            let away = now - before > GAP_NS;
            if away && before > from {
                done.longest = done.longest.max(now - before);
            }
            while event <= now {
                done.late.push(if away && event > before { now - event } else { 0 });
                event += 1_000_000 + random(&mut seed) % 11_000_000;
            }
        }
        before = now;
    }
    done.ran = clock(ClockId::CLOCK_THREAD_CPUTIME_ID) - base;
    done.late.sort_unstable();
    done
}

fn main() {
    let number = |at: usize, usual: u64| {
        std::env::args().nth(at).and_then(|word| word.parse().ok()).unwrap_or(usual)
    };
    let (threads, cpu, seconds) = (number(1, 2).min(64), number(2, 1), number(3, 5));
    let stop = Arc::new(AtomicBool::new(false));
    let begin = |at: u64| {
        let (stop, cpu) = (Arc::clone(&stop), usize::try_from(cpu).unwrap_or(0));
        let run = move || hog(cpu, &stop, 0x9e37_79b9 + at);
        thread::Builder::new().name(format!("hog{at}")).spawn(run).ok()
    };
    let running: Vec<_> = (0..threads).filter_map(begin).collect();
    println!("pid {}", std::process::id());
    let _ = nix::poll::poll(
        &mut [],
        nix::poll::PollTimeout::try_from(seconds * 1_000).unwrap_or(nix::poll::PollTimeout::ZERO),
    );
    stop.store(true, Ordering::Relaxed);
    let done: Vec<Done> = running.into_iter().filter_map(|thread| thread.join().ok()).collect();
    let all: u64 = done.iter().map(|each| each.ran).sum();
    for (at, each) in done.iter().enumerate() {
        let quantile = |per_mille: usize| {
            let index = each.late.len().saturating_sub(1) * per_mille / 1_000;
            each.late.get(index).copied().unwrap_or(0) / 1_000
        };
        println!(
            "hog{at} share {}.{:02} % late us p50 {} p99 {} p99.9 {} max {} gap {}",
            each.ran * 100 / all.max(1),
            each.ran * 10_000 / all.max(1) % 100,
            quantile(500),
            quantile(990),
            quantile(999),
            quantile(1_000),
            each.longest / 1_000,
        );
    }
}
