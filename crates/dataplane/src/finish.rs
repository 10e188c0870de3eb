//! The switch computes checksums and segments TCP and UDP frames in software for outputs without
//! these offloads.
//!
//! # Problem
//!
//! A guest may send a segment of 64 KiB with an unfinished checksum. The output may accept only
//! finished frames of at most the output's MTU.
//!
//! # Source
//!
//! The sources of offload finishing are virtio 1.3 §5.1.6.2, RFC 768, RFC 1071 and RFC 9293.
//!
//! # Approach
//!
//! Finishing works on a private copy of the frame (datapath rule 5), so the summed bytes are the
//! sent bytes. The classifier has checked that the offload metadata points at the frame's own TCP
//! or UDP header.
//!
//! # Cost
//!
//! Finishing a frame's offloads costs one more copy and one pass over the frame's bytes. The port's
//! counters `sw_csum` and `sw_tso` count the finished frames.

use crate::batch::{Batch, Frame, HEAD_COPY};
use crate::offload::{GSO_TCPV6, GSO_UDP_L4, Offload};

/// Maximum number of segments of one frame. A frame of 64 KiB at an MSS of 536 (RFC 9293's
/// default) needs 122 segments. Without a limit, one frame with an MSS of one byte could cost as
/// much as a thousand frames.
pub const SEGMENTS_PER_FRAME_MAX: usize = 128;

/// Maximum number of segments that a worker cuts in one turn, for all outputs. A batch ends
/// with the frame that takes the batch over 64 KiB. At an MSS of 536, a batch therefore becomes 245
/// segments plus one segment for each frame. Without a limit, small frames with a smaller MSS could
/// make one turn as long as a hundred turns.
pub const CUTS_PER_TURN_MAX: usize = 288;

/// Maximum length of a frame's headers in bytes. The parser accepts a TCP header of which the first
/// 20 bytes are in the frame's head. Options of 40 bytes and a VLAN tag may move the end.
const HEADERS_MAX: usize = HEAD_COPY + 40 + 4;

/// Error: the switch cannot finish the frame's offloads in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotFinish;

/// Returns the ones' complement sum of `bytes` (RFC 1071), added to `seed`. The returned sum is not
/// folded to 16 bits.
#[must_use]
pub fn sum(bytes: &[u8], seed: u64) -> u64 {
    let mut total = u128::from(seed);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        total += u128::from(u64::from_be_bytes(word));
    }
    let mut tail = [0; 8];
    tail[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    total += u128::from(u64::from_be_bytes(tail));
    // 2^64 = 1 modulo 2^16 - 1, so the upper half may be added to the lower.
    let folded = (total & u128::from(u64::MAX)) + (total >> 64);
    let folded = (folded & u128::from(u64::MAX)) + (folded >> 64);
    u64::try_from(folded).unwrap_or(u64::MAX)
}

/// Folds a sum to 16 bits and returns the complement, which is the value for a header's checksum
/// field.
#[must_use]
pub fn checksum(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    let folded = sum as u16;
    !folded
}

/// Adds frame `i` of `batch` to `scratch` with a finished transport checksum.
///
/// # Errors
/// Returns [`CannotFinish`] if the scratch batch has no room or the offload metadata does not fit
/// the frame.
pub fn finish_checksum(batch: &Batch, i: usize, scratch: &mut Batch) -> Result<(), CannotFinish> {
    let frame = *batch.frame(i);
    let len = frame.len as usize;
    if !scratch.has_room() {
        return Err(CannotFinish);
    }
    let bytes = scratch.arena_space(len).ok_or(CannotFinish)?;
    batch.copy_to(i, bytes);
    let start = usize::from(frame.offload.csum_start);
    let field = start + usize::from(frame.offload.csum_offset);
    if start >= len || field + 2 > len {
        return Err(CannotFinish);
    }
    // The field contains the pseudo-header's sum, so this sum includes it.
    let sum = checksum(sum(&bytes[start..], 0));
    // In UDP, a checksum of zero means "none" (RFC 768). All ones is the same number, and harmless
    // in TCP.
    let sum = if sum == 0 { 0xffff } else { sum };
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    scratch.push_arena(len, Offload::NONE);
    Ok(())
}

/// A segmenter cuts one TCP or UDP frame at a time into segments. The frame's payload is copied
/// once, into the segments.
#[derive(Debug)]
pub struct Segmenter {
    headers: [u8; HEADERS_MAX],
    header_len: usize,
    l3: usize,
    l4: usize,
    ipv6: bool,
    udp: bool,
    mss: usize,
    /// Bytes of the frame's payload, and how many of them are in segments already.
    payload: usize,
    done: usize,
    index: u16,
}

impl Segmenter {
    /// Creates an idle segmenter.
    #[must_use]
    pub fn new() -> Self {
        Self {
            headers: [0; HEADERS_MAX],
            header_len: 0,
            l3: 0,
            l4: 0,
            ipv6: false,
            udp: false,
            mss: 1,
            payload: 0,
            done: 0,
            index: 0,
        }
    }

    /// Begins to cut frame `i` into segments. Returns the number of segments of the frame.
    ///
    /// # Errors
    /// Returns [`CannotFinish`] if the frame's metadata contradicts its headers. Also returns
    /// [`CannotFinish`] if the frame would become more than `most` segments.
    pub fn begin(&mut self, batch: &Batch, i: usize, most: usize) -> Result<usize, CannotFinish> {
        let frame: &Frame = batch.frame(i);
        let head = batch.head(i);
        let o = frame.offload;
        let header_len = usize::from(o.hdr_len);
        let l4 = usize::from(o.csum_start);
        let l3 = if frame.tagged { 18 } else { 14 };
        // The version is in the first half of the IP header's first byte.
        let version = head.get(l3).map_or(0, |byte| byte >> 4);
        let ipv6 = o.gso_type == GSO_TCPV6 || version == 6;
        let fits = header_len <= frame.len as usize
            && header_len <= self.headers.len()
            && l4 + if o.gso_type == GSO_UDP_L4 { 8 } else { 20 } <= header_len
            && l3 + if ipv6 { 40 } else { 20 } <= l4
            && o.gso_size > 0;
        if !fits {
            return Err(CannotFinish);
        }
        let payload = (frame.len as usize).saturating_sub(header_len);
        let mss = usize::from(o.gso_size);
        let segments = payload.div_ceil(mss).max(1);
        if segments > most {
            return Err(CannotFinish);
        }
        batch.copy_part(i, 0, &mut self.headers[..header_len]);
        self.payload = payload;
        (self.header_len, self.l3, self.l4, self.mss) = (header_len, l3, l4, mss);
        self.ipv6 = ipv6;
        self.udp = o.gso_type == GSO_UDP_L4;
        (self.done, self.index) = (0, 0);
        Ok(segments)
    }

    /// Adds the next segments of frame `i`, with which the segmenter began, to `scratch` while
    /// `scratch` has room. Returns true if the segmenter has added all segments.
    pub fn fill(&mut self, batch: &Batch, i: usize, scratch: &mut Batch) -> bool {
        loop {
            let from = self.done;
            let to = (from + self.mss).min(self.payload);
            let len = self.header_len + (to - from);
            if !scratch.has_room() {
                return false;
            }
            let Some(bytes) = scratch.arena_space(len) else { return false };
            bytes[..self.header_len].copy_from_slice(&self.headers[..self.header_len]);
            batch.copy_part(i, self.header_len + from, &mut bytes[self.header_len..]);
            let last = to == self.payload;
            self.patch(bytes, from, last);
            scratch.push_arena(len, Offload::NONE);
            self.done = to;
            self.index = self.index.wrapping_add(1);
            if last {
                return true;
            }
        }
    }

    /// Sets the lengths, the IP identification, the TCP sequence number, the flags and the
    /// checksums of a segment, which begins at byte `offset` of the payload.
    fn patch(&self, bytes: &mut [u8], offset: usize, last: bool) {
        let (l3, l4) = (self.l3, self.l4);
        let l3_len = bytes.len() - l3;
        let l4_len = bytes.len() - l4;
        let word = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
        let addresses = if self.ipv6 {
            bytes[l3 + 4..l3 + 6].copy_from_slice(&word(l3_len - 40));
            l3 + 8..l3 + 40
        } else {
            bytes[l3 + 2..l3 + 4].copy_from_slice(&word(l3_len));
            let id = u16::from_be_bytes([bytes[l3 + 4], bytes[l3 + 5]]).wrapping_add(self.index);
            bytes[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            bytes[l3 + 10..l3 + 12].fill(0);
            let own = checksum(sum(&bytes[l3..l4], 0));
            bytes[l3 + 10..l3 + 12].copy_from_slice(&own.to_be_bytes());
            l3 + 12..l3 + 20
        };
        if self.udp {
            bytes[l4 + 4..l4 + 6].copy_from_slice(&word(l4_len));
        } else {
            tcp_position(&mut bytes[l4..], offset, last);
        }
        let (field, protocol) = if self.udp { (l4 + 6, 17) } else { (l4 + 16, 6) };
        bytes[field..field + 2].fill(0);
        let length = u64::try_from(l4_len).unwrap_or(0);
        let pseudo = sum(&bytes[addresses], protocol + length);
        let own = checksum(sum(&bytes[l4..], pseudo));
        // In UDP, a checksum of zero means "none" (RFC 768).
        let own = if self.udp && own == 0 { 0xffff } else { own };
        bytes[field..field + 2].copy_from_slice(&own.to_be_bytes());
    }
}

/// Sets the sequence number and the flags of a TCP segment, which begins at byte `offset` of the
/// payload.
fn tcp_position(tcp: &mut [u8], offset: usize, last: bool) {
    let mut sequence = [0; 4];
    sequence.copy_from_slice(&tcp[4..8]);
    let moved = u32::try_from(offset).unwrap_or(u32::MAX);
    let sequence = u32::from_be_bytes(sequence).wrapping_add(moved);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if !last {
        tcp[13] &= !0x09; // FIN and PSH belong to the last segment only
    }
    if offset > 0 {
        tcp[13] &= !0x80; // CWR to the first only (RFC 3168 §6.1.2)
    }
}

impl Default for Segmenter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{F_NEEDS_CSUM, GSO_TCPV4};

    const PAYLOAD: usize = 4000;

    /// Returns a TCP frame with a payload of `PAYLOAD` bytes, and the offload metadata that a
    /// guest's network stack sets.
    fn tcp(ipv6: bool, vlan: bool) -> (Vec<u8>, Offload) {
        let mut f = vec![2; 12];
        if vlan {
            f.extend([0x81, 0, 0, 7]);
        }
        let l3 = f.len() + 2;
        let l4_len = u16::try_from(32 + PAYLOAD).unwrap();
        if ipv6 {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend(l4_len.to_be_bytes());
            f.extend([6, 64]);
            f.extend([0xfd; 32]);
        } else {
            f.extend([8, 0, 0x45, 0]);
            f.extend((l4_len + 20).to_be_bytes());
            f.extend([0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let l4 = f.len();
        f.extend([0, 80, 0, 81, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x80, 0x99, 1, 1, 0, 0, 0, 0]);
        f.extend([1; 12]); // options
        f.extend((0..=250_u8).cycle().take(PAYLOAD));
        let addresses = if ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let pseudo = !checksum(sum(&f[addresses], 6 + u64::from(l4_len)));
        f[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: if ipv6 { GSO_TCPV6 } else { GSO_TCPV4 },
            hdr_len: u16::try_from(l4 + 32).unwrap(),
            gso_size: 1448,
            csum_start: u16::try_from(l4).unwrap(),
            csum_offset: 16,
        };
        (f, offload)
    }

    fn batch_of(bytes: &[u8], offload: Offload, tagged: bool) -> Box<Batch> {
        let mut batch = Batch::new();
        batch.push(bytes, offload).unwrap();
        batch.frame_mut(0).tagged = tagged;
        batch
    }

    fn bytes_of(batch: &Batch, i: usize) -> Vec<u8> {
        let mut out = Vec::new();
        batch.copy_out(i, &mut out);
        out
    }

    /// Whether the transport checksum over the pseudo-header and the segment folds to zero.
    fn l4_is_right(f: &[u8], l3: usize, l4: usize, ipv6: bool) -> bool {
        let addresses = if ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let len = u64::try_from(f.len() - l4).unwrap();
        checksum(sum(&f[l4..], sum(&f[addresses], 6 + len))) == 0
    }

    #[test]
    fn an_unfinished_checksum_is_finished() {
        for ipv6 in [false, true] {
            let (bytes, mut offload) = tcp(ipv6, false);
            offload.gso_type = 0;
            let mut scratch = Batch::new();
            finish_checksum(&batch_of(&bytes, offload, false), 0, &mut scratch).unwrap();
            let out = bytes_of(&scratch, 0);
            assert!(l4_is_right(&out, 14, usize::from(offload.csum_start), ipv6));
            assert!(scratch.frame(0).offload.is_none());
        }
    }

    #[test]
    fn a_large_segment_becomes_frames_that_a_receiver_puts_together_again() {
        for (ipv6, vlan) in [(false, false), (true, false), (false, true), (true, true)] {
            let (bytes, offload) = tcp(ipv6, vlan);
            let batch = batch_of(&bytes, offload, vlan);
            let (mut scratch, mut segmenter) = (Batch::new(), Segmenter::new());
            assert_eq!(segmenter.begin(&batch, 0, 3), Ok(3));
            assert!(segmenter.fill(&batch, 0, &mut scratch));
            assert_eq!(scratch.len(), 3);
            let (l3, l4) = (if vlan { 18 } else { 14 }, usize::from(offload.csum_start));
            let mut payload = Vec::new();
            for i in 0..3 {
                let f = bytes_of(&scratch, i);
                let n = payload.len();
                assert!(l4_is_right(&f, l3, l4, ipv6), "segment {i}");
                let seq = u32::from_be_bytes(f[l4 + 4..l4 + 8].try_into().unwrap());
                assert_eq!(seq, 0xffff_ff00_u32.wrapping_add(u32::try_from(n).unwrap()));
                if ipv6 {
                    assert_eq!(
                        usize::from(u16::from_be_bytes([f[l3 + 4], f[l3 + 5]])),
                        f.len() - l4
                    );
                } else {
                    assert_eq!(
                        usize::from(u16::from_be_bytes([f[l3 + 2], f[l3 + 3]])),
                        f.len() - l3
                    );
                    assert_eq!(checksum(sum(&f[l3..l4], 0)), 0, "header of segment {i}");
                    let id = u16::from_be_bytes([f[l3 + 4], f[l3 + 5]]);
                    assert_eq!(id, 0xffff_u16.wrapping_add(u16::try_from(i).unwrap()));
                }
                // CWR, PSH and FIN were set: CWR stays on the first, the others on the last.
                let want = [0x90, 0x10, 0x19][i];
                assert_eq!(f[l4 + 13], want, "flags of segment {i}");
                payload.extend_from_slice(&f[l4 + 32..]);
            }
            assert_eq!(payload, bytes[l4 + 32..]);
        }
    }

    #[test]
    fn each_segment_has_the_options_behind_the_private_head() {
        let (plain, offload) = tcp(false, false);
        let (l3, l4, end) = (14, 74, 134);
        assert!(end > HEAD_COPY);
        // 40 bytes of options in the IP header, and 28 bytes more in the TCP header.
        let parts = [&plain[..34], &[1; 40][..], &plain[34..66], &[3; 28][..], &plain[66..]];
        let mut bytes = parts.concat();
        (bytes[l3], bytes[l4 + 12]) = (0x4f, 0xf0);
        let offload = Offload { hdr_len: 134, csum_start: 74, ..offload };
        for vlan in [false, true] {
            let mut batch = batch_of(&bytes, offload, false);
            batch.set_tagged(0, vlan);
            let (mut scratch, mut segmenter) = (Batch::new(), Segmenter::new());
            assert_eq!(segmenter.begin(&batch, 0, 3), Ok(3));
            assert!(segmenter.fill(&batch, 0, &mut scratch));
            let (tag, mut payload) = (if vlan { 4 } else { 0 }, Vec::new());
            for i in 0..3 {
                let f = bytes_of(&scratch, i);
                assert!(l4_is_right(&f, l3 + tag, l4 + tag, false), "segment {i}");
                assert_eq!(f[l4 + tag + 20..end + tag], bytes[l4 + 20..end]);
                payload.extend_from_slice(&f[end + tag..]);
            }
            assert_eq!(payload, bytes[end..]);
        }
    }

    #[test]
    fn a_large_udp_segment_becomes_datagrams() {
        for ipv6 in [false, true] {
            // The first 8 bytes of the TCP header stand for UDP's, and the rest is payload.
            let (mut bytes, offload) = tcp(ipv6, false);
            let (l3, l4) = (14, usize::from(offload.csum_start));
            bytes[if ipv6 { l3 + 6 } else { l3 + 9 }] = 17;
            let hdr_len = u16::try_from(l4 + 8).unwrap();
            let uso = Offload { gso_type: GSO_UDP_L4, csum_offset: 6, hdr_len, ..offload };
            let (mut scratch, mut segmenter) = (Batch::new(), Segmenter::new());
            let batch = batch_of(&bytes, uso, false);
            assert_eq!(segmenter.begin(&batch, 0, 3), Ok(3));
            assert!(segmenter.fill(&batch, 0, &mut scratch));
            let mut payload = Vec::new();
            for i in 0..3 {
                let f = bytes_of(&scratch, i);
                let addresses = if ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
                let len = u64::try_from(f.len() - l4).unwrap();
                let pseudo = sum(&f[addresses], 17 + len);
                assert_eq!(checksum(sum(&f[l4..], pseudo)), 0, "datagram {i}");
                assert_eq!(f[l4..l4 + 4], bytes[l4..l4 + 4], "ports");
                let length = u16::from_be_bytes([f[l4 + 4], f[l4 + 5]]);
                assert_eq!(u64::from(length), len);
                payload.extend_from_slice(&f[l4 + 8..]);
            }
            assert_eq!(payload, bytes[l4 + 8..]);
        }
    }

    #[test]
    fn a_frame_that_would_make_a_thousand_segments_is_refused() {
        let (bytes, mut offload) = tcp(false, false);
        offload.gso_size = 1;
        let mut segmenter = Segmenter::new();
        assert_eq!(
            segmenter.begin(&batch_of(&bytes, offload, false), 0, SEGMENTS_PER_FRAME_MAX),
            Err(CannotFinish)
        );
        offload.gso_size = 32;
        assert_eq!(
            segmenter.begin(&batch_of(&bytes, offload, false), 0, SEGMENTS_PER_FRAME_MAX),
            Ok(125)
        );
    }

    #[test]
    fn a_segment_list_longer_than_a_batch_is_handed_out_in_parts() {
        let (bytes, mut offload) = tcp(false, false);
        offload.gso_size = 32;
        let (mut scratch, mut segmenter) = (Batch::new(), Segmenter::new());
        let batch = batch_of(&bytes, offload, false);
        segmenter.begin(&batch, 0, SEGMENTS_PER_FRAME_MAX).unwrap();
        let mut total = 0;
        loop {
            scratch.clear();
            let done = segmenter.fill(&batch, 0, &mut scratch);
            total += scratch.len();
            if done {
                break;
            }
        }
        assert_eq!(total, 125);
    }

    #[test]
    fn sums_match_the_textbook() {
        // RFC 1071 §3's example.
        assert_eq!(!checksum(sum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7], 0)), 0xddf2);
        assert_eq!(checksum(sum(&[0xff], 0)), 0x00ff);
    }
}
