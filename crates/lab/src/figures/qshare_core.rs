//! Ten tenants that share one core link between two racks, for QShare's Fig. 4.
//!
//! # Source
//!
//! The test in QShare §VII-A1 (predictable demand) lasts ten seconds. Five tenants have sufficient
//! demand all the time. Five other tenants become active at different times, and the last tenant
//! becomes active at about 8 s.
//!
//! The test in QShare §VII-A2 (unpredictable demand) lasts one minute. Every client requests flows
//! from randomly selected servers, with flow sizes from the enterprise trace. After each flow the
//! client continues or sleeps up to 1 s, with equal probability.
//!
//! # Departures
//!
//! The warm-up of each run, of length [`WARM_UP`], does not count.
//!
//! With predictable demand, every VM has [`STEADY`] connections to servers in the other rack. Each
//! connection sends one flow after the other.
//!
//! With unpredictable demand, the number of connections per VM determines whether the demand can
//! fill the core link. A connection that sleeps 0.25 s per flow of 157 KB uses at most 5 Mbit/s. A
//! VM has [`CONNECTIONS`] connections to servers on other hosts, so plain TCP fills the core link.
//! If QShare does not fill the core link but plain TCP does, the reason is QShare's assignment of
//! queues. The figure of QShare's core link also shows runs with fewer and with more connections
//! per VM.

use penstock_sim::fabric::{Connection, FlowSim, Record, Spec, System, TenantSpec};
use penstock_units::Nanos;

use crate::qshare::{self as bed, Workload};

/// Length of the warm-up, which is two intervals of 4 s.
pub const WARM_UP: Nanos = Nanos::from_secs(8);
/// Number of connections of each VM with predictable demand.
pub const STEADY: usize = 4;
/// Number of connections of each VM with unpredictable demand.
pub const CONNECTIONS: usize = 12;

/// Bandwidth that the ten tenants try to use on the core link.
#[derive(Debug, Clone, Copy)]
pub enum Demand {
    /// Predictable demand. For each tenant, the array has the time at which sufficient demand
    /// begins, in seconds after the warm-up. A negative time means the start of the simulation.
    From([f64; 10]),
    /// Unpredictable demand. Each VM has the given number of connections, which are active or
    /// asleep at random.
    Random(usize),
}

/// Traffic of all tenants on the core link in one simulated run.
#[derive(Debug, Clone)]
pub struct Core {
    /// The simulator's record of the run, including the warm-up.
    pub record: Record,
    pub tenants: usize,
    /// Two counts: reductions of rates that exceeded a link's capacity, and computations of rates
    /// by the simulator.
    pub cuts: (u64, u64),
}

/// Runs the simulation through the warm-up and for `time` after the warm-up.
///
/// # Errors
/// Returns an error if the demand or the system cannot be simulated.
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

/// Returns the time `seconds` after the warm-up. A negative value of `seconds` means the start of
/// the simulation.
fn from(seconds: f64) -> Nanos {
    if seconds < 0.0 {
        return Nanos(0);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
    let nanos = (seconds * 1e9).round() as u64;
    WARM_UP + Nanos(nanos)
}

impl Core {
    /// Returns a tenant's rate on the core link over time, as pairs of seconds and Mbit/s. The rate
    /// is the mean of both directions of the core link.
    #[must_use]
    pub fn tenant_mbps(&self, tenant: usize) -> Vec<(f64, f64)> {
        self.of(|bits, _| (bits[2 * tenant] + bits[2 * tenant + 1]) / self.sample_secs() / 2e6)
    }

    /// Returns the use of the core link over time, as pairs of seconds and percent. The returned
    /// use is the mean of both directions of the core link.
    #[must_use]
    pub fn utilisation_pct(&self) -> Vec<(f64, f64)> {
        let capacity = 2.0 * 1e9 * self.sample_secs();
        self.of(|bits, _| 100.0 * bits.iter().sum::<f64>() / capacity)
    }

    /// Returns the time of each change that the controller made to a port or host, in seconds, and
    /// the least share of a guarantee that any port left to a tenant from then on. The changes of
    /// the warm-up are included, with negative times.
    #[must_use]
    pub fn kept(&self) -> Vec<(f64, f64)> {
        let kept = self.record.kept.iter();
        kept.map(|(at, kept)| (secs(*at) - secs(WARM_UP), *kept)).collect()
    }

    /// Returns pairs of seconds and ratio: the lowest ratio of a tenant's rate to the rate to which
    /// the tenant is entitled. At each time, the function takes the lowest ratio of all tenants in
    /// both directions of the link. Ratios are rounded to a millionth, because sums of rates are
    /// not more exact.
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
