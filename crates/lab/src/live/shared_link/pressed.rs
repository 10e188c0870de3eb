//! The claims `hold_lost_frames` and `other_output_kept_pct`: VMs that send more than their outputs
//! carry lose no frame, and their other traffic passes.
//!
//! # Approach
//!
//! Three namespaces send datagrams of all lengths to 1 to 8 outputs, as fast as their NICs take
//! them. Each output has `fair-share` and a link of [`OUTPUT_MBPS`]. In half of the cells, each VM
//! also has a shaper, which is faster than its part of the outputs. The value is the number of
//! frames from the VMs that the switch dropped.
//!
//! Then a VM sends datagrams to a neighbour at a fixed rate, alone and beside its own bulk TCP to
//! an uplink of 100 Mbit/s, in turn. A datagram that its NIC does not take within 10 ms is not
//! sent. The value is the rate that reaches the neighbour beside the TCP stream, in per cent of the
//! rate alone. The same value beside a flood that fills the VM's ring has no band.
//!
//! # Departures
//!
//! An output with `fair-share` has the rate of its link, and the configuration allows no other
//! shaper for it. Only VMs have shapers here.

use std::net::SocketAddrV4;
use std::time::Duration;

use penstock_units::Rng;

use super::super::stage::Stage;
use super::calm::Calm;
use super::flood::{Flood, Stream, deaf};
use super::traffic::shuffled;
use crate::evidence::{Claim, Outcome};
use crate::rig::plan::{Plan, Vm};
use crate::rig::stats::{middle, to_f64};
use penstock_guest::bed::Bed;

const VMS: usize = 3;
const OUTPUTS: usize = 8;
/// Rate of each output's link in Mbit/s.
const OUTPUT_MBPS: u32 = 20;
/// Rate of a VM's shaper for each output to which the VM sends, in Mbit/s.
const SHAPED_MBPS: u32 = 12;
/// Payloads of the datagrams, from 64-byte frames to full frames.
const PAYLOADS: [usize; 4] = [18, 200, 700, 1_472];
/// UDP port of all datagrams.
const PORT: u16 = 5_400;
const FLOWS: u16 = 4;
const STEP: Duration = Duration::from_millis(250);
/// Seconds in which addresses are learned and queues fill.
const SETTLE: f64 = 0.5;

const VM: &str = "vm";
const NEIGHBOUR: &str = "neighbour";
const UP: &str = "up";
/// Places of the neighbour and of the uplink in the plan.
const PLACES: (usize, usize) = (1, 2);
const SERVER: u16 = 5_201;
/// Datagrams per second to the neighbour: 97 Mbit/s of 1,518-byte frames.
const TO_NEIGHBOUR: f64 = 8_000.0;
/// Seconds of the VM's other traffic before a measurement.
const PRESS: f64 = 3.0;

fn vm(number: usize) -> String {
    format!("vm{number}")
}

fn named(name: String) -> Vm {
    Vm { name, ..Vm::default() }
}

/// Measures lost frames.
pub(super) fn hold(
    calm: &mut Calm<'_>,
    rng: &mut Rng,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let bed = calm.bed;
    let more = format!("egress = \"fair-share\"\nlink = \"{OUTPUT_MBPS}M\"\n");
    let output = |n: usize| Vm { more: more.clone(), ..named(format!("out{n}")) };
    let vms = (0..VMS).map(|number| named(vm(number))).chain((0..OUTPUTS).map(output));
    let plan = Plan { offloads: true, ..Plan::new("", vms.collect()) };
    let stage = Stage::start(bed, "hold", &plan)?;
    let open = |n: usize| deaf(stage.namespace(&format!("out{n}"))?, vec![PORT]);
    let _deaf = (0..OUTPUTS).map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut lost, mut held) = (0, u64::MAX);
    for (shaped, name) in [(false, "no shaper"), (true, "VMs with shapers")] {
        let mut points = Vec::new();
        for n in shuffled(OUTPUTS, rng) {
            let outputs = n + 1;
            shape(&stage, shaped.then_some(outputs))?;
            let seed = rng.next_u64();
            let (here, waits) = calm.cell(|| pressed(bed, &stage, outputs, seed))?;
            (lost, held) = (lost + here, held.min(waits));
            points.push((to_f64(outputs as u64), to_f64(here)));
        }
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        outcome.series(&format!("lost, {name}"), "frames", points);
    }
    let what = "lost frames of VMs that press 1 to 8 outputs, with and without shapers";
    let claim = Claim::new("hold_lost_frames", what, "frames");
    outcome.claim(claim.at_most(0.0).measured(to_f64(lost)));
    let what = "fewest times that the switch held the VMs back in a cell";
    outcome.claim(Claim::new("hold_held_back_min", what, "times").measured(to_f64(held)));
    Ok(())
}

/// Gives each VM a shaper for its traffic to `outputs` outputs, or takes the shaper away.
fn shape(stage: &Stage, outputs: Option<usize>) -> anyhow::Result<()> {
    let shape = match outputs {
        None => "shape=".to_owned(),
        Some(outputs) => {
            format!("shape={{ send = \"{}M\" }}", SHAPED_MBPS * u32::try_from(outputs)?)
        }
    };
    (0..VMS).try_for_each(|number| stage.set(&vm(number), &shape))
}

/// Lets the VMs press `outputs` outputs. Returns the number of lost frames, and the number of times
/// that the switch held a VM back.
fn pressed(bed: &Bed, stage: &Stage, outputs: usize, seed: u64) -> anyhow::Result<(u64, u64)> {
    let mut rng = Rng::new(seed);
    let before = stage.read()?;
    let mut floods = Vec::new();
    for number in shuffled(VMS, &mut rng) {
        let to = shuffled(outputs, &mut rng);
        let to = to.into_iter().map(|n| SocketAddrV4::new(Plan::ip(VMS + n), PORT)).collect();
        let first_port = 20_000 + u16::try_from(rng.below(10_000))?;
        let payloads = PAYLOADS.to_vec();
        let stream = Stream { payloads, to, flows: FLOWS, first_port, per_second: None };
        let netns = stage.namespace(&vm(number))?;
        floods.push(Flood::start(netns, bed.generator_core(), stream)?);
    }
    stage.watch(2.0 * SETTLE, STEP)?;
    floods.into_iter().try_for_each(Flood::end)?;
    let after = stage.read()?;
    let all = |of: &dyn Fn(&str) -> u64| (0..VMS).map(|number| of(&vm(number))).sum::<u64>();
    let lost = all(&|vm| after.dropped(&before, vm));
    let held = all(&|vm| after.grown(&before, vm, "held_back"));
    // The waiting frames must not count for the next cell.
    (0..VMS).try_for_each(|number| stage.await_silence(&vm(number)))?;
    Ok((lost, held))
}

/// What a VM sends beside its traffic to the neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Tcp,
    Flood,
}

/// Measures the traffic to a neighbour.
pub(super) fn other_output(
    calm: &mut Calm<'_>,
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let bed = calm.bed;
    let more = "egress = \"fair-share\"\nlink = \"100M\"\n".to_owned();
    let vms = vec![
        named(VM.to_owned()),
        named(NEIGHBOUR.to_owned()),
        Vm { more, ..named(UP.to_owned()) },
    ];
    let plan = Plan { offloads: true, ..Plan::new("", vms) };
    let mut stage = Stage::start(bed, "other", &plan)?;
    stage.start_program(bed, UP, "iperf3", &["-s", "-p", &SERVER.to_string()])?;
    stage.await_tcp(VM, PLACES.1, SERVER)?;
    let _deaf = deaf(stage.namespace(NEIGHBOUR)?, vec![PORT])?;
    let (mut tcp, mut flood) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut rate = |beside: Beside| -> anyhow::Result<f64> {
            let port = 20_000 + u16::try_from(rng.below(10_000))?;
            calm.cell(|| to_neighbour(bed, &mut stage, beside, (secs, port)))
        };
        let alone = rate(Beside::Nothing)?;
        tcp.push(100.0 * rate(Beside::Tcp)? / alone);
        flood.push(100.0 * rate(Beside::Flood)? / alone);
        outcome.note("to_neighbour_alone_frames_per_second", alone);
    }
    let (kept, flooded) = (middle(&tcp), middle(&flood));
    let what = "rate to a neighbour while the VM's bulk TCP presses the uplink, of the rate alone";
    let claim = Claim::new("other_output_kept_pct", what, "%");
    outcome.claim(claim.at_least(98.0).measured(kept));
    let what = "the same while the VM fills its ring with frames to the uplink";
    outcome.claim(Claim::new("other_output_kept_pct_flood", what, "%").measured(flooded));
    outcome.series("kept", "% of the frames to a neighbour", [(0.0, kept), (1.0, flooded)]);
    Ok(())
}

/// Returns the frames per second that reach the neighbour.
fn to_neighbour(
    bed: &Bed,
    stage: &mut Stage,
    beside: Beside,
    (secs, first_port): (f64, u16),
) -> anyhow::Result<f64> {
    let core = bed.generator_core();
    let stream = |place: usize, flows: u16, first_port: u16, per_second: Option<f64>| Stream {
        payloads: vec![1_472],
        to: vec![SocketAddrV4::new(Plan::ip(place), PORT)],
        flows,
        first_port,
        per_second,
    };
    let first_program = stage.programs();
    let mut floods = Vec::new();
    match beside {
        Beside::Nothing => {}
        Beside::Flood => {
            let stream = stream(PLACES.1, FLOWS, first_port + 1, None);
            floods.push(Flood::start(stage.namespace(VM)?, core, stream)?);
        }
        Beside::Tcp => {
            let (to, port) = (Plan::ip(PLACES.1).to_string(), SERVER.to_string());
            let lasts = format!("{:.0}", (PRESS + secs + 2.0).ceil());
            let words = ["-c", &to, "-p", &port, "-t", &lasts, "-C", "cubic"];
            stage.start_program(bed, VM, "iperf3", &words)?;
        }
    }
    let paced = stream(PLACES.0, 1, first_port, Some(TO_NEIGHBOUR));
    floods.push(Flood::start(stage.namespace(VM)?, core, paced)?);
    stage.watch(PRESS, STEP)?;
    let readings = stage.watch(secs, STEP)?;
    floods.into_iter().try_for_each(Flood::end)?;
    stage.end_programs(first_program..stage.programs());
    stage.await_silence(VM)?;
    let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
    Ok(last.per_second(first, NEIGHBOUR, "tx_frames"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shaper_is_faster_than_a_vms_part_of_the_outputs() {
        // Otherwise the VMs would press no output.
        let vms = u32::try_from(VMS).unwrap();
        assert!(SHAPED_MBPS * vms > OUTPUT_MBPS);
    }
}
