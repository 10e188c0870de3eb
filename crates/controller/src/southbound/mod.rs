//! How switches are told: one driver trait, several dialects.
//!
//! **Problem.** What a binding means is weights of queues and a map from code point to queue on
//! each port; every vendor has its own words for that, its own limits, and ways to lie about it.
//! **Rule.** A driver turns [`Change`]s into its switch's words and reads back what the switch says
//! it does, as a [`SwitchState`]. What to change is computed here, from two states ([`diff()`]),
//! the same for all drivers. Every change carries a [`Stamp`](crate::Stamp), which is kept on the
//! switch; an older one is refused. A driver decides nothing.
//!
//! Source: QShare §V-D, §VI; the facts on switches: `docs/fabric.md`.

mod classes;
mod diff;
mod driver;
pub mod gnmi;
pub mod linux_tc;
mod missing;
pub mod penstock;
mod sim;
pub mod sonic;
mod step;

pub use diff::diff;
pub use driver::{
    Capabilities, Change, DriverError, ONE_STEP, PortInfo, PortState, QueueCounters, SwitchDriver,
    SwitchState,
};
pub use missing::missing;
pub use sim::{Faults, SimSwitch};
pub use step::step;

#[cfg(test)]
mod tests;
