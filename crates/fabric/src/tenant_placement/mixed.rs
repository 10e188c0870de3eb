//! Places tenants whose VMs have different guarantees, and adds VMs to existing tenants.
//!
//! # Problem
//!
//! A link separates the VMs below the link from the VMs beyond the link. In each direction, a link
//! needs the smaller of two sums: the sending rates on one side of the link, and the receiving
//! rates on the other side. If VMs have different rates, the number of VMs does not determine the
//! need, and an optimal placement is hard to find.
//!
//! # Approach
//!
//! 1. VMs are placed on servers that already have VMs of the tenant, then on the servers with the
//!    most slots. On each server, VMs with the largest rates are placed first.
//! 2. The rates of all VMs below a link must not exceed the link's free bandwidth in total. A bound
//!    on the rates of all VMs below a link is stricter than the true need of the link. The bound on
//!    rates may exclude valid placements on the links from the tree's root to the *centre*, which
//!    is the server that is filled first.
//! 3. The first attempt to fill the tree applies the bound on rates to all links. Each later
//!    attempt to fill the tree applies the bound on rates to one link less of the path from the
//!    root to the centre. The last attempt applies the bound on rates to no link of this path.
//! 4. When all VMs are placed, the true need of each link is checked. The true need of a link
//!    cannot be checked earlier, because the need can fall when VMs are added.
//!
//! # Cost
//!
//! A search takes time proportional to VM classes × servers × layers for each tree, which is more
//! than in [`super::exact`].

use std::collections::BTreeMap;

use super::exact::Laid;
use super::placement::{Placement, VmShare, finish};
use super::policy::{Choice, Policy};
use super::request::Request;
use super::search::{Wish, is_better};
use crate::hose::{Hose, Need};
use crate::ledger::Ledger;
use crate::topology::{LinkId, NodeId};

/// Largest rate of any VM in bit/s.
pub(super) fn largest(hose: &Hose) -> u64 {
    hose.classes().iter().map(|class| class.send.max(class.recv).0).max().unwrap_or(0)
}

/// For each server, the number of the tenant's VMs of each class that are already placed there.
pub(super) type Base = BTreeMap<NodeId, Vec<u32>>;

/// Assigns VMs of the request's classes to servers, with the number of VMs per server that `laid`
/// states. VMs with the largest rates are assigned first.
pub(super) fn of_laid(
    ledger: &Ledger,
    policy: &Policy,
    request: &Request,
    root: NodeId,
    laid: &Laid,
) -> Placement {
    let order = by_size(&request.hose);
    let mut left: Vec<u32> = request.hose.classes().iter().map(|class| class.vms).collect();
    let mut shares = Vec::new();
    for (server, vms) in &laid.servers {
        let mut room = *vms;
        for class in &order {
            let taken = left[*class].min(room);
            if taken > 0 {
                let class_id = crate::topology::number(*class);
                shares.push(VmShare { server: NodeId(*server), class: class_id, vms: taken });
                left[*class] -= taken;
                room -= taken;
            }
        }
    }
    let links = needs(ledger, &request.hose, root, &shares);
    finish(ledger, policy, request, root, shares, links)
}

/// Indices of the request's VM classes, in descending order of the classes' guaranteed rates.
fn by_size(hose: &Hose) -> Vec<usize> {
    let mut order: Vec<usize> = (0..hose.classes().len()).collect();
    let size = |class: &usize| {
        let class = hose.classes()[*class];
        class.send.max(class.recv)
    };
    order.sort_by_key(|class| core::cmp::Reverse(size(class)));
    order
}

/// Returns the bandwidth that each link in the tree of `root` needs, without links that need no
/// bandwidth.
fn needs(ledger: &Ledger, hose: &Hose, root: NodeId, shares: &[VmShare]) -> Vec<(LinkId, Need)> {
    let mut below: BTreeMap<LinkId, Vec<u32>> = BTreeMap::new();
    for share in shares {
        for link in ledger.topology().path_up(share.server, root).into_iter().flatten() {
            let counts = below.entry(link).or_insert_with(|| vec![0; hose.classes().len()]);
            counts[share.class as usize] += share.vms;
        }
    }
    let needs = below.into_iter().map(|(link, counts)| (link, hose.need(&counts)));
    needs.filter(|(_, need)| !need.is_zero()).collect()
}

/// Finds the placement with the least cost in any tree of a layer, or the placement in the first
/// tree with room if the policy is [`Choice::FirstFit`]. Returns `None` if no tree has room.
pub(super) fn in_layer(
    ledger: &Ledger,
    policy: &Policy,
    wish: &Wish<'_>,
    layer: usize,
) -> Option<Placement> {
    let mut best: Option<Placement> = None;
    for root in ledger.topology().layer(layer) {
        let Some(found) = in_tree(ledger, policy, wish, root, &Base::new()) else { continue };
        if best.as_ref().is_none_or(|best| is_better(&found.cost, &best.cost)) {
            best = Some(found);
        }
        if policy.choice == Choice::FirstFit {
            break;
        }
    }
    best
}

/// Places all VMs of the request in the tree of `root`. VMs that `base` already places stay on
/// their servers. The ledger must not contain the reservations of the VMs that `base` already
/// places.
pub(super) fn in_tree(
    ledger: &Ledger,
    policy: &Policy,
    wish: &Wish<'_>,
    root: NodeId,
    base: &Base,
) -> Option<Placement> {
    let tree = Tree::new(ledger, wish, root, base)?;
    (0..=tree.to_centre.len()).rev().find_map(|kept| {
        let shares = Filling::new(&tree, kept).run()?;
        let links = needs(ledger, &wish.request.hose, root, &shares);
        let fits = links.iter().all(|(link, need)| {
            let free = ledger.available(*link);
            need.up <= free.up && need.down <= free.down
        });
        fits.then(|| finish(ledger, policy, wish.request, root, shares, links))
    })
}

/// A tree in which the VMs of a request are to be placed.
struct Tree<'a> {
    ledger: &'a Ledger,
    wish: &'a Wish<'a>,
    root_layer: usize,
    base: &'a Base,
    /// Servers of the tree in the order of filling, each with its slots and its links up to the
    /// root.
    servers: Vec<(NodeId, u32, Vec<LinkId>)>,
    /// Links from the centre, which is the first server, up to the root, starting with the lowest
    /// link.
    to_centre: Vec<LinkId>,
}

impl<'a> Tree<'a> {
    /// Prepares a tree. Returns `None` if the tree has too few slots, or does not contain all
    /// servers that already have VMs of the tenant.
    fn new(ledger: &'a Ledger, wish: &'a Wish<'a>, root: NodeId, base: &'a Base) -> Option<Self> {
        let topology = ledger.topology();
        let mut servers = Vec::new();
        let (mut here, mut slots_all) = (0, 0_u64);
        for server in topology.cone(root).into_iter().filter(|node| topology.is_server(*node)) {
            let held: u32 = base.get(&server).map_or(0, |counts| counts.iter().sum());
            let may = wish.allowed.is_none_or(|allowed| allowed[server.index()]);
            let slots = if may { ledger.usable_slots(server).max(held) } else { held };
            here += u32::from(held > 0);
            slots_all += u64::from(slots.min(wish.caps[0]));
            if slots > 0 {
                servers.push((server, slots, held));
            }
        }
        let vms = wish.request.hose.vms();
        let root_layer = topology.layer_of(root);
        let enough = slots_all >= u64::from(vms) && wish.caps[root_layer] >= vms;
        if !enough || here as usize != base.len() {
            return None;
        }
        servers.sort_by_key(|(server, slots, held)| {
            (core::cmp::Reverse(*held), core::cmp::Reverse(*slots), *server)
        });
        let with_path = |(server, slots, _)| Some((server, slots, topology.path_up(server, root)?));
        let servers: Vec<_> = servers.into_iter().map(with_path).collect::<Option<_>>()?;
        let to_centre = servers.first().map(|server| server.2.clone()).unwrap_or_default();
        Some(Self { ledger, wish, root_layer, base, servers, to_centre })
    }
}

/// State of one attempt to fill a tree.
struct Filling<'a> {
    tree: &'a Tree<'a>,
    /// For each link, the maximum sum of the rates of VMs that may still be added below the link.
    /// The map `free` has no entry for links that are exempt from the bound on the VMs' rates.
    free: BTreeMap<LinkId, Need>,
    /// Number of VMs below each link, to enforce the maximum number of VMs per fault domain.
    below: BTreeMap<LinkId, u32>,
}

impl<'a> Filling<'a> {
    /// Starts an attempt. The bound on the VMs' rates applies only to the lowest `kept` links of
    /// the path from the centre to the root.
    fn new(tree: &'a Tree<'a>, kept: usize) -> Self {
        let mut free = BTreeMap::new();
        let links = tree.servers.iter().flat_map(|(_, _, path)| path.iter().copied());
        for link in links.filter(|link| !tree.to_centre[kept..].contains(link)) {
            free.entry(link).or_insert_with(|| tree.ledger.available(link));
        }
        Self { tree, free, below: BTreeMap::new() }
    }

    fn run(mut self) -> Option<Vec<VmShare>> {
        let hose = &self.tree.wish.request.hose;
        let mut left: Vec<u32> = hose.classes().iter().map(|class| class.vms).collect();
        let mut shares = Vec::new();
        for (server, _, path) in &self.tree.servers {
            for (class, vms) in self.tree.base.get(server).into_iter().flatten().enumerate() {
                if *vms > 0 {
                    left[class] = left[class].checked_sub(*vms)?;
                    self.put(*server, class, *vms, path, &mut shares);
                }
            }
        }
        for (server, slots, path) in &self.tree.servers {
            let held: u32 = self.tree.base.get(server).map_or(0, |counts| counts.iter().sum());
            let mut slots = (*slots).min(self.tree.wish.caps[0]).saturating_sub(held);
            for class in by_size(hose) {
                let vms = self.room(class, path).min(slots).min(left[class]);
                if vms > 0 {
                    self.put(*server, class, vms, path, &mut shares);
                    left[class] -= vms;
                    slots -= vms;
                }
            }
        }
        shares.sort_unstable();
        shares.dedup_by(|next, kept| {
            let same = (next.server, next.class) == (kept.server, kept.class);
            kept.vms += if same { next.vms } else { 0 };
            same
        });
        left.iter().all(|left| *left == 0).then_some(shares)
    }

    /// Returns the maximum number of VMs of a class that the links of `path` and the bounds on
    /// fault domains still permit.
    fn room(&self, class: usize, path: &[LinkId]) -> u32 {
        let wish = self.tree.wish;
        let kind = wish.request.hose.classes()[class];
        let mut room = wish.caps[self.tree.root_layer];
        for (layer, link) in path.iter().enumerate() {
            let below = self.below.get(link).copied().unwrap_or(0);
            room = room.min(wish.caps[layer].saturating_sub(below));
            if let Some(free) = self.free.get(link) {
                let by_rate = (free.up.0 / kind.send.0).min(free.down.0 / kind.recv.0);
                room = room.min(u32::try_from(by_rate).unwrap_or(u32::MAX));
            }
        }
        room
    }

    fn put(
        &mut self,
        server: NodeId,
        class: usize,
        vms: u32,
        path: &[LinkId],
        shares: &mut Vec<VmShare>,
    ) {
        let kind = self.tree.wish.request.hose.classes()[class];
        for link in path {
            *self.below.entry(*link).or_default() += vms;
            if let Some(free) = self.free.get_mut(link) {
                // Existing VMs may exceed this bound, because it is stricter than the true need.
                let less = |free: u64, rate: u64| free.saturating_sub(rate * u64::from(vms));
                free.up.0 = less(free.up.0, kind.send.0);
                free.down.0 = less(free.down.0, kind.recv.0);
            }
        }
        shares.push(VmShare { server, class: crate::topology::number(class), vms });
    }
}
