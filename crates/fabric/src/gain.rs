//! Throughput of tenants beyond their guarantees, and the resulting use of links.
//!
//! # Problem
//!
//! The packets of a hundred thousand VMs cannot be simulated for every question. The rates of their
//! tenants can be.
//!
//! # Source
//!
//! QShare §VII-C2 defines tenant-level throughput for any communication pattern.
//!
//! # Quantities
//!
//! A tenant's *gain* is its throughput divided by its guarantee. It is the same on all links of its
//! tree. A link's *use* is a fraction of its rate.
//!
//! # Approach
//!
//! A tenant in the shared queue gets its demand up to its guarantee. So does a tenant that wants
//! less than its guarantee. The rest of a link goes to tenants with queues of their own by weight,
//! i.e. by guarantee, so the link offers each of them the same gain. In [`printed`], a tenant gets
//! the smallest gain of its links, as the paper counts. It then leaves bandwidth on its other
//! links. In [`max_min`], this bandwidth goes to tenants that can use it, as with weighted queues.
//!
//! # Example
//!
//! In a test, two tenants with guarantees of 10 on a link of 100 get 50 each, a gain of 5. If one
//! of them also uses a link of 30, its gain is 3. The other gets 70 by max-min, a gain of 7. As
//! printed, it still has a gain of 5.

use crate::hose::Need;
use crate::topology::{LinkId, Topology};

/// A tenant and its demand.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// The tenant's links and its guarantees on them.
    pub links: &'a [(LinkId, Need)],
    /// Fraction of its guarantee that the tenant uses, 0 to 1. `None` means unlimited demand. Such
    /// a tenant exceeds its guarantee only with a queue of its own.
    pub part: Option<f64>,
    /// Whether the tenant has a queue of its own on all its links.
    pub has_queue: bool,
}

impl Flow<'_> {
    /// Whether the tenant can get more than its guarantee.
    #[must_use]
    pub fn may_gain(&self) -> bool {
        self.part.is_none() && self.has_queue
    }

    /// The tenant's gain without a queue of its own.
    fn held(&self) -> f64 {
        self.part.unwrap_or(1.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "bits per second, far below 2^52")]
fn rate(need: &Need) -> f64 {
    need.larger().0 as f64
}

#[expect(clippy::cast_precision_loss, reason = "bits per second, far below 2^52")]
fn capacity(topology: &Topology, link: LinkId) -> f64 {
    topology.rate(link).0 as f64
}

/// For each link: the use by tenants that cannot gain, and the guarantees of the tenants that can.
fn demands(topology: &Topology, flows: &[Flow<'_>]) -> Vec<(f64, f64)> {
    let mut by_link = vec![(0.0, 0.0); topology.links()];
    for flow in flows {
        for (link, need) in flow.links {
            let (fixed, gaining) = &mut by_link[link.index()];
            if flow.may_gain() {
                *gaining += rate(need);
            } else {
                *fixed += rate(need) * flow.held();
            }
        }
    }
    by_link
}

/// Each tenant's gain: the smallest gain that its links offer. A tenant that may gain but has no
/// links gets infinity.
#[must_use]
pub fn printed(topology: &Topology, flows: &[Flow<'_>]) -> Vec<f64> {
    let demands = demands(topology, flows);
    let offer = |(link, _): &(LinkId, Need)| {
        let (fixed, gaining) = demands[link.index()];
        (capacity(topology, *link) - fixed) / gaining
    };
    let gain = |flow: &Flow<'_>| match flow.may_gain() {
        true => flow.links.iter().map(offer).fold(f64::INFINITY, f64::min),
        false => flow.held(),
    };
    flows.iter().map(gain).collect()
}

/// Each tenant's gain by weighted max-min. The scarcest link fixes the gains of its tenants, then
/// the scarcest of the remaining links, and so on.
///
/// # Cost
///
/// The time is at most proportional to the square of the number of links.
#[must_use]
pub fn max_min(topology: &Topology, flows: &[Flow<'_>]) -> Vec<f64> {
    let mut demands = demands(topology, flows);
    let mut waiting = vec![Vec::new(); demands.len()];
    for (at, flow) in flows.iter().enumerate().filter(|(_, flow)| flow.may_gain()) {
        flow.links.iter().for_each(|(link, _)| waiting[link.index()].push(at));
    }
    let mut gains: Vec<f64> = flows.iter().map(Flow::held).collect();
    let mut open: Vec<bool> = flows.iter().map(Flow::may_gain).collect();
    loop {
        let offers = (0..demands.len()).filter_map(|at| {
            waiting[at].retain(|flow| open[*flow]);
            let (fixed, gaining) = demands[at];
            let link = LinkId(crate::topology::number(at));
            let offer = (capacity(topology, link) - fixed) / gaining;
            (!waiting[at].is_empty()).then_some((offer, at))
        });
        let Some((gain, link)) = offers.min_by(|a, b| a.0.total_cmp(&b.0)) else {
            return gains;
        };
        for flow in core::mem::take(&mut waiting[link]) {
            open[flow] = false;
            gains[flow] = gain;
            for (link, need) in flows[flow].links {
                let (fixed, gaining) = &mut demands[link.index()];
                *fixed += gain * rate(need);
                *gaining -= rate(need);
            }
        }
    }
}

/// Fraction of each link that is used at these gains.
#[must_use]
pub fn link_use(topology: &Topology, flows: &[Flow<'_>], gains: &[f64]) -> Vec<f64> {
    let mut used = vec![0.0; topology.links()];
    for (flow, gain) in flows.iter().zip(gains) {
        for (link, need) in flow.links {
            used[link.index()] += rate(need) * gain / capacity(topology, *link);
        }
    }
    used
}

/// Each tenant's gain if no tenant may exceed its guarantee.
#[must_use]
pub fn fixed(flows: &[Flow<'_>]) -> Vec<f64> {
    flows.iter().map(Flow::held).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{LinkSpec, NodeSpec, TopologySpec};
    use penstock_units::BitsPerSecond;

    /// Servers a and b below a rack. Their links have rates of 100 and 30.
    fn topology() -> Topology {
        let node = |name: &str, slots| NodeSpec { name: name.to_owned(), slots };
        let link = |child: &str, rate| LinkSpec {
            child: child.to_owned(),
            parent: "r".to_owned(),
            rate: BitsPerSecond(rate),
        };
        let nodes = vec![node("a", Some(1)), node("b", Some(1)), node("r", None)];
        TopologySpec { nodes, links: vec![link("a", 100), link("b", 30)] }.build().unwrap()
    }

    fn need(rate: u64) -> Need {
        Need { up: BitsPerSecond(rate), down: BitsPerSecond(rate) }
    }

    #[test]
    fn the_worked_example_comes_out() {
        let (a, b) = ([(LinkId(0), need(10))], [(LinkId(0), need(10)), (LinkId(1), need(10))]);
        let flow = |links| Flow { links, part: None, has_queue: true };
        let flows = [flow(a.as_slice()), flow(b.as_slice())];
        assert_eq!(printed(&topology(), &flows), [5.0, 3.0]);
        let gains = max_min(&topology(), &flows);
        assert_eq!(gains, [7.0, 3.0]);
        assert_eq!(link_use(&topology(), &flows, &gains), [1.0, 1.0]);
    }

    #[test]
    fn without_a_queue_no_tenant_exceeds_its_guarantee() {
        let links = [(LinkId(0), need(10))];
        let flow = |part, has_queue| Flow { links: &links, part, has_queue };
        let flows = [flow(None, false), flow(Some(0.5), true), flow(None, true)];
        for gains in [printed(&topology(), &flows), max_min(&topology(), &flows)] {
            assert_eq!(gains, [1.0, 0.5, 8.5]);
        }
        assert_eq!(fixed(&flows), [1.0, 0.5, 1.0]);
    }
}
