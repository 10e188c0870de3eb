//! Changes placed tenants: adds VMs, and moves VMs and traffic away from a node.
//!
//! VMs stay on their servers if possible. If the VMs do not fit with the present root of the
//! tenant's tree, the search tries other roots. If the VMs cannot stay on their servers with any
//! root, all VMs of the tenant are placed again. A change of a placed tenant that fails has no
//! effect.

use core::fmt;

use thiserror::Error;

use super::mixed::{Base, in_tree};
use super::{Checked, Datacenter, Placement, Refusal, Request, RequestError, TenantSlot};
use crate::hose::HoseError;
use crate::ledger::Service;
use crate::topology::NodeId;

/// Effect of a change on a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Only VMs that had to move were moved, and the tenant's tree has the same root.
    InPlace,
    /// Only VMs that had to move were moved, but the tenant's tree has another root.
    Rerouted,
    /// The tenant was placed again as a whole.
    Anew,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => "no other VM moved",
            Self::Rerouted => "no other VM moved, but the tenant's tree has a new root",
            Self::Anew => "the tenant's VMs were placed again and may have moved",
        })
    }
}

/// Result of [`Datacenter::evacuate`] for a tenant that had to move.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Slot of the tenant that had to move.
    pub tenant: TenantSlot,
    /// How the tenant was moved, or why the tenant was not moved.
    pub outcome: Result<Moved, Refusal>,
}

/// Why a tenant cannot grow.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The tenant or the class of VMs does not exist.
    #[error("there is no class {class} of VMs; name an existing class")]
    Unknown {
        /// Tenant slot that the caller passed to [`Datacenter::grow`].
        tenant: TenantSlot,
        /// Class index that the caller passed to [`Datacenter::grow`].
        class: usize,
    },
    /// The tenant's hose with the additional VMs is invalid.
    #[error(transparent)]
    Hose(#[from] HoseError),
    /// The tenant's request with the additional VMs is invalid in the datacenter.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The datacenter has too few slots or too little bandwidth for the additional VMs.
    #[error(transparent)]
    Refused(Refusal),
}

impl Datacenter {
    /// Adds `more` VMs of one class to a tenant. If `may_move` is true, the tenant may be placed
    /// again if its VMs cannot stay.
    ///
    /// # Errors
    /// Returns a [`ChangeError`] with the reason if the VMs cannot be added. After an error, the
    /// tenant is unchanged.
    pub fn grow(
        &mut self,
        slot: TenantSlot,
        class: usize,
        more: u32,
        may_move: bool,
    ) -> Result<Moved, ChangeError> {
        let unknown = ChangeError::Unknown { tenant: slot, class };
        let Some(tenant) = self.tenant(slot) else { return Err(unknown) };
        let Some(kind) = tenant.request.hose.classes().get(class) else { return Err(unknown) };
        let hose = tenant.request.hose.with_vms(class, kind.vms.saturating_add(more))?;
        let request = Request { hose, ..tenant.request.clone() };
        Checked::new(self, &request)?;
        self.change(slot, request, may_move).map_err(ChangeError::Refused)
    }

    /// Takes a node out of service and moves the tenants that use the node. Returns a result for
    /// each tenant that used the node.
    pub fn evacuate(&mut self, node: NodeId, service: Service) -> Vec<Move> {
        self.set_service(node, service);
        let topology = self.topology();
        let uses = |placement: &Placement| {
            let on_link = |link| topology.child(link) == node || topology.parent(link) == node;
            placement.entry.slots.iter().any(|(server, _)| *server == node)
                || placement.entry.links.iter().any(|(link, _)| on_link(*link))
        };
        let users: Vec<_> = self
            .tenants()
            .filter(|(_, tenant)| uses(&tenant.placement))
            .map(|(slot, tenant)| (slot, tenant.request.clone()))
            .collect();
        users
            .into_iter()
            .map(|(tenant, request)| Move { tenant, outcome: self.change(tenant, request, true) })
            .collect()
    }

    /// Replaces a tenant's request and placement. The new placement differs as little as possible
    /// from the old placement.
    fn change(
        &mut self,
        slot: TenantSlot,
        request: Request,
        may_move: bool,
    ) -> Result<Moved, Refusal> {
        let old = self.tenants[slot.index()].take().expect("the tenant is there");
        self.ledger.give_back(&old.placement.entry);
        let found = self.beside(&old.placement, &request).or_else(|| {
            let anew = may_move.then(|| self.find(&request)).flatten();
            anew.map(|placement| (placement, Moved::Anew))
        });
        let outcome = match found {
            Some((placement, moved)) => {
                self.ledger
                    .take(&placement.entry)
                    .expect("the servers and links have room for the placement");
                self.tenants[slot.index()] = Some(super::Tenant { request, placement });
                return Ok(moved);
            }
            None => self.explain(&request),
        };
        self.ledger.restore(&old.placement.entry);
        self.tenants[slot.index()] = Some(old);
        Err(outcome)
    }

    /// Finds a placement in which no VM moves away from a server in service. Returns `None` if no
    /// placement is possible without moving a VM away from a server in service.
    fn beside(&self, old: &Placement, request: &Request) -> Option<(Placement, Moved)> {
        let checked = Checked::new(self, request).ok()?;
        let wish = checked.wish(request);
        let mut base = Base::new();
        for share in old.shares.iter().filter(|share| self.ledger.in_service(share.server)) {
            let kinds = request.hose.classes().len();
            let counts = base.entry(share.server).or_insert_with(|| vec![0; kinds]);
            counts[share.class as usize] += share.vms;
        }
        let topology = self.topology();
        let first = base.keys().next().copied()?;
        let tree = |root| in_tree(&self.ledger, &self.policy, &wish, root, &base);
        if let Some(placement) = tree(old.root) {
            return Some((placement, Moved::InPlace));
        }
        let layers = topology.layer_of(old.root)..topology.layers();
        let roots = layers.flat_map(|layer| topology.layer(layer)).filter(|r| *r != old.root);
        let above = roots.filter(|root| topology.path_up(first, *root).is_some());
        above.into_iter().find_map(tree).map(|placement| (placement, Moved::Rerouted))
    }
}
