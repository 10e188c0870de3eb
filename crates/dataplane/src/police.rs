//! Policing: what a port sends above its rate is dropped, right after it was taken.
//!
//! **Problem.** The ingress policies `bps` and `pps` are what a switch does that knows no cycles;
//! they are the baseline to compare with, and they assist while an uplink is the bottleneck
//! (C2QoS §VII). **Rule.** Frames are policed before they are classified: what is dropped has cost
//! its way in, as in OVS-DPDK, and teaches the switch no address. A port's own limit comes first,
//! then its part of each link that is the bottleneck now. The state is one a port, whoever polls
//! its queue pairs ([`penstock_qos::policer`]); it outlives a new snapshot.
//! **Departure.** A limit of a link's also meets frames that would stay on the host: where a frame
//! goes is not known yet. **Cost.** A port without limits: one comparison a batch. Of a batch
//! within its limit: one look at each frame's length, two or three atomic operations.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use penstock_qos::bottleneck::{FRAME_OVERHEAD, on_link};
use penstock_qos::policer::{Colour, Policer, Size};
use penstock_units::Nanos;

use crate::batch::{BATCH_FRAMES, Batch};
use crate::counters::PortCounters;
use crate::drop::DropReason;

/// What holds a port's frames to rates.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Its own, of the policies `bps` and `pps`.
    pub own: Option<Arc<Policer>>,
    /// Its parts of links.
    pub links: Vec<LinkLimit>,
}

/// A port's part of a link: a limit that is in while the link is the bottleneck.
#[derive(Clone, Debug)]
pub struct LinkLimit {
    /// Whether the link is the bottleneck; shared by all ports with a part of it.
    pub active: Arc<AtomicBool>,
    /// Bytes on this link of the frames that its parts dropped, of all ports together.
    pub held: Arc<AtomicU64>,
    /// The part.
    pub policer: Arc<Policer>,
}

impl Limits {
    /// Whether nothing is limited, ever.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.own.is_none() && self.links.is_empty()
    }

    /// Drops from `batch` what is above the limits at `now`, and counts it. `now` is of a clock
    /// that all workers share.
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

/// What a batch's frames were marked.
#[derive(Default)]
struct Marks {
    green: u64,
    yellow: u64,
    /// The red ones, one bit each.
    red: u32,
    /// On the wire they would have been this.
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

/// What frame `i` is on a wire: itself, or the segments it asks to be cut into, each with a copy of
/// the headers. The metadata need not have been checked: what is impossible counts as one frame.
#[inline]
pub(crate) fn on_wire(batch: &Batch, i: usize) -> Size {
    let frame = batch.at(i);
    if !frame.offload.is_gso() {
        return Size { bytes: frame.len, frames: 1 };
    }
    segments_of(batch, i)
}

/// Bytes that frame `i` takes on a link: those of [`on_wire`], and what Ethernet adds to each.
#[inline]
pub(crate) fn wire_bytes(batch: &Batch, i: usize) -> u32 {
    let Size { bytes, frames } = on_wire(batch, i);
    bytes.saturating_add(frames.saturating_mul(FRAME_OVERHEAD.into()))
}

#[inline(never)]
fn segments_of(batch: &Batch, i: usize) -> Size {
    let frame = batch.at(i);
    let whole = Size { bytes: frame.len, frames: 1 };
    // The TCP header's length is in the upper half of its 13th byte.
    let tcp = usize::from(frame.offload.csum_start);
    let Some(offset) = batch.head(i).get(tcp + 12) else { return whole };
    let headers = u32::from(frame.offload.csum_start) + u32::from(offset >> 4) * 4;
    let payload = frame.len.saturating_sub(headers);
    let segments = payload.div_ceil(u32::from(frame.offload.gso_size).max(1)).max(1);
    Size { bytes: frame.len + (segments - 1) * headers, frames: segments }
}

/// Counts what the batch's segmentation requests become on a wire.
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

    /// A byte a microsecond.
    const CIR: BitsPerSecond = BitsPerSecond(8_000_000);

    #[test]
    fn what_is_red_goes_and_is_counted_and_the_rest_stays() {
        let own = policer(Limit::SingleRate { cir: CIR, cbs: 2_000, ebs: 300 });
        let limits = Limits { own: Some(own), links: Vec::new() };
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
        let limits = Limits { own: None, links };
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
    fn a_large_segment_is_what_it_becomes_on_the_wire() {
        // 14 + 20 bytes in front of a TCP header of 32; 10,000 bytes in segments of 1,448.
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
        let limits = Limits { own: Some(pps), links: Vec::new() };
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
