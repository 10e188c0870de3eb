//! Tests of an AF_XDP queue. The test acts as the kernel: the test fills buffers, sends frames, and
//! makes false reports.

use super::*;
use crate::port::xdp::ring::tests::pair;
use crate::port::xdp::ring::{Consumer, Producer};
use proptest::prelude::*;

const RECEIVE: u32 = 64;
const SEND: u32 = 32;
const TX: u32 = 16;
/// Bytes that the kernel leaves free in front of a received frame.
const FRONT: u32 = super::super::umem::HEADROOM;

struct Kernel {
    fill: Consumer<u64>,
    completion: Producer<u64>,
    rx: Producer<libc::xdp_desc>,
    tx: Consumer<libc::xdp_desc>,
    /// Addresses of buffers that the simulated kernel has sent but not yet reported.
    sent: Vec<u64>,
}

fn rig() -> (XdpQueue, Kernel) {
    let umem = Umem::new(11, RECEIVE + SEND).unwrap();
    let (fill, kernel_fill) = pair(RECEIVE);
    let (kernel_completion, completion) = pair(SEND);
    let (kernel_rx, rx) = pair(RECEIVE);
    let (tx, kernel_tx) = pair(TX);
    let mut rings = Rings { fill, completion, rx, tx };
    rings.fill_up(&umem);
    let socket = std::fs::File::open("/dev/null").unwrap().into();
    let queue = XdpQueue::new(
        Opened { socket, umem, rings, zero_copy: false },
        LinkState::fixed(true, 1518),
        true,
    );
    let (completion, tx) = (kernel_completion, kernel_tx);
    (queue, Kernel { fill: kernel_fill, completion, rx: kernel_rx, tx, sent: Vec::new() })
}

impl Kernel {
    /// Puts a received frame into a buffer and the rx ring. Returns false if the simulated kernel
    /// has no buffer.
    fn deliver(&mut self, queue: &XdpQueue, frame: &[u8]) -> bool {
        let Some(address) = self.fill.pop() else { return false };
        self.fill.release();
        let (buffer, _) = queue.umem.locate(address).unwrap();
        // SAFETY: the buffer belongs to the kernel, which is this test. WHY: the queue is borrowed.
        unsafe {
            let to = queue.umem.at(buffer, FRONT);
            core::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len());
        }
        let len = u32::try_from(frame.len()).unwrap();
        self.say(queue.umem.address(buffer, FRONT), len, 0);
        true
    }

    /// Writes a valid or invalid descriptor into the rx ring.
    fn say(&mut self, addr: u64, len: u32, options: u32) {
        assert!(self.rx.push(libc::xdp_desc { addr, len, options }));
        self.rx.publish();
    }

    /// Takes up to `most` frames from the tx ring, as the kernel does to send them.
    fn take(&mut self, queue: &XdpQueue, most: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < most
            && let Some(d) = self.tx.pop()
        {
            let (buffer, start) = queue.umem.locate(d.addr).unwrap();
            let mut frame = vec![0; d.len as usize];
            // SAFETY: as in `deliver`. WHY: as in `deliver`.
            unsafe {
                let from = queue.umem.at(buffer, start);
                core::ptr::copy_nonoverlapping(from, frame.as_mut_ptr(), frame.len());
            }
            frames.push(frame);
            self.sent.push(d.addr);
        }
        self.tx.release();
        frames
    }

    fn complete(&mut self) {
        for address in self.sent.drain(..) {
            assert!(self.completion.push(address));
        }
        self.completion.publish();
    }

    /// Number of buffers into which the simulated kernel could receive now.
    fn buffers(&mut self) -> u32 {
        // A ring may work with a stale index, but this test must find every buffer.
        let mut n = 0;
        let mut all = Vec::new();
        while let Some(address) = self.fill.pop() {
            n += 1;
            all.push(address);
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n as usize, "the queue gave a buffer to the kernel twice");
        n
    }
}

/// Makes frame number `n` of `len` bytes. Every byte of the frame depends on `n`, so that tests
/// recognise the frame.
fn frame(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + n * 13 + 1) % 251).unwrap()).collect()
}

fn bytes(batch: &Batch, i: usize) -> Vec<u8> {
    let mut out = Vec::new();
    batch.copy_out(i, &mut out);
    out
}

fn receive(queue: &mut XdpQueue, batch: &mut Batch) {
    batch.clear();
    queue.rx_burst(batch);
}

fn done(queue: &mut XdpQueue) {
    queue.rx_done();
    queue.publish();
}

#[test]
fn the_backlog_counts_frames_that_came_during_a_burst() {
    let (mut queue, mut kernel) = rig();
    let mut batch = Batch::new();
    assert_eq!(queue.backlog(), Some(0));
    for n in 0..8 {
        assert!(kernel.deliver(&queue, &frame(n, 60)));
    }
    batch.limit(3);
    queue.rx_burst(&mut batch);
    assert_eq!((batch.len(), queue.backlog()), (3, Some(5)));
    assert!(kernel.deliver(&queue, &frame(8, 60)));
    assert_eq!(queue.backlog(), Some(6));
    done(&mut queue);
}

#[test]
fn a_waiting_frame_can_be_read_and_changed_until_it_leaves() {
    let (mut queue, mut kernel) = rig();
    let (mut batch, mut copy) = (Batch::new(), Batch::new());
    batch.push(&frame(7, 900), Offload::NONE).unwrap();
    let held = Buffers::fill(&mut queue, &batch, 0).unwrap();
    assert!(queue.read(held, &mut copy));
    assert_eq!(bytes(&copy, 0), frame(7, 900));
    let mut changed = frame(7, 900);
    changed[15] = !changed[15];
    Buffers::bytes(&mut queue, held).unwrap()[15] = changed[15];
    assert_eq!(queue.send(&[held]).frames, 1);
    copy.clear();
    assert!(!queue.read(held, &mut copy), "the kernel has the buffer");
    assert!(Buffers::bytes(&mut queue, held).is_none());
    queue.publish();
    assert_eq!(kernel.take(&queue, 1), [changed]);
}

#[test]
fn frames_come_whole_and_their_buffers_go_back_many_times() {
    let (mut queue, mut kernel) = rig();
    let mut batch = Batch::new();
    for round in 0..50 {
        let lens = [14, 60, 128, 129, 1514, 1792, 61, 700];
        for (n, len) in lens.into_iter().enumerate() {
            assert!(kernel.deliver(&queue, &frame(round + n, len)));
        }
        assert_eq!(queue.pending(Cycles(1)), Pending::Yes);
        receive(&mut queue, &mut batch);
        for (n, len) in lens.into_iter().enumerate() {
            assert_eq!(bytes(&batch, n), frame(round + n, len));
        }
        assert_eq!((batch.len(), batch.errors), (8, 0));
        done(&mut queue);
    }
    assert_eq!(queue.pending(Cycles(2)), Pending::No);
    assert_eq!(kernel.buffers(), RECEIVE);
}

#[test]
fn what_makes_no_sense_is_counted_and_costs_no_buffer() {
    let (mut queue, mut kernel) = rig();
    let mut batch = Batch::new();
    let taken: Vec<u64> = (0..5).map(|_| kernel.fill.pop().unwrap()).collect();
    kernel.fill.release();
    kernel.say(taken[0] + 256, 13, 0); // a runt
    kernel.say(taken[1] + 256, 1793, 0); // longer than its buffer
    kernel.say(taken[2] + 2047, u32::MAX, 0);
    kernel.say(taken[3] + 256, 60, CONTINUED); // the frame continues elsewhere
    kernel.say(taken[3] + 256, 60, 0); // a repeated descriptor
    kernel.say(u64::MAX, 60, 0); // an address outside the memory
    kernel.say(u64::from(RECEIVE) * 2048, 60, 0); // a buffer that the kernel was not given
    kernel.say(taken[4] + 256, 60, 0); // a valid descriptor
    receive(&mut queue, &mut batch);
    assert_eq!((batch.len(), batch.errors), (1, 7));
    done(&mut queue);
    assert_eq!(kernel.buffers(), RECEIVE);
}

#[test]
fn a_burst_of_nothing_but_errors_ends() {
    let (mut queue, mut kernel) = rig();
    let mut batch = Batch::new();
    (0..RECEIVE).for_each(|_| kernel.say(u64::MAX, 60, 0));
    receive(&mut queue, &mut batch);
    assert_eq!((batch.len(), batch.errors), (0, ERRORS_MAX));
}

#[test]
fn frames_are_sent_as_they_are_and_too_long_ones_are_not() {
    let (mut queue, mut kernel) = rig();
    let mut batch = Batch::new();
    for (n, len) in [14, 60, 1518, 1519, 3000, 200].into_iter().enumerate() {
        batch.push(&frame(n, len), Offload::NONE).unwrap();
    }
    let out = queue.tx_burst(&batch, &[5, 0, 1, 2, 3, 4]);
    assert_eq!((out.frames, out.too_big, out.bytes), (4, 2, 14 + 60 + 1518 + 200));
    assert!(kernel.take(&queue, 9).is_empty(), "the kernel sees no frame before `publish`");
    queue.publish();
    let sent = kernel.take(&queue, 9);
    assert_eq!(sent, [frame(5, 200), frame(0, 14), frame(1, 60), frame(2, 1518)]);
    kernel.complete();
    queue.reap();
    assert_eq!(queue.free(), SEND as usize);
}

/// The senders pay for a notification, and the port that is polled next for a look.
#[test]
fn new_frames_are_sent_by_a_notification_and_not_by_a_look() {
    let (mut queue, _kernel) = rig();
    let mut batch = Batch::new();
    batch.push(&frame(0, 60), Offload::NONE).unwrap();
    assert_eq!(queue.tx_burst(&batch, &[0]).frames, 1);
    queue.publish();
    let now = Cycles(1_000);
    let _ = queue.pending(now);
    assert!(queue.to_send && queue.spacing.is_due(now), "the look left the frame to `notify`");
    // What the kernel had no room for is sent by a look, because no notification may follow.
    queue.left_over = true;
    let _ = queue.pending(now);
    assert!(!queue.spacing.is_due(now));
}

#[test]
fn a_full_tx_ring_drops_frames_and_recovers() {
    let (mut queue, mut kernel) = rig();
    let mut batch = Batch::new();
    (0..32).for_each(|n| batch.push(&frame(n, 60), Offload::NONE).unwrap());
    let all: Vec<u8> = (0..32).collect();
    let out = queue.tx_burst(&batch, &all);
    assert_eq!((out.frames, out.ring_full), (TX, 32 - TX));
    assert_eq!(queue.free(), (SEND - TX) as usize, "a refused frame takes no buffer");
    queue.publish();
    // Frames that are taken but never completed use up the buffers.
    assert_eq!(kernel.take(&queue, 99).len(), TX as usize);
    let out = queue.tx_burst(&batch, &all);
    queue.publish();
    assert_eq!((out.frames, out.ring_full), (SEND - TX, 32 + TX - SEND));
    kernel.take(&queue, 99);
    assert_eq!(queue.tx_burst(&batch, &all).ring_full, 32);
    kernel.complete();
    assert_eq!(queue.tx_burst(&batch, &all).frames, TX);
}

#[test]
fn completions_of_what_was_not_sent_are_not_believed() {
    let (mut queue, mut kernel) = rig();
    for address in [0, u64::MAX, u64::from(RECEIVE) * 2048, 5] {
        assert!(kernel.completion.push(address));
    }
    kernel.completion.publish();
    queue.reap();
    assert_eq!(queue.free(), SEND as usize);
    let mut batch = Batch::new();
    receive(&mut queue, &mut batch);
    assert_eq!(batch.errors, 4);
}

#[test]
fn a_link_that_is_down_accepts_nothing_and_releases_waiting_frames() {
    let (mut queue, _kernel) = rig();
    let mut batch = Batch::new();
    batch.push(&frame(1, 60), Offload::NONE).unwrap();
    let held = queue.fill(&batch, 0).unwrap();
    queue.link.set(false, 1518);
    assert!(!queue.tx_ready());
    assert_eq!(queue.tx_burst(&batch, &[0]).down, 1);
    assert_eq!((queue.send(&[held]).down, queue.free()), (1, SEND as usize));
    queue.link.set(true, 1518);
    assert_eq!(queue.tx_burst(&batch, &[0]).frames, 1);
}

#[test]
fn frames_that_wait_never_starve_the_fill_ring() {
    let (mut queue, mut kernel) = rig();
    let mut batch = Batch::new();
    let mut waiting = Vec::new();
    for n in 0..3 * SEND as usize {
        assert!(kernel.deliver(&queue, &frame(n, 500)));
        receive(&mut queue, &mut batch);
        waiting.extend(queue.fill(&batch, 0));
        done(&mut queue);
    }
    assert_eq!((waiting.len(), queue.free()), (SEND as usize, 0));
    assert!(queue.fill(&batch, 0).is_none());
    // The tx ring is shorter than the list of waiting frames.
    for n in 0..waiting.len() {
        let left = &waiting[n..=n];
        assert_eq!(queue.send(left).frames, 1);
        queue.publish();
        assert_eq!(kernel.take(&queue, 1), [frame(n, 500)]);
        kernel.complete();
        queue.reap();
    }
    assert_eq!((kernel.buffers(), queue.free()), (RECEIVE, SEND as usize));
}

/// Frames that wait in the port's buffers, with their content.
type Waiting = Vec<(Held, Vec<u8>)>;

fn step(
    what: u8,
    n: usize,
    queue: &mut XdpQueue,
    kernel: &mut Kernel,
    batch: &mut Batch,
    waiting: &mut Waiting,
    on_wire: &mut Vec<Vec<u8>>,
) {
    match what {
        0 | 1 => {
            let _ = kernel.deliver(queue, &frame(n, 14 + n * 37 % 1500));
        }
        2 => {
            receive(queue, batch);
            for i in 0..batch.len() {
                if (n + i).is_multiple_of(3) {
                    let copied = queue.fill(batch, i);
                    waiting.extend(copied.map(|held| (held, bytes(batch, i))));
                }
            }
            done(queue);
        }
        3 => {
            batch.clear();
            batch.push(&frame(n, 14 + n * 53 % 1500), Offload::NONE).unwrap();
            let filled = queue.fill(batch, 0);
            waiting.extend(filled.map(|held| (held, bytes(batch, 0))));
        }
        4 => {
            let held: Vec<Held> = waiting.iter().map(|w| w.0).take(1 + n % 8).collect();
            let out = queue.send(&held);
            on_wire.extend(waiting.drain(..out.frames as usize).map(|w| w.1));
            queue.publish();
        }
        5 => {
            let took = kernel.take(queue, 1 + n % 5);
            let expected: Vec<_> = on_wire.drain(..took.len()).collect();
            assert_eq!(took, expected);
        }
        6 => kernel.complete(),
        _ if !waiting.is_empty() => queue.release(waiting.swap_remove(n % waiting.len()).0),
        _ => {}
    }
}

proptest! {
    /// Tests any order of receiving, filling, sending, completing and releasing. The test checks
    /// that waiting frames are sent unchanged, and that every buffer returns to its original place.
    #[test]
    fn no_buffer_is_lost_or_handed_out_twice(
        steps in proptest::collection::vec((0..8_u8, 0..1000_usize), 1..300)
    ) {
        let (mut queue, mut kernel) = rig();
        let mut batch = Batch::new();
        let (mut waiting, mut on_wire) = (Waiting::new(), Vec::new());
        for (what, n) in steps {
            let (queue, kernel, waiting) = (&mut queue, &mut kernel, &mut waiting);
            step(what, n, queue, kernel, &mut batch, waiting, &mut on_wire);
        }
        for (held, _) in waiting {
            queue.release(held);
        }
        kernel.take(&queue, usize::MAX);
        kernel.complete();
        queue.reap();
        loop {
            receive(&mut queue, &mut batch);
            let empty = batch.is_empty();
            done(&mut queue);
            if empty {
                break;
            }
        }
        prop_assert_eq!(queue.free(), SEND as usize);
        prop_assert_eq!(kernel.buffers(), RECEIVE);
    }
}
