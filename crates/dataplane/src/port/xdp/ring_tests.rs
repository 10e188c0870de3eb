//! Tests of AF_XDP rings in the test's own memory. The test acts as the producer and as the
//! consumer of a ring.

use super::*;
use proptest::prelude::*;

fn memory<T>(size: u32) -> Arc<Mapping> {
    Arc::new(Mapping::anonymous(LAYOUT.bytes(size, size_of::<T>()).unwrap()).unwrap())
}

/// Makes both sides of one ring. In the tests of queues, one side acts as the kernel.
pub(in crate::port::xdp) fn pair<T: Copy>(size: u32) -> (Producer<T>, Consumer<T>) {
    super::pair(size).unwrap()
}

/// Sets the ring's flag that requests wake-ups, as a kernel does.
pub(in crate::port::xdp) fn ask_for_wakeups<T: Copy>(ring: &Consumer<T>) {
    ring.shared.word(LAYOUT.flags).store(NEED_WAKEUP, Ordering::Relaxed);
}

#[test]
fn entries_come_out_in_order_and_only_when_shown() {
    let (mut producer, mut consumer) = pair::<u64>(4);
    assert!(producer.push(1) && producer.push(2));
    assert_eq!(consumer.pop(), None);
    producer.publish();
    assert_eq!((consumer.waiting(), consumer.pop(), consumer.pop()), (2, Some(1), Some(2)));
    assert_eq!(consumer.pop(), None);
}

#[test]
fn a_full_ring_refuses_until_the_other_side_gives_back() {
    let (mut producer, mut consumer) = pair::<u64>(4);
    assert!((0..4).all(|n| producer.push(n)) && !producer.push(9));
    producer.publish();
    assert_eq!((consumer.pop(), producer.backlog()), (Some(0), 4));
    assert!(!producer.push(9), "the consumer has not released the entry yet");
    consumer.release();
    assert_eq!(producer.backlog(), 3);
    assert!(producer.push(4) && !producer.push(5));
}

#[test]
fn indices_run_over_the_end_of_their_type() {
    let memory = memory::<u64>(4);
    let mut producer = Producer::<u64>::new(Arc::clone(&memory), LAYOUT, 4).unwrap();
    let mut consumer = Consumer::<u64>::new(memory, LAYOUT, 4).unwrap();
    let start = u32::MAX - 1;
    (producer.next, producer.taken, consumer.next) = (start, start, start);
    producer.publish();
    consumer.release();
    for n in 0..40 {
        assert!(producer.push(n));
        producer.publish();
        assert_eq!(consumer.pop(), Some(n));
        consumer.release();
    }
    assert_eq!(producer.next, start.wrapping_add(40));
}

#[test]
fn an_index_that_cannot_be_is_not_believed() {
    let (mut producer, mut consumer) = pair::<u64>(4);
    for nonsense in [5, 100, u32::MAX] {
        consumer.shared.producer().store(nonsense, Ordering::Release);
        assert_eq!((consumer.waiting(), consumer.pop()), (0, None));
    }
    for nonsense in [1, 5, u32::MAX - 4] {
        // The index claims entries that were never written, or more entries than the ring has.
        producer.shared.consumer().store(nonsense, Ordering::Release);
        assert_eq!(producer.backlog(), 4);
        assert!(!producer.push(1));
    }
}

#[test]
fn a_layout_outside_the_mapping_is_refused() {
    let make = |layout, size| Consumer::<u64>::new(memory::<u64>(4), layout, size).is_ok();
    assert!(make(LAYOUT, 4) && !make(LAYOUT, 3) && !make(LAYOUT, 0) && !make(LAYOUT, 1 << 20));
    for at in [2, 1 << 40, u64::MAX] {
        assert!(!make(Layout { producer: at, ..LAYOUT }, 4));
        assert!(!make(Layout { consumer: at, ..LAYOUT }, 4));
        assert!(!make(Layout { flags: at, ..LAYOUT }, 4));
        assert!(!make(Layout { entries: at, ..LAYOUT }, 4));
    }
}

#[test]
fn the_wish_to_be_woken_is_seen() {
    let (producer, consumer) = pair::<u64>(4);
    assert!(!producer.needs_wakeup());
    ask_for_wakeups(&consumer);
    assert!(producer.needs_wakeup());
}

proptest! {
    /// Tests that entries are taken in the order in which they were written, for any order of
    /// steps.
    #[test]
    fn a_ring_is_a_queue_of_its_size(steps in proptest::collection::vec(0..5_u8, 0..300)) {
        let (mut producer, mut consumer) = pair::<u64>(8);
        let (mut model, mut shown, mut room, mut n) = (Vec::new(), 0, 8_usize, 0_u64);
        let mut popped = 0;
        for step in steps {
            match step {
                0 | 1 => {
                    prop_assert_eq!(producer.push(n), room > 0);
                    if room > 0 {
                        model.push(n);
                        room -= 1;
                    }
                    n += 1;
                }
                2 => {
                    producer.publish();
                    shown = model.len();
                }
                3 => {
                    let expected = (shown > 0).then(|| model.remove(0));
                    shown = shown.saturating_sub(1);
                    popped += usize::from(expected.is_some());
                    prop_assert_eq!(consumer.pop(), expected);
                }
                _ => {
                    consumer.release();
                    room += popped;
                    popped = 0;
                }
            }
        }
    }
}
