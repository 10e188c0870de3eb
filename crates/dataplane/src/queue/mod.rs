//! An output queue contains the frames that wait until an output (such as a port with a rate limit)
//! may send them.
//!
//! # Problem
//!
//! An output with a rate limit cannot send each frame at the time of its arrival. Examples of
//! rate-limited outputs are an uplink's link and a VM with a purchased bandwidth. Frames must wait,
//! and a queue must decide which frame goes next, and when.
//!
//! # Source
//!
//! The output queue follows the papers FS-VDE (§4.1) and VM jitter (§III-C). QShare §V-D describes
//! queues by code point.
//!
//! # Approach
//!
//! An output with an [`OutputQueue`] receives frames through the queue. Egress copies the frame
//! into the port's own memory or into the worker's [`FrameStore`]. The queue arranges the frames in
//! its [`Order`]. The worker schedules an output queue like a queue pair
//! ([`crate::unit::OUTPUT`]), and sends waiting frames when [`Pacing`] permits.
//!
//! If an output queue has no room for a frame, the worker drops the frame without copying the
//! frame. With [`Order::FairShare`], the worker stops polling a VM with too many waiting frames
//! instead of dropping the VM's frames. With [`Order::Wfq`], a frame's code point selects one of
//! several queues. With [`Order::FqCodel`], each flow has its own queue, and the largest flow loses
//! a frame if there is no room.
//!
//! With [`QueueTerms::flows`], each flow has its own queue within the queue of its VM or of its
//! code point, and the largest flow of the same queue loses the frame. No frame is left in a VM's
//! ring then, because frames in a ring have a single order.
//!
//! # Cost
//!
//! An output queue costs one additional copy of each frame. The additional copy is not needed if
//! the port has its own memory. With [`Order::FairShare`], one decision chooses the sender of
//! several successive frames ([`penstock_qos::fair_share`]). The queue does not read the bytes of a
//! waiting frame before it sends the frame. The worker's loop allocates no memory.
//!
//! If the core and not an output with [`Order::FairShare`] is the bottleneck, the senders' frames
//! wait in their rings, and the output chooses whom the worker polls. The frames of this sender
//! pass the queue without a copy (`worker/claims`). At an output with a link below 10.5 Gbit/s, a
//! shaper or a limit, all frames wait in the queue.

mod classes;
mod early;
mod flows;
mod lanes;
mod limit;
mod line;
mod memory;
mod output;
mod pacer;
mod pair_lines;
mod store;
mod terms;

pub use classes::{Classes, DSCPS, HeldLane, LaneCounters, LaneReading};
pub(crate) use line::Source;
pub(crate) use memory::Memory;
pub use output::OutputQueue;
pub(crate) use output::{Choice, FCS, Refused, Signalled};
pub(crate) use pacer::reshape;
pub use pacer::shaper;
pub use store::{CELL, FrameStore, Stored};
pub use terms::{Order, Pacing, QueueHome, QueueTerms, ShapeTerms, ShaperKind, ShareTerms};

#[cfg(test)]
mod tests;
