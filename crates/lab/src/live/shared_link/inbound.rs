//! The live form of the claim `inbound_share_error_pct`: what arrives through an uplink is shared
//! by weight, if the configured rate or the worker's core is too slow.
//!
//! # Approach
//!
//! Tenants and VMs are those of the simulation ([`crate::figures::inbound_shares`]). Each VM is a
//! network namespace. The senders are threads in another namespace, which send full datagrams
//! through a veth to an AF_XDP uplink with `inbound`. Their rates are those of the simulation: all
//! tenants receive, or one of them receives nothing.
//!
//! - *Link*: `inbound.rate` is [`LINK_MBPS`], and the core is fast enough.
//! - *Core*: `inbound.rate` is higher than what the core can deliver. The worker may use such a
//!   part of its core that it delivers about [`TARGET`] frames per second without shares.
//!
//! All frames have the same length, so the value is the largest deviation of a VM's frames per
//! second from its share by weight of all delivered frames.
//!
//! # Proof that the generator is not the limit
//!
//! - Without shares, the slow worker delivers less than what the senders offer. Otherwise the
//!   experiment fails.
//! - Each VM that receives gets more frames through the uplink than its share of the delivered ones
//!   (`inbound_excess_pct_min`). A VM with fewer frames would have its whole demand, and not a
//!   share.
//!
//! # Load of the slow core
//!
//! How many frames the core delivers beside its refusals depends on the costs of both. One run with
//! shares measures the costs ([`overload`]), and the other runs then offer so many frames that each
//! VM receives more than its share.
//!
//! # Departures
//!
//! The senders do not react to marks and losses. The kernel does not complete the checksums of
//! frames to an AF_XDP socket, so the receiving kernels drop the datagrams. The switch counts the
//! frames.

use std::fs::File;
use std::net::SocketAddrV4;
use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Rng;

use super::super::stage::{Reading, Stage};
use super::calm::Calm;
use super::flood::{Flood, Stream, deaf};
use super::traffic::shuffled;
use crate::evidence::{Claim, Outcome};
use crate::figures::inbound_shares::{OFFERED, TENANTS, VMS, part_of, share_error};
use crate::rig::plan::{AllTo, Plan, Vm};
use crate::rig::stats::to_f64;
use crate::rig::through::{Outside, STATION, uplink};
use penstock_guest::bed::Bed;

/// Name of the uplink and of its interface.
const UP: &str = "u0";
/// Payload of a datagram in a full frame, and bits of the frame on the link.
const PAYLOAD: usize = 1_472;
const FRAME_BITS: f64 = 1_538.0 * 8.0;
/// UDP port of all datagrams.
const PORT: u16 = 5_400;
/// Rate that the tenants share in the runs of *link*, in Mbit/s.
const LINK_MBPS: u32 = 50;
/// Rate of the uplink in the runs of *core*: more than the slow core can deliver.
const CORE_RATE: &str = "2G";
/// Frames per second that the slow core delivers without shares, about. The sharing of a slow core
/// needs three batches of 32 frames in a millisecond, refused frames included.
const TARGET: f64 = 60_000.0;
/// Frames per second that the senders offer to find the speed of a worker.
const FLOOD: f64 = 1.6 * TARGET;
/// Part of [`FLOOD`] that a worker may deliver at most, so that the worker is the limit.
const DELIVERED_MOST: f64 = 0.95;
/// Fraction of the core that the first worker may use.
const CORE_PART: f64 = 0.02;
/// Part of the rate to which the arrivals of [`OFFERED`] relate in the runs of *link*.
const BESIDE_REFUSALS: f64 = 0.7;
/// All arrivals of a run, in units of [`OFFERED`].
const ALL: f64 = 1.8;
/// Arrivals, in units of [`OFFERED`], per delivered part of the speed without shares. Each VM then
/// receives at least 5 % more than its share.
const EXCESS: f64 = 1.5;
const STEP: Duration = Duration::from_millis(250);
/// Seconds before a measurement. The buckets of all overloaded VMs are empty then.
const SETTLE: f64 = 1.0;
/// Seconds of a measurement of a worker's speed.
const SPEED_SECS: f64 = 0.8;

/// A switch with an uplink, and a namespace outside of it.
#[derive(Debug)]
struct Arrivals {
    stage: Stage,
    netns: String,
}

/// Measurements of one run.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Frames per second that each VM got.
    delivered: [f64; VMS.len()],
    /// Frames that arrived for each VM, divided by the delivered ones.
    arrived: [f64; VMS.len()],
}

impl Found {
    fn all(&self) -> f64 {
        self.delivered.iter().sum()
    }

    /// Returns the lowest number of frames that arrived for a VM, in per cent of the VM's share of
    /// all delivered frames.
    fn excess_pct(&self, offered: &[f64; TENANTS.len()]) -> f64 {
        let busy = (0..VMS.len()).filter(|vm| offered[VMS[*vm].0] > 0.0);
        let excess = |vm: usize| {
            let due = self.all() * part_of(vm, offered);
            100.0 * self.delivered[vm] * self.arrived[vm] / due
        };
        busy.map(excess).fold(f64::INFINITY, f64::min)
    }
}

fn vm(number: usize) -> String {
    format!("vm{number}")
}

/// Four VMs of three tenants, which receive through an uplink of a worker with `capacity` cycles
/// per second.
fn plan(capacity: f64, outside: Outside) -> Plan {
    let receiver = |(number, (tenant, weight)): (usize, (usize, u64))| Vm {
        name: vm(number),
        tenant: Some((format!("tenant{tenant}"), u32::try_from(TENANTS[tenant]).unwrap_or(1))),
        more: format!("uplink_share = {weight}\n"),
        ..Vm::default()
    };
    let vms = VMS.into_iter().enumerate().map(receiver).collect();
    let worker = format!("capacity = {capacity:.0}\n");
    Plan { worker, prompt: true, all_to: Some(AllTo::From(outside)), ..Plan::new("", vms) }
}

impl Arrivals {
    fn start(bed: &Bed, name: &str, core_part: f64) -> anyhow::Result<Self> {
        let outside = uplink(bed, name)?;
        let vms: Vec<_> = (0..VMS.len()).map(|vm| (Plan::ip(vm), Plan::mac(vm))).collect();
        outside.inhabit(STATION.1, &vms)?;
        let netns = outside.netns.clone();
        let stage = Stage::start(bed, name, &plan(core_part * bed.tsc_hz(), outside))?;
        Ok(Self { stage, netns })
    }

    /// Sets `inbound.rate`, or removes `inbound` if there is no rate.
    fn share(&self, rate: Option<&str>) -> anyhow::Result<()> {
        let table = rate.map(|rate| format!("{{ rate = \"{rate}\" }}")).unwrap_or_default();
        self.stage.set(UP, &format!("inbound={table}"))
    }

    /// Sends `offered` frames per second to the VMs of each tenant. The VMs of a tenant get equal
    /// numbers of frames. The seed determines ports, and the order in which the senders start.
    fn run(
        &self,
        bed: &Bed,
        offered: [f64; TENANTS.len()],
        (secs, seed): (f64, u64),
    ) -> anyhow::Result<Found> {
        let mut rng = Rng::new(seed);
        let path = format!("/run/netns/{}", self.netns);
        let open = |vm_at: usize| deaf(self.stage.namespace(&vm(vm_at))?, vec![PORT]);
        let _deaf = (0..VMS.len()).map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let mut floods = Vec::new();
        for tenant in shuffled(TENANTS.len(), &mut rng) {
            if offered[tenant] <= 0.0 {
                continue;
            }
            let vms = (0..VMS.len()).filter(|vm| VMS[*vm].0 == tenant);
            let stream = Stream {
                payloads: vec![PAYLOAD],
                to: vms.map(|vm| SocketAddrV4::new(Plan::ip(vm), PORT)).collect(),
                flows: 1,
                first_port: 20_000 + u16::try_from(rng.below(10_000))?,
                per_second: Some(offered[tenant]),
            };
            let netns = File::open(&path).with_context(|| path.clone())?;
            floods.push(Flood::start(netns, bed.generator_core(), stream)?);
        }
        self.stage.watch(SETTLE, STEP)?;
        let readings = self.stage.watch(secs, STEP)?;
        floods.into_iter().try_for_each(Flood::end)?;
        let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
        Ok(found(first, last))
    }

    /// Returns the frames per second that the worker delivers without shares, if more arrive.
    fn speed(&self, bed: &Bed, seed: u64) -> anyhow::Result<f64> {
        self.share(None)?;
        let found = self.run(bed, [FLOOD / 3.0; TENANTS.len()], (SPEED_SECS, seed))?;
        Ok(found.all())
    }
}

fn found(first: &Reading, last: &Reading) -> Found {
    let of = |number: usize| {
        let vm = vm(number);
        let passed = to_f64(last.grown(first, &vm, "tx_frames"));
        let arrived = (passed + to_f64(last.dropped(first, &vm))) / passed.max(1.0);
        (last.per_second(first, &vm, "tx_frames"), arrived)
    };
    let all: [(f64, f64); VMS.len()] = core::array::from_fn(of);
    Found { delivered: all.map(|vm| vm.0), arrived: all.map(|vm| vm.1) }
}

/// Returns the arrivals of the runs of *core* in units of [`OFFERED`], relative to the worker's
/// speed without shares. `delivered` is the part of the speed that the worker delivered when the
/// arrivals were equal to the speed.
///
/// If a delivered frame costs r times as much as a refused one, and A frames arrive per frame of
/// the speed, the worker delivers the part x with x + (A - x) / r = 1.
fn overload(delivered: f64) -> f64 {
    let ratio = ((ALL - delivered) / (1.0 - delivered).max(0.05)).max(1.5);
    EXCESS / (1.0 + (EXCESS * ALL - 1.0) / ratio)
}

/// Measures the shares while the link or the core is too slow.
pub(super) fn measure(
    calm: &mut Calm<'_>,
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let bed = calm.bed;
    let mut worst = Worst { error: 0.0, excess: f64::INFINITY };
    let link = Arrivals::start(bed, "inbound-link", CORE_PART)?;
    let first = link.speed(bed, rng.next_u64())?;
    link.share(Some(format!("{LINK_MBPS}M").as_str()))?;
    let rate = f64::from(LINK_MBPS) * 1e6 / FRAME_BITS / BESIDE_REFUSALS;
    worst.runs(calm, (&link, "link", rate), (secs, &mut *rng), outcome)?;
    drop(link);
    anyhow::ensure!(first > 0.0, "no frame arrived through the uplink");
    let core = Arrivals::start(bed, "inbound-core", CORE_PART * TARGET / first)?;
    let speed = core.speed(bed, rng.next_u64())?;
    anyhow::ensure!(
        speed < DELIVERED_MOST * FLOOD,
        "the generator is not faster than the worker: {speed:.0} of {FLOOD:.0} frames/s arrived"
    );
    core.share(Some(CORE_RATE))?;
    let probe = core.run(bed, OFFERED[0].map(|part| part * speed), (SPEED_SECS, rng.next_u64()))?;
    let times = overload(probe.all() / speed);
    outcome.note("inbound_core_frames_per_second", speed);
    outcome.note("inbound_core_overload", times);
    worst.runs(calm, (&core, "core", times * speed), (secs, rng), outcome)?;
    let what = "largest deviation of a VM's rate from its share by weight of what arrives";
    let claim = Claim::new("inbound_share_error_pct", what, "%");
    outcome.claim(claim.at_most(2.0).measured(worst.error));
    let what = "fewest frames that arrived for a VM, in per cent of its share";
    let claim = Claim::new("inbound_excess_pct_min", what, "%");
    outcome.claim(claim.at_least(103.0).measured(worst.excess));
    Ok(())
}

/// Worst values of all runs.
#[derive(Debug, Clone, Copy)]
struct Worst {
    error: f64,
    excess: f64,
}

impl Worst {
    /// Measures all rows of [`OFFERED`] in an order that depends on the seed. `rate` is the number
    /// of frames per second for 1.0 in a row.
    fn runs(
        &mut self,
        calm: &mut Calm<'_>,
        (arrivals, name, rate): (&Arrivals, &str, f64),
        (secs, rng): (f64, &mut Rng),
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let bed = calm.bed;
        for row in shuffled(OFFERED.len(), rng) {
            let (offered, seed) = (OFFERED[row].map(|part| part * rate), rng.next_u64());
            let found = calm.cell(|| arrivals.run(bed, offered, (secs, seed)))?;
            anyhow::ensure!(found.all() > 0.0, "no frame arrived through the uplink");
            self.error = self.error.max(share_error(&found.delivered, &offered));
            self.excess = self.excess.min(found.excess_pct(&offered));
            let shares = found.delivered.iter().map(|rate| 100.0 * rate / found.all());
            let points = (0_u32..).map(f64::from).zip(shares);
            outcome.series(&format!("inbound, {name}, run {}", row + 1), "% of all", points);
            let note = format!("inbound_{name}_run{}_frames_per_second", row + 1);
            outcome.note(&note, found.all());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use penstock_guest::bed::outside::Through;

    #[test]
    fn all_frames_of_the_uplink_go_to_vms_that_share_it_by_weight() {
        let outside = Outside { way: Through::Xdp, netns: "there".to_owned(), ends: &[UP] };
        let text = plan(4e7, outside).configuration(Path::new("/d"), (1, 0));
        for part in [
            "capacity = 40000000\n",
            "name = \"tenant0\"\nuplink_weight = 5\n",
            "uplink_share = 2\n",
            "name = \"u0\"\nxdp.interface = \"u0\"\nxdp.netns = \"there\"\n",
            "actions = [\"output:vm3\"]",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("output:u0"), "{text}");
    }

    #[test]
    fn an_overload_exceeds_each_share_whatever_a_refusal_costs() {
        for ratio in [2.0, 3.0, 6.0, 12.0] {
            // What the worker delivers of its speed if `all` frames arrive.
            let delivered = |all: f64| (1.0 - all / ratio) / (1.0 - 1.0 / ratio);
            let times = overload(delivered(ALL));
            let found = delivered(ALL * times);
            assert!((times / found - EXCESS).abs() < 1e-6, "{ratio}: {times} {found}");
            for offered in OFFERED {
                for (vm, (tenant, _)) in
                    VMS.iter().enumerate().filter(|(_, vm)| offered[vm.0] > 0.0)
                {
                    let siblings = VMS.iter().filter(|(other, _)| other == tenant).count();
                    let arrives = times * offered[*tenant] / to_f64(siblings as u64);
                    assert!(arrives > 1.05 * found * part_of(vm, &offered), "{ratio} {vm}");
                }
            }
        }
        // A worker that refuses for nothing could deliver everything.
        assert!(overload(1.0) < EXCESS && overload(1.0) > 1.0);
    }

    #[test]
    fn an_excess_is_relative_to_the_share_of_what_was_delivered() {
        let share = |vm| 900.0 * part_of(vm, &OFFERED[0]);
        let found = Found { delivered: [0, 1, 2, 3].map(share), arrived: [1.5, 2.0, 1.1, 9.0] };
        assert!((found.excess_pct(&OFFERED[0]) - 110.0).abs() < 1e-9);
    }
}
