//! The rate limit of an output for which frames wait: the limit on the frames that a VM or its
//! tenant receives ([`penstock_qos::egress_policer`]).
//!
//! # Approach
//!
//! The frame at the head of the queue waits until no bucket of the limit is in debt. After a burst,
//! the output also waits for [`PAUSE`]. Several outputs that wait for one tenant thus take turns,
//! and a burst is worth its turn of the worker. The bucket keeps the tokens of the pause.
//!
//! While frames wait too long for the limit, the queue signals congestion early ([`super::early`])
//! with one frame ([`crate::congestion`]).

use std::sync::Arc;

use penstock_qos::egress_policer::{EgressPolicer, Policed};
use penstock_qos::policer::Size;
use penstock_units::Nanos;

use super::Stored;
use super::early::{Departure, EarlySignals};

/// Time for which an output lets other outputs of its tenant go first after a burst.
const PAUSE: Nanos = Nanos::from_micros(50);

/// The limit of an output, and the state of its early signals.
#[derive(Debug)]
pub(super) struct OutputLimit {
    policer: Arc<EgressPolicer>,
    early: EarlySignals,
    /// Limit that made the queue wait since the last burst.
    holder: Option<Policed>,
    /// Limit that made the queue wait before the present burst.
    held: Option<Policed>,
    /// Whether frames left in the last burst.
    sent: bool,
}

impl OutputLimit {
    pub(super) fn new(policer: Arc<EgressPolicer>) -> Self {
        let early = EarlySignals::default();
        Self { policer, early, holder: None, held: None, sent: false }
    }

    /// Whether `self` enforces `policer`.
    pub(super) fn is(&self, policer: &Arc<EgressPolicer>) -> bool {
        Arc::ptr_eq(&self.policer, policer)
    }

    /// Whether large segments must be cut before they wait ([`EgressPolicer::cuts`]).
    pub(super) fn cuts(&self) -> bool {
        self.policer.cuts()
    }

    /// Returns the time in which the limit passes frames of the size `size`.
    pub(super) fn time_of(&self, size: Size) -> Nanos {
        self.policer.time_for(size)
    }

    /// Begins a burst.
    pub(super) fn begin(&mut self) {
        self.held = self.holder.take();
        self.sent = false;
    }

    /// Returns the time at which the next frame may be sent.
    pub(super) fn due(&mut self, now: Nanos) -> Nanos {
        self.policer.refill(now);
        let Some((time, holder)) = self.policer.wait() else { return Nanos::ZERO };
        self.holder = Some(holder);
        now + time + if self.sent { PAUSE } else { Nanos::ZERO }
    }

    /// Returns the limit that makes the queue's frames wait. Returns `None` if they do not wait for
    /// a limit.
    pub(super) fn holder(&self) -> Option<Policed> {
        self.holder.or(self.held)
    }

    /// Whether the queue begins to wait for the limit after a burst.
    pub(super) fn begins_to_wait(&self) -> bool {
        self.sent && self.holder.is_some()
    }

    /// Whether the departing frame is to signal congestion. The frame waited for `waited`, and
    /// `behind` bytes wait behind the frame.
    pub(super) fn signals(
        &mut self,
        frame: &Stored,
        waited: Nanos,
        behind: u64,
        now: Nanos,
    ) -> bool {
        let (time, held) = (self.time_of(frame.size), self.holder().is_some());
        self.early.signals(frame, Departure { waited, time, held, behind, now })
    }

    /// Charges a frame that is sent.
    pub(super) fn went(&mut self, frame: &Stored) {
        self.policer.charge(frame.size);
        self.sent = true;
    }
}
