//! Counts what arrives: frames, bytes, bad ones, gaps and late ones.

use super::frame::{Seen, inspect};
use crate::driver::RxFrame;

/// The numbers of one sender as one sink saw them.
#[derive(Debug, Clone, Default)]
struct Track {
    next: u64,
    lost: u64,
    reordered: u64,
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

    /// The number with these low 16 bits that is nearest to the one expected.
    #[inline]
    fn extend(&self, id: u16) -> u64 {
        let [.., high, low] = self.next.to_be_bytes();
        let ahead = id.wrapping_sub(u16::from_be_bytes([high, low])).cast_signed();
        self.next.saturating_add_signed(i64::from(ahead))
    }
}

/// What one VM has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SinkCounters {
    pub frames: u64,
    pub bytes: u64,
    pub bad: u64,
    pub other: u64,
    pub lost: u64,
    pub reordered: u64,
}

/// One VM's receiving side.
#[derive(Debug)]
pub(crate) struct Sink {
    touch: bool,
    senders: Vec<[u8; 6]>,
    last: usize,
    tracks: Vec<Track>,
    joined: Vec<u8>,
    counters: SinkCounters,
}

impl Sink {
    /// A sink that knows the senders' addresses by their number.
    pub fn new(senders: Vec<[u8; 6]>, touch: bool) -> Self {
        let tracks = vec![Track::default(); senders.len()];
        let counters = SinkCounters::default();
        Self { touch, senders, last: 0, tracks, joined: Vec::new(), counters }
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
    fn sixteen_bits_follow_the_number_past_their_wrap() {
        let mut track = Track { next: 65_534, ..Track::default() };
        for id in [65_534, 65_535, 0, 1, 3, 2] {
            let seq = track.extend(id);
            track.see(seq);
        }
        assert_eq!((track.next, track.lost, track.reordered), (65_540, 0, 1));
    }
}
