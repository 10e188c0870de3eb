//! A tenant's shuffle beside other tenants that use all they can get: QShare §VII-B.
//!
//! # Source
//!
//! A tenant T has ten VMs, five in each of two racks, and 94 Mbit/s over the core. Every VM is a
//! client that requests flows from all others. It requests the next flow when the previous one is
//! complete. The load is the other tenants' guarantee, divided by the core's capacity. A trace
//! defines the sizes.
//!
//! # Departures
//!
//! The paper leaves these points open:
//!
//! * Each of T's VMs is on a server of its own.
//! * A client requests flows from its servers in rounds, in an order that is drawn for each round.
//!   It sends a request [`bed::LATENCY`] after the previous flow.
//! * A client requests a fixed number of flows. All systems therefore transfer the same bytes for a
//!   seed.
//! * The others are six tenants placed like T. They divide the load equally and send exactly their
//!   guarantee, from every VM to its counterpart in the other rack.
//! * There are six, so that every tenant has a queue. Fig. 4 covers more tenants than queues.
//!
//! # Approach
//!
//! A run yields two values. The first value is the time from request to last bit, over all of T's
//! flows. The second value is the lowest rate of any other tenant in a tenth of a second, divided
//! by its guarantee.

use std::sync::Arc;

use penstock_sim::fabric::{Connection, FlowSim, Order, SizeTable, Spec, System, TenantSpec};
use penstock_units::{BitsPerSecond, Nanos};

use crate::qshare::{self as bed, GBIT, GUARANTEE, RACK};

/// Number of tenants beside T.
const OTHERS: u64 = 6;
/// After this time T's demand, the rates and the queues are stable.
const WARM_UP: Nanos = Nanos::from_secs(9);
/// Limit of a run's length.
const LONGEST: Nanos = Nanos::from_secs(100_000);

/// A load, and the flows of T's clients.
#[derive(Debug, Clone)]
pub struct Shuffle {
    /// Guarantee of all other tenants, in percent of the core.
    pub load_pct: u64,
    /// Number of flows that each client requests.
    pub flows: u64,
    /// Distribution of the flow sizes.
    pub sizes: Arc<SizeTable>,
    pub seed: u64,
}

impl Shuffle {
    /// Tenant T, and then the other tenants.
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

    /// Runs the shuffle under `system`, and returns the results of T and the others.
    ///
    /// # Errors
    /// Some flows were not completed.
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
        // The first two entries of a sample are T's, one for each direction.
        let others = late.flat_map(|sample| &sample.bits[2..]);
        let least = others.copied().fold(f64::INFINITY, f64::min);
        let wanted = paced_bits(&self.tenants()[1]);
        Ok(Had { mean_secs, others: least / wanted })
    }
}

/// Result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Had {
    /// Mean of T's flow completion times, in seconds.
    pub mean_secs: f64,
    /// Lowest rate of any other tenant in a sample, divided by its sending rate (its guarantee).
    pub others: f64,
}

/// Bits that one of the other tenants sends over the core in a sample, one way.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn paced_bits(other: &TenantSpec) -> f64 {
    (other.hose.0 * bed::SAMPLE.0 / 1_000_000_000) as f64 * count(RACK)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn count(n: usize) -> f64 {
    n as f64
}
