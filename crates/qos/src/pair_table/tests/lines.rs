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
    table.limit(VM, VmRates { default: most, send: mbps(2), receive: most });
    table.set_lines(true);
    limited(&table, 1);
    let (mut line, now) = (Line::default(), Nanos::from_secs(1));
    let offers = |line: &mut Line, frames: u32| {
        (0..frames).for_each(|number| {
            line.offer(&table, FAR, FRAME, number, now);
        });
    };
    offers(&mut line, 4);
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
    // Both buckets had 4,096 bytes. Four frames are 904 bytes more, and a question 90 bytes.
    assert_eq!(departs(first, 0), Err(Nanos(994 * 4_000)));
    assert_eq!(departs(first, 3_976), Err(Nanos(904 * 8_000 - 3_976_000)), "the pair's debt");
    assert_eq!(departs(first, 7_240), Ok(()));
    // The VM had 816 bytes then, and the pair 1.
    assert_eq!(departs(second, 7_240), Err(Nanos(434 * 4_000)));
    assert_eq!(departs(second, 7_240 + 1_736), Err(Nanos(1_249 * 8_000 - 1_736_000)));
    assert_eq!(departs(second, 7_240 + 10_000), Ok(()));
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

/// Offers frames of a pair with the limit `rate` and a full bucket at the time `now`. Returns those
/// that wait, and the number of those that pass.
fn filled(table: &PairTable, rate: BitsPerSecond, frames: u32, now: Nanos) -> (Line, u32) {
    let pair = limited(table, 1);
    table.set_sender(pair, rate, (rate, rate, rate));
    let mut line = Line::default();
    let passed = (0..frames).filter(|n| line.offer(table, FAR, FRAME, *n, now)).count();
    (line, u32::try_from(passed).unwrap())
}

/// Lets time pass until all frames have left their lines. Returns the time.
fn until_empty(table: &PairTable, mut line: Line, begin: Nanos) -> Nanos {
    let mut now = begin;
    while let Some((slot, size, _)) = line.frames.front().copied() {
        match table.departs(VM, slot, size.bytes, now) {
            Ok(()) => {
                line.frames.pop_front();
            }
            Err(wait) => now += wait,
        }
    }
    now.saturating_sub(begin)
}

#[test]
fn frames_leave_faster_and_faster_if_the_limit_ends_and_others_follow_them() {
    let table = guarantees();
    let now = Nanos::from_secs(1);
    let (mut line, passed) = filled(&table, mbps(1), 40, now);
    assert_eq!((passed, line.frames.len(), line.leave(&table, now)), (14, 26, None));
    table.release(VM);
    assert!(!line.offer(&table, FAR, FRAME, 40, now), "it follows the frames that wait");
    let mut left = Vec::new();
    // A frame took 10 ms, then takes 8.9 ms.
    for (ms, count) in [(0, 1), (8, 1), (9, 2), (100, 12), (231, 26), (232, 27)] {
        let now = now + Nanos::from_millis(ms);
        left.extend(std::iter::from_fn(|| line.leave(&table, now)).map(|(_, number)| number));
        assert_eq!(left.len(), count, "{ms} ms");
    }
    assert!(left.iter().copied().eq(14..41), "{left:?}");
    assert!(line.offer(&table, FAR, FRAME, 41, now));
    // Limits that return find no debt, and their end begins as slowly.
    table.hold(VM);
    let later = Nanos::from_millis(1_400);
    let (mut line, passed) = filled(&table, mbps(1), 40, later);
    assert_eq!(passed, 14);
    table.release(VM);
    assert_eq!(std::iter::from_fn(|| line.leave(&table, later)).count(), 1);
}

#[test]
fn a_vm_is_measured_and_its_pair_has_its_slot_until_no_frame_waits() {
    let (table, now) = (guarantees(), Nanos::from_secs(1));
    let (mut line, passed) = filled(&table, mbps(1), 40, now);
    let pair = table.sending().next().unwrap().pair;
    let ends = || {
        table.end_sender(pair);
        table.unlimit(VM);
        (table.is_limited(VM), table.is_measured(VM), table.sending().count())
    };
    assert_eq!(ends(), (false, true, 1));
    let (mut left, mut at) = (Vec::new(), now);
    // New frames follow those that wait.
    for number in 40..60 {
        assert!(!line.offer(&table, FAR, FRAME, number, at), "frame {number}");
        at += Nanos::from_millis(1);
        left.extend(std::iter::from_fn(|| line.leave(&table, at)).map(|(_, number)| number));
        assert_eq!(ends(), (false, true, 1));
    }
    while !line.frames.is_empty() {
        at += Nanos::from_millis(1);
        left.extend(std::iter::from_fn(|| line.leave(&table, at)).map(|(_, number)| number));
    }
    assert!(left.iter().copied().eq(passed..60), "{left:?}");
    assert!(at < now + Nanos::from_millis(420), "{at:?}");
    assert_eq!(ends(), (false, false, 0));
    assert_eq!(table.send(VM, FAR, FRAME, at), Sending::Free);
}

#[test]
fn a_line_leaves_as_fast_if_its_limit_returns_and_ends_again() {
    let (table, now) = (guarantees(), Nanos::from_secs(1));
    let (mut line, _) = filled(&table, mbps(1), 40, now);
    let mut leave = |us: u64| {
        let now = now + Nanos::from_micros(us);
        std::iter::from_fn(|| line.leave(&table, now)).count()
    };
    table.release(VM);
    // 8.9 ms for a frame.
    assert_eq!([0, 80_000].map(&mut leave), [1, 9]);
    table.hold(VM);
    table.release(VM);
    assert_eq!([80_000, 88_888, 88_889].map(&mut leave), [1, 0, 1]);
}

#[test]
fn lines_are_empty_four_seconds_after_the_end_of_any_limit() {
    // The time of 26 frames at the speed in each step, or of 49 frames at a high rate.
    for (rate, millis) in [(1_000, 4_000), (100_000, 1_831), (MBIT, 231), (10 * MBIT, 43)] {
        let (table, now) = (guarantees(), Nanos::from_secs(1));
        let (line, passed) = filled(&table, BitsPerSecond(rate), 200, now);
        let waiting = line.frames.len();
        assert_eq!((passed, waiting), if rate > MBIT { (50, 50) } else { (14, 27) }, "{rate}");
        table.release(VM);
        assert_eq!(until_empty(&table, line, now).0 / 1_000_000, millis, "{rate}");
    }
}

#[test]
fn a_fast_sender_neither_overtakes_its_line_nor_waits_long_after_the_end_of_its_limit() {
    let (table, begin) = (guarantees(), Nanos::from_secs(1));
    let (mut line, passed) = filled(&table, mbps(1), 40, begin);
    table.release(VM);
    let (mut left, mut most, mut first) = (Vec::new(), 0, None);
    // 10 Mbit/s. The line loses frames until its speed is as high.
    for ms in 0..4_000_u32 {
        let (now, before) = (begin + Nanos::from_millis(ms.into()), left.len());
        left.extend(std::iter::from_fn(|| line.leave(&table, now)).map(|(_, number)| number));
        if line.offer(&table, FAR, FRAME, 40 + ms, now) {
            left.push(40 + ms);
            first = first.or(Some(ms));
        }
        most = most.max(left.len() - before);
    }
    assert!(left.is_sorted() && left.starts_with(&[passed]) && left.ends_with(&[4_039]));
    assert_eq!(u32::try_from(left.len()).unwrap() + line.refused, 4_040 - passed);
    assert!(most <= 5, "a burst of {most} frames");
    assert!(first.is_some_and(|ms| (3_000..4_000).contains(&ms)), "{first:?}");
}

#[test]
fn a_line_has_room_for_the_speed_at_which_it_leaves_after_the_end_of_its_limit() {
    let (table, now) = (guarantees(), Nanos::from_secs(1));
    let (mut line, _) = filled(&table, mbps(1), 40, now);
    table.release(VM);
    (40..240).for_each(|number| {
        line.offer(&table, FAR, FRAME, number, now);
    });
    // Twice 32,768 bytes, and a part of the last frame.
    assert_eq!((line.frames.len(), line.refused), (53, 173));
    assert_eq!(table.sending().next().unwrap().refused, 173);
}

#[test]
fn the_lines_of_a_vm_together_leave_at_a_multiple_of_its_former_limit() {
    let (table, most) = (guarantees(), crate::policer::RATE_MAX);
    table.set_lines(true);
    let now = Nanos::from_secs(1);
    let pairs = [FAR, FAR + 1];
    for mac in pairs {
        table.send(VM, mac, FRAME, Nanos::from_millis(1));
    }
    for read in table.sending().collect::<Vec<_>>() {
        table.set_sender(read.pair, most, (most, most, most));
    }
    table.limit(VM, VmRates { default: most, send: mbps(1), receive: most });
    let mut lines = pairs.map(|mac| {
        let mut line = Line::default();
        (0..14).for_each(|number| {
            line.offer(&table, mac, FRAME, number, now);
        });
        line
    });
    // The VM's bucket has 4,096 bytes.
    assert_eq!([0, 1].map(|line: usize| lines[line].frames.len()), [10, 14]);
    table.release(VM);
    let mut left = 0;
    // 8.9 ms for a frame of any line.
    for ms in 0..50 {
        let now = now + Nanos::from_millis(ms);
        for line in &mut lines {
            left += std::iter::from_fn(|| line.leave(&table, now)).count();
        }
        assert_eq!(left as u64, 9 * ms / 80 + 1, "{ms} ms");
    }
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
fn a_vm_that_sends_only_small_frames_to_a_fast_pair_keeps_to_its_own_limit() {
    let (table, most) = (guarantees(), crate::policer::RATE_MAX);
    table.set_lines(true);
    limited(&table, 1_000);
    table.limit(VM, VmRates { default: most, send: mbps(1), receive: most });
    let (small, mut passed) = (Size { bytes: 84, frames: 1 }, 0);
    // For 2 s, 8.4 Mbyte/s.
    for step in 0..200 {
        let now = Nanos::from_millis(1_000 + 10 * step);
        for _ in 0..1_000 {
            let passes = match table.send(VM, FAR, small, now) {
                Sending::Wait(Delayed { slot, .. }) => table.passes_line(VM, slot, small, now),
                sent => sent != Sending::Refuse,
            };
            passed += u64::from(small.bytes) * u64::from(passes);
        }
    }
    // The bucket of the VM, its debt, 2 s of its rate, and one frame.
    let bound = 4_096 + 4_194_304 + 250_000 + 84;
    assert!((4_194_304..=bound).contains(&passed), "{passed} bytes of {bound}");
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

/// Offers as many frames as possible of the VMs `vms` for 4 s. Returns the bits of each VM in the
/// last second.
fn sent_by(table: &PairTable, vms: &[u16]) -> Vec<u64> {
    let mut bits = vec![0; vms.len()];
    let mut lines = vec![VecDeque::new(); vms.len()];
    for (millis, step) in (1_000..).zip(0..4_000) {
        let now = Nanos::from_millis(millis);
        // The VMs take turns to be the first.
        for at in (step..step + vms.len()).map(|at| at % vms.len()) {
            let mut left = 0;
            while let Some(slot) = lines[at].front().copied()
                && table.departs(vms[at], slot, FRAME.bytes, now).is_ok()
            {
                lines[at].pop_front();
                left += 1;
            }
            match table.send(vms[at], FAR, FRAME, now) {
                Sending::Wait(Delayed { slot, .. }) => {
                    if table.waits(vms[at], slot, FRAME) {
                        lines[at].push_back(slot);
                    }
                }
                Sending::Refuse => {}
                _ => left += 1,
            }
            bits[at] += if step < 3_000 { 0 } else { left * 10_000 };
        }
    }
    bits
}

#[test]
fn vms_with_the_same_account_share_its_rate() {
    let most = crate::policer::RATE_MAX;
    let begin = |shared| {
        let table = guarantees();
        table.set_lines(true);
        for vm in [VM, VM + 1] {
            table.set_first(vm, most);
            table.limit(vm, VmRates { default: most, send: mbps(2), receive: most });
            table.share_account(vm, if shared { VM } else { vm });
        }
        table
    };
    for (shared, sum) in [(true, 2_000_000), (false, 4_000_000)] {
        let bits = sent_by(&begin(shared), &[VM, VM + 1]);
        let all: u64 = bits.iter().sum();
        assert!((sum * 99 / 100..=sum * 101 / 100).contains(&all), "{shared}: {bits:?}");
        // One VM may use all of it.
        let alone = sent_by(&begin(shared), &[VM + 1])[0];
        assert!((1_980_000..=2_020_000).contains(&alone), "{shared}: {alone}");
    }
}

#[test]
fn a_vm_that_leaves_has_an_account_of_its_own_when_its_number_returns() {
    let table = guarantees();
    let most = crate::policer::RATE_MAX;
    table.set_lines(true);
    for (vm, send) in [(VM, mbps(1)), (VM + 1, mbps(3))] {
        table.set_first(vm, most);
        table.limit(vm, VmRates { default: most, send, receive: most });
        table.share_account(vm, VM);
    }
    table.forget(VM + 1);
    table.set_first(VM + 1, most);
    table.limit(VM + 1, VmRates { default: most, send: mbps(3), receive: most });
    let bits = sent_by(&table, &[VM + 1])[0];
    assert!((2_970_000..=3_030_000).contains(&bits), "{bits}");
}
