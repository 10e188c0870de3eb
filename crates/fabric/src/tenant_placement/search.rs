//! Implements QShare's Algorithm 1: finds the lowest layer with a tree that has room, and the best
//! tree of that layer.

use super::exact::{Ask, Laid, Order, Survey};
use super::mixed;
use super::placement::{Cost, Placement, Scale, of_laid};
use super::policy::{Choice, Policy};
use super::request::Request;
use crate::ledger::Ledger;
use crate::topology::{LinkId, NodeId};

/// Working memory that searches for a placement reuse.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    pub(super) survey: Survey,
    laid: Laid,
    best: Laid,
}

/// A request, with the maximum number of VMs per node and the permitted servers derived from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    pub(super) request: &'a Request,
    pub(super) caps: &'a [u32],
    pub(super) allowed: Option<&'a [bool]>,
}

impl Search {
    /// Finds a placement for a request. Returns `None` if no placement is possible.
    pub(super) fn run(
        &mut self,
        ledger: &Ledger,
        policy: &Policy,
        wish: &Wish<'_>,
    ) -> Option<Placement> {
        let request = wish.request;
        let uniform = request.hose.uniform();
        let ask = Ask {
            vms: request.hose.vms(),
            // If rates differ, this first attempt assumes the largest rate for all VMs. A placement
            // found this way is valid, but others may be missed.
            rate: uniform.map_or_else(|| mixed::largest(&request.hose), |rate| rate.0),
            caps: wish.caps,
            allowed: wish.allowed,
        };
        for layer in 0..ledger.topology().layers() {
            match layer {
                0 => self.survey.servers(ledger, &ask),
                _ => self.survey.switches(ledger, &ask, layer),
            }
            if let Some((root, _)) = self.best_of(ledger, policy, request, &ask, layer) {
                return Some(match uniform {
                    Some(_) => of_laid(ledger, policy, request, root, &self.best),
                    None => mixed::of_laid(ledger, policy, request, root, &self.best),
                });
            }
            if uniform.is_none()
                && let Some(placement) = mixed::in_layer(ledger, policy, wish, layer)
            {
                return Some(placement);
            }
        }
        None
    }

    /// Finds the best tree of a layer, and stores the allocation of this tree in `self.best`.
    fn best_of(
        &mut self,
        ledger: &Ledger,
        policy: &Policy,
        request: &Request,
        ask: &Ask<'_>,
        layer: usize,
    ) -> Option<(NodeId, Cost)> {
        let order = match policy.choice {
            Choice::Balanced => Order::Room,
            Choice::FirstFit => Order::Number,
        };
        let scale = Scale::new(ledger, policy, request);
        let mut best: Option<(NodeId, Cost)> = None;
        for root in ledger.topology().layer(layer) {
            if self.survey.most(root) < ask.vms {
                continue;
            }
            let Some(()) = self.survey.lay(ledger, ask, root, order, &mut self.laid) else {
                continue;
            };
            let used = self.laid.links.iter().filter_map(|(link, below)| {
                let need = u64::from((*below).min(ask.vms - below)) * ask.rate;
                (need > 0).then_some((LinkId(*link), need))
            });
            let found = scale.cost(ledger, layer, used);
            if best.as_ref().is_none_or(|(_, cost)| is_better(&found, cost)) {
                best = Some((root, found));
                core::mem::swap(&mut self.best, &mut self.laid);
            }
            // A tree with only one server has no cost, so the first such tree is best. First fit
            // also stops at the first tree.
            if layer == 0 || policy.choice == Choice::FirstFit {
                break;
            }
        }
        best
    }
}

/// Whether cost `a` is less than cost `than`. Placements are compared by the number of overfull
/// links first, then by the weighted cost.
pub(super) fn is_better(a: &Cost, than: &Cost) -> bool {
    (a.overfull, a.weighed) < (than.overfull, than.weighed)
}
