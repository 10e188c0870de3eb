//! Signals congestion to the sender of a frame.
//!
//! # Problem
//!
//! A queue that is too long must make TCP slow down. If the switch drops a large segment (TSO) for
//! this purpose, TCP loses up to 46 packets at once. TCP then sends all of them again, and waits
//! for its retransmission timeout if no later packet arrives. Protocols in large segments of UDP,
//! such as QUIC, lose as many datagrams.
//!
//! # Source
//!
//! ECN is from RFC 3168 §5. RFC 8289 §4.6 recommends a mark instead of a drop. Partial checksums
//! are from virtio 1.2 §5.1.6.2.
//!
//! # Approach
//!
//! A frame of a sender that supports ECN is marked. Of another large segment, the switch drops only
//! the first part, which is one packet on the wire: the rest follows with the rest's sequence
//! number, so the receiver asks at once for the missing part. A frame that is a single packet is
//! dropped whole.

use crate::batch::{Batch, HEAD_COPY};
use crate::finish::{checksum, sum};
use crate::headers::{is_ect, mark_congestion};
use crate::offload::{GSO_UDP_L4, Offload};

/// How a frame signals congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The frame was marked.
    Marked,
    /// The first part of a large segment was dropped.
    Trimmed,
    /// The caller must drop the frame.
    Drop,
}

/// Whether a frame with `offload` and `len` bytes is a large segment of several parts.
pub(crate) fn is_trimmable(offload: &Offload, len: u32) -> bool {
    let headers = u32::from(offload.hdr_len);
    offload.is_gso()
        && offload.gso_size > 0
        && headers as usize <= HEAD_COPY
        && len > headers + u32::from(offload.gso_size)
}

/// Makes frame `i` of `batch` signal congestion. The frame's offload metadata must agree with its
/// headers.
pub(crate) fn signal(batch: &mut Batch, i: usize) -> Signal {
    if is_ect(batch.head(i)) {
        mark_congestion(batch.head_mut(i));
        return Signal::Marked;
    }
    if trim(batch, i) { Signal::Trimmed } else { Signal::Drop }
}

/// Removes the first part of a large segment. Returns false if the frame is no large segment, or if
/// the batch has no room for the rest.
fn trim(batch: &mut Batch, i: usize) -> bool {
    let frame = *batch.frame(i);
    let Offload { hdr_len, gso_size, csum_start, csum_offset, .. } = frame.offload;
    let (headers, l4) = (usize::from(hdr_len), usize::from(csum_start));
    let l3 = if frame.tagged { 18 } else { 14 };
    let udp = frame.offload.gso_type == GSO_UDP_L4;
    let least = if udp { 8 } else { 20 };
    let fits = l3 + 20 <= l4 && l4 + least <= headers && headers <= frame.head_len();
    if !fits || !is_trimmable(&frame.offload, frame.len) {
        return false;
    }
    let head = batch.head(i);
    let ipv6 = head[l3] >> 4 == 6;
    // The IP header may end before the frame, and then not all of the payload is TCP's or UDP's.
    let (field, before) = if ipv6 { (l3 + 4, l3 + 40) } else { (l3 + 2, l3) };
    let said = usize::from(u16::from_be_bytes([head[field], head[field + 1]]));
    if said + before != frame.len as usize {
        return false;
    }
    let edit = |bytes: &mut [u8]| {
        let length = if ipv6 { l3 + 4 } else { l3 + 2 };
        change(&mut bytes[length..], |length: u16| length.wrapping_sub(gso_size));
        if !ipv6 {
            bytes[l3 + 10..l3 + 12].fill(0);
            let own = checksum(sum(&bytes[l3..l4], 0));
            bytes[l3 + 10..l3 + 12].copy_from_slice(&own.to_be_bytes());
        }
        // The bytes from 4 on are TCP's sequence number or UDP's length.
        let place = &mut bytes[l4 + 4..];
        if udp {
            change(place, |length: u16| length.wrapping_sub(gso_size));
        } else if let Some(field) = place.first_chunk_mut::<4>() {
            *field = u32::from_be_bytes(*field).wrapping_add(u32::from(gso_size)).to_be_bytes();
        }
        // The sum of the pseudo-header contains the length (RFC 1624, equation 3).
        change(&mut bytes[l4 + usize::from(csum_offset)..], |pseudo| {
            !checksum(u64::from(pseudo) + u64::from(!gso_size))
        });
    };
    if !batch.cut_out(i, (headers, usize::from(gso_size)), edit) {
        return false;
    }
    let rest = batch.frame_mut(i);
    if !is_trimmable(&rest.offload, rest.len) {
        // A single part is an ordinary frame with an unfinished checksum.
        (rest.offload.gso_type, rest.offload.gso_size, rest.offload.hdr_len) = (0, 0, 0);
    }
    true
}

/// Replaces the big-endian word at the start of `bytes`.
fn change(bytes: &mut [u8], to: impl FnOnce(u16) -> u16) {
    if let Some(field) = bytes.first_chunk_mut::<2>() {
        *field = to(u16::from_be_bytes(*field)).to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finish::Segmenter;
    use crate::offload::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6};

    const MSS: u16 = 1_000;

    /// Returns a TCP segment with `payload` bytes, and the offload metadata of a guest.
    fn segment(ipv6: bool, tagged: bool, ecn: u8, payload: usize) -> (Vec<u8>, Offload) {
        let mut bytes = vec![2; 12];
        if tagged {
            bytes.extend([0x81, 0, 0, 7]);
        }
        let l3 = bytes.len() + 2;
        let tcp = u16::try_from(32 + payload).unwrap();
        if ipv6 {
            bytes.extend([0x86, 0xdd, 0x60, ecn << 4, 0, 0]);
            bytes.extend(tcp.to_be_bytes());
            bytes.extend([6, 64]);
            bytes.extend([0xfd; 32]);
        } else {
            bytes.extend([8, 0, 0x45, ecn]);
            bytes.extend((20 + tcp).to_be_bytes());
            bytes.extend([0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let own = checksum(sum(&bytes[l3..], 0));
            bytes[l3 + 10..l3 + 12].copy_from_slice(&own.to_be_bytes());
        }
        let l4 = bytes.len();
        let addresses = if ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let pseudo = !checksum(sum(&bytes[addresses], 6 + u64::from(tcp)));
        bytes.extend([0, 80, 0, 81, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0x80, 0x10, 1, 1]);
        bytes.extend(pseudo.to_be_bytes());
        bytes.extend([0; 14]);
        bytes.extend((0..payload).map(|at| u8::try_from(at % 253).unwrap()));
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: if ipv6 { GSO_TCPV6 } else { GSO_TCPV4 },
            hdr_len: u16::try_from(l4 + 32).unwrap(),
            gso_size: MSS,
            csum_start: u16::try_from(l4).unwrap(),
            csum_offset: 16,
        };
        (bytes, offload)
    }

    fn batch_of(tagged: bool, bytes: &[u8], offload: Offload) -> Box<Batch> {
        let mut batch = Batch::new();
        batch.push(bytes, offload).unwrap();
        batch.frame_mut(0).tagged = tagged;
        batch
    }

    /// Cuts frame 0 into its parts.
    fn parts(batch: &Batch) -> Vec<Vec<u8>> {
        let (mut segmenter, mut scratch) = (Segmenter::new(), Batch::new());
        segmenter.begin(batch, 0, 100).unwrap();
        assert!(segmenter.fill(batch, 0, &mut scratch));
        let copy = |i| {
            let mut out = Vec::new();
            scratch.copy_out(i, &mut out);
            out
        };
        (0..scratch.len()).map(copy).collect()
    }

    #[test]
    fn the_rest_of_a_segment_is_what_the_guest_would_have_sent_without_the_first_part() {
        for (ipv6, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
            for payload in [2_001, 3_000, 9_999] {
                let (bytes, offload) = segment(ipv6, tagged, 0, payload);
                let mut batch = batch_of(tagged, &bytes, offload);
                let mut whole = parts(&batch);
                assert_eq!(signal(&mut batch, 0), Signal::Trimmed);
                let mut rest = parts(&batch);
                whole.remove(0);
                // The IP identification counts from the first part on, and CWR is the first part's.
                for part in whole.iter_mut().chain(&mut rest).filter(|_| !ipv6) {
                    let l3 = if tagged { 18 } else { 14 };
                    part[l3 + 4..l3 + 6].fill(0);
                    part[l3 + 10..l3 + 12].fill(0);
                }
                assert_eq!(rest, whole, "IPv6 {ipv6}, tag {tagged}, {payload} bytes");
                assert_eq!(batch.bytes(), batch.frame(0).len as usize);
            }
        }
    }

    #[test]
    fn the_partial_checksum_and_the_ip_header_fit_the_rest() {
        for ipv6 in [false, true] {
            let (bytes, offload) = segment(ipv6, false, 0, 4_500);
            let mut batch = batch_of(false, &bytes, offload);
            assert_eq!(signal(&mut batch, 0), Signal::Trimmed);
            let mut rest = Vec::new();
            batch.copy_out(0, &mut rest);
            let (mut due, _) = segment(ipv6, false, 0, 3_500);
            let l4 = usize::from(offload.csum_start);
            let end = l4 + 32;
            // Only the sequence number and the payload differ.
            let sequence = 0xffff_ff00_u32.wrapping_add(1_000);
            due[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
            assert_eq!(rest[..end], due[..end]);
            assert_eq!(rest[end..], bytes[end + 1_000..]);
        }
    }

    #[test]
    fn a_large_udp_segment_loses_its_first_datagram() {
        for ipv6 in [false, true] {
            let (mut bytes, offload) = segment(ipv6, false, 0, 2_976);
            let l4 = usize::from(offload.csum_start);
            let length = u16::try_from(bytes.len() - l4).unwrap();
            bytes[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
            bytes[if ipv6 { 20 } else { 23 }] = 17;
            let hdr_len = u16::try_from(l4 + 8).unwrap();
            let uso = Offload { gso_type: GSO_UDP_L4, csum_offset: 6, hdr_len, ..offload };
            let mut batch = batch_of(false, &bytes, uso);
            let mut whole = parts(&batch);
            assert_eq!((whole.len(), signal(&mut batch, 0)), (3, Signal::Trimmed));
            let mut rest = parts(&batch);
            whole.remove(0);
            for part in whole.iter_mut().chain(&mut rest).filter(|_| !ipv6) {
                part[18..20].fill(0);
                part[24..26].fill(0);
            }
            assert_eq!(rest, whole, "IPv6 {ipv6}");
            let mut left = Vec::new();
            batch.copy_out(0, &mut left);
            assert_eq!(left[l4 + 4..l4 + 6], (length - 1_000).to_be_bytes());
        }
    }

    #[test]
    fn one_part_is_an_ordinary_frame() {
        let (bytes, offload) = segment(false, false, 0, 1_900);
        let mut batch = batch_of(false, &bytes, offload);
        assert_eq!(signal(&mut batch, 0), Signal::Trimmed);
        let rest = batch.frame(0);
        assert_eq!((rest.len, rest.offload.is_gso()), (54 + 12 + 900, false));
        assert!(rest.offload.needs_csum() && rest.offload.hdr_len == 0);
        assert_eq!(signal(&mut batch, 0), Signal::Drop);
    }

    #[test]
    fn a_sender_that_supports_ecn_loses_nothing() {
        let (bytes, offload) = segment(false, false, 2, 5_000);
        let mut batch = batch_of(false, &bytes, offload);
        assert_eq!(signal(&mut batch, 0), Signal::Marked);
        assert_eq!((batch.frame(0).len as usize, batch.head(0)[15]), (bytes.len(), 3));
    }

    #[test]
    fn a_batch_without_room_for_the_rest_keeps_the_frame() {
        let (bytes, offload) = segment(false, false, 0, 60_000);
        let mut batch = batch_of(false, &bytes, offload);
        batch.push(&bytes, offload).unwrap();
        while batch.arena_space(60_000).is_some() {
            assert_eq!(signal(&mut batch, 0), Signal::Trimmed);
        }
        let len = batch.frame(0).len;
        assert_eq!(signal(&mut batch, 0), Signal::Drop);
        assert_eq!(batch.frame(0).len, len);
    }
}
