//! One tenant's shuffle beside others that use all they can get: QShare §VII-B.
//!
//! **Source.** A tenant T with ten VMs, evenly in two racks, and 94 Mbit/s over the core; every VM
//! is a client that asks all others for flows, the next when the one before has come; the load is
//! what the others are guaranteed, over the core's capacity. Sizes by trace.
//!
//! **What is left open, and what is taken here.** T's VMs stand one on a server. A client asks its
//! servers in rounds, in an order drawn anew each round, each request [`bed::LATENCY`] after the
//! flow before; it asks for a fixed number of flows, so that all systems transfer the same bytes
//! for a seed. The others are six tenants placed like T, which divide the load equally and send
//! what they are guaranteed, no more and no less, from every VM to its like in the other rack.
//! Six, so that everybody has a queue: who has one when there are more tenants is Fig. 4's matter.
//! **What is measured.** The time from request to last bit, over all of T's flows; and the least
//! that one of the others had in a tenth of a second, over its guarantee.

use std::sync::Arc;

use penstock_sim::fabric::{Connection, FlowSim, Order, SizeTable, Spec, System, TenantSpec};
use penstock_units::{BitsPerSecond, Nanos};

use crate::qshare::{self as bed, GBIT, GUARANTEE, RACK};

/// Tenants beside T.
const OTHERS: u64 = 6;
/// T has settled in after this, and so have rates and queues.
const WARM_UP: Nanos = Nanos::from_secs(9);
/// No run lasts longer.
const LONGEST: Nanos = Nanos::from_secs(100_000);

/// A load and how many flows each of T's clients asks for.
#[derive(Debug, Clone)]
pub struct Shuffle {
    /// What the others are guaranteed, percent of the core.
    pub load_pct: u64,
    /// Flows of each client.
    pub flows: u64,
    /// How long they are.
    pub sizes: Arc<SizeTable>,
    /// The seed.
    pub seed: u64,
}

impl Shuffle {
    /// T and then the others.
    #[must_use]
    pub fn tenants(&self) -> Vec<TenantSpec> {
        let place = || (0..2 * RACK).collect::<Vec<_>>();
        let load = BitsPerSecond(GBIT.0 / 100 * self.load_pct / OTHERS);
        let mut tenants = vec![bed::tenant(place(), GUARANTEE)];
        tenants.extend((0..OTHERS).map(|_| bed::tenant(place(), load)));
        tenants
    }

    fn spec(&self) -> Spec {
        let tenants = self.tenants();
        let mut spec = bed::spec(tenants.clone(), self.seed);
        for (number, tenant) in tenants.iter().enumerate() {
            for client in 0..tenant.vms.len() {
                if number == 0 {
                    // So that T is known for what it does when measuring begins.
                    spec.connections.push(Connection {
                        sizes: Some(bed::megabytes()),
                        until: WARM_UP,
                        ..Connection::endless(0, client, bed::others(tenant, client))
                    });
                }
                spec.connections.push(if number == 0 {
                    Connection {
                        sizes: Some(self.sizes.clone()),
                        order: Order::Rounds,
                        latency: bed::LATENCY,
                        from: WARM_UP,
                        flows_max: self.flows,
                        ..Connection::endless(0, client, bed::others(tenant, client))
                    }
                } else {
                    let like = (client + RACK) % (2 * RACK);
                    Connection {
                        paced: Some(tenant.hose),
                        ..Connection::endless(number, client, vec![like])
                    }
                });
            }
        }
        spec
    }

    /// What T and the others had under `system`.
    ///
    /// # Errors
    /// When not all flows came.
    pub fn run(&self, system: System) -> anyhow::Result<Had> {
        let mut sim = FlowSim::new(self.spec(), system)?;
        let all = 2 * RACK * usize::try_from(self.flows)?;
        let measured = |sim: &FlowSim| {
            let flows = sim.record().flows.iter().filter(|flow| flow.asked >= WARM_UP);
            flows.map(|flow| flow.seconds()).collect::<Vec<_>>()
        };
        sim.run_until(WARM_UP);
        while measured(&sim).len() < all && sim.now() < LONGEST {
            sim.run_until(sim.now() + Nanos::from_secs(1));
        }
        let (found, record) = (measured(&sim), sim.record());
        anyhow::ensure!(found.len() >= all, "{} of {all} flows", found.len());
        let mean_secs = found.iter().sum::<f64>() / count(all);
        let late = record.samples.iter().filter(|sample| sample.at > WARM_UP);
        // The first two of a sample are T's, in both directions.
        let others = late.flat_map(|sample| &sample.bits[2..]);
        let least = others.copied().fold(f64::INFINITY, f64::min);
        let wanted = paced_bits(&self.tenants()[1]);
        Ok(Had { mean_secs, others: least / wanted })
    }
}

/// What a run came to.
#[derive(Debug, Clone, Copy)]
pub struct Had {
    /// The mean of T's flow completion times, seconds.
    pub mean_secs: f64,
    /// The least that one of the others had in a sample over what it sends, which is its guarantee.
    pub others: f64,
}

/// What one of the others sends over the core in a sample, one way.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn paced_bits(other: &TenantSpec) -> f64 {
    (other.hose.0 * bed::SAMPLE.0 / 1_000_000_000) as f64 * count(RACK)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn count(n: usize) -> f64 {
    n as f64
}
