//! Contains the drivers of all kinds of switches, which implement a common trait.
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
//! a [`SwitchState`]. The controller computes changes from two states of a switch ([`diff()`]) in
//! the same way for all drivers. Every change carries a [`Stamp`](crate::Stamp), which the driver
//! stores on the switch. A switch refuses a change with an older stamp. A driver only executes
//! decisions of the controller.
//!
//! # Source
//!
//! The interface to switches follows QShare §V-D and §VI. `docs/reference/fabric.md` describes the
//! capabilities and limits of switches.

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
pub(crate) use missing::possible;
pub use missing::{Survey, few_queues, survey, usable_queues};
pub use sim::{Faults, SimSwitch};
pub use step::step;

#[cfg(test)]
mod tests;
