//! Holds the leader's state of the fabric: the tenants, with their placements, scores and queues.
//! Once per interval, the leader decides which tenants have their own queues.
//!
//! # Terms
//!
//! - A tenant's *score* says how much the tenant needs its own queues ([`penstock_fabric::score`]).
//! - The *binding* says which queues and which code point each tenant has.
//! - A *pass* computes the next binding of tenants to queues from the tenants' scores
//!   ([`penstock_fabric::queue_binding`]).
//! - A *slot* is the number of a tenant in the leader's state.
//!
//! # Approach
//!
//! The leader's state uses no clock, disk or network. The methods of the leader's state take events
//! and return decisions. The caller stores a change before it executes the change. If the store
//! refuses a change, the caller drops the change.
//!
//! # Source
//!
//! The leader decides which tenants have their own queues as QShare §IV and §V describe.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::hose::Need;
use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::{
    Bound, Candidate, Mode as MapMode, Pass, Port, ResumeError, Settings, SettingsError, Step,
};
use penstock_fabric::score::{HostUsage, Smoothed, score};
use penstock_fabric::tenant_placement::{
    Affinity, ChangeError, Datacenter, Move, Moved, Policy, PolicyError, Refusal, Request, SlotMap,
    Tenant, TenantSlot,
};
use penstock_fabric::topology::{LinkId, NodeId, Topology};
use penstock_units::{BitsPerSecond, NAME_REMEDY, NameMistake};
use thiserror::Error;

use crate::Stamp;
use crate::intent::{
    BindingRecord, BoundRecord, ClassRecord, IntentError, Names, PlacementRecord, TenantRecord,
    TenantSpec, VERSION,
};
use crate::southbound::PortState;

pub use penstock_fabric::queue_binding::Binding;

/// Separates the name of a removed tenant from its slot. A tenant's name never has this character.
const REMOVED: char = '~';

/// Reason why the leader refused a change of tenants or nodes.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ChangeRefused {
    /// A tenant with the requested name already exists.
    #[error("tenant {0} exists already; remove it first, or grow it")]
    Exists(String),
    /// The tenant's name cannot be used in keys of the store and in labels of metrics.
    #[error("tenant {name:?}: {mistake}; {NAME_REMEDY}")]
    Name { name: String, mistake: NameMistake },
    /// No tenant with the requested name exists.
    #[error("there is no tenant {0}; `penstock controller tenants` lists them")]
    Unknown(String),
    /// No server or switch with the requested name exists.
    #[error("there is no server or switch {0}; `penstock controller topology` lists them")]
    UnknownNode(String),
    /// The datacenter has no place for the tenant's VMs.
    #[error("tenant {name}: {refusal}")]
    NoPlace {
        name: String,
        /// Reason why the tenant does not fit, and a smaller request that would fit.
        refusal: Box<Refusal>,
    },
    /// The tenant cannot grow by the requested VMs.
    #[error("tenant {name}: {problem}")]
    Change { name: String, problem: Box<ChangeError> },
    /// The tenant's request is invalid.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// The stored placement of a tenant does not fit into the present topology.
    #[error(
        "tenant {name}: {problem}; add the missing part of the topology again, or remove the tenant"
    )]
    NoRoom { name: String, problem: String },
}

/// Reason why the settings of placement or binding are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FabricError {
    #[error("placement: {0}")]
    Policy(#[from] PolicyError),
    #[error("binding: {0}")]
    Binding(#[from] SettingsError),
}

/// Network traffic of a tenant's VMs on one server during an interval, in bit/s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub tenant: String,
    pub sent: BitsPerSecond,
    pub received: BitsPerSecond,
}

/// Traffic of all tenants in one interval, by server.
pub type Usage = BTreeMap<NodeId, Vec<Used>>;

/// Usage of a tenant in one interval, computed from the hosts' measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Rate at which all VMs of the tenant together sent, in bit/s.
    pub sent: u64,
    /// Rate at which all VMs of the tenant together received, in bit/s.
    pub received: u64,
    /// Largest fraction of the tenant's guarantee that its VMs used on any server, in thousandths.
    pub used_permille: u64,
}

/// Tenants with VMs on each server, each with the number of its VMs there and the sum of their
/// guarantees in bit/s.
type Present = BTreeMap<NodeId, BTreeMap<TenantSlot, ClassRecord>>;

/// The leader's state of the fabric: placements, queues, scores and measurements of tenants.
#[derive(Clone, Debug)]
pub struct Fabric {
    datacenter: Datacenter,
    slots: BTreeMap<String, TenantSlot>,
    specs: SlotMap<TenantSpec>,
    binding: Binding,
    scores: SlotMap<Smoothed>,
    measured: SlotMap<Measured>,
    present: Present,
    /// Removed tenants that still have queues. Another tenant can get the number (slot) of a
    /// removed tenant only after the queues are released.
    leaving: BTreeMap<TenantSlot, Leaving>,
    /// Tenants that still have queues on the links of an earlier placement.
    moved: BTreeMap<TenantSlot, Leaving>,
    /// Links with a port that a driver leaves out. Tenants that use these links share queue 0.
    left_out: BTreeSet<LinkId>,
}

/// Queues that a tenant no longer needs, because it was removed or moved: their links, and the
/// hosts that may still mark packets for them.
#[derive(Clone, Debug, Default)]
struct Leaving {
    /// Name under which the store has the queues of a removed tenant.
    name: String,
    links: Vec<(LinkId, Need)>,
    /// Hosts that may still mark packets with the tenant's code point. The tenant's queues stay
    /// until no host marks packets with the tenant's code point.
    marking: BTreeSet<NodeId>,
}

impl Fabric {
    /// Creates the state of a datacenter without tenants.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid.
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
            specs: SlotMap::default(),
            binding,
            scores: SlotMap::default(),
            measured: SlotMap::default(),
            present: BTreeMap::new(),
            leaving: BTreeMap::new(),
            moved: BTreeMap::new(),
            left_out: BTreeSet::new(),
        })
    }

    /// Returns the placements of all tenants and their reservations on links.
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

    /// Returns the name of the tenant with the number `slot`, or an empty text if no tenant has
    /// this number.
    #[must_use]
    pub fn name(&self, slot: TenantSlot) -> &str {
        self.specs.get(slot).map_or("", |spec| spec.name.as_str())
    }

    /// Returns the name under which the store has the queues of a tenant. A removed tenant has such
    /// a name while it has queues.
    #[must_use]
    pub fn stored_name(&self, slot: TenantSlot) -> &str {
        self.leaving.get(&slot).map_or_else(|| self.name(slot), |leaving| leaving.name.as_str())
    }

    /// Returns the hosts that may still mark packets for queues of tenants that were removed or
    /// moved.
    pub fn marking(&self) -> impl Iterator<Item = NodeId> + '_ {
        let all = self.leaving.values().chain(self.moved.values());
        all.flat_map(|leaving| leaving.marking.iter().copied())
    }

    /// Returns the smoothed score of a tenant, in bit/s.
    #[must_use]
    pub fn score(&self, slot: TenantSlot) -> u64 {
        self.scores.get(slot).map_or(0, |score| score.get())
    }

    /// Returns the usage of a tenant in the last interval. The usage is zero if no host measured
    /// the tenant.
    #[must_use]
    pub fn measured(&self, slot: TenantSlot) -> Measured {
        self.measured.get(slot).copied().unwrap_or_default()
    }

    /// Returns the tenants on a server, each with the number of its VMs there and the sum of their
    /// guarantees in bit/s.
    pub fn tenants_on(&self, server: NodeId) -> impl Iterator<Item = (TenantSlot, ClassRecord)> {
        self.present.get(&server).into_iter().flatten().map(|(slot, all)| (*slot, *all))
    }

    pub fn servers_of(&self, slot: TenantSlot) -> impl Iterator<Item = NodeId> + '_ {
        let tenant = self.datacenter.tenant(slot);
        let slots = tenant.into_iter().flat_map(|tenant| &tenant.placement.entry.slots);
        slots.map(|(server, _)| *server)
    }

    /// Places a new tenant on servers.
    ///
    /// # Errors
    /// Returns an error if the tenant exists, its request is invalid, or no place is found for its
    /// VMs.
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

    /// Adds stored tenants at their stored placements, in this order. Tenants stay on nodes that
    /// are out of service. Returns the names of the tenants that could not be added, with the
    /// reasons.
    pub fn restore_all(&mut self, records: Vec<TenantRecord>) -> Vec<(String, ChangeRefused)> {
        let topology = self.datacenter.topology();
        let nodes = (0..topology.layers()).flat_map(|layer| topology.layer(layer));
        let states = nodes.map(|node| (node, self.datacenter.ledger().service(node)));
        let out: Vec<_> = states.filter(|(_, service)| *service != Service::In).collect();
        for (node, _) in &out {
            self.datacenter.set_service(*node, Service::In);
        }
        let mut refused = Vec::new();
        for record in records {
            let name = record.spec.name.clone();
            refused.extend(self.restore(record).err().map(|problem| (name, problem)));
        }
        for (node, service) in out {
            self.datacenter.set_service(node, service);
        }
        refused
    }

    /// Adds a stored tenant at its stored placement.
    ///
    /// # Errors
    /// Returns an error if the topology lacks a server or link of the placement, or if a server or
    /// link has no room.
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

    /// Removes a tenant. The tenant keeps its queues while a host may still mark packets with the
    /// tenant's code point ([`Self::note_marking`]). When no host marks packets for a removed
    /// tenant, the next binding pass releases the tenant's queues.
    ///
    /// # Errors
    /// Returns an error if no tenant has the name `name`.
    pub fn remove(&mut self, name: &str) -> Result<(), ChangeRefused> {
        let slot = self.slots.remove(name);
        let slot = slot.ok_or_else(|| ChangeRefused::Unknown(name.to_owned()))?;
        let links = self.links(slot).to_vec();
        // The queues of a tenant that has moved are still those of its earlier placement.
        let mut leaving =
            self.moved.remove(&slot).unwrap_or(Leaving { links, ..Leaving::default() });
        // A later tenant may have the same name, so the slot makes the name unique.
        leaving.name = format!("{name}{REMOVED}{}", slot.0);
        leaving.marking.extend(self.servers_of(slot));
        self.datacenter.retire(slot);
        self.leaving.insert(slot, leaving);
        self.specs.remove(slot);
        self.scores.remove(slot);
        self.measured.remove(slot);
        self.find_present();
        Ok(())
    }

    /// Frees the numbers (slots) of removed tenants after their queues are released.
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

    /// Updates the sets of hosts that may still mark packets for removed tenants, and for the
    /// earlier placements of tenants. The argument `out_of_date` has the hosts that have not
    /// confirmed their latest plan. A host that has not confirmed its plan marks packets by an
    /// earlier plan, unless an operator has set the host to failed.
    pub fn note_marking(&mut self, out_of_date: &BTreeSet<NodeId>) {
        let Self { datacenter, leaving, moved, .. } = self;
        let ledger = datacenter.ledger();
        for leaving in leaving.values_mut().chain(moved.values_mut()) {
            leaving.marking.retain(|server| {
                out_of_date.contains(server) && ledger.service(*server) != Service::Failed
            });
        }
        moved.retain(|_, leaving| !leaving.marking.is_empty());
    }

    /// Notes the links with a port that a driver leaves out. Tenants that use these links get no
    /// queues, and lose the queues that they have.
    pub fn note_left_out(&mut self, links: BTreeSet<LinkId>) {
        self.left_out = links;
    }

    /// Notes the number of queues of each port that has fewer than the settings say
    /// ([`Binding::limit_queues`]).
    pub fn note_queues(&mut self, limits: BTreeMap<Port, u8>) {
        self.binding.limit_queues(limits);
    }

    /// Notes that a tenant had the servers and links of `before` until now. If the tenant has
    /// queues there, the queues stay until the tenant's hosts no longer mark packets for them.
    fn note_moved(&mut self, slot: TenantSlot, before: &Tenant) {
        let servers = before.placement.entry.slots.iter().map(|(server, _)| *server);
        let links = &before.placement.entry.links;
        let binding = &self.binding;
        if let Some(moved) = self.moved.get_mut(&slot) {
            moved.marking.extend(servers);
        } else if binding.covers(slot, links) && !binding.covers(slot, self.links(slot)) {
            let (links, marking) = (links.clone(), servers.collect());
            self.moved.insert(slot, Leaving { links, marking, ..Leaving::default() });
        }
    }

    /// Adds `more` VMs of a class to a tenant.
    ///
    /// # Errors
    /// Returns an error if the tenant cannot grow. After an error, the tenant keeps its present
    /// VMs.
    pub fn grow(
        &mut self,
        name: &str,
        class: usize,
        more: u32,
        may_move: bool,
    ) -> Result<(Moved, TenantRecord), ChangeRefused> {
        let slot = self.slot(name).ok_or_else(|| ChangeRefused::Unknown(name.to_owned()))?;
        let before = self.datacenter.tenant(slot).cloned();
        let moved = self.datacenter.grow(slot, class, more, may_move).map_err(|problem| {
            let (name, problem) = (name.to_owned(), Box::new(problem));
            ChangeRefused::Change { name, problem }
        })?;
        if let Some(spec) = self.specs.get_mut(slot) {
            spec.classes[class].vms += more;
        }
        if let Some(before) = before {
            self.note_moved(slot, &before);
        }
        self.find_present();
        Ok((moved, self.record(slot)))
    }

    /// Changes the state of a server or switch. If `evacuate` is true, the tenants on the drained
    /// or failed node move to other servers.
    ///
    /// # Errors
    /// Returns an error if the topology has no server or switch with this name.
    pub fn set_service(
        &mut self,
        node: &str,
        service: Service,
        evacuate: bool,
    ) -> Result<Vec<Move>, ChangeRefused> {
        let found = self.topology().find(node);
        let found = found.ok_or_else(|| ChangeRefused::UnknownNode(node.to_owned()))?;
        let moves = if evacuate && service != Service::In {
            let before = self.datacenter.clone();
            let moves = self.datacenter.evacuate(found, service);
            for moved in &moves {
                if let Some(before) = before.tenant(moved.tenant) {
                    self.note_moved(moved.tenant, before);
                }
            }
            moves
        } else {
            self.datacenter.set_service(found, service);
            Vec::new()
        };
        self.find_present();
        Ok(moves)
    }

    /// Returns a tenant as a record for the store.
    #[must_use]
    pub fn record(&self, slot: TenantSlot) -> TenantRecord {
        let names = Names(self.topology());
        let placement = &self.datacenter.tenant(slot).expect("it was placed").placement;
        TenantRecord {
            version: VERSION,
            spec: self.specs.get(slot).cloned().unwrap_or_default(),
            placement: PlacementRecord::of(placement, names),
        }
    }

    fn request(&self, spec: &TenantSpec) -> Result<Request, ChangeRefused> {
        let names = Names(self.topology());
        // References to removed tenants have no effect, so the request omits them.
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
        if let Some(tenant) = self.datacenter.tenant(slot) {
            add_present(&mut self.present, slot, tenant);
        }
    }

    fn find_present(&mut self) {
        self.present.clear();
        for (slot, tenant) in self.datacenter.tenants() {
            add_present(&mut self.present, slot, tenant);
        }
    }

    /// Runs a binding pass, which gives queues to the tenants with the highest scores. The argument
    /// `reachable` is a function that returns true if a server or switch can be reached. If `hold`
    /// is true, no tenant gets new queues or loses its queues to another tenant. With `hold`, only
    /// tenants that were removed or moved lose queues.
    pub fn rebind(&mut self, reachable: impl Fn(NodeId) -> bool, hold: bool) -> Pass {
        self.with_candidates(reachable, hold, |binding, topology, candidates| {
            binding.pass(topology, candidates)
        })
    }

    /// Calls the function `change` with the binding, the topology, and a list of all tenants with
    /// their scores and links.
    pub(crate) fn with_candidates(
        &mut self,
        reachable: impl Fn(NodeId) -> bool,
        hold: bool,
        change: impl FnOnce(&mut Binding, &Topology, &[Candidate<'_>]) -> Pass,
    ) -> Pass {
        let Self { datacenter, binding, scores, leaving, moved, left_out, .. } = self;
        let topology = datacenter.topology();
        let leaving = leaving.iter().chain(moved.iter());
        let leaving = leaving.filter(|(_, leaving)| !leaving.marking.is_empty());
        let leaving = leaving.map(|(tenant, Leaving { links, .. })| Candidate {
            tenant: *tenant,
            score: 0,
            links,
            movable: false,
            shares: false,
        });
        let candidates: Vec<Candidate<'_>> = datacenter
            .tenants()
            .map(|(tenant, placed)| {
                let links = placed.placement.entry.links.as_slice();
                let told = links.iter().all(|(link, _)| {
                    reachable(topology.child(*link)) && reachable(topology.parent(*link))
                });
                let score = scores.get(tenant).map_or(0, |score| score.get());
                let shares = links.iter().any(|(link, _)| left_out.contains(link));
                Candidate { tenant, score, links, movable: told && !hold, shares }
            })
            .chain(leaving)
            .collect();
        change(binding, topology, &candidates)
    }

    /// Updates the scores and usage of all tenants at the end of an interval. If a host of a tenant
    /// sent no report, the score of the tenant does not fall.
    pub fn follow(&mut self, usage: &Usage) {
        let mut of_tenant: BTreeMap<TenantSlot, Vec<HostUsage>> = BTreeMap::new();
        for (server, used) in usage {
            for used in used {
                let Some(slot) = self.slots.get(&used.tenant) else { continue };
                let Some(tenant) = self.datacenter.tenant(*slot) else { continue };
                // If the server has no such VMs, the usage was measured before the VMs moved.
                let vms = tenant.placement.vms_on(*server);
                let (sent, received) = (used.sent, used.received);
                of_tenant.entry(*slot).or_default().push(HostUsage { vms, sent, received });
            }
        }
        let all_heard = usage.len() >= self.topology().servers();
        for (slot, tenant) in self.datacenter.tenants() {
            let hosts = of_tenant.remove(&slot).unwrap_or_default();
            let hose = &tenant.request.hose;
            let mut smoothed = self.scores.get(slot).copied().unwrap_or_default();
            // A host that is silent may still forward the tenant's traffic.
            let mut servers = tenant.placement.entry.slots.iter().map(|(server, _)| server);
            let heard = all_heard || servers.all(|server| usage.contains_key(server));
            let least = if heard { 0 } else { smoothed.get() };
            let now = score(hose, &hosts).max(least);
            // A tenant's first score counts fully, so the silence of hosts gives it none.
            if heard || now > 0 {
                smoothed.follow(now);
                self.scores.insert(slot, smoothed);
            }
            let sum = |of: fn(&HostUsage) -> u64| hosts.iter().map(of).sum::<u64>();
            let measured = Measured {
                sent: sum(|host| host.sent.0),
                received: sum(|host| host.received.0),
                used_permille: used_permille(hose, &hosts),
            };
            self.measured.insert(slot, measured);
        }
    }

    /// Resumes a stored binding, without the queues of links that no longer exist, and without the
    /// tenants whose queues or code point are reserved now. Tenants that were removed or moved keep
    /// their queues until the hosts have confirmed that they mark no packets for them
    /// ([`Self::marking`]).
    ///
    /// # Errors
    /// Returns an error if the stored binding is inconsistent.
    pub fn resume(&mut self, record: &BindingRecord) -> Result<(), ResumeError> {
        let names = Names(self.datacenter.topology());
        let known = |bound: &BoundRecord| Some((bound.tenant.clone(), bound.bound(names).ok()?));
        let known = record.bound.iter().filter_map(known);
        let known = known.filter(|(_, bound)| permits(self.binding.settings(), bound));
        let (mut all, links) = (Vec::new(), names.0.links());
        let known: Vec<(String, Bound)> = known.collect();
        std::mem::take(&mut self.leaving).keys().for_each(|slot| self.datacenter.free(*slot));
        for (name, bound) in known {
            let slot = self.slots.get(&name).copied();
            let slot = slot.unwrap_or_else(|| self.remember_removed(name, &bound));
            all.push((slot, bound));
        }
        let settings = self.binding.settings().clone();
        self.binding = Binding::resume(settings, links, record.interval, all)?;
        let moved = self.binding.bound().filter(|(slot, _)| {
            !self.leaving.contains_key(slot) && !self.binding.covers(*slot, self.links(*slot))
        });
        self.moved = moved.map(|(slot, bound)| (slot, self.left_by(bound))).collect();
        Ok(())
    }

    /// Adds a removed tenant that has stored queues, and returns the slot that it gets.
    fn remember_removed(&mut self, name: String, bound: &Bound) -> TenantSlot {
        let slot = self.datacenter.reserve_slot();
        let is_removed = name.contains(REMOVED);
        let name = if is_removed { name } else { format!("{name}{REMOVED}{}", slot.0) };
        let leaving = Leaving { name, ..self.left_by(bound) };
        self.leaving.insert(slot, leaving);
        slot
    }

    /// Returns the links of stored queues, and all hosts on these links. The store does not have
    /// the reservations of a tenant that was removed or moved.
    fn left_by(&self, bound: &Bound) -> Leaving {
        let topology = self.topology();
        let mut links: Vec<LinkId> = bound.queues.iter().map(|(port, _)| port.link).collect();
        links.dedup();
        let hosts = links.iter().map(|link| topology.child(*link));
        let marking = hosts.filter(|node| topology.is_server(*node)).collect();
        let links = links.into_iter().map(|link| (link, Need::ZERO)).collect();
        Leaving { name: String::new(), links, marking }
    }

    /// Computes the queue weights of all ports from the tenants' reservations. Ports use the
    /// computed weights until the first binding pass.
    pub fn reserve_all(&mut self) {
        let Self { datacenter, binding, .. } = self;
        let all = datacenter.tenants().map(|(slot, t)| (slot, t.placement.entry.links.as_slice()));
        binding.reserve_all(datacenter.topology(), all);
    }

    /// Updates the queue weights for a tenant that arrived, grew or moved. The argument `before`
    /// has the earlier reservations of the tenant on links. Returns the steps that set the new
    /// weights on ports.
    pub fn reserve(&mut self, slot: TenantSlot, before: &[(LinkId, Need)]) -> Vec<Step> {
        let Self { datacenter, binding, .. } = self;
        let Some(tenant) = datacenter.tenant(slot) else { return Vec::new() };
        let now = &tenant.placement.entry.links;
        binding.reserve(datacenter.topology(), slot, before, now)
    }

    /// Returns the links of a tenant, and the tenant's reservation on each link.
    #[must_use]
    pub fn links(&self, slot: TenantSlot) -> &[(LinkId, Need)] {
        let tenant = self.datacenter.tenant(slot);
        tenant.map_or(&[][..], |tenant| tenant.placement.entry.links.as_slice())
    }

    /// Restores the binding from before a binding pass whose plan was rolled back.
    pub fn put_back(&mut self, binding: Binding) {
        self.binding = binding;
    }

    /// Returns the binding as a record for the store.
    #[must_use]
    pub fn binding_record(&self, stamp: Stamp) -> BindingRecord {
        let names = Names(self.topology());
        let one = |(slot, bound)| BoundRecord::of(self.stored_name(slot), bound, names);
        BindingRecord {
            version: VERSION,
            stamp,
            interval: self.binding.interval(),
            bound: self.binding.bound().map(one).collect(),
        }
    }

    /// Returns the queue weights and the map from code point to queue that a port must have.
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

    /// Returns the DSCP code point of a tenant, or 0 if the tenant shares queue 0. A tenant that
    /// has moved shares queue 0 until the next binding pass.
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

    /// Returns the rate limit of a tenant in the shared queue, in thousandths of the tenant's
    /// guarantee.
    #[must_use]
    pub fn headroom_permille(&self, slot: TenantSlot) -> u32 {
        self.binding.headroom_permille(self.topology(), self.links(slot))
    }
}

/// Adds the VMs of a tenant to the servers on which they run.
fn add_present(present: &mut Present, slot: TenantSlot, tenant: &Tenant) {
    for share in &tenant.placement.shares {
        let here = present.entry(share.server).or_default().entry(slot);
        let all = here.or_insert(ClassRecord { vms: 0, send: 0, recv: 0 });
        let classes = tenant.request.hose.classes();
        let Some(class) = classes.get(share.class as usize) else { continue };
        all.vms += share.vms;
        all.send += class.send.0 * u64::from(share.vms);
        all.recv += class.recv.0 * u64::from(share.vms);
    }
}

/// Returns true if tenants may have the queues and the code point of a stored binding. An operator
/// may have reserved more queues or code points since.
pub(crate) fn permits(settings: &Settings, bound: &Bound) -> bool {
    let palette = settings.palette.values();
    let code_point = |queue: u8| match settings.mode {
        MapMode::StaticMap => palette.get(usize::from(queue) - 1) == Some(&bound.dscp),
        _ => palette.contains(&bound.dscp),
    };
    let mut queues = bound.queues.iter();
    queues.all(|(_, queue)| (1..settings.queues).contains(queue) && code_point(*queue))
}

/// Returns the largest used fraction of a tenant's guarantee on any server, in thousandths. The
/// result is at most 1000, even if a tenant exceeds its guarantee.
fn used_permille(hose: &penstock_fabric::hose::Hose, hosts: &[HostUsage]) -> u64 {
    let payment = penstock_fabric::score::payment(hose);
    let used = u128::from(score(hose, hosts)) * 1000;
    used.checked_div(u128::from(payment)).and_then(|part| u64::try_from(part).ok()).unwrap_or(0)
}
