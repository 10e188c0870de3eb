//! QShare's testbed (§VII-A, §VII-B): ten servers in two racks, ten tenants, one core link.
//!
//! **Source.** Ten servers with ten VM slots and 1 Gbit/s each, evenly in two racks; one gigabit
//! between the racks, so 5:1; eight queues a port, one of them shared; tenants of 2 to 20 VMs with
//! 94 Mbit/s each over the core.
//!
//! **What the paper leaves open, and what is taken here.** A tenant has half of its VMs in either
//! rack, on servers drawn among those with a free slot. Its VMs' guarantee is what makes 94 Mbit/s
//! of the fewer of them: `94 / min(m, N - m)`. Requests take [`LATENCY`]. Decisions are in force
//! [`DELAY`] after an interval's end: time to collect usage and to program switches.
//!
//! Flow sizes: `flow_sizes/enterprise.txt` and `flow_sizes/datamining.txt`, whose first lines say
//! where they come from.

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

/// Servers of a rack, and slots of a server.
pub const RACK: usize = 5;
/// Slots of a server.
pub const SLOTS: usize = 10;
/// Every link's rate.
pub const GBIT: BitsPerSecond = BitsPerSecond(1_000_000_000);
/// What a tenant has over the core.
pub const GUARANTEE: BitsPerSecond = BitsPerSecond(94_000_000);
/// Queues of a port.
pub const QUEUES: u8 = 8;
/// From a request to the first bit.
pub const LATENCY: Nanos = Nanos::from_micros(200);
/// From the end of an interval to when its decision is in force.
pub const DELAY: Nanos = Nanos::from_millis(100);
/// Time between two samples.
pub const SAMPLE: Nanos = Nanos::from_millis(100);

const ENTERPRISE: &str = include_str!("flow_sizes/enterprise.txt");
const DATAMINING: &str = include_str!("flow_sizes/datamining.txt");

/// A workload: how long flows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Enterprise: 157 KB on average.
    Enterprise,
    /// Data mining: 12.7 MB on average.
    DataMining,
}

impl Workload {
    /// Its table.
    ///
    /// # Errors
    /// When the table in this program is none.
    pub fn sizes(self) -> anyhow::Result<Arc<SizeTable>> {
        let text = match self {
            Self::Enterprise => ENTERPRISE,
            Self::DataMining => DATAMINING,
        };
        Ok(Arc::new(SizeTable::parse(text)?))
    }

    /// Its name in series.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enterprise => "enterprise",
            Self::DataMining => "data mining",
        }
    }
}

/// Flows of 1 MB.
#[must_use]
pub fn megabytes() -> Arc<SizeTable> {
    Arc::new(SizeTable::fixed(1_000_000))
}

/// A tenant with its VMs on these servers, in both racks, and `core` between them.
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

/// VMs of ten tenants, 2 to 20, that fit into the testbed.
fn sizes(rng: &mut Rng) -> Vec<usize> {
    loop {
        let sizes: Vec<usize> = (0..10).map(|_| 2 + draw(rng, 19)).collect();
        if sizes.iter().sum::<usize>() <= 2 * RACK * SLOTS {
            return sizes;
        }
    }
}

/// VMs of the tenants that [`tenants`] makes of the seed.
#[must_use]
pub fn tenant_sizes(seed: u64) -> Vec<usize> {
    sizes(&mut Rng::new(seed).fork(u64::MAX))
}

/// Ten tenants of 2 to 20 VMs that fit into the testbed, by the seed.
#[must_use]
pub fn tenants(seed: u64) -> Vec<TenantSpec> {
    let mut rng = Rng::new(seed).fork(u64::MAX);
    let sizes = sizes(&mut rng);
    let mut free = [SLOTS; 2 * RACK];
    let mut tenants = Vec::new();
    for size in sizes {
        let room = |rack: usize| free[RACK * rack..][..RACK].iter().sum::<usize>();
        // The odd VM goes where there is more room.
        let odd = size % 2 * usize::from(room(0) > room(1));
        let first = size / 2 + odd;
        let mut vms = Vec::new();
        for vm in 0..size {
            let rack = usize::from(vm >= first);
            let hosts = (RACK * rack..).take(RACK).filter(|host| free[*host] > 0);
            let hosts: Vec<usize> = hosts.collect();
            // Never empty: half of all VMs fit into a rack, and the odd one where there is room.
            let Some(host) = hosts.get(draw(&mut rng, hosts.len())).copied() else { continue };
            free[host] -= 1;
            vms.push(host);
        }
        tenants.push(tenant(vms, GUARANTEE));
    }
    tenants
}

/// The VMs of a tenant on other servers than that of its VM `client`.
#[must_use]
pub fn others(tenant: &TenantSpec, client: usize) -> Vec<usize> {
    let here = tenant.vms[client];
    (0..tenant.vms.len()).filter(|vm| tenant.vms[*vm] != here).collect()
}

/// Those of them in the other rack.
#[must_use]
pub fn across(tenant: &TenantSpec, client: usize) -> Vec<usize> {
    let rack = |vm: usize| tenant.vms[vm] / RACK;
    (0..tenant.vms.len()).filter(|vm| rack(*vm) != rack(client)).collect()
}

/// The testbed without connections yet.
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

/// QShare with an interval; `shared`: whether rates are allocated in the shared queue.
///
/// # Errors
/// Tenants that are not of this testbed.
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

/// Does `run` with each of `cases` on all processors; results in the cases' order.
///
/// # Errors
/// The first case's that failed.
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
