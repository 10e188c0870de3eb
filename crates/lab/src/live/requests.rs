//! VM jitter, Fig. 9, live: how long ApacheBench waits for answers of a shaped VM.
//!
//! # Problem
//!
//! An answer begins at once or in up to 50 ms, depending on where in the refill period it falls.
//!
//! # Source
//!
//! VM jitter §V-B, Fig. 9: 2,000 requests for a file of 8 KB.
//!
//! # Approach
//!
//! nginx runs in the VM's namespace and ApacheBench (`ab`) in another, with one connection after
//! the other. The claims are about `ab`'s own standard deviations of the waiting time, which lasts
//! from the request to the answer's first byte. `ab` prints tenths of a millisecond. For the token
//! bucket, the claim takes the least value that rounds to the printed one. For smoothing, it takes
//! the greatest. Each request's time comes from a capture at `ab`'s side. The deviation of these
//! times is reported as well (`capture_ms_std`).
//!
//! # Departures
//!
//! Before the worker takes a frame of any length, its shaper must have room for a frame of one MTU.
//! So the token bucket seldom delays an answer's first frame (one in eighty, against one in nine in
//! simulation). It more often delays the short frames around the first frame.
//!
//! # Cost
//!
//! A run takes two and a half minutes.

use std::time::Duration;

use anyhow::Context as _;

use super::applications::web_configuration;
use super::capture::{Capture, Captured};
use super::needs::needs;
use super::shaped::{NET, VM, VM_PLACE, prompt_plan, shape, waited};
use super::stage::Stage;
use crate::evidence::{Context, Outcome};
use crate::jitter::requests::{REQUESTS, Waited, conclude, deviation};
use crate::jitter::shaper::{Kind, RATE};
use crate::rig::plan::Plan;
use crate::rig::platform;
use penstock_guest::bed::Bed;

/// Size of the file.
const BYTES: usize = 8_192;
const HTTP: u16 = 80;
/// Half of the last digit that `ab` prints.
const ROUNDING_MS: f64 = 0.05;
/// Requests per second at the limit, rounded up, for runs of a given length.
const PER_SECOND: f64 = 28.0;
const LONGEST: Duration = Duration::from_secs(300);

/// The report of `ab`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Said {
    /// Standard deviation of the waiting time, in ms.
    std: f64,
    /// Standard deviation of the connection time, in ms.
    connect_std: f64,
    /// Duration of all requests, in s.
    secs: f64,
    answered: usize,
    failed: usize,
}

/// # Errors
///
/// Fails if a program is missing or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    for (program, package) in
        [("ab", "apache2-utils"), ("nginx", "nginx-light"), ("tcpdump", "tcpdump")]
    {
        needs(program, package)?;
    }
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("rate_bps", RATE.0);
    let requests = requests(context.live.secs);
    outcome.note("requests", requests);
    let mut stage = Stage::start(&bed, "requests", &prompt_plan())?;
    serve(&bed, &mut stage)?;
    let (mut both, mut said) = (Vec::new(), Vec::new());
    for (kind, done) in Kind::BOTH.into_iter().zip([0.0, 0.5]) {
        context.progress(done, kind.name());
        shape(&stage, kind, RATE)?;
        let ((of_ab, times), wait) = waited(&mut stage, |stage| ask_for(&bed, stage, requests))?;
        outcome.note(&format!("{} worker_wait_pct", kind.name()), wait);
        let of_capture = deviation(&times.waiting);
        outcome.note(&format!("{} ab_ms_std", kind.name()), of_ab.std);
        outcome.note(&format!("{} ab_connect_ms_std", kind.name()), of_ab.connect_std);
        outcome.note(&format!("{} capture_ms_std", kind.name()), of_capture);
        both.push(times);
        said.push(of_ab.std);
    }
    let both: [Waited; 2] = both.try_into().ok().context("two shapers were measured")?;
    conclude(&mut outcome, &both, [said[0] - ROUNDING_MS, said[1] + ROUNDING_MS]);
    Ok(outcome)
}

fn requests(secs: Option<f64>) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a length")]
    let some = |secs: f64| (PER_SECOND * secs).ceil() as usize;
    secs.map_or(REQUESTS, some).clamp(10, REQUESTS)
}

/// Starts the VM's server and waits until it answers.
fn serve(bed: &Bed, stage: &mut Stage) -> anyhow::Result<()> {
    let dir = stage.dir().to_owned();
    let files = dir.join("files");
    std::fs::create_dir_all(&files).context("making a directory")?;
    std::fs::write(files.join("index.html"), "x".repeat(BYTES)).context("writing a page")?;
    let (conf, at) = (dir.join("web.conf"), dir.display().to_string());
    std::fs::write(&conf, web_configuration(&at, &files.display().to_string(), VM))?;
    let conf = conf.display().to_string();
    stage.start_program(bed, VM, "nginx", &["-p", &at, "-c", &conf, "-e", "stderr"])?;
    stage.await_tcp(NET, VM_PLACE, HTTP)
}

/// Sends `requests` requests, one after the other.
fn ask_for(bed: &Bed, stage: &mut Stage, requests: usize) -> anyhow::Result<(Said, Waited)> {
    let capture = Capture::start(bed, stage, NET, &format!("tcp port {HTTP}"))?;
    let url = format!("http://{}/", Plan::ip(VM_PLACE));
    let number = requests.to_string();
    let words = ["-q", "-n", &number, "-c", "1", &url];
    let program = stage.start_program(bed, NET, "ab", &words)?;
    let said = stage.await_program(program, LONGEST)?;
    let (_, frames) = capture.end(stage)?;
    let of_ab = read(&said).with_context(|| format!("ab said:\n{said}"))?;
    let whole = of_ab.answered == requests && of_ab.failed == 0;
    anyhow::ensure!(whole, "not all requests were answered:\n{said}");
    let waiting = waiting(&frames);
    anyhow::ensure!(
        waiting.len() == requests,
        "the capture has {} answers to {requests} requests",
        waiting.len()
    );
    Ok((of_ab, Waited { waiting, secs: of_ab.secs }))
}

/// Parses the report that `ab` prints at its end.
fn read(said: &str) -> Option<Said> {
    let after = |label: &str| said.lines().find_map(|line| line.strip_prefix(label));
    let first = |label: &str| after(label)?.split_whitespace().next();
    // The columns are least, mean, deviation, median and greatest.
    let std = |label: &str| after(label)?.split_whitespace().nth(2)?.parse().ok();
    Some(Said {
        std: std("Waiting:")?,
        connect_std: std("Connect:")?,
        secs: first("Time taken for tests:")?.parse().ok()?,
        answered: first("Complete requests:")?.parse().ok()?,
        failed: first("Failed requests:")?.parse().ok()?,
    })
}

/// Times from each request to its answer's first byte, in ms, for one connection after the other.
fn waiting(frames: &[Captured]) -> Vec<f64> {
    let (mut asked, mut waiting) = (None, Vec::new());
    for frame in frames {
        let Some((6, tcp, length)) = frame.ipv4() else { continue };
        let Some(header) = tcp.get(12).map(|offset| usize::from(offset >> 4) * 4) else { continue };
        if length <= header {
            continue;
        }
        if tcp[2..4] == HTTP.to_be_bytes() {
            asked = Some(frame.at);
        } else if let Some(asked) = asked.take() {
            waiting.push(crate::rig::stats::to_f64(frame.at.saturating_sub(asked).0) / 1e6);
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::Nanos;

    #[test]
    fn apache_bench_is_understood() {
        let said = "Concurrency Level:      1\nTime taken for tests:   71.951 seconds\n\
                    Complete requests:      2000\nFailed requests:        0\n\n\
                    Connection Times (ms)\n              min  mean[+/-sd] median   max\n\
                    Connect:        0    6  15.1      0      50\n\
                    Waiting:        1    9  15.7      1      50\n";
        let all = Said { std: 15.7, connect_std: 15.1, secs: 71.951, answered: 2_000, failed: 0 };
        assert_eq!(read(said), Some(all));
        assert_eq!(read("nothing"), None);
    }

    #[test]
    fn waiting_ends_with_the_answers_first_byte() {
        let frame = |micros: u64, to_server: bool, payload: u8| {
            let mut head = vec![0; 14 + 20 + 32];
            (head[12], head[14], head[17], head[23], head[46]) = (8, 0x45, 52 + payload, 6, 0x80);
            head[if to_server { 37 } else { 35 }] = 80;
            Captured { at: Nanos(micros * 1_000), bytes: 66 + u32::from(payload), head }
        };
        let frames = [
            // The connection, a request, its acknowledgement, and the answer in two frames.
            frame(0, true, 0),
            frame(100, false, 0),
            frame(200, true, 80),
            frame(300, false, 0),
            frame(1_700, false, 100),
            frame(7_000, false, 100),
            frame(8_000, true, 80),
            frame(8_500, false, 100),
        ];
        assert_eq!(waiting(&frames), [1.5, 0.5]);
    }

    #[test]
    fn short_runs_ask_for_less() {
        assert_eq!(
            (requests(None), requests(Some(10.0)), requests(Some(1e3))),
            (2_000, 280, 2_000)
        );
    }
}
