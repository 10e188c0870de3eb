//! The leader's state of the fabric, and the decision of an interval. The state has tenants with
//! their placements, scores and queues.
//!
//! # Approach
//!
//! This module uses no clock, disk or network. It receives events and returns decisions. The caller
//! stores a change before it carries it out. If the store refuses the change, the caller drops it.
//!
//! # Source
//!
//! The decision follows QShare §IV and §V.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::hose::Need;
use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::{
    Bound, Candidate, Mode as MapMode, Pass, Port, ResumeError, Settings, SettingsError, Step,
};
use penstock_fabric::score::{HostUsage, Smoothed, score};
use penstock_fabric::tenant_placement::{
    Affinity, ChangeError, Datacenter, Move, Moved, Policy, PolicyError, Refusal, Request, Tenant,
    TenantSlot,
};
use penstock_fabric::topology::{LinkId, NodeId, Topology};
use penstock_units::BitsPerSecond;
use thiserror::Error;

use crate::Stamp;
use crate::intent::{
    BindingRecord, BoundRecord, ClassRecord, IntentError, Names, PlacementRecord, TenantRecord,
    TenantSpec, VERSION,
};
use crate::southbound::PortState;

pub use penstock_fabric::queue_binding::Binding;

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ChangeRefused {
    /// A tenant of that name exists.
    #[error("tenant {0} exists already; remove it first, or grow it")]
    Exists(String),
    /// No tenant of that name exists.
    #[error("there is no tenant {0}; `penstock controller tenants` lists them")]
    Unknown(String),
    /// No server or switch of that name exists.
    #[error("there is no server or switch {0}; `penstock controller topology` lists them")]
    UnknownNode(String),
    /// The tenant cannot be placed.
    #[error("tenant {name}: {refusal}")]
    NoPlace {
        name: String,
        /// The reason, and a request that would fit.
        refusal: Box<Refusal>,
    },
    /// The tenant cannot grow in this way.
    #[error("tenant {name}: {problem}")]
    Change { name: String, problem: Box<ChangeError> },
    /// The request is invalid.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// A stored placement does not fit into the present topology.
    #[error(
        "tenant {name}: {problem}; add the missing part of the topology again, or remove the tenant"
    )]
    NoRoom { name: String, problem: String },
}

/// Why settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FabricError {
    #[error("placement: {0}")]
    Policy(#[from] PolicyError),
    #[error("binding: {0}")]
    Binding(#[from] SettingsError),
}

/// Network traffic of a tenant's VMs on one server during an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub tenant: String,
    pub sent: BitsPerSecond,
    pub received: BitsPerSecond,
}

/// Measurements of an interval. The key is the server.
pub type Usage = BTreeMap<NodeId, Vec<Used>>;

/// Usage of a tenant. The values follow from the measurements of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Rate that all of the tenant's VMs sent, in bit/s.
    pub sent: u64,
    /// Rate that all of the tenant's VMs received, in bit/s.
    pub received: u64,
    /// Largest used fraction of the tenant's guarantee on any server, in thousandths.
    pub used_permille: u64,
}

/// The leader's state of the fabric.
#[derive(Clone, Debug)]
pub struct Fabric {
    datacenter: Datacenter,
    slots: BTreeMap<String, TenantSlot>,
    specs: BTreeMap<TenantSlot, TenantSpec>,
    binding: Binding,
    scores: BTreeMap<TenantSlot, Smoothed>,
    measured: BTreeMap<TenantSlot, Measured>,
    /// The tenants with VMs on each server.
    present: BTreeMap<NodeId, BTreeSet<TenantSlot>>,
    /// Removed tenants that still have queues. Their slots are not reused until these queues are
    /// released.
    leaving: BTreeMap<TenantSlot, Leaving>,
}

/// A removed tenant that still has queues.
#[derive(Clone, Debug, Default)]
struct Leaving {
    links: Vec<(LinkId, Need)>,
    /// Hosts that may still mark with the tenant's code point. The tenant's queues stay until there
    /// is no such host.
    marking: BTreeSet<NodeId>,
}

impl Fabric {
    /// Creates the state of a datacenter without tenants.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn new(
        topology: Topology,
        headroom_permille: u32,
        policy: Policy,
        settings: Settings,
    ) -> Result<Self, FabricError> {
        let binding = Binding::new(settings, topology.links())?;
        let datacenter = Datacenter::new(topology, headroom_permille, policy)?;
        Ok(Self {
            datacenter,
            slots: BTreeMap::new(),
            specs: BTreeMap::new(),
            binding,
            scores: BTreeMap::new(),
            measured: BTreeMap::new(),
            present: BTreeMap::new(),
            leaving: BTreeMap::new(),
        })
    }

    /// Returns the placements and reservations.
    #[must_use]
    pub fn datacenter(&self) -> &Datacenter {
        &self.datacenter
    }

    #[must_use]
    pub fn topology(&self) -> &Topology {
        self.datacenter.topology()
    }

    #[must_use]
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Returns all tenants, ordered by name.
    pub fn tenants(&self) -> impl Iterator<Item = (&str, TenantSlot, &Tenant)> {
        let tenant = |slot: &TenantSlot| self.datacenter.tenant(*slot);
        self.slots
            .iter()
            .filter_map(move |(name, slot)| Some((name.as_str(), *slot, tenant(slot)?)))
    }

    #[must_use]
    pub fn slot(&self, name: &str) -> Option<TenantSlot> {
        self.slots.get(name).copied()
    }

    /// Returns the name of a tenant. The name is empty if the slot has no tenant.
    #[must_use]
    pub fn name(&self, slot: TenantSlot) -> &str {
        self.specs.get(&slot).map_or("", |spec| spec.name.as_str())
    }

    /// Smoothed score of a tenant in bit/s.
    #[must_use]
    pub fn score(&self, slot: TenantSlot) -> u64 {
        self.scores.get(&slot).map_or(0, |score| score.get())
    }

    /// Usage of a tenant in the last interval.
    #[must_use]
    pub fn measured(&self, slot: TenantSlot) -> Measured {
        self.measured.get(&slot).copied().unwrap_or_default()
    }

    pub fn tenants_on(&self, server: NodeId) -> impl Iterator<Item = TenantSlot> + '_ {
        self.present.get(&server).into_iter().flatten().copied()
    }

    pub fn servers_of(&self, slot: TenantSlot) -> impl Iterator<Item = NodeId> + '_ {
        let tenant = self.datacenter.tenant(slot);
        let slots = tenant.into_iter().flat_map(|tenant| &tenant.placement.entry.slots);
        slots.map(|(server, _)| *server)
    }

    /// Places a tenant.
    ///
    /// # Errors
    /// The tenant exists, is invalid, or cannot be placed.
    pub fn add(&mut self, spec: TenantSpec) -> Result<TenantRecord, ChangeRefused> {
        if self.slots.contains_key(&spec.name) {
            return Err(ChangeRefused::Exists(spec.name));
        }
        let request = self.request(&spec)?;
        self.free_slots();
        let slot = self.datacenter.place(&request).map_err(|refusal| {
            let (name, refusal) = (spec.name.clone(), Box::new(refusal));
            ChangeRefused::NoPlace { name, refusal }
        })?;
        self.enter(slot, spec);
        Ok(self.record(slot))
    }

    /// Adds a stored tenant at its stored placement.
    ///
    /// # Errors
    /// The topology lacks the place or has no room there.
    pub fn restore(&mut self, record: TenantRecord) -> Result<(), ChangeRefused> {
        let name = record.spec.name.clone();
        if self.slots.contains_key(&name) {
            return Err(ChangeRefused::Exists(name));
        }
        let names = Names(self.datacenter.topology());
        let placement = record.placement.placement(&name, names)?;
        let request = self.request(&record.spec)?;
        self.free_slots();
        let placed = self.datacenter.place_at(request, placement);
        let slot = placed.map_err(|problem| {
            let cause = std::error::Error::source(&problem).map(ToString::to_string);
            let problem = cause.unwrap_or_else(|| problem.to_string());
            ChangeRefused::NoRoom { name, problem }
        })?;
        self.enter(slot, record.spec);
        Ok(())
    }

    /// Removes a tenant. Its queues stay until [`Self::note_marking`] finds no host that may still
    /// mark for the tenant. The next pass then releases them.
    ///
    /// # Errors
    /// There is no such tenant.
    pub fn remove(&mut self, name: &str) -> Result<(), ChangeRefused> {
        let slot = self.slots.remove(name);
        let slot = slot.ok_or_else(|| ChangeRefused::Unknown(name.to_owned()))?;
        let (links, marking) = (self.links(slot).to_vec(), self.servers_of(slot).collect());
        self.datacenter.retire(slot);
        self.leaving.insert(slot, Leaving { links, marking });
        self.specs.remove(&slot);
        self.scores.remove(&slot);
        self.measured.remove(&slot);
        self.find_present();
        Ok(())
    }

    /// Frees the slots of removed tenants that no longer have queues.
    fn free_slots(&mut self) {
        let Self { leaving, binding, datacenter, .. } = self;
        leaving.retain(|slot, _| {
            let bound = binding.of(*slot).is_some();
            if !bound {
                datacenter.free(*slot);
            }
            bound
        });
    }

    /// Updates which hosts may still mark for removed tenants. `out_of_date` has the hosts without
    /// their present plan. Such a host marks by its last plan, unless an operator has set it to
    /// failed.
    pub fn note_marking(&mut self, out_of_date: &BTreeSet<NodeId>) {
        let ledger = self.datacenter.ledger();
        for leaving in self.leaving.values_mut() {
            leaving.marking.retain(|server| {
                out_of_date.contains(server) && ledger.service(*server) != Service::Failed
            });
        }
    }

    /// Adds `more` VMs of a class to a tenant.
    ///
    /// # Errors
    /// The tenant cannot grow. It then keeps its VMs.
    pub fn grow(
        &mut self,
        name: &str,
        class: usize,
        more: u32,
        may_move: bool,
    ) -> Result<(Moved, TenantRecord), ChangeRefused> {
        let slot = self.slot(name).ok_or_else(|| ChangeRefused::Unknown(name.to_owned()))?;
        let moved = self.datacenter.grow(slot, class, more, may_move).map_err(|problem| {
            let (name, problem) = (name.to_owned(), Box::new(problem));
            ChangeRefused::Change { name, problem }
        })?;
        if let Some(spec) = self.specs.get_mut(&slot) {
            spec.classes[class].vms += more;
        }
        self.find_present();
        Ok((moved, self.record(slot)))
    }

    /// Changes a node's state. If `evacuate` is true, the node's tenants move.
    ///
    /// # Errors
    /// There is no such node.
    pub fn set_service(
        &mut self,
        node: &str,
        service: Service,
        evacuate: bool,
    ) -> Result<Vec<Move>, ChangeRefused> {
        let found = self.topology().find(node);
        let found = found.ok_or_else(|| ChangeRefused::UnknownNode(node.to_owned()))?;
        let moves = if evacuate && service != Service::In {
            self.datacenter.evacuate(found, service)
        } else {
            self.datacenter.set_service(found, service);
            Vec::new()
        };
        self.find_present();
        Ok(moves)
    }

    /// Returns the stored form of a tenant.
    #[must_use]
    pub fn record(&self, slot: TenantSlot) -> TenantRecord {
        let names = Names(self.topology());
        let placement = &self.datacenter.tenant(slot).expect("it was placed").placement;
        TenantRecord {
            version: VERSION,
            spec: self.specs.get(&slot).cloned().unwrap_or_default(),
            placement: PlacementRecord::of(placement, names),
        }
    }

    fn request(&self, spec: &TenantSpec) -> Result<Request, ChangeRefused> {
        let names = Names(self.topology());
        // A reference to a removed tenant has no effect, so it is left out.
        let others = |list: &[(String, usize)]| {
            list.iter().filter_map(|(name, layer)| Some((self.slot(name)?, *layer))).collect()
        };
        let affinity = Affinity {
            within: spec.within(names)?,
            near: others(&spec.near),
            apart: others(&spec.apart),
        };
        Ok(Request { hose: spec.hose()?, spread: spec.spread(), affinity })
    }

    fn enter(&mut self, slot: TenantSlot, spec: TenantSpec) {
        self.slots.insert(spec.name.clone(), slot);
        self.specs.insert(slot, spec);
        for server in self.servers_of(slot).collect::<Vec<_>>() {
            self.present.entry(server).or_default().insert(slot);
        }
    }

    fn find_present(&mut self) {
        self.present.clear();
        for (slot, tenant) in self.datacenter.tenants() {
            for (server, _) in &tenant.placement.entry.slots {
                self.present.entry(*server).or_default().insert(slot);
            }
        }
    }

    /// Runs a binding pass by scores. `reachable` says whether a server or switch can be reached.
    /// If `hold` is true, tenants get or lose queues only if they must.
    pub fn rebind(&mut self, reachable: impl Fn(NodeId) -> bool, hold: bool) -> Pass {
        self.with_candidates(reachable, hold, |binding, topology, candidates| {
            binding.pass(topology, candidates)
        })
    }

    /// Changes the binding, given all tenants with their scores and links.
    pub(crate) fn with_candidates(
        &mut self,
        reachable: impl Fn(NodeId) -> bool,
        hold: bool,
        change: impl FnOnce(&mut Binding, &Topology, &[Candidate<'_>]) -> Pass,
    ) -> Pass {
        let Self { datacenter, binding, scores, leaving, .. } = self;
        let topology = datacenter.topology();
        let leaving = leaving.iter().filter(|(_, leaving)| !leaving.marking.is_empty());
        let leaving = leaving.map(|(tenant, Leaving { links, .. })| Candidate {
            tenant: *tenant,
            score: 0,
            links,
            movable: false,
        });
        let candidates: Vec<Candidate<'_>> = datacenter
            .tenants()
            .map(|(tenant, placed)| {
                let links = placed.placement.entry.links.as_slice();
                let told = links.iter().all(|(link, _)| {
                    reachable(topology.child(*link)) && reachable(topology.parent(*link))
                });
                let score = scores.get(&tenant).map_or(0, |score| score.get());
                Candidate { tenant, score, links, movable: told && !hold }
            })
            .chain(leaving)
            .collect();
        change(binding, topology, &candidates)
    }

    /// Updates scores and usage at the end of an interval.
    pub fn follow(&mut self, usage: &Usage) {
        let mut of_tenant: BTreeMap<TenantSlot, Vec<HostUsage>> = BTreeMap::new();
        for (server, used) in usage {
            for used in used {
                let Some(slot) = self.slots.get(&used.tenant) else { continue };
                let Some(tenant) = self.datacenter.tenant(*slot) else { continue };
                // If the server has no such VMs, the usage was measured before they moved.
                let vms = tenant.placement.vms_on(*server);
                let (sent, received) = (used.sent, used.received);
                of_tenant.entry(*slot).or_default().push(HostUsage { vms, sent, received });
            }
        }
        for (slot, tenant) in self.datacenter.tenants() {
            let hosts = of_tenant.remove(&slot).unwrap_or_default();
            let hose = &tenant.request.hose;
            self.scores.entry(slot).or_default().follow(score(hose, &hosts));
            let sum = |of: fn(&HostUsage) -> u64| hosts.iter().map(of).sum::<u64>();
            let measured = Measured {
                sent: sum(|host| host.sent.0),
                received: sum(|host| host.received.0),
                used_permille: used_permille(hose, &hosts),
            };
            self.measured.insert(slot, measured);
        }
    }

    /// Resumes a stored binding. Tenants and links that no longer exist lose their queues.
    ///
    /// # Errors
    /// The record contradicts itself.
    pub fn resume(&mut self, record: &BindingRecord) -> Result<(), ResumeError> {
        let names = Names(self.datacenter.topology());
        let known =
            |bound: &BoundRecord| Some((*self.slots.get(&bound.tenant)?, bound.bound(names).ok()?));
        let bound: Vec<(TenantSlot, Bound)> = record.bound.iter().filter_map(known).collect();
        let (settings, links) = (self.binding.settings().clone(), names.0.links());
        self.binding = Binding::resume(settings, links, record.interval, bound)?;
        Ok(())
    }

    /// Adds the reservations of all tenants, so that ports have weights before the first pass.
    pub fn reserve_all(&mut self) {
        let Self { datacenter, binding, .. } = self;
        let all = datacenter.tenants().map(|(slot, t)| (slot, t.placement.entry.links.as_slice()));
        binding.reserve_all(datacenter.topology(), all);
    }

    /// Adds the reservations of a tenant that arrived, grew or moved. `before` are its earlier
    /// reservations. Returns the steps that set new weights.
    pub fn reserve(&mut self, slot: TenantSlot, before: &[(LinkId, Need)]) -> Vec<Step> {
        let Self { datacenter, binding, .. } = self;
        let Some(tenant) = datacenter.tenant(slot) else { return Vec::new() };
        let now = &tenant.placement.entry.links;
        binding.reserve(datacenter.topology(), slot, before, now)
    }

    /// Returns the links of a tenant, and the tenant's reservations there.
    #[must_use]
    pub fn links(&self, slot: TenantSlot) -> &[(LinkId, Need)] {
        let tenant = self.datacenter.tenant(slot);
        tenant.map_or(&[][..], |tenant| tenant.placement.entry.links.as_slice())
    }

    /// Restores the binding from before a pass that was rolled back.
    pub fn put_back(&mut self, binding: Binding) {
        self.binding = binding;
    }

    /// Returns the stored form of the binding.
    #[must_use]
    pub fn binding_record(&self, stamp: Stamp) -> BindingRecord {
        let names = Names(self.topology());
        let one = |(slot, bound)| BoundRecord::of(self.name(slot), bound, names);
        BindingRecord {
            version: VERSION,
            stamp,
            interval: self.binding.interval(),
            bound: self.binding.bound().map(one).collect(),
        }
    }

    /// Returns the intended state of a port.
    #[must_use]
    pub fn port(&self, port: Port) -> PortState {
        let settings = self.binding.settings();
        let one = vec![1; usize::from(settings.queues)];
        let weights = self.binding.weights(port).map_or(one, |weights| weights.weights.clone());
        let queues = 1..settings.queues;
        let map = match settings.mode {
            MapMode::StaticMap => settings.palette.values().iter().copied().zip(queues).collect(),
            _ => {
                let held = |queue| {
                    let holder = self.binding.holder(port, queue)?;
                    Some((self.binding.of(holder)?.dscp, queue))
                };
                queues.filter_map(held).collect()
            }
        };
        PortState { weights, map }
    }

    /// Returns the code point of a tenant, or 0 if it shares queue 0. If a tenant has moved away
    /// from its queues, it shares queue 0 until the next pass.
    #[must_use]
    pub fn dscp(&self, slot: TenantSlot) -> u8 {
        let bound = self.binding.of(slot).filter(|_| self.binding.covers(slot, self.links(slot)));
        bound.map_or(0, |bound| bound.dscp)
    }

    /// Returns the ports through which a node sends.
    #[must_use]
    pub fn ports_of(&self, node: NodeId) -> Vec<Port> {
        let topology = self.topology();
        let down = topology.down(node).map(|link| Port { link, up: false });
        let up = topology.up(node).map(|link| Port { link, up: true });
        down.chain(up).collect()
    }

    /// Sending limit of a tenant without a queue of its own, in thousandths of its guarantee.
    #[must_use]
    pub fn headroom_permille(&self, slot: TenantSlot) -> u32 {
        self.binding.headroom_permille(self.topology(), self.links(slot))
    }

    /// Sum of the guarantees of a tenant's VMs on a server, in bit/s.
    #[must_use]
    pub fn guarantee_on(&self, slot: TenantSlot, server: NodeId) -> ClassRecord {
        let mut all = ClassRecord { vms: 0, send: 0, recv: 0 };
        let Some(tenant) = self.datacenter.tenant(slot) else { return all };
        for share in tenant.placement.shares.iter().filter(|share| share.server == server) {
            let Some(class) = tenant.request.hose.classes().get(share.class as usize) else {
                continue;
            };
            all.vms += share.vms;
            all.send += class.send.0 * u64::from(share.vms);
            all.recv += class.recv.0 * u64::from(share.vms);
        }
        all
    }
}

/// Returns the largest used fraction of a guarantee on any server, in thousandths. It is at most
/// 1,000.
fn used_permille(hose: &penstock_fabric::hose::Hose, hosts: &[HostUsage]) -> u64 {
    let payment = penstock_fabric::score::payment(hose);
    let used = u128::from(score(hose, hosts)) * 1000;
    used.checked_div(u128::from(payment)).and_then(|part| u64::try_from(part).ok()).unwrap_or(0)
}
