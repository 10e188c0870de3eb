//! Scheduling disciplines of a shared output, which decide which client sends the next frame.
//!
//! # Problem
//!
//! Clients share the bandwidth of an output by weight. Clients may join and leave the output at any
//! time. The frames of clients have lengths from 64 bytes to 64 KiB.
//!
//! # Approach
//!
//! The caller of a discipline keeps the clients' frames. The caller reports which clients have
//! frames, and the length of each client's first frame ([`Discipline::backlogged`],
//! [`Discipline::drained`]). The function [`Discipline::pick`] returns the client that sends next.
//! After the client has sent, the caller reports the sent bytes ([`Discipline::charge`]). The
//! *error* of a discipline is the difference between the bytes that a client sent and its share by
//! weight.
//!
//! One decision suffices for several frames (a *burst*). [`Discipline::allowance`] returns the
//! bytes for which the discipline would pick the same client again. The caller sends frames of the
//! client within the allowance, and charges the client once for all of them.
//!
//! - VTRR ([`crate::vtrr::Vtrr`], FS-VDE §4.1) decides in O(1), but its largest error grows with
//!   the number of clients.
//! - EEVDF ([`crate::eevdf::Eevdf`]) decides in O(log n) for n clients, and a client's error is at
//!   most one request plus one frame.
//!
//! # Cost
//!
//! A discipline allocates no memory after its construction. If a client joins or leaves, or if its
//! weight changes, the accounts of other clients do not change. VTRR also sorts its clients, which
//! are at most 32. If a client joins again with the same weight, nothing changes.

use penstock_units::Weight;

/// Number of bytes that a client may send for one decision if no other client has frames. The limit
/// bounds the bytes of a charge.
pub const ALONE_BYTES: u32 = 1 << 20;

/// Number of bytes that a client may send before another client's turn. With few clients, a turn in
/// VTRR and a request in EEVDF have 4,096 bytes. The quantum of the heaviest VM of a tenant is also
/// 4,096 bytes.
///
/// The quantum of 4,096 bytes adds little to the scheduling error, because a segment of 64 KiB
/// cannot be split. The quantum is larger than an MTU, so one decision suffices for several small
/// frames.
pub const QUANTUM: u32 = 4_096;

/// Number of bytes that a picked client may send before the caller must charge the client and ask
/// for another decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Limit on the bytes of the client's frames.
    pub bytes: u64,
    /// Whether half of the last frame may exceed the limit `bytes`.
    pub overdraft: bool,
    /// Whether no other client has frames. The allowance then has [`ALONE_BYTES`] bytes.
    pub alone: bool,
}

impl Allowance {
    /// Allowance if no client is picked: no frame may be sent.
    pub const NONE: Self = Self { bytes: 0, overdraft: false, alone: false };
    /// Allowance of a client while no other client has frames.
    pub const ALONE: Self = Self { bytes: ALONE_BYTES as u64, overdraft: false, alone: true };

    /// Whether the client may send a frame of `head` bytes after frames of `sent` bytes.
    #[inline]
    #[must_use]
    pub fn permits(&self, sent: u32, head: u32) -> bool {
        let counted = if self.overdraft { head - head / 2 } else { head };
        u64::from(sent) + u64::from(counted) <= self.bytes
    }
}

/// A discipline that divides an output among clients by weight.
///
/// The slot of a client identifies the client, and is a number below the capacity of the
/// discipline. Calls for a slot that has no client do nothing.
pub trait Discipline {
    /// Adds a client to the discipline; the client has no frames at first. If the client is already
    /// in the discipline, the client gets the new weight. A client that gets a new weight stays
    /// ahead of its share, or behind its share, by the same number of bytes, and so do all other
    /// clients. If the client already has the weight, nothing changes.
    fn join(&mut self, client: usize, weight: Weight);

    /// Removes a client. The discipline does not pick a removed client, even if the client has
    /// frames.
    fn leave(&mut self, client: usize);

    /// Reports that the client has frames, and that its first frame is `head` bytes long. The
    /// caller calls `backlogged` when the client had no frames, or when another frame becomes its
    /// first frame.
    fn backlogged(&mut self, client: usize, head: u32);

    /// Reports that the client has no more frames.
    fn drained(&mut self, client: usize);

    /// Returns the client whose first frame is sent next. Returns `None` if no client has frames.
    /// Until [`Self::charge`] is called, `pick` returns the same client again.
    fn pick(&mut self) -> Option<usize>;

    /// Returns the bytes that the client of the last [`Self::pick`] may send before the caller must
    /// call [`Self::charge`]. The first frame of the client is always permitted. The allowance
    /// holds until the caller calls another function that changes the discipline.
    fn allowance(&self) -> Allowance;

    /// Returns the weight of a client with frames, and the sum of the weights of all clients with
    /// frames. Both numbers may be divided by the same divisor. The weight is 0 if there is no such
    /// client.
    fn part(&self, client: usize) -> (u64, u64);

    /// Charges the picked client for `bytes` bytes that it sent, in one or several frames. The
    /// argument `next` is the length of the client's next frame in bytes. If the client has no next
    /// frame, `next` is 0, and the caller must then call [`Self::drained`].
    fn charge(&mut self, client: usize, bytes: u32, next: u32);
}
