//! Executes a plan on many switches and hosts, and handles failed switches and hosts.
//!
//! # Problem
//!
//! The steps of a plan have an order ([`penstock_fabric::queue_binding`]), and a plan concerns many
//! switches and hosts. Any of these switches and hosts may fail in the middle of the plan.
//!
//! # Source
//!
//! QShare §V-D specifies neither the order in which a plan's steps are executed nor the handling of
//! failed switches and hosts. `docs/reference/controller.md` describes the order of the steps and
//! the handling of failures in Penstock.
//!
//! # Approach
//!
//! The controller combines successive steps of the same kind to a stage (`stage`), and sends one
//! message to each concerned switch or host. Canary switches get their message before the other
//! switches and hosts. The controller starts the next stage when all switches and hosts have
//! answered.
//!
//! A host changes its limits, its marks, and the weights and map of its uplink at once. The
//! controller therefore sends the changes of a host's uplink with the next message that the host
//! gets anyway.
//!
//! If a switch or host fails before hosts mark frames for the new queues, the controller rolls the
//! plan back. During the rollback of a plan, every packet stays mapped to a queue. If a host fails
//! after hosts began to mark frames, the host's tenants stay in the shared queue, which always
//! exists. The controller sends the plan to the failed host again: at once if the host refuses new
//! marks, and otherwise when it repairs the host.
//!
//! A switch or host that failed is out of date ([`Crew::out_of_date`]). Plans skip an out-of-date
//! switch or host until [`Crew::mend`] has read and repaired its state. A switch or host that
//! caused a rollback is also excluded from plans for a pause that doubles each time (`refusal`).
//! Because of this pause, a switch or host that refuses its plans does not stop changes of the
//! others.
//!
//! If a leader ends in the middle of a plan, its successor does not know which hosts and switches
//! have executed which steps. The successor first lets hosts mark the tenants of this plan for
//! queue 0, while switches keep all their maps. Then it changes the switches, and then the marks
//! ([`Crew::resume`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_fabric::queue_binding::{Mode, Plan, Port, Step};
use penstock_fabric::tenant_placement::{SlotMap, TenantSlot};
use penstock_fabric::topology::{LinkId, NodeId};
use tokio::time::Instant;

use crate::Stamp;
use crate::fabric_state::Fabric;
use crate::hosts::{HostPlan, HostTenant, Hosts};
use crate::intent::ClassRecord;
use crate::southbound::{PortState, SwitchDriver, SwitchState, survey};

mod answer;
mod drain;
mod known;
mod left_out;
mod queues;
mod refusal;
mod repair;
mod restart;
mod runs;
mod silent;
mod stage;
mod successor;
mod tasks;
mod trouble;

pub use stage::{PlanTimes, StageKind};
pub use trouble::Trouble;

use answer::{Said, within};
use drain::Watch;
use known::{KnownSwitch, bring_to};
use left_out::LeftOut;
use refusal::Refusals;
use runs::Runs;
use silent::Silent;
use stage::stages;
use successor::{Held, Unsettled};
use tasks::Tasks;

/// Interfaces on a switch that belong to one port of the topology tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Names of the switch's interfaces. A link with several cables has several interfaces.
    pub names: Vec<String>,
}

/// Driver, ports and role of a switch.
#[derive(Clone, Debug)]
pub struct Switch {
    pub driver: Arc<dyn SwitchDriver>,
    /// The switch's ports in the topology tree, each with its interfaces on the switch.
    pub ports: BTreeMap<Port, Interface>,
    /// True if the controller changes this switch before all other switches, as a trial.
    pub canary: bool,
}

impl Switch {
    /// Whether an interface is a port of the topology tree.
    fn has(&self, interface: &String) -> bool {
        self.ports.values().any(|port| port.names.contains(interface))
    }
}

/// Result of the execution of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The controller executed the plan, except on the listed hosts and switches. Tenants of a
    /// listed host stay in the shared queue, and a listed switch keeps its old weights.
    Done(Vec<Trouble>),
    /// The plan was rolled back.
    TakenBack {
        /// Switches and hosts whose failure caused the rollback.
        why: Vec<Trouble>,
        /// Switches and hosts that are out of date, because their rollback failed.
        stuck: Vec<Trouble>,
    },
}

/// Last state that the controller sent to all switches and hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub ports: BTreeMap<Port, PortState>,
    /// Code points with which hosts mark frames, by tenant. Hosts do not mark the frames of a
    /// tenant without an entry.
    pub marks: SlotMap<u8>,
    /// Rate limits of tenants without a queue of their own, in thousandths of their guarantees.
    pub headroom: SlotMap<u32>,
    /// Tenants that hosts limit to their guarantees, because their queues change hands or a port
    /// lacks their queue.
    pub limited: SlotMap<()>,
}

/// The switches and hosts of a fabric, with the last state that the controller sent to them.
#[derive(Debug)]
pub struct Crew {
    switches: BTreeMap<NodeId, Switch>,
    hosts: Arc<dyn Hosts>,
    told: Told,
    out_of_date: BTreeSet<NodeId>,
    refusals: Refusals,
    /// States of the switches that have answered since the present plan began.
    known: BTreeMap<NodeId, KnownSwitch>,
    left_out: LeftOut,
    /// Number of queues that plans may use, of each switch that has answered.
    queues: BTreeMap<NodeId, u8>,
    /// Tenants that hosts limit because a port lacks their queue ([`Crew::limit_misplaced`]).
    misplaced: BTreeSet<TenantSlot>,
    unsettled: Unsettled,
    held: Held,
    silent: Silent,
    runs: Runs,
    times: PlanTimes,
    /// Time limit for the answer of a switch or host to one message.
    limit: Duration,
}

/// Returns each tenant's rate limit in the shared queue, in thousandths of the tenant's guarantee.
fn headroom(fabric: &Fabric) -> SlotMap<u32> {
    fabric.tenants().map(|(_, slot, _)| (slot, fabric.headroom_permille(slot))).collect()
}

impl Crew {
    /// Creates a [`Crew`] that has sent no state to switches yet, so all switches are out of date.
    /// The argument `limit` is the time limit for the answer of a switch or host to one message.
    #[must_use]
    pub fn new(switches: BTreeMap<NodeId, Switch>, hosts: Arc<dyn Hosts>, limit: Duration) -> Self {
        let out_of_date = switches.keys().copied().collect();
        Self {
            switches,
            hosts,
            told: Told::default(),
            out_of_date,
            refusals: Refusals::default(),
            known: BTreeMap::new(),
            left_out: LeftOut::default(),
            queues: BTreeMap::new(),
            misplaced: BTreeSet::new(),
            unsettled: Unsettled::default(),
            held: Held::default(),
            silent: Silent::default(),
            runs: Runs::default(),
            times: PlanTimes::default(),
            limit,
        }
    }

    /// Returns the last state that the controller sent to all switches and hosts.
    #[must_use]
    pub fn told(&self) -> &Told {
        &self.told
    }

    #[must_use]
    pub fn switches(&self) -> &BTreeMap<NodeId, Switch> {
        &self.switches
    }

    /// Returns how long the stages of the last plan took.
    #[must_use]
    pub fn times(&self) -> &PlanTimes {
        &self.times
    }

    /// Returns the switches and hosts whose actual state is uncertain.
    #[must_use]
    pub fn out_of_date(&self) -> &BTreeSet<NodeId> {
        &self.out_of_date
    }

    /// Returns true if plans may use the switch or host `node`. Plans may use a switch or host that
    /// is up to date and has not caused a rollback recently. Plans may use a host only while the
    /// host's agent is connected. A failed switch or host only delays its own tenants.
    #[must_use]
    pub fn reachable(&self, fabric: &Fabric, node: NodeId) -> bool {
        let left_alone = self.out_of_date.contains(&node) || self.refusals.pause(node);
        !left_alone && self.connected(fabric, node)
    }

    /// Returns true if the switch or host is out of date, or has not applied any plan since it
    /// refused a plan.
    #[must_use]
    pub fn in_trouble(&self, node: NodeId) -> bool {
        self.out_of_date.contains(&node) || self.refusals.remembers(node)
    }

    /// Begins an interval. The remaining pause of each switch or host that refused a plan becomes
    /// one interval shorter.
    pub fn begin_interval(&mut self) {
        self.refusals.begin_interval();
        self.unsettled.begin_interval();
        self.silent.begin_interval();
    }

    /// Returns true if `node` is a switch, or a host whose agent is connected.
    pub(crate) fn connected(&self, fabric: &Fabric, node: NodeId) -> bool {
        let topology = fabric.topology();
        !topology.is_server(node) || self.hosts.connected(topology.name(node))
    }

    /// Computes the state that all switches and hosts must have from the binding in `fabric`.
    fn assume(&mut self, fabric: &Fabric) {
        let topology = fabric.topology();
        let nodes = (0..topology.layers()).flat_map(|layer| topology.layer(layer));
        self.told.ports = nodes
            .flat_map(|node| fabric.ports_of(node))
            .map(|port| (port, fabric.port(port)))
            .collect();
        let marks = fabric.binding().bound().map(|(slot, _)| (slot, fabric.dscp(slot)));
        self.told.marks = marks.filter(|(_, dscp)| *dscp != 0).collect();
        self.told.headroom = headroom(fabric);
        self.told.limited.clear();
        self.misplaced.clear();
        (self.unsettled, self.held) = (Unsettled::default(), Held::default());
        // Hosts that have not got their plans yet stay out of date.
        self.out_of_date.extend(self.switches.keys());
    }

    /// Returns the plan that the controller sends to a host.
    #[must_use]
    pub fn host_plan(&self, fabric: &Fabric, server: NodeId, stamp: Stamp) -> HostPlan {
        let topology = fabric.topology();
        let tenant = |(slot, here): (TenantSlot, ClassRecord)| {
            let dscp = self.told.marks.get(slot).copied().unwrap_or(0);
            let limited = self.told.limited.contains(slot);
            let shared = self.told.headroom.get(slot).copied().unwrap_or(1_000);
            HostTenant {
                name: fabric.name(slot).to_owned(),
                dscp,
                vms: here.vms,
                send: here.send,
                recv: here.recv,
                headroom_permille: if limited { 1_000 } else { shared },
                limited: limited && dscp != 0,
            }
        };
        let uplink = |port: &Port| {
            let state = self.told.ports.get(port).cloned().unwrap_or_default();
            (topology.name(topology.parent(port.link)).to_string(), state)
        };
        let mut tenants: Vec<_> = fabric.tenants_on(server).map(tenant).collect();
        tenants.sort_by(|a, b| a.name.cmp(&b.name));
        let uplinks = fabric.ports_of(server).iter().filter(|port| port.up).map(uplink).collect();
        HostPlan { stamp, tenants, uplinks }
    }

    /// Executes a plan of `fabric`. If the result is [`Outcome::TakenBack`], the caller must also
    /// restore the binding from before the plan. The messages of the rollback have the next stamp,
    /// so the caller's later stamps begin with the next one.
    pub async fn carry_out(&mut self, fabric: &Fabric, plan: &Plan, stamp: Stamp) -> Outcome {
        self.known.clear();
        self.times = PlanTimes::default();
        let outcome = self.execute(fabric, plan, stamp).await;
        self.known.clear();
        outcome
    }

    async fn execute(&mut self, fabric: &Fabric, plan: &Plan, stamp: Stamp) -> Outcome {
        let before = self.told.clone();
        let (mut touched, mut owed) = (BTreeSet::new(), BTreeSet::new());
        let mut behind = Vec::new();
        // Once hosts mark frames for new queues, earlier steps need no rollback, and none is
        // possible. If only weights change, no packet depends on another switch or host.
        let mut marking = plan.steps.iter().all(|step| matches!(step, Step::Weigh { .. }));
        let mut reads = Some(self.read_ahead(fabric, plan));
        for (kind, steps) in stages(plan) {
            let began = Instant::now();
            marking |= steps.iter().any(|s| matches!(s, Step::Mark { dscp, .. } if *dscp != 0));
            let mut concerned = self.concerned(fabric, kind, steps, &mut owed);
            if kind == StageKind::Limit {
                // A host that cannot change marks must be found before others have changed them.
                concerned.extend(self.hosts_of_movers(fabric, plan));
            }
            touched.extend(concerned.iter().copied());
            let mut trouble = match (kind, steps.first()) {
                (StageKind::Wait, Some(Step::Wait(time))) => {
                    tokio::time::sleep(Duration::from_nanos(time.0)).await;
                    Vec::new()
                }
                (StageKind::Wait, Some(Step::Drain { queues, time })) => {
                    self.watch(fabric, queues).drained(*time).await;
                    Vec::new()
                }
                (StageKind::ReadBack, _) => self.compare(&concerned).await,
                (StageKind::Mark, _) => self.tell_marks(fabric, &concerned, stamp).await,
                _ => self.tell(fabric, &concerned, stamp).await,
            };
            // The first stage only concerns hosts, so switches are read meanwhile.
            if let Some(reads) = reads.take() {
                trouble.extend(self.end_reading(reads).await);
            }
            self.times.0.push((kind, began.elapsed()));
            self.out_of_date.extend(trouble.iter().map(|t| t.node));
            self.known.retain(|node, _| trouble.iter().all(|t| t.node != *node));
            if trouble.is_empty() || marking {
                behind.extend(trouble);
                continue;
            }
            trouble.iter().for_each(|t| self.refusals.refused(t.node));
            let began = Instant::now();
            // A message of the plan that a slow network delivers later must not undo the rollback.
            let next = Stamp { generation: stamp.generation + 1, ..stamp };
            let stuck = self.take_back(fabric, before, &touched, next).await;
            self.times.0.push((StageKind::TakeBack, began.elapsed()));
            return Outcome::TakenBack { why: trouble, stuck };
        }
        let followed = touched.iter().filter(|node| behind.iter().all(|t| t.node != **node));
        followed.for_each(|node| self.refusals.followed(*node));
        Outcome::Done(behind)
    }

    /// Applies the steps of a stage to the controller's copy of the state, and returns the switches
    /// and hosts that get a message in this stage. Hosts with changes of their uplinks only go to
    /// `owed`, and get the changes with their next message.
    fn concerned(
        &mut self,
        fabric: &Fabric,
        kind: StageKind,
        steps: &[Step],
        owed: &mut BTreeSet<NodeId>,
    ) -> BTreeSet<NodeId> {
        let mut concerned = match kind {
            StageKind::Limit => self.lower_headroom(fabric),
            StageKind::Release => self.take_in_headroom(fabric),
            _ => BTreeSet::new(),
        };
        concerned.extend(self.take_in(fabric, steps));
        let is_switch = |node: &NodeId| self.switches.contains_key(node);
        match kind {
            StageKind::Ports => {
                let (switches, hosts): (BTreeSet<_>, BTreeSet<_>) =
                    concerned.into_iter().partition(is_switch);
                owed.extend(hosts);
                return switches;
            }
            StageKind::ReadBack => concerned.retain(is_switch),
            StageKind::Release => {
                // A host that failed in the meantime gets its whole plan when it is repaired.
                let late = std::mem::take(owed).into_iter();
                concerned.extend(late.filter(|node| self.reachable(fabric, *node)));
            }
            _ => owed.retain(|node| !concerned.contains(node)),
        }
        concerned
    }

    /// Returns the given queues with their switches, without queues of hosts, and without switches
    /// that do not answer.
    fn watch(&self, fabric: &Fabric, queues: &[(Port, u8)]) -> Watch {
        let topology = fabric.topology();
        let mut watch = Watch::default();
        for (port, queue) in queues {
            let node = if port.up { topology.child(port.link) } else { topology.parent(port.link) };
            let switch = self.switches.get(&node).filter(|_| !self.silent.contains(node));
            if let Some(switch) = switch
                && let Some(Interface { names }) = switch.ports.get(port)
            {
                watch.add(node, &switch.driver, names, *queue);
            }
        }
        watch
    }

    /// Returns the hosts of the tenants whose marks a plan changes.
    fn hosts_of_movers(&self, fabric: &Fabric, plan: &Plan) -> BTreeSet<NodeId> {
        let mover = |step: &Step| match step {
            Step::Mark { tenant, .. } => Some(*tenant),
            _ => None,
        };
        let movers: BTreeSet<TenantSlot> = plan.steps.iter().filter_map(mover).collect();
        let hosts = movers.into_iter().flat_map(|slot| fabric.servers_of(slot));
        hosts.filter(|node| self.reachable(fabric, *node)).collect()
    }

    /// Sends rate limits to the hosts, for tenants that share a queue. Returns the hosts that did
    /// not apply the rate limits.
    pub async fn tell_headroom(&mut self, fabric: &Fabric, stamp: Stamp) -> Vec<Trouble> {
        let hosts = self.take_in_headroom(fabric);
        let trouble = self.tell(fabric, &hosts, stamp).await;
        self.out_of_date.extend(trouble.iter().map(|t| t.node));
        trouble
    }

    /// Updates queue weights and plans for tenants that arrived or moved to other servers. Other
    /// hosts immediately lower the rate limits of tenants that share ports with these tenants. Then
    /// the function sends the weights of `steps` to the switches. The next call of [`Self::mend`]
    /// sends the plans to the hosts of the arrived and moved tenants. With the sent plans, hosts
    /// mark no frames for queues at a tenant's former place. Returns the switches and hosts that
    /// did not apply their changes.
    pub async fn make_room(
        &mut self,
        fabric: &Fabric,
        tenants: &[TenantSlot],
        steps: &[Step],
        stamp: Stamp,
    ) -> Vec<Trouble> {
        for slot in tenants {
            if fabric.dscp(*slot) == 0 {
                self.told.marks.remove(*slot);
            }
            self.told.headroom.insert(*slot, fabric.headroom_permille(*slot));
        }
        let here: BTreeSet<NodeId> = tenants.iter().flat_map(|s| fabric.servers_of(*s)).collect();
        let lower: BTreeSet<NodeId> =
            self.lower_headroom(fabric).difference(&here).copied().collect();
        let mut trouble = self.tell(fabric, &lower, stamp).await;
        let concerned = self.take_in(fabric, steps);
        let (switches, hosts): (BTreeSet<_>, BTreeSet<_>) =
            concerned.iter().partition(|node| self.switches.contains_key(node));
        self.out_of_date.extend(hosts);
        self.known.clear();
        trouble.extend(self.tell(fabric, &switches, stamp).await);
        self.known.clear();
        self.out_of_date.extend(trouble.iter().map(|t| t.node));
        trouble
    }

    /// Lowers the rate limits of tenants in the shared queue that the present weights no longer
    /// permit, and returns the hosts to notify. Higher rate limits follow when the weights are in
    /// force ([`Self::take_in_headroom`]).
    fn lower_headroom(&mut self, fabric: &Fabric) -> BTreeSet<NodeId> {
        let mut lower: Vec<TenantSlot> = Vec::new();
        for (slot, now) in headroom(fabric).iter() {
            if let Some(told) = self.told.headroom.get_mut(slot).filter(|told| **told > *now) {
                *told = *now;
                lower.push(slot);
            }
        }
        let shares = |slot: &TenantSlot| !self.told.marks.contains(*slot);
        let hosts = lower.iter().filter(|slot| shares(slot)).flat_map(|s| fabric.servers_of(*s));
        let hosts = hosts.collect();
        self.ready(fabric, hosts)
    }

    /// Returns those of the nodes that plans may use now.
    fn ready(&mut self, fabric: &Fabric, mut nodes: BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        // A switch or host in a pause misses the change, and is repaired after the pause.
        self.out_of_date.extend(nodes.iter().filter(|node| self.refusals.pause(**node)));
        nodes.retain(|node| self.reachable(fabric, *node));
        nodes
    }

    /// Returns true if hosts must learn that a tenant is limited to its guarantee, or no longer
    /// limited.
    fn limit_matters(&self, slot: TenantSlot) -> bool {
        let headroom = self.told.headroom.get(slot).is_some_and(|headroom| *headroom > 1_000);
        headroom || self.told.marks.contains(slot)
    }

    /// Whether a tenant has a mark, although a port lacks its queue.
    fn is_misplaced(&self, slot: TenantSlot) -> bool {
        self.misplaced.contains(&slot) && self.told.marks.contains(slot)
    }

    /// Updates the rate limits of tenants in the shared queue, and returns the hosts to notify. The
    /// rate limits depend on the weights of all queues, so a step of one tenant also changes the
    /// limits of other tenants.
    fn take_in_headroom(&mut self, fabric: &Fabric) -> BTreeSet<NodeId> {
        let new = headroom(fabric);
        let other = |(slot, now): &(TenantSlot, &u32)| {
            !self.told.marks.contains(*slot) && self.told.headroom.get(*slot) != Some(*now)
        };
        let hosts = new.iter().filter(other).flat_map(|(slot, _)| fabric.servers_of(slot));
        let hosts = hosts.collect();
        self.told.headroom = new;
        // A host that is out of date gets its whole plan when it is repaired.
        self.ready(fabric, hosts)
    }

    /// Applies `steps` to the controller's copy of the state that switches and hosts must have.
    /// Returns those concerned switches and hosts that are up to date.
    fn take_in(&mut self, fabric: &Fabric, steps: &[Step]) -> BTreeSet<NodeId> {
        let topology = fabric.topology();
        let fixed = fabric.binding().settings().mode == Mode::StaticMap;
        let sender = |port: &Port| {
            if port.up { topology.child(port.link) } else { topology.parent(port.link) }
        };
        let mut concerned = BTreeSet::new();
        for step in steps {
            match step {
                Step::Weigh { port, weights } => {
                    let state = self.told.ports.entry(*port).or_default();
                    state.weights.clone_from(&weights.weights);
                    concerned.insert(sender(port));
                }
                Step::Limit { tenant } | Step::Release { tenant } => {
                    if matches!(step, Step::Limit { .. }) {
                        self.told.limited.insert(*tenant, ());
                    } else if !self.is_moving(*tenant) && !self.is_misplaced(*tenant) {
                        self.told.limited.remove(*tenant);
                    }
                    if self.limit_matters(*tenant) {
                        concerned.extend(fabric.servers_of(*tenant));
                    }
                }
                Step::Mark { tenant, dscp } => {
                    if *dscp == 0 {
                        self.told.marks.remove(*tenant);
                    } else {
                        self.told.marks.insert(*tenant, *dscp);
                    }
                    concerned.extend(fabric.servers_of(*tenant));
                }
                // A static map already contains all code points.
                Step::Unmap { .. } | Step::Map { .. } if fixed => {}
                Step::Unmap { port, dscp } => {
                    self.told.ports.entry(*port).or_default().map.remove(dscp);
                    concerned.insert(sender(port));
                }
                Step::Map { port, dscp, queue } => {
                    self.told.ports.entry(*port).or_default().map.insert(*dscp, *queue);
                    concerned.insert(sender(port));
                }
                Step::ReadBack(ports) => concerned.extend(ports.iter().map(sender)),
                _ => {}
            }
        }
        self.ready(fabric, concerned)
    }

    /// Returns the state that a switch should have, by the switch's interface names.
    fn wanted(&self, switch: &Switch) -> SwitchState {
        let mut state = SwitchState::default();
        for (port, interface) in &switch.ports {
            let told = self.told.ports.get(port).cloned().unwrap_or_default();
            state.ports.extend(interface.names.iter().map(|name| (name.clone(), told.clone())));
        }
        state
    }

    /// Sends the whole state first to the canary switches, and then to all other switches and hosts
    /// at once. Returns the switches and hosts that did not apply the state.
    async fn tell(&mut self, fabric: &Fabric, to: &BTreeSet<NodeId>, stamp: Stamp) -> Vec<Trouble> {
        let canary = |node: &NodeId| self.switches.get(node).is_some_and(|switch| switch.canary);
        let (first, then): (Vec<NodeId>, Vec<NodeId>) = to.iter().partition(|node| canary(node));
        let trouble = self.tell_all(fabric, &first, stamp).await;
        if !trouble.is_empty() {
            // The others have not got the state either. A rollback tells them their former state.
            self.out_of_date.extend(then);
            return trouble;
        }
        self.tell_all(fabric, &then, stamp).await
    }

    /// Sends marks to hosts. A host that refuses gets its message once more, because the steps
    /// that follow count on the marks. They give a queue only the guarantees of its tenants, and
    /// the frames of a host with other marks take a part of the others' guarantees.
    async fn tell_marks(
        &mut self,
        fabric: &Fabric,
        hosts: &BTreeSet<NodeId>,
        stamp: Stamp,
    ) -> Vec<Trouble> {
        let (refused, mut trouble): (Vec<Trouble>, Vec<Trouble>) =
            self.tell(fabric, hosts, stamp).await.into_iter().partition(|t| t.refused);
        let again: Vec<NodeId> = refused.iter().map(|t| t.node).collect();
        trouble.extend(self.tell_all(fabric, &again, stamp).await);
        trouble
    }

    async fn tell_all(&mut self, fabric: &Fabric, to: &[NodeId], stamp: Stamp) -> Vec<Trouble> {
        let mut tasks: Tasks<Option<KnownSwitch>> = Tasks::default();
        let limit = self.limit;
        for node in to.iter().copied() {
            if let Some(switch) = self.switches.get(&node) {
                let (driver, wanted) = (Arc::clone(&switch.driver), self.wanted(switch));
                let known = self.known.remove(&node);
                tasks.spawn(node, async move {
                    let told = async { bring_to(&*driver, known, wanted, stamp).await.map(Some) };
                    within(limit, driver.name(), told, || driver.patience()).await
                });
            } else {
                let hosts = Arc::clone(&self.hosts);
                let name = fabric.topology().name(node).to_string();
                let plan = self.host_plan(fabric, node, stamp);
                tasks.spawn(node, async move {
                    let told = async {
                        let told = hosts.tell(&name, plan).await;
                        told.map(|()| None).map_err(Said::from)
                    };
                    within(limit, &name, told, || None).await
                });
            }
            tasks.begin_some().await;
        }
        let (done, trouble) = tasks.all().await;
        self.note_silent(&trouble);
        for (node, known) in done {
            let (Some(known), Some(switch)) = (known, self.switches.get(&node)) else { continue };
            self.left_out.note(node, known.left_out().clone(), |name| switch.has(name));
            self.queues.insert(node, known.queues());
            self.known.insert(node, known);
        }
        trouble
    }

    /// Reads the state of switches and compares the state with the last state that the controller
    /// sent.
    async fn compare(&mut self, nodes: &BTreeSet<NodeId>) -> Vec<Trouble> {
        let mut tasks = Tasks::default();
        let limit = self.limit;
        for (node, switch) in nodes.iter().filter_map(|n| Some((*n, self.switches.get(n)?))) {
            let (driver, wanted) = (Arc::clone(&switch.driver), self.wanted(switch));
            tasks.spawn(node, async move {
                let read = async {
                    let found = survey(&*driver, &wanted).await?;
                    let Some(first) = found.changes.first() else { return Ok(found) };
                    let (name, words) =
                        (driver.name(), driver.words(std::slice::from_ref(first)).await);
                    let words = words.unwrap_or_default().join(", ");
                    let problem =
                        format!("switch {name}: differs from its plan, and still needs: {words}");
                    Err(Said { problem, refused: true })
                };
                within(limit, driver.name(), read, || driver.patience()).await
            });
        }
        let (done, trouble) = tasks.all().await;
        self.note_silent(&trouble);
        self.note_answers(done);
        trouble
    }

    /// Rolls a plan back. Switches get their former queues and maps before hosts mark frames for
    /// these queues. A tenant stays in the shared queue if a switch on its way failed again and may
    /// have lost the tenant's code point ([`Held`]).
    async fn take_back(
        &mut self,
        fabric: &Fabric,
        before: Told,
        touched: &BTreeSet<NodeId>,
        stamp: Stamp,
    ) -> Vec<Trouble> {
        let changed = std::mem::replace(&mut self.told, before);
        let (switches, hosts): (Vec<NodeId>, Vec<NodeId>) =
            touched.iter().partition(|node| self.switches.contains_key(node));
        // A canary switch that fails again must not keep the others from their former state.
        let mut stuck = self.tell_all(fabric, &switches, stamp).await;
        let also = self.hold_back(fabric, &changed, &stuck);
        let hosts: BTreeSet<NodeId> = hosts.into_iter().chain(also).collect();
        let hosts = Vec::from_iter(hosts);
        stuck.extend(self.tell_all(fabric, &hosts, stamp).await);
        self.out_of_date.extend(stuck.iter().map(|t| t.node));
        // A switch or host that failed is up to date again if its rollback succeeded.
        for node in switches.iter().chain(&hosts) {
            if stuck.iter().all(|t| t.node != *node) {
                self.out_of_date.remove(node);
                self.silent.remove(*node);
            }
        }
        stuck
    }

    /// Returns the links with a port that a driver leaves out, because others have configured it.
    #[must_use]
    pub fn left_out_links(&self) -> BTreeSet<LinkId> {
        let of_switch = |(node, switch): (&NodeId, &Switch)| {
            let is_out = |names: &[String]| self.left_out.has_any(*node, names);
            let out = switch.ports.iter().filter(|(_, interface)| is_out(&interface.names));
            out.map(|(port, _)| port.link).collect::<Vec<_>>()
        };
        self.switches.iter().flat_map(of_switch).collect()
    }

    /// Returns the switches at which the left-out ports changed since the last call, with the names
    /// of all left-out ports and the reasons.
    pub fn take_left_out(&mut self) -> Vec<(NodeId, BTreeMap<String, String>)> {
        self.left_out.take_changed()
    }

    /// Marks a host as out of date, because its agent connected or a tenant arrived. The next call
    /// of [`Self::mend`] sends the plan to the host.
    pub fn must_tell(&mut self, node: NodeId) {
        self.out_of_date.insert(node);
    }

    /// Deletes the recorded refusals of a host when the host's agent connects, and marks the host
    /// as out of date.
    pub fn came(&mut self, node: NodeId) {
        self.refusals.followed(node);
        self.must_tell(node);
    }
}
