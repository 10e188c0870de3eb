//! Computes the weights of ports during and after a change of queues, and the tenants that hosts
//! limit during the change.
//!
//! # Problem
//!
//! A tenant that loses or gets queues is in its own queue and in queue 0 at the same time, because
//! its hosts do not change their marks at the same moment. No port may leave any tenant less than
//! its guarantee meanwhile.
//!
//! # Approach
//!
//! Tenants that move (lose or get queues) are limited to their guarantees during the change, and so
//! are the tenants that share queue 0 with them. The limited traffic of a port then fits in any
//! order of events ([`super::dilution()`]), so any number of tenants may move at once. The weights
//! during the change are the whole numbers that leave the queues the largest part of their
//! guarantees. They count a tenant that moves in queue 0 and in its own queue.
//!
//! If the whole numbers leave some queue of a port less than [`KEPT_PPM_MIN`], hosts limit *all*
//! tenants of the port. If all of them are limited and their guarantees fit, no port needs weights
//! at all.
//!
//! # Cost
//!
//! The computation visits each tenant's ports three times, and computes weights only for ports with
//! changed reservations or with tenants that move.

use std::collections::{BTreeMap, BTreeSet};

use super::dilution::{Load, PortLoad, WHOLE_PPM};
use super::plan::{Bound, Port};
use super::weights::{self, Weights};
use super::{Binding, Candidate, index, ports};
use crate::tenant_placement::TenantSlot;
use crate::topology::{LinkId, Topology};

/// Least part of a guarantee that weights must leave during a change, in millionths of what the
/// weights before and after the change leave. On a port with less, hosts limit all tenants.
const KEPT_PPM_MIN: u32 = 990_000;

/// New weights of a port, during and after a change of queues. `None` if the port has the weights
/// already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reweigh {
    pub(super) port: Port,
    pub(super) during: Option<Weights>,
    pub(super) after: Option<Weights>,
}

/// Weights of ports and limits of tenants during a change of queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) ports: Vec<Reweigh>,
    /// Tenants that hosts limit to their guarantees during the change.
    pub(super) limited: BTreeSet<TenantSlot>,
}

/// Tenants that lose or get queues. A tenant may do both.
pub(super) struct Movers<'a> {
    lost: BTreeMap<TenantSlot, &'a Bound>,
    won: &'a BTreeSet<TenantSlot>,
}

impl<'a> Movers<'a> {
    pub(super) fn new(lost: &'a [(TenantSlot, Bound)], won: &'a BTreeSet<TenantSlot>) -> Self {
        let lost = lost.iter().map(|(tenant, bound)| (*tenant, bound)).collect();
        Self { lost, won }
    }

    fn contains(&self, tenant: TenantSlot) -> bool {
        self.lost.contains_key(&tenant) || self.won.contains(&tenant)
    }

    /// Returns the queues that a tenant loses on its present ports. `None` if the tenant had no
    /// queues there.
    fn lost_queues(&self, candidate: &Candidate<'_>) -> Option<&'a [(Port, u8)]> {
        let bound = *self.lost.get(&candidate.tenant)?;
        let here = ports(candidate.links).eq(bound.queues.iter().map(|(port, _)| *port));
        here.then_some(bound.queues.as_slice())
    }
}

/// Traffic of a tenant at a port on which tenants move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Guarantee of the tenant at the port, in bit/s.
    guarantee: u64,
    moves: bool,
    /// Queue of the tenant before the change.
    old: u8,
    /// Queue of the tenant after the change.
    new: u8,
}

/// Returns the part of its guarantees that each queue keeps, in millionths, if all queues with a
/// guarantee always have frames. `loads` has the queue and guarantee of each tenant.
fn backlogged(
    loads: impl Iterator<Item = (u8, u64)>,
    weights: &[u32],
    queues: usize,
    rate: u64,
) -> Vec<u32> {
    let mut port = PortLoad::new(queues);
    for (queue, guarantee) in loads.filter(|(_, guarantee)| *guarantee > 0) {
        let load = Load { guarantee, queue, also_shared: false, limited: false };
        port.add(&load, WHOLE_PPM);
    }
    port.kept(weights, rate)
}

/// Port with changed reservations or with tenants that move.
#[derive(Debug)]
struct Changing {
    port: Port,
    /// Rate of the port's link, in bit/s.
    rate: u64,
    after: Weights,
    /// Traffic of all tenants of the port. `None` if no tenant moves on the port.
    traffic: Option<Vec<Part>>,
}

/// Traffic of a port on which tenants move.
#[derive(Debug)]
struct Phases {
    /// Traffic while tenants lose queues.
    losing: PortLoad,
    /// Traffic while tenants get queues.
    winning: PortLoad,
}

impl Phases {
    /// Adds up the traffic of a port of rate `rate`. The arguments `before` and `after` have the
    /// weights before the change, if the port has any, and after the change.
    fn new(traffic: &[Part], before: Option<&Weights>, after: &Weights, rate: u64) -> Self {
        let queues = after.weights.len();
        let old = traffic.iter().map(|part| (part.old, part.guarantee));
        let new = traffic.iter().map(|part| (part.new, part.guarantee));
        let whole = vec![WHOLE_PPM; queues];
        let kept_before =
            before.map_or(whole, |before| backlogged(old, &before.weights, queues, rate));
        let kept_after = backlogged(new, &after.weights, queues, rate);
        let (mut losing, mut winning) = (PortLoad::new(queues), PortLoad::new(queues));
        for Part { guarantee, moves, old, new } in traffic.iter().copied() {
            // A step of the plan need not leave more than the weights before and after the plan.
            let target = kept_before[usize::from(old)].min(kept_after[usize::from(new)]);
            for (port, queue) in [(&mut losing, old), (&mut winning, new)] {
                let (also_shared, limited) = (moves && queue != 0, moves || queue == 0);
                port.add(&Load { guarantee, queue, also_shared, limited }, target);
            }
        }
        Self { losing, winning }
    }
}

/// Weights of the previous port, for reuse if the next port has equal traffic.
struct Known {
    port: Port,
    rate: u64,
    traffic: Vec<Part>,
    before: Option<Weights>,
    during: Weights,
    kept: u32,
}

impl Binding {
    /// Recomputes the sum of reservations of each queue. Returns the new weights of ports with
    /// changed reservations, and the tenants that hosts limit during the change.
    pub(super) fn reweigh(
        &mut self,
        topology: &Topology,
        tenants: &[Candidate<'_>],
        movers: &Movers<'_>,
    ) -> Transition {
        let queues = usize::from(self.settings.queues);
        let mut now = vec![0_u64; self.reserved.len()];
        let mut moving = vec![false; self.reserved.len() / queues];
        for candidate in tenants {
            let moves = movers.contains(candidate.tenant);
            for (port, queue, rate) in self.parts(candidate.tenant, candidate.links) {
                now[index(port) * queues + queue] += rate;
                moving[index(port)] |= moves;
            }
        }
        let mut changing = self.changing(topology, &now, &moving);
        self.load(tenants, movers, &mut changing);
        let mut crowded = vec![false; moving.len()];
        let mut transition = Transition::default();
        let mut last: Option<Known> = None;
        for Changing { port, rate, after, traffic } in changing.into_iter().flatten() {
            let before = self.weights[index(port)].take();
            // Both directions of a link usually have the same traffic.
            let same = last.as_ref().filter(|known| {
                (known.rate, &known.before) == (rate, &before)
                    && Some(&known.traffic) == traffic.as_ref()
                    && self.weights(known.port) == Some(&after)
            });
            let (during, kept) = match (&traffic, same) {
                (None, _) => (after.clone(), WHOLE_PPM),
                (Some(_), Some(known)) => (known.during.clone(), known.kept),
                (Some(traffic), None) => {
                    let of = Phases::new(traffic, before.as_ref(), &after, rate);
                    weights::during(&of.losing, &of.winning, &after, rate)
                }
            };
            crowded[index(port)] = kept < KEPT_PPM_MIN;
            let first = before.as_ref().is_none_or(|before| before.weights != during.weights);
            let then = (during.weights != after.weights).then(|| after.clone());
            if first || then.is_some() {
                let during = first.then(|| during.clone());
                transition.ports.push(Reweigh { port, during, after: then });
            }
            if let Some(traffic) = traffic {
                last = Some(Known { port, rate, traffic, before, during, kept });
            }
            self.weights[index(port)] = Some(after);
        }
        self.reserved = now;
        transition.limited = self.limited(tenants, movers, &moving, &crowded);
        transition
    }

    /// Returns the ports with changed reservations or with tenants that move, by the number of the
    /// port. The argument `now` has the new reservations of all queues.
    fn changing(&self, topology: &Topology, now: &[u64], moving: &[bool]) -> Vec<Option<Changing>> {
        let queues = usize::from(self.settings.queues);
        let mut last: Option<(&[u64], u64, Weights)> = None;
        let mut changing = Vec::with_capacity(moving.len());
        let pairs = self.reserved.chunks(queues).zip(now.chunks(queues));
        for (at, ((old, new), moves)) in pairs.zip(moving).enumerate() {
            if old == new && !moves {
                changing.push(None);
                continue;
            }
            let port = Port { link: LinkId(crate::topology::number(at / 2)), up: at % 2 == 1 };
            let rate = self.rate(topology, port.link);
            // Both directions of a link usually have the same reservations.
            let after = match last.take() {
                Some((reserved, of, after)) if (reserved, of) == (new, rate) => after,
                _ => weights::weights(new, rate),
            };
            last = Some((new, rate, after.clone()));
            let traffic = moves.then(Vec::new);
            changing.push(Some(Changing { port, rate, after, traffic }));
        }
        changing
    }

    /// Adds the traffic of all tenants to the ports on which tenants move.
    fn load(
        &self,
        tenants: &[Candidate<'_>],
        movers: &Movers<'_>,
        changing: &mut [Option<Changing>],
    ) {
        for candidate in tenants {
            let moves = movers.contains(candidate.tenant);
            let lost = movers.lost_queues(candidate);
            let parts = self.parts(candidate.tenant, candidate.links);
            for (nth, (port, queue, guarantee)) in parts.enumerate() {
                let changing = changing[index(port)].as_mut();
                let Some(traffic) = changing.and_then(|of| of.traffic.as_mut()) else { continue };
                let new = u8::try_from(queue).unwrap_or(0);
                let stays = if moves { 0 } else { new };
                let old = lost.map_or(stays, |queues| queues[nth].1);
                traffic.push(Part { guarantee, moves, old, new });
            }
        }
    }

    /// Returns the tenants that hosts limit during the change: those that move, those that share
    /// queue 0 with them, and all tenants of crowded ports.
    fn limited(
        &self,
        tenants: &[Candidate<'_>],
        movers: &Movers<'_>,
        moving: &[bool],
        crowded: &[bool],
    ) -> BTreeSet<TenantSlot> {
        let concerned = |(port, queue, _): (Port, usize, u64)| {
            moving[index(port)] && (queue == 0 || crowded[index(port)])
        };
        let limited = |candidate: &&Candidate<'_>| {
            movers.contains(candidate.tenant)
                || self.parts(candidate.tenant, candidate.links).any(concerned)
        };
        tenants.iter().filter(limited).map(|candidate| candidate.tenant).collect()
    }
}
