//! Computes the sending rates of pairs of VMs whose tenant has no own switch queues (rate
//! allocation).
//!
//! # Problem
//!
//! In a shared queue, a VM that sends more gets more bandwidth. A guarantee (hose) applies to a
//! VM's traffic with all other VMs together. Hypervisors, however, limit the rate of each pair of
//! VMs. If rates were limited to the guarantees, spare bandwidth would stay unused.
//!
//! # Source
//!
//! - ElasticSwitch (Popa et al., SIGCOMM 2013) describes guarantee partitioning and rate
//!   allocation.
//! - Seawall (Shieh et al., NSDI 2011) describes rates that grow in proportion to weights, without
//!   guarantees.
//! - QShare §V-D runs a rate allocation for tenants in the shared queue.
//!
//! # Approach
//!
//! | Module | Decision |
//! |---|---|
//! | [`demand`] | estimated demand of a pair, from measurements |
//! | [`partition`] | division of a VM's guarantee among its pairs |
//! | [`pair_rate`] | a pair's rate: its guarantee plus spare bandwidth by weight |
//! | [`limited_pair`] | state of a pair: its rate, its demand and its parts of the guarantees |
//! | [`host_rates`] | all pairs of a host, from the counters and answers of a period |
//! | [`flow_count`] | estimated number of a pair's flows |
//! | [`hose_pairs`] | limits of a host's pairs to their receivers' parts, without spare bandwidth |
//! | [`seawall`] | a pair's rate without guarantees |
//! | [`settings`] | periods, steps and margins, and their valid ranges |
//!
//! In every period, a receiver reports the fraction of a pair's frames that was lost or marked. The
//! sender's rate limit for a pair follows from the lost or marked fraction of frames, the pair's
//! guarantee and the time. Rates have the type [`penstock_units::BitsPerSecond`], and fractions are
//! in parts per million ([`Parts`]). The module computes with integers, so equal events give equal
//! rates on every host.
//!
//! # Departures
//!
//! ElasticSwitch's text was not available when this module was written. The module implements the
//! two mechanisms of ElasticSwitch. The module also implements ElasticSwitch's three precautions
//! against loss of guaranteed bandwidth: headroom, hold-increase and rate-caution. The values of
//! [`settings`] were chosen for Penstock.

pub mod arrivals;
pub mod demand;
pub mod flow_count;
pub mod hose_pairs;
pub mod host_rates;
pub mod limited_pair;
pub mod pair_rate;
pub mod partition;
pub mod seawall;
pub mod settings;

pub use demand::{DemandEstimate, UNLIMITED};
pub use hose_pairs::HosePairs;
pub use host_rates::{HostRates, HostRatesSettings};
pub use limited_pair::{LimitedPair, RECEIVER, SENDER};
pub use pair_rate::{PairRate, Signal};
pub use seawall::SeawallRate;
pub use settings::{RateSettings, SettingsError};

/// Fraction in parts per million, for example of lost frames.
pub type Parts = u32;

/// Fraction of 100 %, in parts per million.
pub const WHOLE: Parts = 1_000_000;

/// Returns `value * times / by`, rounded down. Returns `u64::MAX` if the result is larger. The
/// product `value * times` has 128 bits and cannot overflow.
fn scaled(value: u64, times: u64, by: u64) -> u64 {
    let wide = u128::from(value) * u128::from(times) / u128::from(by.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}
