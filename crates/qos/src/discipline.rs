//! Scheduling disciplines of a shared output: which client sends the next frame.
//!
//! # Problem
//!
//! An output is divided by weight among clients that join and leave. Frames range from 64 bytes to
//! segments of 64 KiB.
//!
//! # Approach
//!
//! A discipline knows neither frames nor queues. The caller reports which clients have frames and
//! how long each client's first frame is ([`Discipline::backlogged`], [`Discipline::drained`]). The
//! discipline names the client that sends next ([`Discipline::pick`]). The caller reports the bytes
//! that were sent ([`Discipline::charge`]).
//!
//! | Discipline | Source | Error in bytes | Decision |
//! |---|---|---|---|
//! | [`crate::vtrr::Vtrr`] | FS-VDE §4.1 (VTRR) | grows with the clients | O(1), 32 clients |
//! | [`crate::eevdf::Eevdf`] | EEVDF | one request and one frame | O(log n) |
//!
//! # Cost
//!
//! Nothing is allocated after construction. A join or leave changes only that client's account. In
//! VTRR, a join or leave also changes the order of at most 32 clients.

use penstock_units::Weight;

/// Bytes of one allotment: a turn of VTRR among few clients, a request of EEVDF, or the largest
/// quantum of a VM.
///
/// An allotment is small compared with a segment of 64 KiB, so the scheduling error of a few
/// allotments stays below that of a frame that cannot be split. An allotment is larger than an MTU,
/// so several small frames need one decision.
pub const QUANTUM: u32 = 4_096;

/// Divides an output among clients by weight.
///
/// Clients are named by slots below the number that the discipline was made for. A call for a slot
/// without a client does nothing.
pub trait Discipline {
    /// Adds a client without backlog. A client that has already joined gets the new weight and
    /// keeps its account.
    fn join(&mut self, client: usize, weight: Weight);

    /// Removes a client together with its backlog.
    fn leave(&mut self, client: usize);

    /// Reports that the client has frames and that the first one is `head` bytes long. Call it when
    /// the client had no frames, or when another frame becomes the first.
    fn backlogged(&mut self, client: usize, head: u32);

    /// Reports that the client has no frames left.
    fn drained(&mut self, client: usize);

    /// The client that sends its first frame next. `None` if no client has frames. The same client
    /// is returned until [`Self::charge`] is called.
    fn pick(&mut self) -> Option<usize>;

    /// Charges the picked client for `bytes` sent. `next` is the length of the client's next frame
    /// in bytes. If the client has no next frame, `next` is 0, and a call of [`Self::drained`]
    /// follows.
    fn charge(&mut self, client: usize, bytes: u32, next: u32);
}
