//! VMs that bought rates from this host's cost model, in live experiments.
//!
//! # Approach
//!
//! Each VM buys the same part of the core: frames that cost as many cycles by the model. A VM's
//! contract states frame sizes and the part of the frames that goes to an uplink. The VMs offer
//! more than they bought, so that their rates show what their contracts are worth. A contract's
//! `max_pps` is its `min_pps`, as if an operator sells exactly a rate: the VM gets no more when the
//! machine is faster than when the daemon learned. The daemon learns for [`LEARN`] before rates are
//! measured. The rate of a VM that sends to another VM is measured at the receiver. The rate of a
//! VM that sends to an uplink is the rate at which the switch takes frames from the VM's ring,
//! without the frames that the switch drops.
//!
//! If a hypervisor moves the processors of the machine, a frame costs several times as much at one
//! time as at another ([`penstock_guest::bed::distance`]). A case counts only if the cores were at
//! the distance of the calibration before and after the case, and if the hypervisor took less than
//! [`TAKEN_MOST_PCT`] of the cores during the case ([`Model::steadily`]). Other cases are repeated,
//! and the record says how many.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use penstock_control::config::load_model;
use penstock_qos::cost_model::{
    Action, CostModel, Deployment, Flows, Profile, RingKind, SizeMix, Work,
};
use serde_json::Value;

use super::machine;
use crate::evidence::Outcome;
use crate::penstock::penstock;
use crate::rig::fleet::{Offer, Size};
use crate::rig::plan::{AllTo, Bound, Plan, Vm};
use crate::rig::stats::to_f64;
use crate::rig::switch::count;
use crate::rig::{Rig, Span, through};
use penstock_guest::bed::Bed;
use penstock_guest::bed::distance::Kept;
use penstock_guest::load::Rate;

/// If the hypervisor moves or takes the machine's processors, cases are repeated for at most this
/// time.
const PATIENCE: Duration = Duration::from_secs(900);
/// Largest percentage of the cores' time that the hypervisor and the CPU limit may take in a case.
const TAKEN_MOST_PCT: f64 = 1.0;
/// Ingress policy of VMs that buy exactly a rate.
pub(super) const STRICT: &str = "cycles-strict";
/// Number of rules of a sender's port ([`Plan`]).
const RULES: u32 = 3;
/// Number of receiving VMs to which the VMs send in turn.
const SINKS: usize = 4;
/// Seconds in which the daemon learns before a window.
const LEARN: f64 = 5.0;
/// A sender's ring must have been full in this part of its turns or batches, or it offered too
/// little.
const FULL: f64 = 0.5;

/// Where the frames of all VMs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Vm,
    Uplink,
    /// Every second frame goes to an uplink, and the others to a VM.
    Half,
}

impl Size {
    /// Returns the sizes as a contract states them.
    fn sold(self) -> anyhow::Result<SizeMix> {
        Ok(match self {
            Self::Of(size) => SizeMix::fixed(size)?,
            Self::Pair(one, other) => SizeMix::new(vec![(one, 1), (other, 1)])?,
            Self::Imix => SizeMix::imix(),
        })
    }
}

impl Way {
    /// Returns the key `uplink` of the contracts.
    const fn percent(self) -> u32 {
        match self {
            Self::Vm => 0,
            Self::Uplink => 100,
            Self::Half => 50,
        }
    }
}

/// A cost model of this machine, and its file.
#[derive(Debug)]
pub(super) struct Model {
    pub file: PathBuf,
    pub costs: CostModel,
    /// The cores' distance at the calibration.
    kept: Option<Kept>,
    disturbed: Cell<Disturbed>,
}

/// Numbers of disturbed runs of cases.
#[derive(Debug, Clone, Copy, Default)]
struct Disturbed {
    /// Runs that were repeated because the cores moved.
    moved: u32,
    /// Runs that were repeated because the hypervisor or the CPU limit took the cores.
    taken: u32,
    /// Cases without an undisturbed run.
    every: u32,
}

impl Model {
    /// Runs a case while the cores are at the calibration's distance. Repeats the case if the cores
    /// moved, or if the hypervisor or the CPU limit took them.
    pub fn steadily<T>(
        &self,
        bed: &Bed,
        mut case: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let cores = [bed.generator_core(), bed.worker_core()];
        loop {
            if let Some(kept) = self.kept {
                kept.wait(cores)?;
            }
            let before = machine::Reading::take(&cores);
            let result = case()?;
            let machine = before.until(&machine::Reading::take(&cores));
            let Some(kept) = self.kept else { return Ok(result) };
            let moved = !kept.is(bed.core_distance_ns()?);
            let taken = machine.stolen_pct + machine.throttled_pct > TAKEN_MOST_PCT;
            if !moved && !taken {
                return Ok(result);
            }
            let (mut seen, again) = (self.disturbed.get(), kept.lasts());
            match (again, moved) {
                (false, _) => seen.every += 1,
                (true, true) => seen.moved += 1,
                (true, false) => seen.taken += 1,
            }
            self.disturbed.set(seen);
            if !again {
                return Ok(result);
            }
        }
    }

    /// Returns for which machine the cases wait, to be shown with the progress.
    pub fn waits_for(&self) -> String {
        self.kept.map_or_else(String::new, |kept| {
            format!("; counts while the cores are about {:.0} ns apart", kept.nanos())
        })
    }

    /// Adds how often cases were disturbed to the outcome.
    pub fn describe(&self, outcome: &mut Outcome) {
        let Disturbed { moved, taken, every } = self.disturbed.get();
        outcome.note("cases_repeated_because_cores_moved", moved);
        outcome.note("cases_repeated_because_cores_were_taken", taken);
        outcome.note("cases_with_disturbed_cores", every);
        let distance = self.costs.parts().about.core_distance_ns;
        outcome.note("core_distance_ns_of_the_model", distance);
    }
}

/// VMs that bought the same part of a core's cycles each.
#[derive(Debug)]
pub(super) struct Sale<'a> {
    pub model: &'a Model,
    /// Frame sizes that each VM declared and that it sends.
    pub sizes: Vec<[Size; 2]>,
    pub way: Way,
    /// Further lines of the worker's table.
    pub worker: &'a str,
    /// Part of the core's cycles that the VMs buy together.
    pub share: f64,
}

/// Measures a cost model of this machine for the live experiment.
///
/// # Errors
/// Returns an error if `penstock calibrate` fails.
pub(super) fn model(bed: &Bed, more: &[&str]) -> anyhow::Result<Model> {
    let file = bed.dir().join("model.toml");
    let to = file.display().to_string();
    // On a machine that is not steady, the claims miss, and the model says why.
    let words = ["--accept-disturbed", "--out", &to];
    calibrate(&words.iter().chain(more).copied().collect::<Vec<_>>())?;
    let costs = load_model(&file)?;
    let distance = costs.parts().about.core_distance_ns.map(f64::from);
    let kept = distance.map(|nanos| Kept::at(nanos, PATIENCE));
    Ok(Model { file, costs, kept, disturbed: Cell::default() })
}

/// Runs `penstock calibrate`. A model that does not hold is no error: the claims say so.
pub(super) fn calibrate(args: &[&str]) -> anyhow::Result<()> {
    let status = penstock()?.arg("calibrate").args(args).status().context("penstock calibrate")?;
    anyhow::ensure!(status.code().is_some_and(|code| code < 2), "penstock calibrate: {status}");
    Ok(())
}

pub(super) fn plan(model: &Path, vms: Vec<Vm>) -> Plan {
    let file = model.display();
    let worker = format!("\n[model]\nfile = \"{file}\"\nany_host = true\n");
    Plan { worker, ..Plan::new("hbs", vms) }
}

pub(super) fn name(vm: usize) -> String {
    format!("vm{vm}")
}

/// Returns a VM with a contract of `pps` frames per second: no less, and under [`STRICT`] no more.
pub(super) fn buyer(
    name: String,
    to: &str,
    policy: &str,
    (pps, size, uplink): (f64, Size, u32),
) -> Vm {
    let size = match size {
        Size::Of(size) => size.to_string(),
        Size::Pair(one, other) => format!("\"{one}:1+{other}:1\""),
        Size::Imix => "\"imix\"".to_owned(),
    };
    let most = if policy == STRICT { format!("max_pps = \"{pps:.0}\", ") } else { String::new() };
    let more = format!(
        "ingress_policy = \"{policy}\"\n\
         contract = {{ min_pps = \"{pps:.0}\", {most}size = {size}, uplink = {uplink} }}\n"
    );
    Vm { more, ..Vm::sender(name, to, Bound::default()) }
}

impl Sale<'_> {
    /// Returns the frames per second that each VM buys.
    fn purchases(&self) -> anyhow::Result<Vec<f64>> {
        let Model { costs, .. } = self.model;
        let hz = to_f64(costs.parts().about.tsc.hz());
        let vms = self.sizes.len();
        let at = Deployment { vms: u32::try_from(vms)?, cores: 1, numa_remote: false };
        let each = self.share * hz / to_f64(vms as u64);
        let permille = u16::try_from(10 * self.way.percent())?;
        let of = |[declared, _]: &[Size; 2]| {
            let out = Work { action: Action::ToXdp, permille };
            let actions = if permille > 0 { vec![out] } else { Vec::new() };
            let (sizes, rules) = (declared.sold()?, RULES);
            let (flows, ring) = (Flows::Single, RingKind::Split);
            let profile = Profile { sizes, flows, rules, ring, actions };
            Ok((each / costs.per_frame(&profile, at)).round())
        };
        self.sizes.iter().map(of).collect()
    }

    fn plan(&self, bed: &Bed, name_of: &str, purchases: &[f64]) -> anyhow::Result<Plan> {
        let uplink = self.way.percent();
        let sender = |(vm, ([declared, _], pps)): (usize, (&[Size; 2], &f64))| {
            let to = format!("s{}", vm % SINKS);
            buyer(name(vm), &to, STRICT, (*pps, *declared, uplink))
        };
        let senders = self.sizes.iter().zip(purchases).enumerate();
        let mut all: Vec<Vm> = senders.map(sender).collect();
        let outside = || through::uplink(bed, name_of);
        let all_to = match self.way {
            Way::Vm => None,
            Way::Uplink => Some(AllTo::Uplink(outside()?)),
            Way::Half => Some(AllTo::Half(outside()?)),
        };
        if self.way != Way::Uplink {
            let sinks = 0..SINKS.min(self.sizes.len());
            all.extend(sinks.map(|sink| Vm::sink(&format!("s{sink}"))));
        }
        let mut plan = Plan { all_to, ..plan(&self.model.file, all) };
        plan.worker.insert_str(0, self.worker);
        Ok(plan)
    }

    /// Returns the deviation of each VM's rate from its purchase, in per cent.
    ///
    /// # Errors
    /// Returns an error if the VMs offered less than they bought.
    pub fn deviations(&self, bed: &Bed, name_of: &str, secs: f64) -> anyhow::Result<Vec<f64>> {
        let purchases = self.purchases()?;
        let mut rig = Rig::ours(bed, name_of, &self.plan(bed, name_of, &purchases)?)?;
        let greedy = |size| Offer { size, flows: 1, rate: Rate::Max };
        let sends = self.sizes.iter().enumerate();
        let offers: Vec<_> = sends.map(|(vm, [_, sends])| (name(vm), greedy(*sends))).collect();
        let rates = self.model.steadily(bed, || {
            rig.awake(|rig| {
                rig.once(bed, &offers, Span { warm: LEARN, secs: 0.1, parts: 1 })?;
                match self.way {
                    Way::Vm => self.arrived(rig, bed, &offers, secs),
                    Way::Uplink | Way::Half => self.taken(rig, bed, &offers, secs),
                }
            })
        })?;
        // A paused daemon cannot exit.
        rig.switch.resume()?;
        let both = rates.into_iter().zip(purchases);
        Ok(both.map(|(pps, bought)| 100.0 * (pps / bought - 1.0)).collect())
    }

    fn arrived(
        &self,
        rig: &mut Rig,
        bed: &Bed,
        offers: &[(String, Offer)],
        secs: f64,
    ) -> anyhow::Result<Vec<f64>> {
        let window = rig.window(bed, offers, secs)?;
        let of = |vm| {
            let sender = window.sender(&name(vm))?;
            enough(&sender.name, sender.full)?;
            Ok(sender.pps)
        };
        (0..self.sizes.len()).map(of).collect()
    }

    fn taken(
        &self,
        rig: &mut Rig,
        bed: &Bed,
        offers: &[(String, Offer)],
        secs: f64,
    ) -> anyhow::Result<Vec<f64>> {
        let stats = |rig: &Rig| -> anyhow::Result<Value> {
            let stats = rig.switch.ask(&["stats", "--json"]).context("no Penstock")??;
            serde_json::from_str(&stats).context("reading the counters")
        };
        let before = stats(rig)?;
        let taken = rig.taken(bed, offers, secs)?;
        let after = stats(rig)?;
        let of = |vm: usize| {
            let name = name(vm);
            let grown =
                |counter| to_f64(count(&after, &name, counter) - count(&before, &name, counter));
            enough(&name, grown("rx_full") / grown("rx_batches"))?;
            let lost = dropped(&after, &name) - dropped(&before, &name);
            Ok(taken[vm] * (1.0 - to_f64(lost) / grown("rx_frames")))
        };
        (0..self.sizes.len()).map(of).collect()
    }
}

fn enough(name: &str, full: f64) -> anyhow::Result<()> {
    anyhow::ensure!(full >= FULL, "{name}: the load generator offered less than the contract");
    Ok(())
}

/// Returns the number of a port's frames that the switch dropped.
fn dropped(stats: &Value, port: &str) -> u64 {
    let ports = stats["ports"].as_array().into_iter().flatten();
    let of = ports.into_iter().find(|of| of["port"] == port);
    let drops = of.and_then(|of| of["drops"].as_object()).into_iter().flatten();
    drops.filter_map(|(_, count)| count.as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_buys_frames_of_its_size() {
        let vms = [(Size::Imix, 0), (Size::Of(64), 50), (Size::Pair(64, 960), 100)];
        let vms = vms
            .into_iter()
            .enumerate()
            .map(|(vm, (size, uplink))| buyer(name(vm), "s0", STRICT, (250_000.0, size, uplink)));
        let text = plan(Path::new("/m"), vms.chain([Vm::sink("s0")]).collect());
        let text = text.configuration(Path::new("/d"), (1, 0));
        for part in [
            "min_pps = \"250000\", max_pps = \"250000\", size = \"imix\", uplink = 0 }",
            "size = 64, uplink = 50 }",
            "size = \"64:1+960:1\", uplink = 100 }",
            "[model]\nfile = \"/m\"",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn the_dropped_frames_of_a_port_are_the_sum_of_all_reasons() {
        let stats = serde_json::json!({ "ports": [
            { "port": "a", "drops": { "one": 3, "other": 4 } }, { "port": "b", "drops": {} },
        ] });
        assert_eq!(["a", "b", "c"].map(|port| dropped(&stats, port)), [7, 0, 0]);
    }
}
