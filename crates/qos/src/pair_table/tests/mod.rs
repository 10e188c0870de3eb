use super::*;

mod lines;

use lines::Line;

const VM: u16 = 2;
const FAR: u64 = 0x5200_0000_0007;
const MBIT: u64 = 1_000_000;
const FRAME: Size = Size { bytes: 1_250, frames: 1 };

fn mbps(rate: u64) -> BitsPerSecond {
    BitsPerSecond(rate * MBIT)
}

/// Returns a table with the VM 2 under limits, with a default rate of 10 Mbit/s.
fn table() -> PairTable {
    let table = PairTable::new(4, 9);
    table.limit(VM, VmRates { default: mbps(10), send: mbps(1_000), receive: mbps(10) });
    table
}

/// Sends frames for `millis` ms, from the time `from` on, at 1 Gbit/s. Returns the bits per second
/// that passed after the bucket's burst.
fn flood(table: &PairTable, from: u64, millis: u64, mac: u64) -> u64 {
    let mut bits = 0;
    for step in 0..millis * 100 {
        let now = Nanos(from * 1_000_000 + step * 10_000);
        let passes = !matches!(table.send(VM, mac, FRAME, now), Sending::Refuse);
        if passes && step >= millis * 50 {
            bits += 10_000;
        }
    }
    bits * 2_000 / millis
}

#[test]
fn a_key_names_one_vm_and_one_address() {
    let key = PairKey::new(0x1234, FAR).unwrap();
    assert_eq!((key.port(), key.mac()), (0x1234, FAR));
    assert_eq!(PairKey::new(1, 0), None);
    assert_eq!(PairKey::new(1, 0x0100_0000_0000), None, "a group");
    assert_eq!(PairKey::new(1, 1 << 48), None);
}

#[test]
fn a_pair_has_the_vms_default_rate_until_its_own_is_set() {
    let table = table();
    let rate = flood(&table, 1, 1_000, FAR);
    assert!((9_900_000..10_100_000).contains(&rate), "{rate}");
    let pair = table.sending().next().unwrap();
    assert_eq!((pair.pair.key.mac(), pair.asked), (FAR, 0));
    table.set_sender(pair.pair, mbps(300), (mbps(270), mbps(50), mbps(60)));
    let rate = flood(&table, 1_001, 1_000, FAR);
    assert!((297_000_000..303_000_000).contains(&rate), "{rate}");
    // Another pair still has the default rate.
    let rate = flood(&table, 2_001, 1_000, FAR + 1);
    assert!((9_900_000..10_100_000).contains(&rate), "{rate}");
    table.set_sender(pair.pair, mbps(20), (mbps(20), mbps(20), mbps(20)));
    let rate = flood(&table, 3_001, 1_000, FAR);
    assert!((19_800_000..20_200_000).contains(&rate), "a lower rate holds, too: {rate}");
}

#[test]
fn a_vm_without_limits_is_neither_counted_nor_refused() {
    let table = table();
    let huge = Size { bytes: 1 << 28, frames: 1 };
    for ms in 0..10 {
        assert_eq!(table.send(1, FAR, huge, Nanos::from_millis(ms)), Sending::Free);
        assert!(table.receive(1, FAR, huge, true, Nanos::from_millis(ms)));
    }
    assert_eq!(table.send(900, FAR, huge, Nanos(1)), Sending::Free);
    assert_eq!(table.asked(1, FAR, &Question::default()), None);
    table.unlimit(VM);
    assert_eq!(table.send(VM, FAR, huge, Nanos(1)), Sending::Free);
    assert_eq!((table.sending().count(), table.limited().count()), (0, 0));
}

#[test]
fn no_vm_fills_the_table_and_a_pair_without_a_slot_has_the_default_rate() {
    let table = PairTable::new(40, 9);
    let rates = VmRates { default: mbps(10), send: mbps(1_000), receive: mbps(10) };
    (0..40).for_each(|port| table.limit(port, rates));
    let tiny = Size { bytes: 60, frames: 1 };
    for mac in 1..=1_000 {
        table.send(0, mac, tiny, Nanos(1));
    }
    assert_eq!(table.sending().count(), PAIRS_OF_VM_MAX as usize);
    for port in 1..40 {
        (1..=300).for_each(|mac| {
            table.send(port, mac, tiny, Nanos(1));
        });
    }
    let full = table.sending().count();
    assert!((3_500..=PAIRS_MAX).contains(&full), "{full}");
    let free = |mac: &u64| table.sending().all(|pair| pair.pair.key.mac() != *mac);
    let lost = (1..=1_000).find(free).unwrap();
    let rate = flood_of(&table, 0, lost);
    assert!((9_900_000..10_100_000).contains(&rate), "{rate}");
    // Freed slots and the VM's places are used again.
    for pair in table.sending().collect::<Vec<_>>() {
        table.end_sender(pair.pair);
        table.end_sender(pair.pair);
    }
    table.send(0, 5_000, tiny, Nanos::from_secs(9));
    assert!(table.sending().any(|pair| pair.pair.key.mac() == 5_000));
}

fn flood_of(table: &PairTable, port: u16, mac: u64) -> u64 {
    let mut bits = 0;
    for step in 0..100_000 {
        let now = Nanos(1_000_000 + step * 10_000);
        if table.send(port, mac, FRAME, now) == Sending::Pass && step >= 50_000 {
            bits += 10_000;
        }
    }
    bits * 2
}

/// Sends until a question is due, and returns the question.
fn ask(table: &PairTable, ms: u64) -> Question {
    match table.send(VM, FAR, FRAME, Nanos::from_millis(ms)) {
        Sending::Ask(slot) => table.question(slot).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn asking() -> PairTable {
    let table = table();
    table.send(VM, FAR, FRAME, Nanos::from_millis(1));
    let pair = table.sending().next().unwrap().pair;
    table.set_sender(pair, mbps(300), (mbps(270), mbps(50), mbps(60)));
    table
}

#[test]
fn a_question_is_due_once_a_period_and_has_all_that_was_sent() {
    let table = asking();
    let first = ask(&table, 2);
    assert_eq!((first.number, first.sent), (1, 2));
    assert_eq!((first.rate, first.part, first.want), (mbps(270), mbps(50), mbps(60)));
    assert_eq!(table.send(VM, FAR, FRAME, Nanos::from_millis(51)), Sending::Pass);
    let second = ask(&table, 52);
    assert_eq!((second.number, second.sent), (2, 4));
}

#[test]
fn a_pair_has_a_bit_for_each_of_its_flows_and_its_questions_report_their_number() {
    let table = asking();
    let now = Nanos::from_millis(1);
    assert_eq!(table.sending().next().unwrap().flows, 0, "no flow is known");
    for flow in [0, 1, 5 << 26, 5 << 26 | 7, u32::MAX] {
        table.send_flow(VM, FAR, Some(flow), FRAME, now);
    }
    let read = table.sending().next().unwrap();
    assert_eq!(read.flows, 1 << 63 | 1 << 5 | 1);
    assert_eq!(table.sending().next().unwrap().flows, 0, "since the last reading");
    table.set_flows(read.pair, 3);
    let asked = ask(&table, 60);
    assert_eq!(asked.flows, 3);
    table.asked(VM, FAR, &asked);
    assert_eq!(table.receiving().next().unwrap().flows, 3);
    table.send_flow(VM, FAR, Some(0), FRAME, now);
    table.end_sender(read.pair);
    table.send(VM, FAR, FRAME, Nanos::from_millis(61));
    let again = table.sending().next().unwrap();
    assert!(again.pair.epoch != read.pair.epoch && again.flows == 0, "{again:?}");
    table.set_flows(read.pair, 9);
    table.set_sender(again.pair, mbps(300), (mbps(270), mbps(50), mbps(60)));
    assert_eq!(ask(&table, 120).flows, 0, "a new pair, and an old number");
}

#[test]
fn a_pair_near_its_rate_signals_once_in_ten_milliseconds() {
    let table = table();
    table.send(VM, FAR, FRAME, Nanos::from_millis(1));
    let pair = table.sending().next().unwrap();
    table.set_sender(pair.pair, mbps(100), (mbps(100), mbps(100), mbps(100)));
    // The bucket holds 625,000 bytes, and 1 Gbit/s take 112,500 bytes of them in each ms.
    let mut signals = Vec::new();
    for step in 0..5_000_u64 {
        let now = Nanos(2_000_000 + step * 10_000);
        if let Sending::Signal(slot) = table.send(VM, FAR, FRAME, now) {
            signals.push(step / 100);
            table.take_back(VM, slot, FRAME, true);
        }
    }
    assert_eq!(signals, [2, 12, 22, 32, 42]);
    let read = table.sending().next().unwrap();
    assert!(read.refused > 3_000, "{}", read.refused);
    // What was taken back is neither counted nor paid for.
    let passed = (read.bytes - pair.bytes) / 1_250;
    assert_eq!(passed + read.refused, 5_000);
    assert!((995..=1_005).contains(&passed), "{passed}");
}

#[test]
fn a_slow_pair_loses_at_most_one_of_thirty_two_frames_to_signals() {
    let table = table();
    table.send(VM, FAR, FRAME, Nanos::from_millis(1));
    let pair = table.sending().next().unwrap().pair;
    table.set_sender(pair, mbps(5), (mbps(5), mbps(5), mbps(5)));
    let (mut passed, mut signals) = (0, 0);
    for step in 0..200_000_u64 {
        match table.send(VM, FAR, FRAME, Nanos(2_000_000 + step * 10_000)) {
            Sending::Refuse => {}
            Sending::Signal(slot) => {
                signals += 1;
                table.take_back(VM, slot, FRAME, true);
            }
            Sending::Pass | Sending::Ask(_) | Sending::Free => passed += 1,
            Sending::Wait(_) => unreachable!("frames above a rate are dropped"),
        }
    }
    // 2 s at 500 frames/s, and the bucket's burst.
    assert!((1_190..=1_220).contains(&passed), "{passed}");
    assert!((30..=passed / 31).contains(&signals), "{signals} of {passed}");
}

#[test]
fn an_impossible_answer_is_ignored() {
    let table = asking();
    let question = ask(&table, 2);
    let good = Answer {
        number: question.number,
        epoch: question.epoch,
        sent: question.sent,
        receive_epoch: 1,
        received: 2,
        marked: 1,
        part: mbps(40),
    };
    let wrong = [
        Answer { number: 0, ..good },
        Answer { number: 2, ..good },
        Answer { number: u32::MAX, ..good },
        Answer { epoch: question.epoch + 1, ..good },
        Answer { sent: good.sent + 1, ..good },
        Answer { marked: 3, ..good },
    ];
    for answer in wrong {
        assert!(!table.answered(VM, FAR, &answer), "{answer:?}");
    }
    assert!(!table.answered(VM, FAR + 1, &good), "another pair");
    assert!(!table.answered(3, FAR, &good), "another VM");
    assert_eq!(table.sending().next().unwrap().answer, None);
    assert!(table.answered(VM, FAR, &good));
    assert!(!table.answered(VM, FAR, &good), "once only");
    assert_eq!(table.sending().next().unwrap().answer, Some(good));
}

#[test]
fn a_receiver_counts_from_the_first_question_and_answers_when_it_knows_its_part() {
    let table = table();
    let now = Nanos::from_millis(1);
    assert!(table.receive(VM, FAR, FRAME, false, now));
    assert_eq!(table.receiving().count(), 0, "frames alone take no slot");
    let question = Question { number: 1, epoch: 7, sent: 12, want: mbps(5), ..Question::default() };
    assert_eq!(table.asked(VM, FAR, &question), None);
    let pair = table.receiving().next().unwrap();
    assert_eq!((pair.questions, pair.want), (1, mbps(5)));
    table.set_receiver(pair.pair, mbps(30));
    assert!(table.receive(VM, FAR, FRAME, true, now));
    assert!(table.receive(VM, FAR, Size { bytes: 5_000, frames: 4 }, false, now));
    let answer = table.asked(VM, FAR, &Question { number: 2, ..question }).unwrap();
    assert_eq!((answer.number, answer.epoch, answer.sent), (2, 7, 12));
    assert_eq!((answer.received, answer.marked, answer.part), (5, 1, mbps(30)));
    table.end_receiver(pair.pair);
    assert_eq!(table.asked(VM, FAR, &question), None, "a new pair");
    let again = table.receiving().next().unwrap().pair;
    assert!(again.epoch != pair.pair.epoch);
}

#[test]
fn a_vm_receives_no_more_than_its_rate() {
    let table = table();
    let mut bits = 0;
    for step in 0..100_000_u64 {
        let passes = table.receive(VM, FAR, FRAME, false, Nanos(step * 10_000));
        if passes && step >= 50_000 {
            bits += 10_000;
        }
    }
    assert!((9_900_000..10_100_000).contains(&(bits * 2)), "{bits}");
}

#[test]
fn a_vm_cannot_save_the_bursts_of_many_pairs() {
    let table = PairTable::new(4, 9);
    table.limit(VM, VmRates { default: mbps(10), send: mbps(10), receive: mbps(10) });
    let macs = 1..=u64::from(PAIRS_OF_VM_MAX);
    for mac in macs.clone() {
        table.send(VM, mac, FRAME, Nanos(1));
    }
    let pairs: Vec<_> = table.sending().map(|read| read.pair).collect();
    assert_eq!(pairs.len(), PAIRS_OF_VM_MAX as usize);
    for pair in pairs {
        table.set_sender(pair, mbps(1), (mbps(1), mbps(1), mbps(1)));
    }
    // All pairs save tokens for a long time, and then send as much as they can at one moment.
    for at in [Nanos::from_secs(100), Nanos::from_secs(200)] {
        assert_eq!(table.wait(VM, at), Nanos::ZERO);
        let (mut free, mut all) = (0_u32, 0_u32);
        for mac in macs.clone().flat_map(|mac| [mac; 200]) {
            free += u32::from(table.wait(VM, at) == Nanos::ZERO);
            all += u32::from(!matches!(table.send(VM, mac, FRAME, at), Sending::Refuse));
        }
        // The VM's bucket holds 262,144 bytes. A worker that does not let the VM wait could send
        // 4 MiB more.
        assert_eq!(free, 210);
        assert!((3_560..=3_566).contains(&all), "{all}");
        assert_eq!(table.wait(VM, at), PERIOD, "at most until the rates change");
    }
}

#[test]
fn a_vm_pays_for_its_questions() {
    let table = PairTable::new(4, 9);
    table.limit(VM, VmRates { default: mbps(400), send: mbps(10), receive: mbps(10) });
    table.send(VM, FAR, FRAME, Nanos::from_millis(1));
    let pair = table.sending().next().unwrap().pair;
    table.set_sender(pair, mbps(400), (mbps(400), mbps(400), mbps(400)));
    let at = Nanos::from_millis(60);
    let asked = (0..210).filter(|_| matches!(table.send(VM, FAR, FRAME, at), Sending::Ask(_)));
    assert_eq!(asked.count(), 1);
    // 210 frames and a question are 262,566 bytes, and the bucket had 262,144.
    assert_eq!(table.wait(VM, at), Nanos(422 * 800));
}

#[test]
fn a_vm_waits_until_its_debt_is_paid() {
    let table = PairTable::new(4, 9);
    table.limit(VM, VmRates { default: mbps(400), send: mbps(10), receive: mbps(10) });
    let at = Nanos::from_millis(1);
    for _ in 0..212 {
        assert_eq!(table.send(VM, FAR, FRAME, at), Sending::Pass);
    }
    // 212 frames are 265,000 bytes, and the bucket had 262,144. A byte takes 800 ns.
    assert_eq!(table.wait(VM, at), Nanos(2_856 * 800));
    assert_eq!(table.wait(VM, Nanos(at.0 + 2_856 * 800)), Nanos::ZERO);
    assert_eq!(table.wait(1, at), Nanos::ZERO, "another VM");
    table.unlimit(VM);
    assert_eq!(table.wait(VM, at), Nanos::ZERO);
    table.limit(VM, VmRates { default: mbps(400), send: mbps(10), receive: mbps(10) });
    assert_eq!(table.wait(VM, at), Nanos::ZERO, "it may be another VM");
}

#[test]
fn a_vm_that_leaves_takes_its_pairs_with_it_and_no_others() {
    let (table, at) = (asking(), Nanos::from_millis(1));
    assert_eq!(table.asked(VM, FAR, &Question::default()), None);
    table.limit(1, VmRates { default: mbps(10), send: mbps(10), receive: mbps(10) });
    table.send(1, FAR, FRAME, at);
    assert_eq!((table.sending().count(), table.receiving().count()), (2, 1));
    table.forget(VM);
    assert_eq!((table.is_limited(VM), table.is_measured(VM)), (false, false));
    let senders: Vec<u16> = table.sending().map(|read| read.pair.key.port()).collect();
    assert_eq!((senders, table.receiving().count()), (vec![1], 0));
    // The port may have as many pairs as before.
    table.limit(VM, VmRates { default: mbps(10), send: mbps(10), receive: mbps(10) });
    (0..300).for_each(|pair| {
        table.send(VM, FAR + pair, FRAME, at);
    });
    assert_eq!(table.sending().count(), 1 + PAIRS_OF_VM_MAX as usize);
}

fn guarantees() -> PairTable {
    let table = PairTable::with_limits(4, 9, PairLimits::Guarantees);
    let most = crate::policer::RATE_MAX;
    table.limit(VM, VmRates { default: most, send: most, receive: most });
    table
}

/// Sends a frame to begin a pair, and limits the pair to `rate` Mbit/s.
fn limited(table: &PairTable, rate: u64) -> PairRef {
    table.send(VM, FAR, FRAME, Nanos::from_millis(1));
    let pair = table.sending().next().unwrap().pair;
    table.set_sender(pair, mbps(rate), (mbps(rate), mbps(rate), mbps(rate)));
    pair
}

/// Whether a frame passes at the time `at`.
fn passes(table: &PairTable, size: Size, at: Nanos) -> bool {
    match table.send(VM, FAR, size, at) {
        Sending::Free | Sending::Pass | Sending::Ask(_) | Sending::Signal(_) => true,
        Sending::Wait(_) | Sending::Refuse => false,
    }
}

/// Returns how many of 100 frames pass at one moment.
fn at_once(table: &PairTable, at: Nanos) -> usize {
    (0..100_u32).filter(|_| passes(table, FRAME, at)).count()
}

#[test]
fn a_slow_guarantee_has_a_shallow_bucket_that_passes_a_large_segment() {
    let table = guarantees();
    limited(&table, 1);
    // 16,384 bytes are 13 frames and a part of the next.
    assert_eq!(at_once(&table, Nanos::from_secs(1)), 14);
    let segment = Size { bytes: 65_000, frames: 45 };
    assert!(passes(&table, segment, Nanos::from_secs(10)));
    // A byte takes 8 us, and 48,616 bytes are missing.
    let waits = |ms| matches!(table.send(VM, FAR, FRAME, Nanos::from_millis(ms)), Sending::Wait(_));
    assert!(waits(10_000) && waits(10_388));
    assert!(!waits(10_389));
}

#[test]
fn a_lower_guarantee_leaves_no_deep_bucket() {
    let table = guarantees();
    let pair = limited(&table, 1_000);
    assert_eq!(at_once(&table, Nanos::from_secs(1)), 100);
    table.set_sender(pair, mbps(1), (mbps(1), mbps(1), mbps(1)));
    assert_eq!(at_once(&table, Nanos::from_millis(1_100)), 14);
    // The bucket of the whole VM shrinks, too: 4,096 bytes are 3 frames and a part of the next.
    let most = crate::policer::RATE_MAX;
    table.limit(VM, VmRates { default: most, send: mbps(1), receive: most });
    let at = Nanos::from_secs(2);
    assert_eq!((table.wait(VM, at), table.batch_limit(VM)), (Nanos::ZERO, 3));
    (0..4).for_each(|_| assert!(passes(&table, FRAME, at)));
    // Four frames and a question of 90 bytes on a link are 994 bytes too much.
    assert_eq!((table.wait(VM, at), table.batch_limit(VM)), (Nanos(994 * 8_000), 1));
    let pair = PairKey::new(VM, FAR).unwrap();
    assert!(table.announces(pair, 1, 46, at));
    assert_eq!(table.wait(VM, at), Nanos(1_084 * 8_000), "an announcement of 90 bytes");
    assert_eq!(table.batch_limit(1), usize::MAX, "another VM");
}

#[test]
fn a_vm_with_one_pair_waits_and_loses_only_signals() {
    let table = guarantees();
    let pair = limited(&table, 2);
    // The bucket of a pair is a little faster than that of the VM.
    table.set_sender(pair, BitsPerSecond(2_060_000), (mbps(2), mbps(2), mbps(2)));
    let most = crate::policer::RATE_MAX;
    table.limit(VM, VmRates { default: most, send: mbps(2), receive: most });
    let (mut sent, mut asked, mut signals) = (0, 0, Vec::new());
    for step in 0..100_000_u64 {
        let now = Nanos(1_000_000_000 + step * 100_000);
        if table.wait(VM, now) > Nanos::ZERO {
            continue;
        }
        for _ in 0..table.batch_limit(VM).min(32) {
            match table.send(VM, FAR, FRAME, now) {
                Sending::Pass => {}
                Sending::Ask(slot) => {
                    let _ = table.question(slot);
                    asked += 1;
                }
                Sending::Signal(slot) => {
                    table.take_back(VM, slot, FRAME, true);
                    signals.push(step / 10);
                    continue;
                }
                other => panic!("{other:?} after {sent} frames"),
            }
            sent += 1;
        }
    }
    // The first signal comes after 64 frames, of which 59 take 5 ms each, and later ones as well.
    assert!((290..=310).contains(&signals[0]), "{signals:?}");
    assert!((28..=34).contains(&signals.len()), "{signals:?}");
    // 10 s at 200 frames/s, with a question every 100 ms, and 10 questions every 50 ms before.
    assert!((1_980..=2_005).contains(&sent), "{sent}");
    assert!((99..=106).contains(&asked), "{asked}");
}

#[test]
fn a_new_pair_has_the_first_rate_and_asks_at_once_and_soon_again() {
    let table = guarantees();
    table.set_first(VM, mbps(1));
    let begin = Nanos::from_secs(1);
    let Sending::Ask(slot) = table.send(VM, FAR, FRAME, begin) else { panic!("no question") };
    let first = table.question(slot).unwrap();
    assert_eq!((first.number, first.rate, first.want.0), (1, mbps(1), u64::MAX));
    // 16,384 bytes are 14 frames.
    assert_eq!(at_once(&table, begin), 13);
    let mut asked = Vec::new();
    for ms in 1..2_000 {
        let sent = table.send(VM, FAR, FRAME, Nanos(begin.0 + ms * 1_000_000));
        if matches!(sent, Sending::Ask(_) | Sending::Wait(Delayed { asks: true, .. })) {
            asked.push((ms, table.question(slot).unwrap()));
        }
    }
    let times: Vec<u64> = asked.iter().map(|(ms, _)| *ms).collect();
    assert_eq!(times[..12], [50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700]);
    let (_, question) = asked[asked.len() - 1];
    let answer = Answer { number: question.number, epoch: question.epoch, ..Answer::default() };
    assert!(table.answered(VM, FAR, &answer));
    // Another pair begins with the first rate of that time.
    table.set_first(VM, mbps(8));
    let at = Nanos::from_secs(4);
    assert!(matches!(table.send(VM, FAR + 1, FRAME, at), Sending::Ask(_)));
    let passing = (0..100).filter(|_| {
        let sent = table.send(VM, FAR + 1, FRAME, at);
        !matches!(sent, Sending::Wait(_) | Sending::Refuse)
    });
    assert_eq!(passing.count(), 39, "50,000 bytes are 40 frames");
}

#[test]
fn a_vm_that_pauses_gets_no_signals() {
    let table = guarantees();
    limited(&table, 1_000);
    let most = crate::policer::RATE_MAX;
    table.limit(VM, VmRates { default: most, send: mbps(2), receive: most });
    // 180 frames/s of 200, one at a time.
    for step in 0..1_000_u64 {
        let now = Nanos(1_000_000_000 + step * 5_555_555);
        assert_eq!(table.wait(VM, now), Nanos::ZERO);
        let sent = table.send(VM, FAR, FRAME, now);
        assert!(matches!(sent, Sending::Pass | Sending::Ask(_)), "{sent:?} in step {step}");
    }
}

#[test]
fn a_measured_vm_asks_and_answers_without_limits_until_it_is_held() {
    let table = PairTable::with_limits(4, 9, PairLimits::Guarantees);
    let most = crate::policer::RATE_MAX;
    let rates = VmRates { default: most, send: most, receive: most };
    table.hold(VM);
    assert_eq!(table.send(VM, FAR, FRAME, Nanos(1)), Sending::Free, "nothing is known");
    table.measure(VM, rates);
    assert!(table.is_measured(VM) && !table.is_limited(VM));
    assert_eq!(table.send(VM, FAR, FRAME, Nanos::from_millis(1)), Sending::Pass, "nothing to tell");
    let pair = table.sending().next().unwrap().pair;
    table.set_sender(pair, mbps(1), (mbps(1), mbps(1), mbps(1)));
    let at = Nanos::from_millis(200);
    let Sending::Ask(slot) = table.send(VM, FAR, FRAME, at) else { panic!("no question") };
    let question = table.question(slot).unwrap();
    let part = mbps(1);
    let answer = Answer { number: 1, epoch: question.epoch, sent: 2, part, ..Answer::default() };
    assert!(table.answered(VM, FAR, &answer));
    assert_eq!(table.asked(VM, FAR, &question), None, "the part is not known yet");
    table.set_receiver(table.receiving().next().unwrap().pair, part);
    assert_eq!(table.asked(VM, FAR, &question).map(|answer| answer.part), Some(part));
    let at = Nanos::from_secs(1);
    assert_eq!((at_once(&table, at), table.sending().next().unwrap().bytes), (100, 127_500));
    assert_eq!((table.wait(VM, at), table.batch_limit(VM)), (Nanos::ZERO, usize::MAX));
    // The bucket is full when the limits come into force: 16,384 bytes are 13 frames and a part.
    table.hold(VM);
    assert_eq!((at_once(&table, at), table.is_limited(VM)), (14, true));
    table.arrived(VM, 1_000);
    table.arrived(VM + 1, 1_000);
    table.release(VM);
    assert_eq!(at_once(&table, at), 100);
    table.arrived(VM, 1_000);
    let arrivals: Vec<_> = table.arrivals().collect();
    assert_eq!((arrivals, table.limited().count()), (vec![(VM, 1_000)], 0));
    table.unlimit(VM);
    assert_eq!(table.send(VM, FAR, FRAME, at), Sending::Free);
    assert!(!table.answered(VM, FAR, &Answer { number: 1, ..answer }));
}

proptest::proptest! {
    #[test]
    fn in_any_second_a_pair_sends_no_more_than_its_limits_and_a_small_burst(
        rates in proptest::collection::vec(1..20_u64, 30),
        sizes in proptest::collection::vec(64..3_000_u32, 16),
    ) {
        let table = guarantees();
        let pair = limited(&table, rates[0]);
        let (mut bits, mut allowed, mut line) = (Vec::new(), Vec::new(), Line::default());
        let all = sizes.iter().chain(&sizes[..8]);
        let offered: u64 = all.map(|bytes| u64::from(*bytes) * 8 * 50).sum();
        for (period, rate) in (0_u64..).zip(&rates) {
            table.set_sender(pair, mbps(*rate), (mbps(*rate), mbps(*rate), mbps(*rate)));
            let mut passed = 0;
            // In each ms, the VM offers 24 frames.
            for step in 0..50 {
                let now = Nanos::from_millis(1_000 + 50 * period + step);
                while let Some((size, _)) = line.leave(&table, now) {
                    passed += u64::from(size.bytes) * 8;
                }
                for bytes in sizes.iter().chain(&sizes[..8]).copied() {
                    let size = Size { bytes, frames: 1 };
                    if line.offer(&table, FAR, size, 0, now) {
                        passed += u64::from(bytes) * 8;
                    }
                }
            }
            bits.push(passed);
            allowed.push(rate * MBIT / 20);
        }
        // A VM that offers more uses each period's limit. A frame may be late by 1 ms.
        let slow = |(_, allowed): &(&u64, &u64)| **allowed < offered / 2;
        for (bits, allowed) in bits.iter().zip(&allowed).skip(1).filter(slow) {
            let least = allowed - allowed / 50 - 3_000 * 8;
            proptest::prop_assert!(*bits >= least, "{} of {}", bits, allowed);
        }
        // The largest depth is that of 19 Mbit/s, and one frame may exceed the tokens.
        let burst = (19 * MBIT / 160 + 3_000) * 8;
        for (bits, allowed) in bits.windows(20).zip(allowed.windows(20)) {
            let (bits, allowed) = (bits.iter().sum::<u64>(), allowed.iter().sum::<u64>());
            proptest::prop_assert!(bits <= allowed + burst, "{} of {}", bits, allowed);
        }
    }
}

#[test]
fn slow_pairs_ask_seldom_and_sooner_when_they_become_faster() {
    let table = guarantees();
    let pair = limited(&table, 1);
    table.ask_every(pair, Nanos::from_millis(500));
    let asks = |from: u64, to: u64| -> Vec<u64> {
        let asks = |ms: &u64| {
            let sent = table.send(VM, FAR, FRAME, Nanos::from_millis(*ms));
            let slot = match sent {
                Sending::Ask(slot) | Sending::Wait(Delayed { slot, asks: true, .. }) => slot,
                _ => return false,
            };
            table.question(slot).is_some()
        };
        (from..to).filter(asks).collect()
    };
    // The first ten questions follow each other sooner, because nobody answers.
    assert_eq!(asks(1_000, 1_500).len(), 10);
    let later = asks(1_500, 4_000);
    assert!(later.windows(2).all(|two| two[1] - two[0] == 500), "{later:?}");
    let last = later[later.len() - 1];
    assert!(asks(4_000, last + 300).is_empty());
    table.ask_every(pair, Nanos(1));
    assert_eq!(asks(last + 300, last + 450), [last + 300, last + 400]);
}
