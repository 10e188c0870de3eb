//! Live experiment for VM jitter's Fig. 11: the throughput of a shaped VM with TCP and with UDP.
//!
//! # Problem
//!
//! A shaper must deliver the configured rate for any traffic. A provider cannot sell a rate that is
//! 5 % off, even if the shaper smooths well.
//!
//! # Source
//!
//! VM jitter §V-B, Fig. 11, measures netperf at 4, 8, 16 and 32 Mbit/s with TCP and UDP. The live
//! experiment adds the rates 200 Mbit/s and 2 Gbit/s.
//!
//! # Approach
//!
//! One namespace behind a vhost-user endpoint sends to another namespace with iperf3. The
//! configuration key `shape.send` limits the sender's port. UDP offers a quarter more than the
//! limit. The measured rate counts the frames that the switch delivered, FCS included. A
//! measurement lasts [`SECS`] seconds. The measurement begins when the rate has settled, after a
//! third of the measurement's length. The result for a rate limit is the throughput in the run that
//! deviates most from the limit. If the programs do not reach a rate even without a shaper, the
//! rate is reported but not judged. A claim that includes an unjudged rate does not hold.
//!
//! # 2 Gbit/s
//!
//! The two iperf3 programs, their kernel stacks and the endpoint share one core. The shared core
//! reaches 1 to 2.4 Gbit/s with packets of 1,500 bytes, also if the shaper cuts the segments of a
//! guest with TSO, because the receiver gets as many frames. For the limit of 2 Gbit/s, the
//! interfaces have an MTU of [`JUMBO`], so the programs send only 28,000 frames per second. The
//! experiment's record contains two more results at 2 Gbit/s, which no claim uses:
//!
//! - `..._2000_mtu_1500_pct` is the result with packets of 1,500 bytes, if the programs reach 2
//!   Gbit/s.
//! - `generator_2000_pct` is the result with frames of 1,518 bytes from the load generator instead
//!   of programs.
//!
//! # Cost
//!
//! A run takes five minutes, one half for guests without offloads and one for guests with the
//! defaults of Linux. With the paper's length and repetitions (`--secs 60 --runs 3`), a run takes
//! two hours.

use std::time::Duration;

use penstock_units::BitsPerSecond;
use serde_json::json;

use super::needs::needs;
use super::shaped::{Guest, NET, NET_PLACE, VM, VM_PLACE, plan, shape, unshape, with_both};
use super::stage::Stage;
use crate::evidence::{Claim, Context, Outcome};
use crate::jitter::shaper::Kind;
use crate::rig::fleet::Offer;
use crate::rig::plan::Plan;
use crate::rig::{Rig, Span, platform};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

/// Measured rate limits in Mbit/s.
const RATES: [f64; 6] = [4.0, 8.0, 16.0, 32.0, 200.0, 2_000.0];
/// At rates of at least this many Mbit/s, the error limit is [`WIDE_PCT`] and the MTU is [`JUMBO`].
const WIDE_FROM: f64 = 2_000.0;
const BAR_PCT: f64 = 1.0;
const WIDE_PCT: f64 = 2.0;
/// MTU in bytes for rates below [`WIDE_FROM`].
const USUAL: u16 = 1_500;
const JUMBO: u16 = 9_000;
/// Length of the IP and UDP headers in bytes.
const HEADERS: u16 = 28;
/// Length of a measurement in seconds.
const SECS: f64 = 6.0;
/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Rate that UDP offers, as a multiple of the limit.
const OFFERED: f64 = 1.25;
/// Rate that the programs must reach without a shaper, as a multiple of the limit.
const ROOM: f64 = 1.05;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proto {
    Tcp,
    Udp,
}

impl Proto {
    const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of `RATES`")]
fn bits(mbps: f64) -> BitsPerSecond {
    BitsPerSecond((mbps * 1e6).round() as u64)
}

/// A shaped VM and a receiver, with the MTU `mtu` on their interfaces.
struct Bench<'a> {
    bed: &'a Bed,
    stage: Stage,
    mtu: u16,
    secs: f64,
}

impl Bench<'_> {
    /// Returns the rate that arrives at the receiver, in Mbit/s, while a client sends with `proto`.
    /// `mbps` is the shaper's limit in Mbit/s, or `None` for no limit.
    fn through(&mut self, proto: Proto, mbps: Option<f64>) -> anyhow::Result<f64> {
        let Self { bed, stage, mtu, secs } = self;
        match mbps {
            None => unshape(stage)?,
            Some(mbps) => shape(stage, Kind::Smooth, bits(mbps))?,
        }
        let first = stage.programs();
        let number = 5300 + u16::try_from(first % 1_000)?;
        let port = number.to_string();
        stage.start_program(bed, NET, "iperf3", &["-s", "-p", &port])?;
        stage.await_tcp(VM, NET_PLACE, number)?;
        let server = Plan::ip(NET_PLACE).to_string();
        let mut words = vec!["-c", &server, "-p", &port, "-t", "600"];
        let offered = mbps.map_or("0".to_owned(), |m| format!("{:.0}", m * 1e6 * OFFERED));
        let payload = (*mtu - HEADERS).to_string();
        if proto == Proto::Udp {
            words.extend(["-u", "-l", &payload, "-b", &offered]);
        }
        stage.start_program(bed, VM, "iperf3", &words)?;
        let readings = stage.watch(*secs * 4.0 / 3.0, STEP)?;
        stage.end_programs(first..first + 2);
        let counted = &readings[readings.len() / 4..];
        let [before, .., after] = counted else {
            anyhow::bail!("{secs} s are too few for a reading")
        };
        let of = |name: &str| after.per_second(before, NET, name);
        Ok(8.0 * (of("tx_bytes") + 4.0 * of("tx_frames")) / 1e6)
    }
}

/// Measured result for a rate limit that the programs reach without a shaper.
#[derive(Debug, Clone, Copy)]
struct Judged {
    proto: Proto,
    /// Index of the rate in [`RATES`], which is also its position on the x axis.
    at: f64,
    rate: f64,
    /// Mean throughput of all runs, in percent of the limit.
    mean: f64,
    /// Deviation of the worst run's throughput from the limit, in percent.
    worst: f64,
}

/// Measures all rate limits whose measurement uses the MTU of `bench`.
fn judge(
    context: &Context<'_>,
    bench: &mut Bench<'_>,
    outcome: &mut Outcome,
    judged: &mut Vec<Judged>,
) -> anyhow::Result<()> {
    let runs = context.live.runs.unwrap_or(1);
    let jumbo = bench.mtu == JUMBO;
    for proto in Proto::ALL {
        let most = bench.through(proto, None)?;
        let (name, mtu) = (proto.name(), bench.mtu);
        outcome.note(&format!("{name}_unshaped_mbps_mtu_{mtu}"), most);
        for (rate, at) in RATES.into_iter().zip([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) {
            let shown = rate >= WIDE_FROM && !jumbo;
            if jumbo && rate < WIDE_FROM {
                continue;
            }
            context.progress(at / 6.0, format_args!("{name} at {rate} Mbit/s"));
            if most < ROOM * rate {
                let why = format!("the programs reach {most:.0} Mbit/s without a shaper");
                outcome.note(&format!("{name}_{rate}_mtu_{mtu}_not_reached"), json!(why));
                continue;
            }
            let (mut mean, mut worst) = (0.0, 0.0_f64);
            for _ in 0..runs {
                let part = 100.0 * bench.through(proto, Some(rate))? / rate;
                mean += part / f64::from(runs);
                worst = worst.max((part - 100.0).abs());
            }
            if shown {
                outcome.note(&format!("{name}_{rate}_mtu_{mtu}_pct"), mean);
                continue;
            }
            judged.push(Judged { proto, at, rate, mean, worst });
        }
    }
    Ok(())
}

/// Runs the live experiment of VM jitter's Fig. 11.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs("iperf3", "iperf3")?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    with_both(&mut outcome, |guest| measure(context, &bed, secs, guest))?;
    outcome.note("generator_2000_pct", generated(&bed, secs)?);
    Ok(outcome)
}

/// Measures all rates and protocols, from a guest of the given kind.
fn measure(context: &Context<'_>, bed: &Bed, secs: f64, guest: Guest) -> anyhow::Result<Outcome> {
    let (mut outcome, mut judged) = (Outcome::default(), Vec::new());
    for mtu in [USUAL, JUMBO] {
        let name = if guest == Guest::Plain { "mtu" } else { "mtu-default" };
        let plan = guest.of(Plan { mtu, ..plan() });
        let stage = Stage::start(bed, &format!("{name}-{mtu}"), &plan)?;
        let mut bench = Bench { bed, stage, mtu, secs };
        judge(context, &mut bench, &mut outcome, &mut judged)?;
    }
    conclude(&mut outcome, &judged);
    Ok(outcome)
}

/// Returns the throughput with 1,518-byte frames from the load generator, in percent of the limit
/// of 2 Gbit/s.
fn generated(bed: &Bed, secs: f64) -> anyhow::Result<f64> {
    let mut plan = plan();
    plan.vms[VM_PLACE].more = format!("shape = {{ send = {} }}\n", bits(WIDE_FROM).0);
    let mut rig = Rig::ours(bed, "generator", &plan)?;
    let rate = Rate::Bits(WIDE_FROM * 1e6 * OFFERED);
    let offers = [(VM.to_owned(), Offer { size: 1_518.into(), flows: 1, rate })];
    let span = Span { warm: secs / 3.0, secs, parts: 1 };
    let window = rig.awake(|rig| rig.once(bed, &offers, span));
    // A paused daemon cannot exit.
    rig.switch.resume()?;
    let window = window?;
    let sent = window.sender(VM)?;
    Ok(100.0 * sent.parts.iter().sum::<f64>() / (WIDE_FROM * 1e6))
}

fn conclude(outcome: &mut Outcome, judged: &[Judged]) {
    for proto in Proto::ALL {
        let of = || judged.iter().filter(|judged| judged.proto == proto);
        outcome.series(proto.name(), "% of the limit", of().map(|j| (j.at, j.mean)));
        outcome.series(&format!("{} error", proto.name()), "%", of().map(|j| (j.at, j.worst)));
    }
    let worst = |wide: bool| {
        let of = || judged.iter().filter(|judged| (judged.rate >= WIDE_FROM) == wide);
        let all = RATES.iter().filter(|rate| (**rate >= WIDE_FROM) == wide).count();
        // If the programs could not reach one of the rates, the claim about all rates is not
        // measured.
        let whole = of().count() == all * Proto::ALL.len();
        if whole { of().map(|judged| judged.worst).fold(0.0, f64::max) } else { f64::NAN }
    };
    let what = "the largest error of a rate up to 200 Mbit/s";
    let claim = Claim::new("rate_error_pct_max", what, "%");
    outcome.claim(claim.at_most(BAR_PCT).measured(worst(false)));
    let claim = Claim::new("rate_error_pct_2g", "the largest error of the rate 2 Gbit/s", "%");
    outcome.claim(claim.at_most(WIDE_PCT).measured(worst(true)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_claimed_if_all_was_judged() {
        let of = |proto, rate, worst| Judged { proto, at: 0.0, rate, mean: 99.9, worst };
        let mut judged: Vec<_> = RATES.map(|rate| of(Proto::Tcp, rate, 0.2)).into();
        judged.extend(RATES.map(|rate| of(Proto::Udp, rate, 0.9)));
        judged[11].worst = 2.1;
        let measured = |judged: &[Judged]| {
            let mut outcome = Outcome::new();
            conclude(&mut outcome, judged);
            outcome.claims.iter().map(|c| (c.measured, c.holds)).collect::<Vec<_>>()
        };
        assert_eq!(measured(&judged), [(Some(0.9), Some(true)), (Some(2.1), Some(false))]);
        judged.pop();
        judged[3].worst = 1.2;
        assert_eq!(measured(&judged), [(Some(1.2), Some(false)), (None, Some(false))]);
    }
}
