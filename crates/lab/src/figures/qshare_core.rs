//! Ten tenants on one core link: the worlds of QShare's Fig. 4.
//!
//! # Source
//!
//! §VII-A1 lasts ten seconds. Five tenants have sufficient demand all the time. Five others become
//! active at some moment, the last at about 8 s.
//!
//! §VII-A2 lasts one minute. Every client requests flows from randomly selected servers, with sizes
//! of the enterprise trace. After each flow the client continues or sleeps up to 1 s, with equal
//! chance.
//!
//! # Departures
//!
//! In either world the first [`WARM_UP`] does not count.
//!
//! *Predictable*: every VM has [`STEADY`] connections to servers in the other rack. Each connection
//! sends one flow after the other.
//!
//! *Unpredictable*: the number of connections a VM has determines whether the core can be full at
//! all. A connection that sleeps 0.25 s per flow of 157 KB uses at most 5 Mbit/s. A VM has
//! [`CONNECTIONS`] of them, to servers on other hosts, so plain TCP fills the core. Any unused
//! capacity is therefore due to queue binding. The figure also shows fewer and more connections.

use penstock_sim::fabric::{Connection, FlowSim, Record, Spec, System, TenantSpec};
use penstock_units::Nanos;

use crate::qshare::{self as bed, Workload};

/// Warm-up time: two intervals of 4 s.
pub const WARM_UP: Nanos = Nanos::from_secs(8);
/// Connections of a VM with sufficient demand.
pub const STEADY: usize = 4;
/// Connections of a VM that alternates between active and asleep at random.
pub const CONNECTIONS: usize = 12;

/// The demand of one of the two worlds.
#[derive(Debug, Clone, Copy)]
pub enum Demand {
    /// Demand is sufficient from these moments on, in seconds after the warm-up.
    From([f64; 10]),
    /// A VM has this many connections. Each of them is active or asleep at random.
    Random(usize),
}

/// Traffic over the core in a run.
#[derive(Debug, Clone)]
pub struct Core {
    /// Record of the run, including the warm-up.
    pub record: Record,
    pub tenants: usize,
    /// Number of rate cuts, and number of times that rates settled.
    pub cuts: (u64, u64),
}

/// Runs a world for `time` after the warm-up.
///
/// # Errors
/// The world or the system cannot be simulated.
pub fn run(
    demand: Demand,
    seed: u64,
    time: Nanos,
    system: impl Fn(&[TenantSpec]) -> anyhow::Result<System>,
) -> anyhow::Result<Core> {
    let tenants = bed::tenants(seed);
    let mut spec = bed::spec(tenants.clone(), seed);
    connect(&mut spec, demand)?;
    let mut sim = FlowSim::new(spec, system(&tenants)?)?;
    if matches!(demand, Demand::From(_)) {
        sim = sim.with_entitlements();
    }
    sim.run_until(WARM_UP + time);
    Ok(Core { record: sim.record().clone(), tenants: tenants.len(), cuts: sim.cuts() })
}

fn connect(spec: &mut Spec, demand: Demand) -> anyhow::Result<()> {
    let sizes = Workload::Enterprise.sizes()?;
    for (number, tenant) in spec.tenants.iter().enumerate() {
        for client in 0..tenant.vms.len() {
            let connection = Connection {
                sizes: Some(sizes.clone()),
                latency: bed::LATENCY,
                ..Connection::endless(number, client, Vec::new())
            };
            let (connection, copies) = match demand {
                Demand::From(seconds) => {
                    let servers = bed::across(tenant, client);
                    let from = from(seconds[number]);
                    (Connection { servers, from, ..connection }, STEADY)
                }
                Demand::Random(copies) => {
                    let random = Connection {
                        servers: bed::others(tenant, client),
                        pause_ppm: 500_000,
                        pause_max: Nanos::from_secs(1),
                        ..connection
                    };
                    (random, copies)
                }
            };
            spec.connections.extend(std::iter::repeat_n(connection, copies));
        }
    }
    Ok(())
}

/// The time `seconds` after the warm-up. A negative value means the start of the simulation.
fn from(seconds: f64) -> Nanos {
    if seconds < 0.0 {
        return Nanos(0);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
    let nanos = (seconds * 1e9).round() as u64;
    WARM_UP + Nanos(nanos)
}

impl Core {
    /// Rate of the tenant over the core, as a mean of both directions: (seconds, Mbit/s).
    #[must_use]
    pub fn tenant_mbps(&self, tenant: usize) -> Vec<(f64, f64)> {
        self.of(|bits, _| (bits[2 * tenant] + bits[2 * tenant + 1]) / self.sample_secs() / 2e6)
    }

    /// Use of the core, as a mean of both directions: (seconds, percent).
    #[must_use]
    pub fn utilisation_pct(&self) -> Vec<(f64, f64)> {
        let capacity = 2.0 * 1e9 * self.sample_secs();
        self.of(|bits, _| 100.0 * bits.iter().sum::<f64>() / capacity)
    }

    /// Lowest ratio of a tenant's rate to its entitlement, over tenants and directions. Ratios are
    /// rounded to a millionth, because sums of rates are not more exact.
    #[must_use]
    pub fn least_of_entitled(&self) -> Vec<(f64, f64)> {
        self.of(|bits, entitled| {
            let both = bits.iter().zip(entitled).filter(|(_, entitled)| **entitled > 1.0);
            let least = both.map(|(bits, entitled)| bits / entitled).fold(f64::INFINITY, f64::min);
            (least * 1e6).round() / 1e6
        })
    }

    fn of(&self, value: impl Fn(&[f64], &[f64]) -> f64) -> Vec<(f64, f64)> {
        let counts = self.record.samples.iter().filter(|sample| sample.at > WARM_UP);
        let value = |sample: &penstock_sim::fabric::Sample| {
            (secs(sample.at) - secs(WARM_UP), value(&sample.bits, &sample.entitled))
        };
        counts.map(value).collect()
    }

    fn sample_secs(&self) -> f64 {
        secs(bed::SAMPLE)
    }
}

#[expect(clippy::cast_precision_loss, reason = "simulated time is far below 2^53 ns")]
fn secs(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}
