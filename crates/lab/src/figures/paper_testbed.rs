//! Simulates the testbed of the C2QoS paper, with its VMs, their purchases, and the policies.
//!
//! # Problem
//!
//! The paper's figures share one testbed: a host and a second server. On the host, OVS-DPDK has one
//! core of 2.2 GHz and an uplink of 10 Gbit/s.
//!
//! # Source
//!
//! The sources are C2QoS §II-B (platform), and §III-D and §IV (sale of cycles).
//!
//! # Approach
//!
//! The simulated core has the costs of [`super::paper_platform`], with noise. The seller of cycles
//! has a separate [`CostModel`], which imitates measurements of the simulated core. Each cost and
//! each factor (VMs, I/O cores, memory on another node) has its own random error of up to
//! ±[`MODEL_ERROR`]. `penstock calibrate` measures the cost factor of a host with 1, 2, 4, 8 or 16
//! VMs (`MEASURED_VMS`). For other numbers of VMs, the seller interpolates the cost factor
//! linearly. The errors of the seller's costs and factors multiply, so an entitlement may be wrong
//! by a third.
//!
//! The daemon's [`Learner`] corrects the errors of the cost model. The learner reads the counters
//! of each port every [`LEARN_EVERY`], as on a real host. Figures begin after a warm-up of
//! [`WARM_UP`], in which the VMs send the traffic of the first phase. A warm-up has some tens of
//! learning steps. The first learning step changes a VM's entitlement most.
//!
//! # Sold out
//!
//! An operator does not sell more cycles than the core has (§IV). Because of the model's errors,
//! the entitlements of a core may exceed the core's cycles. If the entitlements exceed the core's
//! cycles, the seller reduces all entitlements of the core in proportion.
//!
//! # Noise
//!
//! The cost of each batch has an error of up to ±[`BATCH_NOISE`] (triangular distribution with a
//! mean of zero). The paper prints only mean costs, and nothing about noise.
//!
//! # Departures
//!
//! - The paper's VMs poll, so there are no kicks and send calls. The number of cycles for a refill
//!   of the cycle buckets is an assumption ([`OVERHEADS`]). The published costs were measured on a
//!   switch that polls its ports, so the published costs include the check of empty ports. The
//!   simulation adds no further cost for the check of an empty port.
//! - All simulated traffic is UDP. If TCP would change a sender's behaviour, the module text of the
//!   figure says so.
//! - A rate limit (`bps`) counts frames with their FCS. The paper's sizes also include the FCS.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use penstock_control::host::observed;
use penstock_dataplane::counters::PortReading;
use penstock_dataplane::ingress_policer::{IngressPolicer, LinkLimit};
use penstock_dataplane::schedule::{Readiness, ScheduleKind};
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_dataplane::worker::bucket_terms;
use penstock_qos::admission::WorkerSet;
use penstock_qos::c2tb::Spare;
use penstock_qos::cost_model::{
    About, Action, ActionTerm, BatchTerm, Cell, CellKey, Coefficient, Contract, CostModel,
    Deployment, Flows, Parts, Profile, Rate, RingKind, SizeMix, Source, Spread, Work,
};
use penstock_qos::latency_bound::{Batches, Bound, Core, Member, Surplus, of_class};
use penstock_qos::learner::{LearnConfig, Learner, Terms};
use penstock_qos::policer::{Limit, Policer, Spec};
use penstock_sim::Rng;
use penstock_sim::testbed::{Link, Setup, Testbed, Timed, VmId, VmReading};
use penstock_sim::{Costs, Notice, Overheads, SnapshotCost, StageCost};
use penstock_units::{
    BitsPerSecond, Cycles, CyclesPerSecond, Nanos, PacketsPerSecond, PortId, Priority, TscRate,
    Weight,
};

pub use super::paper_record::Record;
pub use super::sellers_errors::{Errors, MODEL_ERROR};

use super::paper_platform::{self as paper, Placement};
pub(crate) use crate::evidence::stats::float;
use crate::evidence::{Axis, Outcome, Panel};

/// Numbers of VMs on a host for which `penstock calibrate` measures the cost factor.
const MEASURED_VMS: [u32; 5] = [1, 2, 4, 8, 16];
/// Largest error of a batch's cost, as a share of the cost.
pub const BATCH_NOISE: f64 = 0.05;
/// Cost factor of a host with one VM, which is exactly 1. The cost factor of a host with more VMs
/// is relative to one VM.
const ONE: Coefficient = Coefficient { factor: Spread::exact(1.0), source: Source::Measured };
/// The learner's settings. What must last for seconds on a host must last for three steps here.
pub const LEARNS: LearnConfig = LearnConfig {
    return_after: Nanos::from_millis(300),
    drift_after: Nanos::from_millis(300),
    ..LearnConfig::DEFAULT
};
/// Time between two learning steps of the cost model.
pub const LEARN_EVERY: Nanos = Nanos::from_millis(100);
/// Simulated time of the warm-up, before a figure's measurements begin.
pub const WARM_UP: Nanos = Nanos::from_secs(3);
/// Time between two refills of the cycle buckets (C2QoS §V).
pub const REFILL: Nanos = Nanos::from_micros(50);
/// Cycles that the worker spends outside batches. The check of an empty port costs nothing, because
/// the published costs of frames already include it.
pub const OVERHEADS: Overheads = Overheads { look: Cycles::ZERO, ..Overheads::ASSUMED };
/// The uplink of the paper's testbed. The published costs of a frame contain the uplink's.
pub const LINK: Link = Link {
    rate: BitsPerSecond(10_000_000_000),
    ring: 2048,
    cost: StageCost { batch: 0.0, frame: 0.0, byte: 0.0 },
};
/// Number of descriptors in a VM's ring (virtio's default).
pub const RING: usize = 256;
/// Time that a probe spends on each side of the switch. `qperf tcp_lat` reports half of a round
/// trip, which is 26 to 27 us for one VM alone (§II-C). Of a round trip, the switch takes 0.6 us,
/// and the server and the guest each take half of the remaining time.
pub const PROBE_OUTSIDE: Nanos = Nanos(26_000);

/// Policy that enforces the purchases, and schedule of the VMs' batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// VMs have no limits, and the schedule is round-robin.
    None,
    /// VMs have limits in bits or frames per second, as bought (srTCM), and the schedule is
    /// round-robin.
    Rates,
    /// VMs have strict limits in cycles, and the schedule is round-robin.
    Strict,
    /// VMs have strict limits in cycles, and the schedule is HBS (batches by class).
    StrictHbs,
    /// VMs have limits in cycles and share idle cycles by weight. The schedule is round-robin.
    MinMax,
    /// VMs have limits in cycles and share idle cycles by weight. The schedule is HBS (batches by
    /// class).
    MinMaxHbs,
}

impl Policy {
    /// Returns the policy's name, which is part of the names of the figure's series.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "native",
            Self::Rates => "bps",
            Self::Strict => "cycles-strict",
            Self::StrictHbs => "cycles-strict + hbs",
            Self::MinMax => "cycles-minmax",
            Self::MinMaxHbs => "cycles-minmax + hbs",
        }
    }

    const fn ingress(self, rate: Rate) -> IngressPolicy {
        match (self, rate) {
            (Self::None, _) => IngressPolicy::None,
            (Self::Rates, Rate::Bits(_)) => IngressPolicy::Bps,
            (Self::Rates, Rate::Packets(_)) => IngressPolicy::Pps,
            (Self::Strict | Self::StrictHbs, _) => IngressPolicy::CyclesStrict,
            (Self::MinMax | Self::MinMaxHbs, _) => IngressPolicy::CyclesMinmax,
        }
    }

    const fn schedule(self) -> ScheduleKind {
        match self {
            Self::StrictHbs | Self::MinMaxHbs => ScheduleKind::Hbs,
            _ => ScheduleKind::RoundRobin,
        }
    }
}

/// The purchase of a VM, with its weight and class.
#[derive(Clone, Debug)]
pub struct Sold {
    /// Rate, frame sizes and number of flows that the VM bought.
    pub contract: Contract,
    /// Weight with which the VM shares idle cycles.
    pub weight: u64,
    pub class: u8,
    /// Part of the frames that leaves through the uplink, in thousandths. It matters only if
    /// frames to the uplink cost more than frames to a VM ([`Scenario::link`]).
    pub out: u16,
    /// Whether the VM waits for an interrupt when it receives, instead of polling.
    pub interrupts: bool,
}

/// Creates a purchase of `gbps` Gbit/s in frames of `size` bytes, with one flow.
pub fn gbps(gbps: f64, size: u16) -> anyhow::Result<Sold> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 400 G")]
    let rate = Rate::Bits(BitsPerSecond((gbps * 1e9).round() as u64));
    sold(rate, SizeMix::fixed(size)?)
}

/// Creates a purchase of `mpps` million frames/s of `size` bytes, with one flow.
pub fn mpps(mpps: f64, size: u16) -> anyhow::Result<Sold> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 1 G")]
    let rate = Rate::Packets(PacketsPerSecond((mpps * 1e6).round() as u64));
    sold(rate, SizeMix::fixed(size)?)
}

/// Creates a purchase of `rate` in a mix of frame sizes, with one flow, in class 8. The purchase's
/// weight is the rate in Gbit/s, rounded up.
pub fn sold(rate: Rate, sizes: SizeMix) -> anyhow::Result<Sold> {
    let contract = Contract { rate, sizes, flows: Flows::Single };
    let weight = contract.bandwidth().0.div_ceil(1_000_000_000);
    Ok(Sold { contract, weight: weight.max(1), class: 8, out: 1_000, interrupts: false })
}

impl Sold {
    pub fn in_class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }

    /// Returns the purchase, with `permille` thousandths of the frames to the uplink.
    pub fn to_uplink(mut self, permille: u16) -> Self {
        self.out = permille;
        self
    }

    /// Returns the profile for which the seller computes the cost of a frame.
    fn profile(&self) -> Profile {
        let out = Work { action: Action::ToXdp, permille: self.out };
        Profile { actions: vec![out], ..self.contract.profile(1, RingKind::Split) }
    }

    /// Returns the frames per second that the purchase permits.
    pub fn frames(&self) -> f64 {
        self.contract.frames_per_second()
    }
}

/// A simulated host with its VMs and their purchases.
#[derive(Clone, Debug)]
pub struct Scenario<'a> {
    /// Seed of all random numbers in the scenario.
    pub seed: u64,
    pub vms: &'a [Sold],
    pub policy: Policy,
    /// Number of I/O cores of the host. The VMs are assigned to the I/O cores in turn.
    pub cores: u16,
    /// Whether the VMs' memory is on one NUMA node or on several NUMA nodes.
    pub placement: Placement,
    /// Whether the VMs' memory is on another NUMA node than the I/O core.
    pub remote: bool,
    pub learns: bool,
    /// Errors of the seller's model.
    pub errors: Errors,
    /// Class of the uplink's port, which has no bucket.
    pub uplink_class: u8,
    pub link: Link,
    /// Cycles to classify a frame of many flows. The paper's text permits two values of the
    /// classification cost.
    pub many_flows: f64,
    /// Whether the workers run the paper's algorithms as printed: refills by Algorithm 1, and
    /// classes with demotion (§IV-B.3), instead of Penstock's.
    pub printed: bool,
}

impl<'a> Scenario<'a> {
    /// Creates a scenario with one I/O core, and with the VMs' memory on the core's NUMA node.
    pub const fn new(seed: u64, vms: &'a [Sold], policy: Policy) -> Self {
        let placement = Placement::OneNode;
        let (remote, learns, uplink_class) = (false, true, 1);
        let many_flows = paper::CLASSIFICATION_MULTIPLE;
        let (cores, link, errors, printed) = (1, LINK, Errors::Random, false);
        Self {
            seed,
            vms,
            policy,
            cores,
            placement,
            remote,
            learns,
            errors,
            uplink_class,
            link,
            many_flows,
            printed,
        }
    }

    /// Places the VMs' memory on another NUMA node than the I/O core, as in §VI-A of the paper.
    pub const fn remote(mut self) -> Self {
        self.remote = true;
        self
    }

    fn deployment(&self) -> Deployment {
        Deployment {
            vms: u32::try_from(self.vms.len()).unwrap_or(u32::MAX),
            cores: self.cores.into(),
            numa_remote: self.remote,
        }
    }

    /// Returns the true factor of all costs of the simulated core. The seller of cycles does not
    /// know the true factor.
    fn true_factor(&self) -> f64 {
        let Deployment { vms, cores, .. } = self.deployment();
        let node = if self.remote { paper::REMOTE_NODE } else { 1.0 };
        paper::vms_factor(vms, self.placement) * paper::cores_factor(cores) * node
    }

    /// Returns the seller's cost factors for numbers of VMs, for two I/O cores, and for memory on
    /// another NUMA node.
    fn sellers_factors(&self) -> (BTreeMap<u32, Coefficient>, Coefficient, Coefficient) {
        let mut rng = Rng::new(self.seed).fork(0x6661_6374_6f72);
        let mut measured = |truth: f64| Coefficient {
            factor: Spread::exact(truth * self.errors.draw(&mut rng)),
            source: Source::Measured,
        };
        let cores = measured(paper::TWO_CORES);
        let remote = measured(paper::REMOTE_NODE);
        let vms = MEASURED_VMS.map(|vms| match vms {
            // One VM has a factor of 1 by definition.
            1 => (1, ONE),
            _ => (vms, measured(paper::vms_factor(vms, self.placement))),
        });
        (vms.into(), cores, remote)
    }

    /// Returns the seller's cost model, with random errors.
    fn model(&self) -> anyhow::Result<CostModel> {
        let mut rng = Rng::new(self.seed).fork(0x006d_6f64_656c);
        let mut cell = |flows, size: u32| -> anyhow::Result<(CellKey, Cell)> {
            let many = match flows {
                Flows::Single => paper::Flows::Single,
                Flows::Multiple => paper::Flows::Multiple,
            };
            let stages = paper::cost_if(size, many, self.many_flows);
            let wrong = self.errors.of_cell(size, flows, &mut rng);
            let spread = |cost: f64| Spread::exact(cost * wrong);
            let key = CellKey { ring: RingKind::Split, flows, rules: 1, size: size.try_into()? };
            Ok((
                key,
                Cell {
                    ingress: spread(stages.ingress),
                    classification: spread(stages.classification),
                    egress: spread(stages.egress),
                    source: Source::Published,
                },
            ))
        };
        let mut cells = BTreeMap::new();
        for size in paper::SIZES {
            for flows in Flows::ALL {
                let (key, cell) = cell(flows, size)?;
                cells.insert(key, cell);
            }
        }
        let (vms, two_cores, numa_remote) = self.sellers_factors();
        let parts = Parts {
            about: About {
                host: "the paper's".to_owned(),
                date: "2021".to_owned(),
                cpu: "Intel Xeon E5-4603 v2".to_owned(),
                made_by: "the cost table of the simulated figures".to_owned(),
                core_distance_ns: None,
                tsc: TscRate::from_hz(paper::HZ),
            },
            cells,
            batch: BatchTerm {
                per_batch: Spread::exact(0.0),
                frames: 32,
                source: Source::Published,
            },
            actions: self.ways(),
            vms,
            cores: [(1, ONE), (2, two_cores)].into(),
            numa_remote,
            verified: None,
        };
        CostModel::new(parts).context("the paper's cost table as a model")
    }

    /// Returns the seller's cost of a frame to the uplink, with a random error.
    fn ways(&self) -> BTreeMap<Action, ActionTerm> {
        let mut rng = Rng::new(self.seed).fork(0x7761_7973);
        let wrong = self.errors.draw(&mut rng);
        let StageCost { frame, byte, .. } = self.link.cost;
        let (per_frame, source) = (Spread::exact(frame * wrong), Source::Measured);
        BTreeMap::from([(Action::ToXdp, ActionTerm { per_frame, per_byte: byte * wrong, source })])
    }

    /// Returns the settings of the testbed, without VMs.
    pub fn setup(&self) -> anyhow::Result<Setup> {
        Ok(Setup {
            core: TscRate::from_hz(paper::HZ),
            capacity: None,
            workers: self.cores,
            costs: Costs {
                ingress: StageCost {
                    batch: 0.0,
                    frame: paper::INGRESS_FRAME,
                    byte: paper::INGRESS_BYTE,
                },
                classification: StageCost {
                    batch: 0.0,
                    frame: paper::CLASSIFICATION_SINGLE,
                    byte: 0.0,
                },
                miss: self.many_flows,
                egress: StageCost { batch: 0.0, frame: paper::EGRESS_FRAME, byte: 0.0 },
                factor: self.true_factor(),
                noise: BATCH_NOISE,
                idle: Cycles(200),
                overheads: OVERHEADS,
                snapshot: SnapshotCost::NONE,
            },
            link: self.link,
            uplink: PortQos { priority: priority(self.uplink_class)?, ..PortQos::default() },
            vms: self.vms.len(),
            schedule: self.policy.schedule(),
            readiness: if self.printed { Readiness::Demotion } else { Readiness::Pending },
            spare: if self.printed { Spare::Printed } else { Spare::Pool },
            refill: REFILL,
            seed: self.seed,
        })
    }

    pub fn build(&self) -> anyhow::Result<Host> {
        Host::new(self)
    }
}

fn priority(class: u8) -> anyhow::Result<Priority> {
    Ok(Priority::new(class.into())?)
}

/// A running simulated host with its VMs, cost model and learner.
#[derive(Debug)]
pub struct Host {
    pub bed: Testbed,
    pub vms: Vec<VmId>,
    learner: Option<Learner>,
    model: CostModel,
    at: Deployment,
    /// Traffic profile that each VM declared.
    profiles: Vec<Profile>,
    schedule: ScheduleKind,
    uplink: Priority,
    last: Vec<PortReading>,
    now: Nanos,
    /// The VMs' entitlements before learning.
    pub bases: Vec<CyclesPerSecond>,
}

impl Host {
    fn new(scenario: &Scenario<'_>) -> anyhow::Result<Self> {
        let mut bed = Testbed::new(&scenario.setup()?);
        let model = scenario.model()?;
        let at = scenario.deployment();
        let worker = |vm: usize| vm % usize::from(scenario.cores.max(1));
        let mut bases: Vec<CyclesPerSecond> = scenario
            .vms
            .iter()
            .map(|vm| model.entitlement(&vm.contract, &vm.profile(), at))
            .collect();
        for core in 0..usize::from(scenario.cores.max(1)) {
            let here = |vm: usize| worker(vm) == core;
            let sum: u64 = (bases.iter().enumerate().filter(|(vm, _)| here(*vm)))
                .map(|(_, base)| base.0)
                .sum();
            if sum > paper::HZ {
                for (_, base) in bases.iter_mut().enumerate().filter(|(vm, _)| here(*vm)) {
                    let cut = u128::from(base.0) * u128::from(paper::HZ) / u128::from(sum);
                    *base = CyclesPerSecond(u64::try_from(cut)?);
                }
            }
        }
        let mut vms = Vec::new();
        let mut terms = Vec::new();
        for (number, (vm, base)) in scenario.vms.iter().zip(&bases).enumerate() {
            let qos = PortQos {
                ingress: scenario.policy.ingress(vm.contract.rate),
                entitlement: *base,
                weight: Weight::new(vm.weight)?,
                priority: priority(vm.class)?,
                ..PortQos::default()
            };
            let notice = if vm.interrupts { Notice::Kick } else { Notice::Poll };
            let id = bed.add_notified_vm((RING, notice), qos, worker(number));
            if scenario.policy == Policy::Rates {
                bed.set_limits(id, Some(limit(vm.contract.rate)?));
            }
            let profile = vm.profile();
            terms.push((
                id.port(),
                Terms {
                    contract: Some(vm.contract.clone()),
                    capped: false,
                    model_cost: model.per_frame(&profile, at),
                    base: *base,
                    workers: WorkerSet::one(worker(number)),
                },
            ));
            vms.push(id);
        }
        let metered = !matches!(scenario.policy, Policy::None | Policy::Rates);
        let capacity = vec![CyclesPerSecond(paper::HZ); usize::from(scenario.cores.max(1))];
        let learner = (scenario.learns && metered).then(|| {
            let mut learner = Learner::new(LEARNS, &capacity);
            learner.set_ports(terms);
            learner
        });
        let last = vec![PortReading::default(); vms.len()];
        let profiles = scenario.vms.iter().map(Sold::profile).collect();
        let (schedule, uplink) = (scenario.policy.schedule(), priority(scenario.uplink_class)?);
        let now = Nanos::ZERO;
        Ok(Self { bed, vms, learner, model, at, profiles, schedule, uplink, last, now, bases })
    }

    /// Returns the current settings of a VM's cycle bucket.
    pub fn terms(&self, vm: VmId) -> penstock_qos::c2tb::Terms {
        bucket_terms(&self.bed.qos(vm), 1, TscRate::from_hz(paper::HZ), None)
    }

    /// Returns the longest wait of a frame of class `class`, computed from the seller's cost model.
    /// The command `penstock explain` computes the longest wait of a class in the same way. The
    /// host must have one I/O core, and the host's uplink must not use cycles that are sold to VMs.
    ///
    /// # Errors
    /// Returns an error if the wait of the class has no bound.
    pub fn bound(&self, class: u8) -> anyhow::Result<Bound> {
        let core = TscRate::from_hz(paper::HZ);
        let by_class = self.schedule == ScheduleKind::Hbs;
        let class_of = |class: Priority| if by_class { class } else { Priority::FIRST };
        let classes = self.vms.iter().map(|vm| class_of(self.bed.qos(*vm).priority));
        let first = classes.chain([class_of(self.uplink)]).min().unwrap_or(Priority::FIRST);
        let batches = |profile: &Profile, class: Priority| {
            Batches::modelled(&self.model, (profile, self.at), core, class <= first)
        };
        let member = |class: Priority, batches: Batches, bucket| Member {
            class,
            units: 1,
            elsewhere: false,
            batches,
            bucket,
        };
        let mut members = Vec::new();
        for (vm, profile) in self.vms.iter().zip(&self.profiles) {
            let learned = self.learner.as_ref().and_then(|learner| learner.port(vm.port()));
            let error = learned.and_then(|port| port.full_error).unwrap_or(0.0);
            let qos = self.bed.qos(*vm);
            let class = class_of(qos.priority);
            let terms = qos.ingress.is_metered().then(|| self.terms(*vm));
            members.push(member(class, batches(profile, class).scaled(1.0 + error), terms));
        }
        let uplink = class_of(self.uplink);
        members.push(member(uplink, batches(&Profile::default(), uplink), None));
        let worker = Core { capacity: CyclesPerSecond(core.hz()), refill: REFILL };
        let (_, bound) =
            of_class(&worker, &members, class_of(priority(class)?), Surplus::Shared)
                .map_err(|why| anyhow::anyhow!("class {class} has no latency bound: {why}"))?;
        Ok(bound)
    }

    pub const fn model(&self) -> &CostModel {
        &self.model
    }

    /// Advances the simulated time to `end`, with a learning step every [`LEARN_EVERY`].
    pub fn run_until(&mut self, end: Nanos) {
        while self.now < end {
            let next = Nanos((self.now.0 / LEARN_EVERY.0 + 1) * LEARN_EVERY.0);
            self.now = next.min(end);
            self.bed.run_until(self.now);
            if self.now == next {
                self.learn();
            }
        }
    }

    fn learn(&mut self) {
        let Some(learner) = &mut self.learner else { return };
        let mut seen = Vec::new();
        for (vm, last) in self.vms.iter().zip(&mut self.last) {
            let now = self.bed.vm(*vm).port;
            let before = std::mem::replace(last, now);
            let observed = observed(&before, &now, (LEARN_EVERY, paper::HZ), 1);
            seen.extend(observed.map(|observed| (vm.port(), observed)));
        }
        let changes = learner.step(seen).changes;
        let qos = |(port, entitlement): (PortId, CyclesPerSecond)| {
            let vm = *self.vms.iter().find(|vm| vm.port() == port)?;
            Some((vm, PortQos { entitlement, ..self.bed.qos(vm) }))
        };
        let changes: Vec<_> = changes.into_iter().filter_map(qos).collect();
        self.bed.set_all_qos(&changes);
    }

    /// Returns the current counters of all VMs.
    pub fn read(&self) -> Vec<VmReading> {
        self.vms.iter().map(|vm| self.bed.vm(*vm)).collect()
    }

    /// Simulates the warm-up and, after the warm-up, the time `length`. Reads the VMs' counters at
    /// the end of the warm-up and after every `step`.
    pub fn record(&mut self, length: Nanos, step: Nanos) -> Record {
        self.record_with(length, step, |_, _| ())
    }

    /// Records the same values as [`Self::record`], and also calls `look` with the simulated time
    /// after each step.
    pub fn record_with(
        &mut self,
        length: Nanos,
        step: Nanos,
        mut look: impl FnMut(&Self, Nanos),
    ) -> Record {
        self.run_until(WARM_UP);
        let mut readings = vec![self.read()];
        let end = WARM_UP + length;
        while self.now < end {
            self.run_until((self.now + step).min(end));
            look(self, self.now);
            readings.push(self.read());
        }
        Record { step, readings }
    }
}

fn limit(rate: Rate) -> anyhow::Result<Arc<IngressPolicer>> {
    let limit = match rate {
        Rate::Bits(cir) => Limit::SingleRate { cir, cbs: 65_536, ebs: 65_536 },
        Rate::Packets(rate) => Limit::Packets { rate, burst: 256 },
    };
    let spec = Spec::new(limit)?.per_frame(4);
    let own = Some(Arc::new(Policer::new(spec)));
    Ok(Arc::new(IngressPolicer { own: own.into_iter().collect(), links: Vec::<LinkLimit>::new() }))
}

/// Returns the change from `before` to `after` in percent.
pub fn delta_pct(before: f64, after: f64) -> f64 {
    100.0 * (after / before - 1.0)
}

/// Returns the value with the largest magnitude, or NaN if `values` is empty.
pub fn worst(values: impl Iterator<Item = f64>) -> f64 {
    values.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN)
}

/// Returns the latencies of probes sent between two times, in microseconds. A latency is half of a
/// round trip, as in `qperf`, and includes the time outside the switch.
pub fn latencies(trips: &[Timed], (from, until): (Nanos, Nanos)) -> Vec<f64> {
    let here = trips.iter().filter(|trip| trip.at >= from && trip.at < until);
    here.map(|trip| float(trip.took.0 + PROBE_OUTSIDE.0) / 2_000.0).collect()
}

/// Returns the mean of `values`, or NaN if `values` is empty.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len() as u64)
}

/// Creates a panel that shows one quantity over time, for all VMs of a run.
pub fn panel(
    record: &crate::evidence::outcome::Record,
    run: &str,
    what: &str,
    unit: &str,
) -> Panel {
    let mut panel = Panel::new(run, Axis::linear("time, s"), Axis::linear(unit));
    for (name, series) in record.series_of(&format!("{run} vm")) {
        if let Some(vm) = name.strip_suffix(what) {
            panel = panel.series(format!("VM{}", vm.trim()), series);
        }
    }
    panel
}

/// Adds notes about the platform that all simulated figures of the paper share.
pub fn describe(outcome: &mut Outcome) {
    outcome.note("core_hz", paper::HZ);
    outcome.note("link_gbps", 10);
    outcome.note("ring_frames", RING);
    outcome.note("model_error", MODEL_ERROR);
    outcome.note("batch_noise", BATCH_NOISE);
    outcome.note("cycles_per_refill", OVERHEADS.refill.0);
    outcome.note("not_charged", "kicks, send calls, checks of empty ports");
    outcome.note("warm_up_secs", WARM_UP.0 / 1_000_000_000);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test checks that the true costs depend only on the scenario, not on the seller's errors.
    #[test]
    fn the_sellers_factors_are_wrong_and_the_true_ones_do_not_follow_them() {
        let vms: Vec<Sold> = (0..4).map(|_| gbps(1.0, 1024).unwrap()).collect();
        let deployed = |seed| {
            let scenario = Scenario::new(seed, &vms, Policy::Strict).remote();
            Scenario { cores: 2, ..scenario }
        };
        let truth = deployed(1).setup().unwrap().costs;
        let one = Deployment { vms: 1, cores: 1, numa_remote: false };
        type Change = fn(Deployment) -> Deployment;
        let factors: [(Change, f64); 3] = [
            (|d| Deployment { vms: 4, ..d }, paper::vms_factor(4, Placement::OneNode)),
            (|d| Deployment { cores: 2, ..d }, paper::TWO_CORES),
            (|d| Deployment { numa_remote: true, ..d }, paper::REMOTE_NODE),
        ];
        let mut errors = Vec::new();
        for seed in 1..=20 {
            assert_eq!(deployed(seed).setup().unwrap().costs, truth, "seed {seed}");
            let model = deployed(seed).model().unwrap();
            assert!((model.factor(one) - 1.0).abs() < 1e-12);
            errors.extend(factors.map(|(at, truth)| model.factor(at(one)) / truth - 1.0));
        }
        assert!(errors.iter().all(|error| error.abs() <= MODEL_ERROR + 1e-9), "{errors:?}");
        let mut all = errors.clone();
        all.sort_by(f64::total_cmp);
        all.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
        assert_eq!(all.len(), errors.len(), "two factors of the seller have one error: {errors:?}");
        let spread = all[all.len() - 1] - all[0];
        assert!(spread > 1.5 * MODEL_ERROR, "the seller is hardly ever wrong: {errors:?}");
    }

    #[test]
    fn a_simulated_figure_says_what_its_core_does_for_nothing() {
        let mut outcome = Outcome::new();
        describe(&mut outcome);
        assert_eq!(outcome.platform["cycles_per_refill"], 400);
        let said = outcome.platform["not_charged"].as_str().unwrap();
        assert_eq!(said, "kicks, send calls, checks of empty ports");
    }
}
