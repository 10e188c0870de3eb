//! Plans the cycles that the ports of a host purchased, and checks that the host has these cycles.
//!
//! # Problem
//! A contract names bits or packets, but a worker meters cycles. A host keeps all guarantees only
//! if their sum does not exceed its cycles.
//!
//! # Source
//! The method of the plan is from C2QoS §III-D and §IV. The modules `cost_model` and `admission` of
//! `penstock_qos` compute the costs and the admission of the plan.
//!
//! # Approach
//! - The cost model converts a port's `contract` to cycles. If the port has the key `cycles`, the
//!   value of `cycles` is used instead of the converted contract.
//! - The cost of a frame includes the classification by the rules that apply to the port. The cost
//!   of a frame also includes adding a VLAN tag if an uplink carries the port's access VLAN.
//! - Each tenant's port counts as a VM of the cost model, and each worker counts as an I/O core.
//! - If the purchases exceed the host's cycles or link, the plan is refused as a whole. The error
//!   of a refused plan names the nearest plan that would fit.
//!
//! The command `penstock host check` prints the plan, and the running host derives its entitlements
//! from the plan.

mod depths;
mod mirrors;
mod origin;
pub(crate) mod text;
mod warn;
mod ways;
mod without_effect;

pub(crate) use depths::shallow_depth;
pub(crate) use origin::Origin;
pub use warn::Warning;

use std::path::Path;
use std::sync::Arc;

use penstock_qos::admission::{self, Admission, Claim, WorkerSet};
use penstock_qos::c2tb::free_floor;
use penstock_qos::cost_model::{
    Action as Work, BatchPrice, Contract, CostModel, Deployment, Profile, Work as Part,
};
use penstock_qos::latency_bound::Batches;
use penstock_qos::learner::Terms;
use penstock_units::{BitsPerSecond, CyclesPerSecond, PortId, QueueId, TscRate, WorkerId};

use crate::config::{self, Action, ConfigError, ConfigErrors, HostConfig, Port};
use crate::host::data_path::home;
use crate::snapshot::IdTable;

/// Fraction by which `cycles` may differ from the cycles of `contract` before the plan warns.
const DISAGREE: f64 = 0.1;
/// Relative difference between the rates of this machine's time-stamp counter and the cost model's,
/// at which the plan warns.
const TSC_DIFFERS: f64 = 0.01;

/// Part of a core, in thousandths, that the host keeps for its own work: refills, ageing and
/// control requests. No port can purchase it.
const HOST_PERMILLE: u64 = 10;

/// Source of the number of cycles that a port purchased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The port has no purchased cycles.
    None,
    /// The port's `cycles`.
    Cycles,
    /// The cost model computed the port's cycles from `contract`.
    Contract,
}

impl Basis {
    /// Name in listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cycles => "cycles",
            Self::Contract => "contract",
        }
    }
}

/// Plan for one port: its purchased cycles, its claim and its costs.
#[derive(Clone, Debug, PartialEq)]
pub struct PortPlan {
    pub name: String,
    pub id: PortId,
    /// The port's contract, converted to the type that the cost model uses.
    pub contract: Option<Contract>,
    /// Traffic that the port's contract declares.
    pub profile: Profile,
    /// Cost of a frame by the cost model, in cycles. The cost in `cost` includes the cost model's
    /// factors for the numbers of VMs and workers. `None` means that the host has no cost model.
    pub cost: Option<f64>,
    /// Uncertainty of `cost` as a fraction of `cost`, from the spread of the model's measurements.
    pub uncertainty: f64,
    /// Cycles per second to which the port is entitled.
    pub cycles: CyclesPerSecond,
    /// Source of `cycles`.
    pub basis: Basis,
    /// Bandwidth on the host's link that the port's purchased rate takes, in bits per second with
    /// Ethernet's overhead for each frame.
    pub bandwidth: BitsPerSecond,
    /// Workers that own the port's queue pairs.
    pub workers: WorkerSet,
    /// The port's purchased cycles as a fraction of one worker's capacity.
    pub share: f64,
    /// Whether the port's contract has a limit that is its guaranteed rate.
    pub capped: bool,
    /// Expected cost of a batch of the port's frames, as a function of the batch's frames and
    /// bytes.
    pub price: BatchPrice,
    /// Guaranteed minimum of cycles per second for a port without metered cycles, on all its
    /// workers together. A port with a guaranteed minimum (floor) also gets a weighted share of
    /// spare cycles. The guaranteed minimum (floor) of a port is 0 in each of these cases:
    /// - The ingress policy of the port guarantees the port's purchased cycles.
    /// - The key `schedule` of `[worker]` is `round-robin`.
    /// - None of the ports on the port's workers purchased cycles.
    pub floor: CyclesPerSecond,
    /// Cost of the largest batches of frames that a worker takes from the port. The first value is
    /// the cost of a batch on a worker that serves no port of an earlier latency class. The second
    /// value is the cost of a batch on a worker that serves ports of earlier classes, which
    /// shortens batches of later classes. `None` means that the host has no cost model.
    pub batches: Option<[Batches; 2]>,
}

impl PortPlan {
    /// Returns the initial values for the learner, which corrects the port's cycles while the host
    /// runs. Returns `None` if the port purchased no cycles.
    #[must_use]
    pub fn terms(&self) -> Option<Terms> {
        let learns = self.basis == Basis::Contract;
        (self.basis != Basis::None).then(|| Terms {
            contract: self.contract.clone().filter(|_| learns),
            capped: self.capped,
            model_cost: self.cost.unwrap_or(0.0),
            base: self.cycles,
            workers: self.workers,
        })
    }
}

/// Plan for the cycles of the workers and for the bandwidth of the link, under a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapacityPlan {
    /// Plans of the ports, in the order of the configuration.
    pub ports: Vec<PortPlan>,
    /// Capacity of each worker in cycles per second.
    pub capacity: Vec<CyclesPerSecond>,
    /// Part of each worker's capacity that ports can purchase. The rest is for the host's own work
    /// and for the guaranteed minimum (floor) of ports without metered cycles.
    pub sellable: Vec<CyclesPerSecond>,
    /// Sum of the rates of all uplinks in bits per second; `None` if no uplink has a `link`.
    pub link: Option<BitsPerSecond>,
    /// Result of admission control: whether the host's cycles and link suffice for all purchases.
    pub admission: Admission,
    /// Reasons why the plan is refused; empty if the plan fits.
    pub refusals: Vec<ConfigError>,
    /// Reasons why the cost model does not suffice for the contracts. A new plan is refused for
    /// them ([`Self::strict`]). A daemon that starts keeps its configuration, and warns.
    pub(crate) doubts: Vec<ConfigError>,
    /// Warnings about a plan that fits the host.
    pub warnings: Vec<Warning>,
}

impl CapacityPlan {
    /// Returns the bandwidth on the link that all ports purchased, in bits per second.
    #[must_use]
    pub fn sold_bandwidth(&self) -> BitsPerSecond {
        let buyers = self.ports.iter().filter(|port| port.basis != Basis::None);
        let sold = buyers.map(|port| port.bandwidth.0);
        BitsPerSecond(sold.fold(0, u64::saturating_add))
    }

    /// Returns the plan with all doubts about the cost model as refusals.
    #[must_use]
    pub(crate) fn strict(mut self) -> Self {
        self.refusals.append(&mut self.doubts);
        self
    }

    /// Returns the plan of a port; `None` if the port does not exist.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<&PortPlan> {
        self.ports.iter().find(|port| port.name == name)
    }
}

/// Input of the capacity plan: the configuration, the machine and the cost model.
#[derive(Clone, Copy, Debug)]
pub struct Planner<'a> {
    /// The checked configuration.
    pub config: &'a HostConfig,
    /// The cost model that `file` of `[model]` names.
    pub model: Option<&'a Arc<CostModel>>,
    /// Table of the ports' numbers.
    pub ids: &'a IdTable,
    pub workers: usize,
    /// The machine on which the cost model should have been measured.
    pub(crate) origin: &'a Origin,
    /// Rate of this machine's time-stamp counter.
    pub tsc: TscRate,
}

impl Planner<'_> {
    /// Computes the plan. The caller must not carry out a plan that has [`CapacityPlan::refusals`].
    #[must_use]
    pub fn plan(&self) -> CapacityPlan {
        let whole = CyclesPerSecond(self.tsc.hz());
        let each = self.config.worker.capacity.map_or(whole, |capacity| capacity.0);
        let capacity = vec![each.min(whole); self.workers.min(admission::WORKERS_MAX)];
        let mut plan = CapacityPlan { capacity, link: self.link(), ..CapacityPlan::default() };
        self.look_at_model(each, &mut plan);
        plan.warnings.extend(depths::warnings(self.config));
        plan.warnings.extend(mirrors::warnings(self.config));
        plan.warnings.extend(without_effect::warnings(self.config));
        for port in &self.config.ports {
            let entry = self.port(port, each, &mut plan);
            plan.ports.push(entry);
        }
        let sellers: Vec<usize> =
            (0..plan.ports.len()).filter(|at| plan.ports[*at].basis != Basis::None).collect();
        let claims: Vec<Claim> = (sellers.iter().map(|at| &plan.ports[*at]))
            .map(|port| Claim {
                cycles: port.cycles,
                bandwidth: port.bandwidth,
                workers: port.workers,
            })
            .collect();
        plan.sellable = self.sellable(&plan);
        plan.admission = admission::admit(&plan.sellable, plan.link, &claims);
        self.floors(&mut plan);
        self.look_at_turns(&mut plan);
        plan.refusals.extend(text::refusals(&plan, &sellers));
        let foreign = self.model.and_then(|model| self.origin.mistake(self.config, model));
        plan.doubts.extend(foreign);
        plan
    }

    /// Computes [`CapacityPlan::sellable`].
    fn sellable(&self, plan: &CapacityPlan) -> Vec<CyclesPerSecond> {
        let by_class = self.config.worker.schedule == config::Schedule::Hbs;
        let core = self.tsc.hz();
        let host = core / 1_000 * HOST_PERMILLE;
        let of = |(worker, capacity): (usize, &CyclesPerSecond)| {
            let here = |port: &&PortPlan| port.workers.contains(WorkerSet::one(worker));
            let free = |port: &PortPlan| {
                let ports = &self.config.ports;
                ports.iter().any(|other| other.name == port.name && !is_metered(other))
            };
            let has_free = by_class && plan.ports.iter().filter(here).any(free);
            let floors = if has_free { free_floor(*capacity, *capacity, 1).0 } else { 0 };
            CyclesPerSecond(capacity.0.min(core - host).saturating_sub(floors))
        };
        plan.capacity.iter().enumerate().map(of).collect()
    }

    /// Computes the guaranteed minimum [`PortPlan::floor`] of all ports without metered cycles,
    /// under the schedule `hbs`. A worker contributes to the guaranteed minimum only if a metered
    /// port uses this worker. A running worker computes the same guaranteed minimum for its ports.
    fn floors(&self, plan: &mut CapacityPlan) {
        if self.config.worker.schedule != config::Schedule::Hbs {
            return;
        }
        let metered: Vec<bool> = self.config.ports.iter().map(is_metered).collect();
        for (worker, capacity) in plan.capacity.iter().enumerate() {
            let here = |port: &PortPlan| port.workers.contains(WorkerSet::one(worker));
            let ports = || plan.ports.iter().zip(&metered).filter(|(port, _)| here(port));
            let bought = ports().filter(|(_, metered)| **metered);
            let parts = bought.map(|(port, _)| port.cycles.0 / port.workers.len() as u64);
            let Some(sold) = parts.reduce(u64::saturating_add) else { continue };
            let free = ports().filter(|(_, metered)| !**metered).count();
            let floor = free_floor(*capacity, CyclesPerSecond(sold), free);
            for (port, _) in plan.ports.iter_mut().zip(&metered).filter(|(_, metered)| !**metered) {
                if port.workers.contains(WorkerSet::one(worker)) {
                    port.floor = CyclesPerSecond(port.floor.0.saturating_add(floor.0));
                }
            }
        }
    }

    /// Returns the sum of the rates of all uplinks with a `link`, in bits per second.
    fn link(&self) -> Option<BitsPerSecond> {
        let uplinks = self.config.ports.iter().filter(|port| port.tenant.is_none());
        let links = uplinks.filter_map(|port| port.link);
        links.map(|link| link.0).reduce(|a, b| BitsPerSecond(a.0.saturating_add(b.0)))
    }

    fn look_at_model(&self, each: CyclesPerSecond, plan: &mut CapacityPlan) {
        if each.0 > self.tsc.hz() {
            let text = format!(
                "[worker]: capacity {each} is more than the core's {} cycles per second; the \
                 core's cycles are used",
                self.tsc.hz()
            );
            plan.warn([], text);
        }
        let Some(model) = self.model else { return };
        let sold = self.config.ports.iter().any(|port| port.contract.is_some());
        let wrong = model.parts().verified.as_ref().filter(|verified| sold && !verified.holds());
        if let Some(verified) = wrong {
            plan.warn([], format!("[model]: {verified}; run penstock calibrate --verify again"));
        }
        let about = &model.parts().about;
        let (theirs, ours) = (to_f64(about.tsc.hz()), to_f64(self.tsc.hz()));
        if (theirs - ours).abs() > TSC_DIFFERS * ours {
            let text = format!(
                "[model]: measured on host {:?} with a counter of {:.2} GHz, this host has \
                 {:.2} GHz; run penstock calibrate here",
                about.host,
                theirs / 1e9,
                ours / 1e9
            );
            plan.warn([], text);
        }
    }

    fn deployment(&self, port: &Port, homes: &[WorkerId]) -> Deployment {
        let vms = self.config.ports.iter().filter(|port| port.tenant.is_some()).count();
        let number = |count: usize| u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let numa_remote = self.origin.is_remote(self.config, port, homes);
        Deployment { vms: number(vms), cores: number(self.workers), numa_remote }
    }

    fn port(&self, port: &Port, each: CyclesPerSecond, plan: &mut CapacityPlan) -> PortPlan {
        let contract = port.contract.as_ref().map(config::Contract::terms);
        let mut profile = match (&contract, &port.contract) {
            (Some(contract), Some(key)) => contract.profile(0, key.ring.into()),
            _ => Profile::default(),
        };
        profile.rules = self.rules(port);
        profile.actions = self.work(port, &profile);
        let id = PortId(self.ids.port(&port.name).unwrap_or_default());
        let queues = (0..port.attachment().map_or(1, |of| of.queues())).map(QueueId);
        let homes = queues.map(|queue| home(id, queue, port.worker, self.workers));
        let homes: Vec<WorkerId> = homes.collect();
        let at = self.deployment(port, &homes);
        plan.doubts.extend(self.origin.no_node(port));
        let cost = self.model.map(|model| model.per_frame(&profile, at));
        let modelled = self.model.zip(contract.as_ref());
        let modelled = modelled.map(|(model, contract)| model.entitlement(contract, &profile, at));
        let (cycles, basis) = match (port.cycles, modelled) {
            (Some(cycles), _) => (cycles.0, Basis::Cycles),
            (None, Some(cycles)) => (cycles, Basis::Contract),
            (None, None) => (CyclesPerSecond::default(), Basis::None),
        };
        text::compare(port, cycles, modelled, DISAGREE, plan);
        text::unenforced(port, basis, plan);
        if contract.is_some() && basis == Basis::None && is_metered(port) {
            plan.refusals.push(text::no_model(port));
        }
        let unknown = self.model.filter(|_| basis == Basis::Contract);
        let unknown = unknown.and_then(|model| model.lacks(&profile));
        plan.doubts.extend(unknown.map(|action| text::no_cost(port, action)));
        let entry = PortPlan {
            name: port.name.clone(),
            id,
            cost,
            uncertainty: self.model.map_or(0.0, |model| model.uncertainty(&profile)),
            cycles,
            basis,
            bandwidth: contract.as_ref().map(Contract::on_link).unwrap_or_default(),
            workers: homes.iter().map(|worker| worker.index()).collect(),
            share: to_f64(cycles.0) / to_f64(each.0.max(1)),
            capped: port.contract.as_ref().is_some_and(config::Contract::is_capped),
            price: self.model.map(|model| model.price(&profile, at)).unwrap_or_default(),
            floor: CyclesPerSecond::default(),
            batches: self.model.map(|model| {
                let of = |whole| Batches::modelled(model, (&profile, at), self.tsc, whole);
                [of(true), of(false)]
            }),
            contract,
            profile,
        };
        warn::too_few(port, &entry, plan);
        entry
    }

    /// Returns the number of rules that apply to the port's frames.
    fn rules(&self, port: &Port) -> u32 {
        let applies = |rule: &&config::Rule| match (&rule.port, &rule.tenant) {
            (Some(name), _) => *name == port.name,
            (None, Some(tenant)) => port.tenant.as_ref() == Some(tenant),
            (None, None) => true,
        };
        let count = self.config.rules.iter().filter(applies).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the actions of the switch on the port's frames that cost extra cycles: the ways of
    /// the frames, adding a VLAN tag, and setting a code point.
    fn work(&self, port: &Port, sizes: &Profile) -> Vec<Part> {
        let (mut work, out) = self.ways(port, sizes);
        let uplinks = || self.config.ports.iter().filter(|port| port.tenant.is_none());
        if let Some(vlan) = port.vlan {
            let carries = |uplink: &Port| uplink.trunk.as_ref().is_some_and(|t| t.contains(vlan));
            if uplinks().any(carries) {
                work.extend((out > 0).then_some(Part { action: Work::VlanPush, permille: out }));
            }
        }
        let marks = |rule: &config::Rule| {
            let here = rule.port.as_ref().is_none_or(|name| *name == port.name);
            let ours = rule.tenant.is_none() || rule.tenant == port.tenant;
            here && ours && rule.actions.iter().any(|a| matches!(a, Action::SetDscp(_)))
        };
        if self.config.rules.iter().any(marks) {
            work.push(Work::Dscp.into());
        }
        work
    }
}

/// A checked configuration file with its plan on this machine.
#[derive(Clone, Debug)]
pub struct Checked {
    pub config: HostConfig,
    /// The cost model that `file` of `[model]` names; `None` without this key.
    pub model: Option<Arc<CostModel>>,
    /// Capacity plan of the configuration, which may contain refusals.
    pub plan: CapacityPlan,
    /// Rate of this machine's time-stamp counter.
    pub(crate) tsc: TscRate,
    pub(crate) origin: Origin,
}

impl Checked {
    /// Reads a configuration file and its cost model, and computes the plan.
    ///
    /// # Errors
    /// Returns all mistakes of the configuration file, or of the cost model's file if only this
    /// file has mistakes.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = config::read_file(path)?;
        let file = path.display().to_string();
        let config = config::parse_on(&text, &file, &config::Machine::here())?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let model = match &config.model.file {
            Some(file) => Some(Arc::new(config::load_model(&dir.join(file))?)),
            None => None,
        };
        let (tsc, origin) = (penstock_dataplane::tsc::calibrate(), Origin::here());
        let mut plan = Planner {
            config: &config,
            model: model.as_ref(),
            ids: &IdTable::default().next(&config),
            workers: config.worker.cores.len().max(1),
            origin: &origin,
            tsc,
        }
        .plan()
        .strict();
        warn::missing_here(&config, &mut plan);
        for outdated in config::outdated(&text) {
            plan.warn([], outdated);
        }
        Ok(Self { config, model, plan, tsc, origin })
    }
}

pub(crate) fn is_metered(port: &Port) -> bool {
    use config::IngressPolicy::{CyclesMinmax, CyclesStrict};
    matches!(port.ingress_policy, CyclesStrict | CyclesMinmax)
}

#[expect(clippy::cast_precision_loss, reason = "rates are compared and shown with three digits")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(crate) mod tests;
