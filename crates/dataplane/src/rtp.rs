//! The switch measures jitter and loss of marked RTP streams as the streams' receiver sees them.
//!
//! # Problem
//!
//! A queue or a shaper cannot tell whether a voice or video stream is smooth, because the
//! timestamps are inside the stream's packets.
//!
//! # Source
//!
//! RFC 3550 defines the RTP header in §5.1 and the jitter in §6.4.1.
//!
//! # Approach
//!
//! A port's configuration may name UDP ports that receive RTP, and the clock rate of the RTP
//! timestamps. The switch measures packets to the named UDP ports, one source (SSRC) at a time. If
//! the SSRC of a stream changes, the jitter measurement of the stream restarts. Gaps in the
//! sequence numbers show the number of packets that were lost before the switch.
//!
//! # Cost
//!
//! A port without marked streams costs one comparison per burst. At a port with marked RTP streams,
//! the worker looks at the headers of each frame and takes a lock for each marked frame. No worker
//! waits for the lock of marked streams. If two workers deliver to a port at the same moment, the
//! second worker does not measure its frame. A thread that reads a stream's measurements takes no
//! lock, so the values that it reads may differ by one packet.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

use penstock_qos::delay::Jitter;
use penstock_units::Nanos;

use crate::batch::Batch;

/// Maximum number of marked streams of a port.
pub const RTP_STREAMS_MAX: usize = 8;

/// Measurements of a marked RTP stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtpReading {
    /// Destination UDP port of the RTP stream.
    pub udp_port: u16,
    /// SSRC of the stream's current source. 0 before the first packet.
    pub ssrc: u32,
    /// Number of the stream's packets, from all sources.
    pub packets: u64,
    /// Number of skipped sequence numbers, over all sources of the stream. Packets that arrive late
    /// still count as lost.
    pub lost: u64,
    /// Interarrival jitter of the stream's current source.
    pub jitter: Nanos,
    /// Largest interarrival jitter of the stream's current source.
    pub jitter_max: Nanos,
}

#[derive(Debug)]
struct Stream {
    reading: RtpReading,
    clock_hz: u32,
    jitter: Jitter,
    next: Option<u16>,
}

impl Stream {
    fn new(udp_port: u16, clock_hz: u32) -> Self {
        let reading = RtpReading { udp_port, ..RtpReading::default() };
        Self { reading, clock_hz, jitter: Jitter::new(clock_hz), next: None }
    }

    fn take(&mut self, packet: &Packet, now: Nanos) {
        if self.next.is_none() || self.reading.ssrc != packet.ssrc {
            let RtpReading { udp_port, packets, lost, .. } = self.reading;
            let ssrc = packet.ssrc;
            self.reading = RtpReading { udp_port, ssrc, packets, lost, ..RtpReading::default() };
            (self.jitter, self.next) = (Jitter::new(self.clock_hz), None);
        }
        self.reading.packets += 1;
        // A late or duplicate packet has a number below `next`, which wraps to the upper half of
        // the range.
        let ahead = self.next.map_or(0, |next| packet.sequence.wrapping_sub(next));
        if ahead < 1 << 15 {
            self.reading.lost += u64::from(ahead);
            self.next = Some(packet.sequence.wrapping_add(1));
        }
        self.jitter.record(now, packet.timestamp);
        self.reading.jitter = self.jitter.nanos();
        self.reading.jitter_max = self.reading.jitter_max.max(self.reading.jitter);
    }
}

/// A marked RTP stream, and the stream's last published reading.
#[derive(Debug)]
struct Marked {
    udp_port: u16,
    /// State of an RTP stream's measurement, which only workers lock.
    stream: Mutex<Stream>,
    ssrc: AtomicU64,
    packets: AtomicU64,
    lost: AtomicU64,
    jitter: AtomicU64,
    jitter_max: AtomicU64,
}

impl Marked {
    fn new(udp_port: u16, clock_hz: u32) -> Self {
        let none = AtomicU64::default;
        Self {
            udp_port,
            stream: Mutex::new(Stream::new(udp_port, clock_hz)),
            ssrc: none(),
            packets: none(),
            lost: none(),
            jitter: none(),
            jitter_max: none(),
        }
    }

    fn take(&self, packet: &Packet, now: Nanos) {
        let mut stream = match self.stream.try_lock() {
            Ok(stream) => stream,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        stream.take(packet, now);
        let told = &stream.reading;
        self.ssrc.store(told.ssrc.into(), Ordering::Relaxed);
        self.packets.store(told.packets, Ordering::Relaxed);
        self.lost.store(told.lost, Ordering::Relaxed);
        self.jitter.store(told.jitter.0, Ordering::Relaxed);
        self.jitter_max.store(told.jitter_max.0, Ordering::Relaxed);
    }

    fn read(&self) -> RtpReading {
        RtpReading {
            udp_port: self.udp_port,
            ssrc: u32::try_from(self.ssrc.load(Ordering::Relaxed)).unwrap_or(0),
            packets: self.packets.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            jitter: Nanos(self.jitter.load(Ordering::Relaxed)),
            jitter_max: Nanos(self.jitter_max.load(Ordering::Relaxed)),
        }
    }
}

/// The RTP streams that a port's key `rtp` lists. Workers measure these RTP streams, and the
/// control plane reads the measurements.
#[derive(Debug)]
pub struct RtpStreams(Box<[Marked]>);

impl RtpStreams {
    /// Marks the RTP streams with the given UDP ports and clock rates in Hz. Streams after the
    /// first [`RTP_STREAMS_MAX`] are ignored.
    #[must_use]
    pub fn new(streams: &[(u16, u32)]) -> Self {
        let marked = streams.iter().take(RTP_STREAMS_MAX);
        Self(marked.map(|(port, hz)| Marked::new(*port, *hz)).collect())
    }

    /// Returns the current measurements of each marked stream.
    #[must_use]
    pub fn read(&self) -> Vec<RtpReading> {
        self.0.iter().map(Marked::read).collect()
    }

    /// Updates the measurements of marked RTP streams with the listed frames, which are delivered
    /// at time `now`.
    #[inline(never)]
    pub(super) fn measure(&self, batch: &Batch, frames: &[u8], now: Nanos) {
        for &i in frames {
            let Some((port, payload)) = udp(batch.head(usize::from(i))) else { continue };
            let Some(marked) = self.0.iter().find(|marked| marked.udp_port == port) else {
                continue;
            };
            if let Some(packet) = Packet::parse(payload) {
                marked.take(&packet, now);
            }
        }
    }
}

/// The measured fields of an RTP header (RFC 3550 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    sequence: u16,
    timestamp: u32,
    ssrc: u32,
}

impl Packet {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<12>()?;
        let version = header[0] >> 6;
        // RTCP may use the same port (RFC 5761 §4). Its packets appear as payload types 64 to 95,
        // which RTP does not use.
        let kind = header[1] & 0x7f;
        if version != 2 || (64..96).contains(&kind) {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let sequence = u16::from_be_bytes([header[2], header[3]]);
        Some(Self { sequence, timestamp: word(4), ssrc: word(8) })
    }
}

/// Returns the UDP destination port and the payload of a frame. Returns `None` for frames without
/// UDP, for fragments, and for IPv6 with extension headers.
fn udp(frame: &[u8]) -> Option<(u16, &[u8])> {
    let word = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let ip = if matches!(word(12)?, 0x8100 | 0x88a8) { 18 } else { 14 };
    let transport = match word(ip - 2)? {
        0x0800 => {
            let header = usize::from(frame.get(ip)? & 0xf) * 4;
            let whole = word(ip + 6)? & 0x3fff == 0;
            (whole && header >= 20 && frame.get(ip + 9) == Some(&17)).then_some(ip + header)?
        }
        0x86dd => (frame.get(ip + 6) == Some(&17)).then_some(ip + 40)?,
        _ => return None,
    };
    Some((word(transport + 2)?, frame.get(transport + 8..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Offload;
    use proptest::prelude::*;

    /// Returns a frame with an RTP packet in UDP, IPv4 and Ethernet.
    fn rtp(port: u16, sequence: u16, timestamp: u32, ssrc: u32) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12..].copy_from_slice(&[0x08, 0]);
        frame.extend([0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x10, 0x00]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 40, 0, 0, 0x80, 96]);
        frame.extend(sequence.to_be_bytes());
        frame.extend(timestamp.to_be_bytes());
        frame.extend(ssrc.to_be_bytes());
        frame.extend([7; 20]);
        frame
    }

    fn deliver(streams: &RtpStreams, frame: &[u8], millis: u64) {
        let mut batch = Batch::new();
        batch.push(frame, Offload::NONE).unwrap();
        streams.measure(&batch, &[0], Nanos::from_millis(millis));
    }

    /// Repeats the example of [`penstock_qos::delay`]: a packet every 20 ms, of which one packet is
    /// 10 ms late.
    #[test]
    fn a_marked_stream_has_the_jitter_of_rfc_3550() {
        let streams = RtpStreams::new(&[(5_004, 90_000), (5_006, 8_000)]);
        for (n, late) in [(0, 0), (1, 0), (2, 10), (3, 0)] {
            let sequence = u16::try_from(n).unwrap();
            let timestamp = 1_800 * u32::from(sequence);
            deliver(&streams, &rtp(5_004, sequence, timestamp, 9), 20 * n + late);
            deliver(&streams, &rtp(5_008, sequence, 0, 9), 20 * n + late);
        }
        let [video, audio] = streams.read()[..] else { panic!("two are marked") };
        assert_eq!((video.udp_port, video.ssrc, video.packets, video.lost), (5_004, 9, 4, 0));
        assert_eq!((video.jitter.0 / 1_000, video.jitter_max.0 / 1_000), (1_211, 1_211));
        assert_eq!(audio, RtpReading { udp_port: 5_006, ..RtpReading::default() });
    }

    #[test]
    fn what_is_lost_is_counted_and_another_source_starts_anew() {
        let streams = RtpStreams::new(&[(5_004, 90_000)]);
        for (at, sequence) in [(0, 65_534), (20, 65_535), (40, 1), (60, 0), (80, 2)] {
            deliver(&streams, &rtp(5_004, sequence, at * 90, 1), u64::from(at));
        }
        let one = streams.read()[0];
        assert_eq!((one.packets, one.lost), (5, 1), "0 was out of order");
        deliver(&streams, &rtp(5_004, 700, 5, 2), 1_000);
        let two = streams.read()[0];
        assert_eq!((two.ssrc, two.packets, two.lost, two.jitter), (2, 6, 1, Nanos::ZERO));
    }

    #[test]
    fn what_is_no_rtp_is_left_alone() {
        let good = rtp(5_004, 1, 0, 1);
        let edit = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            frame
        };
        let streams = RtpStreams::new(&[(5_004, 90_000)]);
        // RTP version 1, RTCP, a later fragment, TCP, a short header, another ethertype.
        let bad = [edit(42, 0x40), edit(43, 200), edit(21, 1), edit(23, 6), edit(14, 0x44)];
        bad.iter().for_each(|frame| deliver(&streams, frame, 0));
        deliver(&streams, &edit(12, 0x09), 0);
        deliver(&streams, &good[..50], 0);
        assert_eq!(streams.read()[0].packets, 0);
        deliver(&streams, &good, 0);
        assert_eq!(streams.read()[0].packets, 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at_safely(
            mut frame in proptest::collection::vec(any::<u8>(), 14..128), kind in 0..3_u8,
        ) {
            let kinds = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]];
            frame[12..14].copy_from_slice(&kinds[usize::from(kind)]);
            if let Some((_, payload)) = udp(&frame) {
                let _ = Packet::parse(payload);
            }
        }
    }
}
