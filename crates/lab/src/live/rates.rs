//! VM jitter, Fig. 11, live: what a shaped VM gets through, by TCP and by UDP.
//!
//! **Problem.** A shaper must give the rate it was told, whatever the traffic: a rate that smooths
//! well but is 5 % off cannot be sold. **Source.** VM jitter §V-B, Fig. 11: netperf at 4, 8, 16 and
//! 32 Mbit/s, TCP and UDP; 200 Mbit/s and 2 Gbit/s are ours.
//!
//! **Rule.** A namespace behind a vhost-user endpoint runs iperf3 to another, by `shape.send` of
//! its port, set while it runs; UDP offers a quarter more than the rate. The rate is that of the
//! frames that the switch delivered, FCS included, over [`SECS`] after a third of that. A rate that
//! the programs do not reach without a shaper is told and not judged. **Cost.** Two minutes.

use std::time::Duration;

use penstock_units::BitsPerSecond;
use serde_json::json;

use super::plan::Plan;
use super::rig::platform;
use super::shaped::{NET, NET_PLACE, VM, plan, shape, unshape};
use super::stage::Stage;
use crate::bench::bed::Bed;
use crate::figures::{Claim, Context, Kind, Outcome};

/// Mbit/s.
const RATES: [f64; 6] = [4.0, 8.0, 16.0, 32.0, 200.0, 2_000.0];
/// From this one on the bar is [`WIDE_PCT`].
const WIDE_FROM: f64 = 2_000.0;
const BAR_PCT: f64 = 1.0;
const WIDE_PCT: f64 = 2.0;
/// Seconds of a measurement.
const SECS: f64 = 6.0;
/// Between two readings.
const STEP: Duration = Duration::from_millis(250);
/// What UDP offers of the rate.
const OFFERED: f64 = 1.25;
/// How much more than a rate the programs must reach without a shaper.
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

/// Mbit/s that arrive while a client sends by `proto`, at most `mbps` of them if that is given.
fn through(
    bed: &Bed,
    stage: &mut Stage,
    proto: Proto,
    mbps: Option<f64>,
    secs: f64,
) -> anyhow::Result<f64> {
    match mbps {
        None => unshape(stage)?,
        Some(mbps) => shape(stage, Kind::Smooth, bits(mbps))?,
    }
    let first = stage.programs();
    let port = (5300 + first % 1_000).to_string();
    stage.start_program(bed, NET, "iperf3", &["-s", "-p", &port])?;
    stage.await_tcp(VM, NET_PLACE, 5300 + u16::try_from(first % 1_000).unwrap_or(0))?;
    let server = Plan::ip(NET_PLACE).to_string();
    let mut words = vec!["-c", &server, "-p", &port, "-t", "600"];
    let offered = mbps.map_or("0".to_owned(), |m| format!("{:.0}", m * 1e6 * OFFERED));
    if proto == Proto::Udp {
        words.extend(["-u", "-l", "1472", "-b", &offered]);
    }
    stage.start_program(bed, VM, "iperf3", &words)?;
    let readings = stage.watch(secs * 4.0 / 3.0, STEP)?;
    stage.end_programs(first..first + 2);
    let counted = &readings[readings.len() / 4..];
    let [before, .., after] = counted else { anyhow::bail!("{secs} s are too few for a reading") };
    let of = |name: &str| after.per_second(before, NET, name);
    Ok(8.0 * (of("tx_bytes") + 4.0 * of("tx_frames")) / 1e6)
}

/// Runs it.
///
/// # Errors
/// When a program is missing or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    super::needs("iperf3", "iperf3")?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let mut stage = Stage::start(&bed, "rates", &plan())?;
    let (mut worst, mut wide) = (f64::NAN, f64::NAN);
    for (proto, done) in Proto::ALL.into_iter().zip([0.0, 0.5]) {
        context.progress(done, proto.name());
        let most = through(&bed, &mut stage, proto, None, secs)?;
        outcome.note(&format!("{}_unshaped_mbps", proto.name()), most);
        let mut errors = Vec::new();
        for (rate, at) in RATES.into_iter().zip([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) {
            if most < ROOM * rate {
                let why = format!("the programs reach {most:.0} Mbit/s without a shaper");
                outcome.note(&format!("{}_{rate}_not_judged", proto.name()), json!(why));
                continue;
            }
            let got = through(&bed, &mut stage, proto, Some(rate), secs)?;
            let error = 100.0 * (got / rate - 1.0);
            errors.push((at, error));
            let worse = if rate >= WIDE_FROM { &mut wide } else { &mut worst };
            *worse = worse.max(error.abs());
        }
        let of_limit = errors.iter().map(|&(at, error)| (at, 100.0 + error));
        outcome.series(proto.name(), "% of the limit", of_limit);
        let sizes = errors.iter().map(|&(at, error)| (at, error.abs()));
        outcome.series(&format!("{} error", proto.name()), "%", sizes);
    }
    outcome.claim(
        Claim::new("rate_error_pct_max", "the largest error of a rate up to 200 Mbit/s", "%")
            .at_most(BAR_PCT)
            .measured(worst),
    );
    if !wide.is_nan() {
        outcome.claim(
            Claim::new("rate_error_pct_2g", "the same at 2 Gbit/s", "%")
                .at_most(WIDE_PCT)
                .measured(wide),
        );
    }
    Ok(outcome)
}
