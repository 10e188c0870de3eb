//! The live form of the claim `inbound_share_error_pct`: what arrives through an uplink is shared
//! by weight, if the configured rate or the worker's core is too slow.
//!
//! # Approach
//!
//! Tenants and VMs are those of the simulation ([`crate::figures::inbound_shares`]). Each VM is a
//! network namespace. A station in another namespace sends full datagrams through a veth to a
//! shared AF_XDP uplink. Their rates are those of the simulation: all tenants receive, or one of
//! them receives nothing.
//!
//! - *Link*: `inbound.rate` is [`LINK_BPS`], and the core is fast enough.
//! - *Core*: `inbound.rate` is higher than what the core can deliver. The worker may use such a
//!   part of its core that it delivers about [`TARGET`] frames per second without shares.
//!
//! All frames have the same length, so the value is the largest deviation of a VM's frames per
//! second from its share by weight of all delivered frames. The arrivals are not in proportion to
//! the shares, so the deviation is far above the band if the switch shares nothing.
//!
//! In a further run of *link*, the first tenant receives TCP instead of datagrams. Its deviation is
//! shown, because TCP may leave a part of its share to the others.
//!
//! # Arrivals
//!
//! The station and all receivers use one core. If that core were full, the station would send less
//! than planned, its senders would send in turn for milliseconds, and the more the switch delivers,
//! the less would arrive. A run would then show how the kernel divides the station's core. The slow
//! core is therefore so slow that the station needs a small part of its own core. A run in which
//! the station sent less than [`STEADY`] of the planned frames to a VM says nothing. It is
//! repeated, and fails after [`TRIES`] times. A run also fails if the switch delivered nearly all
//! frames ([`Passed::check_limit`]).
//!
//! Segments leave at random times ([`GsoFlood`]), as in the simulation. The rates of the VMs are in
//! small integer ratios, so with equal pauses the ring would lose the segments of one VM.
//!
//! # Load of the slow core
//!
//! How many frames the core delivers beside its refusals depends on the costs of both. One run with
//! shares measures the costs ([`overload`]), and the other runs then offer so many frames that each
//! VM receives more than its share.
//!
//! The speed of the core may change between the runs. If the core has become so fast that the
//! station sent less to a VM than is due to it of all delivered frames, the runs of the core say
//! nothing, because shares are due only while all VMs want more ([`Passed::check_demand`]). All of
//! them are repeated with a new slow core, and fail after [`TRIES`] times.
//!
//! The notes of a run have the frames that the switch took from the ring: the delivered and the
//! dropped ones. They also have the lowest number of frames that it took for a VM, per frame that
//! is due to the VM. If this is below 1, the ring lost too many frames of the VM, and the switch
//! refused too few of the others.
//!
//! # Departures
//!
//! The senders of datagrams do not react to marks and losses. No program reads the datagrams, so
//! the receiving kernels drop most of them. The switch counts the frames.
//!
//! The kernels of our machines have no VLAN interfaces, so the station sends frames without tags.
//! The uplink is an access port of the tenant `lab`, and rules send the frames to the VMs.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Rng;

use super::super::gso_flood::{DISCARD, GsoFlood};
use super::super::stage::Stage;
use super::calm::Calm;
use super::flood::deaf;
use super::traffic::shuffled;
use crate::evidence::{Claim, Outcome};
use crate::figures::inbound_shares::{OFFERED, TENANTS, VMS, parts, share_error};
use crate::rig::plan::{AllTo, Plan, Vm};
use crate::rig::stats::to_f64;
use crate::rig::through::{Outside, STATION, uplink};
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::{Daemon, ask, await_some};
use penstock_guest::clock;

/// Name of the uplink and of its interface.
const UP: &str = "u0";
/// Bits of a frame of [`GsoFlood`], FCS included, and bits that it takes on the link.
const FRAME_BITS: f64 = 1_518.0 * 8.0;
const WIRE_BITS: f64 = 1_538.0 * 8.0;
/// Rate that the tenants share in the runs of *link*.
const LINK_BPS: u64 = 50_000_000;
/// Rate of the uplink in the runs of *core*: more than the slow core can deliver.
const CORE_BPS: u64 = 1_000_000_000;
/// Frames per second that the slow core delivers without shares, about.
const TARGET: f64 = 25_000.0;
/// Lowest speed of the slow core in frames per second. `inbound` knows that a core is too slow from
/// three batches of 32 frames in 10 ms.
const SPEED_MIN: f64 = 12_000.0;
/// Frames per second that the station sends to find the speed of a worker.
const FLOOD: f64 = 2.4 * TARGET;
/// Fraction of the core that the worker of *link* may use.
const CORE_PART: f64 = 0.04;
/// Fraction of the core of the worker whose speed decides which fraction the slow core gets.
const PROBE_PART: f64 = 0.01;
/// Least part of the planned frames that the station must send to each VM.
const STEADY: f64 = 0.95;
/// Number of attempts of a run until the station sends the planned frames, and of attempts to make
/// a slow core.
const TRIES: u32 = 3;
/// Largest part of the sent frames that may be delivered if the link or the core is the limit.
const LIMITED: f64 = 0.95;
/// Part of the rate to which the arrivals of [`OFFERED`] relate in the runs of *link*.
const BESIDE_REFUSALS: f64 = 0.7;
/// All arrivals of a run, in units of [`OFFERED`].
const ALL: f64 = 1.8;
/// Arrivals, in units of [`OFFERED`], per delivered part of the speed without shares. Each VM then
/// receives at least 14 % more than its share.
const EXCESS: f64 = 1.5;
const STEP: Duration = Duration::from_millis(250);
/// Seconds before a measurement. The buckets of all overloaded VMs are empty then.
const SETTLE: f64 = 1.0;
/// Seconds of a measurement of a worker's speed.
const SPEED_SECS: f64 = 2.0;
/// Number of TCP streams to a VM, and their round trip in microseconds.
const STREAMS: &str = "8";
const ROUND_TRIP_US: u32 = 10_000;
/// Seconds of the TCP streams before the datagrams, and after the measurement.
const TCP_SETTLE: f64 = 3.0;
const SPARE: f64 = 20.0;
/// Maximum time until a TCP server listens.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A switch with an uplink, and a station outside of it.
#[derive(Debug)]
struct Arrivals {
    stage: Stage,
    /// Path of the station's network namespace.
    netns: String,
}

/// Frames per second for each VM.
type Rates = [f64; VMS.len()];

/// Frames that passed during a measurement, per second.
#[derive(Debug, Clone, Copy)]
struct Passed {
    /// What the station sent.
    sent: Rates,
    /// What the switch took from the ring.
    taken: Rates,
    /// What the switch delivered.
    delivered: Rates,
}

impl Passed {
    /// Returns an error if the station did not send what was `planned`.
    fn check_station(&self, planned: &Rates) -> anyhow::Result<()> {
        for (number, (sent, planned)) in self.sent.iter().zip(planned).enumerate() {
            anyhow::ensure!(
                *sent >= STEADY * planned,
                "the station sent {sent:.0} of {planned:.0} frames/s to {}: its core is too slow, \
                 or other work took it",
                vm(number)
            );
        }
        Ok(())
    }

    /// Returns an error if the switch delivered nearly all frames.
    fn check_limit(&self) -> anyhow::Result<()> {
        let (sent, delivered) = (sum(&self.sent), sum(&self.delivered));
        anyhow::ensure!(
            delivered <= LIMITED * sent,
            "the switch delivered {delivered:.0} of {sent:.0} frames/s: neither link nor core was \
             the limit"
        );
        Ok(())
    }

    /// Returns an error if the station sent less to a VM than is due to the VM.
    fn check_demand(&self, offered: &[f64; TENANTS.len()]) -> anyhow::Result<()> {
        let least = self.least_of_due(&self.sent, offered);
        anyhow::ensure!(
            least >= 1.0,
            "the switch delivered {:.0} frames/s, and the station sent a VM only {least:.2} of its \
             share of them: the core has become faster",
            sum(&self.delivered)
        );
        Ok(())
    }

    /// Returns the lowest number of `frames` of a VM, per delivered frame that is due to the VM.
    fn least_of_due(&self, frames: &Rates, offered: &[f64; TENANTS.len()]) -> f64 {
        let all = sum(&self.delivered);
        let due = frames.iter().zip(parts(offered)).filter(|(_, part)| *part > 0.0);
        due.map(|(frames, part)| frames / (all * part)).fold(f64::INFINITY, f64::min)
    }
}

/// A measured row of [`OFFERED`].
#[derive(Debug)]
struct Row {
    number: usize,
    /// Frames per second to the VMs of each tenant.
    offered: [f64; TENANTS.len()],
    passed: Passed,
}

/// Returns the frames per second to each VM, if `offered` are those to the VMs of each tenant. The
/// VMs of a tenant get equal numbers of frames.
fn planned(offered: [f64; TENANTS.len()]) -> Rates {
    VMS.map(|(tenant, _)| {
        let siblings = VMS.iter().filter(|(other, _)| *other == tenant).count();
        offered[tenant] / to_f64(siblings as u64)
    })
}

fn vm(number: usize) -> String {
    format!("vm{number}")
}

/// Four VMs of three tenants, which receive through an uplink of a worker with `capacity` cycles
/// per second. Each frame to a VM takes `delay_us`.
fn plan((capacity, delay_us): (f64, u32), outside: Outside) -> Plan {
    let receiver = |(number, (tenant, weight)): (usize, (usize, u64))| Vm {
        name: vm(number),
        tenant: Some((format!("tenant{tenant}"), u32::try_from(TENANTS[tenant]).unwrap_or(1))),
        more: format!("uplink_share = {weight}\n"),
        ..Vm::default()
    };
    let vms = VMS.into_iter().enumerate().map(receiver).collect();
    let worker = format!("capacity = {capacity:.0}\n");
    let all_to = Some(AllTo::From(outside));
    Plan { worker, delay_us, prompt: true, all_to, ..Plan::new("", vms) }
}

impl Arrivals {
    /// Starts a switch with a worker that may use the fraction `core_part` of its core.
    fn start(bed: &Bed, name: &str, (core_part, delay_us): (f64, u32)) -> anyhow::Result<Self> {
        let outside = uplink(bed, name)?;
        let vms: Vec<_> = (0..VMS.len()).map(|vm| (Plan::mac(vm), Plan::ip(vm))).collect();
        outside.inhabit(STATION, &vms)?;
        let netns = format!("/run/netns/{}", outside.netns);
        let plan = plan((core_part * bed.tsc_hz(), delay_us), outside);
        Ok(Self { stage: Stage::start(bed, name, &plan)?, netns })
    }

    fn share(&self, bps: u64) -> anyhow::Result<()> {
        self.stage.set(UP, &format!("inbound={{ rate = {bps} }}"))
    }

    /// Sends `planned` frames per second to the VMs. The seed determines the order in which the
    /// senders start, and the times of their segments. Repeats a run in which the station sent
    /// less.
    fn run(&self, bed: &Bed, planned: &Rates, times: (f64, u64)) -> anyhow::Result<Passed> {
        let mut passed = self.once(bed, planned, times)?;
        for _ in 1..TRIES {
            if passed.check_station(planned).is_ok() {
                break;
            }
            passed = self.once(bed, planned, times)?;
        }
        passed.check_station(planned)?;
        Ok(passed)
    }

    fn once(&self, bed: &Bed, planned: &Rates, (secs, seed): (f64, u64)) -> anyhow::Result<Passed> {
        let open = |number: usize| deaf(self.stage.namespace(&vm(number))?, vec![DISCARD]);
        let _deaf = (0..VMS.len()).map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let (mut floods, mut rng) = (Vec::new(), Rng::new(seed));
        for number in shuffled(VMS.len(), &mut rng) {
            let bps = planned[number] * FRAME_BITS;
            if bps > 0.0 {
                let netns = File::open(&self.netns).with_context(|| self.netns.clone())?;
                let (to, load) = (Plan::ip(number), (bps, rng.next_u64()));
                floods.push((number, GsoFlood::start(netns, bed.generator_core(), to, load)?));
            }
        }
        self.stage.watch(SETTLE, STEP)?;
        let counts = || floods.iter().map(|(_, flood)| flood.sent()).collect::<Vec<u64>>();
        let (before, began) = (counts(), clock::now());
        let readings = self.stage.watch(secs, STEP)?;
        let (after, elapsed) = (counts(), began.elapsed().as_secs_f64());
        let mut sent = [0.0; VMS.len()];
        for ((number, _), (before, after)) in floods.iter().zip(before.iter().zip(&after)) {
            sent[*number] = to_f64(after.saturating_sub(*before)) / elapsed;
        }
        floods.into_iter().try_for_each(|(_, flood)| flood.end())?;
        let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
        let delivered: Rates =
            core::array::from_fn(|number| last.per_second(first, &vm(number), "tx_frames"));
        anyhow::ensure!(sum(&delivered) > 0.0, "no frame arrived through the uplink");
        let dropped = |number| to_f64(last.dropped(first, &vm(number))) / last.secs_since(first);
        let taken = core::array::from_fn(|number| delivered[number] + dropped(number));
        Ok(Passed { sent, taken, delivered })
    }

    /// Returns the frames per second that the worker delivers without shares, if [`FLOOD`] arrive.
    fn speed(&self, bed: &Bed, seed: u64) -> anyhow::Result<f64> {
        let flood = planned([FLOOD / to_f64(TENANTS.len() as u64); TENANTS.len()]);
        Ok(sum(&self.run(bed, &flood, (SPEED_SECS, seed))?.delivered))
    }

    /// Starts TCP streams from the station to a VM, for `secs` seconds.
    fn stream(&mut self, bed: &Bed, number: usize, secs: f64) -> anyhow::Result<Daemon> {
        let (vm, to) = (vm(number), Plan::ip(number).to_string());
        let (mac, station) = (STATION.0.to_string(), STATION.1.to_string());
        let words = ["neighbour", "replace", &station, "lladdr", &mac, "dev", "eth0"];
        ask(&mut self.stage.inside(&vm, "ip", &words)?)?;
        self.stage.start_program(bed, &vm, "iperf3", &["-s"])?;
        await_some("a TCP server", START_LIMIT, || {
            let words = ["-Hltn", "sport", "=", ":5201"];
            let listening = ask(&mut self.stage.inside(&vm, "ss", &words)?)?;
            Ok(listening.contains("5201").then_some(()))
        })?;
        let (core, secs) = (bed.generator_core().to_string(), format!("{:.0}", secs.ceil()));
        let mut client = Command::new("nsenter");
        client.arg(format!("--net={}", self.netns)).args(["--", "taskset", "-c", &core]);
        client.args(["iperf3", "-c", &to, "-t", &secs, "-P", STREAMS, "-C", "cubic"]);
        let log = self.stage.dir().join(format!("client-{number}.log"));
        Daemon::start(&mut client, log, bed.guard())
    }
}

fn sum(rates: &Rates) -> f64 {
    rates.iter().sum()
}

/// Returns the arrivals of the runs of *link*, in frames per second for 1.0 in [`OFFERED`].
fn link_scale() -> f64 {
    to_f64(LINK_BPS) / WIRE_BITS / BESIDE_REFUSALS
}

/// Returns the arrivals of the runs of *core* in units of [`OFFERED`], relative to the worker's
/// speed without shares. `delivered` is the part of the speed that the worker delivered when the
/// arrivals were equal to the speed.
///
/// If a delivered frame costs r times as much as a refused one, and A frames arrive per frame of
/// the speed, a worker that takes all frames delivers the part x with x + (A - x) / r = 1. A worker
/// that loses frames in its ring delivers more than this part, so r is overestimated, and the other
/// runs offer more.
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
    let link = Arrivals::start(bed, "inbound-link", (CORE_PART, 0))?;
    link.share(LINK_BPS)?;
    let rows = runs(calm, (&link, link_scale()), (secs, &mut *rng))?;
    rows.iter().try_for_each(|row| row.passed.check_limit()).context("link")?;
    let worst = show_rows("link", &rows, outcome);
    drop(link);
    let rows = core_runs(calm, (secs, rng), outcome).context("core")?;
    let worst = worst.max(show_rows("core", &rows, outcome));
    let what = "largest deviation of a VM's rate from its share by weight of what arrives";
    outcome.claim(Claim::new("inbound_share_error_pct", what, "%").at_most(2.0).measured(worst));
    Ok(())
}

/// Measures the shares while the core is too slow. Repeats the runs with another slow core if the
/// core became so fast that a VM wanted less than its share.
fn core_runs(
    calm: &mut Calm<'_>,
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<Vec<Row>> {
    let mut tries = TRIES;
    loop {
        let bed = calm.bed;
        let (core, speed) = slow_core(bed, rng)?;
        core.share(CORE_BPS)?;
        let offered = planned(OFFERED[0].map(|part| part * speed));
        let passed = core.run(bed, &offered, (SPEED_SECS, rng.next_u64()))?;
        let delivered = sum(&passed.delivered) / speed;
        anyhow::ensure!(
            delivered < 0.98,
            "refusals cost nothing: the core delivered {delivered:.2} of its speed {speed:.0} \
             frames/s beside them"
        );
        let times = overload(delivered);
        let rows = runs(calm, (&core, times * speed), (secs, &mut *rng))?;
        let check = |row: &Row| {
            row.passed.check_limit()?;
            row.passed.check_demand(&row.offered)
        };
        tries -= 1;
        match rows.iter().try_for_each(check) {
            Err(error) if tries == 0 => return Err(error),
            Err(_) => {}
            Ok(()) => {
                outcome.note("inbound_core_frames_per_second", speed);
                outcome.note("inbound_core_overload", times);
                outcome.note("inbound_core_attempts", TRIES - tries);
                return Ok(rows);
            }
        }
    }
}

/// Starts a switch with a worker that delivers about [`TARGET`] frames per second without shares,
/// and returns the speed that was found. Repeats both measurements if the core's speed changed so
/// much between them that the worker is no slow core.
fn slow_core(bed: &Bed, rng: &mut Rng) -> anyhow::Result<(Arrivals, f64)> {
    let mut tries = TRIES;
    loop {
        let probe = Arrivals::start(bed, "inbound-probe", (PROBE_PART, 0))?;
        let found = probe.speed(bed, rng.next_u64())?;
        drop(probe);
        let core = Arrivals::start(bed, "inbound-core", (PROBE_PART * TARGET / found, 0))?;
        let speed = core.speed(bed, rng.next_u64())?;
        if (SPEED_MIN..LIMITED * FLOOD).contains(&speed) {
            return Ok((core, speed));
        }
        tries -= 1;
        anyhow::ensure!(
            tries > 0,
            "the slow core delivers {speed:.0} of {FLOOD:.0} frames/s; the runs need a core that \
             is the limit and delivers {SPEED_MIN} or more"
        );
    }
}

/// Measures all rows of [`OFFERED`] in an order that depends on the seed. `scale` is the number of
/// frames per second for 1.0 in a row.
fn runs(
    calm: &mut Calm<'_>,
    (arrivals, scale): (&Arrivals, f64),
    (secs, rng): (f64, &mut Rng),
) -> anyhow::Result<Vec<Row>> {
    let (bed, mut rows) = (calm.bed, Vec::new());
    for row in shuffled(OFFERED.len(), rng) {
        let (offered, seed) = (OFFERED[row].map(|part| part * scale), rng.next_u64());
        let planned = planned(offered);
        let passed = calm.cell(|| arrivals.run(bed, &planned, (secs, seed)))?;
        rows.push(Row { number: row + 1, offered, passed });
    }
    Ok(rows)
}

/// Adds the results of rows to the outcome. Returns the largest deviation in per cent.
fn show_rows(name: &str, rows: &[Row], outcome: &mut Outcome) -> f64 {
    let mut worst = 0.0_f64;
    for Row { number, offered, passed } in rows {
        let rates = &passed.delivered;
        worst = worst.max(share_error(rates, offered));
        show(&format!("{name}, run {number}"), rates, outcome);
        let note = |of: &str| format!("inbound_{name}_run{number}_{of}");
        outcome.note(&note("frames_per_second"), sum(rates));
        outcome.note(&note("sent_frames_per_second"), sum(&passed.sent));
        outcome.note(&note("taken_frames_per_second"), sum(&passed.taken));
        outcome.note(&note("least_taken_of_due"), passed.least_of_due(&passed.taken, offered));
    }
    worst
}

/// Measures the shares of *link* while the first tenant receives TCP, and the others datagrams.
pub(super) fn tcp(
    bed: &Bed,
    (secs, seed): (f64, u64),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut arrivals = Arrivals::start(bed, "inbound-tcp", (CORE_PART, ROUND_TRIP_US))?;
    arrivals.share(LINK_BPS)?;
    let lasts = TCP_SETTLE + SETTLE + secs + SPARE;
    let first = (0..VMS.len()).filter(|number| VMS[*number].0 == 0);
    let _clients = first
        .map(|number| arrivals.stream(bed, number, lasts))
        .collect::<anyhow::Result<Vec<_>>>()?;
    arrivals.stage.watch(TCP_SETTLE, STEP)?;
    let [_, second, third] = OFFERED[0].map(|part| part * link_scale());
    let planned = planned([0.0, second, third]);
    let rates = arrivals.run(bed, &planned, (secs, seed))?.delivered;
    show("link, TCP", &rates, outcome);
    let what = "the same deviation if the first tenant receives TCP, and the others datagrams";
    let claim = Claim::new("inbound_tcp_share_error_pct", what, "%");
    outcome.claim(claim.measured(share_error(&rates, &OFFERED[0])));
    Ok(())
}

fn show(run: &str, rates: &Rates, outcome: &mut Outcome) {
    let shares = rates.iter().map(|rate| 100.0 * rate / sum(rates));
    let points = (0_u32..).map(f64::from).zip(shares);
    outcome.series(&format!("inbound, {run}"), "% of all", points);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use penstock_guest::bed::outside::Through;

    #[test]
    fn the_uplink_is_shared_and_each_vm_has_its_weights() {
        let outside = Outside { way: Through::Xdp, netns: "there".to_owned(), ends: &[UP] };
        let text = plan((4e7, 0), outside).configuration(Path::new("/d"), (1, 0));
        let uplink = format!("name = \"{UP}\"\n");
        let text = text.replace(&uplink, &format!("{uplink}inbound = {{ rate = {LINK_BPS} }}\n"));
        let config = penstock_control::config::parse(&text, "host.toml").unwrap();
        assert_eq!(config.ports.iter().filter(|port| port.inbound.is_some()).count(), 1);
        for part in [
            "capacity = 40000000\n",
            "name = \"tenant0\"\nuplink_weight = 5\n",
            "uplink_share = 2\n",
            "actions = [\"output:vm3\"]",
            "actions = [\"output:u0\"]",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn an_overload_exceeds_what_is_delivered_whatever_a_refusal_costs() {
        for ratio in [2.0, 3.0, 6.0, 12.0] {
            // What the worker delivers of its speed if `all` frames arrive.
            let delivered = |all: f64| (1.0 - all / ratio) / (1.0 - 1.0 / ratio);
            let times = overload(delivered(ALL));
            let found = delivered(ALL * times);
            assert!((times / found - EXCESS).abs() < 1e-6, "{ratio}: {times} {found}");
        }
        // A worker that refuses for nothing could deliver everything.
        assert!(overload(1.0) < EXCESS && overload(1.0) > 1.0);
    }

    #[test]
    fn a_run_counts_only_with_the_planned_arrivals_and_a_limit() {
        let planned = planned([600.0, 400.0, 0.0]);
        let due = [300.0, 300.0, 400.0, 0.0];
        assert!(planned.iter().zip(due).all(|(rate, due)| (rate - due).abs() < 1e-9));
        let delivered = [250.0, 125.0, 225.0, 0.0];
        let passed = |sent| Passed { sent, taken: sent, delivered };
        assert!(passed(planned).check_station(&planned).is_ok());
        assert!(passed(planned).check_limit().is_ok());
        // The senders share a full core, so one sends less.
        assert!(passed([300.0, 300.0, 360.0, 0.0]).check_station(&planned).is_err());
        let all = Passed { delivered: planned, ..passed(planned) };
        assert!(all.check_station(&planned).is_ok() && all.check_limit().is_err());
    }

    #[test]
    fn a_run_counts_only_if_each_vm_wants_more_than_its_share() {
        // 200, 100, 180 and 60 of 540 delivered frames are due.
        let delivered = [180.0, 110.0, 150.0, 100.0];
        let passed = |sent| Passed { sent, taken: [100.0; 4], delivered };
        assert!(passed([210.0, 300.0, 190.0, 300.0]).check_demand(&OFFERED[0]).is_ok());
        assert!(passed([210.0, 300.0, 170.0, 300.0]).check_demand(&OFFERED[0]).is_err());
    }

    #[test]
    fn a_vm_whose_frames_the_ring_loses_is_seen() {
        // 200, 100, 180 and 60 of 540 delivered frames are due.
        let delivered = [180.0, 110.0, 190.0, 60.0];
        let passed = Passed { sent: [600.0; 4], taken: [180.0, 300.0, 270.0, 300.0], delivered };
        assert!((passed.least_of_due(&passed.taken, &OFFERED[0]) - 0.9).abs() < 1e-9);
        // 405 and 135 frames are due if the first tenant receives nothing.
        let delivered = [0.0, 0.0, 400.0, 140.0];
        let idle = Passed { taken: [0.0, 0.0, 810.0, 540.0], delivered, ..passed };
        assert!((idle.least_of_due(&idle.taken, &OFFERED[1]) - 2.0).abs() < 1e-9);
    }
}
