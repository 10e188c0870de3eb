//! The same traffic of four tenants over Penstock, over HTB and over one queue of the kernel.
//!
//! # Approach
//!
//! The ways get the same traffic ([`super::traffic`]), one after the other, in an order that
//! depends on the seed. The far end of the link counts what arrives, in the same way for all.
//! The sparse flow is a ping of the tenant that sends one TCP stream. Penstock runs with one queue
//! for each VM, which is its default, and with flow queues.
//!
//! Processor time for a frame counts all work on the generator's core: programs, the kernel's
//! stack, its softirqs and queueing discipline, and Penstock's endpoints. Penstock's value also
//! includes the cycles that its worker charged to ports or to the host. It excludes polls without a
//! frame. The time of the core is from `/proc/stat`, without idle time. Time that the hypervisor
//! took counts as work.
//!
//! All values are shown, and no value has a band: the machine's stack, and not only the queueing,
//! determines them.

use std::time::Duration;

use penstock_units::Rng;

use super::super::machine;
use super::calm::Calm;
use super::kernel_road::{Discipline, KernelRoad};
use super::penstock_road::PenstockRoad;
use super::pings;
use super::traffic::{Arrived, LINK, Road, TENANTS, Traffic, WEIGHTS, kinds, shuffled};
use super::wire::share_error_pct;
use crate::evidence::{Claim, Outcome, percentile};
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;
use penstock_guest::clock;

/// Turn of the traffic ([`kinds`]): tenant 0 sends one TCP stream.
const TURN: usize = 0;
const PINGER: usize = 0;
/// Seconds of the traffic before the measurement.
const SETTLE: f64 = 4.0;
/// Seconds for which the TCP programs outlast the measurement, if they all begin at once.
const SPARE: f64 = 60.0;
/// Seconds between two pings.
const PING_GAP: f64 = 0.02;
const LATE: Duration = Duration::from_secs(20);

/// What carries the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Penstock,
    /// Penstock with flow queues.
    PenstockFlows,
    Kernel(Discipline),
}

impl Way {
    const ALL: [Self; 4] = [
        Self::Penstock,
        Self::PenstockFlows,
        Self::Kernel(Discipline::Htb),
        Self::Kernel(Discipline::Fifo),
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Penstock => "penstock",
            Self::PenstockFlows => "penstock_flows",
            Self::Kernel(discipline) => discipline.name(),
        }
    }
}

/// Measurements of one way.
#[derive(Debug)]
struct Found {
    /// Bits per second on the wire of each tenant.
    rates: [f64; TENANTS],
    /// Frames per second on the wire of all tenants.
    frames: f64,
    /// Round trips of the pings in ms.
    pings: Vec<f64>,
    /// Nanoseconds of processor time for each frame.
    cpu_ns: f64,
    /// Nanoseconds of the switch's worker in `cpu_ns`. 0 for the kernel.
    worker_ns: f64,
}

/// Measures all ways, and adds their values to the outcome.
pub(super) fn measure(
    calm: &mut Calm<'_>,
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let (bed, seed) = (calm.bed, rng.next_u64());
    for at in shuffled(Way::ALL.len(), rng) {
        let way = Way::ALL[at];
        let found = calm.cell(|| by(bed, way, (secs, seed)))?;
        show(outcome, way.name(), &found);
    }
    Ok(())
}

fn by(bed: &Bed, way: Way, times: (f64, u64)) -> anyhow::Result<Found> {
    match way {
        Way::Penstock | Way::PenstockFlows => {
            let flows = way == Way::PenstockFlows;
            let more = format!("queue = {{ flows = {flows} }}\n");
            let mut road = PenstockRoad::start(bed, way.name(), &more)?;
            let measured = through(bed, &mut road, times, |road| road.stage.read())?;
            let (mut found, [first, last], frames) = measured;
            let cycles = last.worker_grown(&first, "cycles_charged")
                + last.worker_grown(&first, "cycles_host");
            found.worker_ns = to_f64(cycles) / bed.tsc_hz() * 1e9 / frames;
            found.cpu_ns += found.worker_ns;
            Ok(found)
        }
        Way::Kernel(discipline) => {
            let name = format!("beside-{}", discipline.name());
            let mut road = KernelRoad::start(bed, &name, discipline)?;
            through(bed, &mut road, times, |_| Ok(())).map(|(found, ..)| found)
        }
    }
}

/// Sends the traffic over `road`. Also returns what `read` returned at the beginning and at the end
/// of the measurement, and the number of frames between.
fn through<R: Road, T>(
    bed: &Bed,
    road: &mut R,
    (secs, seed): (f64, u64),
    read: impl Fn(&R) -> anyhow::Result<T>,
) -> anyhow::Result<(Found, [T; 2], f64)> {
    let lasts = SETTLE + secs + SPARE;
    let traffic = Traffic::start(bed, road, kinds(TURN), (lasts, seed))?;
    clock::wait_readable(None, Duration::from_secs_f64(SETTLE));
    let core = [bed.generator_core()];
    // Both ends of the measurement read in the same order, as each reading takes some time.
    let (first, machine, began) = (read(road)?, machine::Reading::take(&core), clock::now());
    let before = traffic.arrived(&*road)?;
    let words = pings::words(&road.address(PINGER).to_string(), secs, PING_GAP);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ping = road.send(PINGER, "ping", &words)?;
    let told = road.await_program(ping, Duration::from_secs_f64(secs) + LATE)?;
    let last = read(road)?;
    let idle = machine.idle_pct(&machine::Reading::take(&core));
    let took = began.elapsed().as_secs_f64();
    let after = traffic.arrived(&*road)?;
    traffic.end()?;
    let grown = |of: fn(&Arrived) -> f64| {
        let mut all = [0.0; TENANTS];
        let both = before.iter().zip(&after);
        // The kernel forgets the bytes of a TCP connection that ended, so they count as none.
        let more = |(before, after)| (of(after) - of(before)).max(0.0);
        all.iter_mut().zip(both.map(more)).for_each(|(all, more)| *all = more);
        all
    };
    let frames: f64 = grown(|arrived| arrived.frames).iter().sum();
    let found = Found {
        rates: grown(|arrived| arrived.wire_bytes).map(|bytes| 8.0 * bytes / took),
        frames: frames / took,
        pings: pings::round_trips(&told)?,
        cpu_ns: (100.0 - idle) / 100.0 * took * 1e9 / frames,
        worker_ns: 0.0,
    };
    Ok((found, [first, last], frames))
}

fn show(outcome: &mut Outcome, name: &str, found: &Found) {
    let all: f64 = found.rates.iter().sum();
    let shares = found.rates.iter().map(|rate| 100.0 * rate / all);
    let points = (0_u32..).map(f64::from).zip(shares);
    outcome.series(&format!("beside, {name}"), "% of the wire", points);
    let claims = [
        (
            "share_error_pct",
            "largest deviation of a tenant's rate from its rate by weight",
            "%",
            share_error_pct(&found.rates, &WEIGHTS),
        ),
        (
            "utilisation_pct",
            "rate on the wire, in per cent of the link's rate",
            "%",
            100.0 * all / f64::from(LINK),
        ),
        ("sparse_p99_ms", "p99 of a tenant's ping", "ms", percentile(&found.pings, 99.0)),
        ("cpu_ns_per_frame", "processor time of all work for a frame", "ns", found.cpu_ns),
    ];
    for (id, what, unit, value) in claims {
        let statement = format!("{name}, the same traffic: {what}");
        outcome.claim(Claim::new(&format!("{name}_{id}"), statement, unit).measured(value));
    }
    outcome.note(&format!("beside_{name}_frames_per_second"), found.frames);
    outcome.note(&format!("beside_{name}_worker_ns_per_frame"), found.worker_ns);
}
