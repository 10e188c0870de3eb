//! The claims `sparse_p99_ms` and `sparse_shared_p99_ms`: a VM's pings beside its own bulk TCP, on
//! an uplink with `fq-codel`, and on one with `fair-share` and flow queues of VMs.
//!
//! # Approach
//!
//! A namespace pings the far side of an uplink of 100 Mbit/s about every 5 ms, while one TCP stream
//! of the same namespace fills the uplink. The value is a round trip. A ping without an answer
//! counts as a second. Endpoints and programs have real-time priority, because otherwise a kernel
//! that preempts only at its tick would add 4 ms. The same is shown with one queue for all frames.

use std::time::Duration;

use penstock_units::Rng;

use super::super::stage::Stage;
use super::calm::Calm;
use super::pings;
use super::traffic::shuffled;
use super::wire::departed_bps;
use crate::evidence::stats::distribution;
use crate::evidence::{Claim, Outcome, percentile};
use crate::rig::plan::{Bound, Plan, Vm};
use penstock_guest::bed::Bed;

const VM: &str = "vm";
const UP: &str = "up";
const UP_PLACE: usize = 1;
const SERVER: u16 = 5_201;

/// An order of the uplink's queue.
#[derive(Debug, Clone, Copy)]
struct Order {
    name: &'static str,
    egress: &'static str,
    /// More keys of `queue`.
    keys: &'static str,
}

/// The measured orders. All but the last one have a band.
const ORDERS: [Order; 3] = [
    Order { name: "fq-codel", egress: "fq-codel", keys: "" },
    Order { name: "fair-share with flows", egress: "fair-share", keys: ", flows = true" },
    Order { name: "fifo", egress: "fifo", keys: "" },
];
const STEP: Duration = Duration::from_millis(250);
/// Seconds of the TCP stream before the pings.
const SETTLE: f64 = 3.0;
const LATE: Duration = Duration::from_secs(20);

/// Measures the pings with each order.
pub(super) fn measure(
    calm: &mut Calm<'_>,
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let bed = calm.bed;
    let mut found: [(Vec<f64>, f64); 3] = Default::default();
    for at in shuffled(ORDERS.len(), rng) {
        // 4.5 to 5.5 ms, so that pings do not keep step with other work.
        let gap = 0.0045 + 0.001 * rng.unit();
        found[at] = calm.cell(|| pings_beside_tcp(bed, ORDERS[at], (secs, gap)))?;
    }
    let [(codel, codel_bulk), (shared, shared_bulk), (fifo, fifo_bulk)] = found;
    let what = "p99 of a ping's round trip over an uplink of 100 Mbit/s, beside the VM's bulk TCP";
    let claim = Claim::new("sparse_p99_ms", what, "ms").at_most(5.0);
    outcome.claim(claim.measured(percentile(&codel, 99.0)));
    let what = "the same with fair-share and flow queues of VMs";
    let claim = Claim::new("sparse_shared_p99_ms", what, "ms").at_most(5.0);
    outcome.claim(claim.measured(percentile(&shared, 99.0)));
    let claim = Claim::new("sparse_fifo_p99_ms", "the same with one queue for all frames", "ms");
    outcome.claim(claim.measured(percentile(&fifo, 99.0)));
    let what = "rate on the wire of the TCP stream beside the pings";
    let bulk = codel_bulk.min(shared_bulk).min(fifo_bulk) / 1e6;
    outcome.claim(Claim::new("sparse_bulk_mbps", what, "Mbit/s").measured(bulk));
    for (order, pings) in ORDERS.into_iter().zip([codel, shared, fifo]) {
        let name = format!("pings, {}", order.name);
        outcome.series(&name, "% of the pings", distribution(&pings));
    }
    Ok(())
}

/// Returns the round trips of the pings in ms, and the rate of the TCP stream in bits per second on
/// the wire.
fn pings_beside_tcp(
    bed: &Bed,
    order: Order,
    (secs, gap): (f64, f64),
) -> anyhow::Result<(Vec<f64>, f64)> {
    let Order { egress, keys, .. } = order;
    // All orders have the room that is the default of `fq-codel`.
    let queue = format!("queue = {{ bytes = 8388608, wait_us = 1000000{keys} }}\n");
    let more = format!("egress = \"{egress}\"\nlink = \"100M\"\n{queue}");
    let vms =
        vec![Vm::sender(VM, UP, Bound::default()), Vm { more, answers: true, ..Vm::sink(UP) }];
    let plan = Plan { offloads: true, prompt: true, ..Plan::new("", vms) };
    let mut stage = Stage::start(bed, &format!("sparse-{egress}"), &plan)?;
    let (to, port) = (Plan::ip(UP_PLACE).to_string(), SERVER.to_string());
    stage.start_program(bed, UP, "iperf3", &["-s", "-p", &port])?;
    stage.await_tcp(VM, UP_PLACE, SERVER)?;
    let lasts = format!("{:.0}", SETTLE + secs + LATE.as_secs_f64());
    let words = ["-c", &to, "-p", &port, "-t", &lasts, "-C", "cubic"];
    stage.start_program(bed, VM, "iperf3", &words)?;
    stage.watch(SETTLE, STEP)?;
    let before = stage.read()?;
    let words = pings::words(&to, secs, gap);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ping = stage.start_program(bed, VM, "ping", &words)?;
    let told = stage.await_program(ping, Duration::from_secs_f64(secs) + LATE)?;
    let after = stage.read()?;
    Ok((pings::round_trips(&told)?, departed_bps(&before, &after, VM)))
}
