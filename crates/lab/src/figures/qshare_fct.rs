//! The shuffle traffic of one tenant beside other tenants, for Fig. 5 of QShare.
//!
//! # Source
//!
//! QShare §VII-B: a tenant T has ten VMs, five in each of two racks, and a guarantee of 94 Mbit/s
//! on the core link. Every VM is a client that requests flows from all other VMs. A client requests
//! the next flow when the previous flow is complete. The *load* of a run is the total guarantee of
//! all tenants except T, divided by the capacity of the core link. A trace defines the sizes of
//! flows.
//!
//! # Departures
//!
//! The paper does not print some details of the traffic, for which the simulation makes these
//! choices:
//!
//! * No two VMs of tenant T are on the same server.
//! * A client requests flows from its servers in rounds. The order of the servers is random in each
//!   round. A client sends a request [`bed::LATENCY`] after the end of the previous flow.
//! * A client requests a fixed number of flows. With the same random seed, all simulated systems
//!   transfer the same bytes.
//! * Six other tenants have VMs on the same servers as tenant T. The six other tenants have equal
//!   parts of the load. Every VM of the six other tenants sends exactly its guarantee to its
//!   counterpart in the other rack, as the load of a run is a sum of guarantees.
//! * A TCP flow has its share of the links at once. In runs with [`RAMP`], flows start slowly and
//!   halve their windows after losses.
//! * With six other tenants, every tenant can have a queue. Fig. 4 covers the case of more tenants
//!   than queues.
//!
//! # Approach
//!
//! The completion time that a run yields is the mean time of the flows of tenant T, from the
//! request to the last bit. A run also yields the lowest rate of a tenant other than T in any 0.1
//! s, divided by the tenant's guarantee.
//!
//! # Cost
//!
//! Until the end of the warm-up, runs with the same system, load and seed are equal. [`run_all`]
//! simulates one warm-up for all of them.

use std::sync::Arc;

use penstock_sim::fabric::{Connection, FlowSim, Order, Ramp, SizeTable, Spec, System, TenantSpec};
use penstock_units::{BitsPerSecond, Nanos};

use crate::evidence::stats::count;
use crate::qshare::{self as bed, GBIT, GUARANTEE, RACK};

/// Number of tenants that share the core link with tenant T.
const OTHERS: u64 = 6;
/// Time after which the demand of tenant T, the rates and the queues are stable.
const WARM_UP: Nanos = Nanos::from_secs(9);
/// Maximum simulated time of a run.
const LONGEST: Nanos = Nanos::from_secs(100_000);

/// Windows of TCP: the round-trip time is the time of a request, and a port's queue has room for
/// 125 kB.
pub const RAMP: Ramp = Ramp::new(bed::LATENCY, Nanos::from_millis(1));

/// Parameters of a run: the load of all tenants except T, and the flows of tenant T's clients.
#[derive(Debug, Clone)]
pub struct Shuffle {
    /// Total guarantee of the other tenants, in percent of the core link's rate.
    pub load_pct: u64,
    /// Number of flows that each client of tenant T requests.
    pub flows: u64,
    /// Distribution of the sizes of tenant T's flows.
    pub sizes: Arc<SizeTable>,
    /// Windows of TCP flows, or `None` if flows have their share of the links at once.
    pub ramp: Option<Ramp>,
    pub seed: u64,
}

impl Shuffle {
    /// Returns all tenants, with tenant T first.
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
                    // T sends before the measurement, so that its demand is known when the
                    // measurement begins.
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

    /// Simulates the warm-up with the system `system`.
    fn warm_up(&self, system: System) -> anyhow::Result<FlowSim> {
        let mut sim = FlowSim::new(self.spec(), system)?;
        sim.run_until(WARM_UP);
        Ok(sim)
    }

    /// Returns a copy of a simulation after the warm-up, which continues with the flows of this
    /// shuffle. The simulation must have the load and the seed of this shuffle. Returns `None` if
    /// the simulation cannot be copied.
    fn after(&self, warm: &FlowSim) -> Option<FlowSim> {
        warm.fork(|connection| {
            if connection.from == WARM_UP {
                connection.sizes = Some(self.sizes.clone());
                connection.flows_max = self.flows;
            }
        })
    }

    /// Measures the shuffle traffic in a simulation after the warm-up.
    ///
    /// # Errors
    /// Returns an error if some flows were not completed within the maximum simulated time.
    fn measure(&self, mut sim: FlowSim) -> anyhow::Result<Had> {
        let all = 2 * RACK * usize::try_from(self.flows)?;
        if let Some(ramp) = self.ramp {
            sim = sim.with_ramp(ramp);
        }
        // Flows of the warm-up may end later, so more flows than `all` may be necessary.
        let mut found = measured(&sim);
        while found.len() < all && sim.now() < LONGEST {
            let missing = all - found.len();
            let flows = sim.record().flows.len() + missing;
            while sim.record().flows.len() < flows && sim.now() < LONGEST {
                sim.run_until(sim.now() + Nanos::from_secs(1));
            }
            found = measured(&sim);
        }
        let record = sim.record();
        anyhow::ensure!(found.len() >= all, "only {} of {all} flows were completed", found.len());
        let mean_secs = found.iter().sum::<f64>() / count(all);
        let late = record.samples.iter().filter(|sample| sample.at > WARM_UP);
        // The first two entries of a sample are T's, one for each direction.
        let others = late.flat_map(|sample| &sample.bits[2..]);
        let least = others.copied().fold(f64::INFINITY, f64::min);
        let wanted = paced_bits(&self.tenants()[1]);
        Ok(Had { mean_secs, others: least / wanted })
    }
}

/// Simulates shuffles that have the same load and the same seed. `system` creates the system of
/// each simulation. Returns the results in the order of `shuffles`.
///
/// # Errors
/// Returns an error if some flows were not completed within the maximum simulated time.
pub fn run_all(
    shuffles: &[&Shuffle],
    system: impl Fn() -> anyhow::Result<System>,
) -> anyhow::Result<Vec<Had>> {
    let mut warm: Option<FlowSim> = None;
    let mut had = Vec::with_capacity(shuffles.len());
    for shuffle in shuffles {
        let sim = match warm.as_ref().and_then(|warm| shuffle.after(warm)) {
            Some(sim) => sim,
            None => shuffle.warm_up(system()?)?,
        };
        if warm.is_none() && shuffles.len() > 1 {
            warm = shuffle.after(&sim);
        }
        had.push(shuffle.measure(sim)?);
    }
    Ok(had)
}

/// Returns the completion times of the flows that tenant T requested after the warm-up, in seconds.
fn measured(sim: &FlowSim) -> Vec<f64> {
    let flows = sim.record().flows.iter().filter(|flow| flow.asked >= WARM_UP);
    flows.map(|flow| flow.seconds()).collect()
}

/// Results of a simulated run with the shuffle traffic of tenant T.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Had {
    /// Mean completion time of tenant T's flows, in seconds.
    pub mean_secs: f64,
    /// Lowest ratio of rate to guarantee that a tenant other than T had in any sample of 0.1 s.
    pub others: f64,
}

/// Returns the number of bits that tenant `other` sends in one direction of the core link during a
/// sample of 0.1 s.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn paced_bits(other: &TenantSpec) -> f64 {
    (other.hose.0 * bed::SAMPLE.0 / 1_000_000_000) as f64 * count(RACK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qshare::Workload;

    #[test]
    fn a_common_warm_up_does_not_change_results() {
        let shuffle = |workload: Workload, flows| {
            let (sizes, load_pct) = (workload.sizes().unwrap(), 50);
            Shuffle { load_pct, flows, sizes, ramp: None, seed: 1 }
        };
        let shuffles = [shuffle(Workload::Enterprise, 3), shuffle(Workload::DataMining, 2)];
        let [one, two] = &shuffles;
        let both = run_all(&[one, two], || Ok(System::PlainTcp)).unwrap();
        let alone = |shuffle| run_all(&[shuffle], || Ok(System::PlainTcp)).unwrap()[0];
        assert_eq!(both, [alone(one), alone(two)]);
        assert!(both[0] != both[1]);
    }
}
