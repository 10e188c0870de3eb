//! What the ports of a host bought, in cycles, and whether the host has it.
//!
//! **Problem.** A contract names bits or packets; a worker meters cycles; and a guarantee is worth
//! something only if all of them together fit. **Source.** C2QoS §III-D, §IV; the arithmetic is
//! `penstock_qos`'s (`cost_model`, `admission`). **Rule.** A port's `cycles` wins over its
//! `contract`, by the model otherwise. Its frames are looked up in the rules that apply to it; a
//! tag is put in if an uplink carries its access VLAN. The VMs of the host are its tenants' ports,
//! the I/O cores its workers. What does not fit is refused as a whole, with the nearest that
//! would.
//!
//! `penstock host check` prints it, and the running host makes its entitlements by it.

mod depths;
mod text;
mod warn;

pub use warn::Warning;

use std::path::Path;
use std::sync::Arc;

use penstock_qos::admission::{self, Admission, Claim, WorkerSet};
use penstock_qos::c2tb::free_floor;
use penstock_qos::cost_model::{
    Action as Work, BatchPrice, Contract, CostModel, Deployment, Flows, Profile, Rate, RingKind,
    SizeMix,
};
use penstock_qos::latency_bound::Batches;
use penstock_qos::learner::Terms;
use penstock_units::{BitsPerSecond, CyclesPerSecond, PortId, QueueId, TscRate};

use crate::config::{self, Action, ConfigError, ConfigErrors, ContractRate, HostConfig, Port};
use crate::host::data_path::home;
use crate::snapshot::IdTable;

/// `cycles` and `contract` may differ by this part before it is told.
const DISAGREE: f64 = 0.1;
/// The counter may differ from the one the model was measured with by this part.
const TSC_DIFFERS: f64 = 0.01;

/// Where a port's cycles come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// It bought none.
    None,
    /// Its `cycles`.
    Cycles,
    /// Its `contract`, by the model.
    Contract,
}

impl Basis {
    /// In listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cycles => "cycles",
            Self::Contract => "contract",
        }
    }
}

/// A port's part of the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PortPlan {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: PortId,
    /// What it bought.
    pub contract: Option<Contract>,
    /// What its frames are taken to be.
    pub profile: Profile,
    /// Cycles per frame by the model, coefficients included.
    pub cost: Option<f64>,
    /// How far the measurements behind `cost` spread, as a part of it.
    pub uncertainty: f64,
    /// What it is entitled to.
    pub cycles: CyclesPerSecond,
    /// Why.
    pub basis: Basis,
    /// What it bought of the link.
    pub bandwidth: BitsPerSecond,
    /// The workers that have its queue pairs.
    pub workers: WorkerSet,
    /// `cycles` over what one worker has.
    pub share: f64,
    /// What a batch of its frames should cost.
    pub price: BatchPrice,
    /// What it is sure of under a policy that guarantees nothing, on all its workers together;
    /// beyond that it has a part by weight of what others leave. 0: nobody can keep it from its
    /// turn, or its policy guarantees `cycles`.
    pub floor: CyclesPerSecond,
    /// What its largest batches cost where it is of the worker's first class, and where it is not;
    /// `None` without a model.
    pub batches: Option<[Batches; 2]>,
}

impl PortPlan {
    /// What learning begins with; `None` for a port that claims nothing.
    #[must_use]
    pub fn terms(&self) -> Option<Terms> {
        let learns = self.basis == Basis::Contract;
        (self.basis != Basis::None).then(|| Terms {
            contract: self.contract.clone().filter(|_| learns),
            model_cost: self.cost.unwrap_or(0.0),
            base: self.cycles,
            workers: self.workers,
        })
    }
}

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapacityPlan {
    /// Every port, in the order of the configuration.
    pub ports: Vec<PortPlan>,
    /// What each worker has.
    pub capacity: Vec<CyclesPerSecond>,
    /// What the links of all uplinks carry together; `None` if none says so.
    pub link: Option<BitsPerSecond>,
    /// Both rules.
    pub admission: Admission,
    /// Why it is refused, in words; empty if it is not.
    pub refusals: Vec<ConfigError>,
    /// What deserves a look.
    pub warnings: Vec<Warning>,
}

impl CapacityPlan {
    /// What a port may have and costs, if it is known.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<&PortPlan> {
        self.ports.iter().find(|port| port.name == name)
    }
}

/// What a plan is made of.
#[derive(Clone, Copy, Debug)]
pub struct Planner<'a> {
    /// The configuration, checked.
    pub config: &'a HostConfig,
    /// The model that `[model] file` names.
    pub model: Option<&'a Arc<CostModel>>,
    /// The ports' numbers.
    pub ids: &'a IdTable,
    /// Workers that run, or are to run.
    pub workers: usize,
    /// This machine's counter.
    pub tsc: TscRate,
}

impl Planner<'_> {
    /// The plan; [`CapacityPlan::refusals`] says whether it may be carried out.
    #[must_use]
    pub fn plan(&self) -> CapacityPlan {
        let whole = CyclesPerSecond(self.tsc.hz());
        let each = self.config.worker.capacity.map_or(whole, |capacity| capacity.0);
        let capacity = vec![each.min(whole); self.workers.min(admission::WORKERS_MAX)];
        let mut plan = CapacityPlan { capacity, link: self.link(), ..CapacityPlan::default() };
        self.look_at_model(each, &mut plan);
        plan.warnings.extend(depths::warnings(self.config));
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
        plan.admission = admission::admit(&plan.capacity, plan.link, &claims);
        self.floors(&mut plan);
        self.look_at_turns(&mut plan);
        plan.refusals.extend(text::refusals(&plan, &sellers));
        plan
    }

    /// What ports are sure of that no policy guarantees anything, where classes come first and
    /// others bought cycles. The workers do the same sum for themselves.
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

    /// The uplinks that say what they carry, together.
    fn link(&self) -> Option<BitsPerSecond> {
        let links = self.config.ports.iter().filter_map(|port| port.link);
        links.map(|link| link.0).reduce(|a, b| BitsPerSecond(a.0.saturating_add(b.0)))
    }

    fn look_at_model(&self, each: CyclesPerSecond, plan: &mut CapacityPlan) {
        if each.0 > self.tsc.hz() {
            let text = format!(
                "[worker]: capacity {each} is more than the core's {} cycles per second, which is \
                 taken",
                self.tsc.hz()
            );
            plan.warn([], text);
        }
        let Some(model) = self.model else { return };
        let about = &model.parts().about;
        let (theirs, ours) = (to_f64(about.tsc.hz()), to_f64(self.tsc.hz()));
        if (theirs - ours).abs() > TSC_DIFFERS * ours {
            let text = format!(
                "[model]: it was measured on host {:?} with a counter of {:.2} GHz, this one has \
                 {:.2} GHz; run penstock calibrate here",
                about.host,
                theirs / 1e9,
                ours / 1e9
            );
            plan.warn([], text);
        }
    }

    fn deployment(&self) -> Deployment {
        let vms = self.config.ports.iter().filter(|port| port.tenant.is_some()).count();
        let number = |count: usize| u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        Deployment { vms: number(vms), cores: number(self.workers), numa_remote: false }
    }

    fn port(&self, port: &Port, each: CyclesPerSecond, plan: &mut CapacityPlan) -> PortPlan {
        let contract = port.contract.as_ref().map(contract_of);
        let mut profile = match &contract {
            Some(contract) => contract.profile(0, RingKind::Split),
            None => Profile::default(),
        };
        profile.rules = self.rules(port);
        profile.actions = self.work(port);
        let at = self.deployment();
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
        let id = PortId(self.ids.port(&port.name).unwrap_or_default());
        let queues = (0..port.attachment().map_or(1, |of| of.queues())).map(QueueId);
        let homes = queues.map(|queue| home(id, queue, port.worker, self.workers).index());
        let entry = PortPlan {
            name: port.name.clone(),
            id,
            cost,
            uncertainty: self.model.map_or(0.0, |model| model.uncertainty(&profile)),
            cycles,
            basis,
            bandwidth: contract.as_ref().map(Contract::bandwidth).unwrap_or_default(),
            workers: homes.collect(),
            share: to_f64(cycles.0) / to_f64(each.0.max(1)),
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

    /// Rules that its frames are looked up in.
    fn rules(&self, port: &Port) -> u32 {
        let applies = |rule: &&config::Rule| match (&rule.port, &rule.tenant) {
            (Some(name), _) => *name == port.name,
            (None, Some(tenant)) => port.tenant.as_ref() == Some(tenant),
            (None, None) => true,
        };
        let count = self.config.rules.iter().filter(applies).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// What is done to its frames on their way out of the host.
    fn work(&self, port: &Port) -> Vec<Work> {
        let mut work = Vec::new();
        let uplinks = || self.config.ports.iter().filter(|port| port.tenant.is_none());
        if let Some(vlan) = port.vlan {
            let carries = |uplink: &Port| uplink.trunk.as_ref().is_some_and(|t| t.contains(vlan));
            if uplinks().any(carries) {
                work.push(Work::VlanPush);
            }
        }
        let marks = |rule: &config::Rule| {
            let here = rule.port.as_ref().is_none_or(|name| *name == port.name);
            let ours = rule.tenant.is_none() || rule.tenant == port.tenant;
            here && ours && rule.actions.iter().any(|a| matches!(a, Action::SetDscp(_)))
        };
        if self.config.rules.iter().any(marks) {
            work.push(Work::Dscp);
        }
        work
    }
}

/// A configuration file, checked, with its plan on this machine.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: HostConfig,
    /// The model that it names.
    pub model: Option<Arc<CostModel>>,
    /// What the plan says, refusals included.
    pub plan: CapacityPlan,
}

impl Checked {
    /// Reads a configuration file and its model, and plans.
    ///
    /// # Errors
    /// All mistakes of the file that is read first and has any.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = config::read_file(path)?;
        let file = path.display().to_string();
        let config = config::parse_on(&text, &file, &config::Machine::here())?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let model = match &config.model.file {
            Some(file) => Some(Arc::new(config::load_model(&dir.join(file))?)),
            None => None,
        };
        let mut plan = Planner {
            config: &config,
            model: model.as_ref(),
            ids: &IdTable::default().next(&config),
            workers: config.worker.cores.len().max(1),
            tsc: penstock_dataplane::tsc::calibrate(),
        }
        .plan();
        warn::missing_here(&config, &mut plan);
        for outdated in config::outdated(&text) {
            plan.warn([], outdated);
        }
        Ok(Self { config, model, plan })
    }
}

/// Whether the port's policy guarantees cycles.
fn is_metered(port: &Port) -> bool {
    use config::IngressPolicy::{CyclesMinmax, CyclesStrict};
    matches!(port.ingress_policy, CyclesStrict | CyclesMinmax)
}

/// A contract in the model's words.
fn contract_of(contract: &config::Contract) -> Contract {
    Contract {
        rate: match contract.rate {
            ContractRate::Bits(rate) => Rate::Bits(rate),
            ContractRate::Packets(rate) => Rate::Packets(rate),
        },
        sizes: contract.size.as_ref().map_or_else(SizeMix::imix, |size| size.0.clone()),
        flows: match contract.flows {
            config::Flows::Single => Flows::Single,
            config::Flows::Multiple => Flows::Multiple,
        },
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates, compared and shown with three digits")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(crate) mod tests;
