//! Live experiment for FS-VDE's Table II: five TCP flows of two clients share one output.
//!
//! # Problem
//!
//! Client c1 has one flow from one VM. Client c2 has four flows from two VMs, and should get twice
//! c1's rate. With a FIFO queue, TCP gives each *flow* about the same rate.
//!
//! # Source
//!
//! The experiment replays FS-VDE §5, Tables I and II.
//!
//! # Approach
//!
//! Each VM is a namespace with iperf3 behind a vhost-user endpoint. Every flow goes to one server
//! behind the shared output, which sends at [`LINK`] at most. Two queueing disciplines, `fifo` and
//! `fair-share`, alternate. Each discipline runs [`RUNS`] times, with a new switch for each run. A
//! VM's rate counts the frames that the switch received from the VM and forwarded. The first third
//! of a run does not count. If `vde_switch` is installed, it is measured, too. `vde_switch` has no
//! configured rate: its CPU is its bottleneck, as in the paper.
//!
//! # Unpaced
//!
//! The results with the prefix `unpaced_` have no configured rate of the output. As in the paper,
//! the switch's CPU is the bottleneck: the worker may use [`CORE_PART`] of its core.
//!
//! Both disciplines are measured in one running switch, with the same VMs and TCP connections
//! ([`super::slices`]). A change of the configuration gives the output the other discipline. For
//! each of the runs ([`RUNS`]), [`PAIRS`] pairs of slices of 1.5 s alternate. The option `--runs`
//! changes the number of runs, and `--secs` has no effect on slices. The first part of a slice
//! ([`SETTLE`]) does not count: when the output changes from `fair-share` to `fifo`, the switch
//! drops the frames that wait in the queue, and TCP may wait 200 ms before it sends them again. A
//! claim about one discipline is the median of its slices. A claim that compares disciplines is the
//! median of the ratios of pairs. `..._by_ranks` has the interval of each median.
//!
//! Until 2026-11-30, each discipline had its own runs of 8 s, each with a new switch and new
//! connections. On a machine with two virtual CPUs, two runs of `fifo` then had 1,127 and 1,783
//! Mbit/s, and two runs of `fair-share` had 979 and 1,031 Mbit/s. A batch took 17,000 to 20,000
//! cycles with `fifo` and 39,000 cycles with `fair-share`. The runs did not show whether the
//! machine or the discipline caused the difference.
//!
//! # Where the cycles go
//!
//! The record shows this for each discipline and each VM, and for the server (`..._details`):
//!
//! - the frames, bytes and cycles of a batch
//! - the cycles of sampled batches by stage: reception, classification and delivery
//! - the interrupts
//! - the part of the batches after which a ring had more frames (`full_batches_pct`)
//! - the part of the frames that waited in the output's queue
//!
//! `..._turns_per_batch` is the number of the worker's turns for each batch of a VM.
//! `..._per_batch` divides all work of the worker by the batches of the VMs: the choices of the
//! output, the looks at rings of other VMs before these choices, the batches that waited although
//! their output was known, the turns in which the output sent waiting frames, and the interrupts.
//! It has parts of the cycles, which add up to `all`:
//!
//! - the stages of the VMs' batches
//! - all stages of the batches with acknowledgements (`answers`)
//! - the interrupts, and the batches from the output's queue
//! - the rest, which no sample and no other counter has, such as checks of drivers that want no
//!   interrupt
//!
//! `cycles_per_byte_vs_fifo_pct_by_ranks` compares the cycles for a byte in pairs.
//! `throughput_vs_fifo_pct_of_full_pairs_by_ranks` has only pairs in which the worker used
//! [`USED_MIN`] of its capacity in both slices.
//!
//! The worker is the bottleneck in a slice only if it used its cycles. For each slice, the record
//! shows the used part of the capacity (`..._worker_used_pct`), the cycles per second that were
//! left (`..._cycles_left_per_s`), and the cycles for which the worker did not have its core
//! (`..._stolen_per_s`). Fewer than 0 cycles may be left, because a worker may use 1/64 more than
//! its capacity. `..._slices_below_capacity` is the number of slices in which the worker used less
//! than [`USED_MIN`]. A pause of the worker that is too long also leaves cycles unused, although
//! frames wait. In this case, nearly all batches are full.
//!
//! Without a rate, a `fifo` output sends each frame at once, and frames wait in the VMs' rings. A
//! `fair-share` output chooses whom the worker polls. Frames that wait in its queue are copied
//! twice: those of a VM's first batch after a pause of 50 ms, and large segments that the port does
//! not take. `throughput_vs_queued_fifo_pct` compares `fair-share` with a `fifo` output that also
//! has a queue, and a link that is faster than any core.
//!
//! The slower a flow, the smaller are the large segments that TCP makes. With the same cycles, the
//! worker moved 1,900 frames per second with a mean size of 40 KB with `fifo`, and 2,300 frames per
//! second of 27 KB with `fair-share` (2026-11-30). Therefore, the VMs send segments of [`SEGMENTS`]
//! packets at any rate, and all disciplines move the same frames.
//!
//! # The ratio with one queue
//!
//! The ratio of the paced run with `fifo` depends on the order in which the flows start: a full
//! queue drops frames of all flows, and the flows that started last keep most of it. The record
//! shows this. The run is repeated with one changed setting at a time ([`EXPLAIN`]): guests without
//! offloads, a queue of 8 MiB, c1's VM as the last port, and c1's flow as the last to start. For
//! each case, the record shows the ratio, and for each VM
//! the mean size of the frames in its ring, the part of them that the queue dropped, and the
//! time-outs and retransmissions of its TCP. The queue counts a large segment as one frame, and
//! drops it whole.
//!
//! # Departures
//!
//! The paper's clients were hosts with one VM each. In the live experiment, a VM may send frames
//! larger than the MTU, because segmentation offloads are on.

use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Rng;
use serde_json::{Map, Value, json};

use super::fabric::kernel_counter;
use super::needs::needs;
use super::slices::{Slice, Spans, alternate};
use super::stage::Stage;
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::plan::{Plan, Vm};
use crate::rig::platform;
use crate::rig::stats::{Ranked, middle, paired_ratio};
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::ask;
use penstock_guest::clock;

/// Rate of the output in bits per second, preamble and gap included. The link of the paper's legacy
/// switch has the same rate of 582.4 Mbit/s.
const LINK: u64 = 582_400_000;
/// Rate in bits per second that no core reaches, so that frames wait only for the core.
const FAST: u64 = 400_000_000_000;
/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Number of runs of each queueing discipline.
const RUNS: u32 = 3;
/// Number of pairs of slices without a rate of the output, for each run.
const PAIRS: u32 = 8;
/// First part of a slice, which does not count.
const SETTLE: Duration = Duration::from_millis(500);
/// Counted part of a slice.
const COUNTED: Duration = Duration::from_secs(1);
/// Part of the worker's capacity, in per cent. If the worker used less in a slice, it may not have
/// been the bottleneck.
const USED_MIN: f64 = 98.0;
/// Fraction of its core that the worker may use if the output has no rate. With a tenth, a `fifo`
/// output leaves a quarter of these cycles unused, because the programs on the other core are the
/// bottleneck. With an 80th, each flow is so slow that TCP makes segments of 3 to 4 KB with
/// `fair-share`, which cost more cycles for a byte than the segments of 28 KB with `fifo`.
const CORE_PART: f64 = 1.0 / 30.0;
/// Seconds after which a flow ends, if its run does not end before.
const FLOW_SECS: &str = "86400";
/// Number of packets in a large segment of a VM if the worker's cycles are the limit.
const SEGMENTS: u32 = 8;
/// Counters of the cycles of sampled batches, by stage.
const STAGES: [&str; 3] = ["cycles_ingress", "cycles_classification", "cycles_egress"];
/// Bytes of the queue with `fifo`.
const QUEUE: u32 = 1 << 20;
/// The VMs: each has a name, a client, the client's weight, and a number of flows.
const VMS: [(&str, &str, u32, &str); 3] =
    [("f1", "c1", 1, "1"), ("f2f3", "c2", 2, "2"), ("f4f5", "c2", 2, "2")];
const NET: &str = "net";
const NET_PLACE: usize = VMS.len();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Fifo,
    FairShare,
}

impl Order {
    const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::FairShare => "fair-share",
        }
    }
}

/// Settings of a run or a slice.
#[derive(Debug, Clone, Copy)]
struct Case {
    order: Order,
    /// Rate of the output in bits per second. `None` if the output has no rate.
    link: Option<u64>,
    /// Cycles per second that the worker may use. `None` for its whole core.
    capacity: Option<f64>,
    /// Bytes that may wait with [`Order::Fifo`].
    bytes: u32,
    offloads: bool,
    /// Whether c1's VM is the last sender in the configuration instead of the first.
    c1_last: bool,
    /// Whether c1's flow is the last to start instead of the first.
    c1_starts_last: bool,
}

/// Cases that differ from the paced run with `fifo` in one setting, with their names.
const EXPLAIN: [(&str, Case); 4] = [
    ("without_offloads", Case { offloads: false, ..Case::paced(Order::Fifo) }),
    ("queue_8_mib", Case { bytes: 8 << 20, ..Case::paced(Order::Fifo) }),
    ("c1_last", Case { c1_last: true, ..Case::paced(Order::Fifo) }),
    ("c1_starts_last", Case { c1_starts_last: true, ..Case::paced(Order::Fifo) }),
];

impl Case {
    const fn paced(order: Order) -> Self {
        let link = Some(LINK);
        let (c1_last, c1_starts_last) = (false, false);
        Self { order, link, capacity: None, bytes: QUEUE, offloads: true, c1_last, c1_starts_last }
    }

    fn unpaced(order: Order, bed: &Bed) -> Self {
        Self { link: None, capacity: Some(CORE_PART * bed.tsc_hz()), ..Self::paced(order) }
    }

    fn name(&self) -> String {
        let pace = if self.link.is_some() { "" } else { "-unpaced" };
        format!("{}{pace}", self.order.name())
    }

    /// Returns the configuration keys of the output that differ among cases, besides `egress`. The
    /// value is empty if the output does not have the key.
    fn limits(&self) -> [(&'static str, String); 2] {
        // `fifo` gets a queue of at most 20 ms. `fair-share` keeps the default queue.
        let queue = match self.order {
            Order::Fifo => format!("{{ bytes = {}, wait_us = 20000 }}", self.bytes),
            Order::FairShare => String::new(),
        };
        [("queue", queue), ("link", self.link.map_or_else(String::new, |link| link.to_string()))]
    }

    /// Returns the changes that give a running output the discipline and the rate of this case.
    fn changes(&self) -> [String; 3] {
        let [queue, link] = self.limits().map(|(key, value)| format!("{key}={value}"));
        [format!("egress={}", self.order.name()), queue, link]
    }

    fn plan(&self) -> Plan {
        let tenant = |name: &str, weight| Some((name.to_owned(), weight));
        let sender = |(name, client, weight, _): &(&str, &str, u32, &str)| Vm {
            name: (*name).to_owned(),
            tenant: tenant(client, *weight),
            to: Some(NET.to_owned()),
            ..Vm::default()
        };
        let mut vms: Vec<Vm> = VMS.iter().map(sender).collect();
        if self.c1_last {
            vms.rotate_left(1);
        }
        let limits = self.limits().into_iter().filter(|(_, value)| !value.is_empty());
        let limits: String = limits.map(|(key, value)| format!("{key} = {value}\n")).collect();
        let more = format!("egress = \"{}\"\n{limits}", self.order.name());
        // `answers` makes the way back for acknowledgements.
        vms.push(Vm { name: NET.to_owned(), more, answers: true, ..Vm::default() });
        let mut plan = Plan { offloads: self.offloads, ..Plan::new("", vms) };
        if let Some(capacity) = self.capacity {
            plan.worker = format!("capacity = {capacity:.0}\n");
        }
        plan
    }
}

/// Bits per second that the switch forwarded from each VM.
type Rates = [f64; 3];

/// Result of a run.
#[derive(Debug)]
struct Run {
    rates: Rates,
    /// What the TCP and the port of each VM did, and at the end those of [`NET`].
    details: Vec<Map<String, Value>>,
}

/// Starts a switch, and the flows of all VMs.
fn started(bed: &Bed, case: &Case) -> anyhow::Result<Stage> {
    let mut stage = Stage::start(bed, &case.name(), &case.plan())?;
    if case.capacity.is_some() {
        VMS.iter().try_for_each(|(vm, ..)| fix_segments(&stage, vm))?;
    }
    let mut starts = VMS;
    if case.c1_starts_last {
        starts.rotate_left(1);
    }
    for (vm, _, _, flows) in starts {
        let port = port(vm);
        stage.start_program(bed, NET, "iperf3", &["-s", "-p", &port])?;
        stage.await_tcp(vm, NET_PLACE, port.parse().context("a port's number")?)?;
        let server = Plan::ip(NET_PLACE).to_string();
        let words = ["-c", &server, "-p", &port, "-t", FLOW_SECS, "-P", flows];
        stage.start_program(bed, vm, "iperf3", &words)?;
    }
    Ok(stage)
}

fn one(bed: &Bed, case: &Case, secs: f64) -> anyhow::Result<Run> {
    let stage = started(bed, case)?;
    let readings = stage.watch(secs, STEP)?;
    let counted = &readings[readings.len() / 3..];
    let [first, .., last] = counted else { anyhow::bail!("{secs} s are too few for a reading") };
    let spans = Spans::one(first, last);
    let details = ports().map(|port| -> anyhow::Result<_> {
        let mut details = details_of(&spans, port);
        details.extend(tcp_of(&stage, port)?);
        Ok(details)
    });
    let details = details.collect::<anyhow::Result<_>>()?;
    Ok(Run { rates: rates_of(&spans), details })
}

/// Returns the names of all VMs, and at the end [`NET`].
fn ports() -> impl Iterator<Item = &'static str> {
    VMS.map(|(vm, ..)| vm).into_iter().chain([NET])
}

fn rates_of(spans: &Spans<'_>) -> Rates {
    VMS.map(|(vm, ..)| {
        // The queue had no room for the other frames, and TCP retransmitted them.
        spans.bps(vm) * spans.grown(vm, "forwarded") / spans.grown(vm, "rx_frames").max(1.0)
    })
}

/// Makes a VM's TCP send segments of [`SEGMENTS`] packets at any rate.
fn fix_segments(stage: &Stage, vm: &str) -> anyhow::Result<()> {
    let least = format!("net.ipv4.tcp_min_tso_segs={SEGMENTS}");
    ask(&mut stage.inside(vm, "sysctl", &["-qw", &least])?)?;
    let most = SEGMENTS.to_string();
    let words = ["link", "set", "dev", "eth0", "gso_max_segs", &most];
    ask(&mut stage.inside(vm, "ip", &words)?).map(drop)
}

/// Returns what the port of a VM did. The cycles of a batch include the port's part of all
/// notifications. The cycles by stage are those of reception, classification and delivery.
fn details_of(spans: &Spans<'_>, vm: &str) -> Map<String, Value> {
    let grown = |name: &str| spans.grown(vm, name);
    let (frames, batches) = (grown("rx_frames").max(1.0), grown("rx_batches").max(1.0));
    let rate = |name: &str| spans.per_second(vm, name).round();
    let sampled = grown("sampled_frames").max(1.0);
    let stages = STAGES.map(|name| grown(name) / sampled);
    let details = json!({
        "vm": vm,
        "frames_per_s": rate("rx_frames"),
        "batches_per_s": rate("rx_batches"),
        "interrupts_per_s": rate("tx_kicks"),
        "frames_per_batch": hundredths(frames / batches),
        "bytes_per_batch": (grown("rx_bytes") / batches).round(),
        "cycles_per_batch": (grown("cycles") / batches).round(),
        "cycles_per_frame": (grown("cycles") / frames).round(),
        "sampled_cycles_per_batch": stages.map(|cycles| (cycles * frames / batches).round()),
        "sampled_cycles_per_frame": stages.map(f64::round),
        "waited_pct": 100.0 * spans.waited(vm) / frames,
        "mean_frame_bytes": (grown("rx_bytes") / frames).round(),
        "dropped_pct": 100.0 * spans.dropped(vm) / frames,
        "full_batches_pct": 100.0 * grown("rx_full") / batches,
        "held_back": grown("held_back"),
    });
    match details {
        Value::Object(details) => details,
        _ => Map::new(),
    }
}

/// Returns the sum of a count over all VMs.
fn of_vms(count: impl Fn(&str) -> f64) -> f64 {
    VMS.iter().map(|(vm, ..)| count(vm)).sum()
}

/// Returns the worker's work for each batch of a VM. The cycles of the stages are those of sampled
/// batches, extrapolated to all frames.
fn per_batch(all: &Spans<'_>) -> Value {
    let sampled = |vm: &str, stage: &str| {
        let frames = all.grown(vm, "rx_frames") / all.grown(vm, "sampled_frames").max(1.0);
        all.grown(vm, stage) * frames
    };
    let of_ports = |name: &str| -> f64 { ports().map(|port| all.grown(port, name)).sum() };
    let batches = of_vms(|vm| all.grown(vm, "rx_batches")).max(1.0);
    let each = |count: f64| hundredths(count / batches);
    let [charged, notified, queued] = ["cycles_charged", "cycles_notified", "cycles_queued"]
        .map(|name| all.worker_grown(name) / batches);
    let stages = STAGES.map(|stage| of_vms(|vm| sampled(vm, stage)) / batches);
    let answers = STAGES.map(|stage| sampled(NET, stage)).iter().sum::<f64>() / batches;
    let rest = charged - stages.iter().sum::<f64>() - answers - notified - queued;
    json!({
        "frames": each(of_vms(|vm| all.grown(vm, "rx_frames"))),
        "frames_that_waited": each(of_vms(|vm| all.waited(vm))),
        "choices": each(all.worker_grown("share_choices")),
        "looks_at_other_rings": each(all.worker_grown("share_looks")),
        "unchosen_batches": each(all.worker_grown("unchosen_batches")),
        "turns_of_the_queue": each(all.worker_grown("busy_turns") - of_ports("rx_batches")),
        "batches_of_answers": each(all.grown(NET, "rx_batches")),
        "interrupts": each(of_ports("tx_kicks")),
        "interrupts_for_taken_frames": each(all.worker_grown("taken_notifications")),
        "cycles": {
            "all": charged.round(),
            "ingress": stages[0].round(),
            "classification": stages[1].round(),
            "egress": stages[2].round(),
            "answers": answers.round(),
            "interrupts": notified.round(),
            "queue": queued.round(),
            "rest": rest.round(),
        },
    })
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Returns the counters of a VM's TCP since the start of the VM.
fn tcp_of(stage: &Stage, vm: &str) -> anyhow::Result<[(String, Value); 3]> {
    let tcp = ask(&mut stage.inside(vm, "cat", &["/proc/net/netstat", "/proc/net/snmp"])?)?;
    let names = [
        ("tcp_timeouts", "TcpExt:", "TCPTimeouts"),
        ("tcp_retransmitted_segments", "Tcp:", "RetransSegs"),
        ("tcp_sent_segments", "Tcp:", "OutSegs"),
    ];
    Ok(names.map(|(told, group, name)| (told.to_owned(), kernel_counter(&tcp, group, name).into())))
}

fn port(vm: &str) -> String {
    format!("530{}", &vm[1..2])
}

fn ratio(rates: &Rates) -> f64 {
    (rates[1] + rates[2]) / rates[0]
}

/// Returns the lower of the two clients' rates, in percent of the client's due rate. Client c1 is
/// due a third of the total rate, and client c2 is due two thirds.
fn least_of_due(rates: &Rates) -> f64 {
    let all: f64 = rates.iter().sum();
    (100.0 * rates[0] * 3.0 / all).min(100.0 * (rates[1] + rates[2]) * 1.5 / all)
}

/// Runs the live experiment of FS-VDE's Table II.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs("iperf3", "iperf3")?;
    needs("sysctl", "procps")?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(10.0);
    let mut rng = Rng::new(context.seed);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("link_bps", LINK);
    context.progress(0.0, "both orders in turn");
    let paced = [Order::Fifo, Order::FairShare].map(Case::paced);
    let [fifo, fair] = in_turn(context, &bed, &paced, (secs, &mut rng), &mut outcome)?;
    outcome.note("vde_switch", vde(&bed, secs).unwrap_or_else(|e| format!("{e:#}").into()));
    conclude(&mut outcome, &fifo, &fair, 99.0);
    context.progress(0.4, "without a rate of the output");
    outcome.append("unpaced", unpaced(&bed, context.live.runs.unwrap_or(RUNS))?);
    context.progress(0.8, "one queue, with other settings");
    explain(&bed, secs, &mut outcome)?;
    Ok(outcome)
}

/// Measures two cases in turn, the first one by chance. Returns the rates of each case.
fn in_turn(
    context: &Context<'_>,
    bed: &Bed,
    cases: &[Case; 2],
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<[Vec<Rates>; 2]> {
    let mut runs: [Vec<Run>; 2] = Default::default();
    for _ in 0..context.live.runs.unwrap_or(RUNS) {
        let first = usize::from(rng.chance_ppm(500_000));
        for at in [first, 1 - first] {
            runs[at].push(one(bed, &cases[at], secs)?);
        }
    }
    for (case, runs) in cases.iter().zip(&runs) {
        let name = case.order.name();
        let rates: Vec<Rates> = runs.iter().map(|run| run.rates).collect();
        draw(outcome, name, &rates);
        outcome.note(&format!("{name}_mbps"), told(&rates));
        outcome.note(&format!("{name}_details"), runs.last().map(|run| json!(run.details)));
    }
    Ok(runs.map(|runs| runs.into_iter().map(|run| run.rates).collect()))
}

/// Adds the median rate of each VM as a series.
fn draw(outcome: &mut Outcome, name: &str, rates: &[Rates]) {
    let of = |vm: usize| middle(&rates.iter().map(|rates| rates[vm]).collect::<Vec<_>>());
    let points = (0..3_u32).map(f64::from).zip((0..3).map(|vm| of(vm) / 1e6));
    outcome.series(name, "Mbit/s", points);
}

/// Measures without a rate of the output. `runs` is the number of runs that the paced cases have.
fn unpaced(bed: &Bed, runs: u32) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let capacity = CORE_PART * bed.tsc_hz();
    outcome.note("worker_capacity_of_core", CORE_PART);
    outcome.note("slice_settle_s", SETTLE.as_secs_f64());
    outcome.note("slice_counted_s", COUNTED.as_secs_f64());
    let [fifo, fair] = [Order::Fifo, Order::FairShare].map(|order| Case::unpaced(order, bed));
    let queued = Case { link: Some(FAST), ..fifo };
    let stage = started(bed, &fifo)?;
    let pairs = PAIRS.saturating_mul(runs);
    let [of_fifo, of_fair] = in_slices(&stage, &[fifo, fair], pairs)?;
    let rates = note_slices(&mut outcome, Order::Fifo.name(), &of_fifo, capacity);
    let fair_rates = note_slices(&mut outcome, Order::FairShare.name(), &of_fair, capacity);
    draw(&mut outcome, Order::Fifo.name(), &rates);
    draw(&mut outcome, Order::FairShare.name(), &fair_rates);
    conclude(&mut outcome, &rates, &fair_rates, 98.5);
    let ratios: Vec<f64> = fair_rates.iter().map(ratio).collect();
    outcome.note("fair_ratio_c2_over_c1_by_ranks", json!(Ranked::of(&ratios)));
    let part = pcts(&sums(&fair_rates), &sums(&rates));
    outcome.note("throughput_vs_fifo_pct_by_ranks", json!(Ranked::of(&part)));
    let used = [&of_fifo, &of_fair].map(|slices| used_pct(slices, capacity));
    let is_full = |pair: usize| used.iter().all(|used| used[pair] >= USED_MIN);
    let full = (0..part.len()).filter(|pair| is_full(*pair)).map(|pair| part[pair]);
    let full: Vec<f64> = full.collect();
    outcome.note("throughput_vs_fifo_pct_of_full_pairs_by_ranks", json!(Ranked::of(&full)));
    let cycles = pcts(&cycles_per_byte(&of_fair), &cycles_per_byte(&of_fifo));
    outcome.note("cycles_per_byte_vs_fifo_pct_by_ranks", json!(Ranked::of(&cycles)));
    let [of_queued, of_fair] = in_slices(&stage, &[queued, fair], pairs / 2)?;
    let rates = note_slices(&mut outcome, "queued_fifo", &of_queued, capacity);
    let fair_rates = note_slices(&mut outcome, "queued_fair-share", &of_fair, capacity);
    conclude_queued(&mut outcome, &rates, &fair_rates);
    let tcp = ports().map(|vm| -> anyhow::Result<_> {
        let counters = Map::from_iter(tcp_of(&stage, vm)?);
        Ok((vm.to_owned(), Value::Object(counters)))
    });
    outcome.note("tcp", Value::Object(tcp.collect::<anyhow::Result<_>>()?));
    Ok(outcome)
}

/// Measures two cases in slices of a running switch. Returns the slices of each case.
fn in_slices(stage: &Stage, cases: &[Case; 2], pairs: u32) -> anyhow::Result<[Vec<Slice>; 2]> {
    alternate(pairs, |case| {
        let changes = cases[case].changes();
        stage.change("port", NET, &changes.each_ref().map(String::as_str))?;
        clock::wait_readable(None, SETTLE);
        let first = stage.read()?;
        clock::wait_readable(None, COUNTED);
        Ok([first, stage.read()?])
    })
}

/// Records the slices of a case, whose worker may use `capacity` cycles per second. Returns the
/// rates in each slice.
fn note_slices(outcome: &mut Outcome, name: &str, slices: &[Slice], capacity: f64) -> Vec<Rates> {
    let rates = slices.iter().map(|[first, last]| rates_of(&Spans::one(first, last)));
    let rates: Vec<Rates> = rates.collect();
    let used = used_pct(slices, capacity);
    let below = used.iter().filter(|used| **used < USED_MIN).count();
    let left = used.iter().map(|used| (capacity - capacity * used / 100.0).round());
    let left: Value = left.collect();
    let stolen = per_second(slices, "cycles_stolen").into_iter().map(f64::round);
    let all = Spans::all(slices);
    let batches = of_vms(|vm| all.grown(vm, "rx_batches"));
    let details: Vec<_> = ports().map(|port| details_of(&all, port)).collect();
    let mut note = |what: &str, value: Value| outcome.note(&format!("{name}_{what}"), value);
    note("mbps", told(&rates));
    note("details", json!(details));
    note("turns_per_batch", json!(all.worker_grown("busy_turns") / batches.max(1.0)));
    note("per_batch", per_batch(&all));
    note("worker_used_pct", used.into_iter().map(hundredths).collect());
    note("cycles_left_per_s", left);
    note("stolen_per_s", stolen.collect());
    note("slices_below_capacity", json!(below));
    rates
}

/// Returns the increase per second of a counter of the worker, in each slice.
fn per_second(slices: &[Slice], counter: &str) -> Vec<f64> {
    let of = |[first, last]: &Slice| Spans::one(first, last).worker_per_second(counter);
    slices.iter().map(of).collect()
}

/// Returns the part of the worker's capacity that the worker used, in per cent, in each slice.
fn used_pct(slices: &[Slice], capacity: f64) -> Vec<f64> {
    let charged = per_second(slices, "cycles_charged");
    charged.into_iter().map(|cycles| 100.0 * cycles / capacity).collect()
}

/// Returns the worker's cycles for each byte that the VMs sent, in each slice.
fn cycles_per_byte(slices: &[Slice]) -> Vec<f64> {
    let of = |[first, last]: &Slice| {
        let spans = Spans::one(first, last);
        let bytes = of_vms(|vm| spans.grown(vm, "rx_bytes"));
        spans.worker_grown("cycles_charged") / bytes.max(1.0)
    };
    slices.iter().map(of).collect()
}

/// Returns the total rate of each slice or run.
fn sums(rates: &[Rates]) -> Vec<f64> {
    rates.iter().map(|rates| rates.iter().sum()).collect()
}

/// Returns `above[i]` in per cent of `below[i]`.
fn pcts(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).map(|(above, below)| 100.0 * above / below).collect()
}

/// Compares the total rate of `fair-share` with that of a `fifo` output with a queue, which is not
/// paced, either.
fn conclude_queued(outcome: &mut Outcome, queued: &[Rates], fair: &[Rates]) {
    let what = "c2's rate over c1's, first come, first served, with a queue";
    let claim = Claim::new("queued_fifo_ratio_c2_over_c1", what, "");
    let ratios: Vec<f64> = queued.iter().map(ratio).collect();
    outcome.claim(claim.measured(middle(&ratios)));
    let what = "fair-share's rate in all, of the rate of fifo with a queue";
    let claim = Claim::new("throughput_vs_queued_fifo_pct", what, "%");
    let part = pcts(&sums(fair), &sums(queued));
    outcome.claim(claim.measured(middle(&part)));
    outcome.note("throughput_vs_queued_fifo_pct_by_ranks", json!(Ranked::of(&part)));
}

/// Measures the ratio with one queue under each setting of [`EXPLAIN`].
fn explain(bed: &Bed, secs: f64, outcome: &mut Outcome) -> anyhow::Result<()> {
    for (name, case) in &EXPLAIN {
        let run = one(bed, case, secs)?;
        let what = format!("c2's rate over c1's with one queue, {}", name.replace('_', " "));
        let claim = Claim::new(&format!("fifo_ratio_{name}"), what, "");
        outcome.claim(claim.measured(ratio(&run.rates)));
        outcome.note(&format!("fifo_{name}_mbps"), told(&[run.rates]));
        outcome.note(&format!("fifo_{name}_details"), json!(run.details));
    }
    Ok(())
}

fn told(rates: &[Rates]) -> Value {
    let run = |rates: &Rates| json!(rates.map(|rate| (rate / 1e4).round() / 100.0));
    rates.iter().map(run).collect()
}

/// Adds the claims about the rates with both orders. `throughput` is the lowest accepted total rate
/// of `fair-share`, in per cent of that of `fifo`. The runs or slices `fifo[i]` and `fair[i]`
/// directly followed each other.
fn conclude(outcome: &mut Outcome, fifo: &[Rates], fair: &[Rates], throughput: f64) {
    let of = |rates: &[Rates], what: &dyn Fn(&Rates) -> f64| {
        middle(&rates.iter().map(what).collect::<Vec<_>>())
    };
    let what = "c2's rate over c1's, first come, first served";
    let claim = Claim::new("fifo_ratio_c2_over_c1", what, "");
    outcome.claim(claim.published(3.28).measured(of(fifo, &ratio)));
    let claim = Claim::new("fair_ratio_c2_over_c1", "c2's rate over c1's under fair-share", "");
    outcome.claim(claim.published(2.01).within(1.98, 2.02).measured(of(fair, &ratio)));
    let what = "the least part that a client got of its due";
    let claim = Claim::new("share_of_due_pct_min", what, "%");
    outcome.claim(claim.published(99.4).at_least(99.4).measured(of(fair, &least_of_due)));
    outcome.claim(
        Claim::new("throughput_vs_fifo_pct", "fair-share's rate in all, of fifo's", "%")
            .published(95.0)
            .at_least(throughput)
            .measured(100.0 * paired_ratio(&sums(fair), &sums(fifo)).unwrap_or(f64::NAN)),
    );
}

/// Measures the same flows through `vde_switch`. Returns each VM's rate in Mbit/s, as the receiving
/// iperf3 reports it.
fn vde(bed: &Bed, secs: f64) -> anyhow::Result<Value> {
    needs("vde_switch", "vde2")?;
    let mut switch = super::vde::VdeSwitch::start(bed, VMS.len() + 1)?;
    let whole = format!("{:.0}", secs.max(1.0));
    let mut clients = Vec::new();
    for (place, (vm, _, _, flows)) in VMS.iter().enumerate() {
        let port = port(vm);
        switch.start_program(bed, NET_PLACE, "iperf3", &["-s", "-p", &port])?;
        switch.await_tcp(place, NET_PLACE, &port)?;
        let server = Plan::ip(NET_PLACE).to_string();
        let words = ["-c", &server, "-p", &port, "-t", &whole, "-P", flows, "-J"];
        clients.push(switch.start_program(bed, place, "iperf3", &words)?);
    }
    let mut rates = [0.0; 3];
    for (rate, client) in rates.iter_mut().zip(clients) {
        let said = switch.await_end(client, Duration::from_secs_f64(secs + 20.0))?;
        let said: Value = serde_json::from_str(&said).context("reading iperf3's output")?;
        let bps = said["end"]["sum_received"]["bits_per_second"].as_f64();
        *rate = bps.context("iperf3's output has no rate")?;
    }
    Ok(json!({ "mbps": told(&[rates])[0], "ratio_c2_over_c1": ratio(&rates) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::stage::Reading;
    use std::path::Path;

    #[test]
    fn the_plan_has_two_clients_and_one_shared_output() {
        let plan = Case::paced(Order::FairShare).plan();
        let text = plan.configuration(Path::new("/d"), (1, 0));
        for part in [
            "name = \"c1\"\nuplink_weight = 1\n",
            "name = \"c2\"\nuplink_weight = 2\n",
            "egress = \"fair-share\"\nlink = 582400000\n",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert_eq!(text.matches("name = \"c2\"").count(), 1);
    }

    #[test]
    fn a_running_output_gets_all_keys_of_the_other_case() {
        let fifo = Case { link: None, ..Case::paced(Order::Fifo) };
        let fair = Case { link: None, ..Case::paced(Order::FairShare) };
        let queue = "queue={ bytes = 1048576, wait_us = 20000 }";
        assert_eq!(fifo.changes(), ["egress=fifo", queue, "link="]);
        assert_eq!(fair.changes(), ["egress=fair-share", "queue=", "link="]);
        let queued = Case { link: Some(FAST), ..fifo };
        assert_eq!(queued.changes(), ["egress=fifo", queue, "link=400000000000"]);
    }

    #[test]
    fn each_case_that_explains_differs_in_one_setting() {
        let text = |case: &Case| case.plan().configuration(Path::new("/d"), (1, 0));
        let base = text(&Case::paced(Order::Fifo));
        assert!(base.contains("queue = { bytes = 1048576, wait_us = 20000 }\nlink = 582400000\n"));
        for (name, case) in &EXPLAIN {
            assert!(text(case) != base || case.c1_starts_last, "{name}");
        }
        let [plain, large, last, _] = EXPLAIN.each_ref().map(|(_, case)| text(case));
        assert!(!plain.contains("tso = true"), "{plain}");
        assert!(large.contains("bytes = 8388608"), "{large}");
        let at = |name: &str| last.find(&format!("[[port]]\nname = \"{name}\"")).unwrap();
        assert!(at("f1") > at("f4f5") && at("f1") < at(NET), "{last}");
    }

    #[test]
    fn the_parts_of_the_cycles_for_a_batch_add_up() {
        let port = |(vm, batches): (&str, u64)| {
            let counters = json!({
                "rx_batches": batches, "rx_frames": 5 * batches, "tx_kicks": batches,
                "sampled_frames": 5,
                "cycles_ingress": 10, "cycles_classification": 20, "cycles_egress": 30,
            });
            json!({ "port": vm, "counters": counters })
        };
        let ports = [("f1", 10), ("f2f3", 10), ("f4f5", 20), (NET, 4)].map(port);
        let worker = json!({
            "busy_turns": 48, "share_choices": 40, "share_looks": 20,
            "cycles_charged": 8_000, "cycles_notified": 1_200, "cycles_queued": 400,
        });
        let stats = json!({ "ports": ports, "workers": [{ "counters": worker }] });
        let slices = [[Reading::new(0, json!({})), Reading::new(1_000_000_000, stats)]];
        let found = per_batch(&Spans::all(&slices));
        assert_eq!((&found["frames"], &found["choices"]), (&json!(5.0), &json!(1.0)));
        let [turns, interrupts] = ["turns_of_the_queue", "interrupts"].map(|name| &found[name]);
        assert_eq!((turns, interrupts), (&json!(0.1), &json!(1.1)));
        let cycles = |name: &str| found["cycles"][name].as_f64().unwrap();
        let stages = ["ingress", "classification", "egress"].map(cycles);
        let others = ["answers", "interrupts", "queue", "rest"].map(cycles);
        assert_eq!((stages, others), ([10.0, 20.0, 30.0], [6.0, 30.0, 10.0, 94.0]));
        assert_eq!(cycles("all"), 200.0);
        assert_eq!(used_pct(&slices, 16_000.0), [50.0]);
    }

    #[test]
    fn who_got_twice_as_much_got_its_due() {
        assert!((ratio(&[1.0, 1.0, 1.0]) - 2.0).abs() < 1e-12);
        assert!((least_of_due(&[1.0, 1.0, 1.0]) - 100.0).abs() < 1e-9);
        assert!(least_of_due(&[0.5, 1.25, 1.25]) < 51.0);
    }
}
