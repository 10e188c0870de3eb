//! A tenant's request: VMs, guarantees and constraints on their servers.

use thiserror::Error;

use crate::hose::Hose;
use crate::topology::{NodeId, Topology};

/// Index of a tenant in the datacenter's table. It is reused after the tenant is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantSlot(pub u32);

impl TenantSlot {
    /// The slot as an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bound on the VMs that one failure may affect. A fault domain of layer i is everything below one
/// node of layer i in the tenant's tree: 0 is a server, 1 a rack, 2 a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Layer of the fault domain.
    pub layer: usize,
    /// Maximum number of VMs of the tenant in one domain, at least 1.
    pub most_vms: Option<u32>,
    /// Minimum number of domains, at least 1. A uniform bound enforces this number. With d domains
    /// and N VMs, no domain holds more than (N - 1) / (d - 1), rounded down. This is the largest
    /// bound that forces d.
    pub least_domains: Option<u32>,
}

/// Constraints on the servers of a tenant's VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// The VMs must be below one of these nodes. Empty allows all nodes.
    pub within: Vec<NodeId>,
    /// The VMs must be in fault domains of the given layer in which these tenants have VMs.
    pub near: Vec<(TenantSlot, usize)>,
    /// The VMs must not be in fault domains of the given layer in which these tenants have VMs.
    pub apart: Vec<(TenantSlot, usize)>,
}

/// A complete placement request of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// VMs and their guarantees.
    pub hose: Hose,
    /// Bounds on fault domains.
    pub spread: Vec<Spread>,
    /// Constraints on the servers of the VMs.
    pub affinity: Affinity,
}

/// Why a request is invalid in this datacenter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The layer of a fault domain does not exist.
    #[error("there is no layer {layer}; fault domains are of layers 0 to {highest}")]
    NoLayer {
        /// Layer of the request.
        layer: usize,
        /// Highest layer of the datacenter.
        highest: usize,
    },
    /// A bound is 0.
    #[error("a bound of 0 VMs or 0 fault domains; write 1 or more")]
    ZeroBound,
    /// There are fewer VMs than requested fault domains.
    #[error("{domains} fault domains for {vms} VMs; ask for at most as many as there are VMs")]
    MoreDomainsThanVms {
        /// Number of fault domains that the request requires.
        domains: u32,
        /// Number of VMs in the request.
        vms: u32,
    },
    /// The node does not exist.
    #[error("there is no node {}; name one of the topology", .0.0)]
    NoNode(NodeId),
    /// The tenant does not exist.
    #[error("there is no tenant {}; name one that is placed", .0.0)]
    NoTenant(TenantSlot),
}

impl Request {
    /// A request without constraints on servers.
    #[must_use]
    pub fn new(hose: Hose) -> Self {
        Self { hose, spread: Vec::new(), affinity: Affinity::default() }
    }

    /// Adds a bound of `vms` VMs per server.
    #[must_use]
    pub fn most_per_server(mut self, vms: u32) -> Self {
        self.spread.push(Spread { layer: 0, most_vms: Some(vms), least_domains: None });
        self
    }

    /// Maximum number of VMs in a node of each layer. In each layer from the root of its tree up, a
    /// tenant has all VMs in one domain. A bound therefore also holds for the layers below it.
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
