//! QShare's large datacenter (§VII-C): its tree, its tenants, and the load of its links.
//!
//! # Source
//!
//! §VII-C defines:
//!
//! * a fat-tree with k = 16 and 1,024 servers of 100 slots;
//! * 10 Gbit/s to a server, and 40 Gbit/s between switches;
//! * over-subscriptions of 1:1, 4:1 and 16:1, by leaving out links and switches;
//! * exponential tenant sizes with mean 49, and 10, 50, 100, 200 or 300 Mbit/s a VM;
//! * tenants that arrive until "network resources or computation resources are fully reserved";
//! * more weight for c_q.
//!
//! # Departures
//!
//! The paper leaves these points open:
//!
//! * Which links and switches are left out. For 1:1 a pod keeps two switches with eight uplinks
//!   each. For 4:1 it keeps one switch with four uplinks, and for 16:1 one switch with one uplink.
//! * Rounding. Sizes are rounded and at least 1. All VMs of a tenant have the same rate.
//! * Full reservation. All slots are taken, or 100 tenants in a row were refused. After that the
//!   counts hardly change.
//! * The weight of c_q, which is 0.9 here.
//! * Queues. A port has eight, and one of them is shared.

use penstock_fabric::hose::Hose;
use penstock_fabric::tenant_placement::{
    Datacenter, Policy, QueueWeight, Request, Tenant, TenantSlot,
};
use penstock_fabric::topology::{LinkId, Regular};
use penstock_sim::Rng;
use penstock_units::BitsPerSecond;

/// The datacenter is fully reserved after this many refusals in a row.
const REFUSALS: u32 = 100;
const MEAN_VMS: f64 = 49.0;
const RATES_MBPS: [u64; 5] = [10, 50, 100, 200, 300];
const SLOTS: u32 = 100;
const SERVER: BitsPerSecond = BitsPerSecond(10_000_000_000);
const SWITCH: BitsPerSecond = BitsPerSecond(40_000_000_000);

/// An over-subscription of the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// Servers' rate divided by the rate at the core.
    pub(super) ratio: u32,
    /// Number of switches in a pod, and of uplinks of each switch.
    pod: (u32, u32),
}

pub(super) const SETTINGS: [Setting; 3] = [
    Setting { ratio: 1, pod: (2, 8) },
    Setting { ratio: 4, pod: (1, 4) },
    Setting { ratio: 16, pod: (1, 1) },
];

/// The tree of k-port switches.
pub(super) fn tree(k: u32, pod: (u32, u32)) -> anyhow::Result<Regular> {
    Ok(Regular::fat_tree(k, SLOTS, (SERVER, SWITCH), pod)?)
}

/// Draws the next tenant. `most` limits the tenant's VMs on one server.
pub(super) fn request(rng: &mut Rng, most: Option<u32>) -> anyhow::Result<Request> {
    let vms = (-MEAN_VMS * (1.0 - rng.unit()).ln()).round().max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2,000")]
    let vms = vms as u32;
    let rates = RATES_MBPS.len() as u64;
    let rate = RATES_MBPS[usize::try_from(rng.below(rates))?];
    let request = Request::new(Hose::homogeneous(vms, BitsPerSecond(rate * 1_000_000))?);
    Ok(match most {
        Some(most) => request.most_per_server(most),
        None => request,
    })
}

/// Fills the datacenter until it is fully reserved.
pub(super) fn fully_reserved(
    setting: Setting,
    most: Option<u32>,
    rng: &mut Rng,
) -> anyhow::Result<Datacenter> {
    let policy = Policy { queue_weight: QueueWeight::Fixed(0.9), ..Policy::default() };
    let mut datacenter = Datacenter::new(tree(16, setting.pod)?.build()?, 0, policy)?;
    let (mut refused, mut free) = (0, datacenter.topology().slots_all());
    while refused < REFUSALS && free > 0 {
        let request = request(rng, most)?;
        match datacenter.try_place(&request) {
            Some(_) => (refused, free) = (0, free - u64::from(request.hose.vms())),
            None => refused += 1,
        }
    }
    Ok(datacenter)
}

/// Number of tenants on each link (N_L).
pub(super) fn tenants_by_link(datacenter: &Datacenter) -> Vec<u32> {
    links(datacenter).map(|link| datacenter.ledger().tenants(link)).collect()
}

/// All links of the datacenter.
pub(super) fn links(datacenter: &Datacenter) -> impl Iterator<Item = LinkId> + use<> {
    (0..u32::try_from(datacenter.topology().links()).unwrap_or(u32::MAX)).map(LinkId)
}

/// Tenants that use links, by slot.
pub(super) fn networked(datacenter: &Datacenter) -> Vec<(TenantSlot, &Tenant)> {
    datacenter.tenants().filter(|(_, tenant)| tenant.placement.has_network()).collect()
}

/// Percentage of the items for which `is_so` is true.
pub(super) fn percent<T>(all: &[T], is_so: impl Fn(&T) -> bool) -> f64 {
    let so = all.iter().filter(|one| is_so(one)).count();
    crate::evidence::stats::count(so) * 100.0 / crate::evidence::stats::count(all.len()).max(1.0)
}
