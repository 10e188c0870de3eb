//! Rate allocation: at which rate a pair of VMs may send whose tenant has no switch queue of its
//! own.
//!
//! **Problem.** In a queue that tenants share, whoever sends more gets more. A tenant's guarantee
//! is a hose's, of a VM to all others; what hypervisors can limit are pairs. And a limit at the
//! guarantee wastes what nobody uses. **Source.** ElasticSwitch (Popa et al., SIGCOMM 2013):
//! guarantee partitioning and rate allocation; Seawall (Shieh et al., NSDI 2011): increase by
//! weight, without guarantee; QShare §V-D runs such an allocation for tenants in the shared queue.
//!
//! | Module | What it decides |
//! |---|---|
//! | [`demand`] | what a pair seems to want, from what was measured |
//! | [`partition`] | how a VM's guarantee is divided among its pairs |
//! | [`pair_rate`] | a pair's rate: its guarantee, and what is spare by weight |
//! | [`seawall`] | the same without guarantees |
//! | [`settings`] | periods, steps and margins of these, and which are refused |
//!
//! **Quantities.** Rates are [`penstock_units::BitsPerSecond`], shares of frames that were lost or
//! marked are parts per million ([`Parts`]). **Rule.** Every period a receiver says which share of
//! a pair's frames was lost or marked; the sender's limit follows from that, the pair's guarantee
//! and the time. Arithmetic is in integers: the same events give the same rates everywhere.
//!
//! **Departures.** ElasticSwitch's text was not at hand when this was written. Its two mechanisms
//! are kept, and so are its three means against taking what is guaranteed to others (head-room,
//! hold-increase, rate-caution); periods, steps and factors are ours ([`settings`]).

pub mod demand;
pub mod pair_rate;
pub mod partition;
pub mod seawall;
pub mod settings;

pub use demand::{DemandEstimate, UNLIMITED};
pub use pair_rate::{PairRate, Signal};
pub use seawall::SeawallRate;
pub use settings::{RateSettings, SettingsError};

/// Parts of a million: of frames, of a rate.
pub type Parts = u32;

/// All of it, in [`Parts`].
pub const WHOLE: Parts = 1_000_000;

/// `value * times / by`, rounded down, without overflow on the way; `u64::MAX` if it is more.
fn scaled(value: u64, times: u64, by: u64) -> u64 {
    let wide = u128::from(value) * u128::from(times) / u128::from(by.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}
