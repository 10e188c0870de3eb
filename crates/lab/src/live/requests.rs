//! Live experiment for VM jitter's Fig. 9: the time that ApacheBench waits for responses of a
//! shaped VM.
//!
//! # Problem
//!
//! A token bucket is refilled every 50 ms. A shaped VM's response leaves at once if the bucket has
//! tokens, or else up to 50 ms later. The delay of a response depends on the time until the next
//! refill of the bucket.
//!
//! # Source
//!
//! VM jitter §V-B, Fig. 9, measures 2,000 requests for a file of 8 KB.
//!
//! # Approach
//!
//! nginx runs in the VM's namespace, and ApacheBench (`ab`) in another namespace. `ab` opens the
//! connections one after the other. The waiting time lasts from the request to the first byte of
//! the response. The claims use the standard deviation of the waiting time, which `ab` reports
//! rounded to tenths of a millisecond. Because `ab` rounds times, the claim uses the lowest
//! possible value for the token bucket and the highest possible value for the smooth shaper. A
//! capture at `ab`'s side also yields each request's waiting time. The report has the standard
//! deviation of the captured waiting times as `capture_ms_std`.
//!
//! # Departures
//!
//! The worker takes a frame only if the shaper has tokens for a whole MTU, even if the frame is
//! shorter. With the token bucket, a short frame before or after the first frame of a response also
//! waits for tokens for a whole MTU. The token bucket delays the first frame of one response in
//! eighty in the live run, and of one response in nine in the simulation.
//!
//! # Cost
//!
//! A run of the experiment takes five minutes: every request is sent to a guest without offloads
//! and to a guest with the defaults of Linux.

use std::time::Duration;

use anyhow::Context as _;

use super::applications::web_configuration;
use super::capture::{Capture, Captured};
use super::needs::needs;
use super::shaped::{Guest, NET, VM, VM_PLACE, prompt_plan, shape, waited, with_both};
use super::stage::Stage;
use crate::evidence::{Context, Outcome};
use crate::jitter::requests::{REQUESTS, Waited, conclude, deviation};
use crate::jitter::shaper::{Kind, RATE};
use crate::rig::plan::Plan;
use crate::rig::platform;
use penstock_guest::bed::Bed;

/// Size of the requested file, in bytes.
const BYTES: usize = 8_192;
const HTTP: u16 = 80;
/// Half a unit of the last digit of the times that `ab` prints, in ms.
const ROUNDING_MS: f64 = 0.05;
/// Number of requests for each second of a run's length (`--secs`). With the shaper's rate limit, a
/// VM cannot answer more HTTP requests per second.
const PER_SECOND: f64 = 28.0;
const LONGEST: Duration = Duration::from_secs(300);

/// Numbers from the report of `ab`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Said {
    /// Standard deviation of the waiting times of all requests, in ms.
    std: f64,
    /// Standard deviation of the times to open a connection, in ms.
    connect_std: f64,
    /// Total duration of all requests, in seconds.
    secs: f64,
    answered: usize,
    failed: usize,
}

/// Runs the live experiment of VM jitter's Fig. 9.
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
    with_both(&mut outcome, |guest| measure(context, &bed, requests, guest))?;
    Ok(outcome)
}

/// Measures the waiting times with both shapers, at a guest of the given kind.
fn measure(
    context: &Context<'_>,
    bed: &Bed,
    requests: usize,
    guest: Guest,
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let plain = guest == Guest::Plain;
    let (name, from) = if plain { ("requests", 0.0) } else { ("requests-default", 0.5) };
    let mut stage = Stage::start(bed, name, &guest.of(prompt_plan()))?;
    serve(bed, &mut stage)?;
    let (mut both, mut said) = (Vec::new(), Vec::new());
    for (kind, done) in Kind::BOTH.into_iter().zip([0.0, 0.25]) {
        context.progress(from + done, kind.name());
        shape(&stage, kind, RATE)?;
        let ((of_ab, times), wait) = waited(&mut stage, |stage| ask_for(bed, stage, requests))?;
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

/// Starts nginx in the VM's namespace and waits until it answers.
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

/// Sends `requests` requests with `ab`, one after the other.
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

/// Parses the report of `ab`. Returns `None` if a number is missing in the report.
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

/// Returns the waiting times in ms, from each request to the first byte of its response. The
/// captured connections must not overlap.
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
            // Two frames of the handshake, a request, its acknowledgement, and the response in two
            // frames.
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
