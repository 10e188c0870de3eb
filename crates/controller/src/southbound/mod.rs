//! Drivers of switches. All kinds of switches share one trait.
//!
//! # Problem
//!
//! A binding consists of queue weights and a map from code point to queue on each port. Every
//! vendor has its own syntax and limits for weights and maps. Some switches report a state that
//! they do not have.
//!
//! # Approach
//!
//! A driver translates [`Change`]s to its switch's syntax and reads back the switch's real state as
//! a [`SwitchState`]. Changes are computed from two states ([`diff()`]) in the same way for all
//! drivers. Every change carries a [`Stamp`](crate::Stamp), which is stored on the switch. A switch
//! refuses older stamps. A driver makes no decisions.
//!
//! # Source
//!
//! The source is QShare §V-D and §VI. `docs/reference/fabric.md` has the facts about switches.

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
