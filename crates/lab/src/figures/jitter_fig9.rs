//! VM jitter, Fig. 9: 2,000 HTTP requests of 8 KB at a rate limit of 2 Mbit/s.
//!
//! # Problem
//!
//! With a token bucket, an answer begins immediately or up to 50 ms later. The delay of an answer
//! depends on when, within the bucket's refill period, the answer is ready.
//!
//! # Source
//!
//! In VM jitter §V-B, Fig. 9, ApacheBench sends 2,000 requests for a file of 8 KB in "about 70
//! seconds", which is 2 Mbit/s. With Xen's rate limit, which adds credit every 50 ms, a request
//! waits 0 to 50 ms.
//!
//! # Approach
//!
//! Only one connection is open at a time, which is ApacheBench's default. The network delay is 0.1
//! ms in each direction. Three kinds of frames pass the shaper:
//!
//! * a frame of 74 bytes with the server's answer to the TCP SYN;
//! * the requested file and its HTTP header of 270 bytes, in five frames of 1,514 bytes and one
//!   smaller frame;
//! * a frame of 66 bytes with the TCP FIN.
//!
//! The server takes a random time of 0.3 to 0.8 ms to answer. As in ApacheBench, the waiting time
//! of a request is the time from the request's last byte to the answer's first byte.
//!
//! The claim compares the standard deviation of the waiting time: with the token bucket, divided by
//! the deviation with smoothing. The VM jitter paper prints no standard deviations, so the band is
//! the figure's own requirement.

use penstock_sim::Rng;
use penstock_sim::shaped_vm::{Happened, Run, ShapedVm};
use penstock_units::Nanos;

use crate::evidence::stats::ms;
use crate::evidence::{Axis, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::jitter::requests::{REQUESTS, Waited, conclude, deviation};
use crate::jitter::shaper::{Kind, RATE};

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig9",
    source: "VM jitter §V-B, Fig. 9",
    about: "waiting times of HTTP requests under a token bucket of 50 ms, and smoothed",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig9),
    picture,
};

/// One-way delay of the network.
const WAY: Nanos = Nanos::from_micros(100);
/// Payload of a full TCP segment in bytes. [`HEADERS`] is the size of the segment's headers
/// including Ethernet.
const PAYLOAD: u32 = 1_448;
const HEADERS: u32 = 66;
/// Size of the requested file and its HTTP header, in bytes.
const ANSWER: u32 = 8_192 + 270;
const SYN: u32 = 74;
const ROOM: u64 = 256 * 1024;

/// Tag of the simulated frame that answers the TCP SYN. [`FIRST`] and [`MORE`] are the tags of an
/// answer's first and further frames, and [`LAST`] is the tag of the FIN.
const OPENED: u64 = 0;
const FIRST: u64 = 1;
const MORE: u64 = 2;
const LAST: u64 = 3;

fn exchange(kind: Kind, seed: u64) -> anyhow::Result<Waited> {
    let mut run = Run::new(ShapedVm::new(kind.shaper(RATE)?, ROOM));
    let mut noise = Rng::new(seed);
    let (mut waiting, mut asked) = (Vec::with_capacity(REQUESTS), Nanos(0));
    let (mut happened, mut end) = (Vec::new(), Nanos(0));
    run.at(WAY, SYN, OPENED);
    while let Some(now) = run.step(Nanos(u64::MAX), &mut happened) {
        for event in &happened {
            let Happened::Departed(frame) = event else { continue };
            let arrives = now + WAY;
            match frame.tag {
                OPENED => {
                    asked = arrives;
                    let served = Nanos(300_000 + noise.below(500_001));
                    answer(&mut run, asked + WAY + served);
                }
                FIRST => waiting.push(ms(arrives.saturating_sub(asked))),
                LAST => {
                    end = arrives;
                    if waiting.len() < REQUESTS {
                        // This is the answer to the SYN of the next connection.
                        run.at(arrives + WAY, SYN, OPENED);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(Waited { waiting, secs: ms(end) / 1e3 })
}

/// Schedules the arrival of all frames of an answer, and of the FIN, for the time `at`.
fn answer(run: &mut Run, at: Nanos) {
    let mut left = ANSWER;
    let mut tag = FIRST;
    while left > 0 {
        let payload = left.min(PAYLOAD);
        run.at(at, payload + HEADERS, tag);
        (left, tag) = (left - payload, MORE);
    }
    run.at(at, HEADERS, LAST);
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("rate_bps", RATE.0);
    let [bucket, smooth] = Kind::BOTH.map(|kind| exchange(kind, ctx.seed));
    let both = [bucket?, smooth?];
    let answered = both.iter().all(|waited| waited.waiting.len() == REQUESTS);
    anyhow::ensure!(answered, "requests without an answer");
    let deviations = both.each_ref().map(|waited| deviation(&waited.waiting));
    conclude(&mut outcome, &both, deviations);
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    let mut picture = Picture::new("VM jitter, Fig. 9: waiting times of 2,000 requests of 8 KB");
    for (kind, title) in Kind::BOTH.into_iter().zip(["(a) token bucket, 50 ms", "(b) smooth"]) {
        let waiting = record.series(&format!("{} waiting", kind.name()));
        let panel =
            Panel::new(title, Axis::linear("request"), Axis::linear("waiting, ms").to(60.0));
        let waiting = waiting.map(points).into_iter().flatten();
        picture = picture.panel(panel.points(kind.name(), waiting));
    }
    let mut panel =
        Panel::new("(c) distribution", Axis::linear("waiting, ms"), Axis::linear("%").to(100.0));
    for (guest, of) in [("", ""), ("default_guest ", ", default guest")] {
        for kind in Kind::BOTH {
            let name = format!("{guest}{} distribution", kind.name());
            if let Some(series) = record.series(&name) {
                panel = panel.series(format!("{}{of}", kind.name()), series);
            }
        }
    }
    picture.panel(panel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn waiting_times_vary_far_less_for_any_seed() {
        assert_holds("jitter-fig9", sim, &[1, 20]);
    }
}
