//! Computes the allocation with the least bandwidth for a tenant with equal guarantees, in each
//! tree of a layer.
//!
//! # Problem
//!
//! QShare §IV-B requires the optimal allocation in every candidate tree. The trees of a layer have
//! most of their nodes in common. The module computes the possible allocations below a node only
//! once, and not once for each tree that contains the node.
//!
//! # Source
//!
//! The module implements `get_optimal_allocation` of QShare's Algorithm 1. Rost, Fuerst, Schmid,
//! CCR 2015, show that a single virtual cluster can be embedded optimally in polynomial time.
//!
//! # Quantities
//!
//! - N is the number of VMs, and B is the guaranteed rate of each VM.
//! - a(l) is the number of VMs for which link l has free bandwidth, at most N.
//! - m(l) is the number of the tenant's VMs below link l. A link with m of the tenant's N VMs below
//!   it needs the bandwidth min(m, N - m) * B, where B is each VM's guarantee.
//!
//! # Approach
//!
//! A tenant with m(l) of its N VMs below link l fits on the link if m(l) or N - m(l) is at most
//! a(l), the number of VMs for which link l has free bandwidth. The *centre* of an allocation is
//! the node that is on the side with more VMs of every link. If link l has free bandwidth for a(l)
//! VMs, at most a(l) VMs may be on the side of link l that is away from the centre. The cost of a
//! VM is the number of links between the VM's server and the centre. The optimal allocation places
//! as many VMs as possible nearest to the centre.
//!
//! A node's *front* is a list of ways to place VMs below the node, one for each useful centre at or
//! below the node. Each entry of a node's front states a number of VMs that can be placed below the
//! node, and the cost. An entry is removed from a node's front if another entry of the front has at
//! least as many VMs at no higher cost. A node with at most half of the VMs below it is never a
//! useful centre, because its parent has no higher cost as centre.
//!
//! # Example
//!
//! A test places N = 6 VMs on two servers that have 5 and 4 slots. Each server's link has free
//! bandwidth for 1 VM. The first server can have five VMs, because a link needs bandwidth only for
//! the side with fewer VMs. The sixth VM is two links from the centre (the first server), so the
//! placement's cost is 2.
//!
//! # Departures
//!
//! The algorithm as printed in the paper always chooses the server with the most usable slots in
//! the whole tree. In trees with several layers of switches, the printed algorithm uses several
//! racks even if one rack suffices (`docs/internals/departures.md`).
//!
//! # Cost
//!
//! The time of a search is proportional to the number of links of the visited layers. A fat-tree
//! has three links per server, so a search takes O(V) time for V nodes. QShare's bound for the time
//! of a search is O(V^(5/3)). The algorithm takes 8 bytes of memory per node and 24 bytes per entry
//! of a front.

use crate::ledger::Ledger;
use crate::topology::{LinkId, NodeId};

/// Value of the field [`Way::via`] if the node of the front is itself the centre of the allocation.
const HERE: u32 = u32::MAX;

/// An entry of a node's front: a way to place `vms` VMs below the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    vms: u32,
    /// Cost: the sum of the distances of all VMs to the centre, in links.
    carried: u64,
    /// Link from the node to the child that leads to the centre of the allocation. The field `next`
    /// is the index in `ways` of the entry of the child's front that this entry contains.
    via: u32,
    next: u32,
}

/// Limits on the VMs and servers of the request that is being placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) vms: u32,
    /// Guaranteed rate of each VM in bit/s. If the rate is 0, only slots count.
    pub(super) rate: u64,
    /// For each layer, the maximum number of the tenant's VMs below one node (`Request::caps`).
    pub(super) caps: &'a [u32],
    /// For each server, whether the request may use the server. `None` means that the request may
    /// use all servers.
    pub(super) allowed: Option<&'a [bool]>,
}

impl Ask<'_> {
    /// Returns the number of VMs for which a link has free bandwidth, at most `vms`.
    fn share(&self, ledger: &Ledger, link: u32, vms: u32) -> u32 {
        let free = ledger.available_both(link);
        // Most links suffice for all VMs. The division, which would dominate the cost, is avoided
        // for them.
        if u128::from(free) >= u128::from(self.rate) * u128::from(vms) {
            return vms;
        }
        u32::try_from(free / self.rate).unwrap_or(vms)
    }
}

/// Survey of a datacenter: how many VMs of one request fit below each node and link, and at which
/// cost. Later requests reuse the memory of the survey.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// For each node, the maximum number of VMs below the node if the allocation's centre is not
    /// below the node.
    plain: Vec<u32>,
    /// For each link, the maximum number of VMs below the link if the centre is not below the link.
    shares: Vec<u32>,
    /// For each node, the range of indices in `ways` with the node's front, which lists possible
    /// placements below the node.
    fronts: Vec<(u32, u32)>,
    ways: Vec<Way>,
}

/// An allocation of a tenant's VMs in one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Laid {
    /// Pairs of a server and the number of VMs on the server.
    pub(super) servers: Vec<(u32, u32)>,
    /// Links of the tenant, each with the number of VMs below the link.
    pub(super) links: Vec<(u32, u32)>,
    /// For each child of a node with room for VMs: maximum number of VMs below the child, number of
    /// tenants on the child's link, and the link.
    choice: Vec<(u32, u32, u32)>,
}

/// Order in which a node's children are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Best fit: the smallest child with room for all VMs comes first. If no child has room for all
    /// VMs, the largest child comes first. If several children are equally good, the child with the
    /// fewest tenants on its link is first, then the child with the lowest number.
    Room,
    /// First fit: children are filled in the order of their numbers.
    Number,
}

impl Survey {
    /// Computes how many VMs fit on each server.
    pub(super) fn servers(&mut self, ledger: &Ledger, ask: &Ask<'_>) {
        let topology = ledger.topology();
        self.plain.resize(topology.nodes(), 0);
        self.fronts.resize(topology.nodes(), (0, 0));
        self.shares.resize(topology.links(), 0);
        self.ways.clear();
        for server in topology.layer(0) {
            let may = ask.allowed.is_none_or(|allowed| allowed[server.index()]);
            let slots = if may { ledger.usable_slots(server) } else { 0 };
            let vms = slots.min(ask.caps[0]).min(ask.vms);
            self.plain[server.index()] = vms;
            let start = self.len();
            if 2 * u64::from(vms) > u64::from(ask.vms) {
                self.ways.push(Way { vms, carried: 0, via: HERE, next: 0 });
            }
            self.fronts[server.index()] = (start, self.len());
        }
    }

    fn len(&self) -> u32 {
        crate::topology::number(self.ways.len())
    }

    /// Computes how many VMs fit below each switch of a layer. The caller must call
    /// [`Self::switches`] for the lower layers first.
    pub(super) fn switches(&mut self, ledger: &Ledger, ask: &Ask<'_>, layer: usize) {
        let topology = ledger.topology();
        let (all, cap) = (ask.vms, ask.caps[layer]);
        for node in topology.layer(layer) {
            let mut sum = 0_u64;
            for link in topology.down_range(node) {
                let below = self.plain[topology.child(LinkId(link)).index()];
                let share = ask.share(ledger, link, below);
                self.shares[link as usize] = share;
                sum += u64::from(share);
            }
            let most = |vms: u64| u32::try_from(vms).unwrap_or(u32::MAX).min(all).min(cap);
            let start = self.len();
            let vms = most(sum);
            self.plain[node.index()] = vms;
            let carried = layer as u64 * u64::from(all);
            self.ways.push(Way { vms, carried, via: HERE, next: 0 });
            for link in topology.down_range(node) {
                let (from, until) = self.fronts[topology.child(LinkId(link)).index()];
                if from == until {
                    continue;
                }
                let room = ask.share(ledger, link, all);
                for next in from..until {
                    let way = self.ways[next as usize];
                    if 2 * u64::from(way.vms) <= u64::from(all) || all - way.vms > room {
                        continue;
                    }
                    let others = sum - u64::from(self.shares[link as usize]);
                    let vms = most(others + u64::from(way.vms));
                    let carried = way.carried + 2 * u64::from(all - way.vms);
                    self.keep(start, Way { vms, carried, via: link, next });
                }
            }
            self.fronts[node.index()] = (start, self.len());
        }
    }

    /// Adds the entry `way` to the front that begins at index `start` of `ways`, unless an entry of
    /// the front has at least as many VMs at no higher cost. Removes the entries of the front that
    /// are no better than the new entry.
    fn keep(&mut self, start: u32, way: Way) {
        let front = &self.ways[start as usize..];
        if front.iter().any(|w| w.vms >= way.vms && w.carried <= way.carried) {
            return;
        }
        let mut at = start as usize;
        while at < self.ways.len() {
            let other = self.ways[at];
            if other.vms <= way.vms && other.carried >= way.carried {
                self.ways.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.ways.push(way);
    }

    /// Maximum number of VMs that fit in the tree of `root`.
    pub(super) fn most(&self, root: NodeId) -> u32 {
        let (from, until) = self.fronts[root.index()];
        let front = &self.ways[from as usize..until as usize];
        front.iter().map(|way| way.vms).max().unwrap_or(self.plain[root.index()])
    }

    /// Returns the maximum number of VMs below `child` if the uplink of `child` is unlimited and
    /// the allocation's centre is not below `child`.
    pub(super) fn below(&self, child: NodeId) -> u32 {
        self.plain[child.index()]
    }

    /// Returns the cheapest way to place all VMs in the tree of `root`, or `None` if the VMs do not
    /// fit.
    fn best(&self, root: NodeId, all: u32) -> Option<Way> {
        let (from, until) = self.fronts[root.index()];
        let front = self.ways[from as usize..until as usize].iter();
        front.filter(|way| way.vms == all).min_by_key(|way| way.carried).copied()
    }

    /// Places all VMs in the tree of `root` at the least cost. Returns `None` if the VMs do not fit
    /// in the tree.
    pub(super) fn lay(
        &self,
        ledger: &Ledger,
        ask: &Ask<'_>,
        root: NodeId,
        order: Order,
        laid: &mut Laid,
    ) -> Option<()> {
        laid.servers.clear();
        laid.links.clear();
        let best = self.best(root, ask.vms)?;
        let mut layout = Layout { survey: self, ledger, order, laid };
        layout.toward_centre(root, best, ask.vms);
        Some(())
    }
}

struct Layout<'a> {
    survey: &'a Survey,
    ledger: &'a Ledger,
    order: Order,
    laid: &'a mut Laid,
}

impl Layout<'_> {
    /// Places `vms` VMs below a node on the path to the centre. The VMs are placed first below the
    /// child that leads to the allocation's centre.
    fn toward_centre(&mut self, node: NodeId, way: Way, vms: u32) {
        if way.via == HERE {
            self.fill(node, vms, None);
            return;
        }
        let next = self.survey.ways[way.next as usize];
        let nearer = next.vms.min(vms);
        self.laid.links.push((way.via, nearer));
        self.toward_centre(self.ledger.topology().child(LinkId(way.via)), next, nearer);
        self.fill(node, vms - nearer, Some(way.via));
    }

    /// Places `vms` VMs below a node through its downlinks, except through the link `except`. No
    /// downlink of the node except the link `except` leads to the allocation's centre.
    fn fill(&mut self, node: NodeId, mut vms: u32, except: Option<u32>) {
        if vms == 0 {
            return;
        }
        let topology = self.ledger.topology();
        if topology.is_server(node) {
            self.laid.servers.push((node.0, vms));
            return;
        }
        let base = self.laid.choice.len();
        for link in topology.down_range(node).filter(|link| Some(*link) != except) {
            let share = self.survey.shares[link as usize];
            if share > 0 {
                self.laid.choice.push((share, self.ledger.tenants(LinkId(link)), link));
            }
        }
        let mut at = base;
        while vms > 0 {
            if self.order == Order::Room {
                self.bring_best_to(at, vms);
            }
            let (share, _, link) = self.laid.choice[at];
            let taken = share.min(vms);
            self.laid.links.push((link, taken));
            self.fill(topology.child(LinkId(link)), taken, None);
            vms -= taken;
            at += 1;
        }
        self.laid.choice.truncate(base);
    }

    /// Finds the best child of a node in `choice`, from index `at` on, and swaps the best child to
    /// index `at`. The best child is the smallest child with room for all `vms` VMs, which keeps
    /// large children free. If no child has room for all VMs, the largest child is best. If several
    /// children are equally good, the child with the fewest tenants on its link is first.
    fn bring_best_to(&mut self, at: usize, vms: u32) {
        let key = |(share, tenants, link): (u32, u32, u32)| match share.checked_sub(vms) {
            Some(beyond) => (false, beyond, tenants, link),
            None => (true, u32::MAX - share, tenants, link),
        };
        let best = (at..self.laid.choice.len()).min_by_key(|i| key(self.laid.choice[*i]));
        if let Some(best) = best {
            self.laid.choice.swap(at, best);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Entry;
    use crate::topology::{Regular, Tier};
    use penstock_units::BitsPerSecond;

    fn ledger(fan_outs: &[(u32, u64)], slots: u32) -> Ledger {
        let tier = |(fan_out, rate): &(u32, u64)| Tier {
            fan_out: *fan_out,
            uplinks: 1,
            rate: BitsPerSecond(*rate),
        };
        let tree = Regular { slots, tiers: fan_outs.iter().map(tier).collect() };
        Ledger::new(tree.build().unwrap(), 0)
    }

    fn laid(ledger: &Ledger, vms: u32, layer: usize) -> Option<Laid> {
        let caps = vec![vms; ledger.topology().layers()];
        let ask = Ask { vms, rate: 1, caps: &caps, allowed: None };
        let mut survey = Survey::default();
        survey.servers(ledger, &ask);
        (1..=layer).for_each(|layer| survey.switches(ledger, &ask, layer));
        let root = ledger.topology().layer(layer).next()?;
        let mut laid = Laid::default();
        survey.lay(ledger, &ask, root, Order::Room, &mut laid).map(|()| laid)
    }

    #[test]
    fn a_server_may_hold_more_than_its_link_carries_if_few_are_elsewhere() {
        let mut ledger = ledger(&[(2, 1)], 5);
        ledger.take(&Entry { slots: vec![(NodeId(1), 1)], links: vec![] }).unwrap();
        let found = laid(&ledger, 6, 1).unwrap();
        assert_eq!(found.servers, [(0, 5), (1, 1)]);
        assert_eq!(found.links, [(0, 5), (1, 1)]);
        // With seven VMs, the smaller side of a link would have two VMs, but the link has bandwidth
        // for one.
        assert_eq!(laid(&ledger, 7, 1), None);
    }

    #[test]
    fn vms_that_fit_into_one_rack_with_few_elsewhere_stay_there() {
        // Racks have two servers with four slots, so 10 VMs need two racks.
        let ledger = ledger(&[(2, 100), (3, 2)], 4);
        let found = laid(&ledger, 10, 2).unwrap();
        let racks: Vec<_> = found.links.iter().filter(|(link, _)| *link >= 6).collect();
        assert_eq!(racks.len(), 2);
        assert_eq!(racks.iter().map(|(_, vms)| *vms).collect::<Vec<_>>(), [8, 2]);
    }
}
