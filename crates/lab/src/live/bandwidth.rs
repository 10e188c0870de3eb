//! C2QoS Fig. 10, live: four VMs with real programs, bandwidth by iperf3, latency by qperf.
//!
//! # Problem
//!
//! VM1 to VM4 bought 4, 4, 1 and 1 parts for 1024-byte frames. First VM1 and VM3 send TCP in such
//! frames. Then VM2 and VM4 send 64-byte frames (UDP) as well. Then VM3 changes to 64-byte frames
//! too.
//!
//! # Source
//!
//! C2QoS §VI-A and Fig. 10.
//!
//! # Approach
//!
//! As in [`super::applications`], the VMs are namespaces and all servers have one port. The worker
//! is capped to a 25th of its core, for every policy alike. The sale is calibrated within the run
//! ([`super::bracket`]). Before and after the neighbours' turns VM1 and VM3 send TCP alone. The
//! cost of a bit of this TCP shows how many bits the sold cycles are worth. Under `bps` the limits
//! are set from this cost each time. A noisy VM offers 40,000 frames per second. VM1's latency is
//! that of qperf's `tcp_lat`, alone in its VM. *Native* means without neighbours, on the same
//! switch. The latency that a policy adds is compared with the latency that `bps` adds.
//!
//! # Cost
//!
//! A run takes about two minutes.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::bracket::{Doubt, Judged, PROGRAMS, Tally, Turns, WAITED, judge};
use super::needs::needs;
use super::stage::{Reading, Stage, mean_bps};
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::platform;
use crate::rig::stats::middle;
use penstock_guest::bed::Bed;

/// The worker's part of its core.
const CORE_PART: f64 = 1.0 / 25.0;
/// Part of the measured capacity that is sold.
const SOLD: f64 = 0.9;
/// Time between two readings.
const STEP: Duration = Duration::from_millis(250);
/// The VMs, and the fraction that each bought.
const VMS: [(&str, f64); 4] = [("vm1", 0.4), ("vm2", 0.4), ("vm3", 0.1), ("vm4", 0.1)];
/// The servers' port, and its index in the plan.
const NET: &str = "net";
const NET_PLACE: usize = 4;
/// TCP segments that make frames of 1024 bytes: without Ethernet and FCS, IP, and TCP with time
/// stamps.
const SEGMENT: &str = "966";
/// UDP payload of a 64-byte frame, and bits per second of 40,000 such frames.
const SMALL: [&str; 2] = ["18", "5760000"];

/// Measurements of VM1 and VM3.
#[derive(Debug, Clone, Copy, Default)]
struct Sale {
    /// Cycles per second that the worker may spend.
    capacity: f64,
    /// Bits per second of both VMs together, if they have all the cycles.
    bps: f64,
    /// The VMs' share of the cycles. The rest is the servers'.
    share: f64,
}

impl Sale {
    /// Calculates the sale from the bits that both VMs sent between readings. The VMs may have sent
    /// fewer bits than they could.
    fn of(capacity: f64, readings: &[Reading]) -> anyhow::Result<Self> {
        let [first, .., last] = readings else { anyhow::bail!("no reading was made") };
        let cycles = |port: &str| last.per_second(first, port, "cycles");
        let senders = cycles("vm1") + cycles("vm3");
        let sent = mean_bps(readings, "vm1") + mean_bps(readings, "vm3");
        let all = senders + cycles(NET);
        Ok(Self { capacity, bps: sent * capacity / all, share: senders / all })
    }

    /// The purchase of a VM with this fraction, in bits per second.
    fn bits(&self, part: f64) -> f64 {
        SOLD * self.bps * part
    }
}

/// A way to run the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Free,
    Bps,
    Strict,
    Minmax,
    C2qos,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Bps => "bps",
            Self::Strict => "strict",
            Self::Minmax => "minmax",
            Self::C2qos => "minmax-hbs",
        }
    }

    fn plan(self, sale: Sale) -> Plan {
        let bound = |part: Option<f64>| {
            let of = |policy| {
                let part = part.map_or(1.0 - sale.share, |part| part * sale.share);
                let cycles = SOLD * sale.capacity * part;
                Bound { policy, cycles, weight: 1, ..Bound::default() }
            };
            match (self, part) {
                (Self::Free, _) | (Self::Bps, None) => Bound::default(),
                (Self::Bps, Some(part)) => {
                    let bits = sale.bits(part);
                    Bound { policy: Policy::Bps, bits, ..Bound::default() }
                }
                (Self::Strict, Some(_)) => of(Policy::Strict),
                (Self::Strict | Self::Minmax, _) => of(Policy::Minmax),
                (Self::C2qos, _) => of(Policy::Minmax),
            }
        };
        let mut vms: Vec<Vm> = VMS
            .iter()
            .map(|(name, part)| Vm {
                name: (*name).to_owned(),
                bound: bound(Some(*part)),
                ..Vm::default()
            })
            .collect();
        vms.push(Vm { name: NET.to_owned(), bound: bound(None), ..Vm::default() });
        if self == Self::C2qos {
            for vm in &mut vms {
                vm.bound.priority = if [NET, "vm1"].contains(&vm.name.as_str()) { 1 } else { 3 };
            }
        }
        let mut plan = Plan::new(if self == Self::C2qos { "hbs" } else { "round-robin" }, vms);
        plan.worker = format!("capacity = {:.0}\n", sale.capacity);
        plan
    }
}

/// Result of one way.
#[derive(Debug, Clone, Default)]
struct Found {
    /// VM1's rate in percent of its purchase, in each phase. The values are the medians of the
    /// judged windows.
    vm1_pct: [f64; 3],
    /// Every VM's bits over time, in the last judged window.
    curves: Curves,
    /// Microseconds of `tcp_lat`: native, and with neighbours.
    us: [f64; 2],
}

/// Points of every VM's bits over time.
type Curves = [Vec<(f64, f64)>; 4];

/// # Errors
///
/// Fails if a program is missing or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs("iperf3", "iperf3")?;
    needs("qperf", "qperf")?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(3.0).max(1.0);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let sale = sell(&bed, (CORE_PART * bed.tsc_hz()).round(), secs)?;
    outcome.note(
        "sold",
        json!({ "capacity_mcycles_per_s": sale.capacity / 1e6, "mbps": sale.bps / 1e6,
            "share_of_cycles": sale.share }),
    );
    let mut all = Vec::new();
    let mut tally = Tally::default();
    let wanted = context.live.runs.unwrap_or(2);
    for (way, i) in [Way::Bps, Way::Strict, Way::Minmax, Way::C2qos].into_iter().zip(0_u32..) {
        context.progress(f64::from(i) / 4.0, way.name());
        let found = under(&bed, way, sale, (secs, wanted), &mut tally)?;
        for ((vm, _), curve) in VMS.iter().zip(&found.curves) {
            outcome.series(&format!("{} {vm}", way.name()), "Mbit/s", curve.iter().copied());
        }
        outcome.note(
            way.name(),
            json!({
                "vm1_percent_of_bought": found.vm1_pct,
                "native_us": found.us[0],
                "beside_neighbours_us": found.us[1],
            }),
        );
        all.push(found);
    }
    conclude(&mut outcome, &all);
    for claim in tally.claims() {
        outcome.claim(claim);
    }
    outcome.note("windows", tally.told("bit/s of VM1 and VM3, had they the whole worker"));
    Ok(outcome)
}

/// Port number at the server for a VM's traffic.
fn port(vm: &str, small: bool) -> String {
    format!("52{}{}", u8::from(small), &vm[2..])
}

/// An iperf3 client in `vm`, with frames of 1024 or 64 bytes. The client outlasts the run.
fn send(bed: &Bed, stage: &mut Stage, vm: &str, small: bool) -> anyhow::Result<()> {
    let server = Plan::ip(NET_PLACE).to_string();
    let port = port(vm, small);
    let mut words = vec!["-c", &server, "-p", &port, "-t", "120"];
    let kind = ["-M", SEGMENT];
    let udp = ["-u", "-l", SMALL[0], "-b", SMALL[1]];
    words.extend(if small { &udp[..] } else { &kind[..] });
    stage.start_program(bed, vm, "iperf3", &words).map(drop)
}

/// Starts the servers and waits until they answer.
fn serve(bed: &Bed, stage: &mut Stage) -> anyhow::Result<()> {
    // An iperf3 serves one client at a time, so each VM has one for its TCP and one for its UDP.
    for (vm, _) in VMS {
        for port in [port(vm, false), port(vm, true)] {
            stage.start_program(bed, NET, "iperf3", &["-s", "-p", &port])?;
        }
    }
    stage.start_program(bed, NET, "qperf", &[])?;
    stage.await_tcp("vm1", NET_PLACE, 19765)
}

/// Measures VM1 and VM3, which send frames of 1024 bytes without limits.
fn sell(bed: &Bed, capacity: f64, secs: f64) -> anyhow::Result<Sale> {
    let free = Sale { capacity, ..Sale::default() };
    let mut stage = Stage::start(bed, Way::Free.name(), &Way::Free.plan(free))?;
    serve(bed, &mut stage)?;
    for vm in ["vm1", "vm3"] {
        send(bed, &mut stage, vm, false)?;
    }
    let readings = stage.watch(secs, STEP)?;
    Sale::of(capacity, &readings[readings.len() / 2..])
}

fn under(
    bed: &Bed,
    way: Way,
    sale: Sale,
    (secs, wanted): (f64, u32),
    tally: &mut Tally,
) -> anyhow::Result<Found> {
    let mut stage = Stage::start(bed, way.name(), &way.plan(sale))?;
    serve(bed, &mut stage)?;
    let mut found = Found::default();
    found.us[0] = latency(bed, &mut stage, secs)?;
    let capacity = sale.capacity;
    let vm1 = stage.programs();
    send(bed, &mut stage, "vm1", false)?;
    let mut phases = Phases { bed, stage: &mut stage, way, capacity, secs, small: 0..0 };
    let judged = judge(&mut phases, (wanted, PROGRAMS), tally)?;
    let small = phases.small.clone();
    for (nth, pct) in found.vm1_pct.iter_mut().enumerate() {
        let of = |judged: &Judged<Calm, Noisy>| percent_of_bought(way, judged)[nth];
        *pct = middle(&judged.iter().map(of).collect::<Vec<_>>());
    }
    if let Some(last) = judged.into_iter().last() {
        found.curves = last.found.curves;
    }
    // All neighbours send small frames, as in the last phase. VM1 does not, because its latency
    // probe would wait for its own frames.
    stage.end_programs(small);
    stage.end_programs(vm1..vm1 + 1);
    for vm in ["vm2", "vm3", "vm4"] {
        send(bed, &mut stage, vm, true)?;
    }
    found.us[1] = latency(bed, &mut stage, secs)?;
    Ok(found)
}

/// Result of VM1 and VM3 alone, in large frames.
#[derive(Debug, Clone)]
struct Calm {
    sale: Sale,
    vm1_bps: f64,
    readings: Vec<Reading>,
}

/// Result after the neighbours changed to small frames.
#[derive(Debug, Clone)]
struct Noisy {
    /// VM1's bits per second with VM2 and VM4, and with VM3 as well.
    vm1_bps: [f64; 2],
    curves: Curves,
    /// Share of the time for which the worker waited for its core.
    waited: f64,
}

/// The three phases in turn. The first is the calibration.
#[derive(Debug)]
struct Phases<'a> {
    bed: &'a Bed,
    stage: &'a mut Stage,
    way: Way,
    capacity: f64,
    secs: f64,
    /// Programs that end before the next calibration.
    small: std::ops::Range<usize>,
}

impl Phases<'_> {
    /// Waits a third of the time for the rates to settle, and measures for the rest.
    fn watch(&mut self) -> anyhow::Result<Vec<Reading>> {
        let settle = self.stage.watch(self.secs / 3.0, STEP)?;
        let mut readings = self.stage.watch(self.secs, STEP)?;
        readings.splice(0..0, settle.into_iter().last());
        Ok(readings)
    }
}

impl Turns for Phases<'_> {
    type Speed = Calm;
    type Found = Noisy;

    fn calibrate(&mut self) -> anyhow::Result<Calm> {
        let ended = std::mem::replace(&mut self.small, 0..0);
        self.stage.end_programs(ended);
        let first = self.stage.programs();
        send(self.bed, self.stage, "vm3", false)?;
        let readings = self.watch()?;
        self.small = first..self.stage.programs();
        let sale = Sale::of(self.capacity, &readings)?;
        Ok(Calm { sale, vm1_bps: mean_bps(&readings, "vm1"), readings })
    }

    fn measure(&mut self, by: &Calm) -> anyhow::Result<Noisy> {
        if self.way == Way::Bps {
            for (vm, part) in VMS {
                self.stage.limit(vm, by.sale.bits(part))?;
            }
        }
        let waited = self.stage.waited_ns();
        let since = penstock_guest::clock::now();
        send(self.bed, self.stage, "vm2", true)?;
        send(self.bed, self.stage, "vm4", true)?;
        let second = self.watch()?;
        let large = self.small.clone();
        self.stage.end_programs(large);
        send(self.bed, self.stage, "vm3", true)?;
        let third = self.watch()?;
        self.small = self.small.start..self.stage.programs();
        let waited = crate::rig::stats::to_f64(self.stage.waited_ns() - waited) / 1e9;
        let vm1_bps = [mean_bps(&second, "vm1"), mean_bps(&third, "vm1")];
        let waited = waited / since.elapsed().as_secs_f64();
        Ok(Noisy { vm1_bps, curves: curves([&by.readings, &second, &third]), waited })
    }

    fn speed(of: &Calm) -> f64 {
        of.sale.bps
    }

    fn doubt(found: &Noisy) -> Option<Doubt> {
        (found.waited > WAITED).then_some(Doubt::WaitedForCore)
    }
}

/// VM1's rate in percent of its purchase, in each phase.
fn percent_of_bought(way: Way, judged: &Judged<Calm, Noisy>) -> [f64; 3] {
    let [before, after] = [&judged.before, &judged.after].map(|calm| calm.sale.bits(VMS[0].1));
    // Bits were sold by the calibration before the window. The worth of cycles changes with the
    // machine, so the mean of both calibrations counts.
    let bought = if way == Way::Bps { before } else { f64::midpoint(before, after) };
    let [second, third] = judged.found.vm1_bps;
    [judged.before.vm1_bps, second, third].map(|bps| 100.0 * bps / bought)
}

/// Joins the readings of the phases.
fn curves(phases: [&[Reading]; 3]) -> Curves {
    let mut curves = Curves::default();
    for ((vm, _), curve) in VMS.iter().zip(&mut curves) {
        let pairs = phases.into_iter().flat_map(|readings| readings.windows(2));
        let points = pairs.zip(1_u32..).map(|(pair, i): (&[Reading], u32)| {
            (f64::from(i) * STEP.as_secs_f64(), mean_bps(pair, vm) / 1e6)
        });
        curve.extend(points);
    }
    curves
}

/// VM1's latency, measured by qperf.
fn latency(bed: &Bed, stage: &mut Stage, secs: f64) -> anyhow::Result<f64> {
    let server = Plan::ip(NET_PLACE).to_string();
    let time = format!("{:.0}", secs.max(1.0));
    let words = ["-t", &time, &server, "tcp_lat"];
    let program = stage.start_program(bed, "vm1", "qperf", &words)?;
    let said = stage.await_program(program, Duration::from_secs(30))?;
    stage.end_programs(program..program + 1);
    latency_us(&said).with_context(|| format!("qperf said:\n{said}"))
}

fn latency_us(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix("latency"))?;
    let mut words = line.trim_start().trim_start_matches('=').split_whitespace();
    let value: f64 = words.next()?.replace(',', "").parse().ok()?;
    let factor = match words.next()? {
        "ns" => 1e-3,
        "us" => 1.0,
        "ms" => 1e3,
        "sec" => 1e6,
        _ => return None,
    };
    Some(value * factor)
}

fn conclude(outcome: &mut Outcome, all: &[Found]) {
    let [bps, strict, minmax, c2qos] = all else { return };
    let delta = |found: &Found| 100.0 * (found.vm1_pct[1] / found.vm1_pct[0] - 1.0);
    let least =
        |found: &Found| found.vm1_pct.iter().copied().fold(f64::INFINITY, super::noisy::nan_min);
    let left = |found: &Found| 100.0 * (found.us[1] - found.us[0]) / (bps.us[1] - bps.us[0]);
    let claims = [
        ("bps_vm1_phase2_delta_pct", "VM1 when VM2 and VM4 begin, `bps`.", delta(bps)),
        ("strict_vm1_phase2_delta_pct", "The same, cycles only, strict.", delta(strict)),
        ("bps_vm1_min_pct", "VM1's least of what it bought, `bps`.", least(bps)),
        ("strict_vm1_min_pct", "The same, strict.", least(strict)),
        ("minmax_vm1_min_pct", "The same, with what others leave.", least(c2qos)),
        (
            "added_latency_left_cycles_pct",
            "Of the latency that `bps` adds, left with cycles only.",
            left(minmax),
        ),
        (
            "added_latency_left_pct",
            "Of the latency that `bps` adds, left with cycles and classes.",
            left(c2qos),
        ),
    ];
    for (id, statement, value) in claims {
        outcome.claim(Claim::new(id, statement, "%").measured(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qperf_is_understood() {
        assert_eq!(latency_us("tcp_lat:\n    latency  =  32.1 us\n"), Some(32.1));
        assert_eq!(latency_us("tcp_lat:\n    latency  =  1.25 ms\n"), Some(1250.0));
        assert_eq!(latency_us("failed"), None);
    }

    #[test]
    fn metered_ways_sell_ninety_percent_and_one_of_them_has_classes() {
        let sale = Sale { capacity: 1e8, bps: 1e9, share: 0.7 };
        for way in [Way::Strict, Way::Minmax, Way::C2qos] {
            let sold: f64 = way.plan(sale).vms.iter().map(|vm| vm.bound.cycles).sum();
            assert!((sold - 0.9e8).abs() < 1.0, "{sold}");
        }
        assert_eq!(Way::C2qos.plan(sale).vms[0].bound.priority, 1);
        assert_eq!(Way::Minmax.plan(sale).vms[0].bound.priority, 0);
    }
}
