//! Rate allocation: sending rates of pairs of VMs that have no switch queue of their tenant's own.
//!
//! # Problem
//!
//! In a shared queue, a VM that sends more gets more. A tenant's guarantee belongs to a hose, from
//! one VM to all others, but hypervisors limit pairs. A limit at the guarantee wastes unused
//! bandwidth.
//!
//! # Source
//!
//! - ElasticSwitch (Popa et al., SIGCOMM 2013) describes guarantee partitioning and rate
//!   allocation.
//! - Seawall (Shieh et al., NSDI 2011) describes growth by weight, without guarantees.
//! - QShare §V-D runs such an allocation for tenants in the shared queue.
//!
//! # Approach
//!
//! | Module | Decision |
//! |---|---|
//! | [`demand`] | estimated demand of a pair, from measurements |
//! | [`partition`] | division of a VM's guarantee among its pairs |
//! | [`pair_rate`] | a pair's rate: its guarantee, plus spare bandwidth by weight |
//! | [`seawall`] | a pair's rate without guarantees |
//! | [`settings`] | periods, steps and margins, and their valid ranges |
//!
//! Every period a receiver reports the fraction of a pair's frames that was lost or marked. The
//! sender's limit follows from this fraction, the pair's guarantee and the time. Rates are
//! [`penstock_units::BitsPerSecond`], and fractions are parts per million ([`Parts`]). Arithmetic
//! is in integers, so the same events give the same rates on every host.
//!
//! # Departures
//!
//! ElasticSwitch's text was not available when this module was written. The module keeps its two
//! mechanisms. It also keeps its three precautions against taking guaranteed bandwidth: headroom,
//! hold-increase and rate-caution. Periods, steps and factors are Penstock's own ([`settings`]).

pub mod demand;
pub mod pair_rate;
pub mod partition;
pub mod seawall;
pub mod settings;

pub use demand::{DemandEstimate, UNLIMITED};
pub use pair_rate::{PairRate, Signal};
pub use seawall::SeawallRate;
pub use settings::{RateSettings, SettingsError};

/// A fraction in parts per million.
pub type Parts = u32;

/// The whole in [`Parts`].
pub const WHOLE: Parts = 1_000_000;

/// `value * times / by`, rounded down. Saturates; intermediate results do not overflow.
fn scaled(value: u64, times: u64, by: u64) -> u64 {
    let wide = u128::from(value) * u128::from(times) / u128::from(by.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}
