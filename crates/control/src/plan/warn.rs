//! Finds reasons for warnings about a plan that fits.
//!
//! Each warning about a plan names the ports to which it applies. `host check` prints all warnings,
//! a change prints new warnings, and `explain` prints the warnings about its port.

use core::fmt;
use std::path::Path;

use penstock_qos::admission::WorkerSet;
use penstock_units::CyclesPerSecond;
use serde::{Serialize, Serializer};

use super::{Basis, CapacityPlan, Planner, PortPlan, is_metered, to_f64};
use crate::config::{self, HostConfig, Port, Priority, Schedule, SocketMode};

/// Cost of a frame in cycles that is assumed if the host has no cost model. Every measured cost of
/// a frame is higher than the assumed cost.
const FRAME_CYCLES_MIN: f64 = 100.0;
/// Number of frames in a full batch.
const BATCH: f64 = 32.0;
/// Number of full batches per second that a port's cycles should allow at least.
const BATCHES_MIN: f64 = 10.0;

/// Limit on the number of ports that a warning names.
const NAMED_MAX: usize = 4;

/// A warning about a plan, with its remedy and the ports to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Names of the ports to which the warning applies; empty if the warning concerns no port.
    pub ports: Vec<String>,
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Warning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl CapacityPlan {
    /// Adds a warning about the given ports.
    pub(super) fn warn<'a>(&mut self, ports: impl IntoIterator<Item = &'a str>, text: String) {
        let ports = ports.into_iter().map(str::to_owned).collect();
        self.warnings.push(Warning { ports, text });
    }

    /// Returns the warnings about one port.
    pub fn warnings_of<'a>(&'a self, port: &'a str) -> impl Iterator<Item = &'a Warning> {
        self.warnings.iter().filter(move |warning| warning.ports.iter().any(|name| name == port))
    }
}

impl Planner<'_> {
    /// Warns about priorities without effect, and about ports without a limit on their cycles.
    pub(super) fn look_at_turns(&self, plan: &mut CapacityPlan) {
        match self.config.worker.schedule {
            Schedule::RoundRobin => self.ignored_classes(plan),
            Schedule::Hbs => self.unsold_before_sold(plan),
        }
        self.uncounted(plan);
    }

    fn ignored_classes(&self, plan: &mut CapacityPlan) {
        let asks = |port: &&Port| port.priority != Priority::default();
        for port in self.config.ports.iter().filter(asks) {
            let text = format!(
                "port {}: `priority` {} has no effect, as `schedule` in [worker] is round-robin; \
                 set schedule = \"hbs\", or remove `priority`",
                port.name,
                port.priority.0.get()
            );
            plan.warn([port.name.as_str()], text);
        }
    }

    /// Warns about ports without a limit on their cycles that are served before ports that
    /// purchased cycles.
    fn unsold_before_sold(&self, plan: &mut CapacityPlan) {
        let (ports, buyers) = (self.with_workers(plan), self.buyers(plan));
        for (port, own) in ports.into_iter().filter(|(port, _)| !is_metered(port)) {
            let behind = beside(own, &buyers).filter(|buyer| buyer.priority.0 > port.priority.0);
            let Some(last) = behind.max_by_key(|buyer| buyer.priority.0) else { continue };
            let text = format!(
                "port {}: no policy limits its cycles, and its class {} is served before class {} \
                 of port {}, which purchased cycles; set its `ingress_policy` and `cycles`, or \
                 `priority` = {}",
                port.name,
                port.priority.0.get(),
                last.priority.0.get(),
                last.name,
                last.priority.0.get()
            );
            plan.warn([port.name.as_str(), last.name.as_str()], text);
        }
    }

    /// Warns about ports without a limit on their cycles that share a worker with ports that
    /// purchased cycles. The plan does not count the cycles of a port without a limit.
    fn uncounted(&self, plan: &mut CapacityPlan) {
        let by_class = self.config.worker.schedule == Schedule::Hbs;
        let buyers = self.buyers(plan);
        let takes = |(port, own): &(&Port, WorkerSet)| {
            match beside(*own, &buyers).map(|buyer| buyer.priority.0).max() {
                // A port in a later class gets only spare cycles and a small floor.
                Some(last) => !is_metered(port) && (!by_class || last == port.priority.0),
                None => false,
            }
        };
        let ports = self.with_workers(plan).into_iter().filter(takes);
        let all: Vec<&str> = ports.map(|(port, _)| port.name.as_str()).collect();
        let listed = match all.as_slice() {
            [] => return,
            [one] => format!("port {one}"),
            some if some.len() <= NAMED_MAX => format!("ports {}", some.join(", ")),
            some => {
                let named = some[..NAMED_MAX].join(", ");
                format!("ports {named} and {} more", some.len() - NAMED_MAX)
            }
        };
        let text = format!(
            "{listed}: without a policy, these ports may take cycles that other ports of the \
             worker purchased; set `ingress_policy` and `cycles`, or with schedule = \"hbs\" a \
             later `priority`"
        );
        plan.warn(all, text);
    }

    /// Returns all ports, each with the workers that own its queue pairs.
    fn with_workers(&self, plan: &CapacityPlan) -> Vec<(&Port, WorkerSet)> {
        // The plan has the ports in the order of the configuration.
        self.config.ports.iter().zip(plan.ports.iter().map(|entry| entry.workers)).collect()
    }

    /// Returns the ports with a policy that purchased cycles, each with its workers.
    fn buyers(&self, plan: &CapacityPlan) -> Vec<(&Port, WorkerSet)> {
        let all = self.config.ports.iter().zip(&plan.ports);
        let buys =
            |(port, entry): &(&Port, &PortPlan)| is_metered(port) && entry.basis != Basis::None;
        all.filter(buys).map(|(port, entry)| (port, entry.workers)).collect()
    }
}

/// Returns the ports of `buyers` that share a worker with `own`.
fn beside<'a>(own: WorkerSet, buyers: &[(&'a Port, WorkerSet)]) -> impl Iterator<Item = &'a Port> {
    buyers.iter().filter(move |(_, workers)| shares(*workers, own)).map(|(port, _)| *port)
}

fn shares(some: WorkerSet, others: WorkerSet) -> bool {
    some.iter().any(|worker| others.contains(WorkerSet::one(worker)))
}

/// Warns about a port with a policy that guarantees cycles, if the port purchased no cycles or too
/// few.
pub(super) fn too_few(port: &Port, entry: &PortPlan, plan: &mut CapacityPlan) {
    if !is_metered(port) {
        return;
    }
    let name = port.name.as_str();
    if entry.basis == Basis::None {
        if entry.contract.is_none() {
            let what = match port.ingress_policy {
                config::IngressPolicy::CyclesStrict => "the port can send nothing",
                _ => "the port gets only its `cycle_weight` of spare cycles",
            };
            let policy = port.ingress_policy;
            let text =
                format!("port {name}: policy {policy} without `cycles`: {what}; write `cycles`");
            plan.warn([name], text);
        }
        return;
    }
    let batch = BATCH * entry.cost.unwrap_or(FRAME_CYCLES_MIN).max(FRAME_CYCLES_MIN);
    let a_second = to_f64(entry.cycles.0) / batch;
    if a_second < BATCHES_MIN {
        let text = format!(
            "port {name}: `cycles` {} per second is too little: a full batch costs about {}, so \
             the next batch waits {:.1} s; write `cycles` with a suffix, as in \"200M\"",
            entry.cycles,
            CyclesPerSecond(rounded(batch)),
            1.0 / a_second.max(1e-6)
        );
        plan.warn([name], text);
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a batch's cycles")]
fn rounded(cycles: f64) -> u64 {
    cycles.round() as u64
}

/// Warns about accounts and directories that this machine does not have. The daemon can attach a
/// port only after its accounts and directories exist.
pub(super) fn missing_here(config: &HostConfig, plan: &mut CapacityPlan) {
    for port in &config.ports {
        let Some(config::Attachment::VhostUser(vhost)) = port.attachment() else { continue };
        if vhost.mode != SocketMode::Server {
            continue;
        }
        let name = port.name.as_str();
        let accounts = [
            ("socket_owner", vhost.socket_owner, "/etc/passwd"),
            ("socket_group", vhost.socket_group, "/etc/group"),
        ];
        for (key, account, file) in accounts {
            let Some(wanted) = account else { continue };
            if config::account(&wanted, Path::new(file)).is_none() {
                let text = format!(
                    "port {name}: `{key}` {wanted:?} is not in {file} of this machine; write \
                     another name, or the numeric ID"
                );
                plan.warn([name], text);
            }
        }
        // The daemon creates the directory of its own socket.
        let dir = vhost.socket.parent().filter(|dir| Some(*dir) != config.host.socket.parent());
        if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
            let text = format!(
                "port {name}: directory {} of its socket does not exist; run `mkdir -p {}`",
                dir.display(),
                dir.display()
            );
            plan.warn([name], text);
        }
    }
}
