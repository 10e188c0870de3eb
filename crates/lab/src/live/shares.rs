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
//! # Departures
//!
//! The paper's clients were hosts with one VM each. In the live experiment, a VM may send frames
//! larger than the MTU, because segmentation offloads are on.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::needs::needs;
use super::stage::{Stage, mean_bps};
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::plan::{Plan, Vm};
use crate::rig::platform;
use crate::rig::stats::middle;
use penstock_guest::bed::Bed;

/// Rate of the output in bits per second, preamble and gap included. The link of the paper's legacy
/// switch has the same rate of 582.4 Mbit/s.
const LINK: u64 = 582_400_000;
/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Number of runs of each queueing discipline.
const RUNS: u32 = 3;
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

    fn plan(self) -> Plan {
        let tenant = |name: &str, weight| Some((name.to_owned(), weight));
        let sender = |(name, client, weight, _): &(&str, &str, u32, &str)| Vm {
            name: (*name).to_owned(),
            tenant: tenant(client, *weight),
            to: Some(NET.to_owned()),
            ..Vm::default()
        };
        let mut vms: Vec<Vm> = VMS.iter().map(sender).collect();
        // `fifo` gets a queue of 1 MiB and at most 20 ms. `fair-share` keeps the default queue of
        // 256 KiB and 10 ms.
        let queue = match self {
            Self::Fifo => "egress = \"fifo\"\nqueue = { bytes = 1048576, wait_us = 20000 }\n",
            Self::FairShare => "egress = \"fair-share\"\n",
        };
        let more = format!("{queue}link = {LINK}\n");
        // `answers` makes the way back for acknowledgements.
        vms.push(Vm { name: NET.to_owned(), more, answers: true, ..Vm::default() });
        Plan { offloads: true, ..Plan::new("", vms) }
    }
}

/// Result of a run: bits per second that the switch forwarded from each VM.
type Rates = [f64; 3];

fn one(bed: &Bed, order: Order, secs: f64) -> anyhow::Result<Rates> {
    let mut stage = Stage::start(bed, order.name(), &order.plan())?;
    for (vm, _, _, flows) in VMS {
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
    Ok(VMS.map(|(vm, ..)| mean_bps(counted, vm) * part(vm)))
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
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(10.0);
    let runs = context.live.runs.unwrap_or(RUNS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("link_bps", LINK);
    let (mut fifo, mut fair) = (Vec::new(), Vec::new());
    for n in 0..runs {
        context.progress(f64::from(n) / f64::from(runs), "both orders by turns");
        fifo.push(one(&bed, Order::Fifo, secs)?);
        fair.push(one(&bed, Order::FairShare, secs)?);
    }
    for (order, rates) in [(Order::Fifo, &fifo), (Order::FairShare, &fair)] {
        let of = |vm: usize| middle(&rates.iter().map(|run| run[vm]).collect::<Vec<_>>()) / 1e6;
        let points = (0..3_u32).map(f64::from).zip((0..3).map(of));
        outcome.series(order.name(), "Mbit/s", points);
        outcome.note(&format!("{}_mbps", order.name()), told(rates));
    }
    outcome.note("vde_switch", vde(&bed, secs).unwrap_or_else(|e| format!("{e:#}").into()));
    conclude(&mut outcome, &fifo, &fair);
    Ok(outcome)
}

fn told(rates: &[Rates]) -> Value {
    let run = |rates: &Rates| json!(rates.map(|rate| (rate / 1e4).round() / 100.0));
    rates.iter().map(run).collect()
}

fn conclude(outcome: &mut Outcome, fifo: &[Rates], fair: &[Rates]) {
    let of = |rates: &[Rates], what: &dyn Fn(&Rates) -> f64| {
        middle(&rates.iter().map(what).collect::<Vec<_>>())
    };
    let all = |rates: &Rates| rates.iter().sum::<f64>();
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
            .at_least(99.0)
            .measured(100.0 * of(fair, &all) / of(fifo, &all)),
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
        let text = Order::FairShare.plan().configuration(Path::new("/d"), (1, 0));
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
    fn who_got_twice_as_much_got_its_due() {
        assert!((ratio(&[1.0, 1.0, 1.0]) - 2.0).abs() < 1e-12);
        assert!((least_of_due(&[1.0, 1.0, 1.0]) - 100.0).abs() < 1e-9);
        assert!(least_of_due(&[0.5, 1.25, 1.25]) < 51.0);
    }
}
