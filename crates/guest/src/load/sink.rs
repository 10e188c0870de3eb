//! Counts received frames, bytes, bad frames, gaps and late frames.

use super::frame::{Seen, inspect, time_sent};
use crate::driver::RxFrame;

/// A sink's record of the sequence numbers of one sender.
#[derive(Debug, Clone, Default)]
struct Track {
    next: u64,
    lost: u64,
    reordered: u64,
    arrived: Arrived,
}

/// Frames that a sink received from one sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    pub frames: u64,
    /// Number of bytes of the frames from the sender, without FCS.
    pub bytes: u64,
}

/// Transit times of stamped frames, in TSC cycles. The sink stores transit times until a call of
/// [`Sink::drain_times`].
#[derive(Debug, Default)]
struct Times {
    /// Whether each sender stamps its frames. The vector has one element for each sender, indexed
    /// by the sender's number.
    stamped: Vec<bool>,
    now: u64,
    since: u64,
    taken: Vec<(u16, u64)>,
}

/// Maximum number of stored transit times. If the sink already stores the maximum number of transit
/// times, it discards new transit times.
const TIMES: usize = 1 << 16;

impl Times {
    #[inline]
    fn see(&mut self, sender: usize, frame: &[u8]) {
        if self.taken.len() < TIMES
            && self.stamped.get(sender) == Some(&true)
            && let Some(sent) = time_sent(frame)
            && sent >= self.since
            && let Ok(sender) = u16::try_from(sender)
        {
            self.taken.push((sender, self.now.saturating_sub(sent)));
        }
    }
}

impl Track {
    #[inline]
    fn see(&mut self, seq: u64) {
        if seq == self.next {
            self.next += 1;
        } else if seq > self.next {
            self.lost += seq - self.next;
            self.next = seq + 1;
        } else {
            self.reordered += 1;
            self.lost = self.lost.saturating_sub(1);
        }
    }

    /// Extends the low 16 bits of a sequence number to 64 bits. Of all numbers with these low bits,
    /// the function returns the number nearest to the expected sequence number.
    #[inline]
    fn extend(&self, id: u16) -> u64 {
        let [.., high, low] = self.next.to_be_bytes();
        let ahead = id.wrapping_sub(u16::from_be_bytes([high, low])).cast_signed();
        self.next.saturating_add_signed(i64::from(ahead))
    }
}

/// Counters of the frames that one VM received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkCounters {
    /// Number of received frames of known senders.
    pub frames: u64,
    /// Number of bytes of the frames from known senders, without FCS.
    pub bytes: u64,
    /// Number of received frames that differ from the sent frame or come from an unknown sender.
    pub bad: u64,
    /// Number of received frames that the generator did not send.
    pub other: u64,
    /// Number of sequence numbers that did not arrive.
    pub lost: u64,
    /// Number of frames that arrived after a frame with a higher sequence number.
    pub reordered: u64,
}

/// Receiving side of one VM of the generator.
#[derive(Debug)]
pub(crate) struct Sink {
    touch: bool,
    senders: Vec<[u8; 6]>,
    last: usize,
    tracks: Vec<Track>,
    times: Option<Times>,
    joined: Vec<u8>,
    counters: SinkCounters,
}

impl Sink {
    /// Creates a sink. `senders` has the MAC addresses of the senders. The position of a sender in
    /// `senders` is the sender's number.
    pub fn new(senders: Vec<[u8; 6]>, touch: bool) -> Self {
        let tracks = vec![Track::default(); senders.len()];
        let counters = SinkCounters::default();
        Self { touch, senders, last: 0, tracks, times: None, joined: Vec::new(), counters }
    }

    /// Sets which senders stamp their frames. The vector has one element for each sender, indexed
    /// by the sender's number.
    pub fn expect_times(&mut self, stamped: Vec<bool>) {
        if stamped.contains(&true) {
            let taken = Vec::with_capacity(TIMES);
            self.times = Some(Times { stamped, taken, ..Times::default() });
        }
    }

    /// Sets the arrival time of the frames that are counted next, in TSC cycles.
    #[inline]
    pub fn look(&mut self, cycles: u64) {
        if let Some(times) = &mut self.times {
            times.now = cycles;
        }
    }

    /// Returns the received frames of each sender, in the order of the senders' numbers.
    pub fn arrived(&self) -> impl Iterator<Item = Arrived> + '_ {
        self.tracks.iter().map(|track| track.arrived)
    }

    /// Passes the stored transit times (sender's number, cycles) to `each`, and removes these
    /// times.
    pub fn drain_times(&mut self, mut each: impl FnMut(usize, u64)) {
        let taken = self.times.iter_mut().flat_map(|times| times.taken.drain(..));
        taken.for_each(|(sender, cycles)| each(usize::from(sender), cycles));
    }

    /// Stops recording the transit times of frames that were sent before TSC value `cycles`. The
    /// function excludes the frames that a stall of the generator itself delayed.
    pub fn forget_times_before(&mut self, cycles: u64) {
        if let Some(times) = &mut self.times {
            times.since = cycles;
        }
    }

    #[inline]
    pub fn see(&mut self, frame: &RxFrame<'_>) {
        if frame.buffers().len() == 1 {
            self.see_bytes(frame.first());
        } else {
            let mut joined = std::mem::take(&mut self.joined);
            joined.clear();
            frame.append_to(&mut joined);
            self.see_bytes(&joined);
            self.joined = joined;
        }
    }

    #[inline]
    fn see_bytes(&mut self, frame: &[u8]) {
        let track = match inspect(frame, self.touch) {
            Seen::Numbered { mac, id } => self.by_mac(mac).map(|t| (t, self.tracks[t].extend(id))),
            Seen::Verified { sender, seq } => {
                Some((usize::from(sender), seq)).filter(|(t, _)| *t < self.tracks.len())
            }
            Seen::Other => {
                self.counters.other += 1;
                return;
            }
            Seen::Bad => None,
        };
        let Some((track, seq)) = track else {
            self.counters.bad += 1;
            return;
        };
        self.tracks[track].see(seq);
        self.tracks[track].arrived.frames += 1;
        self.tracks[track].arrived.bytes += frame.len() as u64;
        if let Some(times) = &mut self.times {
            times.see(track, frame);
        }
        self.counters.frames += 1;
        self.counters.bytes += frame.len() as u64;
    }

    #[inline]
    fn by_mac(&mut self, mac: [u8; 6]) -> Option<usize> {
        if self.senders.get(self.last) != Some(&mac) {
            self.last = self.senders.iter().position(|m| *m == mac)?;
        }
        Some(self.last)
    }

    pub fn counters(&self) -> SinkCounters {
        SinkCounters {
            lost: self.tracks.iter().map(|t| t.lost).sum(),
            reordered: self.tracks.iter().map(|t| t.reordered).sum(),
            ..self.counters
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_lost_until_the_late_frame_comes() {
        let mut track = Track::default();
        for seq in [0, 1, 4, 5, 3, 6] {
            track.see(seq);
        }
        assert_eq!((track.next, track.lost, track.reordered), (7, 1, 1));
    }

    #[test]
    fn times_are_told_of_stamped_senders_and_of_frames_nobody_held_up() {
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let mut sink = Sink::new(macs.to_vec(), false);
        sink.expect_times(vec![false, true]);
        let mut frame = [0; 60];
        (frame[12], frame[14], frame[23], frame[37]) = (8, 0x45, 17, 9);
        let mut send = |sink: &mut Sink, from: usize, sent: u64, came: u64| {
            frame[6..12].copy_from_slice(&macs[from]);
            frame[42..50].copy_from_slice(&sent.to_le_bytes());
            sink.look(came);
            sink.see_bytes(&frame);
        };
        send(&mut sink, 0, 100, 150);
        send(&mut sink, 1, 200, 260);
        sink.forget_times_before(300);
        send(&mut sink, 1, 250, 900);
        send(&mut sink, 1, 300, 307);
        let mut told = Vec::new();
        sink.drain_times(|sender, cycles| told.push((sender, cycles)));
        assert_eq!(told, [(1, 60), (1, 7)]);
        sink.drain_times(|_, _| panic!("told already"));
        let frames: Vec<_> = sink.arrived().map(|a| (a.frames, a.bytes)).collect();
        assert_eq!(frames, [(1, 60), (3, 180)]);
    }

    #[test]
    fn sixteen_bits_follow_the_number_past_their_wrap() {
        let mut track = Track { next: 65_534, ..Track::default() };
        for id in [65_534, 65_535, 0, 1, 3, 2] {
            let seq = track.extend(id);
            track.see(seq);
        }
        assert_eq!((track.next, track.lost, track.reordered), (65_540, 0, 1));
    }
}
