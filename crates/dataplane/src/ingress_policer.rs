//! The ingress policer: it drops the frames of a port above its rate, directly after reception.
//!
//! # Problem
//! The ingress policies `bps` and `pps` limit bits or frames, as a switch without cycle metering
//! does. They are the baseline for comparison. They also limit ports while an uplink is the
//! bottleneck (C2QoS §VII).
//!
//! # Approach
//! Frames are policed before they are classified. A dropped frame thus still costs its reception,
//! as in OVS-DPDK, and the switch learns no address from it. The port's own limit applies first,
//! then its part of each link that is the bottleneck now. All queue pairs of a port share one state
//! ([`penstock_qos::policer`]), whichever workers poll them, and the state survives a new snapshot.
//!
//! # Cost
//! A port without limits costs one comparison per batch. A batch within its limit costs one look at
//! each frame's length and two or three atomic operations.
//!
//! # Departures
//! The limit of a link also drops frames that would stay on the host, because their destination is
//! not known yet.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use penstock_qos::bottleneck::{FRAME_OVERHEAD, on_link};
use penstock_qos::policer::{Colour, Policer, Size};
use penstock_units::Nanos;

use crate::batch::{BATCH_FRAMES, Batch};
use crate::counters::PortCounters;
use crate::drop::DropReason;

/// Rate limits on the frames that a port sends.
#[derive(Clone, Debug, Default)]
pub struct IngressPolicer {
    /// Own limit of the port, from the policies `bps` and `pps`.
    pub own: Option<Arc<Policer>>,
    /// Parts of the links that the port shares.
    pub links: Vec<LinkLimit>,
}

/// A port's part of a link: a limit that applies only while the link is the bottleneck.
#[derive(Clone, Debug)]
pub struct LinkLimit {
    /// Whether the link is the bottleneck. All ports with a part of the link share the flag.
    pub active: Arc<AtomicBool>,
    /// Dropped bytes, counted with their size on this link and summed over all ports with a part of
    /// it.
    pub held: Arc<AtomicU64>,
    pub policer: Arc<Policer>,
}

impl IngressPolicer {
    /// Whether the port has no limits at all.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.own.is_none() && self.links.is_empty()
    }

    /// Drops the frames of `batch` that exceed the limits at `now` and counts them. All workers
    /// must share the clock of `now`.
    pub fn police(&self, batch: &mut Batch, now: Nanos, counters: &PortCounters) {
        if let Some(policer) = &self.own {
            own(policer, batch, now, counters);
        }
        for link in &self.links {
            if link.active.load(Ordering::Relaxed) {
                part(link, batch, now, counters);
            }
        }
    }
}

fn own(policer: &Policer, batch: &mut Batch, now: Nanos, counters: &PortCounters) {
    let mut marks = Marks::default();
    marks.mark(policer, batch, now);
    counters.police_green.add(marks.green);
    if marks.yellow > 0 {
        counters.police_yellow.add(marks.yellow);
    }
    let red = marks.drop_red(batch);
    if red > 0 {
        counters.police_red.add(red);
        counters.drops[DropReason::Policed as usize].add(red);
    }
}

fn part(link: &LinkLimit, batch: &mut Batch, now: Nanos, counters: &PortCounters) {
    let mut marks = Marks::default();
    marks.mark(&link.policer, batch, now);
    let red = marks.drop_red(batch);
    if red > 0 {
        let held = on_link(u64::from(marks.held.bytes), u64::from(marks.held.frames));
        link.held.fetch_add(held, Ordering::Relaxed);
        counters.link_held.add(held);
        counters.drops[DropReason::LinkLimit as usize].add(red);
    }
}

/// How the policer marked the frames of a batch.
#[derive(Default)]
struct Marks {
    green: u64,
    yellow: u64,
    /// Bit mask of the red frames.
    red: u32,
    /// Size of the red frames on a wire.
    held: Size,
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
                Colour::Red => {
                    self.red |= 1 << i;
                    self.held += *size;
                }
            }
        }
    }

    fn drop_red(&self, batch: &mut Batch) -> u64 {
        if self.red != 0 {
            batch.retain(!self.red);
        }
        self.red.count_ones().into()
    }
}

/// Size of frame `i` on a wire. A segmentation request has the size of its segments, each with a
/// copy of the headers. The metadata may be unchecked: a frame with impossible metadata counts as
/// one frame.
#[inline]
pub(crate) fn on_wire(batch: &Batch, i: usize) -> Size {
    let frame = batch.at(i);
    if !frame.offload.is_gso() {
        return Size { bytes: frame.len, frames: 1 };
    }
    segments_of(batch, i)
}

/// Bytes that frame `i` occupies on a link: the bytes of [`on_wire`] plus Ethernet's overhead per
/// frame.
#[inline]
pub(crate) fn wire_bytes(batch: &Batch, i: usize) -> u32 {
    let Size { bytes, frames } = on_wire(batch, i);
    bytes.saturating_add(frames.saturating_mul(FRAME_OVERHEAD.into()))
}

#[inline(never)]
fn segments_of(batch: &Batch, i: usize) -> Size {
    let frame = batch.at(i);
    let whole = Size { bytes: frame.len, frames: 1 };
    // The upper half of byte 12 of the TCP header is the header's length in words.
    let tcp = usize::from(frame.offload.csum_start);
    let Some(offset) = batch.head(i).get(tcp + 12) else { return whole };
    let headers = u32::from(frame.offload.csum_start) + u32::from(offset >> 4) * 4;
    let payload = frame.len.saturating_sub(headers);
    let segments = payload.div_ceil(u32::from(frame.offload.gso_size).max(1)).max(1);
    Size { bytes: frame.len + (segments - 1) * headers, frames: segments }
}

/// Counts the segments and the extra header bytes that the batch's segmentation requests become on
/// a wire.
#[inline(never)]
pub(crate) fn count_segments(batch: &Batch, counters: &PortCounters) {
    let (mut segments, mut headers) = (0, 0);
    for (i, frame) in batch.frames().iter().enumerate() {
        if frame.offload.is_gso() {
            let size = segments_of(batch, i);
            segments += u64::from(size.frames);
            headers += u64::from(size.bytes - frame.len);
        }
    }
    counters.rx_segments.add(segments);
    counters.rx_segment_headers.add(headers);
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

    /// One byte per microsecond.
    const CIR: BitsPerSecond = BitsPerSecond(8_000_000);

    #[test]
    fn red_frames_are_dropped_and_counted_and_others_stay() {
        let own = policer(Limit::SingleRate { cir: CIR, cbs: 2_000, ebs: 300 });
        let limits = IngressPolicer { own: Some(own), links: Vec::new() };
        let counters = PortCounters::default();
        let mut frames = batch(&[1_500, 250, 300, 600, 200, 100]);
        limits.police(&mut frames, Nanos(0), &counters);
        assert_eq!(lens(&frames), [1_500, 250, 300, 200], "neither bucket pays for 600 and 100");
        let read = counters.read();
        assert_eq!((read.police_green, read.police_yellow, read.police_red), (3, 1, 2));
        assert_eq!((read.drops[DropReason::Policed as usize], read.link_held), (2, 0));
        let mut frames = batch(&[1_000]);
        limits.police(&mut frames, Nanos(2_000_000), &counters);
        assert_eq!((lens(&frames), counters.read().police_green), (vec![1_000], 4));
    }

    #[test]
    fn a_part_of_a_link_limits_only_while_the_link_is_full() {
        let active = Arc::new(AtomicBool::new(false));
        let spec = Spec::new(Limit::SingleRate { cir: CIR, cbs: 1_524, ebs: 0 }).unwrap();
        let policer = Arc::new(Policer::new(spec.per_frame(24)));
        let held = Arc::new(AtomicU64::new(0));
        let links =
            vec![LinkLimit { active: Arc::clone(&active), held: Arc::clone(&held), policer }];
        let limits = IngressPolicer { own: None, links };
        let counters = PortCounters::default();
        let mut frames = batch(&[1_000; 20]);
        limits.police(&mut frames, Nanos(0), &counters);
        assert_eq!(frames.len(), 20);
        active.store(true, Ordering::Relaxed);
        limits.police(&mut frames, Nanos(0), &counters);
        assert_eq!(frames.len(), 1);
        let read = counters.read();
        assert_eq!(read.drops[DropReason::LinkLimit as usize], 19);
        assert_eq!((read.link_held, read.police_red), (19 * 1_024, 0));
        assert_eq!(held.load(Ordering::Relaxed), 19 * 1_024, "it is this link's");
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
        count_segments(&large, &counters);
        counters.rx_frames.add(2);
        counters.rx_tso.add(1);
        counters.rx_bytes.add(10_126);
        assert_eq!(counters.read().on_wire(), [8, 7 * 66 + 10_000 + 60]);
        let mut large = Batch::new();
        large.push(&bytes, offload).unwrap();
        let pps = policer(Limit::Packets { rate: PacketsPerSecond(1), burst: 8 });
        let limits = IngressPolicer { own: Some(pps), links: Vec::new() };
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
