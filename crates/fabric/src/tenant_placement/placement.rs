//! A tenant's placement and its cost.

use penstock_units::BitsPerSecond;

use super::exact::Laid;
use super::policy::{Policy, QueueWeight};
use super::request::Request;
use crate::hose::Need;
use crate::ledger::{Entry, Ledger};
use crate::topology::{LinkId, NodeId};

/// VMs of one class on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmShare {
    /// Server that has the VMs, in layer 0.
    pub server: NodeId,
    /// Index of the class in the hose.
    pub class: u32,
    /// Number of VMs, at least 1.
    pub vms: u32,
}

/// Cost of a placement (QShare §IV-B).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// c_b in bit/s. This is the sum over all links of the tree of the larger of a link's two
    /// reservations.
    pub bandwidth: u128,
    /// c_q: the maximum number of tenants on any link of the tenant's tree, including the tenant
    /// itself. 0 without links.
    pub queue: u32,
    /// Number of the tenant's links with more tenants than dedicated queues.
    pub overfull: u32,
    /// Weighted sum of queue and bandwidth cost: a * c_q / Q + (1 - a) * c_b / (N * B * depth).
    pub weighed: f64,
}

/// A tenant's tree, VMs and reservations.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Root of the tenant's tree. The root is a server if all VMs are on this server.
    pub root: NodeId,
    /// VMs of the tenant, ordered by server and class.
    pub shares: Vec<VmShare>,
    /// Slots of the tenant, and its bandwidth on the links of its tree.
    pub entry: Entry,
    /// Cost of the placement when the tenant was placed.
    pub cost: Cost,
}

impl Placement {
    /// Number of VMs on a server, of all classes.
    #[must_use]
    pub fn vms_on(&self, server: NodeId) -> u32 {
        self.shares.iter().filter(|share| share.server == server).map(|share| share.vms).sum()
    }

    /// Whether the placement uses any link.
    #[must_use]
    pub fn has_network(&self) -> bool {
        !self.entry.links.is_empty()
    }
}

/// The placement of a tenant with equal guarantees, from its layout in the tree of `root`.
pub(super) fn of_laid(
    ledger: &Ledger,
    policy: &Policy,
    request: &Request,
    root: NodeId,
    laid: &Laid,
) -> Placement {
    let mut shares = Vec::new();
    for (server, vms) in &laid.servers {
        // All classes have the same guarantees, so VMs are assigned in order.
        deal(request, NodeId(*server), *vms, &mut shares);
    }
    let links = laid.links.iter().filter_map(|(link, below)| {
        let rate = request.hose.uniform()?.0;
        let need = rate * u64::from((*below).min(request.hose.vms() - below));
        let need = Need { up: BitsPerSecond(need), down: BitsPerSecond(need) };
        (!need.is_zero()).then_some((LinkId(*link), need))
    });
    finish(ledger, policy, request, root, shares, links.collect())
}

/// Assigns the next VMs of the request to a server, class by class.
fn deal(request: &Request, server: NodeId, mut vms: u32, shares: &mut Vec<VmShare>) {
    for (class, kind) in (0_u32..).zip(request.hose.classes()) {
        let dealt: u32 = shares.iter().filter(|s| s.class == class).map(|s| s.vms).sum();
        let taken = (kind.vms - dealt).min(vms);
        if taken > 0 {
            shares.push(VmShare { server, class, vms: taken });
            vms -= taken;
        }
    }
}

/// Completes a placement and computes its cost.
pub(super) fn finish(
    ledger: &Ledger,
    policy: &Policy,
    request: &Request,
    root: NodeId,
    mut shares: Vec<VmShare>,
    mut links: Vec<(LinkId, Need)>,
) -> Placement {
    shares.sort_unstable();
    links.sort_unstable_by_key(|(link, _)| *link);
    let mut slots: Vec<(NodeId, u32)> = Vec::new();
    for share in &shares {
        match slots.last_mut() {
            Some((server, vms)) if *server == share.server => *vms += share.vms,
            _ => slots.push((share.server, share.vms)),
        }
    }
    let used = links.iter().map(|(link, need)| (*link, need.larger().0));
    let depth = ledger.topology().layer_of(root);
    let cost = Scale::new(ledger, policy, request).cost(ledger, depth, used);
    Placement { root, shares, entry: Entry { slots, links }, cost }
}

/// Weights for the costs of one request, for the ledger's present state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    dedicated: u32,
    queues: f64,
    /// Weight of c_q. The weight of c_b is 1 - a.
    a: f64,
    /// N * B in bit/s.
    total: f64,
}

impl Scale {
    pub(super) fn new(ledger: &Ledger, policy: &Policy, request: &Request) -> Self {
        let a = match policy.queue_weight {
            QueueWeight::Fixed(a) => a,
            QueueWeight::ByLoad => (1.0 - ledger.scarcest_share()).clamp(0.2, 0.9),
        };
        #[expect(clippy::cast_precision_loss, reason = "a cost to be compared")]
        let total = request.hose.total().larger().0 as f64;
        Self { dedicated: policy.dedicated(), queues: f64::from(policy.queues), a, total }
    }

    /// Cost of links in a tree with its root in layer `depth`. Each link comes with the larger
    /// direction of its need.
    pub(super) fn cost(
        &self,
        ledger: &Ledger,
        depth: usize,
        links: impl Iterator<Item = (LinkId, u64)>,
    ) -> Cost {
        let (mut bandwidth, mut queue, mut overfull) = (0_u128, 0, 0);
        for (link, need) in links {
            let tenants = ledger.tenants(link) + 1;
            bandwidth += u128::from(need);
            queue = queue.max(tenants);
            overfull += u32::from(tenants > self.dedicated);
        }
        #[expect(clippy::cast_precision_loss, reason = "a cost to be compared")]
        let share = bandwidth as f64 / (self.total * depth.max(1) as f64);
        let weighed = self.a * f64::from(queue) / self.queues + (1.0 - self.a) * share;
        Cost { bandwidth, queue, overfull, weighed }
    }
}
