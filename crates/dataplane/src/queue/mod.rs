//! Frames that wait for an output.
//!
//! **Problem.** An output with a rate of its own (an uplink's link, a VM that bought a bandwidth
//! towards it) cannot take what comes when it comes: somebody must hold frames and say whose goes
//! next, and when. **Sources.** FS-VDE §4.1; VM jitter §III-C. **Rule.** An output with an
//! [`OutputQueue`] gets no frame directly: egress copies it into the port's own memory or the
//! worker's [`FrameStore`], the queue remembers it in its [`Order`], and a unit of the schedule,
//! [`OUTPUT`], takes frames out when [`Pacing`] lets them go. What finds no room is dropped before
//! it is copied; where frames are shared by [`Order::FairShare`], a VM that has too much waiting is
//! not polled instead. With [`Order::Wfq`] a frame's code point says which of a few queues it waits
//! in (QShare §V-D). **Cost.** One copy more than without, none where the port has memory;
//! nothing is allocated in the loop.

mod classes;
mod lanes;
mod line;
mod memory;
mod output;
mod pacer;
mod store;
mod terms;

pub use classes::{Classes, DSCPS, HeldLane, LaneCounters, LaneReading};
pub(crate) use line::Source;
pub(crate) use memory::Memory;
pub(crate) use output::FCS;
pub use output::OutputQueue;
pub use pacer::shaper;
pub use store::{CELL, FrameStore, Stored};
pub use terms::{Order, Pacing, QueueHome, QueueTerms, ShapeTerms, ShaperKind, ShareTerms};

use penstock_units::QueueId;

use crate::worker::QUEUES_MAX;

/// The unit of a port's schedule that sends what waits for it: behind its queue pairs.
#[expect(clippy::cast_possible_truncation, reason = "8")]
pub const OUTPUT: QueueId = QueueId(QUEUES_MAX as u16);
/// Units of a port: its queue pairs, and what waits for it.
pub const UNITS_MAX: usize = QUEUES_MAX + 1;

#[cfg(test)]
mod tests;
