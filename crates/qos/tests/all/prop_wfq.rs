//! Tests the guarantees of the `wfq` discipline, also while weights change. Weights divide the
//! bytes for any frame sizes. No capacity stays unused while frames wait, no queue starves, and no
//! frames are lost or reordered.

use std::collections::VecDeque;

use penstock_qos::wfq::{Depth, QUEUES_MAX, Wfq};
use penstock_units::{Nanos, Weight};
use proptest::prelude::*;
use proptest::test_runner::Config;

const SEGMENT: u64 = 65_536;
const UNBOUND: Depth = Depth { bytes: u64::MAX, wait: Nanos(u64::MAX) };

fn weight(weight: u64) -> Weight {
    Weight::new(weight).unwrap()
}

/// A fast random number generator, because a test run needs a million frame lengths.
struct Lengths(u64);

impl Lengths {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    /// Returns a frame length for a kind of queue: short frames, an MTU, large segments, or a mix.
    fn of(&mut self, kind: usize) -> u32 {
        let octave = self.next() % 11;
        let bytes = match kind % 4 {
            0 => 64,
            1 => 1_514,
            2 => SEGMENT - self.next() % 2_000,
            _ => ((64 << octave) / 2 + self.next() % (64 << octave)).clamp(64, SEGMENT),
        };
        u32::try_from(bytes).unwrap()
    }
}

/// A test output in which queues marked in `awake` always have two frames, and other queues get no
/// new frames. The test numbers the frames of each queue.
struct Bed {
    wfq: Wfq<u32>,
    lengths: Lengths,
    kinds: usize,
    sent: Vec<u64>,
    awake: Vec<bool>,
    waiting: Vec<VecDeque<u32>>,
    number: u32,
}

impl Bed {
    fn new(weights: &[u64], kinds: usize, seed: u64) -> Self {
        let n = weights.len();
        let mut wfq = Wfq::new(n, 1_024, UNBOUND);
        for (queue, of) in weights.iter().enumerate() {
            assert!(wfq.set_weight(queue, weight(*of)));
        }
        let (sent, awake, waiting) = (vec![0; n], vec![true; n], vec![VecDeque::new(); n]);
        let lengths = Lengths(seed);
        let mut bed = Self { wfq, lengths, kinds, sent, awake, waiting, number: 0 };
        (0..n).for_each(|queue| bed.fill(queue));
        bed
    }

    fn fill(&mut self, queue: usize) {
        while self.awake[queue] && self.wfq.backlog(queue).0 < 2 {
            let bytes = self.lengths.of(queue + self.kinds);
            self.wfq.offer((queue, false), 0, (self.number, bytes), Nanos(0)).unwrap();
            self.waiting[queue].push_back(self.number);
            self.number = self.number.wrapping_add(1);
        }
    }

    /// Sends a frame, which must be the oldest frame of its queue. Returns the queue and the length
    /// of the sent frame in bytes.
    fn next(&mut self) -> Option<(usize, u64)> {
        let gone = self.wfq.next(Nanos(0), |_, _| unreachable!())?;
        assert_eq!(self.waiting[gone.queue].pop_front(), Some(gone.item));
        self.sent[gone.queue] += u64::from(gone.bytes);
        self.fill(gone.queue);
        Some((gone.queue, gone.bytes.into()))
    }

    fn run(&mut self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            left = left.saturating_sub(self.next().unwrap().1);
        }
    }
}

/// Checks that each queue gets its share of the sent bytes. A queue's bytes may differ from its
/// share by 0.1 % or by two segments, whichever is more.
fn due(weights: &[u64], sent: &[u64]) -> Result<(), TestCaseError> {
    let all: u64 = sent.iter().sum();
    let sum: u64 = weights.iter().sum();
    for (queue, (weight, sent)) in weights.iter().zip(sent).enumerate() {
        let due = u64::try_from(u128::from(all) * u128::from(*weight) / u128::from(sum)).unwrap();
        let slack = (due / 1_000).max(2 * SEGMENT);
        prop_assert!(sent.abs_diff(due) <= slack, "{queue}: {sent} of {due}, {weights:?}");
    }
    Ok(())
}

fn weights() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        prop::collection::vec(1..=100_u64, 2..=8),
        prop::collection::vec(1..=10_000_u64, 2..=8),
        prop::collection::vec(1..=100_u64, 2..=QUEUES_MAX),
        (2..=QUEUES_MAX).prop_map(|n| [vec![n as u64 - 1], vec![1; n - 1]].concat()),
    ]
}

proptest! {
    #![proptest_config(Config { cases: 24, ..Config::default() })]

    #[test]
    fn queues_get_their_due_bytes_for_any_sizes(
        weights in weights(), kinds in 0..4_usize, seed in any::<u64>(),
    ) {
        let mut bed = Bed::new(&weights, kinds, seed);
        bed.run(300_000_000);
        due(&weights, &bed.sent)?;
    }

    /// Tests that a queue with frames is never behind its share by more than the bound.
    #[test]
    fn no_queue_starves(weights in weights(), kinds in 0..4_usize, seed in any::<u64>()) {
        let mut bed = Bed::new(&weights, kinds, seed);
        let sum: u64 = weights.iter().sum();
        let mut all = 0;
        for _ in 0..20_000 {
            all += bed.next().unwrap().1;
            for (queue, weight) in weights.iter().enumerate() {
                let due = all * weight / sum;
                prop_assert!(
                    bed.sent[queue] + 2 * SEGMENT >= due,
                    "queue {queue} has {} of {due}, {weights:?}", bed.sent[queue]
                );
            }
        }
    }

    /// Tests that the other queues share the whole output when some queues get no more frames.
    /// Queues that were empty get their shares of the output again as soon as they have frames.
    #[test]
    fn an_idle_queues_share_is_used_by_the_others_at_once(
        weights in weights(), idle in 1..QUEUES_MAX, seed in any::<u64>(),
    ) {
        let idle = idle.min(weights.len() - 1);
        let mut bed = Bed::new(&weights, 0, seed);
        bed.run(10_000_000);
        bed.awake[..idle].fill(false);
        while (0..idle).any(|queue| bed.wfq.backlog(queue).0 > 0) {
            bed.next();
        }
        bed.sent.fill(0);
        bed.run(200_000_000);
        prop_assert!(bed.sent[..idle].iter().all(|sent| *sent == 0));
        due(&weights[idle..], &bed.sent[idle..])?;
        bed.awake.fill(true);
        (0..idle).for_each(|queue| bed.fill(queue));
        bed.sent.fill(0);
        bed.run(200_000_000);
        due(&weights, &bed.sent)?;
        // When no queue gets more frames, all waiting frames still leave.
        bed.awake.fill(false);
        while bed.next().is_some() {}
        prop_assert!(bed.wfq.is_empty() && bed.waiting.iter().all(VecDeque::is_empty));
    }

    /// Tests that new weights apply immediately. Tests that all waiting frames leave, and that each
    /// queue's frames leave in order.
    #[test]
    fn weights_change_while_frames_wait(
        changes in prop::collection::vec(prop::collection::vec(1..=100_u64, 8), 2..6),
        kinds in 0..4_usize, seed in any::<u64>(),
    ) {
        let mut bed = Bed::new(&[1; 8], kinds, seed);
        for weights in &changes {
            let before: Vec<_> = (0..8).map(|queue| bed.wfq.backlog(queue)).collect();
            for (queue, of) in weights.iter().enumerate() {
                prop_assert!(bed.wfq.set_weight(queue, weight(*of)));
            }
            let after: Vec<_> = (0..8).map(|queue| bed.wfq.backlog(queue)).collect();
            prop_assert_eq!(before, after);
            bed.sent.fill(0);
            // A queue may still be ahead or behind from the time of the old weights, by less than a
            // segment.
            bed.run(400_000_000);
            due(weights, &bed.sent)?;
        }
    }

    /// Tests that every accepted frame leaves in its queue's order or is reported lost, for any
    /// order of events.
    #[test]
    fn no_frame_is_lost_or_reordered(
        steps in prop::collection::vec(
            (0..4_usize, 64..=65_536_u32, 0..40_u64, any::<bool>()), 1..400,
        ),
    ) {
        let depth = Depth { bytes: 100_000, wait: Nanos(300) };
        let mut wfq = Wfq::<usize>::new(4, 32, depth);
        let mut waiting = vec![VecDeque::new(); 4];
        let mut now = 0;
        for (n, (queue, bytes, pause, go)) in steps.into_iter().enumerate() {
            now += pause;
            let was_empty = wfq.backlog(queue).0 == 0;
            match wfq.offer((queue, false), 0, (n, bytes), Nanos(now)) {
                Ok(()) => waiting[queue].push_back((n, bytes)),
                Err(_) => prop_assert!(!was_empty || wfq.len() > 16, "an empty queue has room"),
            }
            if go {
                let mut lost = Vec::new();
                let gone = wfq.next(Nanos(now), |queue, n| lost.push((queue, n)));
                for (queue, n) in lost {
                    prop_assert_eq!(waiting[queue].pop_front().map(|(n, _)| n), Some(n));
                }
                match gone {
                    Some(gone) => {
                        let first = waiting[gone.queue].pop_front();
                        prop_assert_eq!(first, Some((gone.item, gone.bytes)));
                        prop_assert!(gone.waited <= depth.wait);
                    }
                    None => prop_assert!(wfq.is_empty(), "work-conserving"),
                }
            }
            for (queue, waiting) in waiting.iter().enumerate() {
                let bytes = waiting.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
                let frames = u32::try_from(waiting.len()).unwrap();
                prop_assert_eq!(wfq.backlog(queue), (frames, bytes));
            }
        }
    }
}
