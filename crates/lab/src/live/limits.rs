//! Live experiment `limits`: a rate limit gives real TCP and UDP streams its rate.
//!
//! # Problem
//!
//! A default Linux guest sends segments of 64 KiB. A limit that drops such segments costs a TCP
//! stream most of its rate, and an operator cannot sell the rate.
//!
//! # Source
//!
//! The limits are the baseline of C2QoS §II-B and the policers of FS-VDE §4.2.
//!
//! # Approach
//!
//! Two endpoints with default offloads run the kernel's TCP. For each kind of limit and each rate,
//! one iperf3 stream runs against the limit. The switch's counters give the delivered rate in the
//! bytes that the limit counts. Then four streams share a limit, a flood of UDP datagrams meets
//! each kind of limit, and a port gets limits in bits and in frames together. At last, two streams
//! show what it costs to cut segments before a slow limit.
//!
//! # A disturbed machine
//!
//! A cell with one stream is repeated, at most [`TRIES`] times, if other programs or the
//! hypervisor took processor time, or if the limit never acted on the stream: no frame waited, was
//! marked or was dropped from the stream's first frame on. Such a stream did not need its rate. For
//! example, Linux ends slow start when a pause of the machine lengthens a round trip. The cell that
//! was disturbed least counts. Every repetition, and what the limit did in each cell below the
//! claim, is in the outcome.
//!
//! # Departures
//!
//! The round trip of the machine is about 0.1 ms. For a round trip of 5 ms, each endpoint delays
//! the frames that it receives by half of the time.
//!
//! If the kernel's TAP devices know no large segments of UDP (before Linux 6.2), an endpoint cuts
//! its UDP segments itself. The note `gso_datagrams_whole` is then 0.
//!
//! # Cost
//!
//! A run takes ten minutes.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::gso_flood::GsoFlood;
use super::machine;
use super::needs::needs;
use super::stage::{Reading, Stage};
use crate::evidence::stats::percentile;
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::plan::{Plan, Vm};
use crate::rig::platform;
use penstock_guest::bed::Bed;

const VM: &str = "vm";
const NET: &str = "net";
const VM_PLACE: usize = 0;
const NET_PLACE: usize = 1;
/// Tenant of the VM.
const TENANT: &str = "lab";
const SERVER: u16 = 5_201;
/// Rates of the limits for TCP, in Mbit/s.
const RATES: [u32; 4] = [10, 100, 1_000, 2_000];
/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Number of readings in a second.
const SECOND: usize = 4;
/// Limit in Mbit/s at which the cost of cutting is measured.
const CUT_MBPS: u32 = 50;
/// Number of measurements of each cost, of which the median counts. Waking the receiver takes most
/// of the cycles, and its cost varies by a factor of two.
const CUT_TURNS: usize = 8;
/// Beginning of the names of series with costs, which have their own unit.
pub(crate) const COST: &str = "cost, ";
/// Seconds of a stream before the measurement.
const SETTLE: f64 = 2.0;
/// Round trip of the far endpoints, in microseconds.
const FAR_US: u32 = 5_000;
/// Lowest part of its limit, in per cent, that a stream must get.
const LEAST: f64 = 95.0;
/// Number of measurements of one cell on a disturbed machine.
const TRIES: usize = 3;
/// A cell is disturbed if more than this percentage of the processors' time was taken.
const TAKEN_MAX: f64 = 2.0;
const LONGEST: Duration = Duration::from_secs(60);
/// Payload and Mbit/s of the limit for UDP: frames of 64 and of 1,518 bytes, FCS included. A flood
/// is twice as fast as its limit. Generator, endpoints and receiver share a core, so floods of
/// short datagrams are slow.
const FLOODS: [(&str, u32); 2] = [("18", 10), ("1472", 100)];
/// Mbit/s of the limit for large segments of UDP.
const GSO_MBPS: u32 = 100;

/// Counters of a port that count waits of its frames for a limit, and for the output of a link.
const WAITS: [&str; 5] = ["police_waits", "send_waits", "receive_waits", "link_waits", "held_back"];
/// Counters of a port that count signals to its senders. Dropped frames are signals, too.
const SIGNALS: [&str; 4] = ["rx_marked", "rx_trimmed", "tx_marked", "tx_trimmed"];

/// Congestion control of the TCP streams, even if the machine has another default. CUBIC (RFC 9438)
/// is Linux's default.
pub(super) const CONGESTION: &str = "cubic";

/// Kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Police,
    Receive,
    TenantReceive,
    Send,
    Link,
    Fifo,
    Ceiling,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Police,
        Self::Receive,
        Self::TenantReceive,
        Self::Send,
        Self::Link,
        Self::Fifo,
        Self::Ceiling,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Police => "police",
            Self::Receive => "receive",
            Self::TenantReceive => "tenant receive",
            Self::Send => "tenant send",
            Self::Link => "link",
            Self::Fifo => "fifo link",
            Self::Ceiling => "ceiling",
        }
    }

    /// Returns the sender and the receiver of the stream that meets the limit.
    const fn way(self) -> (&'static str, &'static str, usize) {
        match self {
            Self::Receive | Self::TenantReceive => (NET, VM, VM_PLACE),
            Self::Police | Self::Send | Self::Link | Self::Fifo | Self::Ceiling => {
                (VM, NET, NET_PLACE)
            }
        }
    }

    /// Bytes that the limit counts for each frame besides the frame's own: the FCS, or all overhead
    /// of a link.
    const fn overhead(self) -> f64 {
        match self {
            Self::Link | Self::Fifo | Self::Ceiling => 24.0,
            _ => 4.0,
        }
    }

    /// Sets the limit to `mbps` Mbit/s.
    fn set(self, stage: &Stage, mbps: u32) -> anyhow::Result<()> {
        let rate = format!("\"{mbps}M\"");
        match self {
            Self::Police => {
                let police = format!("police={{cir={rate}}}");
                stage.change("port", VM, &["ingress_policy=bps", &police])
            }
            Self::Receive => stage.change("port", VM, &[&format!("receive={{rate={rate}}}")]),
            Self::TenantReceive => {
                stage.change("tenant", TENANT, &[&format!("receive={{rate={rate}}}")])
            }
            Self::Send => stage.change("tenant", TENANT, &[&format!("send={{rate={rate}}}")]),
            Self::Link => {
                stage.change("port", NET, &["egress=fair-share", &format!("link={mbps}M")])
            }
            Self::Fifo => stage.change("port", NET, &["egress=fifo", &format!("link={mbps}M")]),
            Self::Ceiling => {
                let wfq = format!("wfq={{ceilings={{{TENANT}={rate}}}}}");
                stage.change("port", NET, &["egress=wfq", "link=40G", &wfq])
            }
        }
    }

    fn clear(self, stage: &Stage) -> anyhow::Result<()> {
        match self {
            Self::Police => stage.change("port", VM, &["ingress_policy=", "police="]),
            Self::Receive => stage.change("port", VM, &["receive="]),
            Self::TenantReceive => stage.change("tenant", TENANT, &["receive="]),
            Self::Send => stage.change("tenant", TENANT, &["send="]),
            Self::Link | Self::Fifo => stage.change("port", NET, &["egress=", "link="]),
            Self::Ceiling => stage.change("port", NET, &["egress=", "link=", "wfq="]),
        }
    }
}

fn plan() -> Plan {
    let vm = Vm { name: VM.to_owned(), to: Some(NET.to_owned()), ..Vm::default() };
    let net = Vm { name: NET.to_owned(), shared: true, answers: true, ..Vm::default() };
    Plan { offloads: true, ..Plan::new("", vec![vm, net]) }
}

/// Delivered rate of a stream, in per cent of its limit.
#[derive(Debug, Clone, Copy)]
struct Got {
    mean: f64,
    /// The second with the highest rate.
    most: f64,
    /// How often frames of the stream waited for the limit, from the first frame on.
    waits: u64,
    /// How many frames were marked, trimmed or dropped, from the first frame on.
    signals: u64,
    /// Percentage of the processors' time that other programs and the hypervisor took.
    taken: f64,
}

impl Got {
    /// Whether the machine, and not the limit, may have determined the rate.
    fn is_disturbed(&self) -> bool {
        self.taken > TAKEN_MAX || self.waits + self.signals == 0
    }
}

/// Runs the live experiment.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs("iperf3", "iperf3")?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(4.0).max(2.0);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let far = Plan { delay_us: FAR_US / 2, ..plan() };
    let mut stage = started(&bed, "limits-far", &far)?;
    let far = one_stream(context, &bed, &mut stage, (0.0, "_5ms"), secs, &mut outcome)?;
    drop(stage);
    let mut stage = started(&bed, "limits", &plan())?;
    let near = one_stream(context, &bed, &mut stage, (0.3, ""), secs, &mut outcome)?;
    let (least, most) = (near.0.min(far.0), near.1.max(far.1));
    context.progress(0.6, "four streams");
    let mut fairness = f64::INFINITY;
    for kind in Kind::ALL {
        let jain = four(&bed, &mut stage, kind, 100, secs)?;
        outcome.note(&format!("{}_four_flows_fairness", kind.name()), jain);
        fairness = fairness.min(jain);
    }
    let mut floods = Vec::new();
    for (n, kind) in (0_u32..).zip(Kind::ALL) {
        for (payload, mbps) in FLOODS {
            context.progress(0.75 + f64::from(n) / 32.0, format!("UDP, {}", kind.name()));
            let stream = Stream::Udp(payload, 2 * mbps);
            let got = limited(&bed, &mut stage, kind, mbps, &stream, secs)?;
            outcome.note(&format!("{}_udp_{payload}_pct", kind.name()), got.mean);
            floods.push(got.mean);
        }
        let got = gso_flood(&bed, &mut stage, kind, secs, &mut outcome)?;
        outcome.note(&format!("{}_udp_gso_pct", kind.name()), got);
        floods.push(got);
    }
    context.progress(0.97, "bits and frames");
    let both = both(&bed, &mut stage, secs, &mut outcome)?;
    conclude(&mut outcome, (least, most), &floods, fairness, both);
    drop(stage);
    let cut = cut_cost(&bed, secs, &mut outcome)?;
    let what = "cycles per byte of a stream that the switch cuts, over those of the same stream \
                from a guest without TSO";
    outcome.claim(Claim::new("cut_cost", what, "").at_most(1.3).measured(cut));
    Ok(outcome)
}

/// Starts a switch with a server on each of its ports.
fn started(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Stage> {
    let mut stage = Stage::start(bed, name, plan)?;
    let port = SERVER.to_string();
    for (server, client, place) in [(NET, VM, NET_PLACE), (VM, NET, VM_PLACE)] {
        stage.start_program(bed, server, "iperf3", &["-s", "-p", &port])?;
        stage.await_tcp(client, place, SERVER)?;
    }
    Ok(stage)
}

/// Runs one TCP stream against each kind of limit and each rate. Returns the least part of a limit
/// that a stream got, and the highest second of a stream, both in per cent.
fn one_stream(
    context: &Context<'_>,
    bed: &Bed,
    stage: &mut Stage,
    (progress, suffix): (f64, &str),
    secs: f64,
    outcome: &mut Outcome,
) -> anyhow::Result<(f64, f64)> {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for (n, kind) in (0_u32..).zip(Kind::ALL) {
        let mut points = Vec::new();
        for mbps in RATES {
            let name = kind.name();
            context.progress(progress + f64::from(n) * 0.3 / 7.0, format!("{name} {mbps}M"));
            let cell = format!("{name}_{mbps}M{suffix}");
            let got = undisturbed(&cell, outcome, || {
                limited(bed, stage, kind, mbps, &Stream::Tcp, secs)
            })?;
            (least, most) = (least.min(got.mean), most.max(got.most));
            points.push((f64::from(mbps), got.mean));
            outcome.note(&format!("{cell}_most_pct"), got.most);
        }
        outcome.series(&format!("{}{suffix}", kind.name()), "% of the limit", points);
    }
    Ok((least, most))
}

/// Measures a cell again while the machine disturbs it. Returns the measurement that was disturbed
/// least, and notes the others and what the limit did in a cell below the claim.
fn undisturbed(
    cell: &str,
    outcome: &mut Outcome,
    mut measure: impl FnMut() -> anyhow::Result<Got>,
) -> anyhow::Result<Got> {
    let mut tries = vec![measure()?];
    while tries.len() < TRIES && tries.iter().all(Got::is_disturbed) {
        tries.push(measure()?);
    }
    let least = |one: &&Got, other: &&Got| {
        let untouched = |got: &Got| got.waits + got.signals == 0;
        untouched(one).cmp(&untouched(other)).then(one.taken.total_cmp(&other.taken))
    };
    let got = *tries.iter().min_by(least).context("no cell was measured")?;
    #[expect(clippy::cast_precision_loss, reason = "counts of one cell")]
    let number = |count: u64| count as f64;
    for (nth, of) in (1_u32..).zip(&tries) {
        if tries.len() > 1 || of.mean < LEAST {
            let of_try = format!("{cell}_try{nth}");
            outcome.note(&format!("{of_try}_pct"), of.mean);
            outcome.note(&format!("{of_try}_waits"), number(of.waits));
            outcome.note(&format!("{of_try}_signals"), number(of.signals));
            outcome.note(&format!("{of_try}_taken_pct"), of.taken);
        }
    }
    Ok(got)
}

/// Returns what a byte of a stream costs that the switch cuts, over what it costs if the guest cuts
/// it. Both are measured several times, in turn, because the machine's speed changes. The median of
/// the turns counts.
fn cut_cost(bed: &Bed, secs: f64, outcome: &mut Outcome) -> anyhow::Result<f64> {
    let (mut points, mut ratios): ([Vec<(f64, f64)>; 2], Vec<f64>) = Default::default();
    let mut kicks: [Vec<(f64, f64)>; 2] = Default::default();
    for turn in 0..CUT_TURNS {
        // The order alternates, so that a machine that becomes slower or faster favours neither.
        let mut costs = [0.0; 2];
        for cut in if turn % 2 == 0 { [true, false] } else { [false, true] } {
            let place = usize::from(!cut);
            let (cost, kicked) = cost(bed, &format!("cut-{turn}-{cut}"), cut, secs)?;
            costs[place] = cost;
            kicks[place].push((f64::from(u32::try_from(turn)?), kicked));
        }
        let at = f64::from(u32::try_from(turn)?);
        points.iter_mut().zip(costs).for_each(|(points, cost)| points.push((at, cost)));
        ratios.push(costs[0] / costs[1]);
    }
    for (name, (points, kicks)) in
        ["cut", "without TSO"].into_iter().zip(points.into_iter().zip(kicks))
    {
        outcome.series(&format!("{COST}{name}"), "cycles per byte", points);
        outcome.series(&format!("{COST}wakes, {name}"), "wakes per frame", kicks);
    }
    Ok(percentile(&ratios, 50.0))
}

/// Returns the cycles that a byte of a TCP stream costs its sender under a limit at which the
/// switch cuts large segments, and the number of times that a frame wakes the receiver. Without
/// `offloads`, the guest cuts the segments itself.
fn cost(bed: &Bed, name: &str, offloads: bool, secs: f64) -> anyhow::Result<(f64, f64)> {
    let mut stage = Stage::start(bed, name, &Plan { offloads, ..plan() })?;
    stage.start_program(bed, NET, "iperf3", &["-s", "-p", &SERVER.to_string()])?;
    stage.await_tcp(VM, NET_PLACE, SERVER)?;
    Kind::Police.set(&stage, CUT_MBPS)?;
    let words = Stream::Tcp.words(NET_PLACE, secs + SETTLE + 1.0);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let program = stage.start_program(bed, VM, "iperf3", &words)?;
    stage.watch(SETTLE, STEP)?;
    let readings = stage.watch(secs, STEP)?;
    stage.await_program(program, LONGEST)?;
    let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
    let cut = last.per_second(first, VM, "rx_cut") > 0.0;
    anyhow::ensure!(cut == offloads, "segments were cut: {cut}, with offloads: {offloads}");
    let kicks = last.per_second(first, NET, "tx_kicks") / last.per_second(first, NET, "tx_frames");
    Ok((last.per_second(first, VM, "cycles") / last.per_second(first, NET, "tx_bytes"), kicks))
}

enum Stream {
    Tcp,
    /// Datagrams with a payload of the given bytes, offered at a rate in Mbit/s of frames.
    Udp(&'static str, u32),
}

impl Stream {
    fn words(&self, to: usize, secs: f64) -> Vec<String> {
        let words = ["-c", &Plan::ip(to).to_string(), "-p", &SERVER.to_string()];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend(["-t".to_owned(), format!("{:.0}", secs.ceil())]);
        match self {
            Self::Tcp => words.extend(["-C", CONGESTION].map(str::to_owned)),
            Self::Udp(payload, mbps) => {
                // iperf3 counts only the payload of a datagram.
                let bytes: f64 = payload.parse().unwrap_or(1.0);
                let offered = f64::from(*mbps) * 1e6 * bytes / (bytes + 46.0);
                let more = ["-u", "-l", payload, "-b", &format!("{offered:.0}")];
                words.extend(more.map(str::to_owned));
            }
        }
        words
    }
}

/// Runs one stream against the limit, and measures its delivered rate.
fn limited(
    bed: &Bed,
    stage: &mut Stage,
    kind: Kind,
    mbps: u32,
    stream: &Stream,
    secs: f64,
) -> anyhow::Result<Got> {
    kind.set(stage, mbps)?;
    let (from, to, place) = kind.way();
    let words = stream.words(place, secs + SETTLE + 1.0);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let cores = [bed.worker_core(), bed.generator_core()];
    let (before, machine) = (stage.read()?, machine::Reading::take(&cores));
    let program = stage.start_program(bed, from, "iperf3", &words)?;
    stage.watch(SETTLE, STEP)?;
    let readings = stage.watch(secs, STEP)?;
    let taken = machine.until(&machine::Reading::take(&cores)).taken_pct();
    stage.await_program(program, LONGEST)?;
    kind.clear(stage)?;
    stage.await_silence(from)?;
    let of = |before: &Reading, after: &Reading| {
        100.0 * delivered(before, after, (from, to), kind.overhead()) / (f64::from(mbps) * 1e6)
    };
    let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
    let seconds = readings.windows(SECOND + 1).map(|window| of(&window[0], &window[SECOND]));
    let grown = |names: &[&str]| -> u64 {
        let both = [from, to].into_iter();
        both.flat_map(|port| names.iter().map(move |name| (port, name)))
            .map(|(port, name)| last.grown(&before, port, name))
            .sum()
    };
    Ok(Got {
        mean: of(first, last),
        most: seconds.fold(0.0, f64::max),
        waits: grown(&WAITS),
        signals: grown(&SIGNALS) + last.dropped(&before, from) + last.dropped(&before, to),
        taken,
    })
}

/// Floods a limit with large segments of UDP. Returns the delivered rate in per cent of the limit.
fn gso_flood(
    bed: &Bed,
    stage: &mut Stage,
    kind: Kind,
    secs: f64,
    outcome: &mut Outcome,
) -> anyhow::Result<f64> {
    kind.set(stage, GSO_MBPS)?;
    let (from, to, place) = kind.way();
    let limit = f64::from(GSO_MBPS) * 1e6;
    let netns = stage.namespace(from)?;
    let load = (2.0 * limit, 0);
    let flood = GsoFlood::start(netns, bed.generator_core(), Plan::ip(place), load)?;
    stage.watch(SETTLE, STEP)?;
    let readings = stage.watch(secs, STEP)?;
    flood.end()?;
    kind.clear(stage)?;
    stage.await_silence(from)?;
    let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
    outcome.note("gso_datagrams_whole", f64::from(last.per_second(first, from, "rx_tso") > 0.0));
    Ok(100.0 * delivered(first, last, (from, to), kind.overhead()) / limit)
}

/// Returns the bits per second that arrived at `to`, with the headers of each segment of a large
/// segment and `overhead` bytes for each frame. A slow limit cuts all segments, and the receiver
/// then counts the frames of the wire.
fn delivered(before: &Reading, after: &Reading, (from, to): (&str, &str), overhead: f64) -> f64 {
    let of = |name: &str| after.per_second(before, from, name);
    let bytes = after.per_second(before, to, "tx_bytes");
    if of("rx_cut") + after.per_second(before, to, "sw_tso") > 0.0 {
        return 8.0 * (bytes + overhead * after.per_second(before, to, "tx_frames"));
    }
    // The receiver counts a large segment once, as it was sent.
    bytes * after.wire_bps(before, from, overhead) / of("rx_bytes").max(1.0)
}

/// Returns Jain's fairness index of the rates of four streams that share a limit. The streams have
/// the same time to settle as a single stream. A link with `fifo` has no limit until it has been
/// full for 0.3 s, and the streams' windows then fit no limit.
fn four(bed: &Bed, stage: &mut Stage, kind: Kind, mbps: u32, secs: f64) -> anyhow::Result<f64> {
    kind.set(stage, mbps)?;
    let (from, _, place) = kind.way();
    let mut words = Stream::Tcp.words(place, 2.0 * secs);
    words.extend(["-P", "4", "-O", &format!("{SETTLE:.0}"), "-J"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let program = stage.start_program(bed, from, "iperf3", &words)?;
    let said = stage.await_program(program, LONGEST)?;
    kind.clear(stage)?;
    let said: Value = serde_json::from_str(&said).context("reading iperf3's output")?;
    let rate = |stream: &Value| stream["receiver"]["bits_per_second"].as_f64();
    let streams = said["end"]["streams"].as_array().context("iperf3's output has no streams")?;
    let rates: Vec<f64> = streams.iter().filter_map(rate).collect();
    anyhow::ensure!(rates.len() == 4, "iperf3's output has {} streams", rates.len());
    Ok(jain(&rates))
}

fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    #[expect(clippy::cast_precision_loss, reason = "a few streams")]
    let count = rates.len() as f64;
    sum * sum / (count * squares)
}

/// Gives the port limits in bits and in frames together, with each limit in turn the tighter one.
/// Returns the largest error of the rate, in per cent.
fn both(bed: &Bed, stage: &mut Stage, secs: f64, outcome: &mut Outcome) -> anyhow::Result<f64> {
    let mut worst = 0.0_f64;
    // A frame has 1,518 bytes, so 4,000 frames/s are 48.6 Mbit/s.
    for (mbps, pps, due) in [(100_u32, 4_000_u32, 4_000.0), (30, 8_000, 30e6 / 8.0 / 1_518.0)] {
        let police = format!("police={{cir=\"{mbps}M\",pps=\"{pps}\"}}");
        stage.change("port", VM, &["ingress_policy=bps", &police])?;
        let words = Stream::Udp("1472", 200).words(NET_PLACE, secs + SETTLE + 1.0);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let program = stage.start_program(bed, VM, "iperf3", &words)?;
        stage.watch(SETTLE, STEP)?;
        let readings = stage.watch(secs, STEP)?;
        stage.await_program(program, LONGEST)?;
        let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
        let got = last.per_second(first, NET, "tx_frames");
        outcome.note(&format!("both_{mbps}M_{pps}pps"), got);
        worst = worst.max(100.0 * (got / due - 1.0).abs());
    }
    Kind::Police.clear(stage)?;
    Ok(worst)
}

fn conclude(
    outcome: &mut Outcome,
    (least, most): (f64, f64),
    floods: &[f64],
    fairness: f64,
    both: f64,
) {
    let tcp = "one TCP stream with default offloads: the least part of a limit, over each kind of \
               limit, 10 Mbit/s to 2 Gbit/s, at round trips of 0.1 and 5 ms";
    outcome.claim(Claim::new("limited_tcp_pct_min", tcp, "%").at_least(LEAST).measured(least));
    let claim = Claim::new("limited_tcp_over_pct_max", "the second with the highest rate", "%");
    outcome.claim(claim.at_most(102.0).measured(most));
    let sizes = "64 or 1,518 bytes, or in large segments";
    outcome.claim(udp_claim(sizes, floods).within(98.0, 101.0));
    let what = "Jain's index of four streams of one VM";
    let claim = Claim::new("limited_four_flows_fairness", what, "");
    outcome.claim(claim.at_least(0.9).measured(fairness));
    outcome.claim(both_claim(both).at_most(2.0));
}

/// Returns the claim about floods, measured by the flood whose rate is furthest from its limit.
pub(crate) fn udp_claim(sizes: &str, floods: &[f64]) -> Claim {
    let furthest =
        floods.iter().copied().max_by(|a, b| (a - 100.0).abs().total_cmp(&(b - 100.0).abs()));
    let what = format!(
        "a flood of datagrams in frames of {sizes}: the rate furthest from the limit, over the \
         measured kinds of limit"
    );
    Claim::new("limited_udp_pct", what, "%").measured(furthest.unwrap_or(f64::NAN))
}

/// Returns the claim about limits in bits and frames of one port.
pub(crate) fn both_claim(error: f64) -> Claim {
    let what = "the largest error of the rate, with bits or frames as the tighter limit of a port";
    Claim::new("both_limits_error_pct", what, "%").measured(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_equal_streams_are_fair_and_one_of_four_is_not() {
        assert!((jain(&[2.0; 4]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn a_disturbed_cell_is_repeated_and_the_least_disturbed_counts() {
        let got = |mean, waits, taken| Got { mean, most: mean, waits, signals: 0, taken };
        let run = |cells: &[Got]| {
            let (mut outcome, mut next) = (Outcome::default(), cells.iter());
            let got = undisturbed("cell", &mut outcome, || Ok(*next.next().unwrap())).unwrap();
            (got.mean, next.len())
        };
        // A low rate alone is no reason to repeat a cell.
        assert_eq!(run(&[got(22.0, 5, 0.1), got(99.0, 5, 0.1)]), (22.0, 1));
        assert_eq!(run(&[got(22.0, 0, 0.1), got(97.0, 5, 0.1)]), (97.0, 0));
        assert_eq!(run(&[got(99.0, 5, 40.0), got(94.0, 5, 0.1)]), (94.0, 0));
        assert_eq!(run(&[got(50.0, 5, 9.0), got(60.0, 0, 0.0), got(70.0, 5, 8.0)]), (70.0, 0));
    }

    #[test]
    fn a_datagram_is_offered_by_its_payload() {
        let words = Stream::Udp("1472", 100).words(0, 1.0);
        let at = words.iter().position(|word| word == "-b").unwrap();
        let bits: f64 = words[at + 1].parse().unwrap();
        assert!((bits / 1_472.0 * 1_518.0 - 100e6).abs() < 200.0, "{bits}");
    }

    #[test]
    fn the_plan_has_one_vm_and_one_shared_port() {
        let text = plan().configuration(std::path::Path::new("/d"), (1, 0));
        assert_eq!(text.matches("tenant = \"lab\"").count(), 1, "{text}");
    }
}
