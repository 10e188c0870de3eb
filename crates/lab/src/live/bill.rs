//! Live experiment for C2QoS: a test that each VM pays for the cycles that it causes.
//!
//! # Problem
//!
//! A notification (kick) to a virtio driver and a send call on an AF_XDP socket cost more than a
//! batch of frames. If VM A pays for the kicks and send calls that VM B causes, VM A has fewer
//! cycles left for its own frames.
//!
//! # Source
//!
//! C2QoS §III and §IV-A: a worker checks the balance of a port before a batch, and charges the port
//! after the batch.
//!
//! # Approach
//!
//! Windows with and without a VM alternate (A B A B). The cost of the VM is the difference in the
//! worker's charged and host cycles between windows with and without the VM. The claim compares the
//! cost of the VM with the cycles that were charged to the VM. All other VMs have strict purchases
//! and flood the switch, so they spend the same number of cycles in each window.
//!
//! - In the test of kicks, a victim that bought 40 % of the core floods the switch. The neighbour
//!   sends single frames to a VM that requests an interrupt for each frame.
//! - In the test of send calls, a neighbour sends to an uplink with an AF_XDP socket, and no other
//!   VM sends.
//! - In the test of classes, a VM of class 8 bought 20 % of the worker's capacity. A VM of class 1
//!   floods the same output, which is shared as `fair-share` or `wfq`.
//!
//! The experiment uses the worker's accounts of cycles, over the time that the daemon reports.
//!
//! # Departures
//!
//! The live switch has one worker, because the load needs the other core. The simulation of the
//! accounts also tests two workers.

use serde_json::{Value, json};

use super::bracket::WAITED;
use crate::accounts::{Bands, Found, Totals};
use crate::evidence::{Context, Outcome};
use crate::rig::fleet::{Fleet, Offer, Window};
use crate::rig::penstock::Penstock;
use crate::rig::plan::{AllTo, Bound, Plan, Policy, Vm};
use crate::rig::platform;
use crate::rig::stats::{middle, to_f64};
use crate::rig::switch::count;
use crate::rig::through;
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

const LIVE: Bands =
    Bands { kept: 99.0, charged: (0.93, 1.07), lower: 97.0, unattributed: 0.5, host: 2.0 };

/// Fraction of the core's cycles that the victim bought.
const VICTIM: f64 = 0.4;
/// Frames per second that the neighbour sends. The generator sends the neighbour's frames one by
/// one.
const SINGLE: f64 = 50_000.0;
/// Fraction of its core that the worker may spend in the case of classes, so that the generator is
/// faster than the worker.
const CORE_PART: f64 = 0.5;
/// Fractions of the worker's capacity that the VMs of class 8 and class 1 bought.
const CLASSES: [f64; 2] = [0.2, 0.7];
/// Seconds for which the load runs before each measured window.
const WARM_SECS: f64 = 0.1;
/// Maximum number of attempts for each window. A window is repeated if the host took a core away
/// from the worker or the generator.
const TRIES: u32 = 6;

/// A running switch and the VMs that are attached in one case of the experiment.
struct Stage<'a> {
    bed: &'a Bed,
    ours: Penstock,
    fleet: Fleet,
}

/// Settings and counts of the measured windows, for all cases.
struct Sitting {
    /// Length of a measured window in seconds.
    secs: f64,
    /// Number of windows of each kind (with or without a VM) in a case.
    runs: u32,
    totals: Totals,
    /// Number of windows that were repeated.
    repeated: u32,
    costs: Costs,
}

/// Measured cycles that the worker spends on single frames, kicks and refills. The simulation
/// assumes the `Overheads`, and the measured cycles show whether the assumption fits the host.
#[derive(Debug, Default)]
struct Costs {
    /// Cycles of a single frame between two polled rings.
    frame: f64,
    /// Cycles of one notification to a driver.
    kick: f64,
    /// Cycles of a single frame to an AF_XDP socket, with the frame's share of the send calls. The
    /// kernel may take several frames in one call.
    uplink_frame: f64,
    /// Cycles in the host's account, divided by the number of refills of the cycle buckets.
    refill: f64,
}

/// Cycles that were charged to the worker and to the ports in a measured window.
#[derive(Debug, Clone)]
struct Accounts {
    window: Window,
    /// Cycles that passed during the window.
    passed: f64,
    /// Charged, host, idle and stolen cycles of the worker in the window.
    worker: [f64; 4],
    /// The switch's counters at the end and at the beginning of the window.
    stats: [Value; 2],
}

impl Accounts {
    /// Returns the increase of the counter `name` of `port` in the window.
    fn grown(&self, port: &str, name: &str) -> f64 {
        let [now, before] = self.stats.each_ref().map(|stats| count(stats, port, name));
        to_f64(now.saturating_sub(before))
    }

    /// Returns the cycles that were charged to `port` in the window.
    fn cycles(&self, port: &str) -> f64 {
        self.grown(port, "cycles")
    }

    /// Returns the cycles that were charged to `port`, divided by its frames.
    fn cycles_per_frame(&self, port: &str) -> f64 {
        self.cycles(port) / self.grown(port, "rx_frames")
    }

    /// Returns the fraction of the window's cycles that were charged or host cycles.
    fn worked(&self) -> f64 {
        let [charged, host, ..] = self.worker;
        (charged + host) / self.passed
    }
}

/// Returns the increase of the worker's counter `name` between the second and the first statistics.
fn of_worker(stats: &[&Value; 2], name: &str) -> f64 {
    let [now, before] =
        stats.map(|stats| stats["workers"][0]["counters"][name].as_u64().unwrap_or(0));
    to_f64(now.saturating_sub(before))
}

fn offer(size: u16, rate: Rate) -> Offer {
    Offer { size: size.into(), flows: 1, rate }
}

impl<'a> Stage<'a> {
    fn start(bed: &'a Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        let ours = Penstock::by_plan(bed, name, plan)?;
        let fleet = bed.on_generator_core(|| Fleet::by_plan(&ours, plan))?;
        Ok(Self { bed, ours, fleet })
    }

    /// Measures a window in which the VMs in `offers` send. All other VMs send nothing.
    fn measure(
        &mut self,
        offers: &[(&str, Offer)],
        sitting: &mut Sitting,
    ) -> anyhow::Result<Accounts> {
        self.fleet.hush();
        for (name, offer) in offers {
            self.fleet.offer(name, offer);
        }
        let mut accounts = self.once(sitting.secs)?;
        for _ in 1..TRIES {
            if accounts.window.wait() <= WAITED {
                break;
            }
            sitting.repeated += 1;
            accounts = self.once(sitting.secs)?;
        }
        sitting.totals.add(accounts.worker, accounts.passed);
        Ok(accounts)
    }

    fn once(&mut self, secs: f64) -> anyhow::Result<Accounts> {
        let Self { bed, ours, fleet } = self;
        let before = ours.stats()?;
        let window = bed.on_generator_core(|| fleet.run(&*ours, WARM_SECS, secs, 1))?;
        let now = ours.stats()?;
        let names = ["cycles_charged", "cycles_host", "cycles_idle", "cycles_stolen"];
        let worker = names.map(|name| of_worker(&[&now, &before], name));
        let [end, begin] = [&now, &before].map(|stats| stats["time_ns"].as_u64().unwrap_or(0));
        let passed = to_f64(end.saturating_sub(begin)) / 1e9 * bed.tsc_hz();
        Ok(Accounts { window, passed, worker, stats: [now, before] })
    }
}

/// Runs the live experiment about the accounts of C2QoS.
///
/// # Errors
///
/// Returns an error if the switch cannot be started, or if the machine has no AF_XDP.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let mut sitting = Sitting {
        secs: context.live.secs.unwrap_or(0.5),
        runs: context.live.runs.unwrap_or(7),
        totals: Totals::default(),
        repeated: 0,
        costs: Costs::default(),
    };
    context.progress(0.0, "kicks");
    let (kept, kicks) = kicks(&bed, &mut sitting)?;
    context.progress(0.3, "send calls");
    let calls = calls(&bed, &mut sitting)?;
    let mut lower = f64::INFINITY;
    for (at, egress) in [(0.6, "fair-share"), (0.8, "wfq")] {
        context.progress(at, egress);
        let kept = lower_class(&bed, egress, &mut sitting)?;
        outcome.note(&format!("kept_pct_{egress}_1"), kept);
        lower = lower.min(kept);
    }
    outcome.note("windows_repeated", sitting.repeated);
    let Costs { frame, kick, uplink_frame, refill } = sitting.costs;
    outcome.note(
        "cycles_each",
        json!({ "frame": frame, "kick": kick, "uplink_frame": uplink_frame, "refill": refill }),
    );
    sitting.totals.conclude(&mut outcome, &Found { kept, charged: [kicks, calls], lower }, &LIVE);
    Ok(outcome)
}

/// Runs the test of kicks, and returns two values. The first returned value is the victim's rate
/// beside the neighbour, in percent of its rate without the neighbour. The second returned value is
/// the ratio of the neighbour's charged cycles to the cycles that the neighbour caused.
fn kicks(bed: &Bed, sitting: &mut Sitting) -> anyhow::Result<(f64, f64)> {
    let bought = |policy, part| Bound { policy, cycles: part * bed.tsc_hz(), ..Bound::default() };
    let vms = vec![
        Vm::sender("victim", "s1", bought(Policy::Strict, VICTIM)),
        Vm::sender("neighbour", "s2", bought(Policy::Minmax, 0.2)),
        Vm::sender("polled", "s1", bought(Policy::Minmax, 0.2)),
        Vm::sink("s1"),
        Vm { interrupts: true, ..Vm::sink("s2") },
    ];
    let mut stage = Stage::start(bed, "kicks", &Plan::new("round-robin", vms))?;
    let flood = ("victim", offer(1_024, Rate::Max));
    let noise = ("neighbour", offer(64, Rate::Frames(SINGLE)));
    let (mut kept, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..sitting.runs {
        let without = stage.measure(core::slice::from_ref(&flood), sitting)?;
        let with = stage.measure(&[flood.clone(), noise.clone()], sitting)?;
        let pps = |of: &Accounts| of.window.sender("victim").map(|sent| sent.pps);
        kept.push(100.0 * pps(&with)? / pps(&without)?);
        ratios.push(charged_over_caused(&with, &without));
    }
    sitting.costs = costs(&mut stage, sitting)?;
    Ok((middle(&kept), middle(&ratios)))
}

/// Measures single frames to a driver that polls, and to a driver that waits for interrupts.
fn costs(stage: &mut Stage<'_>, sitting: &mut Sitting) -> anyhow::Result<Costs> {
    let (mut frames, mut kicks, mut refills) = (Vec::new(), Vec::new(), Vec::new());
    let single = || offer(64, Rate::Frames(SINGLE));
    for _ in 0..sitting.runs {
        let polled = stage.measure(&[("polled", single())], sitting)?;
        let kicked = stage.measure(&[("neighbour", single())], sitting)?;
        let frame = polled.cycles_per_frame("polled");
        frames.push(frame);
        let beside_frames =
            kicked.cycles("neighbour") - frame * kicked.grown("neighbour", "rx_frames");
        kicks.push(beside_frames / kicked.grown("s2", "tx_kicks"));
        let refilled = of_worker(&polled.stats.each_ref(), "refills");
        refills.push(polled.worker[1] / refilled);
    }
    let [frame, kick, refill] = [frames, kicks, refills].map(|all| middle(&all));
    Ok(Costs { frame, kick, refill, ..Costs::default() })
}

fn charged_over_caused(with: &Accounts, without: &Accounts) -> f64 {
    with.cycles("neighbour") / with.passed / (with.worked() - without.worked())
}

/// Returns the cycles charged to a VM that sends to an AF_XDP uplink, divided by the cycles that
/// the VM caused.
fn calls(bed: &Bed, sitting: &mut Sitting) -> anyhow::Result<f64> {
    let outside = through::uplink(bed, "bill")?;
    let vms = vec![Vm { name: "neighbour".to_owned(), ..Vm::default() }];
    let plan = Plan { all_to: Some(AllTo::Uplink(outside)), ..Plan::new("round-robin", vms) };
    let mut stage = Stage::start(bed, "calls", &plan)?;
    let (mut ratios, mut frames) = (Vec::new(), Vec::new());
    for _ in 0..sitting.runs {
        let without = stage.measure(&[], sitting)?;
        let with = stage.measure(&[("neighbour", offer(64, Rate::Frames(SINGLE)))], sitting)?;
        ratios.push(charged_over_caused(&with, &without));
        frames.push(with.cycles_per_frame("neighbour"));
    }
    sitting.costs.uplink_frame = middle(&frames);
    Ok(middle(&ratios))
}

/// Returns the cycles that a VM of class 8 spends, in percent of the cycles that it bought.
fn lower_class(bed: &Bed, egress: &str, sitting: &mut Sitting) -> anyhow::Result<f64> {
    let capacity = CORE_PART * bed.tsc_hz();
    let bought = |policy, part, priority| Bound {
        policy,
        cycles: part * capacity,
        weight: 1,
        priority,
        ..Bound::default()
    };
    let more = format!("egress = \"{egress}\"\nlink = \"100G\"\n");
    let vms = vec![
        Vm::sender("low", "up", bought(Policy::Strict, CLASSES[0], 8)),
        Vm::sender("high", "up", bought(Policy::Minmax, CLASSES[1], 1)),
        Vm { more, shared: true, ..Vm::sink("up") },
    ];
    let mut plan = Plan::new("hbs", vms);
    plan.worker = format!("capacity = {capacity:.0}\n");
    let mut stage = Stage::start(bed, egress, &plan)?;
    let mut kept = Vec::new();
    for _ in 0..sitting.runs {
        let offers = [("low", offer(256, Rate::Max)), ("high", offer(64, Rate::Max))];
        let accounts = stage.measure(&offers, sitting)?;
        kept.push(100.0 * accounts.cycles("low") / accounts.passed / (CLASSES[0] * CORE_PART));
    }
    Ok(middle(&kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(charged: f64, host: f64, neighbour: u64) -> Accounts {
        let window = Window {
            senders: Vec::new(),
            worker_wait: 0.0,
            generator_wait: 0.0,
            idle: 0.0,
            standstill: 0.0,
        };
        let stats = |cycles: u64| {
            let counters = json!({ "cycles": cycles });
            json!({ "ports": [{ "port": "neighbour", "counters": counters }] })
        };
        let worker = [charged, host, 990.0 - charged - host, 0.0];
        let stats = [stats(50 + neighbour), stats(50)];
        Accounts { window, passed: 1_000.0, worker, stats }
    }

    #[test]
    fn a_presence_costs_the_difference_between_windows_with_it_and_without() {
        let (with, without) = (accounts(500.0, 20.0, 100), accounts(405.0, 15.0, 0));
        assert!((charged_over_caused(&with, &without) - 1.0).abs() < 1e-9);
    }
}
