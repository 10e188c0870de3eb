//! What a tenant asks for: VMs, guarantees, and where they may be.

use thiserror::Error;

use crate::hose::Hose;
use crate::topology::{NodeId, Topology};

/// A tenant's place in the datacenter's table; reused after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantSlot(pub u32);

impl TenantSlot {
    /// As an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How many VMs one failure may take. The fault domain of layer i is what lies below one node of
/// layer i in the tenant's tree: 0 a server, 1 a rack, 2 a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The layer of the domain.
    pub layer: usize,
    /// Most of the tenant's VMs in one domain; at least 1.
    pub most_vms: Option<u32>,
    /// Least number of domains; at least 1. It is kept by an even bound: with d domains and N VMs
    /// none holds more than (N - 1) / (d - 1), rounded down, the largest bound that forces d.
    pub least_domains: Option<u32>,
}

/// Where a tenant's VMs may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// Below one of these nodes only; empty: anywhere.
    pub within: Vec<NodeId>,
    /// In the fault domains, of this layer, that these tenants have VMs in.
    pub near: Vec<(TenantSlot, usize)>,
    /// Not in the fault domains, of this layer, that these tenants have VMs in.
    pub apart: Vec<(TenantSlot, usize)>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// VMs and guarantees.
    pub hose: Hose,
    /// By fault domain.
    pub spread: Vec<Spread>,
    /// By place.
    pub affinity: Affinity,
}

/// A request that makes no sense in this datacenter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A fault domain of a layer that is not there.
    #[error("there is no layer {layer}; fault domains are of layers 0 to {highest}")]
    NoLayer {
        /// What was asked for.
        layer: usize,
        /// The highest that there is.
        highest: usize,
    },
    /// A bound of 0.
    #[error("a bound of 0 VMs or 0 fault domains; write 1 or more")]
    ZeroBound,
    /// More fault domains than VMs.
    #[error("{domains} fault domains for {vms} VMs; ask for at most as many as there are VMs")]
    MoreDomainsThanVms {
        /// Asked for.
        domains: u32,
        /// VMs.
        vms: u32,
    },
    /// A node that is not there.
    #[error("there is no node {}; name one of the topology", .0.0)]
    NoNode(NodeId),
    /// A tenant that is not there.
    #[error("there is no tenant {}; name one that is placed", .0.0)]
    NoTenant(TenantSlot),
}

impl Request {
    /// A request without wishes about places.
    #[must_use]
    pub fn new(hose: Hose) -> Self {
        Self { hose, spread: Vec::new(), affinity: Affinity::default() }
    }

    /// The same with at most `vms` VMs a server.
    #[must_use]
    pub fn most_per_server(mut self, vms: u32) -> Self {
        self.spread.push(Spread { layer: 0, most_vms: Some(vms), least_domains: None });
        self
    }

    /// Most VMs in one node of each layer. All VMs are in one domain of each layer from the root
    /// of their tree on, so a bound holds for the layers below it as well.
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
