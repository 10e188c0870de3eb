//! Measures how soon the watchdog ends the real-time policies that a scheduler gave to vCPUs. The
//! program kills the scheduler while a vCPU has a real-time policy.
//!
//! `cargo run --release -p penstock-vcpu-host --example takeback -- [TIMES] [CPU]` runs as root.
//! Two processes that compute on the processor CPU represent vCPUs. The program observes the two
//! processes from another processor, with the highest priority. The program prints the microseconds
//! from the kill signal until the vCPU's thread is in the fair class again.
#![deny(unsafe_code)]

use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use nix::poll::ppoll;
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use penstock_vcpu_host::config::Config;
use penstock_vcpu_host::policy::{self, Policy};
use penstock_vcpu_host::{service, watchdog};

/// Time between two reads of the thread's policy. A measured delay is too long by at most
/// `BETWEEN_LOOKS`.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);
/// Longest wait in microseconds for an event of the measurement.
const PATIENCE_US: u64 = 30_000_000;

type Failure = Box<dyn std::error::Error>;

fn now_us() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |at| {
        at.tv_sec().unsigned_abs() * 1_000_000 + at.tv_nsec().unsigned_abs() / 1_000
    })
}

/// Waits until the function `is` returns true. Returns the microseconds since the time `begin`.
fn until(begin: u64, mut is: impl FnMut() -> bool) -> Result<u64, Failure> {
    loop {
        let now = now_us();
        if is() {
            return Ok(now - begin);
        }
        if now - begin > PATIENCE_US {
            return Err("the event that the example waits for did not occur; run as root".into());
        }
        // A busy loop here would keep the threads of the killed scheduler from exiting, so the
        // thread sleeps.
        let _ = ppoll(&mut [], Some(TimeSpec::from_duration(BETWEEN_LOOKS)), None);
    }
}

fn is_lent(id: u32) -> bool {
    policy::get(id).is_ok_and(Policy::is_real_time)
}

/// A child process. Dropping this value kills the process.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn once(dir: &Path, cpu: &str) -> Result<u64, Failure> {
    let hog = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().map(Ends);
    let guests = [hog()?, hog()?];
    let run = dir.join("run");
    let mut text = format!("[vcpu]\ncpus = [{cpu}]\nrun_dir = \"{}\"\n", run.display());
    for (guest, deadline) in guests.iter().zip(["periodic\"\ndeadline = \"3 ms", "none"]) {
        let id = guest.0.id();
        text += &format!("[[vm]]\nname = \"{id}\"\npid = {id}\nthreads = \"sh\"\n");
        text += &format!("vcpu_mode = \"{deadline}\"\n");
    }
    let file = dir.join("vcpu.toml");
    std::fs::write(&file, text)?;
    let me = std::env::current_exe()?;
    let mut scheduler = Ends(Command::new(me).arg("scheduler").arg(&file).spawn()?);
    let guest = guests[0].0.id();
    until(now_us(), || is_lent(guest))?;
    policy::set(0, Policy::Fifo { priority: 99 })?;
    let begin = now_us();
    kill(Pid::from_raw(i32::try_from(scheduler.0.id())?), Signal::SIGKILL)?;
    let took = until(begin, || !is_lent(guest));
    policy::set(0, Policy::DEFAULT)?;
    scheduler.0.wait()?;
    until(now_us(), || !run.join("leases").exists())?;
    took
}

fn measure(times: u32, cpu: &str) -> Result<(), Failure> {
    let dir = Path::new("/dev/shm").join(format!("penstock-takeback-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let took: Result<Vec<u64>, Failure> = (0..times).map(|_| once(&dir, cpu)).collect();
    let _ = std::fs::remove_dir_all(&dir);
    let mut took = took?;
    took.sort_unstable();
    println!("us from kill -9 to policy fair: {took:?}");
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let word = |at: usize| words.get(at).map(String::as_str);
    let done: Result<(), Failure> = match (word(1), word(2)) {
        (Some("scheduler"), Some(file)) => {
            std::env::current_exe().map_err(Failure::from).and_then(|me| {
                let load = || Config::load(Path::new(file)).map_err(|wrong| wrong.to_string());
                let watchdog = |run_dir: &Path| {
                    let mut command = Command::new(&me);
                    command.arg("watchdog").arg(run_dir);
                    command
                };
                Ok(service::run(&load, &watchdog)?)
            })
        }
        (Some("watchdog"), Some(dir)) => {
            watchdog::watch(Path::new(dir), |_| ()).map_err(Into::into)
        }
        (times, cpu) => {
            let times = times.and_then(|word| word.parse().ok()).unwrap_or(10);
            measure(times, cpu.unwrap_or("1"))
        }
    };
    if let Err(error) = done {
        eprintln!("takeback: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
