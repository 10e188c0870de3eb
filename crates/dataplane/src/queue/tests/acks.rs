//! These tests check that TCP's pure acknowledgements, and questions about pairs of VMs, do not
//! wait behind data of their queue.

use penstock_qos::pair_table::Question;

use super::*;
use crate::pairs::marker;

/// Returns a TCP segment with `data` bytes of data, which contains the number of its sending port,
/// a frame number and the DSCP of its sending port.
fn segment(port: u16, number: u32, data: u16) -> Vec<u8> {
    let mut bytes = frame(port, number, 14 + 40 + usize::from(data));
    bytes[16..18].copy_from_slice(&(40 + data).to_be_bytes());
    bytes[23] = 6;
    bytes[46..48].copy_from_slice(&[0x50, 0x10]);
    bytes
}

fn come(bench: &mut Bench, port: u16, number: u32, data: u16) {
    offer(bench, port, &segment(port, number, data));
}

fn offer(bench: &mut Bench, port: u16, bytes: &[u8]) {
    let mut batch = Batch::new();
    batch.push(bytes, Offload::NONE).expect("one frame fits");
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    put(&mut bench.queue, memory, &batch, port, bench.now);
}

/// Sends all frames, and returns their numbers in the order in which they left.
fn leave(bench: &mut Bench) -> Vec<u8> {
    let mut order = Vec::new();
    while !bench.queue.is_empty() {
        bench.now += Nanos(100_000);
        let mut batch = Batch::new();
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.load(memory, &mut batch, (1, 1), bench.now, &mut |_, _| unreachable!());
        for i in 0..bench.queue.sending().len() {
            let mut bytes = Vec::new();
            batch.copy_out(i, &mut bytes);
            order.push(bytes[5]);
        }
        bench.queue.sent(memory);
    }
    order
}

#[test]
fn acknowledgements_pass_data_in_a_queue_and_in_a_lane() {
    // Port 1 has a queue, and port 4 has a lane of queue 0.
    for port in [1, 4] {
        let mut bench = Bench::new(terms(Order::Wfq, Excess::Drop), false, true);
        for number in 0..3 {
            come(&mut bench, port, number, 800);
        }
        come(&mut bench, port, 3, 0);
        come(&mut bench, port, 4, 1);
        come(&mut bench, port, 5, 0);
        assert_eq!(leave(&mut bench), [3, 5, 0, 1, 2, 4], "port {port}");
    }
}

#[test]
fn a_question_passes_data_unless_it_counts_the_frames_before_it() {
    for (ahead, order) in [(true, [2, 0, 1, 3]), (false, [0, 1, 2, 3])] {
        // Port 4 has a lane of queue 0.
        let mut bench = Bench::new(terms(Order::Wfq, Excess::Drop), false, true);
        come(&mut bench, 4, 0, 800);
        come(&mut bench, 4, 1, 800);
        let question = marker::question(&segment(4, 2, 0), &Question::default(), ahead);
        offer(&mut bench, 4, &question.expect("it has addresses"));
        come(&mut bench, 4, 3, 800);
        assert_eq!(leave(&mut bench), order, "ahead: {ahead}");
    }
}

#[test]
fn acknowledgements_find_room_in_a_queue_that_is_full_of_data() {
    let terms = terms(Order::Wfq, Excess::Drop);
    let bound = Bound { bytes: 2_500, ..terms.bound };
    let mut bench = Bench::new(QueueTerms { bound, ..terms }, false, false);
    come(&mut bench, 1, 0, 1_000);
    come(&mut bench, 1, 1, 1_000);
    let mut batch = Batch::new();
    batch.push(&segment(1, 2, 1_000), Offload::NONE).expect("one frame fits");
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    let lost = &mut |_, _| unreachable!("no other frame makes room");
    let refused = bench.queue.push(memory, (&batch, 0), &source(1), bench.now, lost);
    assert!(refused.is_err(), "more data than the bound");
    come(&mut bench, 1, 3, 0);
    assert_eq!(leave(&mut bench), [3, 0, 1]);
}
