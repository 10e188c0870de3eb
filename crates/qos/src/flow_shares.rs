//! Tells which flows of a queue use more than their share of it.
//!
//! # Problem
//!
//! A queue that several TCP flows share signals congestion with the frame that departs at the time
//! of a signal. Chance decides which flow this is. A flow that receives no signal for a few seconds
//! takes most of the rate, and then needs many signals to become slower.
//!
//! # Source
//!
//! Approximate fair dropping (Pan, Breslau, Prabhakar and Shenker, 2003) drops frames of a flow
//! according to the flow's part of a sample of recent frames. FQ-CoDel (RFC 8290 §4) signals with
//! the flow that has the longest queue, and needs a queue for each flow.
//!
//! # Approach
//!
//! [`FlowShares`] counts the bytes of sampled frames for up to [`FLOWS`] flows. The older half of
//! the sample counts half. A flow is heavy if its bytes are at least the mean of all counted flows,
//! so a queue with a single flow has only a heavy flow. If a frame of another flow arrives while
//! the table is full, that flow replaces the flow with the fewest bytes.
//!
//! # Cost
//!
//! A sampled frame costs a search through at most [`FLOWS`] words.

/// Number of flows that are counted at the same time.
pub const FLOWS: usize = 16;
/// Number of sampled frames after which all counts are halved.
const SAMPLE: u32 = 64;

/// Bytes of the recently sampled frames of a queue, by flow.
#[derive(Clone, Debug, Default)]
pub struct FlowShares {
    flows: [(u32, u32); FLOWS],
    /// Number of flows in `flows`, from the front.
    known: usize,
    sampled: u32,
}

impl FlowShares {
    /// Counts a frame of `bytes` bytes of the flow with the hash `flow`.
    pub fn note(&mut self, flow: u32, bytes: u32) {
        self.sampled += 1;
        if self.sampled >= SAMPLE {
            self.age();
        }
        if let Some((_, sum)) = self.counted_mut().iter_mut().find(|(known, _)| *known == flow) {
            *sum = sum.saturating_add(bytes);
        } else if let Some(free) = self.flows.get_mut(self.known) {
            *free = (flow, bytes);
            self.known += 1;
        } else if let Some(least) = self.flows.iter_mut().min_by_key(|(_, sum)| *sum) {
            *least = (flow, bytes);
        }
    }

    /// Whether the flow has at least the mean of the bytes of all counted flows.
    #[must_use]
    pub fn is_heavy(&self, flow: u32) -> bool {
        let counted = &self.flows[..self.known];
        let own = counted.iter().find(|(known, _)| *known == flow).map_or(0, |(_, sum)| *sum);
        let all: u64 = counted.iter().map(|(_, sum)| u64::from(*sum)).sum();
        u64::from(own) * self.known as u64 >= all
    }

    fn counted_mut(&mut self) -> &mut [(u32, u32)] {
        &mut self.flows[..self.known]
    }

    /// Halves all counts, and forgets flows without bytes.
    fn age(&mut self) {
        self.sampled = SAMPLE / 2;
        let mut kept = 0;
        for at in 0..self.known {
            let (flow, sum) = self.flows[at];
            if sum / 2 > 0 {
                self.flows[kept] = (flow, sum / 2);
                kept += 1;
            }
        }
        self.known = kept;
    }
}

/// Number of signals that wait for a frame of a heavy flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due(u8);

impl Due {
    /// Whether a frame is to carry a signal. `new` is true if another signal is due, and
    /// `signalling` if the queue is still too long. `heavy` tells whether the frame's flow is
    /// heavy. If two signals are due, the frame of any flow carries one.
    pub fn signals(&mut self, new: bool, signalling: bool, heavy: impl FnOnce() -> bool) -> bool {
        self.0 = if signalling { self.0.saturating_add(new.into()) } else { 0 };
        let signals = self.0 > 1 || self.0 == 1 && heavy();
        self.0 -= u8::from(signals);
        signals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_waits_for_a_heavy_flow_until_the_next_is_due() {
        let mut due = Due::default();
        assert!(!due.signals(false, true, || true), "none is due");
        assert!(!due.signals(true, true, || false));
        assert!(due.signals(false, true, || true), "the heavy flow carries it");
        assert!(!due.signals(true, true, || false));
        assert!(due.signals(true, true, || false), "two are due");
        assert!(!due.signals(false, false, || true), "the queue is short again");
        assert!(!due.signals(false, true, || true), "and nothing is left");
    }

    #[test]
    fn a_single_flow_is_heavy() {
        let mut shares = FlowShares::default();
        for _ in 0..1_000 {
            shares.note(7, 1_500);
            assert!(shares.is_heavy(7));
        }
    }

    #[test]
    fn only_flows_above_their_share_are_heavy() {
        let mut shares = FlowShares::default();
        for _ in 0..20 {
            shares.note(1, 64_000);
            shares.note(2, 1_500);
            shares.note(3, 60_000);
            shares.note(4, 66);
        }
        assert_eq!(
            [1, 2, 3, 4, 5].map(|flow| shares.is_heavy(flow)),
            [true, false, true, false, false]
        );
    }

    #[test]
    fn a_flow_that_became_slower_is_soon_not_heavy() {
        let mut shares = FlowShares::default();
        (0..1_000).for_each(|_| shares.note(1, 64_000));
        let changed = (0..2 * SAMPLE).position(|_| {
            shares.note(1, 1_500);
            shares.note(2, 64_000);
            !shares.is_heavy(1) && shares.is_heavy(2)
        });
        assert!(changed.is_some());
    }

    #[test]
    fn more_flows_than_entries_leave_the_heavy_one_in_the_table() {
        let mut shares = FlowShares::default();
        for n in 0..10_000 {
            shares.note(100 + n, 100);
            shares.note(1, 1_500);
        }
        assert!(shares.is_heavy(1) && !shares.is_heavy(5));
    }
}
