//! The input is a sequence of valid and invalid entries that a kernel writes to the rings of an
//! AF_XDP socket.
//!
//! **Rule.** A chunk of the socket's memory has one owner at a time. The switch receives a frame if
//! the kernel owned the frame's chunk and the frame's length is valid; otherwise the switch counts
//! an error. The switch sends frames only from free chunks, and uses a chunk again after the kernel
//! returns the chunk. An invalid index of the kernel stops only the index's ring. After an invalid
//! index, the target does not compare results.

use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::xdp::stepped::{CHUNK_SHIFT, KernelIndex, RECEIVE, SEND, SteppedXdp};
use penstock_units::Cycles;

use crate::guest::frame_of;
use crate::input::Input;

const CHUNK: u32 = 1 << CHUNK_SHIFT;
const FRAME_MIN: u32 = 14;
/// Flag of a descriptor if the frame continues in the next descriptor (`XDP_PKT_CONTD`).
const CONTINUED: u32 = 1;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut game = Game {
        xdp: SteppedXdp::new().expect("a queue"),
        batch: Batch::new(),
        kernel: (0..RECEIVE + SEND).map(|_| false).collect(),
        taken: Vec::new(),
        said: Vec::new(),
        sending: Vec::new(),
        unseen: 0,
        nonsense: 0,
        is_honest: true,
    };
    while !input.is_empty() {
        game.step(&mut input);
    }
}

struct Game {
    xdp: SteppedXdp,
    batch: Box<Batch>,
    /// For each receive chunk, whether the kernel took the chunk and did not return it.
    kernel: Vec<bool>,
    /// Addresses of the kernel's receive chunks, in the order in which the kernel took them.
    taken: Vec<u64>,
    /// Descriptors of the RX ring that the switch has not read yet.
    said: Vec<(u64, u32, u32)>,
    /// Addresses of chunks that the kernel is sending.
    sending: Vec<u64>,
    /// Number of completions for unsent frames that the switch has not read yet.
    unseen: u32,
    nonsense: u32,
    /// True while the kernel's indices and owned chunks were plausible, so that results can be
    /// compared.
    is_honest: bool,
}

impl Game {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..=2 => self.fill(1 + input.below(16)),
            3 | 4 => {
                // A frame with a valid address and length.
                let Some(address) = self.taken.pop() else { return };
                self.say(address + 256, 14 + u32::from(input.u8()), 0);
            }
            5 => {
                let chunk = u64::from(input.u8()) << CHUNK_SHIFT;
                let address =
                    if input.bool() { input.u64() } else { chunk + u64::from(input.u16()) };
                let len = if input.bool() { input.u32() } else { u32::from(input.u16()) };
                self.say(address, len, u32::from(input.u8() % 2));
            }
            6..=8 => self.receive(),
            9 => self.send(input),
            10 => self.complete(input),
            _ => {
                if input.below(4) == 0 {
                    use KernelIndex::{Completion, Fill, Rx, Tx};
                    let which = [Fill, Completion, Rx, Tx][input.below(4)];
                    self.xdp.show(which, input.u32());
                    self.is_honest = false;
                }
            }
        }
    }

    fn fill(&mut self, most: usize) {
        for _ in 0..most {
            let Some(address) = self.xdp.take_fill() else { return };
            let chunk = usize::try_from(address >> CHUNK_SHIFT).unwrap_or(usize::MAX);
            let has = self.kernel.get_mut(chunk).expect("an address inside the memory");
            assert!(!core::mem::replace(has, true) || !self.is_honest, "chunk {chunk} given twice");
            self.taken.push(address);
        }
    }

    fn say(&mut self, address: u64, len: u32, options: u32) {
        let chunk = usize::try_from(address >> CHUNK_SHIFT).unwrap_or(usize::MAX);
        if chunk < RECEIVE as usize && !self.kernel[chunk] {
            // The chunk may still be in the fill ring, so the kernel could take it a second time.
            self.is_honest = false;
        }
        if self.xdp.say_received(address, len, options) {
            self.said.push((address, len, options));
        }
    }

    fn receive(&mut self) {
        self.batch.clear();
        self.batch.errors = 0;
        let _ = self.xdp.queue().pending(Cycles::ZERO);
        self.xdp.queue().rx_burst(&mut self.batch);
        let lengths: Vec<u32> = (0..self.batch.len()).map(|i| self.batch.frame(i).len).collect();
        assert!(lengths.len() <= BATCH_FRAMES);
        assert!(lengths.iter().all(|len| (FRAME_MIN..=CHUNK).contains(len)), "{lengths:?}");
        let mut copy = Vec::new();
        (0..lengths.len()).for_each(|i| self.batch.copy_out(i, &mut copy));
        let errors = self.batch.errors - core::mem::take(&mut self.nonsense).min(self.batch.errors);
        self.xdp.queue().rx_done();
        self.xdp.queue().publish();
        if !self.is_honest {
            return;
        }
        let looked_at = lengths.len() + errors as usize;
        assert!(looked_at <= self.said.len(), "more frames than received");
        let (mut seen, mut is_told_again) = (vec![false; RECEIVE as usize], false);
        let good: Vec<u32> = self
            .said
            .drain(..looked_at)
            .filter_map(|(address, len, options)| {
                let chunk = usize::try_from(address >> CHUNK_SHIFT).unwrap_or(usize::MAX);
                let start = u32::try_from(address & u64::from(CHUNK - 1)).unwrap_or(0);
                let had = self.kernel.get_mut(chunk).is_some_and(core::mem::take);
                let is_new =
                    seen.get_mut(chunk).is_some_and(|seen| !core::mem::replace(seen, true));
                is_told_again |= is_new && !had;
                self.taken.retain(|taken| !had || taken >> CHUNK_SHIFT != address >> CHUNK_SHIFT);
                let fits = start.checked_add(len).is_some_and(|end| end <= CHUNK);
                (had && fits && len >= FRAME_MIN && options & CONTINUED == 0).then_some(len)
            })
            .collect();
        if is_told_again {
            // A burst before this one gave the chunk back, and it lies in the fill ring: the switch
            // cannot know that the kernel has not taken it yet.
            self.is_honest = false;
            return;
        }
        assert_eq!(lengths, good, "frames received");
    }

    fn send(&mut self, input: &mut Input<'_>) {
        self.batch.clear();
        let count = 1 + input.below(BATCH_FRAMES);
        let lengths: Vec<usize> = (0..count).map(|_| 14 + usize::from(input.u8())).collect();
        for (i, len) in lengths.iter().enumerate() {
            self.batch.push(&frame_of(i, *len), Offload::NONE).expect("room");
        }
        let order: Vec<u8> = (0..).take(count).collect();
        let out = self.xdp.queue().tx_burst(&self.batch, &order);
        self.xdp.queue().publish();
        self.xdp.queue().notify();
        // The switch reads completions when it sends frames.
        self.nonsense += core::mem::take(&mut self.unseen);
        assert_eq!((out.frames + out.ring_full) as usize, count, "{out:?}");
        let mut sent = 0;
        while let Some((address, len)) = self.xdp.take_tx() {
            if !self.is_honest {
                sent += 1;
                if sent > 64 {
                    break;
                }
                continue;
            }
            let chunk = address >> CHUNK_SHIFT;
            let ours = u64::from(RECEIVE)..u64::from(RECEIVE + SEND);
            assert!(ours.contains(&chunk), "a frame is sent from chunk {chunk}");
            assert!(!self.sending.contains(&address), "chunk {chunk} is already being sent");
            assert_eq!(Some(&(len as usize)), lengths.get(sent), "a frame's length");
            self.sending.push(address);
            sent += 1;
        }
        assert!(!self.is_honest || sent == out.frames as usize, "{sent} of {out:?}");
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        for _ in 0..1 + input.below(8) {
            let wrong = input.below(8) == 0;
            let address = if wrong { Some(input.u64()) } else { self.sending.pop() };
            let Some(address) = address else { return };
            let was_sent =
                !wrong || self.sending.iter().any(|a| a >> CHUNK_SHIFT == address >> CHUNK_SHIFT);
            if wrong && was_sent {
                continue;
            }
            if !self.xdp.say_sent(address) {
                // If the ring is full, the kernel keeps the chunk.
                self.is_honest &= wrong;
                return;
            }
            self.unseen += u32::from(wrong);
        }
    }
}
