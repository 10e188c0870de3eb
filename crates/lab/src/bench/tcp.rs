//! `penstock-lab bench tcp`: iperf3 between two network namespaces. The NICs of the namespaces are
//! virtio devices on the switch's vhost-user ports.
//!
//! # Approach
//!
//! `penstock endpoint` serves the NICs of both namespaces. `penstock-lab` and iperf3 run on the
//! generator's core; the worker has a different core. All switches are started at the beginning,
//! each with its own endpoints. The switches run one after the other, and all other switches are
//! paused during the run of one switch. The benchmark measures OVS twice: with OVS's defaults and
//! with `userspace-tso-enable`. Without `userspace-tso-enable`, OVS offers no offload to endpoints.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::args::{OnOff, TcpArgs};
use super::report::{Bar, Ratio, Report, Row};
use crate::penstock::penstock;
use crate::rig::ovs::{self, OvsDpdk, Tso};
use crate::rig::penstock::{Offloads, Penstock};
use crate::rig::stats::to_f64;
use crate::rig::stats::{Spread, paired_ratio};
use crate::rig::switch::{Case, PairVm, Switch, VM_A, VM_B, WorkerReading};
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::{Guard, Ward};
use penstock_guest::bed::process::{Daemon, ask, await_some};

/// Time limit for the first TCP connection. The limit is long, because OVS tries to connect only
/// once a second, and ARP must resolve the address of each NIC.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A switch under test that connects two network namespaces.
#[derive(Debug)]
struct Linked {
    // Fields are dropped in this order, so the programs behind the switch end before the switch.
    server: Option<Daemon>,
    endpoint: Option<Daemon>,
    subject: Box<dyn Switch>,
    dir: PathBuf,
    namespaces: [String; 2],
}

/// Results of one iperf3 run through one switch.
#[derive(Debug, Clone)]
struct Sample {
    secs: f64,
    bytes: u64,
    retransmits: f64,
    worker: WorkerReading,
    tsc_hz: f64,
}

impl Sample {
    fn gbps(&self) -> f64 {
        to_f64(self.bytes) * 8.0 / self.secs / 1e9
    }

    fn cycles_per_byte(&self) -> f64 {
        to_f64(self.worker.busy_cycles) / to_f64(self.bytes.max(1))
    }

    fn cycles_per_packet(&self) -> f64 {
        to_f64(self.worker.busy_cycles) / to_f64(self.worker.frames.max(1))
    }
}

impl Linked {
    fn new(bed: &Bed, number: usize, subject: impl Switch + 'static) -> anyhow::Result<Self> {
        let mut subject: Box<dyn Switch> = Box::new(subject);
        let dir = bed.dir().join(format!("endpoints-{number}"));
        std::fs::create_dir(&dir).context("creating the directory of an endpoint")?;
        let name = |side| format!("pb{}-{number}{side}", std::process::id());
        let namespaces = [name("a"), name("b")];
        for netns in &namespaces {
            bed.guard().take(&Ward::Netns(netns.clone()))?;
        }
        subject.set_case(Case::L3)?;
        subject.pause()?;
        Ok(Self { server: None, endpoint: None, subject, dir, namespaces })
    }

    /// Connects the namespaces to the switch's ports and waits for a TCP connection. The switch
    /// must be running before the call.
    fn link(&mut self, bed: &Bed, offloads: OnOff) -> anyhow::Result<()> {
        self.unlink();
        let core = bed.generator_core().to_string();
        let mut command = penstock()?;
        command.args(["endpoint", "--create-netns", "--core", &core]);
        let offloads = if offloads == OnOff::On { "on" } else { "off" };
        let ends = ["a", "b"].into_iter().zip(&self.namespaces).zip([VM_A, VM_B]);
        for ((port, netns), vm) in ends {
            command.arg("--nic").arg(format!(
                "socket={},mode=server,netns={netns},mac={},ip={}/24,offloads={offloads}",
                self.subject.socket(port).display(),
                vm.mac(),
                vm.ip()
            ));
        }
        let log = self.dir.join("endpoint.log");
        let mut endpoint = Daemon::start(&mut command, log, bed.guard())?;
        let made = self.namespaces.clone().map(|n| PathBuf::from("/run/netns").join(n));
        await_some("network namespaces", START_LIMIT, || {
            endpoint.check()?;
            Ok(made.iter().all(|path| path.exists()).then_some(()))
        })?;
        self.endpoint = Some(endpoint);
        let mut command = self.inside(bed, 1);
        command.args(["iperf3", "-s", "-B", &VM_B.ip().to_string()]);
        // The server cannot bind before the address exists.
        let what = format!("a TCP connection through {}", self.subject.name());
        await_some(&what, START_LIMIT, || {
            if self.server.as_mut().is_none_or(|server| server.check().is_err()) {
                let log = self.dir.join("iperf3.log");
                self.server = Some(Daemon::start(&mut command, log, bed.guard())?);
            }
            Ok(self.transfer(bed, VM_B, 1, 1).ok().map(drop))
        })
    }

    fn unlink(&mut self) {
        self.server = None;
        self.endpoint = None;
    }

    /// Returns a command that runs in namespace `side` (0 or 1) on the generator's core.
    fn inside(&self, bed: &Bed, side: usize) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespaces[side]));
        command.args(["--", "taskset", "-c", &bed.generator_core().to_string()]);
        command
    }

    /// Runs iperf3 once. Returns iperf3's duration in seconds, received bytes and number of
    /// retransmits.
    fn transfer(
        &self,
        bed: &Bed,
        to: PairVm,
        streams: u32,
        secs: u32,
    ) -> anyhow::Result<(f64, u64, f64)> {
        let mut command = self.inside(bed, 0);
        command.args(["iperf3", "-J", "--connect-timeout", "1000", "-c", &to.ip().to_string()]);
        command.args(["-t", &secs.to_string(), "-P", &streams.to_string()]);
        received(&ask(&mut command)?)
    }

    fn sample(&mut self, bed: &Bed, streams: u32, secs: u32) -> anyhow::Result<Sample> {
        self.subject.resume()?;
        // The switch was paused until now, so TCP must find its rate again.
        self.transfer(bed, VM_B, streams, 1)?;
        self.subject.mark()?;
        let (secs, bytes, retransmits) = self.transfer(bed, VM_B, streams, secs)?;
        let worker = self.subject.read_some()?;
        self.subject.pause()?;
        Ok(Sample { secs, bytes, retransmits, worker, tsc_hz: self.subject.tsc_hz() })
    }
}

/// Returns the duration in seconds, the received bytes and the number of retransmits from iperf3's
/// JSON.
fn received(json: &str) -> anyhow::Result<(f64, u64, f64)> {
    let report: Value = serde_json::from_str(json).context("reading iperf3's answer")?;
    if let Some(error) = report["error"].as_str() {
        anyhow::bail!("iperf3: {error}");
    }
    let sum = &report["end"]["sum_received"];
    let secs = sum["seconds"].as_f64().context("iperf3 reports no seconds")?;
    let bytes = sum["bytes"].as_u64().context("iperf3 reports no bytes")?;
    ensure!(secs > 0.0, "iperf3 reports a duration of 0 seconds");
    let retransmits = report["end"]["sum_sent"]["retransmits"].as_f64().unwrap_or(0.0);
    Ok((secs, bytes, retransmits))
}

/// # Errors
///
/// Returns an error if a switch or an endpoint cannot be started, or if it fails later. A ratio
/// that misses its required value is not an error.
pub fn run(args: &TcpArgs, guard: &Guard) -> anyhow::Result<Report> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "bench tcp: needs root for network namespaces and TAP; run as root"
    );
    if args.peer.is_some() {
        ovs::check()?;
    }
    let bed = Bed::new(&args.bed, guard.clone())?;
    let mut platform = bed.describe();
    let iperf3 = ask(Command::new("iperf3").arg("--version"))
        .context("iperf3 cannot be run; install Debian's package iperf3")?;
    platform.insert("iperf3".into(), iperf3.lines().next().unwrap_or_default().into());
    platform.insert("secs".into(), args.secs.into());
    let mut switches = vec![Linked::new(&bed, 0, Penstock::start(&bed, Offloads::On)?)?];
    if args.peer.is_some() {
        switches.push(Linked::new(&bed, 1, OvsDpdk::start(&bed, Tso::Off)?)?);
        switches.push(Linked::new(&bed, 2, OvsDpdk::start(&bed, Tso::On)?)?);
    }
    let mut report = Report { bench: "tcp", platform, rows: Vec::new(), ratios: Vec::new() };
    for switch in &switches {
        switch.subject.describe(&mut report.platform);
    }
    for &offloads in &args.offloads {
        for switch in &mut switches {
            switch.subject.resume()?;
            switch.link(&bed, offloads)?;
            switch.subject.pause()?;
        }
        for &streams in &args.streams {
            let samples = turns(&bed, &mut switches, offloads, streams, args)?;
            let names: Vec<_> = switches.iter().map(|s| s.subject.name()).collect();
            add_rows(&mut report, offloads, streams, &names, &samples);
        }
    }
    for switch in &mut switches {
        switch.subject.resume()?;
        switch.unlink();
    }
    Ok(report)
}

fn case_name(offloads: OnOff) -> &'static str {
    match offloads {
        OnOff::On => "offloads-on",
        OnOff::Off => "offloads-off",
    }
}

fn turns(
    bed: &Bed,
    switches: &mut [Linked],
    offloads: OnOff,
    streams: u32,
    args: &TcpArgs,
) -> anyhow::Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::new(); switches.len()];
    for run in 1..=args.runs {
        for (switch, samples) in switches.iter_mut().zip(&mut samples) {
            let sample = switch.sample(bed, streams, args.secs)?;
            eprintln!(
                "tcp {}, {streams} streams, run {run}/{}: {:<12} {:6.2} Gbit/s {:6.3} cycles per \
                 byte",
                case_name(offloads),
                args.runs,
                switch.subject.name(),
                sample.gbps(),
                sample.cycles_per_byte(),
            );
            samples.push(sample);
        }
    }
    Ok(samples)
}

fn add_rows(
    report: &mut Report,
    offloads: OnOff,
    streams: u32,
    names: &[&str],
    samples: &[Vec<Sample>],
) {
    let mut rows = Vec::new();
    for (name, samples) in names.iter().zip(samples) {
        rows.extend(row(offloads, streams, name, samples));
    }
    if let Some((ours, peers)) = rows.split_first() {
        let values =
            |i: usize, of: fn(&Sample) -> f64| samples[i].iter().map(of).collect::<Vec<_>>();
        for (i, peer) in (1..).zip(peers) {
            let ratio = |of: fn(&Sample) -> f64| paired_ratio(&values(0, of), &values(i, of));
            let (rate, cycles) = bars(offloads, streams, &peer.subject);
            let of = [
                ("gbps", ratio(Sample::gbps), rate),
                ("cycles_per_byte", ratio(Sample::cycles_per_byte), cycles),
            ];
            for (metric, ratio, bar) in of {
                if let Some(ratio) = ratio {
                    report.ratios.push(Ratio::of(ours, &peer.subject, metric, ratio, bar));
                }
            }
        }
    }
    report.rows.append(&mut rows);
}

/// Returns the required values of two ratios, Penstock's value divided by the peer's: rate, and
/// cycles per byte.
fn bars(offloads: OnOff, streams: u32, peer: &str) -> (Bar, Bar) {
    match (offloads, streams, peer) {
        (OnOff::On, 1, "ovs-dpdk") => (Bar::AtLeast(3.0), Bar::None),
        (OnOff::On, 1, "ovs-dpdk-tso") => (Bar::AtLeast(1.0), Bar::AtMost(0.5)),
        _ => (Bar::None, Bar::None),
    }
}

fn row(offloads: OnOff, streams: u32, subject: &str, samples: &[Sample]) -> Option<Row> {
    let spread =
        |of: &dyn Fn(&Sample) -> f64| Spread::of(&samples.iter().map(of).collect::<Vec<_>>());
    let rate = spread(&Sample::gbps)?;
    let mut row = Row::new(case_name(offloads), Value::Null, streams, subject, "gbps", rate);
    row.gbps = Some(row.median);
    row.cycles_per_packet =
        spread(&Sample::cycles_per_packet).map(|s| super::report::round(s.median));
    let mut note = |name: &str, of: &dyn Fn(&Sample) -> f64| {
        if let Some(spread) = spread(of) {
            row.note(name, spread.median);
        }
    };
    note("cycles_per_byte", &Sample::cycles_per_byte);
    note("bytes_per_packet", &|s| to_f64(s.bytes) / to_f64(s.worker.frames.max(1)));
    note("worker_busy_percent", &|s| 100.0 * to_f64(s.worker.busy_cycles) / (s.secs * s.tsc_hz));
    note("worker_wait_percent", &|s| {
        100.0 * Duration::from_nanos(s.worker.waited_ns).as_secs_f64() / s.secs
    });
    note("retransmits", &|s| s.retransmits);
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iperf3_is_understood_also_when_it_fails() {
        let good = r#"{"end":{"sum_sent":{"retransmits":3,"bytes":1100},
            "sum_received":{"seconds":2.5,"bytes":1000,"bits_per_second":3200}}}"#;
        assert_eq!(received(good).unwrap(), (2.5, 1000, 3.0));
        let bad = received(r#"{"start":{},"error":"unable to connect"}"#).unwrap_err();
        assert_eq!(bad.to_string(), "iperf3: unable to connect");
        assert!(received("{}").is_err() && received("no json").is_err());
    }

    #[test]
    fn bars_are_for_one_stream_with_offloads() {
        assert_eq!(bars(OnOff::On, 1, "ovs-dpdk").0, Bar::AtLeast(3.0));
        let (rate, cycles) = bars(OnOff::On, 1, "ovs-dpdk-tso");
        assert_eq!((rate, cycles), (Bar::AtLeast(1.0), Bar::AtMost(0.5)));
        assert_eq!(bars(OnOff::Off, 1, "ovs-dpdk"), (Bar::None, Bar::None));
        assert_eq!(bars(OnOff::On, 4, "ovs-dpdk"), (Bar::None, Bar::None));
    }

    #[test]
    fn a_row_says_what_a_byte_costs() {
        let worker = WorkerReading { frames: 100, busy_cycles: 1_000_000, ..Default::default() };
        let sample = Sample { secs: 1.0, bytes: 2_000_000, retransmits: 0.0, worker, tsc_hz: 1e9 };
        let row = row(OnOff::On, 4, "penstock", &[sample]).unwrap();
        assert_eq!((row.gbps, row.cycles_per_packet), (Some(0.016), Some(10_000.0)));
        assert_eq!(row.detail["cycles_per_byte"], 0.5);
        assert_eq!(row.detail["bytes_per_packet"], 20_000.0);
        assert_eq!((row.flows, row.size.clone()), (4, Value::Null));
    }
}
