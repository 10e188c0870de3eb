use super::*;
use crate::codel::Pace;

const QUEUES: u32 = 8;

/// Returns the hash that selects queue `flow`.
fn hash(flow: u32) -> u32 {
    flow << 29
}

/// Returns queues with `frames` frames of `bytes` bytes for each of `flows` flows.
fn filled(flows: u32, frames: u32, bytes: u32) -> FlowQueues<u32> {
    let mut queues = FlowQueues::new(QUEUES, 100);
    for flow in (0..flows).flat_map(|flow| (0..frames).map(move |_| flow)) {
        assert!(queues.offer(hash(flow), flow, bytes, Nanos(0)));
    }
    queues
}

fn go(queues: &mut FlowQueues<u32>) -> Option<u32> {
    queues.next(Nanos(0)).map(|departure| departure.item)
}

#[test]
fn flows_send_a_quantum_in_turn_and_a_new_flow_goes_first() {
    let mut queues = filled(2, 6, 1_000);
    assert_eq!([0; 4].map(|_| go(&mut queues)), [0, 0, 1, 1].map(Some));
    // Each flow is in debt by 458 bytes, so its next turn has 1,084.
    assert_eq!([0; 3].map(|_| go(&mut queues)), [0, 0, 1].map(Some));
    assert!(queues.offer(hash(5), 5, 100, Nanos(0)));
    assert_eq!(go(&mut queues), Some(5));
    // The flow is old for a round now, so a further frame waits for the present turns.
    assert_eq!(go(&mut queues), Some(1));
    assert!(queues.offer(hash(5), 6, 100, Nanos(0)));
    let rest: Vec<_> = core::iter::from_fn(|| go(&mut queues)).collect();
    let at = rest.iter().position(|item| *item == 6).unwrap();
    assert!(at <= 3, "{rest:?}");
    assert_eq!((rest.len(), queues.len(), queues.bytes()), (5, 0, 0));
}

#[test]
fn a_flow_in_debt_waits_for_as_many_rounds_as_its_debt_has_quanta() {
    let mut queues = FlowQueues::new(QUEUES, 100);
    for (flow, bytes, frames) in [(0, 10 * QUANTUM, 2), (1, QUANTUM, 50)] {
        for _ in 0..frames {
            assert!(queues.offer(hash(flow), flow, bytes, Nanos(0)));
        }
    }
    let order: Vec<_> = core::iter::from_fn(|| go(&mut queues)).collect();
    let places: Vec<_> = (0..order.len()).filter(|at| order[*at] == 0).collect();
    assert!(places[0] == 0 && (10..=12).contains(&places[1]), "{places:?}");
    assert_eq!(order.len(), 52);
}

#[test]
fn only_the_flow_with_a_backlog_signals() {
    let mut queues = FlowQueues::new(QUEUES, 100);
    let mut signals = [0_u32; 2];
    // A frame leaves in each millisecond. One flow always has 50 frames, which wait for 50 ms.
    for ms in 0..2_000 {
        let now = Nanos::from_millis(ms);
        while queues.table().backlog(hash(0)).0 < 50 {
            assert!(queues.offer(hash(0), 0_usize, 1_000, now));
        }
        if ms % 20 == 0 {
            assert!(queues.offer(hash(1), 1, 100, now));
        }
        let next = queues.next(now).unwrap();
        let flow = hash(u32::try_from(next.item).unwrap());
        let signal = queues.table().signals(flow, next.waited, Pace::DEFAULT, now);
        signals[next.item] += u32::from(signal);
    }
    assert!(signals[0] > 20, "{signals:?}");
    assert_eq!(signals[1], 0);
}

#[test]
fn a_flow_with_one_more_frame_does_not_signal() {
    let mut queues = FlowQueues::<u32>::new(QUEUES, 100);
    let mut signals = 0;
    for frames in [2, 3] {
        for ms in 0..1_000 {
            let now = Nanos::from_millis(ms);
            while queues.table().backlog(hash(0)).0 < frames {
                assert!(queues.offer(hash(0), 0, 1_000, now));
            }
            assert!(queues.next(now).is_some());
            let waited = Nanos::from_millis(30);
            signals += u32::from(queues.table().signals(hash(0), waited, Pace::DEFAULT, now));
        }
        assert_eq!(signals > 0, frames == 3, "{signals} signals with {frames} frames");
    }
}

#[test]
fn a_dropped_frame_costs_its_flow_no_part_of_the_turn() {
    let mut queues = filled(2, 5, 1_000);
    assert_eq!([0; 2].map(|_| go(&mut queues)), [0, 0].map(Some));
    queues.not_sent(hash(0), 1_000);
    assert_eq!([0; 2].map(|_| go(&mut queues)), [0, 1].map(Some));
}

#[test]
fn a_full_queue_loses_the_first_frame_of_the_largest_flow() {
    let mut queues = FlowQueues::new(QUEUES, 5);
    for (flow, item, bytes) in [(3, 30, 900), (4, 40, 1_500), (3, 31, 900), (3, 32, 900)] {
        assert!(queues.offer(hash(flow), item, bytes, Nanos(0)) && !queues.is_full());
    }
    assert!(queues.offer(hash(6), 60, 0, Nanos(0)), "a frame without bytes counts as one byte");
    assert!(queues.is_full() && !queues.offer(hash(7), 70, 64, Nanos(0)));
    assert_eq!((queues.evict(), queues.len(), queues.bytes()), (Some(30), 4, 3_301));
    assert!(queues.offer(hash(7), 70, 64, Nanos(0)));
    assert_eq!(queues.table().backlog(hash(3)), (2, 1_800));
    let evicted: Vec<_> = core::iter::from_fn(|| queues.evict()).collect();
    assert_eq!(evicted.len(), 5);
    assert_eq!((queues.evict(), go(&mut queues), queues.is_empty()), (None, None, true));
    // Flows that lost all frames have their turns again.
    assert!(queues.offer(hash(3), 33, 900, Nanos(0)));
    assert_eq!(go(&mut queues), Some(33));
}

#[test]
fn a_single_queue_is_first_in_first_out() {
    let mut queues = FlowQueues::<u32>::new(0, 4);
    for (item, hash) in (0..4_u32).zip([0, u32::MAX, 7, 1 << 31]) {
        assert!(queues.offer(hash, item, 1_500, Nanos(item.into())));
    }
    let next = queues.next(Nanos(9)).unwrap();
    assert_eq!((next.item, next.bytes, next.waited), (0, 1_500, Nanos(9)));
    assert_eq!([0; 4].map(|_| go(&mut queues)), [Some(1), Some(2), Some(3), None]);
}
