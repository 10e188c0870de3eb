//! QShare's testbed (§VII-A, §VII-B): ten servers in two racks, ten tenants, one core link.
//!
//! # Source
//!
//! Each of two racks has five servers with ten VM slots and 1 Gbit/s each. The link between the
//! racks has 1 Gbit/s as well, so the over-subscription is 5:1. A port has eight queues, one of
//! them shared. Tenants have 2 to 20 VMs, and 94 Mbit/s each over the core.
//!
//! # Departures
//!
//! The paper leaves these points open:
//!
//! * A tenant has half of its VMs in either rack, on servers drawn among those with a free slot.
//! * A VM's guarantee is `94 / min(m, N - m)`. The smaller half of the VMs then has 94 Mbit/s
//!   together.
//! * A request takes [`LATENCY`].
//! * A decision takes effect [`DELAY`] after the end of its interval. This is the time to collect
//!   usage and to program switches.
//!
//! Flow sizes are in `flow_sizes/enterprise.txt` and `flow_sizes/datamining.txt`. Their first lines
//! name their sources.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_fabric::rate_alloc::RateSettings;
use penstock_fabric::topology::{Regular, Tier};
use penstock_sim::Rng;
use penstock_sim::fabric::{
    Network, PairLimits, QueueControl, SizeTable, Spec, System, TenantSpec,
};
use penstock_units::{BitsPerSecond, Nanos};

use super::binder::FabricBinder;

/// Number of servers in a rack.
pub const RACK: usize = 5;
/// VM slots of a server.
pub const SLOTS: usize = 10;
/// Rate of every link.
pub const GBIT: BitsPerSecond = BitsPerSecond(1_000_000_000);
/// Guarantee of a tenant over the core.
pub const GUARANTEE: BitsPerSecond = BitsPerSecond(94_000_000);
/// Queues of a port, including the shared queue.
pub const QUEUES: u8 = 8;
/// Time from a request to the first bit.
pub const LATENCY: Nanos = Nanos::from_micros(200);
/// Time from the end of an interval until its decision takes effect.
pub const DELAY: Nanos = Nanos::from_millis(100);
/// Time between two samples.
pub const SAMPLE: Nanos = Nanos::from_millis(100);

const ENTERPRISE: &str = include_str!("flow_sizes/enterprise.txt");
const DATAMINING: &str = include_str!("flow_sizes/datamining.txt");

/// A workload, which defines the flow sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Enterprise: 157 KB on average.
    Enterprise,
    /// Data mining: 12.7 MB on average.
    DataMining,
}

impl Workload {
    /// The workload's flow sizes.
    ///
    /// # Errors
    /// The table in this program is invalid.
    pub fn sizes(self) -> anyhow::Result<Arc<SizeTable>> {
        let text = match self {
            Self::Enterprise => ENTERPRISE,
            Self::DataMining => DATAMINING,
        };
        Ok(Arc::new(SizeTable::parse(text)?))
    }

    /// Name of the workload in series.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enterprise => "enterprise",
            Self::DataMining => "data mining",
        }
    }
}

/// A table in which every flow has 1 MB.
#[must_use]
pub fn megabytes() -> Arc<SizeTable> {
    Arc::new(SizeTable::fixed(1_000_000))
}

/// A tenant with VMs on these servers in both racks, and a guarantee of `core` between the racks.
#[must_use]
pub fn tenant(vms: Vec<usize>, core: BitsPerSecond) -> TenantSpec {
    let first = vms.iter().filter(|host| **host < RACK).count();
    let fewer = u64::try_from(first.min(vms.len() - first)).unwrap_or(1).max(1);
    TenantSpec { vms, hose: BitsPerSecond(core.0 / fewer) }
}

fn draw(rng: &mut Rng, below: usize) -> usize {
    let below = u64::try_from(below).unwrap_or(u64::MAX);
    usize::try_from(rng.below(below)).unwrap_or(0)
}

/// Draws the sizes of ten tenants, 2 to 20 VMs each, until they fit into the testbed.
fn sizes(rng: &mut Rng) -> Vec<usize> {
    loop {
        let sizes: Vec<usize> = (0..10).map(|_| 2 + draw(rng, 19)).collect();
        if sizes.iter().sum::<usize>() <= 2 * RACK * SLOTS {
            return sizes;
        }
    }
}

/// Sizes of the tenants that [`tenants`] creates from the seed.
#[must_use]
pub fn tenant_sizes(seed: u64) -> Vec<usize> {
    sizes(&mut Rng::new(seed).fork(u64::MAX))
}

/// Creates ten tenants of 2 to 20 VMs from the seed. They fit into the testbed.
#[must_use]
pub fn tenants(seed: u64) -> Vec<TenantSpec> {
    let mut rng = Rng::new(seed).fork(u64::MAX);
    let sizes = sizes(&mut rng);
    let mut free = [SLOTS; 2 * RACK];
    let mut tenants = Vec::new();
    for size in sizes {
        let room = |rack: usize| free[RACK * rack..][..RACK].iter().sum::<usize>();
        // An odd VM is in the rack with more room.
        let odd = size % 2 * usize::from(room(0) > room(1));
        let first = size / 2 + odd;
        let mut vms = Vec::new();
        for vm in 0..size {
            let rack = usize::from(vm >= first);
            let hosts = (RACK * rack..).take(RACK).filter(|host| free[*host] > 0);
            let hosts: Vec<usize> = hosts.collect();
            // `hosts` is never empty. Half of all VMs fit into a rack, and the odd VM is where
            // there is room.
            let Some(host) = hosts.get(draw(&mut rng, hosts.len())).copied() else { continue };
            free[host] -= 1;
            vms.push(host);
        }
        tenants.push(tenant(vms, GUARANTEE));
    }
    tenants
}

/// VMs of a tenant on other servers than the server of its VM `client`.
#[must_use]
pub fn others(tenant: &TenantSpec, client: usize) -> Vec<usize> {
    let here = tenant.vms[client];
    (0..tenant.vms.len()).filter(|vm| tenant.vms[*vm] != here).collect()
}

/// VMs of a tenant in the other rack than its VM `client`.
#[must_use]
pub fn across(tenant: &TenantSpec, client: usize) -> Vec<usize> {
    let rack = |vm: usize| tenant.vms[vm] / RACK;
    (0..tenant.vms.len()).filter(|vm| rack(*vm) != rack(client)).collect()
}

/// The testbed without connections.
#[must_use]
pub fn spec(tenants: Vec<TenantSpec>, seed: u64) -> Spec {
    Spec {
        network: Network::two_racks(RACK, GBIT, GBIT),
        tenants,
        connections: Vec::new(),
        sample: SAMPLE,
        watched: vec![Network::core(0), Network::core(1)],
        seed,
    }
}

/// QShare with an interval. If `shared` is set, it allocates rates in the shared queue.
///
/// # Errors
/// The tenants do not fit this testbed.
pub fn qshare(tenants: &[TenantSpec], interval: Nanos, shared: bool) -> anyhow::Result<System> {
    let tier = |fan_out| Tier { fan_out, uplinks: 1, rate: GBIT };
    let racks = [tier(u32::try_from(RACK)?), tier(2)];
    let tree = Regular { slots: u32::try_from(SLOTS)?, tiers: racks.to_vec() }.build()?;
    let limits = PairLimits {
        rates: RateSettings::shared_queue(GBIT),
        partition: RateSettings::shared_queue(GBIT).period,
        slack: 100_000,
        forget: Nanos(0),
    };
    Ok(System::QShare(QueueControl {
        interval,
        delay: DELAY,
        binder: Box::new(FabricBinder::new(tree, tenants, QUEUES)?),
        shared: shared.then_some(limits),
    }))
}

/// Calls `run` with each of `cases` on all processors. Results are in the order of the cases.
///
/// # Errors
/// The error is that of the first case that failed.
pub fn parallel<C: Sync, T: Send>(
    cases: &[C],
    run: impl Fn(&C) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(at) else { return done };
            done.push((at, run(case)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(cases.len());
    let mut done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().flat_map(|t| t.join().expect("a case panicked"));
        joined.collect::<Vec<_>>()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_fit_and_have_94_mbit_over_the_core() {
        for seed in 1..50 {
            let tenants = tenants(seed);
            assert_eq!(tenants.len(), 10);
            let mut used = [0; 2 * RACK];
            for tenant in &tenants {
                assert!((2..=20).contains(&tenant.vms.len()));
                let first = tenant.vms.iter().filter(|host| **host < RACK).count();
                let fewer = first.min(tenant.vms.len() - first);
                let core = tenant.hose.0 * u64::try_from(fewer).unwrap();
                assert!(fewer > 0 && GUARANTEE.0 - core < 10, "{core}");
                tenant.vms.iter().for_each(|host| used[*host] += 1);
            }
            assert!(used.iter().all(|slots| *slots <= SLOTS), "{used:?}");
        }
    }

    #[test]
    fn the_tables_have_the_means_of_their_source() {
        let mean = |workload: Workload| workload.sizes().unwrap().mean();
        assert!((mean(Workload::Enterprise) / 157_400.0 - 1.0).abs() < 0.001);
        assert!((mean(Workload::DataMining) / 12_660_000.0 - 1.0).abs() < 0.001);
    }
}
