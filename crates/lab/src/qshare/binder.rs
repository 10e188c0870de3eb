//! Connects the queue binding of `penstock-fabric` to the simulator. Tenants' scores and QShare's
//! Algorithm 2 decide which tenants have queues, and the simulator applies the decision.
//!
//! # Approach
//!
//! At the end of an interval, the binder computes each tenant's score from the hosts' measurements
//! ([`score::score`]), and smooths the score. After the scores are known, [`Binding::pass`] decides
//! which tenants have a queue on all of their links.
//!
//! # Departures
//!
//! Real switches have integer weights; the simulator's weights are exact. The simulator applies all
//! changes of queues at the same time, after one delay. A real controller applies changes in order.

use anyhow::Context as _;
use penstock_fabric::hose::{Hose, Need};
use penstock_fabric::queue_binding::{Binding, Candidate, Mode, Settings};
use penstock_fabric::score::{self, Smoothed};
use penstock_fabric::tenant_placement::TenantSlot;
use penstock_fabric::topology::{LinkId, NodeId, Topology};
use penstock_sim::fabric::{Binder, HostUsage, TenantSpec};

/// A tenant with its VMs, links and score.
#[derive(Debug)]
struct Placed {
    slot: TenantSlot,
    hose: Hose,
    /// Number of the tenant's VMs on each server.
    vms: Vec<u32>,
    links: Vec<(LinkId, Need)>,
    score: Smoothed,
}

/// Scores and queues of all tenants of a network.
#[derive(Debug)]
pub struct FabricBinder {
    topology: Topology,
    binding: Binding,
    tenants: Vec<Placed>,
}

impl FabricBinder {
    /// Creates a binder, which assigns queues to `tenants`. A host number in `tenants` is the
    /// number of a server in `topology`. A port has `queues` queues, of which one queue is shared.
    ///
    /// # Errors
    /// Returns an error if a tenant has no VMs, or if the number of queues is invalid.
    pub fn new(topology: Topology, tenants: &[TenantSpec], queues: u8) -> anyhow::Result<Self> {
        let settings = Settings { queues, ..Settings::new(Mode::StaticMap) };
        let binding = Binding::new(settings, topology.links())?;
        let place = |(slot, spec): (u32, &TenantSpec)| {
            Placed::new(&topology, TenantSlot(slot), spec).with_context(|| format!("tenant {slot}"))
        };
        let tenants = (0..).zip(tenants).map(place).collect::<anyhow::Result<_>>()?;
        Ok(Self { topology, binding, tenants })
    }
}

impl Placed {
    fn new(topology: &Topology, slot: TenantSlot, spec: &TenantSpec) -> anyhow::Result<Self> {
        let hose = Hose::homogeneous(u32::try_from(spec.vms.len())?, spec.hose)?;
        let mut vms = vec![0; topology.servers()];
        for host in &spec.vms {
            *vms.get_mut(*host).with_context(|| format!("no server {host}"))? += 1;
        }
        let mut links = Vec::new();
        for link in (0..u32::try_from(topology.links())?).map(LinkId) {
            let need = hose.need(&[below(topology, topology.child(link), &vms)]);
            if !need.is_zero() {
                links.push((link, need));
            }
        }
        Ok(Self { slot, hose, vms, links, score: Smoothed::default() })
    }
}

/// Returns the number of VMs on all servers below a node of the topology.
fn below(topology: &Topology, node: NodeId, vms: &[u32]) -> u32 {
    if topology.is_server(node) {
        return vms[node.index()];
    }
    topology.down(node).map(|link| below(topology, topology.child(link), vms)).sum()
}

impl Binder for FabricBinder {
    fn bind(&mut self, usage: &[Vec<HostUsage>]) -> Vec<bool> {
        for (tenant, hosts) in self.tenants.iter_mut().zip(usage) {
            let of = |host: &HostUsage| score::HostUsage {
                vms: tenant.vms[host.host],
                sent: host.sent,
                received: host.received,
            };
            let hosts: Vec<_> = hosts.iter().map(of).collect();
            // There is no measurement before the first interval.
            if !hosts.is_empty() {
                tenant.score.follow(score::score(&tenant.hose, &hosts));
            }
        }
        let candidate = |tenant: &'_ Placed| (tenant.slot, tenant.score.get());
        let scores: Vec<_> = self.tenants.iter().map(candidate).collect();
        let candidates: Vec<_> = (scores.iter().zip(&self.tenants))
            .map(|((tenant, score), placed)| Candidate {
                tenant: *tenant,
                score: *score,
                links: &placed.links,
                movable: true,
            })
            .collect();
        self.binding.pass(&self.topology, &candidates);
        self.tenants.iter().map(|tenant| self.binding.of(tenant.slot).is_some()).collect()
    }
}
