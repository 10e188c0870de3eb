//! Computes the throughput of tenants relative to their guarantees, and the resulting use of links.
//!
//! # Problem
//!
//! Simulating the packets of a hundred thousand VMs takes too long. The tenants' rates can be
//! computed without a simulation of packets.
//!
//! # Source
//!
//! QShare §VII-C2 defines the throughput of a tenant for any communication pattern.
//!
//! # Quantities
//!
//! A tenant's *gain* is its throughput divided by its guarantee. The gain of a tenant is the same
//! on all links of its tree. A link's *use* is the used fraction of the link's rate.
//!
//! # Approach
//!
//! A tenant in the shared queue gets its demand, up to its guarantee. A tenant with its own queues
//! and a limited demand gets its demand. Tenants with their own queues and unlimited demand divide
//! the remaining rate of each link in proportion to their guarantees. A link offers the same gain
//! to all tenants with unlimited demand. A tenant gets the smallest gain that its links offer, and
//! leaves bandwidth unused on its other links.
//!
//! - [`printed`] does not redistribute the bandwidth that a tenant leaves unused, as in the paper.
//! - [`max_min`] gives unused bandwidth of a tenant to other tenants, as weighted queues do.
//!
//! # Example
//!
//! In a test, two tenants with guarantees of 10 bit/s use a link of 100 bit/s. The link of 100
//! bit/s offers 50 bit/s to each tenant, which is a gain of 5. The second tenant, with a guarantee
//! of 10 bit/s, also uses a link of 30 bit/s, so the second tenant's gain is only 3. In
//! [`max_min`], the first tenant also gets the 20 bit/s that the second tenant cannot use, so the
//! first tenant's gain is 7. In [`printed`], no tenant gets the 20 bit/s that the second tenant
//! cannot use, so the first tenant's gain is 5.

use crate::hose::Need;
use crate::topology::{LinkId, Topology};

/// Links, guarantees and demand of one tenant.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// The tenant's links, with the tenant's guaranteed bandwidth on each link.
    pub links: &'a [(LinkId, Need)],
    /// The tenant's demand as a fraction of its guarantee, 0 to 1. `None` means that the tenant's
    /// demand is unlimited. A tenant with unlimited demand exceeds its guarantee only if it has its
    /// own queues.
    pub part: Option<f64>,
    /// Whether the tenant has its own queue on all its links.
    pub has_queue: bool,
}

impl Flow<'_> {
    /// Whether the tenant can get more than its guarantee, because the tenant has its own queues
    /// and unlimited demand.
    #[must_use]
    pub fn may_gain(&self) -> bool {
        self.part.is_none() && self.has_queue
    }

    /// Returns the tenant's gain if the tenant does not exceed its guarantee.
    fn held(&self) -> f64 {
        self.part.unwrap_or(1.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates in bit/s are far below 2^52")]
fn rate(need: &Need) -> f64 {
    need.larger().0 as f64
}

#[expect(clippy::cast_precision_loss, reason = "rates in bit/s are far below 2^52")]
fn capacity(topology: &Topology, link: LinkId) -> f64 {
    topology.rate(link).0 as f64
}

/// Returns two sums for each link: the rates of the tenants that cannot exceed their guarantees,
/// and the guarantees of all other tenants.
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

/// Returns each tenant's gain, which is the smallest gain that the tenant's links offer. No other
/// tenant gets bandwidth that a tenant leaves unused. The gain is infinite if a tenant may exceed
/// its guarantee and has no links.
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

/// Returns each tenant's gain by weighted max-min fairness. Each step finds the link with the
/// smallest offered gain, and assigns this gain to the link's tenants. Each step excludes the links
/// and tenants of earlier steps.
///
/// # Cost
///
/// Computing the gains takes time that is at most proportional to the square of the number of
/// links.
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

/// Returns, for each link, the used fraction of the link's rate if the tenants have the given
/// gains.
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

/// Returns each tenant's gain if no tenant may exceed its guarantee. The gain is the demand as a
/// fraction of the guarantee, at most 1.
#[must_use]
pub fn fixed(flows: &[Flow<'_>]) -> Vec<f64> {
    flows.iter().map(Flow::held).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{LinkSpec, NodeSpec, TopologySpec};
    use penstock_units::BitsPerSecond;

    /// Creates a rack with two servers: server `a` has a link of 100 bit/s, and server `b` has a
    /// link of 30 bit/s.
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
    fn on_a_part_of_the_rates_gains_are_lower() {
        let (a, b) = ([(LinkId(0), need(10))], [(LinkId(0), need(10)), (LinkId(1), need(10))]);
        let flow = |links| Flow { links, part: None, has_queue: true };
        let flows = [flow(a.as_slice()), flow(b.as_slice())];
        assert_eq!(printed(&topology().reduced(500), &flows), [2.5, 1.5]);
        assert_eq!(topology().reduced(0).rate(LinkId(0)), BitsPerSecond(1));
        assert_eq!(topology().reduced(1_001).rate(LinkId(0)), BitsPerSecond(100));
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
