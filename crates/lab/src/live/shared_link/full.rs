//! The claim `paced_utilisation_pct_min`: a backlogged link is full at any rate and with any mix of
//! frames.
//!
//! # Approach
//!
//! Three VMs of the load generator send 64-byte frames, 1,518-byte frames, or a mix of both and of
//! IMIX (RFC 6985). A Linux namespace sends one TCP stream of large segments, at first alone, and
//! then beside a namespace that sends 64-byte frames. All senders offer more than the link's rate.
//!
//! The generator's rates are those that arrived. The rates of namespaces are those that left the
//! switch ([`super::wire`]).
//!
//! # Departures
//!
//! A namespace cannot send enough 64-byte frames for its half of 1 Gbit/s. At 1 Gbit/s, TCP is
//! therefore measured alone, and the generator sends the mix.

use std::net::SocketAddrV4;
use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Rng;

use super::super::bracket::WAITED;
use super::super::stage::Stage;
use super::calm::Calm;
use super::flood::{Flood, Stream};
use super::traffic::shuffled;
use super::wire::departed_bps;
use crate::evidence::{Claim, Outcome};
use crate::rig::fleet::{Offer, Sent, Size};
use crate::rig::plan::{Bound, Plan, Vm};
use crate::rig::{Rig, Span};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

/// Rates of the link in Mbit/s.
const RATES: [u32; 3] = [10, 40, 1_000];
/// Mixes of the generator, each with the frames of its three VMs.
const MIXES: [(&str, [Size; 3]); 3] = [
    ("64 B", [Size::Of(64); 3]),
    ("1,518 B", [Size::Of(1_518); 3]),
    ("mixed", [Size::Of(64), Size::Of(1_518), Size::Imix]),
];
/// Mixes of namespaces, and whether a namespace sends 64-byte frames beside the TCP stream.
const STREAMS: [(&str, bool); 2] = [("TCP", false), ("TCP and 64 B", true)];
/// Highest rate in Mbit/s at which a namespace sends 64-byte frames fast enough.
const FLOODED_MOST: u32 = 40;
/// Bytes of preamble and gap. The generator counts the FCS itself.
const GAP: f64 = 20.0;
const UP: &str = "up";
const TCP: &str = "vm0";
const SMALL: &str = "vm1";
const UP_PLACE: usize = 2;
const SERVER: u16 = 5_201;
/// UDP port of the 64-byte frames (discard, RFC 863).
const DISCARD: u16 = 9;
/// Payload of a datagram in a 64-byte frame.
const SMALL_PAYLOAD: usize = 18;
const STEP: Duration = Duration::from_millis(250);
/// Seconds before a measurement of the generator and of namespaces.
const WARM: f64 = 0.3;
const SETTLE: f64 = 2.0;
/// Number of measurements of a cell in which the worker or the generator waited for its core.
const TRIES: u32 = 4;

/// Measures the link's use with all mixes and rates.
pub(super) fn measure(
    calm: &mut Calm<'_>,
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut curves = generated(calm, secs, rng)?;
    curves.extend(streams(calm, secs, rng)?);
    let used = curves.iter().flat_map(|(_, points)| points.iter().map(|(_, used)| *used));
    let least = used.fold(f64::INFINITY, f64::min);
    for (name, points) in curves {
        outcome.series(&format!("utilisation, {name}"), "% of the link", points);
    }
    let what = "lowest rate on the wire of a backlogged link, in per cent of the link's rate";
    let claim = Claim::new("paced_utilisation_pct_min", what, "%");
    outcome.claim(claim.at_least(99.0).measured(least));
    Ok(())
}

/// Name of a mix, and its points: rate of the link in Mbit/s, and used per cent.
type Curve = (&'static str, Vec<(f64, f64)>);

/// Returns all pairs of a mix and a rate in an order that depends on the seed.
fn cells(mixes: usize, rng: &mut Rng) -> Vec<(usize, u32)> {
    let cell = |at: usize| (at / RATES.len(), RATES[at % RATES.len()]);
    shuffled(mixes * RATES.len(), rng).into_iter().map(cell).collect()
}

/// Adds a point to a curve. The points stay ordered by rate.
fn add(curve: &mut Curve, mbps: u32, used: f64) {
    curve.1.push((f64::from(mbps), used));
    curve.1.sort_by(|one, other| one.0.total_cmp(&other.0));
}

fn link(mbps: u32) -> String {
    format!("egress = \"fair-share\"\nlink = \"{mbps}M\"\n")
}

fn generated(calm: &mut Calm<'_>, secs: f64, rng: &mut Rng) -> anyhow::Result<Vec<Curve>> {
    let bed = calm.bed;
    let sender = |vm: usize| Vm::sender(format!("vm{vm}"), UP, Bound::default());
    let mut vms: Vec<Vm> = (0..3).map(sender).collect();
    vms.push(Vm { more: link(RATES[0]), ..Vm::sink(UP) });
    let mut rig = Rig::ours(bed, "full", &Plan::new("", vms))?;
    rig.switch.resume()?;
    let mut curves: Vec<Curve> = MIXES.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for (mix, mbps) in cells(MIXES.len(), rng) {
        let rate = format!("link={mbps}M");
        rig.switch.ask(&["port", "set", UP, &rate, "--no-save"]).context("no Penstock")??;
        let offer = |(vm, size): (usize, Size)| {
            (format!("vm{vm}"), Offer { size, flows: 8, rate: Rate::Max })
        };
        let offers: Vec<_> = MIXES[mix].1.into_iter().enumerate().map(offer).collect();
        let bps = calm.cell(|| carried(&mut rig, bed, &offers, secs))?;
        add(&mut curves[mix], mbps, 100.0 * bps / (f64::from(mbps) * 1e6));
    }
    Ok(curves)
}

/// Returns the bits per second on the wire that arrived, in the window in which the worker and the
/// generator waited least for their cores.
fn carried(rig: &mut Rig, bed: &Bed, offers: &[(String, Offer)], secs: f64) -> anyhow::Result<f64> {
    let span = Span { warm: WARM, secs, parts: 1 };
    let mut best = rig.once(bed, offers, span)?;
    for _ in 1..TRIES {
        if best.wait() <= WAITED {
            break;
        }
        let next = rig.once(bed, offers, span)?;
        if next.wait() < best.wait() {
            best = next;
        }
    }
    let bits = |sent: &Sent| sent.parts.iter().sum::<f64>() + 8.0 * GAP * sent.pps;
    Ok(best.senders.iter().map(bits).sum())
}

fn streams(calm: &mut Calm<'_>, secs: f64, rng: &mut Rng) -> anyhow::Result<Vec<Curve>> {
    let bed = calm.bed;
    let sender = |name: &str| Vm::sender(name, UP, Bound::default());
    let up = Vm { more: link(RATES[0]), answers: true, ..Vm::sink(UP) };
    let plan = Plan::new("", vec![sender(TCP), sender(SMALL), up]);
    let mut stage = Stage::start(bed, "full-streams", &Plan { offloads: true, ..plan })?;
    stage.start_program(bed, UP, "iperf3", &["-s", "-p", &SERVER.to_string()])?;
    stage.await_tcp(TCP, UP_PLACE, SERVER)?;
    let mut curves: Vec<Curve> = STREAMS.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for (mix, mbps) in cells(STREAMS.len(), rng) {
        let flooded = STREAMS[mix].1;
        if flooded && mbps > FLOODED_MOST {
            continue;
        }
        let port = 20_000 + u16::try_from(rng.below(10_000))?;
        stage.change("port", UP, &[&format!("link={mbps}M")])?;
        let flood = flooded.then_some(port);
        let bps = calm.cell(|| streamed(bed, &mut stage, flood, secs))?;
        add(&mut curves[mix], mbps, 100.0 * bps / (f64::from(mbps) * 1e6));
    }
    Ok(curves)
}

/// Returns the bits per second on the wire of a TCP stream, and of a flood from the source port
/// `flood`, if there is one.
fn streamed(bed: &Bed, stage: &mut Stage, flood: Option<u16>, secs: f64) -> anyhow::Result<f64> {
    let (to, port) = (Plan::ip(UP_PLACE), SERVER.to_string());
    let (server, lasts) = (to.to_string(), format!("{:.0}", (SETTLE + secs + 1.0).ceil()));
    let words = ["-c", &server, "-p", &port, "-t", &lasts, "-C", "cubic"];
    let flood = flood
        .map(|first_port| {
            let stream = Stream {
                payloads: vec![SMALL_PAYLOAD],
                to: vec![SocketAddrV4::new(to, DISCARD)],
                flows: 1,
                first_port,
                per_second: None,
            };
            Flood::start(stage.namespace(SMALL)?, bed.generator_core(), stream)
        })
        .transpose()?;
    let program = stage.start_program(bed, TCP, "iperf3", &words)?;
    stage.watch(SETTLE, STEP)?;
    let readings = stage.watch(secs, STEP)?;
    flood.map_or(Ok(()), Flood::end)?;
    // A client whose last frames wait at a slow link would end late, and its server would refuse
    // the next client.
    stage.end_programs(program..program + 1);
    stage.await_silence(TCP)?;
    stage.await_silence(SMALL)?;
    let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
    Ok(departed_bps(first, last, TCP) + departed_bps(first, last, SMALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_has_every_rate_once() {
        let mut cells = cells(MIXES.len(), &mut Rng::new(3));
        cells.sort_unstable();
        let all = (0..MIXES.len()).flat_map(|mix| RATES.map(|rate| (mix, rate)));
        assert_eq!(cells, all.collect::<Vec<_>>());
    }

    #[test]
    fn a_curve_is_ordered_by_rate() {
        let mut curve = ("64 B", Vec::new());
        add(&mut curve, 1_000, 99.5);
        add(&mut curve, 10, 99.9);
        assert_eq!(curve.1, [(10.0, 99.9), (1_000.0, 99.5)]);
    }
}
