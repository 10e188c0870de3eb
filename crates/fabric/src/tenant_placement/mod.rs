//! Tenant placement: decides on which servers a tenant's VMs run.
//!
//! # Problem
//!
//! A tenant needs slots on servers, and bandwidth for its guarantees on every link of one tree.
//! Ports should carry few tenants, because a port has few queues.
//!
//! # Source
//!
//! Tenant placement follows QShare §IV, Algorithm 1. `docs/reference/fabric.md` lists the
//! parameters that the paper does not specify.
//!
//! # Approach
//!
//! The search visits the layers from the servers up, and stops at the first layer with a tree that
//! has room. Of all trees in the lowest layer with room, the search chooses the tree with the least
//! cost, and the first of several such trees. With [`Choice::FirstFit`], the search chooses the
//! first tree with room, whatever its cost. In a tree, VMs are placed so that the least bandwidth
//! is reserved (`exact`). A refusal states the constraint that excludes the request, and similar
//! requests that would fit ([`Refusal`]).
//!
//! # Invariants
//!
//! Reservations never exceed the limit of any link. After all tenants are removed, the ledger is
//! exactly empty. A tenant that fits into an empty datacenter is placed. The tests in `tests/`
//! check the invariants of tenant placement.

use thiserror::Error;

use crate::ledger::{Ledger, LedgerError, Service};
use crate::topology::{NodeId, Topology};

mod change;
mod exact;
mod mixed;
mod placement;
mod policy;
mod refusal;
mod request;
mod search;
mod slot_map;

pub use change::{ChangeError, Move, Moved};
pub use placement::{Cost, Placement, VmShare};
pub use policy::{Choice, Policy, PolicyError, QueueWeight};
pub use refusal::{Offer, Reason, Refusal};
pub use request::{Affinity, Request, RequestError, Spread, TenantSlot};
pub use slot_map::SlotMap;

use search::{Search, Wish};

/// A tenant of the datacenter that has been placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// The request for which the tenant was placed.
    pub request: Request,
    /// Servers and links that are reserved for the tenant.
    pub placement: Placement,
}

/// Error: the ledger has no room for a placement that was computed earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the placement no longer fits; search for another placement")]
pub struct Stale(#[source] LedgerError);

/// State of a datacenter: its topology, its ledger and its tenants.
#[derive(Clone, Debug)]
pub struct Datacenter {
    ledger: Ledger,
    policy: Policy,
    tenants: Vec<Option<Tenant>>,
    /// Indices of the empty slots in `tenants`, in descending order.
    vacant: Vec<u32>,
    search: Search,
}

impl Datacenter {
    /// Creates a datacenter without tenants. `headroom_permille` thousandths of each link's rate
    /// are never reserved.
    ///
    /// # Errors
    /// Returns an error if the policy is invalid.
    pub fn new(
        topology: Topology,
        headroom_permille: u32,
        policy: Policy,
    ) -> Result<Self, PolicyError> {
        policy.check()?;
        let ledger = Ledger::new(topology, headroom_permille);
        let (tenants, vacant, search) = (Vec::new(), Vec::new(), Search::default());
        Ok(Self { ledger, policy, tenants, vacant, search })
    }

    /// Reservations of slots and bandwidth.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Servers, switches and links of the datacenter.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        self.ledger.topology()
    }

    /// Policy that decides in which tree tenants are placed.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the tenant in a slot, or `None` if the slot is empty.
    #[must_use]
    pub fn tenant(&self, slot: TenantSlot) -> Option<&Tenant> {
        self.tenants.get(slot.index())?.as_ref()
    }

    /// Returns all tenants in ascending order of their slot numbers.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantSlot, &Tenant)> {
        let slots = (0_u32..).map(TenantSlot).zip(&self.tenants);
        slots.filter_map(|(slot, tenant)| Some((slot, tenant.as_ref()?)))
    }

    /// Changes a node's service state without moving tenants. [`Self::evacuate`] also moves the
    /// tenants that use the node.
    pub fn set_service(&mut self, node: NodeId, service: Service) {
        self.ledger.set_service(node, service);
    }

    /// Finds a placement for a request. Returns `None` if no placement is possible or the request
    /// is invalid.
    pub fn find(&mut self, request: &Request) -> Option<Placement> {
        let checked = Checked::new(self, request).ok()?;
        self.search.run(&self.ledger, &self.policy, &checked.wish(request))
    }

    /// Places a tenant. Returns `None` if the tenant cannot be placed. If the tenant cannot be
    /// placed, [`Self::place`] also returns the reason, but takes longer.
    pub fn try_place(&mut self, request: &Request) -> Option<TenantSlot> {
        let placement = self.find(request)?;
        let placed = self.place_at(request.clone(), placement);
        Some(placed.expect("the servers and links have room for the placement"))
    }

    /// Places a tenant, and returns the tenant's slot.
    ///
    /// # Errors
    /// Returns an error if the tenant cannot be placed. The [`Refusal`] has the reason and the
    /// requests that would fit.
    pub fn place(&mut self, request: &Request) -> Result<TenantSlot, Refusal> {
        match self.try_place(request) {
            Some(slot) => Ok(slot),
            None => Err(self.explain(request)),
        }
    }

    /// Adds a tenant with a given placement, for example from [`Self::find`].
    ///
    /// # Errors
    /// Returns an error if the ledger has no room for the placement.
    pub fn place_at(
        &mut self,
        request: Request,
        placement: Placement,
    ) -> Result<TenantSlot, Stale> {
        self.ledger.take(&placement.entry).map_err(Stale)?;
        let tenant = Some(Tenant { request, placement });
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.tenants[slot as usize] = tenant;
                slot
            }
            None => {
                self.tenants.push(tenant);
                crate::topology::number(self.tenants.len() - 1)
            }
        };
        Ok(TenantSlot(slot))
    }

    /// Removes a tenant and frees its resources and slot.
    pub fn remove(&mut self, slot: TenantSlot) -> Option<Tenant> {
        let tenant = self.retire(slot)?;
        self.free(slot);
        Some(tenant)
    }

    /// Removes a tenant and frees its resources, but keeps its slot reserved until [`Self::free`].
    /// A tenant is retired if other data still refers to the tenant's slot.
    pub fn retire(&mut self, slot: TenantSlot) -> Option<Tenant> {
        let tenant = self.tenants.get_mut(slot.index())?.take()?;
        self.ledger.give_back(&tenant.placement.entry);
        Some(tenant)
    }

    /// Reserves a slot without a tenant until [`Self::free`], for a tenant that was retired in an
    /// earlier run.
    pub fn reserve_slot(&mut self) -> TenantSlot {
        TenantSlot(self.vacant.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            crate::topology::number(self.tenants.len() - 1)
        }))
    }

    /// Frees the slot of a retired tenant.
    pub fn free(&mut self, slot: TenantSlot) {
        let retired = self.tenants.get(slot.index()).is_some_and(Option::is_none);
        // The lowest slot is reused first, so that the same calls give the same slots.
        let at = self.vacant.partition_point(|vacant| *vacant > slot.0);
        if retired && self.vacant.get(at) != Some(&slot.0) {
            self.vacant.insert(at, slot.0);
        }
    }
}

/// Data derived from a valid request: bounds per layer, and the permitted servers.
#[derive(Debug)]
struct Checked {
    caps: Vec<u32>,
    allowed: Option<Vec<bool>>,
}

impl Checked {
    fn new(datacenter: &Datacenter, request: &Request) -> Result<Self, RequestError> {
        let caps = request.caps(datacenter.topology())?;
        let allowed = allowed(datacenter, &request.affinity)?;
        Ok(Self { caps, allowed })
    }

    fn wish<'a>(&'a self, request: &'a Request) -> Wish<'a> {
        Wish { request, caps: &self.caps, allowed: self.allowed.as_deref() }
    }
}

/// Returns for each server whether VMs may be placed on the server, or `None` if all servers are
/// permitted.
fn allowed(
    datacenter: &Datacenter,
    affinity: &Affinity,
) -> Result<Option<Vec<bool>>, RequestError> {
    if affinity == &Affinity::default() {
        return Ok(None);
    }
    let topology = datacenter.topology();
    let below = |nodes: &[NodeId]| {
        let mut mask = vec![false; topology.servers()];
        let below = nodes.iter().flat_map(|node| topology.cone(*node));
        below.filter(|node| topology.is_server(*node)).for_each(|s| mask[s.index()] = true);
        mask
    };
    let mut mask = vec![true; topology.servers()];
    let mut only = |with: &[bool], want: bool| {
        mask.iter_mut().zip(with).for_each(|(mask, with)| *mask &= *with == want);
    };
    if let Some(node) = affinity.within.iter().find(|node| node.index() >= topology.nodes()) {
        return Err(RequestError::NoNode(*node));
    }
    if !affinity.within.is_empty() {
        only(&below(&affinity.within), true);
    }
    for (list, want) in [(&affinity.near, true), (&affinity.apart, false)] {
        for (slot, layer) in list {
            only(&below(&domains(datacenter, *slot, *layer)?), want);
        }
    }
    Ok(Some(mask))
}

/// Returns the fault domains of a layer that contain VMs of a tenant.
fn domains(
    datacenter: &Datacenter,
    slot: TenantSlot,
    layer: usize,
) -> Result<Vec<NodeId>, RequestError> {
    let topology = datacenter.topology();
    let highest = topology.layers() - 1;
    if layer > highest {
        return Err(RequestError::NoLayer { layer, highest });
    }
    let tenant = datacenter.tenant(slot).ok_or(RequestError::NoTenant(slot))?;
    let mut nodes: Vec<NodeId> = tenant.placement.entry.slots.iter().map(|slot| slot.0).collect();
    for _ in 0..layer {
        nodes = nodes.iter().flat_map(|n| topology.up(*n)).map(|l| topology.parent(l)).collect();
        nodes.sort_unstable();
        nodes.dedup();
    }
    Ok(nodes)
}
