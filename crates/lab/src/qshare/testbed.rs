//! The testbed of QShare §VII-A and §VII-B: ten servers in two racks, ten tenants, one core link.
//!
//! # Source
//!
//! Each of the testbed's two racks has five servers, with ten VM slots and a link of 1 Gbit/s each.
//! The core link between the racks also has 1 Gbit/s, so the over-subscription is 5:1. A port has
//! eight queues, of which one queue is shared. Each tenant has 2 to 20 VMs, and a guarantee of 94
//! Mbit/s on the core link.
//!
//! # Departures
//!
//! The paper does not print some details of the testbed, for which the simulation makes these
//! choices:
//!
//! * Each rack has half of a tenant's VMs, on random servers with a free slot.
//! * A VM's guarantee is `94 / min(m, N - m)` Mbit/s, with m of the tenant's N VMs in the first
//!   rack. The guarantees of a tenant's VMs in the rack with fewer VMs add up to 94 Mbit/s.
//! * A request for a flow takes [`LATENCY`].
//! * Switches and hosts carry out a plan with random delays (`elements`).
//!
//! `flow_sizes/enterprise.txt` and `flow_sizes/datamining.txt` have the flow sizes. The first lines
//! of the two flow-size files name the sources of their data.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_sim::Rng;
use penstock_sim::fabric::{Network, SizeTable, Spec, TenantSpec};
use penstock_units::{BitsPerSecond, Nanos};

/// Number of servers in a rack.
pub const RACK: usize = 5;
/// Number of VM slots of each server.
pub const SLOTS: usize = 10;
/// Rate of every link in the testbed.
pub const GBIT: BitsPerSecond = BitsPerSecond(1_000_000_000);
/// Guarantee of each tenant on the core link.
pub const GUARANTEE: BitsPerSecond = BitsPerSecond(94_000_000);
/// Number of queues of a port, including the shared queue.
pub const QUEUES: u8 = 8;
/// Time from a request for a flow to the flow's first bit.
pub const LATENCY: Nanos = Nanos::from_micros(200);
/// Time between two samples of the core link.
pub const SAMPLE: Nanos = Nanos::from_millis(100);

const ENTERPRISE: &str = include_str!("flow_sizes/enterprise.txt");
const DATAMINING: &str = include_str!("flow_sizes/datamining.txt");

/// A workload with its flow sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Enterprise trace, with flows of 157 KB on average.
    Enterprise,
    /// Data mining trace, with flows of 12.7 MB on average.
    DataMining,
}

impl Workload {
    /// Returns the flow sizes of the workload.
    ///
    /// # Errors
    /// Returns an error if the built-in table of flow sizes is invalid.
    pub fn sizes(self) -> anyhow::Result<Arc<SizeTable>> {
        let text = match self {
            Self::Enterprise => ENTERPRISE,
            Self::DataMining => DATAMINING,
        };
        Ok(Arc::new(SizeTable::parse(text)?))
    }

    /// Returns the name that the workload has in the names of series.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enterprise => "enterprise",
            Self::DataMining => "data mining",
        }
    }
}

/// Returns a table of flow sizes in which every flow has 1 MB.
#[must_use]
pub fn megabytes() -> Arc<SizeTable> {
    Arc::new(SizeTable::fixed(1_000_000))
}

/// Creates a tenant whose guarantee for traffic between the racks is `core`. `vms` has the server
/// number of each VM.
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

/// Draws sizes of ten tenants of 2 to 20 VMs each. Repeats the draw until all VMs fit into the
/// testbed.
fn sizes(rng: &mut Rng) -> Vec<usize> {
    loop {
        let sizes: Vec<usize> = (0..10).map(|_| 2 + draw(rng, 19)).collect();
        if sizes.iter().sum::<usize>() <= 2 * RACK * SLOTS {
            return sizes;
        }
    }
}

/// Returns the numbers of VMs of the tenants that [`tenants`] creates from `seed`.
#[must_use]
pub fn tenant_sizes(seed: u64) -> Vec<usize> {
    sizes(&mut Rng::new(seed).fork(u64::MAX))
}

/// Creates ten tenants of 2 to 20 VMs from the seed. All VMs fit into the testbed.
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

/// Returns the VMs of a tenant that are not on the server of its VM `client`.
#[must_use]
pub fn others(tenant: &TenantSpec, client: usize) -> Vec<usize> {
    let here = tenant.vms[client];
    (0..tenant.vms.len()).filter(|vm| tenant.vms[*vm] != here).collect()
}

/// Returns the VMs of a tenant that are not in the rack of its VM `client`.
#[must_use]
pub fn across(tenant: &TenantSpec, client: usize) -> Vec<usize> {
    let rack = |vm: usize| tenant.vms[vm] / RACK;
    (0..tenant.vms.len()).filter(|vm| rack(*vm) != rack(client)).collect()
}

/// Creates the testbed with the given tenants, but without connections.
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

/// Calls `run` with each case in `cases`, on all processors. Returns the results in the order of
/// `cases`.
///
/// # Errors
/// Returns the error of the first case that failed.
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
