use super::*;

const SIZE: u16 = 16;

/// Makes a new inflight region, and returns one of its queues and the region. Tests write to the
/// inflight region as another back end would.
fn queue() -> (SplitInflight, Arc<InflightRegion>) {
    let (file, len) =
        InflightRegion::make(&MemoryAccount::default(), RingLayout::Split, 3, SIZE).unwrap();
    let region = Arc::new(
        InflightRegion::map(&MemoryAccount::default(), RingLayout::Split, &file, 0, len, (3, SIZE))
            .unwrap(),
    );
    (region.split(2, SIZE).unwrap(), region)
}

impl SplitInflight {
    fn mark(&self, head: u16, counter: u64) {
        let region = &self.region.file;
        region.u8_at(self.entry(head)).unwrap().store(1, Ordering::Relaxed);
        let at = self.entry(head) + ENTRY_COUNTER;
        region.u64_at(at).unwrap().store(counter, Ordering::Relaxed);
    }

    fn marks(&self) -> Vec<u16> {
        (0..self.size).filter(|&head| self.is_marked(head)).collect()
    }
}

#[test]
fn the_layout_is_that_of_the_specification() {
    let (file, len) =
        InflightRegion::make(&MemoryAccount::default(), RingLayout::Split, 2, 256).unwrap();
    // Each queue takes 16 bytes and 16 bytes per descriptor, rounded up to a multiple of 64.
    assert_eq!(len, 2 * (16 + 16 * 256_u64).next_multiple_of(64));
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    for queue in bytes.chunks(bytes.len() / 2) {
        assert_eq!(queue[8..12], [1, 0, 0, 1], "version 1, 256 descriptors");
        assert!(queue[16..].iter().all(|&b| b == 0));
    }
    let (_, len) =
        InflightRegion::make(&MemoryAccount::default(), RingLayout::Packed, 1, 256).unwrap();
    assert_eq!(len, (32 + 32 * 256_u64).next_multiple_of(64));
}

#[test]
fn a_region_outside_its_file_is_refused() {
    let (file, len) =
        InflightRegion::make(&MemoryAccount::default(), RingLayout::Split, 2, 256).unwrap();
    let map = |len, queues, size| {
        InflightRegion::map(
            &MemoryAccount::default(),
            RingLayout::Split,
            &file,
            0,
            len,
            (queues, size),
        )
        .map(|_| ())
    };
    assert!(map(len, 2, 256).is_ok());
    assert!(matches!(map(len, 3, 256), Err(InflightError::Small { .. })));
    assert!(matches!(map(len, 2, 300), Err(InflightError::Small { .. })));
    assert!(matches!(map(2 * len, 2, 256), Err(InflightError::File(_))));
    assert!(matches!(map(len, 0, 256), Ok(())), "no queues, none found");
    assert!(
        InflightRegion::make(&MemoryAccount::default(), RingLayout::Packed, u16::MAX, u16::MAX)
            .is_err()
    );
}

#[test]
fn a_queue_that_does_not_fit_the_ring_is_none() {
    let (_, region) = queue();
    assert!(region.split(2, SIZE).is_some() && region.split(0, SIZE / 2).is_some());
    assert!(region.split(3, SIZE).is_none(), "no such queue");
    assert!(region.split(0, 2 * SIZE).is_none(), "a larger ring");
}

#[test]
fn an_unknown_layout_is_refused() {
    let (file, len) =
        InflightRegion::make(&MemoryAccount::default(), RingLayout::Split, 1, 16).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[2], 8).unwrap();
    let error =
        InflightRegion::map(&MemoryAccount::default(), RingLayout::Split, &file, 0, len, (1, 16))
            .unwrap_err();
    assert_eq!(error.to_string(), "inflight region: queue 0 has layout version 2; only 1 is known");
}

#[test]
fn our_own_rings_leave_nothing_in_flight_wherever_they_are_killed() {
    let (queue, _region) = queue();
    for used in [0_u16, 5, 13, 65_530, 3] {
        // If the kill comes between the two stores, the region's index is behind the ring's.
        assert_eq!(queue.recover(used, used.wrapping_add(4)), [0_u16; 0]);
        queue.note(used);
        assert_eq!(queue.recover(used, used.wrapping_add(4)), [0_u16; 0]);
    }
}

#[test]
fn heads_in_flight_come_back_in_the_order_of_their_counters() {
    let (queue, _region) = queue();
    for (head, counter) in [(3, 12), (9, 10), (0, 11), (15, 9)] {
        queue.mark(head, counter);
    }
    assert_eq!(queue.recover(0, 4), [15, 9, 0, 3]);
    // A second call gives the same answer: another kill may come before any chain was returned.
    assert_eq!(queue.recover(0, 5), [15, 9, 0, 3]);
}

#[test]
fn a_kill_between_any_two_stores_of_a_batch_neither_loses_nor_doubles_a_head() {
    // Heads 7, 2, 5 and 11 are in flight. The kill comes while 5 and 7 are being returned. The
    // stores are in the order of the specification: `begin`, the ring's index, `end`.
    for stores in 0..=7 {
        let (queue, region) = queue();
        region.store(queue.at + SPLIT_USED, 40);
        for (counter, head) in (0..).zip([7, 2, 5, 11]) {
            queue.mark(head, counter);
        }
        let mut used = 40;
        let store = |at: usize, value| region.store(at, value);
        let steps: [&mut dyn FnMut(); 7] = [
            &mut || store(queue.entry(5) + ENTRY_NEXT, 0),
            &mut || store(queue.at + SPLIT_LAST_BATCH, 5),
            &mut || store(queue.entry(7) + ENTRY_NEXT, 5),
            &mut || store(queue.at + SPLIT_LAST_BATCH, 7),
            &mut || used = 42,
            &mut || queue.unmark(5),
            &mut || queue.unmark(7),
        ];
        steps.into_iter().take(stores).for_each(|step| step());
        let left: &[u16] = if stores < 5 { &[7, 2, 5, 11] } else { &[2, 11] };
        assert_eq!(queue.recover(used, 44), left, "killed after {stores} stores");
        assert_eq!(region.load(queue.at + SPLIT_USED), used);
    }
}

#[test]
fn begin_and_end_follow_the_specified_procedure() {
    let (queue, region) = queue();
    for (counter, head) in (0..).zip([7, 2, 5, 11]) {
        queue.mark(head, counter);
    }
    queue.begin([5, 7].into_iter());
    assert_eq!(queue.marks(), [2, 5, 7, 11], "nothing is returned yet");
    assert_eq!(region.load(queue.at + SPLIT_LAST_BATCH), 7);
    assert_eq!(queue.next(7), 5);
    assert_eq!(region.load(queue.at + SPLIT_USED), 0);
    queue.end([5, 7].into_iter(), 2);
    assert_eq!(queue.marks(), [2, 11]);
    assert_eq!(region.load(queue.at + SPLIT_USED), 2);
}

#[test]
fn impossible_marks_are_dropped() {
    // More chains are in flight than the driver has outstanding.
    let (queue, _region) = queue();
    (0..5).for_each(|head| queue.mark(head, u64::from(head)));
    assert_eq!(queue.recover(0, 4), [0_u16; 0]);
    assert_eq!(queue.marks(), [0_u16; 0]);
    // The recorded index is unrelated to the ring's index, because the guest was reset.
    queue.mark(3, 0);
    assert_eq!(queue.recover(1000, 1004), [0_u16; 0]);
    assert_eq!(queue.marks(), [0_u16; 0]);
    // The available index is further ahead than the ring is long.
    queue.mark(3, 0);
    assert_eq!(queue.recover(1000, 1000 + SIZE + 1), [0_u16; 0]);
    // The list of the last batch names heads that do not exist, or is circular.
    let (queue, region) = self::queue();
    queue.mark(1, 0);
    region.store(queue.at + SPLIT_LAST_BATCH, 999);
    assert_eq!(queue.recover(3, 4), [1]);
    region.store(queue.at + SPLIT_LAST_BATCH, 0);
    assert_eq!(queue.recover(3 + SIZE, 4 + SIZE), [1]);
}

#[test]
fn a_header_is_put_on_a_file_of_zeroes() {
    let file = File::from(memfd_create(c"zeroes", MFdFlags::MFD_CLOEXEC).unwrap());
    let len = needs(RingLayout::Split, 1, SIZE);
    file.set_len(len).unwrap();
    let region =
        InflightRegion::map(&MemoryAccount::default(), RingLayout::Split, &file, 0, len, (1, SIZE))
            .unwrap();
    assert_eq!((region.load(AT_VERSION), region.load(AT_DESC_NUM)), (1, SIZE));
}

#[test]
fn a_front_end_that_rewrites_the_counters_meanwhile_changes_the_order_at_most() {
    const SIZE: u16 = 1024;
    let (file, len) =
        InflightRegion::make(&MemoryAccount::default(), RingLayout::Split, 1, SIZE).unwrap();
    let region = Arc::new(
        InflightRegion::map(&MemoryAccount::default(), RingLayout::Split, &file, 0, len, (1, SIZE))
            .unwrap(),
    );
    let (queue, theirs) = (region.split(0, SIZE).unwrap(), region.split(0, SIZE).unwrap());
    (0..SIZE).for_each(|head| queue.mark(head, head.into()));
    let done = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut counter = 1_u64;
            while !done.load(Ordering::Relaxed) {
                for head in 0..SIZE {
                    counter = counter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    theirs.mark(head, counter >> 33);
                }
            }
        });
        let recovered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..2_000 {
                let mut heads = queue.recover(0, SIZE);
                heads.sort_unstable();
                assert!(heads.into_iter().eq(0..SIZE), "each head once");
            }
        }));
        done.store(true, Ordering::Relaxed);
        assert!(
            recovered.is_ok(),
            "the recovery must not trust the order of counters in shared memory"
        );
    });
}
