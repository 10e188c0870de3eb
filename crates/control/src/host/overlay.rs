//! Combines the plan of the fabric's controller with the host's configuration.
//!
//! # Problem
//! A plan is in force until the next one, also if the configuration file changes. It must not be
//! written into that file.
//!
//! # Approach
//! The plan is stored separately. It sets the code point of each tenant, and weights and map of the
//! uplink. It is applied to each configuration before the configuration runs, in the same change.
//!
//! A tenant that the plan does not name shares queue 0, with code point 0, so that no VM takes
//! another tenant's queue. Before the first plan all tenants share queue 0. If the plan limits a
//! tenant's rates, the limits apply unless the configuration has its own. In a shared queue only
//! limits protect the other tenants. The plan may name a tenant that the host does not have. VMs of
//! such a tenant may arrive later, and then get the tenant's code point.

use std::collections::BTreeMap;

use penstock_qos::policer::{DEPTH_MAX, RATE_MAX, RATE_MIN};
use penstock_qos::wfq::QUEUES_MAX;

use crate::config::{
    BitsPerSecond, CodePoint, Egress, EgressPolicer, HostConfig, Port, Weight, Wfq,
};

const WEIGHT_MAX: u32 = 10_000;

/// Determines the depth of a policer: a twentieth of a second at its rate, and at least two
/// segments of 64 KiB.
const BURSTS_PER_SECOND: u64 = 20;
const BURST_MIN: u32 = 131_072;

/// A plan for a host. It is the whole state, never a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricTerms {
    /// The code point of each tenant, 0 to 63. With 0 the tenant shares queue 0.
    pub code_points: BTreeMap<String, u8>,
    /// Limits of tenants that share queue 0.
    pub held: BTreeMap<String, Held>,
    /// Weights of the uplink's queues from queue 0 on, 0 to 10000. 0 means 1, the least weight.
    pub weights: Vec<u32>,
    /// The queue, 0 to 63, of each code point at the uplink. Other code points are in queue 0.
    pub map: BTreeMap<u8, u8>,
}

/// Limits of a tenant that shares queue 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Guaranteed sending rate of all VMs of the tenant on this host together, in bits per second.
    pub send: u64,
    /// Guaranteed receiving rate of these VMs together, in bits per second.
    pub receive: u64,
    /// Limit as a part of both guarantees, in thousandths; at least 1000.
    pub headroom_permille: u32,
}

/// A checked plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    code_points: BTreeMap<String, u8>,
    held: BTreeMap<String, Limits>,
    uplink: Laid,
    /// Queues of a host that is a switch of a fabric, by port.
    pub(super) ports: BTreeMap<String, Laid>,
}

/// [`Held`] as limits of the data path.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Limit on the tenant's sending rate, in a lane of the uplink in which frames wait.
    ceiling: BitsPerSecond,
    /// The same limit without a lane: frames above the limit are dropped.
    send: EgressPolicer,
    receive: EgressPolicer,
}

impl Limits {
    fn of(held: &Held) -> Self {
        let headroom = held.headroom_permille.max(1_000);
        Self {
            ceiling: BitsPerSecond(penstock_units::BitsPerSecond(permille(held.send, headroom))),
            // TCP reaches about an eighth less than the rate of a policer.
            send: policer(permille(held.send, headroom.max(1_125))),
            // With many senders, a receiver's rate varies around its part.
            receive: policer(permille(held.receive, headroom.max(1_250))),
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
        let held = terms.held.iter().map(|(name, held)| (name.clone(), Limits::of(held)));
        let (held, ports) = (held.collect(), BTreeMap::new());
        Ok(Self { code_points: terms.code_points.clone(), held, uplink, ports })
    }

    /// Adds the plan to a configuration. If the host is in no fabric, the configuration stays
    /// unchanged.
    pub(super) fn over(&self, mut config: HostConfig) -> HostConfig {
        if let Some(switch) = &config.switch {
            let nothing = Laid::default();
            for port in config.ports.iter_mut().filter(|port| switch.sets(&port.name, port.egress))
            {
                self.ports.get(&port.name).unwrap_or(&nothing).over(port);
            }
        }
        let Some(fabric) = &config.fabric else { return config };
        let uplink = config.ports.iter_mut().find(|port| port.name == fabric.uplink);
        let mut uplink = uplink.filter(|port| port.egress == Egress::Wfq);
        if let Some(port) = uplink.as_deref_mut() {
            self.uplink.over(port);
        }
        let wfq = uplink.and_then(|port| port.wfq.as_mut());
        let queues = wfq.as_ref().map_or(QUEUES_MAX, |wfq| wfq.queues.into());
        let lanes = QUEUES_MAX.saturating_sub(queues);
        let mut ceilings = BTreeMap::new();
        for tenant in &mut config.tenants {
            tenant.dscp = Some(self.code_points.get(&tenant.name).copied().unwrap_or(0));
            let Some(limits) = self.held.get(&tenant.name) else { continue };
            tenant.receive.get_or_insert(limits.receive);
            if tenant.send.is_none() && ceilings.len() < lanes {
                ceilings.insert(tenant.name.clone(), limits.ceiling);
            } else {
                tenant.send.get_or_insert(limits.send);
            }
        }
        if let Some(wfq) = wfq {
            wfq.ceilings = ceilings;
        }
        config
    }

    /// Removes the plan's limits from a configuration that ran with this plan.
    pub(super) fn off(&self, mut config: HostConfig) -> HostConfig {
        for tenant in &mut config.tenants {
            if let Some(limits) = self.held.get(&tenant.name) {
                tenant.send = tenant.send.filter(|own| *own != limits.send);
                tenant.receive = tenant.receive.filter(|own| *own != limits.receive);
            }
        }
        config
    }
}

/// Thousandths of a rate, clamped to the range of limits.
fn permille(rate: u64, permille: u32) -> u64 {
    let wide = u128::from(rate) * u128::from(permille) / 1_000;
    u64::try_from(wide).unwrap_or(u64::MAX).clamp(RATE_MIN.0, RATE_MAX.0)
}

/// A policer with `rate` in bits per second.
fn policer(rate: u64) -> EgressPolicer {
    let burst = u32::try_from(rate / (8 * BURSTS_PER_SECOND)).unwrap_or(u32::MAX);
    let burst = burst.clamp(BURST_MIN, DEPTH_MAX);
    let rate = Some(BitsPerSecond(penstock_units::BitsPerSecond(rate)));
    EgressPolicer { rate, burst: Some(burst), ..EgressPolicer::default() }
}

/// Checked queues of a port.
#[derive(Clone, Debug, Default)]
pub(super) struct Laid {
    weights: Vec<Weight>,
    map: BTreeMap<CodePoint, u8>,
    /// Minimum number of queues.
    queues: u8,
}

impl Laid {
    /// A number is out of range.
    pub(super) fn new(weights: &[u32], map: &BTreeMap<u8, u8>) -> Result<Self, String> {
        let highest = map.values().copied().max().unwrap_or(0);
        let queues = weights.len().max(usize::from(highest) + 1);
        let queues = u8::try_from(queues).ok().filter(|n| usize::from(*n) <= QUEUES_MAX);
        let queues = queues.ok_or_else(|| format!("more than {QUEUES_MAX} queues are wanted"))?;
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

    /// Sets weights and map of a port. The number of queues does not shrink.
    pub(super) fn over(&self, port: &mut Port) {
        let of = port.wfq.take().unwrap_or_default();
        let (weights, map) = (self.weights.clone(), self.map.clone());
        port.wfq = Some(Wfq { queues: of.queues.max(self.queues), weights, map, ..of });
    }
}
