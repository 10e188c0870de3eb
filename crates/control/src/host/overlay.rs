//! Combines the plan of the fabric's controller with the host's configuration.
//!
//! # Problem
//! A plan of the controller is in force until the next plan arrives, even if the configuration file
//! changes. A plan of the controller must not change the configuration file.
//!
//! # Approach
//! The host stores the plan separately from the configuration file. The plan sets the code point of
//! each tenant, and the weights and the map of the uplink's queues. The host combines the plan with
//! each configuration before the configuration runs.
//!
//! - A tenant that the plan does not name shares queue 0, with code point 0. VMs of a tenant
//!   without its own queue cannot use the queue of another tenant. Before the first plan, all
//!   tenants share queue 0.
//! - In the shared queue, only rate limits protect tenants from each other. The plan's rate limits
//!   apply to each tenant that the configuration does not limit.
//! - If the host allocates rates to pairs of VMs ([`crate::config::RateAllocation::Spare`]), the
//!   rates of the pairs take the place of these limits ([`super::pair_rates`]). Otherwise, pairs
//!   have limits in addition, which keep them to their receivers' guarantees. The pairs of a tenant
//!   without limits are measured, so that their limits are known when the plan limits the tenant.
//! - While queues change hands, the plan may also limit a tenant with its own queue. The limit on
//!   the sending rate then applies to the tenant's queue of the uplink, so that no frame changes
//!   its queue because of the limit.
//! - The plan may name a tenant that the host does not have. If VMs of a tenant arrive after the
//!   plan, their frames get the tenant's code point.

use std::collections::BTreeMap;

use penstock_qos::policer::{DEPTH_MAX, RATE_MAX, RATE_MIN};
use penstock_qos::wfq::QUEUES_MAX;

use super::pair_plan::{GuaranteedTenant, PairPlan};
use crate::config::{
    BitsPerSecond, CodePoint, Egress, EgressPolicer, HostConfig, PlannedLimits, Port,
    RateAllocation, Weight, Wfq,
};
use crate::pair_control::VmTerms;

const WEIGHT_MAX: u32 = 10_000;

/// A policer's burst is the number of bytes that pass in 1/20 s at the policer's rate. The smallest
/// burst of a policer is [`BURST_MIN`].
const BURSTS_PER_SECOND: u64 = 20;
/// Minimum burst of a policer in bytes: two segments of 64 KiB.
const BURST_MIN: u32 = 131_072;

/// A plan of the fabric's controller for a host. Each plan is complete: it replaces all settings of
/// the previous plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricTerms {
    /// The code point of each tenant, 0 to 63. A tenant with code point 0 shares queue 0.
    pub code_points: BTreeMap<String, u8>,
    /// Rate limits of the tenants that share queue 0, and of tenants with their own queue that are
    /// limited while queues change hands.
    pub held: BTreeMap<String, Held>,
    /// Guarantees of the other tenants, which the host does not limit.
    pub measured: BTreeMap<String, Held>,
    /// Weights of the uplink's queues from queue 0 on, 0 to 10000. 0 means 1, the smallest weight.
    pub weights: Vec<u32>,
    /// The queue, 0 to 63, that each code point uses at the uplink. Queue 0 serves frames whose
    /// code points the map does not contain.
    pub map: BTreeMap<u8, u8>,
}

/// Guarantees of a tenant on this host, from which its rate limits follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Guaranteed sending rate of all VMs of the tenant on this host together, in bits per second.
    pub send: u64,
    /// Guaranteed receiving rate of all VMs of the tenant on this host together, in bits per
    /// second.
    pub receive: u64,
    /// Ratio of the tenant's limits to its guarantees, in thousandths. A `headroom_permille` below
    /// 1000 counts as 1000.
    pub headroom_permille: u32,
}

/// Weights of a port's queues, and the map from code points to queues. Settings from a controller
/// are complete: they replace all earlier settings of the port's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortQueues {
    /// Weights of the queues, from queue 0 on, 0 to 10000. 0 means 1, the smallest weight.
    pub weights: Vec<u32>,
    /// Map from DSCP code point, 1 to 63, to queue number. Queue 0 serves frames whose code points
    /// the map does not contain.
    pub map: BTreeMap<u8, u8>,
}

/// A plan with checked numbers, converted to configuration values.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    code_points: BTreeMap<String, u8>,
    held: BTreeMap<String, Limits>,
    /// Limits that tenants of [`FabricTerms::measured`] would have.
    measured: BTreeMap<String, Limits>,
    uplink: Laid,
    /// Queues of the ports of a host that is a switch of a fabric, by the port's name.
    pub(super) ports: BTreeMap<String, Laid>,
}

/// Limits on the rates of a tenant, converted from [`Held`] to configuration values.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Limit on the sending rate of the tenant in its own queue ([`Wfq::queue_ceilings`]), if the
    /// tenant's VMs have no account. Frames above the limit wait in this queue.
    ceiling: BitsPerSecond,
    /// Limit on the sending rate of the tenant in its own queue or in a lane, which is a separate
    /// part of queue 0 ([`Wfq::ceilings`]), if the tenant's VMs have an account.
    lane: BitsPerSecond,
    /// Limit on the sending rate of the tenant if the uplink has no free lane. The switch drops
    /// frames of the tenant above its limit on the sending rate.
    send: EgressPolicer,
    receive: EgressPolicer,
    /// The limits as the plan states them.
    held: Held,
}

/// Ratio of the rate of a tenant's lane to its guarantee, in thousandths. The account of the
/// tenant's VMs limits them to about the guarantee. In a lane just above that, a few frames of one
/// burst would wait for seconds, and CoDel would signal there all the time.
const LANE_PERMILLE: u32 = 1_250;

impl Limits {
    fn of(held: &Held) -> Self {
        let headroom = held.headroom_permille.max(1_000);
        let rate = |headroom| penstock_units::BitsPerSecond(permille(held.send, headroom));
        Self {
            ceiling: BitsPerSecond(rate(headroom)),
            lane: BitsPerSecond(rate(headroom.saturating_mul(LANE_PERMILLE) / 1_000)),
            // TCP reaches about an eighth less than the rate of a policer.
            send: policer(permille(held.send, headroom.max(1_125))),
            // With many senders, the rate at a receiver varies around its guarantee.
            receive: policer(permille(held.receive, headroom.max(1_250))),
            held: *held,
        }
    }
}

impl Overlay {
    pub(super) fn new(terms: &FabricTerms) -> Result<Self, String> {
        let code_point = |number: u8| number.to_string().parse::<CodePoint>();
        for (tenant, number) in &terms.code_points {
            code_point(*number).map_err(|problem| format!("tenant {tenant:?}: {problem}"))?;
        }
        let uplink = Laid::new(&terms.weights, &terms.map)?;
        let limits = |tenants: &BTreeMap<String, Held>| -> BTreeMap<String, Limits> {
            tenants.iter().map(|(name, held)| (name.clone(), Limits::of(held))).collect()
        };
        let (held, measured) = (limits(&terms.held), limits(&terms.measured));
        let (code_points, ports) = (terms.code_points.clone(), BTreeMap::new());
        Ok(Self { code_points, held, measured, uplink, ports })
    }

    /// Returns the queues of a switch's ports from before a restart. Leaves out ports whose queues
    /// have a mistake.
    pub(super) fn of_switch(ports: &BTreeMap<String, PortQueues>) -> Self {
        let laid = |(name, queues): (&String, &PortQueues)| {
            Some((name.clone(), Laid::new(&queues.weights, &queues.map).ok()?))
        };
        Self { ports: ports.iter().filter_map(laid).collect(), ..Self::default() }
    }

    /// Applies the plan to a configuration. If the host is not in a fabric, the configuration stays
    /// unchanged.
    pub(super) fn over(&self, mut config: HostConfig) -> HostConfig {
        if let Some(switch) = &config.switch {
            let nothing = Laid::default();
            for port in config.ports.iter_mut().filter(|port| switch.sets(&port.name, port.egress))
            {
                self.ports.get(&port.name).unwrap_or(&nothing).over(port);
            }
        }
        let pairs = config.rate_allocation() == RateAllocation::Spare;
        let Some(fabric) = &config.fabric else { return config };
        let uplink = config.ports.iter_mut().find(|port| port.name == fabric.uplink);
        let mut uplink = uplink.filter(|port| port.egress == Egress::Wfq);
        if let Some(port) = uplink.as_deref_mut() {
            self.uplink.over(port);
        }
        let wfq = uplink.and_then(|port| port.wfq.as_mut());
        let queues = wfq.as_ref().map_or(QUEUES_MAX, |wfq| wfq.queues.into());
        let lanes = QUEUES_MAX.saturating_sub(queues);
        let (mut ceilings, mut queue_ceilings) = (BTreeMap::new(), BTreeMap::new());
        for tenant in &mut config.tenants {
            let dscp = self.code_points.get(&tenant.name).copied().unwrap_or(0);
            tenant.dscp = Some(dscp);
            let Some(limits) = self.held.get(&tenant.name) else { continue };
            if pairs && self.uplink.own_queue(dscp).is_none() && tenant.send.is_none() {
                continue;
            }
            if tenant.receive.is_none() {
                (tenant.receive, tenant.planned.receive) = (Some(limits.receive), true);
            }
            let own = self.uplink.own_queue(dscp).filter(|_| wfq.is_some());
            match (tenant.send, own) {
                (None, Some(queue)) => {
                    queue_ceilings.insert(queue, if pairs { limits.ceiling } else { limits.lane });
                }
                (None, None) if ceilings.len() < lanes => {
                    ceilings.insert(tenant.name.clone(), limits.lane);
                }
                (None, None) => {
                    (tenant.send, tenant.planned.send) = (Some(limits.send), true);
                }
                (Some(_), _) => {}
            }
        }
        if let Some(wfq) = wfq {
            (wfq.ceilings, wfq.queue_ceilings) = (ceilings, queue_ceilings);
        }
        config
    }

    /// Returns the tenants whose pairs of VMs have rates or limits, or are measured. The pairs of a
    /// tenant with its own queue have no rates, and limits only if the plan limits the tenant.
    pub(super) fn pairs(&self) -> PairPlan {
        let has_queue = |name: &String| {
            let dscp = self.code_points.get(name).copied().unwrap_or(0);
            self.uplink.own_queue(dscp).is_some()
        };
        let mut plan =
            PairPlan { confined: self.held.keys().any(has_queue), ..PairPlan::default() };
        let measured = self.measured.iter().map(|tenant| (tenant, false));
        let held = self.held.iter().map(|tenant| (tenant, true));
        for ((name, limits), is_held) in measured.chain(held) {
            let Held { send, receive, headroom_permille } = limits.held;
            let terms = VmTerms { send, receive, headroom_permille };
            if is_held && !has_queue(name) {
                plan.tenants.insert(name.clone(), terms);
            }
            let limits = [limits.send, limits.receive];
            plan.guaranteed.insert(name.clone(), GuaranteedTenant { terms, limits, is_held });
        }
        plan
    }
}

/// Returns `config` with only the limits on tenants that the host's own configuration `own` states.
pub(super) fn with_own_limits(mut config: HostConfig, own: &HostConfig) -> HostConfig {
    let limits = own.tenants.iter().map(|tenant| (&tenant.name, (tenant.send, tenant.receive)));
    let limits: BTreeMap<_, _> = limits.collect();
    for tenant in &mut config.tenants {
        (tenant.send, tenant.receive) = limits.get(&tenant.name).copied().unwrap_or_default();
        tenant.planned = PlannedLimits::default();
    }
    config
}

/// Returns `permille` thousandths of a rate in bits per second, limited to the range of a policer's
/// rates.
fn permille(rate: u64, permille: u32) -> u64 {
    let wide = u128::from(rate) * u128::from(permille) / 1_000;
    u64::try_from(wide).unwrap_or(u64::MAX).clamp(RATE_MIN.0, RATE_MAX.0)
}

/// Returns a policer with the rate `rate` in bits per second.
fn policer(rate: u64) -> EgressPolicer {
    let burst = u32::try_from(rate / (8 * BURSTS_PER_SECOND)).unwrap_or(u32::MAX);
    let burst = burst.clamp(BURST_MIN, DEPTH_MAX);
    let rate = Some(BitsPerSecond(penstock_units::BitsPerSecond(rate)));
    EgressPolicer { rate, burst: Some(burst), ..EgressPolicer::default() }
}

/// Weights of a port's queues, and the map from code points to queues, with checked numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Laid {
    weights: Vec<Weight>,
    map: BTreeMap<CodePoint, u8>,
    /// Smallest number of queues that includes every queue in `weights` and `map`.
    queues: u8,
}

impl Laid {
    /// Checks the weights and the map of a port's queues. Returns an error that names the first
    /// weight, code point or queue number that is out of range.
    pub(super) fn new(weights: &[u32], map: &BTreeMap<u8, u8>) -> Result<Self, String> {
        let highest = map.values().copied().max().unwrap_or(0);
        let queues = weights.len().max(usize::from(highest) + 1);
        let queues = u8::try_from(queues).ok().filter(|n| usize::from(*n) <= QUEUES_MAX);
        let queues =
            queues.ok_or_else(|| format!("more than {QUEUES_MAX} queues are requested"))?;
        let weight = |weight: &u32| match penstock_units::Weight::new((*weight).max(1).into()) {
            Ok(fine) if *weight <= WEIGHT_MAX => Ok(Weight(fine)),
            _ => Err(format!("weight {weight} is above {WEIGHT_MAX}")),
        };
        let weights = weights.iter().map(weight).collect::<Result<_, _>>()?;
        let mapped =
            |(number, queue): (&u8, &u8)| Ok((number.to_string().parse::<CodePoint>()?, *queue));
        let map = map.iter().map(mapped).collect::<Result<_, String>>()?;
        Ok(Self { weights, map, queues })
    }

    /// Returns the queue of a code point, or `None` if the code point uses the shared queue 0.
    fn own_queue(&self, dscp: u8) -> Option<u8> {
        let mapped = self.map.iter().find(|(point, _)| point.get() == dscp);
        mapped.map(|(_, queue)| *queue).filter(|queue| *queue != 0)
    }

    /// Sets the weights and the map of a port's queues. The number of the port's queues never
    /// becomes smaller.
    pub(super) fn over(&self, port: &mut Port) {
        let of = port.wfq.take().unwrap_or_default();
        let (weights, map) = (self.weights.clone(), self.map.clone());
        port.wfq = Some(Wfq { queues: of.queues.max(self.queues), weights, map, ..of });
    }
}
