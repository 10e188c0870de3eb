//! Live experiment for C2QoS Fig. 10: bandwidth (iperf3) and latency (qperf) of four VMs with real
//! programs.
//!
//! # Problem
//!
//! VM1 to VM4 bought the worker's capacity in the ratio 4 : 4 : 1 : 1, for frames of 1024 bytes.
//! Each run of the experiment has three phases:
//! - In the first phase, VM1 and VM3 send TCP in frames of 1024 bytes.
//! - In the second phase, VM2 and VM4 also send UDP in frames of 64 bytes.
//! - In the third phase, VM3 sends UDP in frames of 64 bytes instead of TCP.
//!
//! # Source
//!
//! The experiment replays C2QoS §VI-A and Fig. 10.
//!
//! # Approach
//!
//! As in [`super::applications`], each VM is a namespace, and all servers are behind one port. The
//! worker may spend an 80th of its core under every policy. Calibrations alternate with
//! measurements ([`super::bracket`]). In a calibration, only VM1 and VM3 send, over TCP. The
//! calibration shows how many cycles a bit costs, and therefore which bit rate each purchase of
//! cycles is worth. Under the policy `bps`, each calibration sets new bit rate limits for the VMs.
//! A VM that sends 64-byte frames offers 40,000 frames per second to the switch.
//!
//! VM1's latency is the result of qperf's `tcp_lat`. While qperf runs, no other program runs in
//! VM1. *Native* latency is measured under the same policy while the other VMs send nothing. The
//! latency that a policy adds is compared with the latency that `bps` adds.
//!
//! The paper's limit in bits has a stated burst and drops the frames above it, and its VMs send
//! without TSO. The same limit is also measured with VMs that send large segments, and a limit
//! without a stated burst, for which frames wait, is measured with both kinds of VMs
//! ([`Way::BITS`]).
//!
//! # Cost
//!
//! A run of the experiment takes eight to twelve minutes.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::bracket::{Doubt, Judged, PROGRAMS, Tally, Turns, WAITED, judge};
use super::needs::needs;
use super::stage::{Reading, Stage, mean_bps};
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::platform;
use crate::rig::stats::{middle, to_f64};
use penstock_guest::bed::Bed;

/// Fraction of its core's cycles that the worker may spend.
const CORE_PART: f64 = 1.0 / 80.0;
/// Fraction of the measured capacity that all ports together buy.
const SOLD: f64 = 0.9;
/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// The four VMs, and the fraction of the sold capacity that each VM bought.
const VMS: [(&str, f64); 4] = [("vm1", 0.4), ("vm2", 0.4), ("vm3", 0.1), ("vm4", 0.1)];
/// VM1's ring counts as never empty in a step if at least this fraction of the batches left frames
/// in the ring.
const FULL: f64 = 0.95;
/// Minimum number of steps in which VM1's ring was never empty. The claim about VM1's rate fails if
/// fewer steps were measured.
const STEPS_MIN: usize = 20;
/// Name of the switch port behind which all servers run.
const NET: &str = "net";
const NET_PLACE: usize = 4;
/// Maximum TCP segment size in bytes for frames of 1024 bytes. A frame also has 58 bytes of headers
/// and FCS.
const SEGMENT: &str = "966";
/// UDP payload in bytes of a 64-byte frame, and bits per second of 40,000 such payloads.
const SMALL: [&str; 2] = ["18", "5760000"];

/// Result of a calibration, in which VM1 and VM3 send TCP, and the other VMs send nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Sale {
    /// Cycles per second that the worker may spend.
    capacity: f64,
    /// Rate of VM1 and VM3 together in bits per second, if the VMs and the servers use all cycles
    /// of the worker.
    bps: f64,
    /// Fraction of the worker's used cycles that it spent on frames of VM1 and VM3. The frames of
    /// the iperf3 servers took the rest of the worker's used cycles.
    share: f64,
}

impl Sale {
    /// Calculates the result of a calibration from the counters of bits and cycles in `readings`.
    /// The bit rate is extrapolated to a worker that uses all its cycles.
    fn of(capacity: f64, readings: &[Reading]) -> anyhow::Result<Self> {
        let [first, .., last] = readings else { anyhow::bail!("no reading was made") };
        let cycles = |port: &str| last.per_second(first, port, "cycles");
        let senders = cycles("vm1") + cycles("vm3");
        let sent = mean_bps(readings, "vm1") + mean_bps(readings, "vm3");
        let all = senders + cycles(NET);
        Ok(Self { capacity, bps: sent * capacity / all, share: senders / all })
    }

    /// Returns the rate in bits per second that a purchase of the fraction `part` is worth.
    fn bits(&self, part: f64) -> f64 {
        SOLD * self.bps * part
    }
}

/// The ingress policy of a run. `Free` means that no port has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Free,
    Bps,
    /// As [`Self::Bps`], with VMs that send large segments.
    BpsTso,
    /// A limit in bits per second without a stated burst, for which frames wait.
    Waits,
    /// As [`Self::Waits`], with VMs that send large segments.
    WaitsTso,
    Strict,
    Minmax,
    C2qos,
    /// As [`Self::C2qos`], with the paper's algorithms as printed.
    Printed,
}

impl Way {
    /// Limits in bits per second: the paper's one first.
    const BITS: [Self; 4] = [Self::Bps, Self::BpsTso, Self::Waits, Self::WaitsTso];

    /// Limits in cycles.
    const CYCLES: [Self; 4] = [Self::Strict, Self::Minmax, Self::C2qos, Self::Printed];

    fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Bps => "bps",
            Self::BpsTso => "bps-tso",
            Self::Waits => "bps-waits",
            Self::WaitsTso => "bps-waits-tso",
            Self::Strict => "strict",
            Self::Minmax => "minmax",
            Self::C2qos => "minmax-hbs",
            Self::Printed => "minmax-hbs-as-printed",
        }
    }

    /// Whether the VMs send large segments.
    fn offloads(self) -> bool {
        matches!(self, Self::BpsTso | Self::WaitsTso)
    }

    fn is_bits(self) -> bool {
        Self::BITS.contains(&self)
    }

    /// Limits a VM to `bits` bits per second.
    fn limit(self, stage: &mut Stage, vm: &str, bits: f64) -> anyhow::Result<()> {
        if matches!(self, Self::Bps | Self::BpsTso) {
            return stage.limit(vm, bits);
        }
        let police = format!("police={{cir={bits:.0}}}");
        stage.change("port", vm, &["ingress_policy=bps", &police])
    }

    fn plan(self, sale: Sale) -> Plan {
        let bound = |part: Option<f64>| {
            let of = |policy| {
                let part = part.map_or(1.0 - sale.share, |part| part * sale.share);
                let cycles = SOLD * sale.capacity * part;
                Bound { policy, cycles, weight: 1, ..Bound::default() }
            };
            match (self, part) {
                // Limits in bits are set when the switch runs, and after each calibration.
                (Self::Free | Self::Bps | Self::BpsTso | Self::Waits | Self::WaitsTso, _) => {
                    Bound::default()
                }
                (Self::Strict, Some(_)) => of(Policy::Strict),
                (Self::Strict | Self::Minmax | Self::C2qos | Self::Printed, _) => {
                    of(Policy::Minmax)
                }
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
        let by_class = matches!(self, Self::C2qos | Self::Printed);
        if by_class {
            for vm in &mut vms {
                vm.bound.priority = if [NET, "vm1"].contains(&vm.name.as_str()) { 1 } else { 3 };
            }
        }
        let mut plan = Plan::new(if by_class { "hbs" } else { "round-robin" }, vms);
        plan.offloads = self.offloads();
        plan.worker = format!("capacity = {:.0}\n", sale.capacity);
        if self == Self::Printed {
            plan.worker.push_str("spare_cycles = \"printed\"\nreadiness = \"demotion\"\n");
        }
        plan
    }
}

/// Rates and latencies under one policy.
#[derive(Debug, Clone, Default)]
struct Found {
    /// VM1's rate in each phase, in percent of its purchase. The rate in a phase is the median of
    /// all judged windows.
    vm1_pct: [f64; 3],
    /// Every VM's rate over time in the last judged window.
    curves: Curves,
    /// VM1's rates in percent of its purchase, in the second and in the third phase. Each list has
    /// one rate of VM1 for each step in which VM1's ring was never empty.
    full_pct: [Vec<f64>; 2],
    /// Latency of VM1 from `tcp_lat` in microseconds: while the other VMs send nothing, and while
    /// they send.
    us: [f64; 2],
}

/// VM1's rate between two readings of the counters.
#[derive(Debug, Clone, Copy)]
struct Step {
    bps: f64,
    /// Whether VM1's ring counts as never empty in the step: at least the fraction [`FULL`] of the
    /// batches left frames in the ring.
    full: bool,
}

impl Step {
    fn between(pair: &[Reading]) -> Self {
        let [before, now] = pair else { return Self { bps: 0.0, full: false } };
        let grown = |name| now.per_second(before, "vm1", name);
        let batches = grown("rx_batches");
        let full = batches > 0.0 && grown("rx_full") >= FULL * batches;
        Self { bps: now.bps(before, "vm1"), full }
    }
}

/// Each VM's rate over time, as points of seconds and Mbit/s.
type Curves = [Vec<(f64, f64)>; 4];

/// Runs the live experiment of C2QoS Fig. 10.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs("iperf3", "iperf3")?;
    needs("qperf", "qperf")?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(3.0).max(1.0);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let capacity = (CORE_PART * bed.tsc_hz()).round();
    let (plain, tso) = (sell(&bed, capacity, false, secs)?, sell(&bed, capacity, true, secs)?);
    for (name, sale) in [("sold", plain), ("sold_tso", tso)] {
        outcome.note(
            name,
            json!({ "capacity_mcycles_per_s": sale.capacity / 1e6, "mbps": sale.bps / 1e6,
                "share_of_cycles": sale.share }),
        );
    }
    let mut all = Vec::new();
    let mut tally = Tally::default();
    let wanted = context.live.runs.unwrap_or(2);
    let ways = Way::BITS.into_iter().chain(Way::CYCLES);
    for (way, i) in ways.zip(0_u32..) {
        context.progress(f64::from(i) / 8.0, way.name());
        let sale = if way.offloads() { tso } else { plain };
        let found = under(&bed, way, sale, (secs, wanted), &mut tally)?;
        for ((vm, _), curve) in VMS.iter().zip(&found.curves) {
            outcome.series(&format!("{} {vm}", way.name()), "Mbit/s", curve.iter().copied());
        }
        outcome.note(
            way.name(),
            json!({
                "vm1_percent_of_bought": found.vm1_pct,
                "vm1_percent_of_bought_in_full_steps": found.full_pct,
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
    outcome.note("windows", tally.told("bit/s of VM1 and VM3 with the whole worker"));
    Ok(outcome)
}

/// Returns the port number of the iperf3 server for `vm`: a UDP port if `small`, or else a TCP
/// port.
fn port(vm: &str, small: bool) -> String {
    format!("52{}{}", u8::from(small), &vm[2..])
}

/// Starts an iperf3 client in `vm` that sends frames of 64 bytes if `small`, or else of 1024 bytes.
/// The client runs longer than the experiment.
fn send(bed: &Bed, stage: &mut Stage, vm: &str, small: bool) -> anyhow::Result<()> {
    let server = Plan::ip(NET_PLACE).to_string();
    let port = port(vm, small);
    let mut words = vec!["-c", &server, "-p", &port, "-t", "120"];
    let kind = ["-M", SEGMENT];
    let udp = ["-u", "-l", SMALL[0], "-b", SMALL[1]];
    words.extend(if small { &udp[..] } else { &kind[..] });
    stage.start_program(bed, vm, "iperf3", &words).map(drop)
}

/// Starts the iperf3 servers and waits until they answer.
fn serve(bed: &Bed, stage: &mut Stage) -> anyhow::Result<()> {
    // An iperf3 server serves one client at a time, so each VM needs a server for TCP and one for
    // UDP.
    for (vm, _) in VMS {
        for port in [port(vm, false), port(vm, true)] {
            stage.start_program(bed, NET, "iperf3", &["-s", "-p", &port])?;
        }
    }
    stage.start_program(bed, NET, "qperf", &[])?;
    stage.await_tcp("vm1", NET_PLACE, 19765)
}

/// Runs a calibration, in which VM1 and VM3 send frames of 1024 bytes, or large segments of such
/// frames with `offloads`. No VM has a limit.
fn sell(bed: &Bed, capacity: f64, offloads: bool, secs: f64) -> anyhow::Result<Sale> {
    let free = Sale { capacity, ..Sale::default() };
    let plan = Plan { offloads, ..Way::Free.plan(free) };
    let name = if offloads { "free-tso" } else { "free" };
    let mut stage = Stage::start(bed, name, &plan)?;
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
    if way.is_bits() {
        VMS.iter().try_for_each(|(vm, part)| way.limit(&mut stage, vm, sale.bits(*part)))?;
    }
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
    for (nth, pct) in found.full_pct.iter_mut().enumerate() {
        *pct = judged.iter().flat_map(|judged| full_steps(way, judged, nth)).collect();
    }
    if let Some(last) = judged.into_iter().last() {
        found.curves = last.found.curves;
    }
    // All neighbours send small frames, as in the third phase. VM1 sends nothing else, because its
    // latency probe would wait behind those frames.
    stage.end_programs(small);
    stage.end_programs(vm1..vm1 + 1);
    for vm in ["vm2", "vm3", "vm4"] {
        send(bed, &mut stage, vm, true)?;
    }
    found.us[1] = latency(bed, &mut stage, secs)?;
    Ok(found)
}

/// Result of the first phase, which is the calibration with frames of 1024 bytes from VM1 and VM3.
#[derive(Debug, Clone)]
struct Calm {
    sale: Sale,
    vm1_bps: f64,
    readings: Vec<Reading>,
}

/// Measurements of the second and third phase of a run, in which VMs also send 64-byte frames.
#[derive(Debug, Clone)]
struct Noisy {
    /// VM1's rate in bits per second, in the second and in the third phase.
    vm1_bps: [f64; 2],
    /// Readings of VM1's rate during the second and during the third phase.
    vm1_steps: [Vec<Step>; 2],
    curves: Curves,
    /// Fraction of the time for which the worker waited for its core.
    waited: f64,
}

/// Runs the experiment's three phases repeatedly: the calibration, and two phases in which VMs also
/// send 64-byte frames.
#[derive(Debug)]
struct Phases<'a> {
    bed: &'a Bed,
    stage: &'a mut Stage,
    way: Way,
    capacity: f64,
    secs: f64,
    /// Program numbers of the iperf3 clients in VM2, VM3 and VM4. The iperf3 clients end before the
    /// next calibration.
    small: std::ops::Range<usize>,
}

impl Phases<'_> {
    /// Waits for `secs / 3` seconds so that the rates settle, and then measures for `secs` seconds.
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
        if self.way.is_bits() {
            for (vm, part) in VMS {
                self.way.limit(self.stage, vm, by.sale.bits(part))?;
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
        let waited = to_f64(self.stage.waited_ns() - waited) / 1e9;
        let vm1_bps = [mean_bps(&second, "vm1"), mean_bps(&third, "vm1")];
        let waited = waited / since.elapsed().as_secs_f64();
        let vm1_steps = [&second, &third].map(|all| all.windows(2).map(Step::between).collect());
        Ok(Noisy { vm1_bps, vm1_steps, curves: curves([&by.readings, &second, &third]), waited })
    }

    fn speed(of: &Calm) -> f64 {
        of.sale.bps
    }

    fn doubt(found: &Noisy) -> Option<Doubt> {
        (found.waited > WAITED).then_some(Doubt::WaitedForCore)
    }
}

/// Returns VM1's purchase in bits per second.
fn bought(way: Way, judged: &Judged<Calm, Noisy>) -> f64 {
    let [before, after] = [&judged.before, &judged.after].map(|calm| calm.sale.bits(VMS[0].1));
    // `bps` sells bits according to the calibration before the window. Other policies sell cycles.
    // Their worth in bits changes with the machine, so the mean of both calibrations counts.
    if way.is_bits() { before } else { f64::midpoint(before, after) }
}

/// Returns VM1's rate in percent of its purchase, for each of the three phases.
fn percent_of_bought(way: Way, judged: &Judged<Calm, Noisy>) -> [f64; 3] {
    let [second, third] = judged.found.vm1_bps;
    [judged.before.vm1_bps, second, third].map(|bps| 100.0 * bps / bought(way, judged))
}

/// Returns VM1's rates in percent of its purchase, for the steps in which its ring was never empty.
/// The argument `phase` is 0 for the second phase of a run, and 1 for the third.
fn full_steps(way: Way, judged: &Judged<Calm, Noisy>, phase: usize) -> impl Iterator<Item = f64> {
    let bought = bought(way, judged);
    let full = judged.found.vm1_steps[phase].iter().filter(|step| step.full);
    full.map(move |step| 100.0 * step.bps / bought)
}

/// Joins the readings of the three phases into one curve for each VM.
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

/// Measures VM1's latency with qperf, in microseconds.
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

/// Returns the least of all values, or NaN if one of them is NaN.
fn least(pct: &[f64]) -> f64 {
    pct.iter().copied().fold(f64::INFINITY, super::noisy::nan_min)
}

fn conclude(outcome: &mut Outcome, all: &[Found]) {
    let [bps, bps_tso, waits, waits_tso, strict, minmax, c2qos, printed] = all else { return };
    let delta = |found: &Found| 100.0 * (found.vm1_pct[1] / found.vm1_pct[0] - 1.0);
    let left = |found: &Found| 100.0 * (found.us[1] - found.us[0]) / (bps.us[1] - bps.us[0]);
    let claims = [
        (
            "bps_vm1_phase2_delta_pct",
            "Change of VM1's rate when VM2 and VM4 begin, under `bps`.",
            delta(bps),
        ),
        (
            "strict_vm1_phase2_delta_pct",
            "Change of VM1's rate when VM2 and VM4 begin, under strict cycles.",
            delta(strict),
        ),
        (
            "bps_vm1_min_pct",
            "The least part of its purchase that VM1 gets, under `bps`.",
            least(&bps.vm1_pct),
        ),
        (
            "bps_tso_vm1_min_pct",
            "The same, with VMs that send large segments.",
            least(&bps_tso.vm1_pct),
        ),
        (
            "bps_waits_vm1_min_pct",
            "The same under `bps` without a stated burst.",
            least(&waits.vm1_pct),
        ),
        (
            "bps_waits_tso_vm1_min_pct",
            "The same under `bps` without a stated burst, with VMs that send large segments.",
            least(&waits_tso.vm1_pct),
        ),
        (
            "added_latency_left_cycles_pct",
            "Added latency with cycles only, in percent of what `bps` adds.",
            left(minmax),
        ),
        (
            "added_latency_left_pct",
            "Added latency with cycles and classes, in percent of what `bps` adds.",
            left(c2qos),
        ),
        (
            "added_latency_left_as_printed_pct",
            "The same with the paper's algorithms as printed.",
            left(printed),
        ),
        (
            "minmax_vm1_min_as_printed_pct",
            "The least part of its purchase that VM1 gets with the paper's algorithms as printed.",
            least(&printed.vm1_pct),
        ),
    ];
    for (id, statement, value) in claims {
        outcome.claim(Claim::new(id, statement, "%").measured(value));
    }
    rates_in_full_steps(outcome, strict, c2qos);
}

/// Adds the claims about VM1's rate in steps in which its ring was never empty.
fn rates_in_full_steps(outcome: &mut Outcome, strict: &Found, c2qos: &Found) {
    for (name, how, found, low) in [
        ("strict", "under strict cycles", strict, 97.0),
        ("minmax", "with spare cycles and classes", c2qos, 99.0),
    ] {
        let steps: usize = found.full_pct.iter().map(Vec::len).sum();
        let enough = steps >= STEPS_MIN;
        let phases = found.full_pct.each_ref().map(|pct| middle(pct));
        let pct = if enough { least(&phases) } else { f64::NAN };
        let statement = format!(
            "The least part of its purchase that VM1 gets beside noisy neighbours, {how}; medians \
             of at least {STEPS_MIN} steps in which {:.0} % of its batches were full.",
            100.0 * FULL
        );
        let id = format!("{name}_vm1_min_pct");
        outcome.claim(Claim::new(&id, statement, "%").at_least(low).measured(pct));
        let id = format!("{name}_vm1_full_steps");
        let statement = "Steps of 250 ms in which VM1's ring hardly ever became empty.";
        outcome.claim(Claim::new(&id, statement, "steps").measured(to_f64(steps as u64)));
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
