//! The ingress policer holds a port to its rate limit, directly after reception. It drops frames
//! above the limit, or such frames wait in the port's ring.
//!
//! # Problem
//! The ingress policies `bps` and `pps` limit bits or frames per second, as a switch without cycle
//! metering does. Experiments use the policies `bps` and `pps` as the baseline. Limits in bits per
//! second also apply while an uplink is the bottleneck (C2QoS §VII).
//!
//! # Approach
//! Frames are policed before they are classified. A policed frame still costs its reception, as in
//! OVS-DPDK, and the switch learns no address from the frame. The port's own limit applies first,
//! and then the port's part of each link that is now the bottleneck. All queue pairs of a port
//! share one policer state ([`penstock_qos::policer`]), even if several workers poll the queue
//! pairs. A port's policer state survives a new snapshot.
//!
//! A port's part of a link, and a limit of its own for which the operator states no depth, drop no
//! frames. The policer charges each batch, and the worker does not poll the port while the policer
//! is in debt (`worker/shaping.rs`).
//!
//! # Cost
//! A port without limits costs one comparison per batch. For a batch within the limit, the policer
//! reads each frame's length and makes two or three atomic operations.
//!
//! # Departures
//! A link's limit also delays frames that would stay on the host, because the frames' destination
//! is not known before classification.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use penstock_qos::bottleneck::FRAME_OVERHEAD;
use penstock_qos::policer::{Colour, Policer, Size};
use penstock_units::Nanos;

use crate::batch::{BATCH_FRAMES, Batch};
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::offload::GSO_UDP_L4;

/// Rate limits on the frames that the switch takes from a port.
#[derive(Clone, Debug, Default)]
pub struct IngressPolicer {
    /// Rate limits of the port from its ingress policy: one for `bps` or `pps`, and two for
    /// `bps-and-pps`. `own` is empty if the port has another ingress policy.
    pub own: Vec<Arc<Policer>>,
    /// Rate limits of the port on the links that the port shares with other ports.
    pub links: Vec<LinkLimit>,
}

/// A port's part of a link, as a rate limit that applies only while the link is the bottleneck.
#[derive(Clone, Debug)]
pub struct LinkLimit {
    /// Whether the shared link is the bottleneck at present, so that the rate limit applies. All
    /// ports with a rate limit on the link share the flag `active`.
    pub active: Arc<AtomicBool>,
    /// Nanoseconds for which the frames of all ports together waited for the ports' parts of the
    /// link.
    pub waited: Arc<AtomicU64>,
    /// The limit. Its frames wait ([`Spec::waiting`]).
    ///
    /// [`Spec::waiting`]: penstock_qos::policer::Spec::waiting
    pub policer: Arc<Policer>,
}

impl LinkLimit {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.active, &other.active)
            && Arc::ptr_eq(&self.waited, &other.waited)
            && Arc::ptr_eq(&self.policer, &other.policer)
    }

    /// Whether the link is the bottleneck at present.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }
}

impl IngressPolicer {
    /// Whether the port has no rate limits.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.own.is_empty() && self.links.is_empty()
    }

    /// Whether both have the same policers, in the same order.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let own = |(one, other): (&Arc<Policer>, &Arc<Policer>)| Arc::ptr_eq(one, other);
        let links = |(one, other): (&LinkLimit, &LinkLimit)| one.is(other);
        self.own.len() == other.own.len()
            && self.links.len() == other.links.len()
            && self.own.iter().zip(&other.own).all(own)
            && self.links.iter().zip(&other.links).all(links)
    }

    /// The port's own limits for which frames wait in the port's ring ([`Spec::waiting`]).
    ///
    /// [`Spec::waiting`]: penstock_qos::policer::Spec::waiting
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Arc<Policer>> {
        self.own.iter().filter(|policer| policer.spec().waits())
    }

    /// Drops and counts the frames of `batch` that exceed the port's limits at time `now`. All
    /// workers must use the same clock for `now`.
    pub fn police(&self, batch: &mut Batch, now: Nanos, counters: &PortCounters) {
        match &self.own[..] {
            [] => {}
            [policer] if policer.spec().waits() => {
                let colour = if charge(policer, batch, now) {
                    &counters.police_green
                } else {
                    &counters.police_yellow
                };
                colour.add(batch.len() as u64);
            }
            [policer] => own(policer, batch, now, counters),
            several => all(several, batch, now, counters),
        }
        for link in self.links.iter().filter(|link| link.is_active()) {
            charge(&link.policer, batch, now);
        }
    }
}

/// Charges a batch that passes. The worker takes the port's next batch when the debt is paid.
/// Returns whether the batch is green.
fn charge(policer: &Policer, batch: &Batch, now: Nanos) -> bool {
    policer.refill(now);
    batch.is_empty() || policer.charge((0..batch.len()).map(|i| on_wire(batch, i)))
}

/// Applies limits in bits and in frames together. Each frame has one colour: a frame that a limit
/// drops is red, and another frame is green only if all limits find it within the committed rate.
#[cold]
fn all(limits: &[Arc<Policer>], batch: &mut Batch, now: Nanos, counters: &PortCounters) {
    let mut yellow = 0;
    for policer in limits.iter().filter(|policer| !policer.spec().waits()) {
        let mut marks = Marks::default();
        marks.mark(policer, batch, now);
        yellow += marks.yellow;
        marks.drop_own(batch, counters);
    }
    let frames = batch.len();
    let mut green = true;
    for policer in limits.iter().filter(|policer| policer.spec().waits()) {
        green &= charge(policer, batch, now);
    }
    let yellow = if green { yellow.min(frames as u64) } else { frames as u64 };
    counters.police_green.add(frames as u64 - yellow);
    counters.police_yellow.add(yellow);
}

fn own(policer: &Policer, batch: &mut Batch, now: Nanos, counters: &PortCounters) {
    let mut marks = Marks::default();
    marks.mark(policer, batch, now);
    counters.police_green.add(marks.green);
    if marks.yellow > 0 {
        counters.police_yellow.add(marks.yellow);
    }
    marks.drop_own(batch, counters);
}

/// Colours that the policer gave to the frames of a batch.
#[derive(Default)]
struct Marks {
    green: u64,
    yellow: u64,
    /// Bit mask of the frames in the batch that the policer marked red (above all rates) and drops.
    red: u32,
}

impl Marks {
    fn mark(&mut self, policer: &Policer, batch: &Batch, now: Nanos) {
        policer.refill(now);
        let mut sizes = [Size::default(); BATCH_FRAMES];
        let mut sum = Size::default();
        for (i, size) in sizes.iter_mut().enumerate().take(batch.len()) {
            *size = on_wire(batch, i);
            sum += *size;
        }
        if policer.all_green(sum) {
            self.green = batch.len() as u64;
            return;
        }
        for (i, size) in sizes.iter().enumerate().take(batch.len()) {
            match policer.mark(*size) {
                Colour::Green => self.green += 1,
                Colour::Yellow => self.yellow += 1,
                Colour::Red => self.red |= 1 << i,
            }
        }
    }

    /// Drops the frames that the port's own limit marked red.
    fn drop_own(&self, batch: &mut Batch, counters: &PortCounters) {
        if self.red != 0 {
            let red = self.red.count_ones().into();
            batch.retain(!self.red);
            counters.police_red.add(red);
            counters.drops[DropReason::Policed as usize].add(red);
        }
    }
}

/// Returns the size of frame `i` on a wire. A segmentation request has the size of its segments,
/// each with a copy of the headers. The caller need not check the offload metadata before the call.
/// A frame with impossible metadata counts as one frame.
#[inline]
pub(crate) fn on_wire(batch: &Batch, i: usize) -> Size {
    let frame = batch.at(i);
    if !frame.offload.is_gso() {
        return Size { bytes: frame.len, frames: 1 };
    }
    segments_of(batch, i)
}

/// Returns the bytes that frames of a size ([`on_wire`]) occupy on a link: the bytes of the frames
/// plus Ethernet's overhead per frame.
#[inline]
pub(crate) fn link_bytes(Size { bytes, frames }: Size) -> u32 {
    bytes.saturating_add(frames.saturating_mul(FRAME_OVERHEAD.into()))
}

/// Largest number of segments for which a frame counts. A sender could otherwise use up the limit
/// of a receiver with a few frames that ask for segments of one byte.
const SEGMENTS_MAX: u32 = 1_024;

#[inline(never)]
fn segments_of(batch: &Batch, i: usize) -> Size {
    let frame = batch.at(i);
    let whole = Size { bytes: frame.len, frames: 1 };
    let l4 = usize::from(frame.offload.csum_start);
    let l4_len = if frame.offload.gso_type == GSO_UDP_L4 {
        8
    } else {
        // The upper half of byte 12 of the TCP header is the header's length in words.
        let Some(offset) = batch.head(i).get(l4 + 12) else { return whole };
        u32::from(offset >> 4) * 4
    };
    let headers = u32::from(frame.offload.csum_start) + l4_len;
    let payload = frame.len.saturating_sub(headers);
    let segments = payload.div_ceil(u32::from(frame.offload.gso_size).max(1));
    let segments = segments.clamp(1, SEGMENTS_MAX);
    Size { bytes: frame.len + (segments - 1) * headers, frames: segments }
}

/// Counts the segments and the extra header bytes of the batch's segmentation requests on a wire.
#[inline(never)]
pub(crate) fn count_segments(batch: &mut Batch, counters: &PortCounters) {
    let (mut requests, mut segments, mut headers) = (0, 0, 0);
    for (i, frame) in batch.frames().iter().enumerate() {
        if frame.offload.is_gso() {
            let size = segments_of(batch, i);
            requests += 1;
            segments += size.frames;
            headers += size.bytes - frame.len;
        }
    }
    batch.note_added(Size { bytes: headers, frames: segments - requests });
    counters.rx_segments.add(segments.into());
    counters.rx_segment_headers.add(headers.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload};
    use penstock_qos::policer::{Limit, Spec};
    use penstock_units::{BitsPerSecond, PacketsPerSecond};

    fn policer(limit: Limit) -> Arc<Policer> {
        Arc::new(Policer::new(Spec::new(limit).unwrap()))
    }

    fn batch(frames: &[usize]) -> Box<Batch> {
        let mut batch = Batch::new();
        frames.iter().for_each(|len| batch.push(&vec![0; *len], Offload::NONE).unwrap());
        batch
    }

    fn lens(batch: &Batch) -> Vec<u32> {
        batch.frames().iter().map(|frame| frame.len).collect()
    }

    /// Committed information rate of one byte per microsecond.
    const CIR: BitsPerSecond = BitsPerSecond(8_000_000);

    #[test]
    fn red_frames_are_dropped_and_counted_and_others_stay() {
        let own = policer(Limit::SingleRate { cir: CIR, cbs: 2_000, ebs: 300 });
        let limits = IngressPolicer { own: vec![own], links: Vec::new() };
        let counters = PortCounters::default();
        let mut frames = batch(&[1_500, 250, 300, 600, 200, 100]);
        limits.police(&mut frames, Nanos(0), &counters);
        assert_eq!(lens(&frames), [1_500, 250, 300, 200], "neither bucket pays for 600 and 100");
        let read = counters.read();
        assert_eq!((read.police_green, read.police_yellow, read.police_red), (3, 1, 2));
        assert_eq!(read.drops[DropReason::Policed as usize], 2);
        let mut frames = batch(&[1_000]);
        limits.police(&mut frames, Nanos(2_000_000), &counters);
        assert_eq!((lens(&frames), counters.read().police_green), (vec![1_000], 4));
    }

    #[test]
    fn a_part_of_a_link_limits_only_while_the_link_is_full() {
        let active = Arc::new(AtomicBool::new(false));
        let spec = Spec::new(Limit::SingleRate { cir: CIR, cbs: 1_524, ebs: 0 }).unwrap();
        let policer = Arc::new(Policer::new(spec.per_frame(24).waiting()));
        let (part, waited) = (Arc::clone(&policer), Arc::default());
        let links = vec![LinkLimit { active: Arc::clone(&active), waited, policer: part }];
        let limits = IngressPolicer { own: Vec::new(), links };
        let counters = PortCounters::default();
        let mut frames = batch(&[1_000; 20]);
        limits.police(&mut frames, Nanos(0), &counters);
        assert_eq!((frames.len(), policer.wait()), (20, Nanos::ZERO));
        active.store(true, Ordering::Relaxed);
        limits.police(&mut frames, Nanos(0), &counters);
        let debt = 20 * 1_024 - 1_524;
        assert_eq!((frames.len(), policer.wait()), (20, Nanos::from_micros(debt)));
        let read = counters.read();
        assert_eq!((read.police_green, read.police_yellow, read.police_red), (0, 0, 0));
    }

    #[test]
    fn a_large_segment_counts_as_its_frames_on_the_wire() {
        // 34 bytes precede a TCP header of 32; the 10,000 bytes of payload go out in segments of
        // 1,448.
        let mut bytes = vec![0; 66 + 10_000];
        bytes[34 + 12] = 8 << 4;
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            gso_size: 1_448,
            csum_start: 34,
            csum_offset: 16,
            hdr_len: 0,
        };
        let mut large = Batch::new();
        large.push(&bytes, offload).unwrap();
        assert_eq!(on_wire(&large, 0), Size { bytes: 7 * 66 + 10_000, frames: 7 });
        large.push(&[0; 60], Offload::NONE).unwrap();
        let counters = PortCounters::default();
        count_segments(&mut large, &counters);
        counters.rx_frames.add(2);
        counters.rx_tso.add(1);
        counters.rx_bytes.add(10_126);
        assert_eq!(counters.read().on_wire(), [8, 7 * 66 + 10_000 + 60]);
        let mut large = Batch::new();
        large.push(&bytes, Offload { gso_type: GSO_UDP_L4, csum_offset: 6, ..offload }).unwrap();
        assert_eq!(on_wire(&large, 0), Size { bytes: 7 * 42 + 10_024, frames: 7 }, "UDP");
        let mut large = Batch::new();
        large.push(&bytes, offload).unwrap();
        let pps = policer(Limit::Packets { rate: PacketsPerSecond(1), burst: 8 });
        let limits = IngressPolicer { own: vec![pps], links: Vec::new() };
        large.push(&bytes, offload).unwrap();
        limits.police(&mut large, Nanos(0), &PortCounters::default());
        assert_eq!(large.len(), 1, "seven of eight frames are used up");
    }

    #[test]
    fn impossible_metadata_neither_panics_nor_counts_less_than_the_frame() {
        for (csum_start, gso_size) in [(0, 0), (u16::MAX, 1), (113, 1), (34, 0), (120, 9)] {
            let mut frames = Batch::new();
            let offload = Offload { gso_type: GSO_TCPV4, csum_start, gso_size, ..Offload::NONE };
            frames.push(&vec![0xff; 60_000], offload).unwrap();
            let size = on_wire(&frames, 0);
            assert!(size.bytes >= 60_000 && size.frames >= 1, "{size:?}");
        }
    }
}
