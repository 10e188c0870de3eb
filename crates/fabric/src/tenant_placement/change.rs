//! Growing tenants and emptying nodes.
//!
//! VMs stay on their servers if possible. Otherwise the tenant keeps its tree. If neither is
//! possible, the tenant is placed again. A change that fails leaves everything as it was.

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
    /// Only VMs that had to move were moved, and the tree is the same.
    InPlace,
    /// Only VMs that had to move were moved, but the tree has another root.
    Rerouted,
    /// The tenant was placed again.
    Anew,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => "no other VM moved",
            Self::Rerouted => "no other VM moved, its tree has a new root",
            Self::Anew => "its VMs were placed again and may have moved",
        })
    }
}

/// Result for a tenant that had to move.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Slot of the tenant.
    pub tenant: TenantSlot,
    /// How the tenant moved, or why it stays.
    pub outcome: Result<Moved, Refusal>,
}

/// Why a tenant cannot grow.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// There is no such tenant or class of VMs.
    #[error("tenant {} has no kind {class} of VMs; name one that it has", .tenant.0)]
    Unknown {
        /// Slot given by the caller.
        tenant: TenantSlot,
        /// Index of the class given by the caller.
        class: usize,
    },
    /// The larger hose is invalid.
    #[error(transparent)]
    Hose(#[from] HoseError),
    /// The larger request is invalid in this datacenter.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The datacenter has no room.
    #[error(transparent)]
    Refused(Refusal),
}

impl Datacenter {
    /// Adds `more` VMs of one class to a tenant. `may_move` permits placing the tenant again if its
    /// VMs cannot stay.
    ///
    /// # Errors
    /// Returns the reason for which the tenant cannot grow. It then keeps its VMs.
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

    /// Takes a node out of service and moves the tenants that use it.
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

    /// Replaces a tenant's request and placement. The new placement is as close as possible to the
    /// old one.
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
                self.ledger.take(&placement.entry).expect("what was found has room");
                self.tenants[slot.index()] = Some(super::Tenant { request, placement });
                return Ok(moved);
            }
            None => self.explain(&request),
        };
        self.ledger.restore(&old.placement.entry);
        self.tenants[slot.index()] = Some(old);
        Err(outcome)
    }

    /// A placement in which all VMs on servers in service stay.
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
