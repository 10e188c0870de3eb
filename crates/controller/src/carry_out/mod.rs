//! A plan carried out on many switches and hosts, and what happens when one of them does not
//! follow.
//!
//! **Problem.** A plan has an order ([`penstock_fabric::queue_binding`]), and its steps concern
//! many elements, of which any may fail in the middle. **Rule.** Steps of one kind that follow each
//! other go out to all whom they concern at once, each told once; the next kind begins when all
//! have answered, those named as canaries before the others. If one fails before hosts mark by the
//! new queues, what was done is taken back in the order that keeps every packet mapped, and the
//! plan counts as not done. After that point a host that did not answer stays in the shared queue,
//! which is always there, and is told again. An element that failed is out of date
//! ([`Crew::out_of_date`]): it is read and mended before anything depends on it ([`Crew::mend`]),
//! and plans leave it alone till then. An element because of which a plan was taken back is left
//! out of plans for a pause that doubles each time (`refusal`), so that it stops nobody else.
//!
//! Source: QShare §V-D leaves the order and failures open; `docs/reference/controller.md` has ours.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use penstock_fabric::queue_binding::{Mode, Plan, Port, Step};
use penstock_fabric::tenant_placement::TenantSlot;
use penstock_fabric::topology::NodeId;
use tokio::task::JoinSet;

use crate::Stamp;
use crate::fabric_state::Fabric;
use crate::hosts::{HostPlan, HostTenant, Hosts};
use crate::southbound::{DriverError, PortState, SwitchDriver, SwitchState, missing};

mod refusal;

use refusal::Refusals;

/// Where a port of the tree is on a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The switch's own name of it. A link of several cables has several.
    pub names: Vec<String>,
}

/// A switch with its driver.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Its driver.
    pub driver: Arc<dyn SwitchDriver>,
    /// Its ports into the tree.
    pub ports: BTreeMap<Port, Interface>,
    /// Whether it is tried before the others.
    pub canary: bool,
}

/// What went wrong, with whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The server or switch.
    pub node: NodeId,
    /// What it said.
    pub problem: String,
    /// Whether it answered, and said no.
    pub refused: bool,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

/// What became of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Carried out; these were left behind, in the shared queue or with weights of before.
    Done(Vec<Trouble>),
    /// Taken back, because of these.
    TakenBack {
        /// Who failed.
        why: Vec<Trouble>,
        /// Who could not be taken back, and is out of date.
        stuck: Vec<Trouble>,
    },
}

/// What all were told last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// By port.
    pub ports: BTreeMap<Port, PortState>,
    /// The code points that hosts mark with; who is missing is not marked.
    pub marks: BTreeMap<TenantSlot, u8>,
    /// What tenants may send without a queue of their own, in thousandths of their guarantees.
    pub headroom: BTreeMap<TenantSlot, u32>,
}

/// Switches, hosts, and what they were told.
#[derive(Debug)]
pub struct Crew {
    switches: BTreeMap<NodeId, Switch>,
    hosts: Arc<dyn Hosts>,
    told: Told,
    out_of_date: BTreeSet<NodeId>,
    refusals: Refusals,
    /// How long one element may take for one message.
    limit: Duration,
}

/// Steps that may happen at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What ports do. One element is told of weights and maps together: by a code point that is
    /// unmapped no packet is marked any more, by one that is mapped none yet.
    Ports,
    Mark,
    Wait,
    ReadBack,
}

/// By tenant.
fn headroom(fabric: &Fabric) -> BTreeMap<TenantSlot, u32> {
    fabric.tenants().map(|(_, slot, _)| (slot, fabric.headroom_permille(slot))).collect()
}

fn kind(step: &Step) -> Option<Kind> {
    Some(match step {
        Step::Weigh { .. } | Step::Unmap { .. } | Step::Map { .. } => Kind::Ports,
        Step::Mark { .. } => Kind::Mark,
        Step::Wait(_) => Kind::Wait,
        Step::ReadBack(_) => Kind::ReadBack,
        _ => return None,
    })
}

impl Crew {
    /// Nobody was told anything yet.
    #[must_use]
    pub fn new(switches: BTreeMap<NodeId, Switch>, hosts: Arc<dyn Hosts>, limit: Duration) -> Self {
        let out_of_date = switches.keys().copied().collect();
        let (told, refusals) = (Told::default(), Refusals::default());
        Self { switches, hosts, told, out_of_date, refusals, limit }
    }

    /// What all were told last.
    #[must_use]
    pub fn told(&self) -> &Told {
        &self.told
    }

    /// The switches.
    #[must_use]
    pub fn switches(&self) -> &BTreeMap<NodeId, Switch> {
        &self.switches
    }

    /// Elements of which it is not certain what they do.
    #[must_use]
    pub fn out_of_date(&self) -> &BTreeSet<NodeId> {
        &self.out_of_date
    }

    /// Whether an element can be told something: it did what it was told last, no plan was taken
    /// back because of it just now, and if it is a host its agent is here. One that fails holds up
    /// its own tenants and nobody else's.
    #[must_use]
    pub fn reachable(&self, fabric: &Fabric, node: NodeId) -> bool {
        let left_alone = self.out_of_date.contains(&node) || self.refusals.pause(node);
        !left_alone && self.connected(fabric, node)
    }

    /// Whether there was trouble with an element that is not over.
    #[must_use]
    pub fn in_trouble(&self, node: NodeId) -> bool {
        self.out_of_date.contains(&node) || self.refusals.remembers(node)
    }

    /// An interval begins: pauses of elements that refused become shorter.
    pub fn begin_interval(&mut self) {
        self.refusals.begin_interval();
    }

    fn connected(&self, fabric: &Fabric, node: NodeId) -> bool {
        let topology = fabric.topology();
        !topology.is_server(node) || self.hosts.connected(&topology.name(node).to_string())
    }

    /// What is to be told is what the binding says. For a start, and after another leader.
    pub fn assume(&mut self, fabric: &Fabric) {
        let topology = fabric.topology();
        let nodes = (0..topology.layers()).flat_map(|layer| topology.layer(layer));
        self.told.ports = nodes
            .flat_map(|node| fabric.ports_of(node))
            .map(|port| (port, fabric.port(port)))
            .collect();
        let marks = fabric.binding().bound().map(|(slot, _)| (slot, fabric.dscp(slot)));
        self.told.marks = marks.filter(|(_, dscp)| *dscp != 0).collect();
        self.told.headroom = headroom(fabric);
        self.out_of_date = self.switches.keys().copied().collect();
    }

    /// What a host is told.
    #[must_use]
    pub fn host_plan(&self, fabric: &Fabric, server: NodeId, stamp: Stamp) -> HostPlan {
        let topology = fabric.topology();
        let tenant = |slot: TenantSlot| {
            let here = fabric.guarantee_on(slot, server);
            HostTenant {
                name: fabric.name(slot).to_owned(),
                dscp: self.told.marks.get(&slot).copied().unwrap_or(0),
                vms: here.vms,
                send: here.send,
                recv: here.recv,
                headroom_permille: self.told.headroom.get(&slot).copied().unwrap_or(1_000),
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

    /// Carries out a plan of `fabric`; on [`Outcome::TakenBack`] the binding that the plan led to
    /// must be taken back as well.
    pub async fn carry_out(&mut self, fabric: &Fabric, plan: &Plan, stamp: Stamp) -> Outcome {
        let before = self.told.clone();
        let mut touched = BTreeSet::new();
        let mut behind = Vec::new();
        // Hosts mark by new queues: what came before cannot be taken back any more, nor need it be.
        // Where nothing but weights changes no packet depends on another element's.
        let mut marking = plan.steps.iter().all(|step| matches!(step, Step::Weigh { .. }));
        for steps in plan.steps.chunk_by(|a, b| kind(a) == kind(b)) {
            let mut concerned = self.take_in(fabric, steps);
            if steps.iter().any(|s| matches!(s, Step::Mark { dscp, .. } if *dscp != 0)) {
                marking = true;
                // Hosts that are told of both are told once.
                concerned.extend(self.take_in_headroom(fabric));
            }
            touched.extend(concerned.iter().copied());
            let trouble = match steps.first().and_then(kind) {
                Some(Kind::Wait) => {
                    if let Some(Step::Wait(time)) = steps.first() {
                        tokio::time::sleep(Duration::from_nanos(time.0)).await;
                    }
                    Vec::new()
                }
                Some(Kind::ReadBack) => self.compare(&concerned).await,
                _ => self.tell(fabric, &concerned, stamp).await,
            };
            self.out_of_date.extend(trouble.iter().map(|t| t.node));
            if trouble.is_empty() || marking {
                behind.extend(trouble);
                continue;
            }
            trouble.iter().for_each(|t| self.refusals.refused(t.node));
            let stuck = self.take_back(fabric, before, &touched, stamp).await;
            return Outcome::TakenBack { why: trouble, stuck };
        }
        behind.extend(self.tell_headroom(fabric, stamp).await);
        let followed = touched.iter().filter(|node| behind.iter().all(|t| t.node != **node));
        followed.for_each(|node| self.refusals.followed(*node));
        Outcome::Done(behind)
    }

    /// Tells hosts what tenants may send now that share a queue; who could not be told.
    pub async fn tell_headroom(&mut self, fabric: &Fabric, stamp: Stamp) -> Vec<Trouble> {
        let hosts = self.take_in_headroom(fabric);
        let trouble = self.tell(fabric, &hosts, stamp).await;
        self.out_of_date.extend(trouble.iter().map(|t| t.node));
        trouble
    }

    /// These tenants came or moved. Switches get the weights of `steps` now; hosts are told with
    /// the next [`Self::mend`], and mark nobody by queues of where it was before. Returns the
    /// switches that could not be told.
    pub async fn make_room(
        &mut self,
        fabric: &Fabric,
        tenants: &[TenantSlot],
        steps: &[Step],
        stamp: Stamp,
    ) -> Vec<Trouble> {
        for slot in tenants {
            if fabric.dscp(*slot) == 0 {
                self.told.marks.remove(slot);
            }
            self.told.headroom.insert(*slot, fabric.headroom_permille(*slot));
        }
        let concerned = self.take_in(fabric, steps);
        let (switches, hosts): (BTreeSet<_>, BTreeSet<_>) =
            concerned.iter().partition(|node| self.switches.contains_key(node));
        self.out_of_date.extend(hosts);
        let trouble = self.tell(fabric, &switches, stamp).await;
        self.out_of_date.extend(trouble.iter().map(|t| t.node));
        trouble
    }

    /// What there is for who shares a queue follows from all queues' weights, and changes for
    /// tenants of whom no step speaks: the hosts to tell.
    fn take_in_headroom(&mut self, fabric: &Fabric) -> BTreeSet<NodeId> {
        let new = headroom(fabric);
        let other = |slot: &TenantSlot| {
            !self.told.marks.contains_key(slot) && self.told.headroom.get(slot) != new.get(slot)
        };
        let hosts = new.keys().filter(|slot| other(slot)).flat_map(|slot| fabric.servers_of(*slot));
        // Who is out of date is told all that concerns it when it is mended.
        let hosts = hosts.filter(|node| self.reachable(fabric, *node)).collect();
        self.told.headroom = new;
        hosts
    }

    /// Enters steps in what is to be told; whom they concern. Elements that are out of date are
    /// left to be mended.
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
                Step::Mark { tenant, dscp } => {
                    if *dscp == 0 {
                        self.told.marks.remove(tenant);
                    } else {
                        self.told.marks.insert(*tenant, *dscp);
                    }
                    concerned.extend(fabric.servers_of(*tenant));
                }
                // Maps that are set once have all values.
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
        // Who is left alone misses this, and is mended after its pause.
        self.out_of_date.extend(concerned.iter().filter(|node| self.refusals.pause(**node)));
        concerned.retain(|node| self.reachable(fabric, *node));
        concerned
    }

    /// What a switch should do, in its own names.
    fn wanted(&self, switch: &Switch) -> SwitchState {
        let mut state = SwitchState::default();
        for (port, interface) in &switch.ports {
            let told = self.told.ports.get(port).cloned().unwrap_or_default();
            state.ports.extend(interface.names.iter().map(|name| (name.clone(), told.clone())));
        }
        state
    }

    /// Tells elements all that they were to be told: canaries, then the others at once.
    async fn tell(&self, fabric: &Fabric, to: &BTreeSet<NodeId>, stamp: Stamp) -> Vec<Trouble> {
        let canary = |node: &NodeId| self.switches.get(node).is_some_and(|switch| switch.canary);
        let (first, then): (Vec<NodeId>, Vec<NodeId>) = to.iter().partition(|node| canary(node));
        let trouble = self.tell_all(fabric, &first, stamp).await;
        if !trouble.is_empty() {
            return trouble;
        }
        self.tell_all(fabric, &then, stamp).await
    }

    async fn tell_all(&self, fabric: &Fabric, to: &[NodeId], stamp: Stamp) -> Vec<Trouble> {
        let mut tasks = Tasks::default();
        let limit = self.limit;
        for node in to.iter().copied() {
            if let Some(switch) = self.switches.get(&node) {
                let (driver, wanted) = (Arc::clone(&switch.driver), self.wanted(switch));
                tasks.spawn(node, async move {
                    within(limit, driver.name(), bring_to(&*driver, &wanted, stamp)).await
                });
            } else {
                let hosts = Arc::clone(&self.hosts);
                let name = fabric.topology().name(node).to_string();
                let plan = self.host_plan(fabric, node, stamp);
                tasks.spawn(node, async move {
                    let told = async {
                        hosts.tell(&name, plan).await.map_err(|error| Said::failed(&error))
                    };
                    within(limit, &name, told).await
                });
            }
        }
        tasks.all().await.1
    }

    /// Asks switches what they do, and compares it with what they were told.
    async fn compare(&self, nodes: &BTreeSet<NodeId>) -> Vec<Trouble> {
        let mut tasks = Tasks::default();
        let limit = self.limit;
        for (node, switch) in nodes.iter().filter_map(|n| Some((*n, self.switches.get(n)?))) {
            let (driver, wanted) = (Arc::clone(&switch.driver), self.wanted(switch));
            tasks.spawn(node, async move {
                let read = async {
                    let wrong = missing(&*driver, &wanted).await?;
                    let Some(first) = wrong.first() else { return Ok(()) };
                    let (name, words) =
                        (driver.name(), driver.words(std::slice::from_ref(first)).await);
                    let words = words.unwrap_or_default().join(", ");
                    let problem =
                        format!("switch {name}: does not do what it was told: {words} is missing");
                    Err(Said { problem, refused: true })
                };
                within(limit, driver.name(), read).await
            });
        }
        tasks.all().await.1
    }

    /// Takes back what was told: queues and maps of before are there again before hosts mark by
    /// them.
    async fn take_back(
        &mut self,
        fabric: &Fabric,
        before: Told,
        touched: &BTreeSet<NodeId>,
        stamp: Stamp,
    ) -> Vec<Trouble> {
        self.told = before;
        let (switches, hosts): (BTreeSet<_>, BTreeSet<_>) =
            touched.iter().partition(|node| self.switches.contains_key(node));
        let mut stuck = self.tell(fabric, &switches, stamp).await;
        stuck.extend(self.tell(fabric, &hosts, stamp).await);
        self.out_of_date.extend(stuck.iter().map(|t| t.node));
        // Who failed and then could be taken back is as it should be.
        for node in touched.iter().filter(|node| stuck.iter().all(|t| t.node != **node)) {
            self.out_of_date.remove(node);
        }
        stuck
    }

    /// Reads what the elements that are out of date do, and makes it what it should be; who is
    /// still out of reach stays so. Returns who was changed, with what, and who could not be.
    pub async fn mend(
        &mut self,
        fabric: &Fabric,
        stamp: Stamp,
    ) -> (Vec<(NodeId, Vec<String>)>, Vec<Trouble>) {
        let mut tasks = Tasks::default();
        let limit = self.limit;
        for node in self.out_of_date.iter().filter(|node| !self.refusals.pause(**node)) {
            let Some(switch) = self.switches.get(node) else { continue };
            let (driver, wanted) = (Arc::clone(&switch.driver), self.wanted(switch));
            tasks.spawn(*node, async move {
                let mended = async {
                    let changes = missing(&*driver, &wanted).await?;
                    let words = driver.words(&changes).await.unwrap_or_default();
                    driver.apply(stamp, &changes).await?;
                    Ok(words)
                };
                within(limit, driver.name(), mended).await
            });
        }
        // A host is told all that concerns it in any case.
        let hosts = self.out_of_date.iter().copied();
        let hosts: BTreeSet<NodeId> = hosts
            .filter(|node| !self.switches.contains_key(node) && self.connected(fabric, *node))
            .collect();
        let mut trouble = self.tell(fabric, &hosts, stamp).await;
        for node in hosts.iter().filter(|node| trouble.iter().all(|t| t.node != **node)) {
            self.out_of_date.remove(node);
        }
        let (mended, failed) = tasks.all().await;
        for (node, _) in &mended {
            self.out_of_date.remove(node);
        }
        failed.iter().filter(|t| t.refused).for_each(|t| self.refusals.refused(t.node));
        trouble.extend(failed);
        (mended, trouble)
    }

    /// Compares what all switches do with what they were told; who differs is out of date.
    pub async fn verify(&mut self) -> Vec<Trouble> {
        let known: BTreeSet<NodeId> = self.switches.keys().copied().collect();
        let trouble = self.compare(&known.difference(&self.out_of_date).copied().collect()).await;
        self.out_of_date.extend(trouble.iter().map(|t| t.node));
        trouble
    }

    /// A host's agent came, or a tenant came to a host: it is told with the next [`Self::mend`].
    pub fn must_tell(&mut self, node: NodeId) {
        self.out_of_date.insert(node);
    }

    /// A host's agent came, or came back: what it refused before says nothing any more.
    pub fn came(&mut self, node: NodeId) {
        self.refusals.followed(node);
        self.must_tell(node);
    }
}

/// Why an element did not do what it was told.
struct Said {
    problem: String,
    refused: bool,
}

impl Said {
    fn failed(error: &dyn fmt::Display) -> Self {
        Self { problem: error.to_string(), refused: false }
    }
}

impl From<DriverError> for Said {
    fn from(error: DriverError) -> Self {
        let refused = matches!(error, DriverError::Refused { .. } | DriverError::Beyond { .. });
        Self { problem: error.to_string(), refused }
    }
}

/// What is asked of several elements at once.
struct Tasks<T> {
    set: JoinSet<Result<T, Said>>,
    nodes: HashMap<tokio::task::Id, NodeId>,
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self { set: JoinSet::new(), nodes: HashMap::new() }
    }
}

impl<T: Send + 'static> Tasks<T> {
    fn spawn(
        &mut self,
        node: NodeId,
        task: impl Future<Output = Result<T, Said>> + Send + 'static,
    ) {
        self.nodes.insert(self.set.spawn(task).id(), node);
    }

    /// What all answered, by element. A task that panicked is an element that did not follow.
    async fn all(mut self) -> (Vec<(NodeId, T)>, Vec<Trouble>) {
        let (mut done, mut trouble) = (Vec::new(), Vec::new());
        while let Some(next) = self.set.join_next_with_id().await {
            let (id, result) = match next {
                Ok((id, result)) => (id, result),
                Err(error) => (error.id(), Err(Said::failed(&format!("a fault here: {error}")))),
            };
            let Some(node) = self.nodes.get(&id).copied() else { continue };
            match result {
                Ok(value) => done.push((node, value)),
                Err(Said { problem, refused }) => trouble.push(Trouble { node, problem, refused }),
            }
        }
        done.sort_by_key(|(node, _)| *node);
        trouble.sort_by_key(|t| t.node);
        (done, trouble)
    }
}

async fn bring_to(
    driver: &dyn SwitchDriver,
    wanted: &SwitchState,
    stamp: Stamp,
) -> Result<(), Said> {
    let changes = missing(driver, wanted).await?;
    Ok(driver.apply(stamp, &changes).await?)
}

async fn within<T>(
    limit: Duration,
    name: &str,
    work: impl Future<Output = Result<T, Said>>,
) -> Result<T, Said> {
    let late = |_| Said::failed(&format!("{name}: no answer within {} ms", limit.as_millis()));
    tokio::time::timeout(limit, work).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}
