//! Where tenants' VMs go: balanced tenant placement.
//!
//! **Problem.** A tenant needs slots and, on every link of one tree, the rate that its guarantees
//! may use; and few tenants on any port, because a port has few queues.
//!
//! **Source.** QShare §IV, Algorithm 1; parameters that it leaves open: `docs/fabric.md`.
//!
//! **Rule.** From the servers up, the first layer with a tree that has room is taken; of its trees
//! that of least cost, of equal ones the first. In a tree VMs are laid out so that the least
//! bandwidth is reserved (`exact`). What does not fit is refused with the constraint that binds
//! and the nearest requests that would fit ([`Refusal`]).
//!
//! **Invariants** (properties in `tests/`). Reserved <= limit on every link; removing all tenants
//! restores the empty books exactly; what one tenant could be given at all, it is given.

use thiserror::Error;

use crate::ledger::{Ledger, LedgerError, Service};
use crate::topology::{NodeId, Topology};

mod baseline;
mod change;
mod exact;
mod mixed;
mod placement;
mod policy;
mod refusal;
mod request;
mod search;

pub use change::{ChangeError, Move, Moved};
pub use placement::{Cost, Placement, VmShare};
pub use policy::{Choice, Policy, PolicyError, QueueWeight};
pub use refusal::{Offer, Reason, Refusal};
pub use request::{Affinity, Request, RequestError, Spread, TenantSlot};

use search::{Search, Wish};

/// A tenant that has its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// What it asked for.
    pub request: Request,
    /// What it has.
    pub placement: Placement,
}

/// A placement that the books have no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the placement does not fit the books as they are; look for one anew")]
pub struct Stale(#[source] LedgerError);

/// A datacenter: its tree, its books and its tenants.
#[derive(Clone, Debug)]
pub struct Datacenter {
    ledger: Ledger,
    policy: Policy,
    tenants: Vec<Option<Tenant>>,
    /// Slots of `tenants` that nobody has, the lowest last.
    vacant: Vec<u32>,
    search: Search,
}

impl Datacenter {
    /// An empty datacenter; `headroom_permille` of each link is never reserved.
    ///
    /// # Errors
    /// When the policy leaves nothing to choose.
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

    /// The books.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The tree.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        self.ledger.topology()
    }

    /// The settings.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// A tenant.
    #[must_use]
    pub fn tenant(&self, slot: TenantSlot) -> Option<&Tenant> {
        self.tenants.get(slot.index())?.as_ref()
    }

    /// All tenants, by slot.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantSlot, &Tenant)> {
        let slots = (0_u32..).map(TenantSlot).zip(&self.tenants);
        slots.filter_map(|(slot, tenant)| Some((slot, tenant.as_ref()?)))
    }

    /// Puts a node in or out of service without moving anybody; see also [`Self::evacuate`].
    pub fn set_service(&mut self, node: NodeId, service: Service) {
        self.ledger.set_service(node, service);
    }

    /// Where a request would go; `None` if nowhere, or if it makes no sense.
    pub fn find(&mut self, request: &Request) -> Option<Placement> {
        let checked = Checked::new(self, request).ok()?;
        self.search.run(&self.ledger, &self.policy, &checked.wish(request))
    }

    /// Places a tenant. `None` says nothing about why; [`Self::place`] does, and takes longer.
    pub fn try_place(&mut self, request: &Request) -> Option<TenantSlot> {
        let placement = self.find(request)?;
        let placed = self.place_at(request.clone(), placement);
        Some(placed.expect("what was found has room"))
    }

    /// Places a tenant.
    ///
    /// # Errors
    /// When it has no place, with the reason and what would fit.
    pub fn place(&mut self, request: &Request) -> Result<TenantSlot, Refusal> {
        match self.try_place(request) {
            Some(slot) => Ok(slot),
            None => Err(self.explain(request)),
        }
    }

    /// Enters a placement that was found before, or by another rule.
    ///
    /// # Errors
    /// When the books have no room for it.
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

    /// Takes a tenant away, and gives back all that it had.
    pub fn remove(&mut self, slot: TenantSlot) -> Option<Tenant> {
        let tenant = self.retire(slot)?;
        self.free(slot);
        Some(tenant)
    }

    /// Takes a tenant away, and gives back all but its slot: something still goes by that. Who is
    /// placed next has another one, until [`Self::free`].
    pub fn retire(&mut self, slot: TenantSlot) -> Option<Tenant> {
        let tenant = self.tenants.get_mut(slot.index())?.take()?;
        self.ledger.give_back(&tenant.placement.entry);
        Some(tenant)
    }

    /// Gives back the slot of a tenant that was retired.
    pub fn free(&mut self, slot: TenantSlot) {
        let retired = self.tenants.get(slot.index()).is_some_and(Option::is_none);
        // The lowest is given out first, so that a replay gives the same slots.
        let at = self.vacant.partition_point(|vacant| *vacant > slot.0);
        if retired && self.vacant.get(at) != Some(&slot.0) {
            self.vacant.insert(at, slot.0);
        }
    }
}

/// What was worked out of a request that makes sense.
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

/// By server, whether a VM may be there; `None`: all.
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

/// The fault domains of a layer in which a tenant has VMs.
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
