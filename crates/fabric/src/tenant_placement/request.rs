//! Defines a tenant's request: its VMs, their guarantees, and the constraints on their servers.

use thiserror::Error;

use crate::hose::Hose;
use crate::topology::{NodeId, Topology};

/// Index of a tenant in the datacenter's table of tenants. After a tenant is removed, another
/// tenant may get the removed tenant's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantSlot(pub u32);

impl TenantSlot {
    /// Returns the tenant's slot as an index into a table of all tenants.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Maximum number of a tenant's VMs that one failure of a node may affect. A fault domain of layer
/// i consists of a node of layer i in the tenant's tree and all nodes below it. A domain of layer 0
/// is a server, a domain of layer 1 is a rack, and a domain of layer 2 is a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Layer of the fault domains: 0 means servers, 1 means racks.
    pub layer: usize,
    /// Maximum number of VMs of the tenant in one fault domain, at least 1, or `None` for no
    /// maximum.
    pub most_vms: Option<u32>,
    /// Minimum number d of fault domains in which a tenant has VMs, at least 1. To enforce the
    /// minimum number d of fault domains, each domain gets at most (N - 1) / (d - 1) of the
    /// tenant's N VMs, rounded down. If more VMs were permitted per fault domain, all N VMs could
    /// be in fewer than d fault domains.
    pub least_domains: Option<u32>,
}

/// Constraints on the servers on which a tenant's VMs may run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// Each VM must be on or below one of the listed nodes. If the list of nodes is empty, all
    /// servers are permitted.
    pub within: Vec<NodeId>,
    /// Affinity to other tenants, each with a layer. Each VM must share a fault domain of the
    /// listed layer with a VM of the listed tenant.
    pub near: Vec<(TenantSlot, usize)>,
    /// Anti-affinity to other tenants, each with a layer. No VM may share a fault domain of the
    /// listed layer with a VM of the listed tenant.
    pub apart: Vec<(TenantSlot, usize)>,
}

/// Placement request of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The VMs to be placed and their guarantees.
    pub hose: Hose,
    /// Bounds on the number of VMs per fault domain, and on the number of fault domains.
    pub spread: Vec<Spread>,
    /// Constraints on the servers on which the VMs may run.
    pub affinity: Affinity,
}

/// Why a request is invalid in a datacenter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The datacenter does not have the layer of a requested fault domain.
    #[error("there is no layer {layer} of fault domains; write 0 to {highest}")]
    NoLayer {
        /// Layer of fault domains that the request names.
        layer: usize,
        /// Highest layer that the datacenter has.
        highest: usize,
    },
    /// A bound of the request is 0, or the bounds permit 0 VMs per fault domain.
    #[error("a bound permits 0 VMs or 0 fault domains; write 1 or more")]
    ZeroBound,
    /// The request has fewer VMs than requested fault domains.
    #[error("{domains} fault domains for {vms} VMs; request at most {vms} fault domains")]
    MoreDomainsThanVms {
        /// Number of fault domains that the request requires.
        domains: u32,
        /// Number of VMs that the request has.
        vms: u32,
    },
    /// The datacenter does not have a node that the affinity names.
    #[error("there is no node {}; name a node of the topology", .0.0)]
    NoNode(NodeId),
    /// The datacenter does not have a tenant that the affinity names.
    #[error("there is no tenant {}; name a placed tenant", .0.0)]
    NoTenant(TenantSlot),
}

impl Request {
    /// Creates a request without constraints on servers.
    #[must_use]
    pub fn new(hose: Hose) -> Self {
        Self { hose, spread: Vec::new(), affinity: Affinity::default() }
    }

    /// Adds the constraint that a server gets at most `vms` VMs of the tenant.
    #[must_use]
    pub fn most_per_server(mut self, vms: u32) -> Self {
        self.spread.push(Spread { layer: 0, most_vms: Some(vms), least_domains: None });
        self
    }

    /// Returns, for each layer, the maximum number of VMs below one node. A bound of a layer also
    /// applies to the lower layers. The root of a tree has all VMs below it, so the root's layer
    /// must permit all VMs.
    pub(super) fn caps(&self, topology: &Topology) -> Result<Vec<u32>, RequestError> {
        let (vms, highest) = (self.hose.vms(), topology.layers() - 1);
        let mut caps = vec![vms; topology.layers()];
        for spread in &self.spread {
            let layer = spread.layer;
            if layer > highest {
                return Err(RequestError::NoLayer { layer, highest });
            }
            let cap = &mut caps[layer];
            if let Some(most) = spread.most_vms {
                *cap = (*cap).min(most);
            }
            match spread.least_domains {
                None | Some(1) => {}
                Some(0) => return Err(RequestError::ZeroBound),
                Some(domains) if domains > vms => {
                    return Err(RequestError::MoreDomainsThanVms { domains, vms });
                }
                Some(domains) => *cap = (*cap).min((vms - 1) / (domains - 1)),
            }
            if *cap == 0 {
                return Err(RequestError::ZeroBound);
            }
        }
        for layer in (0..highest).rev() {
            caps[layer] = caps[layer].min(caps[layer + 1]);
        }
        Ok(caps)
    }
}
