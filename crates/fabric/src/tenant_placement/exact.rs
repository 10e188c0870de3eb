//! The least bandwidth that a tenant with equal guarantees needs, for each tree of a layer.
//!
//! # Problem
//!
//! QShare §IV-B requires the optimal allocation in every candidate tree. Trees of a layer share
//! most of their nodes. Results that depend on a node alone must therefore be computed once per
//! node and not once per tree.
//!
//! # Source
//!
//! The source is QShare Algorithm 1, `get_optimal_allocation`. By Rost, Fuerst, Schmid, CCR 2015, a
//! single virtual cluster can be embedded optimally in polynomial time.
//!
//! # Quantities
//!
//! There are N VMs of rate B. Link l has free bandwidth for a(l) VMs, at most N, and m(l) VMs are
//! below it. The link needs min(m, N - m) * B.
//!
//! # Approach
//!
//! A link has room if m <= a or N - m <= a. The smaller of a link's two sides counts. The *centre*
//! is the node for which, on every link, the smaller side is the side away from the centre. At most
//! a(l) VMs may be below a link that does not lead to the centre. At most a(l) VMs may be above a
//! link that does. For a given centre, the cost of a VM is its distance, and all limits are on
//! nested sets. It is therefore optimal to take as many VMs as possible nearest to the centre.
//!
//! A node's *front* has an entry for each useful centre below the node. The entry has the number of
//! VMs that the node then holds and the load of the links below it. An entry is dropped if another
//! one has more VMs at a lower cost. A centre with at most half of the VMs is never useful, because
//! the node above it is at least as good a centre.
//!
//! # Example
//!
//! In a test, N is 6, two servers have 5 and 4 slots, and both links have room for 1 VM. m = 5 is
//! possible, because only one VM is on the other side. The cost is 2.
//!
//! # Departures
//!
//! The printed algorithm always takes the server with the most usable slots in the whole tree next.
//! In trees with several layers of switches, this spreads VMs over several racks even if one rack
//! has room for all. See `departures.md`.
//!
//! # Cost
//!
//! Time is proportional to the links of the visited layers, three per server in a fat-tree. This is
//! O(V), whereas the paper's bound is O(V^(5/3)). Memory is 8 bytes per node and 24 per way.

use crate::ledger::Ledger;
use crate::topology::{LinkId, NodeId};

/// Value of `via` without a link: the centre is the node itself.
const HERE: u32 = u32::MAX;

/// A way to have `vms` VMs below a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    vms: u32,
    /// Load of the links below the node, in VMs.
    carried: u64,
    /// The link down towards the centre, and the index of the way of its lower end.
    via: u32,
    next: u32,
}

/// The request that is being placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) vms: u32,
    /// Rate of each VM in bit/s, above 0. If it is 0, only slots count.
    pub(super) rate: u64,
    /// Maximum number of VMs in a node of each layer; see `Request::caps`.
    pub(super) caps: &'a [u32],
    /// Whether each server may be used. `None` allows all servers.
    pub(super) allowed: Option<&'a [bool]>,
}

impl Ask<'_> {
    /// Number of VMs, up to `vms`, for which a link has free bandwidth.
    fn share(&self, ledger: &Ledger, link: u32, vms: u32) -> u32 {
        let free = ledger.available_both(link);
        // Most links have room for all VMs, and the division would dominate the cost.
        if u128::from(free) >= u128::from(self.rate) * u128::from(vms) {
            return vms;
        }
        u32::try_from(free / self.rate).unwrap_or(vms)
    }
}

/// Results per node for one request. The memory is reused.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// Maximum number of VMs below each node if the centre is the node or is not below it.
    plain: Vec<u32>,
    /// Maximum number of VMs below each link, if the link does not lead to the centre.
    shares: Vec<u32>,
    /// Range of each node's front in `ways`.
    fronts: Vec<(u32, u32)>,
    ways: Vec<Way>,
}

/// An allocation in one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Laid {
    /// Servers and their numbers of VMs.
    pub(super) servers: Vec<(u32, u32)>,
    /// Links and the numbers of VMs below them.
    pub(super) links: Vec<(u32, u32)>,
    /// Candidate children: the room below, the tenants on the link, and the link.
    choice: Vec<(u32, u32, u32)>,
}

/// Order in which a node's children are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Children are filled by best fit. If none fits, the child with the most room is first. Ties
    /// go to the fewest tenants on the link, then to the lowest number.
    Room,
    /// Children are filled by number: first fit.
    Number,
}

impl Survey {
    /// Evaluates the servers.
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

    /// Evaluates a layer of switches. The layers below must be evaluated already.
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

    /// Adds a way to the front that begins at `start`, unless another way is at least as good in
    /// both respects. Removes ways that the new one dominates.
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

    /// Maximum number of VMs that the tree of `root` can hold.
    pub(super) fn most(&self, root: NodeId) -> u32 {
        let (from, until) = self.fronts[root.index()];
        let front = &self.ways[from as usize..until as usize];
        front.iter().map(|way| way.vms).max().unwrap_or(self.plain[root.index()])
    }

    /// Maximum number of VMs below a link's lower end, if the centre is elsewhere and the link is
    /// unlimited.
    pub(super) fn below(&self, child: NodeId) -> u32 {
        self.plain[child.index()]
    }

    /// The cheapest way to have all VMs in the tree of `root`.
    fn best(&self, root: NodeId, all: u32) -> Option<Way> {
        let (from, until) = self.fronts[root.index()];
        let front = self.ways[from as usize..until as usize].iter();
        front.filter(|way| way.vms == all).min_by_key(|way| way.carried).copied()
    }

    /// Lays out all VMs in the tree of `root` at the least cost; `None` if they do not fit.
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
    /// Puts `vms` below a node on the path to the centre. The centre's side is filled first, then
    /// the others.
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

    /// Puts `vms` below a node, using its links except `except`. None of them leads to the centre.
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

    /// Swaps the best child from `at` on to `at`. The best child takes all of `vms` and has the
    /// least room to spare, because this keeps large rooms intact. If no child takes all, the child
    /// with the most room is best. Ties go to the fewest tenants on the link.
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
        // With seven VMs, two would be on the other side of a link that has room for one.
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
