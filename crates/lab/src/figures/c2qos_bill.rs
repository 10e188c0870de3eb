//! This figure checks whether the switch charges each VM for the cycles that the VM's frames cause
//! (C2QoS).
//!
//! # Problem
//!
//! A worker does more than run batches. The worker also kicks drivers that wait for an interrupt,
//! calls AF_XDP sockets, sends from queues of outputs and refills cycle buckets. If the cycles for
//! kicks, calls and refills are charged to the wrong VM, a VM gets less than the cycles that it
//! bought.
//!
//! # Source
//!
//! C2QoS §III and §IV-A: check the VM's bucket before a batch, and charge the VM after the batch.
//! The C2QoS paper's VMs poll, so the paper prints no cost of a notification.
//!
//! # Approach
//!
//! - Test of kicks: a victim VM bought 40 % of the core. The victim's neighbour sends one frame in
//!   a batch to a receiver that waits for interrupts.
//! - Test of send calls: the victim's neighbour sends to an AF_XDP uplink.
//! - The test of classes has a VM of class 8, which bought 20 % of the core. A VM of class 1 floods
//!   the output that the VM of class 8 also uses.
//!
//! The cost of a neighbour's *presence* is the number of cycles that the worker spends only when
//! the neighbour sends. All other VMs send the same number of frames in the runs with and without
//! the neighbour. The claim compares the cycles that the neighbour's presence costs with the cycles
//! that the switch charged to the neighbour.

use penstock_dataplane::counters::WorkerReading;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_sim::{Costs, Notice, PortHandle, SinkSpec, SourceSpec, World, WorldConfig};
use penstock_units::{BitsPerSecond, CyclesPerSecond, Nanos, Priority, Rng, TscRate};

use crate::accounts::{self, Bands, Found, Totals};
use crate::evidence::stats::float;
use crate::evidence::{Axis, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-bill",
    source: "C2QoS §III, §IV-A",
    about: "each VM pays for what it causes: kicks, send calls, queues, the host's own work",
    sim: Some(sim),
    live: Some(live::bill),
    picture,
};

const CORE: TscRate = TscRate::from_hz(2_000_000_000);
const RING: usize = 256;
/// Length of the warm-up before a measurement begins.
const WARM_UP: Nanos = Nanos::from_millis(20);
const LENGTH: Nanos = Nanos::from_millis(200);
/// Sending rate in frames per second that keeps a source's ring full under any load.
const FLOOD: u64 = 4_000_000;

/// Counters of a run, counted from the end of the run's warm-up.
struct Measured {
    /// Number of forwarded frames and of charged cycles of each VM.
    vms: Vec<(u64, u64)>,
    worker: WorkerReading,
    /// Cycles that passed on all cores during the measurement.
    passed: u64,
}

impl Measured {
    /// Returns the share of the cycles in which the workers were not idle (0 to 1).
    fn worked(&self) -> f64 {
        self.share(self.passed - self.worker.cycles_idle)
    }

    fn share(&self, cycles: u64) -> f64 {
        float(cycles) / float(self.passed)
    }

    /// Returns the cycles in each of the worker's accounts, in the order of [`accounts::NAMES`].
    fn accounts(&self) -> [f64; 4] {
        let WorkerReading { cycles_charged, cycles_host, cycles_idle, cycles_stolen, .. } =
            self.worker;
        [cycles_charged, cycles_host, cycles_idle, cycles_stolen].map(float)
    }
}

struct Bed {
    world: World,
    vms: Vec<PortHandle>,
    /// Random numbers for the VMs' frame sizes and rates.
    rng: Rng,
    end: Nanos,
    length: Nanos,
}

impl Bed {
    fn new(ctx: &Context<'_>, schedule: ScheduleKind, workers: u16) -> Self {
        let config = WorldConfig { workers, schedule, ..WorldConfig::default() };
        let length = ctx.scaled(LENGTH);
        let world = World::with_config(&config, CORE, Costs::EXAMPLE, 8, ctx.seed);
        Self { world, vms: Vec::new(), rng: Rng::new(ctx.seed), end: WARM_UP + length, length }
    }

    fn add(&mut self, ring: usize, notice: Notice) -> anyhow::Result<PortHandle> {
        let vm = self.world.add_notified(1, ring, SinkSpec::default(), notice)?;
        self.world.introduce(vm);
        self.vms.push(vm);
        Ok(vm)
    }

    fn buy(&mut self, vm: PortHandle, per_cent: u64, ingress: IngressPolicy, class: u8) {
        let priority = Priority::new(class.into()).unwrap_or(Priority::LAST);
        let entitlement = CyclesPerSecond(CORE.hz() / 100 * per_cent);
        let qos = PortQos { ingress, entitlement, priority, ..PortQos::default() };
        self.world.set_qos(vm, qos);
    }

    /// Starts the traffic of the VM `from` to the VM `to`. The seed varies `size`,
    /// `frames_per_second` and the first frame's time of 1 ms, each between 75 and 125 %. A VM
    /// sends the same frames in each run.
    fn send(&mut self, from: PortHandle, to: PortHandle, size: u64, frames_per_second: u64) {
        let number = |vm: PortHandle| self.vms.iter().position(|other| *other == vm).unwrap_or(0);
        let mut rng = self.rng.fork(number(from) as u64);
        let mut about = |mean: u64| mean * (75 + rng.below(51)) / 100;
        let spec = SourceSpec {
            target: World::mac_of(u16::try_from(number(to)).unwrap_or(0)),
            sizes: vec![(usize::try_from(about(size).max(60)).unwrap_or(60), 1)],
            frames_per_second: about(frames_per_second),
            flows: 1,
            from: Nanos(about(1_000_000)),
            until: self.end,
            loss_ppm: 0,
        };
        self.world.set_source(from, spec);
    }

    fn measure(mut self) -> Measured {
        self.world.run_until(WARM_UP);
        let before = self.read();
        self.world.run_until(WARM_UP + self.length);
        let after = self.read();
        let vms = after.vms.iter().zip(&before.vms).map(|(a, b)| (a.0 - b.0, a.1 - b.1));
        Measured {
            vms: vms.collect(),
            worker: WorkerReading {
                cycles_charged: after.worker.cycles_charged - before.worker.cycles_charged,
                cycles_host: after.worker.cycles_host - before.worker.cycles_host,
                cycles_idle: after.worker.cycles_idle - before.worker.cycles_idle,
                cycles_stolen: after.worker.cycles_stolen - before.worker.cycles_stolen,
                ..after.worker
            },
            passed: after.passed - before.passed,
        }
    }

    fn read(&self) -> Measured {
        let of = |vm: &PortHandle| (self.world.port(*vm).forwarded, self.world.port(*vm).cycles);
        Measured {
            vms: self.vms.iter().map(of).collect(),
            worker: self.world.worker(),
            passed: self.world.cycles(),
        }
    }
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    let mut totals = Totals::default();
    outcome.note("core_hz", CORE.hz());
    ctx.progress(0.0, "kicks");
    let kept = kicks_kept(ctx, &mut totals)?;
    ctx.progress(0.3, "the price of a presence");
    let kicks = charged_over_caused(ctx, Notice::Kick, &mut totals)?;
    let calls = charged_over_caused(ctx, Notice::SendCall, &mut totals)?;
    ctx.progress(0.5, "classes");
    let lower = lower_class(ctx, &mut totals, &mut outcome)?;
    let found = Found { kept, charged: [kicks, calls], lower };
    totals.conclude(&mut outcome, &found, &SIM);
    Ok(outcome)
}

/// Returns the lowest percentage of its frames that a victim with a strict limit keeps beside a
/// sending neighbour.
fn kicks_kept(ctx: &Context<'_>, totals: &mut Totals) -> anyhow::Result<f64> {
    let mut least = f64::INFINITY;
    for schedule in [ScheduleKind::RoundRobin, ScheduleKind::Hbs] {
        let mut frames = [0.0; 2];
        for (noisy, frames) in [false, true].into_iter().zip(&mut frames) {
            let mut bed = Bed::new(ctx, schedule, 1);
            let [victim, sink] = [bed.add(RING, Notice::Poll)?, bed.add(RING, Notice::Poll)?];
            // A ring of one frame: each of the neighbour's batches has one frame.
            let [neighbour, receiver] = [bed.add(1, Notice::Poll)?, bed.add(RING, Notice::Kick)?];
            bed.buy(victim, 40, IngressPolicy::CyclesStrict, 8);
            bed.buy(neighbour, 20, IngressPolicy::CyclesMinmax, 8);
            bed.send(victim, sink, 1024, FLOOD);
            if noisy {
                bed.send(neighbour, receiver, 60, FLOOD);
            }
            let run = bed.measure();
            totals.add(run.accounts(), float(run.passed));
            *frames = float(run.vms[0].0);
        }
        least = least.min(100.0 * frames[1] / frames[0]);
    }
    Ok(least)
}

/// Returns the cycles charged to a neighbour, divided by the cycles that the neighbour's presence
/// costs.
fn charged_over_caused(
    ctx: &Context<'_>,
    notice: Notice,
    totals: &mut Totals,
) -> anyhow::Result<f64> {
    let mut runs = Vec::new();
    for present in [true, false] {
        let mut bed = Bed::new(ctx, ScheduleKind::RoundRobin, 1);
        let [victim, sink] = [bed.add(RING, Notice::Poll)?, bed.add(RING, Notice::Poll)?];
        let [neighbour, receiver] = [bed.add(RING, Notice::Poll)?, bed.add(RING, notice)?];
        bed.send(victim, sink, 512, 300_000);
        if present {
            bed.send(neighbour, receiver, 60, 100_000);
        }
        let run = bed.measure();
        totals.add(run.accounts(), float(run.passed));
        runs.push(run);
    }
    Ok(runs[0].share(runs[0].vms[2].1) / (runs[0].worked() - runs[1].worked()))
}

/// Returns the lowest share of its bought cycles that a VM of class 8 gets, in per cent. A VM of
/// class 1 floods the same output as the VM of class 8.
fn lower_class(
    ctx: &Context<'_>,
    totals: &mut Totals,
    outcome: &mut Outcome,
) -> anyhow::Result<f64> {
    const BOUGHT: u64 = 20;
    let mut least = f64::INFINITY;
    for (name, order) in [("fair-share", Order::FairShare), ("wfq", Order::Wfq)] {
        for workers in [1, 2] {
            let mut bed = Bed::new(ctx, ScheduleKind::Hbs, workers);
            // Ports go to the workers in turn. The two senders share worker 0.
            let low = bed.add(RING, Notice::Poll)?;
            let up = bed.add(1_024, Notice::Poll)?;
            let high = bed.add(RING, Notice::Poll)?;
            let terms = QueueTerms {
                order,
                pacing: Pacing::Link(BitsPerSecond(100_000_000_000)),
                ..QueueTerms::default()
            };
            let home = QueueHome::new(terms, 8, 8);
            bed.world.set_policy(up, |policy| {
                policy.queue = Some(home);
                policy.tenant = None;
            });
            bed.buy(low, BOUGHT, IngressPolicy::CyclesStrict, 8);
            bed.buy(high, 70, IngressPolicy::CyclesMinmax, 1);
            bed.send(low, up, 256, FLOOD);
            bed.send(high, up, 60, FLOOD);
            let run = bed.measure();
            totals.add(run.accounts(), float(run.passed));
            let kept = 100.0 * run.share(run.vms[0].1) * f64::from(workers) / float(BOUGHT) * 100.0;
            outcome.note(&format!("kept_pct_{name}_{workers}"), kept);
            least = least.min(kept);
        }
    }
    Ok(least)
}

const SIM: Bands =
    Bands { kept: 99.5, charged: (0.97, 1.03), lower: 99.0, unattributed: 0.0, host: 1.0 };

fn picture(record: &Record) -> Picture {
    let y = Axis::linear("time, %").from(0.0).to(100.0);
    let panel = Panel::new("accounts of each run", Axis::linear("run"), y);
    let panel =
        accounts::NAMES.into_iter().fold(panel, |panel, account| match record.series(account) {
            Some(series) => panel.stack(account, points(series)),
            None => panel,
        });
    Picture::new(format!("C2QoS: where the workers' time went ({})", record.mode)).panel(panel)
}
