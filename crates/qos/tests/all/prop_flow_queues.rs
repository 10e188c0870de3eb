//! Tests the guarantees of flow queues. No frame is lost or reordered within its flow, also while
//! frames are evicted. A flow with few frames goes before flows with a backlog, and flows with a
//! backlog send the same number of bytes.

use std::collections::VecDeque;

use penstock_qos::flow_queues::{FlowQueues, QUANTUM};
use penstock_units::Nanos;
use proptest::prelude::*;
use proptest::test_runner::Config;

const QUEUES: u32 = 64;
const FRAMES: u32 = 48;
const LONGEST: u32 = 1_542;

/// Returns the hash that selects queue `flow`.
fn hash(flow: usize) -> u32 {
    u32::try_from(flow).unwrap() << 26
}

/// A fast random number generator for frame lengths.
struct Lengths(u64);

impl Lengths {
    fn up_to(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from(self.0 >> 33).unwrap() % (most - 63) + 64
    }
}

/// Flow queues in which flows 0 to `bulk` - 1 always have two frames. The handle of a frame is its
/// flow and its number.
struct Bed {
    queues: FlowQueues<(usize, u64)>,
    lengths: Lengths,
    /// Length of the longest frame of each flow with a backlog.
    longest: Vec<u32>,
    sent: Vec<u64>,
    number: u64,
}

impl Bed {
    fn new(longest: Vec<u32>, seed: u64) -> Self {
        let (queues, lengths) = (FlowQueues::new(QUEUES, 1_024), Lengths(seed));
        let sent = vec![0; longest.len()];
        let mut bed = Self { queues, lengths, longest, sent, number: 0 };
        (0..bed.longest.len()).for_each(|flow| bed.fill(flow));
        bed
    }

    fn offer(&mut self, flow: usize, bytes: u32) {
        assert!(self.queues.offer(hash(flow), (flow, self.number), bytes, Nanos(0)));
        self.number += 1;
    }

    fn fill(&mut self, flow: usize) {
        while self.queues.table().backlog(hash(flow)).0 < 2 {
            let bytes = self.lengths.up_to(self.longest[flow]);
            self.offer(flow, bytes);
        }
    }

    /// Sends a frame and returns its flow.
    fn next(&mut self) -> usize {
        let gone = self.queues.next(Nanos(0)).unwrap();
        let (flow, _) = gone.item;
        if let Some(sent) = self.sent.get_mut(flow) {
            *sent += u64::from(gone.bytes);
            self.fill(flow);
        }
        flow
    }

    /// Sends frames until a frame of `flow` leaves. Returns the bytes of each other flow.
    fn until(&mut self, flow: usize) -> Vec<u64> {
        self.sent.fill(0);
        while self.next() != flow {}
        self.sent.clone()
    }
}

fn longest() -> impl Strategy<Value = Vec<u32>> {
    let length = prop_oneof![Just(64_u32), Just(LONGEST), 64..=65_536_u32, Just(200_000)];
    prop::collection::vec(length, 2..20)
}

proptest! {
    #![proptest_config(Config { cases: 64, ..Config::default() })]

    /// Tests that the bytes of two flows with a backlog never differ by more than a quantum and the
    /// longest frame, for any frame lengths.
    #[test]
    fn flows_with_a_backlog_send_the_same_bytes(longest in longest(), seed in any::<u64>()) {
        let allowed = u64::from(QUANTUM + longest.iter().copied().max().unwrap());
        let mut bed = Bed::new(longest, seed);
        for _ in 0..20_000 {
            bed.next();
            let (most, least) = (bed.sent.iter().max().unwrap(), bed.sent.iter().min().unwrap());
            prop_assert!(most - least <= allowed, "{:?}, allowed {}", bed.sent, allowed);
        }
    }

    /// Tests that the frame of a flow that was idle for a while leaves before all frames of flows
    /// with a backlog.
    #[test]
    fn a_new_flow_goes_first(bulk in 1..30_usize, bytes in 64..=QUANTUM, seed in any::<u64>()) {
        let mut bed = Bed::new(vec![LONGEST; bulk], seed);
        for _ in 0..50 {
            bed.sent.fill(0);
            // After three turns of each flow, the idle flow has no turn any more.
            while bed.sent.iter().any(|sent| *sent < 3 * u64::from(QUANTUM + LONGEST)) {
                bed.next();
            }
            bed.offer(bulk, bytes);
            let before = bed.until(bulk);
            prop_assert!(before.iter().all(|sent| *sent == 0), "{:?}", before);
        }
    }

    /// Tests that the frame of a sparse flow leaves after at most one quantum and one frame of each
    /// flow with a backlog, whenever the frame arrives.
    #[test]
    fn a_sparse_flow_waits_for_one_turn_of_each_flow_at_most(
        bulk in 1..30_usize,
        arrivals in prop::collection::vec((0..60_usize, 64..=QUANTUM), 1..200),
        seed in any::<u64>(),
    ) {
        let mut bed = Bed::new(vec![LONGEST; bulk], seed);
        for (pause, bytes) in arrivals {
            (0..pause).for_each(|_| _ = bed.next());
            bed.offer(bulk, bytes);
            let before = bed.until(bulk);
            let allowed = u64::from(QUANTUM + LONGEST);
            prop_assert!(before.iter().all(|sent| *sent <= allowed), "{:?}", before);
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A frame of a flow arrives, with this number of bytes.
    Offer(usize, u32),
    Next,
    /// Like `Next`, but the caller drops the frame.
    Drop,
    Evict,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..6_usize, 0..65_536_u32).prop_map(|(flow, bytes)| Event::Offer(flow, bytes)),
        8 => Just(Event::Next),
        1 => Just(Event::Drop),
        1 => Just(Event::Evict),
    ]
}

/// Waiting frames of each flow, as they should be: the number and the length of each frame.
#[derive(Default)]
struct Model([VecDeque<(u64, u64)>; 6]);

impl Model {
    fn bytes(&self) -> Vec<u64> {
        self.0.iter().map(|frames| frames.iter().map(|(_, bytes)| bytes).sum()).collect()
    }

    fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    /// Removes a frame, which must be the first of its flow.
    fn remove(&mut self, (flow, number): (usize, u64)) -> Result<(), TestCaseError> {
        let first = self.0[flow].pop_front();
        prop_assert_eq!(first.map(|(number, _)| number), Some(number), "flow {}", flow);
        Ok(())
    }

    /// Removes an evicted frame, which must be of a flow with many bytes.
    fn evict(&mut self, item: Option<(usize, u64)>) -> Result<(), TestCaseError> {
        let bytes = self.bytes();
        prop_assert_eq!(item.is_some(), self.len() > 0);
        let Some(item) = item else { return Ok(()) };
        let most = bytes.iter().max().unwrap();
        prop_assert!(2 * bytes[item.0] > *most, "flow {} of {:?}", item.0, bytes);
        self.remove(item)
    }
}

proptest! {
    /// Tests that each accepted frame leaves once, in the order of its flow, for any order of
    /// events. Tests that the output is never idle while a frame waits, and that the limit holds.
    #[test]
    fn no_frame_is_lost_or_reordered_and_the_limit_holds(
        events in prop::collection::vec(event(), 1..600),
    ) {
        let mut queues = FlowQueues::new(QUEUES, FRAMES);
        let mut model = Model::default();
        let mut number = 0;
        for event in events {
            match event {
                Event::Offer(flow, bytes) => {
                    number += 1;
                    if queues.is_full() {
                        prop_assert_eq!(queues.len(), FRAMES);
                        prop_assert!(!queues.offer(hash(flow), (flow, number), bytes, Nanos(0)));
                        model.evict(queues.evict())?;
                    }
                    prop_assert!(queues.offer(hash(flow), (flow, number), bytes, Nanos(0)));
                    model.0[flow].push_back((number, u64::from(bytes.max(1))));
                }
                Event::Next | Event::Drop => {
                    let gone = queues.next(Nanos(0));
                    prop_assert_eq!(gone.is_some(), model.len() > 0);
                    let Some(gone) = gone else { continue };
                    model.remove(gone.item)?;
                    if matches!(event, Event::Drop) {
                        queues.not_sent(hash(gone.item.0), gone.bytes);
                    }
                }
                Event::Evict => model.evict(queues.evict())?,
            }
            let bytes = model.bytes();
            prop_assert_eq!(queues.len() as usize, model.len());
            prop_assert_eq!(queues.bytes(), bytes.iter().sum::<u64>());
            for (flow, bytes) in bytes.into_iter().enumerate() {
                let frames = u32::try_from(model.0[flow].len()).unwrap();
                prop_assert_eq!(queues.table().backlog(hash(flow)), (frames, bytes));
            }
        }
        while let Some(gone) = queues.next(Nanos(0)) {
            model.remove(gone.item)?;
        }
        prop_assert_eq!((model.len(), queues.is_empty(), queues.bytes()), (0, true, 0));
    }
}
