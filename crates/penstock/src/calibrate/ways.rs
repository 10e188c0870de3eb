//! Measures what a frame costs more if it comes from an interface of the kernel, or goes to one, or
//! to a VM that waits for interrupts, instead of a VM that polls.
//!
//! A VM's frames leave the switch through one interface, cross the kernel once, and return to a
//! second VM through another interface ([`Outside`]). The costs of the first VM's port contain the
//! way out, and the costs of the second interface's port contain the way in. The differences from
//! the same frames between two VMs are the costs of the ways. The interfaces are a veth or TAPs in
//! a network namespace of their own, so the host's interfaces carry no test traffic. The costs
//! contain what the kernel does in the worker's system calls.

use std::collections::BTreeMap;

use anyhow::Context as _;
use penstock_guest::bed::Bed;
use penstock_guest::bed::outside::{ENDS, Outside, Through};
use penstock_guest::load::{Rate, SizeMix};
use penstock_qos::cost_model::{Action, ActionTerm, RingKind, Source, Spread};

use super::rig::{Load, Rig, Setting, Times};

const SIZES: [u16; 2] = [64, 1500];
/// A way is not measured if the interface drops more than this part of the frames.
const LOST: f64 = 0.05;
/// Shortest window of a measurement, in seconds. Interfaces of the kernel move frames in bursts,
/// and a window needs some hundred batches.
const WINDOW_SECS: f64 = 0.1;

/// Types of interfaces, with the actions of a frame to and from one.
pub(super) const WAYS: [(Through, Action, Action); 3] = [
    (Through::Tap, Action::ToTap, Action::FromTap),
    (Through::Packet, Action::ToPacket, Action::FromPacket),
    (Through::Xdp, Action::ToXdp, Action::FromXdp),
];

/// Costs of ways, and sentences about ways that could not be measured.
pub(super) struct Ways {
    pub terms: BTreeMap<Action, ActionTerm>,
    pub notes: Vec<String>,
}

/// Costs of a frame of each of [`SIZES`], in cycles.
type Costs = [f64; SIZES.len()];

/// Measures all ways. A way that this machine cannot provide becomes a note.
///
/// # Errors
/// Returns an error if frames between VMs cannot be measured.
pub(super) fn measure(bed: &Bed, times: Times, rounds: u32, burst: usize) -> anyhow::Result<Ways> {
    let times = Times { window_secs: times.window_secs.max(WINDOW_SECS), ..times };
    let mut ways = Ways { terms: BTreeMap::new(), notes: Vec::new() };
    let mut plain = Rig::start(bed, &setting("ways", rules("v1", "v0")))?;
    for (way, out, back) in WAYS {
        let measured = Outside::create(bed.guard(), way, netns("c", way), &ENDS)
            .and_then(|outside| pair(bed, &outside, &mut plain, (times, rounds, burst)));
        match measured {
            Ok([to, from]) => ways.terms.extend([(out, to), (back, from)]),
            Err(error) => ways.notes.push(format!(
                "frames to and from {} ports were not measured: {error:#}",
                way.name()
            )),
        }
    }
    ways.terms.insert(Action::ToInterrupt, interrupts(bed, &mut plain, (times, rounds, burst))?);
    Ok(ways)
}

/// Measures frames to a VM that waits for interrupts.
fn interrupts(
    bed: &Bed,
    plain: &mut Rig,
    (times, rounds, burst): (Times, u32, usize),
) -> anyhow::Result<ActionTerm> {
    let setting = setting("interrupts", rules("v1", "v0"));
    let mut rig = Rig::start(bed, &Setting { interrupts: true, ..setting })?;
    let mut seen = Vec::new();
    for _ in 0..rounds {
        let alone = costs(plain, bed, "v1", times, burst)?;
        let with = costs(&mut rig, bed, "v1", times, burst)?;
        seen.push([with[0] - alone[0], with[1] - alone[1]]);
    }
    term(&seen)
}

fn setting(name: &str, rules: String) -> Setting {
    Setting::plain(name, RingKind::Split, rules)
}

/// Returns the name of the network namespace with interfaces of this type. `what` distinguishes
/// namespaces of one process.
pub(super) fn netns(what: &str, way: Through) -> String {
    format!("p{what}{}-{}", std::process::id(), way.name())
}

/// Returns the uplink ports, and the rules that send the first VM's frames out through one
/// interface and back through the other.
pub(super) fn hops(outside: &Outside) -> String {
    let [first, second] = ENDS;
    // Frames of the kernel that come in at the first interface would go round for ever.
    let stop = format!(
        "\n[[rule]]\nname = \"stop\"\npriority = 10\nport = \"{first}\"\nmatch = {{}}\n\
         actions = [\"drop\"]\n"
    );
    outside.ports("") + &rules("v1", first) + &rules(second, "v0") + &stop
}

/// Returns a rule that sends all frames of one port to another.
fn rules(from: &str, to: &str) -> String {
    format!(
        "\n[[rule]]\nname = \"{from}\"\npriority = 10\nport = \"{from}\"\nmatch = {{}}\n\
         actions = [\"output:{to}\"]\n"
    )
}

/// Measures the way out through the interfaces `outside`, and the way in.
fn pair(
    bed: &Bed,
    outside: &Outside,
    plain: &mut Rig,
    (times, rounds, burst): (Times, u32, usize),
) -> anyhow::Result<[ActionTerm; 2]> {
    let [first, second] = ENDS;
    let hops = hops(outside);
    let mut rig = Rig::start_with(bed, &setting(outside.way.name(), hops), || outside.join())?;
    let mut seen: [Vec<Costs>; 2] = Default::default();
    for _ in 0..rounds {
        let alone = costs(plain, bed, "v1", times, burst)?;
        for (seen, port) in seen.iter_mut().zip(["v1", second]) {
            let with = costs(&mut rig, bed, port, times, burst)?;
            seen.push([with[0] - alone[0], with[1] - alone[1]]);
        }
    }
    let lost = rig.tx_dropped_part(first)?;
    anyhow::ensure!(lost <= LOST, "the interface dropped {:.0} % of the frames", 100.0 * lost);
    let [to, from] = seen;
    Ok([term(&to)?, term(&from)?])
}

fn costs(
    rig: &mut Rig,
    bed: &Bed,
    port: &'static str,
    times: Times,
    burst: usize,
) -> anyhow::Result<Costs> {
    let mut costs = [0.0; SIZES.len()];
    for (cost, size) in costs.iter_mut().zip(SIZES) {
        let load = Load { sizes: SizeMix::fixed(size), flows: 1, rate: Rate::Max, burst };
        rig.count_only(port);
        *cost = rig.sample(bed, &load, times)?.stages.total();
    }
    Ok(costs)
}

/// Returns a way's costs as a linear function of a frame's size.
fn term(seen: &[Costs]) -> anyhow::Result<ActionTerm> {
    let [small, large] = SIZES.map(f64::from);
    let slopes: Vec<f64> =
        seen.iter().map(|of| ((of[1] - of[0]) / (large - small)).max(0.0)).collect();
    let per_byte = Spread::of(&slopes).context("no way was measured")?.median;
    let frames: Vec<f64> = seen.iter().map(|of| (of[0] - small * per_byte).max(0.0)).collect();
    let per_frame = Spread::of(&frames).context("no way was measured")?;
    Ok(ActionTerm { per_frame, per_byte, source: Source::Measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_costs_a_part_for_each_frame_and_one_for_each_byte() {
        let ActionTerm { per_frame, per_byte, .. } =
            term(&[[164.0, 882.0], [174.0, 892.0], [154.0, 872.0]]).unwrap();
        assert!((per_byte - 0.5).abs() < 1e-9, "{per_byte}");
        assert!((per_frame.median - 132.0).abs() < 1e-9, "{per_frame:?}");
        assert!((per_frame.max - per_frame.min - 20.0).abs() < 1e-9);
        let cheaper = term(&[[-5.0, -5.0]]).unwrap();
        assert!(cheaper.per_frame.median.abs() < 1e-9, "a way never costs less than nothing");
        assert!(term(&[]).is_err());
    }
}
