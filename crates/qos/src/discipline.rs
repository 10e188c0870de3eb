//! What shares an output: who of several clients sends the next frame.
//!
//! **Problem.** An output is divided by weight among clients that come and go, with frames from 64
//! B to segments of 64 KiB. **Rule.** Of a discipline only this is asked: it is told who has frames
//! and how long the first is ([`Discipline::backlogged`], [`Discipline::drained`]), says whose goes
//! next ([`Discipline::pick`]), and is told when it has gone ([`Discipline::charge`]). It knows
//! neither frames nor queues.
//!
//! | Discipline | Source | Error, in bytes | A decision |
//! |---|---|---|---|
//! | [`crate::vtrr::Vtrr`] | FS-VDE §4.1 (VTRR) | grows with the number of clients | O(1), to 32 |
//! | [`crate::eevdf::Eevdf`] | EEVDF | one request and one frame, however many | O(log n) |
//!
//! **Cost.** Nothing is allocated after construction. Joining and leaving touches the client and,
//! in VTRR, the order of at most 32; no queue and no other client's account is rebuilt.

use penstock_units::Weight;

/// Bytes of one allotment: a turn of VTRR among few clients, a request of EEVDF, the largest
/// quantum of a VM.
///
/// Small against a segment of 64 KiB, so that the error of the *order* (some allotments) stays
/// small against that of a frame that cannot be cut; more than an MTU, so that small frames need
/// one decision for several.
pub const QUANTUM: u32 = 4_096;

/// Divides an output among clients by weight; see the module's text.
///
/// Clients are named by slots below the number that the discipline was made for. What is said of a
/// client that is not there changes nothing.
pub trait Discipline {
    /// A client comes, with nothing to send. One that is there gets the new weight and keeps its
    /// account.
    fn join(&mut self, client: usize, weight: Weight);

    /// A client goes, whatever it had.
    fn leave(&mut self, client: usize);

    /// The client has frames, the first of them so many bytes long: after it had none, or because
    /// another is the first now.
    fn backlogged(&mut self, client: usize, head: u32);

    /// The client has none any more.
    fn drained(&mut self, client: usize);

    /// Whose head goes next; `None` when no client has any. Asked again before anything was
    /// charged, it says the same.
    fn pick(&mut self) -> Option<usize>;

    /// The client that was picked sent so many bytes, and has another frame of `next` bytes; 0 if
    /// none, and then [`Self::drained`] follows.
    fn charge(&mut self, client: usize, bytes: u32, next: u32);
}
