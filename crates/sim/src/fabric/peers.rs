//! Settings of the systems that QShare is compared with, and the check that a setting must pass.
//!
//! # Problem
//!
//! A comparison with a badly configured system is meaningless.
//!
//! # Approach
//!
//! Settings are swept ([`candidates`]). A setting counts only if it achieves the system's purpose
//! on its own ([`check`]). A figure compares with the best of these settings.
//!
//! # The check
//!
//! One gigabit link connects two racks. Tenant X has one VM in each rack with 450 Mbit/s. Tenant Y
//! has five VMs in each with 90 Mbit/s each, 450 Mbit/s in total. There are five runs of 20 s:
//!
//! - X has one endless flow; Y has 25 endless pairs from 5 s on.
//! - X has the same flow; Y's clients request short flows from their servers in turn, so that the
//!   active pairs change constantly.
//! - X runs alone.
//! - X requests 5 MB at a time and pauses for up to 0.4 s, beside Y's 25 pairs.
//! - X does the same beside five of Y's pairs, which use all spare bandwidth when X returns.
//!
//! [`Check::guarantee`] is the least rate of X in any tenth of a second of the first two runs, from
//! 6 s on, relative to its guarantee. [`Check::spare`] is X's fraction of the link when it runs
//! alone, from 10 s on. [`Check::bursts`] is X's mean rate during bursts in the worse of the last
//! two runs, relative to its guarantee. [`Check::holds`] requires at least 0.95, 0.90 and 0.95.

use std::sync::Arc;

use penstock_fabric::rate_alloc::{RateSettings, WHOLE};
use penstock_units::{BitsPerSecond, Nanos};

use super::flow_sim::FlowSim;
use super::sizes::{SizeTable, SizeTableError};
use super::spec::{Connection, Network, Order, Spec, SpecError, TenantSpec};
use super::system::{PairLimits, System};

const LINK: BitsPerSecond = BitsPerSecond(1_000_000_000);
const X: BitsPerSecond = BitsPerSecond(450_000_000);
const Y: BitsPerSecond = BitsPerSecond(90_000_000);
const SECS: u64 = 20;
/// Flow sizes of X's bursts: 5 MB.
const BURST: &str = "5000000 1";
/// Flow sizes of the short flows: 10 kB to 2 MB.
const SHORT: &str = "10000 0.5\n100000 0.8\n2000000 1";

/// Results of the check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// Minimum rate in a tenth of a second, relative to the guarantee.
    pub guarantee: f64,
    /// Rate of X alone, relative to the link.
    pub spare: f64,
    /// Rate in bursts, relative to the guarantee.
    pub bursts: f64,
}

/// Why the check failed to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The setup cannot be simulated.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The flow sizes are invalid.
    #[error(transparent)]
    Sizes(#[from] SizeTableError),
}

impl Check {
    /// Whether guarantees were met and a spare link was used.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.guarantee >= 0.95 && self.bursts >= 0.95 && self.spare >= 0.90
    }
}

/// The settings of the sweep. The sweep covers slow to fast rate changes, with and without caution,
/// hold and headroom, each with two periods. Limits are forgotten at once or after 10 s.
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

/// Runs the check for `system`.
///
/// # Errors
/// The check itself is invalid.
pub fn check(system: impl Fn() -> System) -> Result<Check, CheckError> {
    let beside = |spec: Spec| -> Result<f64, CheckError> {
        let rates = x_by_tenth(spec, system())?;
        Ok(rates[60..].iter().copied().fold(f64::INFINITY, f64::min) / bits(X))
    };
    let endless = beside(world(&Beside::Endless)?)?;
    let short = beside(world(&Beside::Short)?)?;
    let alone = x_by_tenth(world(&Beside::Nobody)?, system())?;
    let many = x_in_bursts(Beside::Endless, system())?;
    let bursts = many.min(x_in_bursts(Beside::Few, system())?);
    let late = &alone[100..];
    let mean = late.iter().sum::<f64>() / f64::from(u32::try_from(late.len()).unwrap_or(1));
    Ok(Check { guarantee: endless.min(short), spare: mean / bits(LINK), bursts })
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

/// X's mean rate while it has flows of [`BURST`], relative to its guarantee.
fn x_in_bursts(beside: Beside, system: System) -> Result<f64, CheckError> {
    let mut spec = world(&beside)?;
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

/// X's rate in each tenth of a second, in bits/s.
fn x_by_tenth(spec: Spec, system: System) -> Result<Vec<f64>, CheckError> {
    let mut sim = FlowSim::new(spec, system)?;
    sim.run_until(Nanos::from_secs(SECS));
    Ok(sim.record().samples.iter().map(|sample| 10.0 * sample.bits[0]).collect())
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
fn bits(rate: BitsPerSecond) -> f64 {
    rate.0 as f64
}
