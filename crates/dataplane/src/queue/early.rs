//! Early signals of an output queue: decides which departing frames signal congestion to their
//! senders while frames wait too long for a rate limit.
//!
//! CoDel ([`penstock_qos::codel`]) decides when a signal is due. The signal goes to a flow that
//! uses at least its share of the limit ([`penstock_qos::flow_shares`]).

use penstock_qos::codel::{Codel, Pace};
use penstock_qos::flow_shares::{Due, FlowShares};
use penstock_units::Nanos;

use super::Stored;

/// State of the early signals of a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlySignals {
    codel: Codel,
    flows: FlowShares,
    due: Due,
    /// Length of the longest frame that left the queue, in bytes on a link.
    longest: u32,
}

/// The state of a queue while a frame departs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    /// Time for which the frame waited.
    pub waited: Nanos,
    /// Time of the frame at the rate of the limit.
    pub time: Nanos,
    /// Whether the queue waits for the limit. Frames may also wait for the link or the receiver,
    /// which would not become faster by a signal.
    pub held: bool,
    /// Bytes that wait behind the frame.
    pub behind: u64,
    pub now: Nanos,
}

impl EarlySignals {
    /// Whether the departing frame is to signal congestion.
    pub(super) fn signals(&mut self, frame: &Stored, departure: Departure) -> bool {
        let Departure { waited, time, held, behind, now } = departure;
        let bytes = frame.wire();
        self.longest = self.longest.max(bytes);
        self.flows.note(frame.hash, bytes);
        let backlog = held && behind > u64::from(self.longest);
        let due = self.codel.signals(waited, Pace::of(time), backlog, now);
        let heavy = || self.flows.is_heavy(frame.hash);
        self.due.signals(due, self.codel.is_signalling(), heavy)
    }
}
