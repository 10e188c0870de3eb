//! Describes a tenant's placement, and computes the placement's cost.

use penstock_units::BitsPerSecond;

use super::exact::Laid;
use super::policy::{Policy, QueueWeight};
use super::request::Request;
use crate::hose::Need;
use crate::ledger::{Entry, Ledger};
use crate::topology::{LinkId, NodeId};

/// The VMs of one class that a placement has on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmShare {
    /// Server on which the VMs run: the number of a node in layer 0 of the topology.
    pub server: NodeId,
    /// Index of the VMs' class in the tenant's hose.
    pub class: u32,
    /// Number of VMs of the class on the server, at least 1.
    pub vms: u32,
}

/// Cost of a placement (QShare §IV-B).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Bandwidth cost c_b in bit/s: the sum of the tenant's reservations over all links of the
    /// tree. For each link, the larger reservation of the link's two directions counts.
    pub bandwidth: u128,
    /// Queue cost c_q: the maximum number of tenants on any link of the tenant's tree, including
    /// the tenant itself. The queue cost is 0 if the tenant has no links.
    pub queue: u32,
    /// Number of the tenant's links that carry more tenants than a port has dedicated queues.
    pub overfull: u32,
    /// Weighted sum `a * c_q / Q + (1 - a) * c_b / (N * B * depth)` of the queue cost c_q and the
    /// bandwidth cost c_b. The factor a is the weight of the queue cost c_q, and Q is the number of
    /// queues of a port. N * B is the sum of the guarantees of the tenant's N VMs. The depth is the
    /// number of layers of links in the tree, at least 1.
    pub weighed: f64,
}

/// A tenant's tree, VMs and reservations.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Root of the tenant's tree. If all VMs are on one server, the root is this server.
    pub root: NodeId,
    /// Placed VMs of the tenant, ordered by server and class.
    pub shares: Vec<VmShare>,
    /// Slots that the tenant reserves, and the bandwidth that the tenant reserves on the links of
    /// its tree.
    pub entry: Entry,
    /// Cost of the placement at the time when the tenant was placed.
    pub cost: Cost,
}

impl Placement {
    /// Number of the tenant's VMs on a server, over all classes.
    #[must_use]
    pub fn vms_on(&self, server: NodeId) -> u32 {
        self.shares.iter().filter(|share| share.server == server).map(|share| share.vms).sum()
    }

    /// Whether the placement has bandwidth reserved on any link.
    #[must_use]
    pub fn has_network(&self) -> bool {
        !self.entry.links.is_empty()
    }
}

/// Creates the placement of a tenant with equal guarantees from an allocation in the tree of
/// `root`.
pub(super) fn of_laid(
    ledger: &Ledger,
    policy: &Policy,
    request: &Request,
    root: NodeId,
    laid: &Laid,
) -> Placement {
    let mut shares = Vec::new();
    for (server, vms) in &laid.servers {
        // All classes have the same guarantees, so the order of assignment does not matter.
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

/// Assigns the next `vms` VMs of the request to a server, class by class.
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

/// Builds a placement from its VMs and links, and computes the cost.
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

/// Weights of the costs for one request and the present state of the ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    dedicated: u32,
    queues: f64,
    /// Weight of the queue cost c_q, 0 to 1. The weight of the bandwidth cost c_b is 1 minus the
    /// weight of the queue cost c_q.
    a: f64,
    /// Sum of the tenant's guarantees (N * B) in bit/s.
    total: f64,
}

impl Scale {
    pub(super) fn new(ledger: &Ledger, policy: &Policy, request: &Request) -> Self {
        let a = match policy.queue_weight {
            QueueWeight::Fixed(a) => a,
            QueueWeight::ByLoad => (1.0 - ledger.scarcest_share()).clamp(0.2, 0.9),
        };
        #[expect(clippy::cast_precision_loss, reason = "a rounded cost is exact enough")]
        let total = request.hose.total().larger().0 as f64;
        Self { dedicated: policy.dedicated(), queues: f64::from(policy.queues), a, total }
    }

    /// Cost of a placement in a tree with its root in layer `depth`. Each entry of `links` is a
    /// link and the larger of its two needs in bit/s.
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
        #[expect(clippy::cast_precision_loss, reason = "a rounded cost is exact enough")]
        let share = bandwidth as f64 / (self.total * depth.max(1) as f64);
        let weighed = self.a * f64::from(queue) / self.queues + (1.0 - self.a) * share;
        Cost { bandwidth, queue, overfull, weighed }
    }
}
