//! VM jitter, Fig. 9: 2,000 HTTP requests of 8 KB at a rate limit of 2 Mbit/s.
//!
//! # Problem
//!
//! With a token bucket, an answer begins at once or up to 50 ms later. The delay depends on when in
//! the refill period the answer is ready.
//!
//! # Source
//!
//! VM jitter §V-B, Fig. 9: ApacheBench sends 2,000 requests for a file of 8 KB in "about 70
//! seconds", which is 2 Mbit/s. The waiting time is 0 to 50 ms with Xen's credit every 50 ms.
//!
//! # Approach
//!
//! Connections follow one another, as is ApacheBench's default. The network takes 0.1 ms each way.
//! These frames pass the shaper:
//!
//! * the answer to the SYN (74 bytes),
//! * the file with 270 bytes of header, in five frames of 1,514 bytes and one of the rest,
//! * the FIN (66 bytes).
//!
//! The server takes 0.3 to 0.8 ms to answer, by the seed. *Waiting* is defined as in ApacheBench:
//! from the request's last byte to the answer's first.
//!
//! The figure compares the standard deviation of the waiting time: the token bucket's divided by
//! smoothing's. The paper prints no values. The figure's requirements define the band.

use penstock_sim::Rng;
use penstock_units::Nanos;

use super::shaped_vm::{Happened, Run, ShapedVm};
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
/// Payload of a full segment, and size of its headers with Ethernet's.
const PAYLOAD: u32 = 1_448;
const HEADERS: u32 = 66;
/// Bytes of the file and its HTTP header.
const ANSWER: u32 = 8_192 + 270;
const SYN: u32 = 74;
const ROOM: u64 = 256 * 1024;

/// Tags of frames.
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
                        // The next connection's SYN arrives.
                        run.at(arrives + WAY, SYN, OPENED);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(Waited { waiting, secs: ms(end) / 1e3 })
}

/// The VM sends all frames of the answer at once.
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
    for kind in Kind::BOTH {
        if let Some(series) = record.series(&format!("{} distribution", kind.name())) {
            panel = panel.series(kind.name(), series);
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
