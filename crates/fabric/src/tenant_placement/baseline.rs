//! Places the VMs of a tenant at random, as a baseline for comparison.

use super::mixed::{Base, in_tree};
use super::{Checked, Datacenter, Placement, Request};
use crate::topology::NodeId;

/// Number of random placements that are tried for one request.
const TRIES: u32 = 16;

impl Datacenter {
    /// Places each VM on a random server with a free slot. The root of the tree is a random node of
    /// the lowest layer in which a node has paths down to all chosen servers. `below(n)` must
    /// return a random number from 0 to n - 1. Returns `None` if 16 attempts to place the VMs
    /// failed.
    pub fn find_random(
        &self,
        request: &Request,
        below: &mut dyn FnMut(u32) -> u32,
    ) -> Option<Placement> {
        let checked = Checked::new(self, request).ok()?;
        let wish = checked.wish(request);
        (0..TRIES).find_map(|_| {
            let base = self.scatter(request, &checked, below)?;
            let root = self.random_root(&base, below)?;
            in_tree(&self.ledger, &self.policy, &wish, root, &base)
        })
    }

    fn scatter(
        &self,
        request: &Request,
        checked: &Checked,
        below: &mut dyn FnMut(u32) -> u32,
    ) -> Option<Base> {
        let kinds = request.hose.classes();
        let allowed = checked.allowed.as_deref();
        let may = |server: &NodeId| allowed.is_none_or(|allowed| allowed[server.index()]);
        let mut room: Vec<(NodeId, u32)> = self
            .topology()
            .layer(0)
            .filter(may)
            .map(|server| (server, self.ledger.usable_slots(server).min(checked.caps[0])))
            .filter(|(_, slots)| *slots > 0)
            .collect();
        let mut base = Base::new();
        for (class, kind) in kinds.iter().enumerate() {
            for _ in 0..kind.vms {
                let servers = u32::try_from(room.len()).ok().filter(|servers| *servers > 0)?;
                let at = below(servers) as usize;
                let (server, slots) = room.get_mut(at)?;
                base.entry(*server).or_insert_with(|| vec![0; kinds.len()])[class] += 1;
                *slots -= 1;
                if *slots == 0 {
                    room.swap_remove(at);
                }
            }
        }
        Some(base)
    }

    fn random_root(&self, base: &Base, below: &mut dyn FnMut(u32) -> u32) -> Option<NodeId> {
        let topology = self.topology();
        (0..topology.layers()).find_map(|layer| {
            let over_all = |root: &NodeId| {
                base.keys().all(|server| topology.path_up(*server, *root).is_some())
            };
            let roots: Vec<NodeId> = topology.layer(layer).filter(over_all).collect();
            let count = u32::try_from(roots.len()).ok().filter(|count| *count > 0)?;
            roots.get(below(count) as usize).copied()
        })
    }
}
