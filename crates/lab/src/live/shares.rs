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
//! `fair-share`, alternate. Each discipline runs [`RUNS`] times. A VM's rate counts the frames that
//! the switch received from the VM and forwarded. The first third of a run does not count. If
//! `vde_switch` is installed, it is measured, too. `vde_switch` has no configured rate: its CPU is
//! its bottleneck, as in the paper.
//!
//! # Unpaced
//!
//! The results with the prefix `unpaced_` have no configured rate of the output. As in the paper,
//! the switch's CPU is the bottleneck: the worker may use [`CORE_PART`] of its core. The record
//! shows how much of these cycles the worker used, and the worker's turns for each batch of a VM.
//! For each VM and for the server, it also shows the batches, their cycles, the interrupts, the
//! part of the batches after which a ring had more frames, and the part of the frames that waited
//! in the output's queue.
//!
//! Without a rate, a `fifo` output sends each frame at once, and frames wait in the VMs' rings. A
//! `fair-share` output chooses whom the worker polls. Frames that wait in its queue are copied
//! twice: those of a VM's first batch after a pause, and large segments that the port does not
//! take. `throughput_vs_queued_fifo_pct` compares `fair-share` with a `fifo` output that also has a
//! queue, and a link that is faster than any core.
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
use serde_json::{Value, json};

use super::needs::needs;
use super::stage::{Reading, Stage, mean_bps};
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::plan::{Plan, Vm};
use crate::rig::platform;
use crate::rig::stats::{middle, paired_ratio, to_f64};
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::ask;

/// Rate of the output in bits per second, preamble and gap included. The link of the paper's legacy
/// switch has the same rate of 582.4 Mbit/s.
const LINK: u64 = 582_400_000;
/// Rate in bits per second that no core reaches, so that frames wait only for the core.
const FAST: u64 = 400_000_000_000;
/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Number of runs of each queueing discipline.
const RUNS: u32 = 3;
/// Fraction of its core that the worker may use if the output has no rate. With a tenth, a `fifo`
/// output leaves a quarter of these cycles unused, because the programs on the other core are the
/// bottleneck. With an 80th, each flow is so slow that TCP makes segments of 3 to 4 KB with
/// `fair-share`, which cost more cycles for a byte than the segments of 28 KB with `fifo`.
const CORE_PART: f64 = 1.0 / 30.0;
/// Number of packets in a large segment of a VM if the worker's cycles are the limit.
const SEGMENTS: u32 = 8;
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

/// Settings of a run.
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
        // `fifo` gets a queue of at most 20 ms. `fair-share` keeps the default queue.
        let queue = match self.order {
            Order::Fifo => {
                let bytes = self.bytes;
                format!("egress = \"fifo\"\nqueue = {{ bytes = {bytes}, wait_us = 20000 }}\n")
            }
            Order::FairShare => "egress = \"fair-share\"\n".to_owned(),
        };
        let link = self.link.map_or_else(String::new, |link| format!("link = {link}\n"));
        let more = format!("{queue}{link}");
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
    details: Vec<Value>,
    /// Cycles per second that the worker charged to all ports.
    cycles: f64,
    /// Turns of the worker that moved frames, for each batch that came from a VM.
    turns_per_batch: f64,
}

fn one(bed: &Bed, case: &Case, secs: f64) -> anyhow::Result<Run> {
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
        let words = ["-c", &server, "-p", &port, "-t", "600", "-P", flows];
        stage.start_program(bed, vm, "iperf3", &words)?;
    }
    let readings = stage.watch(secs, STEP)?;
    let counted = &readings[readings.len() / 3..];
    let [first, .., last] = counted else { anyhow::bail!("{secs} s are too few for a reading") };
    let part = |vm: &str| {
        let of = |name: &str| last.per_second(first, vm, name);
        // The queue had no room for the other frames, and TCP retransmitted them.
        of("forwarded") / of("rx_frames").max(1.0)
    };
    let ports = || VMS.map(|(vm, ..)| vm).into_iter().chain([NET]);
    let details = ports().map(|port| details_of(&stage, (first, last), port));
    let batches: u64 = VMS.iter().map(|(vm, ..)| last.grown(first, vm, "rx_batches")).sum();
    let turns = to_f64(last.worker_grown(first, "busy_turns"));
    Ok(Run {
        rates: VMS.map(|(vm, ..)| mean_bps(counted, vm) * part(vm)),
        details: details.collect::<anyhow::Result<_>>()?,
        cycles: ports().map(|port| last.per_second(first, port, "cycles")).sum(),
        turns_per_batch: turns / to_f64(batches).max(1.0),
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

/// Returns what the TCP and the port of a VM did between two readings. The counters of TCP begin at
/// the start of the VM. The cycles of a batch include the port's part of all notifications.
fn details_of(
    stage: &Stage,
    (first, last): (&Reading, &Reading),
    vm: &str,
) -> anyhow::Result<Value> {
    let grown = |name: &str| to_f64(last.grown(first, vm, name));
    let (frames, batches) = (grown("rx_frames").max(1.0), grown("rx_batches").max(1.0));
    let rate = |name: &str| last.per_second(first, vm, name).round();
    let sampled = grown("sampled_frames").max(1.0);
    let stages = ["cycles_ingress", "cycles_classification", "cycles_egress"];
    let stages = stages.map(|name| (grown(name) / sampled).round());
    let tcp = ["/proc/net/netstat", "/proc/net/snmp"];
    let tcp = ask(&mut stage.inside(vm, "cat", &tcp)?)?;
    let of_tcp = |name: &str| counter(&tcp, name);
    Ok(json!({
        "vm": vm,
        "frames_per_s": rate("rx_frames"),
        "batches_per_s": rate("rx_batches"),
        "interrupts_per_s": rate("tx_kicks"),
        "cycles_per_batch": (grown("cycles") / batches).round(),
        "sampled_cycles_per_frame": stages,
        "waited_pct": 100.0 * to_f64(last.waited(first, vm)) / frames,
        "mean_frame_bytes": (grown("rx_bytes") / frames).round(),
        "dropped_pct": 100.0 * to_f64(last.dropped(first, vm)) / frames,
        "full_batches_pct": 100.0 * grown("rx_full") / batches,
        "held_back": last.grown(first, vm, "held_back"),
        "tcp_timeouts": of_tcp("TCPTimeouts"),
        "tcp_retransmitted_segments": of_tcp("RetransSegs"),
        "tcp_sent_segments": of_tcp("OutSegs"),
    }))
}

/// Returns a counter from the text of `/proc/net/netstat` or `/proc/net/snmp`. In these files, a
/// line with names comes before each line with values.
fn counter(told: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = told.lines().collect();
    lines.chunks_exact(2).find_map(|pair| {
        let at = pair[0].split_whitespace().position(|word| word == name)?;
        pair[1].split_whitespace().nth(at)?.parse().ok()
    })
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
///
/// # Errors
///
/// Returns an error if a program of the experiment is missing or fails.
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
    let mut unpaced = Outcome::default();
    let cases = [Order::Fifo, Order::FairShare].map(|order| Case::unpaced(order, &bed));
    unpaced.note("worker_capacity_of_core", CORE_PART);
    let [fifo, fair] = in_turn(context, &bed, &cases, (secs, &mut rng), &mut unpaced)?;
    conclude(&mut unpaced, &fifo, &fair, 98.5);
    queued(&bed, secs, (&fair[..], context.live.runs.unwrap_or(RUNS)), &mut unpaced)?;
    outcome.append("unpaced", unpaced);
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
        let of = |vm: usize| middle(&runs.iter().map(|run| run.rates[vm]).collect::<Vec<_>>());
        let points = (0..3_u32).map(f64::from).zip((0..3).map(|vm| of(vm) / 1e6));
        outcome.series(name, "Mbit/s", points);
        let rates: Vec<Rates> = runs.iter().map(|run| run.rates).collect();
        outcome.note(&format!("{name}_mbps"), told(&rates));
        outcome.note(&format!("{name}_details"), runs.last().map(|run| json!(run.details)));
        if let Some(capacity) = case.capacity {
            let used = runs.iter().map(|run| 100.0 * run.cycles / capacity);
            outcome.note(&format!("{name}_worker_used_pct"), middle(&used.collect::<Vec<_>>()));
            let turns = runs.iter().map(|run| run.turns_per_batch).collect::<Vec<_>>();
            outcome.note(&format!("{name}_turns_per_batch"), middle(&turns));
        }
    }
    Ok(runs.map(|runs| runs.into_iter().map(|run| run.rates).collect()))
}

/// Compares the total rate of `fair-share` with that of a `fifo` output with a queue, which is not
/// paced, either.
fn queued(
    bed: &Bed,
    secs: f64,
    (fair, runs): (&[Rates], u32),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let case = Case { link: Some(FAST), ..Case::unpaced(Order::Fifo, bed) };
    let runs = (0..runs).map(|_| one(bed, &case, secs)).collect::<anyhow::Result<Vec<_>>>()?;
    let rates: Vec<Rates> = runs.iter().map(|run| run.rates).collect();
    let of = |rates: &[Rates], what: fn(&Rates) -> f64| {
        middle(&rates.iter().map(what).collect::<Vec<_>>())
    };
    let all = |rates: &Rates| rates.iter().sum::<f64>();
    let what = "c2's rate over c1's, first come, first served, with a queue";
    let claim = Claim::new("queued_fifo_ratio_c2_over_c1", what, "");
    outcome.claim(claim.measured(of(&rates, ratio)));
    let what = "fair-share's rate in all, of the rate of fifo with a queue";
    let claim = Claim::new("throughput_vs_queued_fifo_pct", what, "%");
    outcome.claim(claim.measured(100.0 * of(fair, all) / of(&rates, all)));
    outcome.note("queued_fifo_mbps", told(&rates));
    outcome.note("queued_fifo_details", runs.last().map(|run| json!(run.details)));
    Ok(())
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
/// of `fair-share`, in per cent of that of `fifo`. The runs `fifo[i]` and `fair[i]` directly
/// followed each other.
fn conclude(outcome: &mut Outcome, fifo: &[Rates], fair: &[Rates], throughput: f64) {
    let of = |rates: &[Rates], what: &dyn Fn(&Rates) -> f64| {
        middle(&rates.iter().map(what).collect::<Vec<_>>())
    };
    let all = |runs: &[Rates]| -> Vec<f64> {
        runs.iter().map(|rates| rates.iter().sum::<f64>()).collect()
    };
    outcome.claim(
        Claim::new("fifo_ratio_c2_over_c1", "c2's rate over c1's, first come, first served", "")
            .published(3.28)
            .measured(of(fifo, &ratio)),
    );
    outcome.claim(
        Claim::new("fair_ratio_c2_over_c1", "c2's rate over c1's under fair-share", "")
            .published(2.01)
            .within(1.98, 2.02)
            .measured(of(fair, &ratio)),
    );
    outcome.claim(
        Claim::new("share_of_due_pct_min", "the least part that a client got of its due", "%")
            .published(99.4)
            .at_least(99.4)
            .measured(of(fair, &least_of_due)),
    );
    outcome.claim(
        Claim::new("throughput_vs_fifo_pct", "fair-share's rate in all, of fifo's", "%")
            .published(95.0)
            .at_least(throughput)
            .measured(100.0 * paired_ratio(&all(fair), &all(fifo)).unwrap_or(f64::NAN)),
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
    fn a_counter_of_the_kernel_is_found_by_its_name() {
        let told = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 0 17\n\
                    Tcp: OutSegs RetransSegs\nTcp: 900 4\n";
        assert_eq!(counter(told, "TCPTimeouts"), Some(17));
        assert_eq!(counter(told, "RetransSegs"), Some(4));
        assert_eq!(counter(told, "InErrs"), None);
    }

    #[test]
    fn who_got_twice_as_much_got_its_due() {
        assert!((ratio(&[1.0, 1.0, 1.0]) - 2.0).abs() < 1e-12);
        assert!((least_of_due(&[1.0, 1.0, 1.0]) - 100.0).abs() < 1e-9);
        assert!(least_of_due(&[0.5, 1.25, 1.25]) < 51.0);
    }
}
