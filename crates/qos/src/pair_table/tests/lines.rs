//! Tests of frames that wait in the lines of their pairs.

use std::collections::VecDeque;

use super::*;

/// Frames that wait for the limit of a pair, with their numbers.
#[derive(Default)]
pub(super) struct Line {
    pub frames: VecDeque<(usize, Size, u32)>,
    pub refused: u32,
}

impl Line {
    /// Offers frame `number` of the VM to the address `mac`. Returns whether it passes at once.
    pub fn offer(
        &mut self,
        table: &PairTable,
        mac: u64,
        size: Size,
        number: u32,
        now: Nanos,
    ) -> bool {
        match table.send(VM, mac, size, now) {
            Sending::Free | Sending::Pass | Sending::Ask(_) | Sending::Signal(_) => return true,
            Sending::Wait(Delayed { slot, .. }) if table.waits(VM, slot, size) => {
                self.frames.push_back((slot, size, number));
            }
            Sending::Wait(_) | Sending::Refuse => self.refused += 1,
        }
        false
    }

    /// Removes a frame that may leave.
    pub fn leave(&mut self, table: &PairTable, now: Nanos) -> Option<(Size, u32)> {
        let (slot, size, number) = *self.frames.front()?;
        table.departs(VM, slot, size.bytes, now).ok()?;
        self.frames.pop_front();
        Some((size, number))
    }
}

#[test]
fn frames_above_a_guarantee_wait_and_leave_in_order_at_its_rate() {
    let table = guarantees();
    limited(&table, 1);
    let (mut line, mut left, mut passed) = (Line::default(), Vec::new(), 0);
    // For 3 s, the VM offers 200 frames/s, which are 2 Mbit/s.
    for step in 0..3_000_u32 {
        let now = Nanos::from_millis(1_000 + u64::from(step));
        while let Some((_, number)) = line.leave(&table, now) {
            left.push(number);
        }
        if step.is_multiple_of(5) && line.offer(&table, FAR, FRAME, step, now) {
            assert!(left.is_empty() && line.frames.is_empty(), "no frame passes others");
            passed += 1;
        }
    }
    assert!(left.is_sorted(), "{left:?}");
    // The bucket has 16,384 bytes, and 100 frames/s follow.
    let all = left.len() + passed;
    assert!((305..=315).contains(&all), "{all}");
    // 32,768 bytes wait, and a part of the next frame.
    let waiting = line.frames.len();
    assert!((26..=27).contains(&waiting), "{waiting}");
    assert_eq!(usize::try_from(line.refused).unwrap() + all + waiting, 600);
    let read = table.sending().next().unwrap();
    assert_eq!(read.bytes, u64::try_from(all + waiting + 1).unwrap() * 1_250);
    assert_eq!(read.refused, u64::from(line.refused));
}

#[test]
fn the_frames_of_a_pair_do_not_wait_for_another_pair_of_the_vm() {
    let table = guarantees();
    limited(&table, 1);
    table.send(VM, FAR + 1, FRAME, Nanos::from_millis(1));
    for read in table.sending().collect::<Vec<_>>() {
        table.set_sender(read.pair, mbps(1), (mbps(1), mbps(1), mbps(1)));
    }
    let (mut line, now) = (Line::default(), Nanos::from_secs(1));
    for number in 0..60 {
        line.offer(&table, FAR, FRAME, number, now);
    }
    assert!(line.frames.len() == 27 && line.refused > 0, "{}", line.refused);
    for number in 0..14 {
        assert!(line.offer(&table, FAR + 1, FRAME, number, now));
    }
    assert_eq!(line.leave(&table, now), None);
}

#[test]
fn a_line_of_which_frames_are_lost_has_room_again() {
    let table = guarantees();
    limited(&table, 1);
    let (mut line, now) = (Line::default(), Nanos::from_secs(1));
    (0..60).for_each(|number| {
        line.offer(&table, FAR, FRAME, number, now);
    });
    assert_eq!(line.frames.len(), 27);
    for (slot, size, _) in line.frames.drain(..) {
        table.lost(VM, slot, size);
    }
    // Nothing waits, so frames pass again as soon as the bucket has tokens.
    assert!(!passes(&table, FRAME, now));
    assert!(passes(&table, FRAME, Nanos::from_millis(1_020)));
}

#[test]
fn a_vm_pays_for_a_frame_when_it_leaves_its_line() {
    let table = guarantees();
    let most = crate::policer::RATE_MAX;
    table.limit(VM, VmRates { default: most, send: mbps(10), receive: most });
    table.set_lines(true);
    limited(&table, 1);
    let (mut line, now) = (Line::default(), Nanos::from_secs(1));
    let offers = |line: &mut Line, frames: u32| {
        (0..frames).for_each(|number| {
            line.offer(&table, FAR, FRAME, number, now);
        });
    };
    offers(&mut line, 13);
    let sent = table.sending().next().unwrap();
    offers(&mut line, 10);
    assert_eq!(line.frames.len(), 10);
    let first = line.frames.pop_front().unwrap();
    let second = line.frames.pop_front().unwrap();
    for (slot, size, _) in line.frames.drain(..) {
        table.lost(VM, slot, size);
    }
    let read = table.sending().next().unwrap();
    assert_eq!(read.bytes, sent.bytes + 2 * u64::from(FRAME.bytes));
    assert_eq!(read.refused, sent.refused + 8);
    let departs = |(slot, size, _): (usize, Size, u32), us: u64| {
        table.departs(VM, slot, size.bytes, Nanos(now.0 + us * 1_000))
    };
    // 13 frames and a question are 715 bytes more than the VM's bucket had. The pair's bucket has
    // 134 left.
    assert_eq!(departs(first, 0), Err(Nanos(715 * 800)));
    assert_eq!(departs(first, 572), Ok(()));
    assert_eq!(departs(second, 572), Err(Nanos(1_250 * 800)));
    let more = departs(second, 1_572).unwrap_err();
    assert!((7_000_000..8_000_000).contains(&more.0), "the pair's debt: {more:?}");
    assert_eq!(departs(second, 1_572 + 8_000), Ok(()));
}

#[test]
fn a_frame_waits_in_its_line_while_its_vm_is_in_debt() {
    let most = crate::policer::RATE_MAX;
    for lines in [true, false] {
        let table = guarantees();
        table.limit(VM, VmRates { default: most, send: mbps(1), receive: most });
        table.set_lines(lines);
        let now = Nanos::from_secs(1);
        for mac in [FAR, FAR + 1] {
            table.send(VM, mac, FRAME, Nanos::from_millis(1));
        }
        for read in table.sending().collect::<Vec<_>>() {
            table.set_sender(read.pair, mbps(1), (mbps(1), mbps(1), mbps(1)));
        }
        // The bucket of the VM has 4,096 bytes, and that of a pair 16,384.
        let mut line = Line::default();
        let passed = (0..6).filter(|i| line.offer(&table, FAR, FRAME, *i, now)).count();
        let other = line.offer(&table, FAR + 1, FRAME, 6, now);
        if lines {
            assert_eq!((passed, other, line.frames.len()), (4, false, 3));
            assert_eq!((table.wait(VM, now), table.batch_limit(VM)), (Nanos::ZERO, usize::MAX));
        } else {
            assert_eq!((passed, other, line.frames.len()), (6, true, 0));
            assert!(table.wait(VM, now) > Nanos::ZERO && table.batch_limit(VM) == 1);
        }
    }
}

#[test]
fn a_vm_with_seconds_of_frames_in_lines_waits_in_its_ring() {
    let table = guarantees();
    let most = crate::policer::RATE_MAX;
    table.limit(VM, VmRates { default: most, send: BitsPerSecond(100_000), receive: most });
    table.set_lines(true);
    limited(&table, 1);
    let (mut line, now) = (Line::default(), Nanos::from_secs(1));
    (0..30).for_each(|number| {
        line.offer(&table, FAR, FRAME, number, now);
    });
    // 2 s of the VM's rate are 25,000 bytes, or 20 frames.
    assert_eq!((line.frames.len(), table.wait(VM, now)), (26, PERIOD));
    while line.frames.len() > 20 {
        let (slot, size, _) = line.frames.pop_front().unwrap();
        table.lost(VM, slot, size);
    }
    assert_eq!(table.wait(VM, now), Nanos::ZERO);
}

#[test]
fn frames_of_slow_pairs_may_wait_longer() {
    let table = guarantees();
    limited(&table, 1);
    let pair = table.sending().next().unwrap().pair;
    let Sending::Wait(Delayed { slot, .. }) =
        (0..20).map(|_| table.send(VM, FAR, FRAME, Nanos::from_secs(1))).last().unwrap()
    else {
        panic!("the frame waits");
    };
    let longest = |rate: u64| {
        let rate = BitsPerSecond(rate);
        table.set_sender(pair, rate, (rate, rate, rate));
        table.longest_wait(slot, Nanos::from_millis(250)).0 / 1_000
    };
    assert_eq!(longest(10_000_000), 250_000);
    // 16 frames of 1,538 bytes.
    assert_eq!(longest(500_000), 393_728);
    assert_eq!(longest(10_000), 2_000_000);
    assert_eq!(table.longest_wait(slot, Nanos::from_secs(3)), Nanos::from_secs(3));
}

#[test]
fn frames_leave_at_once_if_the_limit_ends_and_others_follow_them() {
    let table = guarantees();
    limited(&table, 1);
    let (mut line, now) = (Line::default(), Nanos::from_secs(1));
    (0..20).for_each(|number| {
        line.offer(&table, FAR, FRAME, number, now);
    });
    assert_eq!((line.frames.len(), line.leave(&table, now)), (6, None));
    table.release(VM);
    assert!(!line.offer(&table, FAR, FRAME, 20, now), "it follows the frames that wait");
    let left: Vec<u32> =
        std::iter::from_fn(|| line.leave(&table, now)).map(|(_, number)| number).collect();
    assert_eq!(left, [14, 15, 16, 17, 18, 19, 20]);
    assert!(line.offer(&table, FAR, FRAME, 21, now));
}

#[test]
fn small_frames_pass_a_line_for_a_burst_only() {
    let table = guarantees();
    limited(&table, 1);
    let now = Nanos::from_secs(1);
    at_once(&table, now);
    let Sending::Wait(Delayed { slot, .. }) = table.send(VM, FAR, FRAME, now) else {
        panic!("the bucket is empty")
    };
    let small = Size { bytes: 64, frames: 1 };
    let passed = (0..1_000).filter(|_| table.passes_line(VM, slot, small, now)).count();
    // The bucket owes 1,116 bytes, and 16,384 bytes are the burst.
    assert_eq!(passed, 239);
    let later = (0..1_000_u64).filter(|ms| {
        let now = Nanos::from_millis(1_001 + ms);
        table.passes_line(VM, slot, small, now)
    });
    // 125,000 bytes/s are more than 1,000 small frames.
    assert_eq!(later.count(), 1_000);
}

#[test]
fn a_line_that_is_never_empty_signals_and_a_short_one_does_not() {
    for (rate, expected) in [(8, 15..=32), (12, 0..=0)] {
        let table = guarantees();
        limited(&table, rate);
        let (mut signals, mut line) = (0, VecDeque::new());
        // For 2 s, 1,000 frames/s, which are 10 Mbit/s.
        for step in 0..2_000 {
            let now = Nanos::from_millis(1_000 + step);
            while let Some(slot) = line.front()
                && table.departs(VM, *slot, FRAME.bytes, now).is_ok()
            {
                line.pop_front();
            }
            match table.send(VM, FAR, FRAME, now) {
                Sending::Wait(Delayed { signals: true, slot, .. }) => {
                    signals += 1;
                    table.refuse(slot, FRAME);
                }
                Sending::Wait(Delayed { slot, .. }) => {
                    assert!(table.waits(VM, slot, FRAME));
                    line.push_back(slot);
                }
                Sending::Signal(_) => panic!("the VM has no limit"),
                Sending::Free | Sending::Pass | Sending::Ask(_) | Sending::Refuse => {}
            }
        }
        assert!(expected.contains(&signals), "{signals} at {rate} Mbit/s");
    }
}
