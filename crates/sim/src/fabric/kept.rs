//! What the weights of ports leave of guarantees, whatever the other tenants send.
//!
//! # Problem
//!
//! Measured rates show a tenant's loss only if the other tenants send much at the same time. A
//! plan is safe only if no traffic of others can take a tenant's guarantee during any step.
//!
//! # Approach
//!
//! For each port, the module computes the share of each tenant's guarantee that remains in the
//! worst case, and takes the least share of all tenants and ports. In the worst case for a tenant,
//! the tenant sends its guarantee, and all other tenants send as much as their hosts let them:
//!
//! - A tenant with a limit sends its limit.
//! - A tenant without a limit sends as much as the link can carry.
//! - Within a queue, the other tenants have so many flows that they get all that they send. The
//!   tenant gets the rest of the queue's rate.
//!
//! During a plan, the hosts of a tenant may have different code points and limits. The tenant's
//! guarantee on a link is then divided among its sending hosts in proportion to their VMs.
//!
//! # Cost
//!
//! A change of a port or host recomputes only the ports that the change affects. For each tenant of
//! a port, the module divides the port's rate once.

use std::collections::BTreeSet;

use super::control::Terms;
use super::link_share::{Asker, Queue, Scratch, divide};
use super::rates::LinkId;
use super::spec::{HostNo, Spec, TenantNo};

/// Part of a tenant's guarantee on a link that VMs of one host send.
#[derive(Clone, Copy, Debug)]
struct Sender {
    tenant: TenantNo,
    host: HostNo,
    /// Part of the guarantee in bits/s, above 0.
    guarantee: f64,
    /// Code point of the host's frames.
    dscp: usize,
    /// Highest rate in bits/s at which the host lets the VMs send.
    most: f64,
}

/// State of the port that sends on one link.
#[derive(Clone, Debug)]
struct Port {
    rate: f64,
    queues: Vec<Queue>,
    queue_of: Vec<usize>,
    senders: Vec<Sender>,
    /// Least share of a guarantee that the port leaves, or `None` if the state has changed.
    least: Option<f64>,
}

/// State of all ports and hosts, as far as guarantees depend on it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    ports: Vec<Port>,
}

impl Kept {
    pub fn new(spec: &Spec) -> Self {
        let reserved: Vec<_> = spec.tenants.iter().map(|t| t.reserved(&spec.network)).collect();
        let port = |link: usize| {
            let mut senders = Vec::new();
            for (tenant, reserved) in reserved.iter().enumerate() {
                if reserved[link].0 > 0 {
                    senders.extend(senders_of(spec, tenant, link, float(reserved[link].0)));
                }
            }
            Port {
                rate: float(spec.network.links[link].0),
                queues: vec![Queue::ONLY],
                queue_of: Vec::new(),
                senders,
                least: None,
            }
        };
        Self { ports: (0..spec.network.links.len()).map(port).collect() }
    }

    /// Records the new queues of a port.
    pub fn port(&mut self, link: LinkId, queues: &[Queue], queue_of: &[usize]) {
        let port = &mut self.ports[link.index()];
        (port.queues, port.queue_of) = (queues.to_vec(), queue_of.to_vec());
        port.least = None;
    }

    /// Records the new terms of a tenant on a host.
    pub fn host(&mut self, host: HostNo, tenant: TenantNo, terms: Terms) {
        for port in &mut self.ports {
            for sender in &mut port.senders {
                if (sender.host, sender.tenant) == (host, tenant) {
                    sender.dscp = usize::from(terms.dscp);
                    let most = |permille: u32| sender.guarantee * f64::from(permille) / 1_000.0;
                    sender.most = terms.limit_permille.map_or(f64::INFINITY, most);
                    port.least = None;
                }
            }
        }
    }

    /// Returns the least share of a guarantee that any port leaves to a tenant, from 0 to 1. The
    /// result is rounded to 10^-9.
    pub fn least(&mut self) -> f64 {
        let of = |port: &mut Port| {
            let least = port.least.unwrap_or_else(|| port.compute());
            port.least = Some(least);
            least
        };
        let least = self.ports.iter_mut().map(of).fold(1.0, f64::min);
        (least * 1e9).round() / 1e9
    }
}

impl Port {
    fn queue(&self, sender: &Sender) -> usize {
        self.queue_of.get(sender.dscp).copied().unwrap_or(0)
    }

    fn compute(&self) -> f64 {
        let tenants: BTreeSet<TenantNo> = self.senders.iter().map(|s| s.tenant).collect();
        let (mut scratch, mut levels) = (Scratch::default(), Vec::new());
        let mut least = 1.0_f64;
        for tenant in tenants {
            let mut askers: Vec<Asker> = Vec::new();
            let mut own = vec![0.0_f64; self.queues.len()];
            for sender in &self.senders {
                let queue = self.queue(sender);
                let is_own = sender.tenant == tenant;
                let demand = if is_own { sender.guarantee } else { sender.most };
                own[queue] += if is_own { sender.guarantee } else { 0.0 };
                match askers.iter_mut().find(|asker| asker.queue == queue) {
                    Some(asker) => asker.demand += demand,
                    None => askers.push(Asker { queue, flows: 1.0, demand }),
                }
            }
            divide(self.rate, &self.queues, &askers, &mut scratch, &mut levels);
            let got = |asker: &Asker| {
                let own = own[asker.queue];
                if own <= 0.0 {
                    return 0.0;
                }
                let others = asker.demand - own;
                let share = levels[asker.queue].per_flow.min(asker.demand);
                own.min((share - others).max(0.0))
            };
            let (got, due): (f64, f64) = (askers.iter().map(got).sum(), own.iter().sum());
            least = least.min(got / due);
        }
        least
    }
}

/// Returns the hosts whose VMs send on a link to other VMs of the tenant, with their parts of the
/// tenant's `guarantee` on the link. Each host has the code point 0 and no limit.
fn senders_of(spec: &Spec, tenant: TenantNo, link: usize, guarantee: f64) -> Vec<Sender> {
    let vms = &spec.tenants[tenant].vms;
    let hosts: BTreeSet<HostNo> = vms.iter().copied().collect();
    let passes = |from: &HostNo| {
        let uses = |to: &HostNo| spec.network.paths[*from][*to].iter().any(|l| l.index() == link);
        hosts.iter().any(uses)
    };
    let count = |host: HostNo| float(number(vms.iter().filter(|vm| **vm == host).count()));
    let sending: Vec<HostNo> = hosts.iter().copied().filter(|host| passes(host)).collect();
    let all: f64 = sending.iter().map(|host| count(*host)).sum();
    let sender = |host: HostNo| Sender {
        tenant,
        host,
        guarantee: guarantee * count(host) / all,
        dscp: 0,
        most: f64::INFINITY,
    };
    sending.into_iter().map(sender).collect()
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "rates and numbers of VMs are far below 2^53")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use penstock_units::{BitsPerSecond, Nanos};

    use super::super::control::queues;
    use super::super::spec::{Network, TenantSpec};
    use super::*;

    const MBIT: u64 = 1_000_000;

    /// Creates the state of a network with two hosts. Two tenants have a guarantee of 400 Mbit/s,
    /// and one tenant has 200 Mbit/s. The core link has 1,000 Mbit/s.
    fn kept() -> Kept {
        let rate = |mbit: u64| BitsPerSecond(mbit * MBIT);
        let tenant = |mbit| TenantSpec { vms: vec![0, 1], hose: rate(mbit) };
        let spec = Spec {
            network: Network::two_racks(1, rate(100_000), rate(1_000)),
            tenants: [400, 400, 200].map(tenant).to_vec(),
            connections: Vec::new(),
            sample: Nanos::from_secs(1),
            watched: Vec::new(),
            seed: 1,
        };
        let mut kept = Kept::new(&spec);
        for tenant in 0..3 {
            set(&mut kept, tenant, 0, Some(1_000));
        }
        kept
    }

    fn set(kept: &mut Kept, tenant: usize, dscp: u8, limit_permille: Option<u32>) {
        for host in 0..2 {
            kept.host(host, tenant, Terms { dscp, limit_permille });
        }
    }

    /// Gives the same weights to all six links, and maps code points 1 and 2 to queues 1 and 2.
    fn weigh(kept: &mut Kept, weights: &[u32]) {
        let (queues, queue_of) = queues(weights, &[(1, 1), (2, 2)].into());
        for link in 0..6 {
            kept.port(LinkId(link), &queues, &queue_of);
        }
    }

    #[test]
    fn a_queue_keeps_its_share_and_limits_protect_those_who_share_one() {
        let mut kept = kept();
        assert_eq!(kept.least(), 1.0, "three limited tenants fit into one queue");
        set(&mut kept, 0, 0, None);
        assert_eq!(kept.least(), 0.0, "one of three has no limit");
        set(&mut kept, 0, 1, None);
        weigh(&mut kept, &[6, 4]);
        assert_eq!(kept.least(), 1.0);
        // Queue 0 gets half of the core link: 500 of the 600 Mbit/s that are due. In the worst case
        // the tenant with 400 Mbit/s leaves 100 Mbit/s to the tenant with 200 Mbit/s.
        weigh(&mut kept, &[4, 4]);
        assert_eq!(kept.least(), 0.5);
        // A limit above the guarantee takes from the others in the queue.
        weigh(&mut kept, &[6, 4]);
        set(&mut kept, 1, 0, Some(1_250));
        assert_eq!(kept.least(), 0.5);
    }

    #[test]
    fn hosts_with_different_code_points_are_judged_on_the_links_that_they_use() {
        let mut kept = kept();
        weigh(&mut kept, &[6, 4]);
        // Host 1 marks the first tenant's frames, and host 0 does not yet. From host 0, all three
        // tenants are in queue 0, and no other queue uses its share of the link.
        kept.host(1, 0, Terms { dscp: 1, limit_permille: None });
        assert_eq!(kept.least(), 1.0);
        // Queue 2 has no weight, so it gets only what the first tenant leaves: nothing.
        set(&mut kept, 2, 2, None);
        assert_eq!(kept.least(), 0.0);
    }
}
