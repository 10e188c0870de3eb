//! Settings of ElasticSwitch and Trinity for comparisons with QShare, and a check that each setting
//! must pass.
//!
//! # Problem
//!
//! A comparison of QShare with a badly configured system is meaningless.
//!
//! # Approach
//!
//! A figure tries many settings of ElasticSwitch and Trinity ([`candidates`]). A setting passes the
//! check if the system guarantees bandwidth and uses spare capacity ([`check`]). A figure compares
//! QShare with the best of the settings that pass the check.
//!
//! # The check
//!
//! One link of 1 Gbit/s connects two racks. Tenant X has one VM in each rack, with a guarantee of
//! 450 Mbit/s. Tenant Y has five VMs in each rack, with guarantees of 90 Mbit/s each and 450 Mbit/s
//! in total. The check of a setting has five runs of 20 s with different traffic of the tenants X
//! and Y:
//!
//! - Tenant X has one endless flow. From 5 s on, tenant Y has endless flows between 25 pairs of
//!   VMs.
//! - Tenant X has one endless flow. Tenant Y's clients request short flows from one server after
//!   the other, so that Y's active pairs of VMs change constantly.
//! - Tenant X has one endless flow, and tenant Y sends nothing.
//! - Tenant X requests bursts of 5 MB with pauses of up to 0.4 s. Tenant Y has endless flows
//!   between 25 pairs of VMs.
//! - Tenant X requests bursts of 5 MB with pauses. Tenant Y has endless flows between five pairs of
//!   VMs, which use all spare bandwidth when the next burst of X begins.
//!
//! [`Check::guarantee`] is the lowest rate of tenant X in any 0.1 s of the first two runs, from 6 s
//! on, relative to X's guarantee. [`Check::spare`] is the share of the link that tenant X uses from
//! 10 s on, while tenant Y sends nothing. [`Check::bursts`] is tenant X's mean rate during bursts,
//! relative to X's guarantee, in the worse of the two runs with bursts. A setting passes the check
//! if [`Check::guarantee`] and [`Check::bursts`] are at least 0.95, and [`Check::spare`] is at
//! least 0.90.

use std::sync::Arc;

use penstock_fabric::rate_alloc::{RateSettings, WHOLE};
use penstock_units::{BitsPerSecond, Nanos};

use super::flow_sim::FlowSim;
use super::pair_limits::PairLimits;
use super::sizes::{SizeTable, SizeTableError};
use super::spec::{Connection, Network, Order, Spec, SpecError, TenantSpec};
use super::system::System;

const LINK: BitsPerSecond = BitsPerSecond(1_000_000_000);
const X: BitsPerSecond = BitsPerSecond(450_000_000);
const Y: BitsPerSecond = BitsPerSecond(90_000_000);
const SECS: u64 = 20;
/// Lowest [`Check::guarantee`] and [`Check::bursts`] with which a setting passes the check.
const GUARANTEE_MIN: f64 = 0.95;
/// Lowest [`Check::spare`] with which a setting passes the check.
const SPARE_MIN: f64 = 0.90;
/// Table with the flow size of tenant X's bursts: 5 MB.
const BURST: &str = "5000000 1";
/// Table with the sizes of tenant Y's short flows: 10 kB to 2 MB.
const SHORT: &str = "10000 0.5\n100000 0.8\n2000000 1";

/// Results of the check that a setting of ElasticSwitch or Trinity must pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// Lowest rate of tenant X in 0.1 s, relative to X's guarantee.
    pub guarantee: f64,
    /// Rate of tenant X while it is alone, relative to the link's rate.
    pub spare: f64,
    /// Mean rate of tenant X during bursts, relative to X's guarantee.
    pub bursts: f64,
}

/// Reason why the simulation of a rate-limit setting could not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The simulation's specification is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The table of flow sizes is invalid.
    #[error(transparent)]
    Sizes(#[from] SizeTableError),
}

impl Check {
    /// Returns whether the checked system met the guarantees and used spare capacity.
    #[must_use]
    pub fn holds(&self) -> bool {
        let least = [GUARANTEE_MIN, GUARANTEE_MIN, SPARE_MIN];
        let found = [self.guarantee, self.bursts, self.spare];
        found.iter().zip(least).all(|(found, least)| *found >= least)
    }
}

/// Returns all settings to try. The settings combine five parameters:
///
/// - The rate step has one of five values from 2 to 1,000 Mbit/s.
/// - The setting [`RateSettings::caution`] is on or off.
/// - A pair's limit has a hold of 50 ms and a head room of 10 %, or neither hold nor head room.
/// - The rate period and the partition interval of a setting are both 15 ms, or both 50 ms.
/// - The rate limit of an idle pair of VMs ends immediately, or after 10 s.
#[must_use]
pub fn candidates() -> Vec<PairLimits> {
    let mut all = Vec::new();
    for step in [2, 10, 50, 200, 1000] {
        for (caution, hold_ms, head_room) in
            [(true, 50, WHOLE / 10), (true, 0, 0), (false, 50, WHOLE / 10), (false, 0, 0)]
        {
            for (period_ms, forget) in
                [(15, 0), (50, 0), (15, 10), (50, 10)].map(|(ms, s)| (ms, Nanos::from_secs(s)))
            {
                let rates = RateSettings {
                    period: Nanos::from_millis(period_ms),
                    step: BitsPerSecond(step * 1_000_000),
                    caution,
                    hold: Nanos::from_millis(hold_ms),
                    head_room,
                    ..RateSettings::cautious(LINK)
                };
                let partition = Nanos::from_millis(period_ms);
                all.push(PairLimits { rates, partition, slack: 100_000, forget });
            }
        }
    }
    all
}

/// Runs the check for the system that `system` creates.
///
/// # Errors
/// Returns an error if the specification or the flow sizes of the check are invalid.
pub fn check(system: impl Fn() -> System) -> Result<Check, CheckError> {
    let endless = x_least(&Beside::Endless, system())?;
    let short = x_least(&Beside::Short, system())?;
    let spare = x_alone(system())?;
    let many = x_in_bursts(&Beside::Endless, system())?;
    let bursts = many.min(x_in_bursts(&Beside::Few, system())?);
    Ok(Check { guarantee: endless.min(short), spare, bursts })
}

/// Returns whether the system that `system` creates passes the check ([`check`]). Omits the other
/// runs of the check after a run that the system fails.
///
/// # Errors
/// Returns an error if the specification or the flow sizes of the check are invalid.
pub fn passes(system: impl Fn() -> System) -> Result<bool, CheckError> {
    let endless = x_least(&Beside::Endless, system())?;
    if endless < GUARANTEE_MIN {
        return Ok(false);
    }
    let many = x_in_bursts(&Beside::Endless, system())?;
    if many < GUARANTEE_MIN {
        return Ok(false);
    }
    let bursts = many.min(x_in_bursts(&Beside::Few, system())?);
    if bursts < GUARANTEE_MIN {
        return Ok(false);
    }
    let guarantee = endless.min(x_least(&Beside::Short, system())?);
    Ok(Check { guarantee, spare: x_alone(system())?, bursts }.holds())
}

#[derive(PartialEq, Eq)]
enum Beside {
    Nobody,
    Endless,
    Few,
    Short,
}

fn world(beside: &Beside) -> Result<Spec, CheckError> {
    let from = Nanos::from_secs(5);
    let mut connections = vec![Connection::endless(0, 1, vec![0])];
    let sizes = Arc::new(SizeTable::parse(SHORT)?);
    match beside {
        Beside::Nobody => {}
        Beside::Endless => {
            let pairs = (5..10).flat_map(|client| (0..5).map(move |server| (client, server)));
            connections.extend(pairs.map(|(client, server)| Connection {
                from,
                ..Connection::endless(1, client, vec![server])
            }));
        }
        Beside::Few => {
            connections.extend((5..10).map(|client| Connection {
                from,
                ..Connection::endless(1, client, vec![client - 5])
            }))
        }
        Beside::Short => connections.extend((5..10).map(|client| Connection {
            from,
            sizes: Some(sizes.clone()),
            order: Order::Rounds,
            latency: Nanos::from_micros(200),
            ..Connection::endless(1, client, (0..5).collect())
        })),
    }
    Ok(Spec {
        network: Network::two_racks(5, LINK, LINK),
        tenants: vec![
            TenantSpec { vms: vec![0, 5], hose: X },
            TenantSpec { vms: (0..10).collect(), hose: Y },
        ],
        connections,
        sample: Nanos::from_millis(100),
        watched: vec![Network::core(0)],
        seed: 1,
    })
}

/// Returns X's lowest rate in any 0.1 s from 6 s on, relative to X's guarantee.
fn x_least(beside: &Beside, system: System) -> Result<f64, CheckError> {
    let rates = x_by_tenth(world(beside)?, system)?;
    Ok(rates[60..].iter().copied().fold(f64::INFINITY, f64::min) / bits(X))
}

/// Returns X's mean rate from 10 s on while Y sends nothing, relative to the link's rate.
fn x_alone(system: System) -> Result<f64, CheckError> {
    let alone = x_by_tenth(world(&Beside::Nobody)?, system)?;
    let late = &alone[100..];
    let mean = late.iter().sum::<f64>() / f64::from(u32::try_from(late.len()).unwrap_or(1));
    Ok(mean / bits(LINK))
}

/// Returns X's mean rate while X has flows of [`BURST`], relative to X's guarantee.
fn x_in_bursts(beside: &Beside, system: System) -> Result<f64, CheckError> {
    let mut spec = world(beside)?;
    spec.connections[0] = Connection {
        sizes: Some(Arc::new(SizeTable::parse(BURST)?)),
        pause_ppm: WHOLE,
        pause_max: Nanos::from_millis(400),
        from: Nanos::from_secs(6),
        ..Connection::endless(0, 1, vec![0])
    };
    let mut sim = FlowSim::new(spec, system)?;
    sim.run_until(Nanos::from_secs(SECS));
    let flows = sim.record().flows.iter().filter(|flow| flow.tenant == 0);
    let (bytes, seconds) = flows.fold((0, 0.0), |(b, s), f| (b + f.bytes, s + f.seconds()));
    Ok(bits(BitsPerSecond(8 * bytes)) / seconds / bits(X))
}

/// Returns tenant X's rate in each 0.1 s, in bits/s.
fn x_by_tenth(spec: Spec, system: System) -> Result<Vec<f64>, CheckError> {
    let mut sim = FlowSim::new(spec, system)?;
    sim.run_until(Nanos::from_secs(SECS));
    Ok(sim.record().samples.iter().map(|sample| 10.0 * sample.bits[0]).collect())
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
fn bits(rate: BitsPerSecond) -> f64 {
    rate.0 as f64
}
