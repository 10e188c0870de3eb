//! The least bandwidth that a tenant of equal guarantees needs in each tree of a layer.
//!
//! **Problem.** QShare §IV-B asks for the optimal allocation in every candidate tree. Trees of a
//! layer share most of their nodes, so nothing may be computed once a tree that can be computed
//! once a node.
//!
//! **Source.** QShare Algorithm 1, `get_optimal_allocation`. That one virtual cluster can be
//! embedded optimally in polynomial time: Rost, Fuerst, Schmid, CCR 2015.
//!
//! **Quantities.** N VMs of rate B; a(l) VMs' worth of rate is free on link l, at most N; m(l) VMs
//! lie below it. The link needs min(m, N - m) * B.
//!
//! **Rule.** A link has room if m <= a or N - m <= a. Call *centre* the node to which on every link
//! the side away from it is the one that counts: below a link that does not lead to the centre
//! there may be a(l) VMs, and above a link that does, a(l). For a given centre the cost of a VM is
//! its distance, and all limits are on nested sets, so taking as many as possible nearest to the
//! centre first is optimal. A node's *front* holds, for the centres below it that are worth it,
//! how many VMs it then holds and what the links below it carry; an entry with fewer VMs and more
//! cost than another is dropped. A centre that holds no more than half of the VMs is never worth
//! it: the node above it does as well.
//!
//! **Worked example** (a test). N = 6, two servers with 5 and 4 slots, both links have room for 1
//! VM: m = 5 is allowed, for only one VM is on the other side; cost 2.
//!
//! **Departures.** The printed algorithm takes the server with the most usable slots of the whole
//! tree next, which in trees of more than one layer of switches spreads over racks what one rack
//! could hold; see `departures.md`.
//!
//! **Cost.** Time in proportion to the links of the layers looked at, three for each server in a
//! fat-tree: O(V), where the paper's bound is O(V^(5/3)). 8 bytes a node, 24 a way.

use crate::ledger::Ledger;
use crate::topology::{LinkId, NodeId};

/// No link: the centre is the node itself.
const HERE: u32 = u32::MAX;

/// A way to have `vms` VMs below a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    vms: u32,
    /// What the links below carry, in VMs.
    carried: u64,
    /// The link down to the centre, and the way of its lower end.
    via: u32,
    next: u32,
}

/// What is being placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) vms: u32,
    /// Bits per second of each VM; above 0, or 0 to ask about slots alone.
    pub(super) rate: u64,
    /// Most VMs in a node, by layer; see `Request::caps`.
    pub(super) caps: &'a [u32],
    /// Servers that may be used, by server; `None`: all.
    pub(super) allowed: Option<&'a [bool]>,
}

impl Ask<'_> {
    /// How many of `vms` VMs a link has rate for.
    fn share(&self, ledger: &Ledger, link: u32, vms: u32) -> u32 {
        let free = ledger.available_both(link);
        // Most links have room for all, and a division takes as long as all the rest.
        if u128::from(free) >= u128::from(self.rate) * u128::from(vms) {
            return vms;
        }
        u32::try_from(free / self.rate).unwrap_or(vms)
    }
}

/// What is known of each node for one request; its memory is used again for the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// By node: most VMs below it with the centre at it or elsewhere.
    plain: Vec<u32>,
    /// By link: most VMs below it when it does not lead to the centre.
    shares: Vec<u32>,
    /// By node: where its front is in `ways`.
    fronts: Vec<(u32, u32)>,
    ways: Vec<Way>,
}

/// An allocation in one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Laid {
    /// Servers and their VMs.
    pub(super) servers: Vec<(u32, u32)>,
    /// Links and the VMs below them.
    pub(super) links: Vec<(u32, u32)>,
    /// Children that are being chosen from: room, tenants, link.
    choice: Vec<(u32, u32, u32)>,
}

/// The order in which a node's children are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Best fit, else most room first, then fewest tenants on the link, then by number.
    Room,
    /// By number: first fit.
    Number,
}

impl Survey {
    /// Looks at the servers.
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

    /// Looks at a layer of switches; the layers below have been looked at.
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

    /// Adds a way to the front that begins at `start`, unless another is as good in both; those
    /// that it beats go.
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

    /// Most VMs that the tree of `root` can hold.
    pub(super) fn most(&self, root: NodeId) -> u32 {
        let (from, until) = self.fronts[root.index()];
        let front = &self.ways[from as usize..until as usize];
        front.iter().map(|way| way.vms).max().unwrap_or(self.plain[root.index()])
    }

    /// Most VMs below a link's lower end, with the centre elsewhere and whatever the link has.
    pub(super) fn below(&self, child: NodeId) -> u32 {
        self.plain[child.index()]
    }

    /// The cheapest way to have all VMs in the tree of `root`.
    fn best(&self, root: NodeId, all: u32) -> Option<Way> {
        let (from, until) = self.fronts[root.index()];
        let front = self.ways[from as usize..until as usize].iter();
        front.filter(|way| way.vms == all).min_by_key(|way| way.carried).copied()
    }

    /// Lays all VMs out in the tree of `root`, as cheaply as possible; `None` if they do not fit.
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
    /// `vms` below a node on the way to the centre: first the centre's side, then the others.
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

    /// `vms` below a node, by its links but `except`, none of which leads to the centre.
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

    /// Swaps the best child of those from `at` on to `at`: one that takes all of `vms` and has
    /// least room beyond that, so that large rooms stay whole; else the one with most room. Of
    /// equal ones that with fewest tenants on its link.
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
        // Seven would put two on the other side of a link that has room for one.
        assert_eq!(laid(&ledger, 7, 1), None);
    }

    #[test]
    fn what_fits_into_one_rack_with_little_elsewhere_stays_there() {
        // Racks of two servers with four slots; 10 VMs need two racks.
        let ledger = ledger(&[(2, 100), (3, 2)], 4);
        let found = laid(&ledger, 10, 2).unwrap();
        let racks: Vec<_> = found.links.iter().filter(|(link, _)| *link >= 6).collect();
        assert_eq!(racks.len(), 2);
        assert_eq!(racks.iter().map(|(_, vms)| *vms).collect::<Vec<_>>(), [8, 2]);
    }
}
