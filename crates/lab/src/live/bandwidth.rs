//! C2QoS Fig. 10, live: four VMs with real programs, bandwidth by iperf3, latency by qperf.
//!
//! **Problem.** VM1 to VM4 bought 4, 4, 1 and 1 parts for 1024-byte frames. First VM1 and VM3 send
//! TCP in such frames; then VM2 and VM4 send 64-byte frames (UDP) as well; then VM3 turns to them
//! too. **Source.** C2QoS §VI-A and Fig. 10.
//!
//! **Rule.** As in [`super::applications`]: namespaces, a worker capped to a 25th of its core for
//! every policy alike, one port for all servers, sold by a calibration. A noisy VM offers 40,000
//! frames a second. VM1's latency is that of qperf's `tcp_lat`, alone in its VM; *native* is
//! without neighbours, on the same switch. What a policy adds is compared with what `bps` adds.
//!
//! **Cost.** About a minute and a half.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::plan::{Bound, Plan, Policy, Vm};
use super::rig::platform;
use super::stage::{Reading, Stage, mean_bps};
use crate::bench::bed::Bed;
use crate::figures::{Claim, Context, Outcome};

/// The worker's part of its core.
const CORE_PART: f64 = 1.0 / 25.0;
/// Sold of what was measured.
const SOLD: f64 = 0.9;
/// Between two readings.
const STEP: Duration = Duration::from_millis(250);
/// The VMs and what each bought, of ten parts.
const VMS: [(&str, f64); 4] = [("vm1", 0.4), ("vm2", 0.4), ("vm3", 0.1), ("vm4", 0.1)];
/// The servers' port, and its place.
const NET: &str = "net";
const NET_PLACE: usize = 4;
/// TCP segments that make frames of 1024 bytes: less Ethernet with FCS, IP, TCP with time stamps.
const SEGMENT: &str = "966";
/// UDP payload of a 64-byte frame, and bits of 40,000 of them a second.
const SMALL: [&str; 2] = ["18", "5760000"];

/// What was measured without limits.
#[derive(Debug, Clone, Copy, Default)]
struct Sale {
    capacity: f64,
    /// Bits a second of VM1 and VM3 together.
    bps: f64,
    /// Their share of the cycles; the rest is the servers'.
    share: f64,
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
                    let bits = SOLD * sale.bps * part;
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

/// What one way showed.
#[derive(Debug, Clone, Default)]
struct Found {
    /// VM1's bits a second in each phase.
    vm1_bps: [f64; 3],
    /// Everybody's over time.
    curves: [Vec<(f64, f64)>; 4],
    /// Microseconds of `tcp_lat`: native, beside neighbours.
    us: [f64; 2],
}

/// Runs it.
///
/// # Errors
/// When a program is missing or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    super::needs("iperf3", "iperf3")?;
    super::needs("qperf", "qperf")?;
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
    for (way, i) in [Way::Bps, Way::Strict, Way::Minmax, Way::C2qos].into_iter().zip(0_u32..) {
        context.progress(f64::from(i) / 4.0, way.name());
        let found = under(&bed, way, sale, secs)?;
        for ((vm, _), curve) in VMS.iter().zip(&found.curves) {
            outcome.series(&format!("{} {vm}", way.name()), "Mbit/s", curve.iter().copied());
        }
        let phases: Vec<f64> = found.vm1_bps.iter().map(|b| b / 1e6).collect();
        outcome.note(
            way.name(),
            json!({
                "vm1_mbps": phases,
                "native_us": found.us[0],
                "beside_neighbours_us": found.us[1],
            }),
        );
        all.push(found);
    }
    conclude(&mut outcome, &all, sale);
    Ok(outcome)
}

/// The server's port for what a VM sends.
fn port(vm: &str, small: bool) -> String {
    format!("52{}{}", u8::from(small), &vm[2..])
}

/// A client of iperf3 in `vm`, in frames of 1024 bytes or of 64, that outlasts the run.
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
    // An iperf3 serves one client at a time: one for each VM's TCP, one for its UDP.
    for (vm, _) in VMS {
        for port in [port(vm, false), port(vm, true)] {
            stage.start_program(bed, NET, "iperf3", &["-s", "-p", &port])?;
        }
    }
    stage.start_program(bed, NET, "qperf", &[])?;
    stage.await_tcp("vm1", NET_PLACE, 19765)
}

/// VM1 and VM3 in frames of 1024 bytes, without limits.
fn sell(bed: &Bed, capacity: f64, secs: f64) -> anyhow::Result<Sale> {
    let free = Sale { capacity, ..Sale::default() };
    let mut stage = Stage::start(bed, Way::Free.name(), &Way::Free.plan(free))?;
    serve(bed, &mut stage)?;
    for vm in ["vm1", "vm3"] {
        send(bed, &mut stage, vm, false)?;
    }
    let readings = stage.watch(secs, STEP)?;
    let late = &readings[readings.len() / 2..];
    let [first, .., last] = late else { anyhow::bail!("no reading was made") };
    let cycles = |port: &str| last.per_second(first, port, "cycles");
    let senders = cycles("vm1") + cycles("vm3");
    let bps = mean_bps(late, "vm1") + mean_bps(late, "vm3");
    Ok(Sale { capacity, bps, share: senders / (senders + cycles(NET)) })
}

fn under(bed: &Bed, way: Way, sale: Sale, secs: f64) -> anyhow::Result<Found> {
    let mut stage = Stage::start(bed, way.name(), &way.plan(sale))?;
    serve(bed, &mut stage)?;
    let mut found = Found::default();
    found.us[0] = latency(bed, &mut stage, secs)?;
    let first = stage.programs();
    send(bed, &mut stage, "vm1", false)?;
    send(bed, &mut stage, "vm3", false)?;
    let mut at = 0.0;
    phase(&stage, &mut found, 0, secs, &mut at)?;
    send(bed, &mut stage, "vm2", true)?;
    send(bed, &mut stage, "vm4", true)?;
    phase(&stage, &mut found, 1, secs, &mut at)?;
    stage.end_programs(first + 1..first + 2);
    send(bed, &mut stage, "vm3", true)?;
    phase(&stage, &mut found, 2, secs, &mut at)?;
    // VM1's own frames would be what its latency waits for.
    stage.end_programs(first..first + 1);
    found.us[1] = latency(bed, &mut stage, secs)?;
    Ok(found)
}

/// A phase: a third of it to settle, the rest measured.
fn phase(
    stage: &Stage,
    found: &mut Found,
    nth: usize,
    secs: f64,
    at: &mut f64,
) -> anyhow::Result<()> {
    let readings = stage.watch(secs, STEP)?;
    found.vm1_bps[nth] = mean_bps(&readings[readings.len() / 3..], "vm1");
    for ((vm, _), curve) in VMS.iter().zip(&mut found.curves) {
        let points = readings.windows(2).zip(1_u32..).map(|(pair, i): (&[Reading], u32)| {
            (*at + f64::from(i) * STEP.as_secs_f64(), mean_bps(pair, vm) / 1e6)
        });
        curve.extend(points);
    }
    *at += secs;
    Ok(())
}

/// VM1's latency by qperf.
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

fn conclude(outcome: &mut Outcome, all: &[Found], sale: Sale) {
    let [bps, strict, minmax, c2qos] = all else { return };
    let bought = SOLD * sale.bps * VMS[0].1;
    let delta = |found: &Found| 100.0 * (found.vm1_bps[1] / found.vm1_bps[0] - 1.0);
    let least = |found: &Found| {
        100.0 * found.vm1_bps.iter().copied().fold(f64::INFINITY, f64::min) / bought
    };
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
