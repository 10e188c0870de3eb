//! The input is a virtio-net header and a frame. The target checks what the classifier parses, and
//! how egress finishes checksums and segments for an output without offloads.
//!
//! **Rule.** Parsed offsets are inside the frame's head. The parser agrees with `etherparse` except
//! where documented. Checksums and segments made in software equal those of a simple reference
//! implementation (RFC 1071, RFC 9293).

use penstock_dataplane::batch::{Batch, FRAME_MIN, HEAD_COPY};
use penstock_dataplane::finish::{SEGMENTS_PER_FRAME_MAX, Segmenter, finish_checksum};
use penstock_dataplane::headers::parse::{Headers, parse};
use penstock_dataplane::offload::{Offload, VNET_HDR_LEN};

use crate::input::Input;

#[path = "../../crates/dataplane/tests/all/oracle/headers.rs"]
mod oracle;

/// Frames are padded to this length class so that large segments need no large inputs.
const PAD: usize = 64;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (pad, retag) = (usize::from(input.u8()), input.bool());
    let offload = Offload::from_guest(&input.bytes::<VNET_HDR_LEN>());
    let mut frame = input.slice(2048).to_vec();
    if frame.len() < FRAME_MIN {
        return;
    }
    frame.resize(frame.len() + pad * PAD, 0x5a);
    oracle::agree(&frame);

    let mut batch = Batch::new();
    batch.push(&frame, offload).expect("an empty batch takes a frame");
    let Ok(h) = parse(&mut batch, 0, 7) else { return };
    check_offsets(&h, frame.len());
    let mut bytes = Vec::new();
    batch.copy_out(0, &mut bytes);
    if retag {
        // Adding and removing a VLAN tag restores the frame and its metadata.
        let before = (bytes.clone(), batch.frame(0).offload);
        batch.set_tagged(0, true);
        batch.set_tagged(0, false);
        bytes.clear();
        batch.copy_out(0, &mut bytes);
        assert_eq!((bytes.clone(), batch.frame(0).offload), before);
    }
    let offload = batch.frame(0).offload;
    if offload.is_gso() {
        cut(&batch, &bytes, offload);
    } else if offload.needs_csum() {
        finish(&batch, &bytes, offload);
    }
}

fn check_offsets(h: &Headers, len: usize) {
    let head = len.min(HEAD_COPY);
    assert!(usize::from(h.l4) + 4 <= HEAD_COPY);
    assert!(usize::from(h.l4_end) <= len);
    assert!(h.nd_target == 0 || usize::from(h.nd_target) + 16 <= head);
    assert!(h.nd_link_layer == 0 || usize::from(h.nd_link_layer) + 6 <= head);
}

/// Computes the ones' complement sum of 16-bit words (RFC 1071 §4.1).
fn slow_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    u16::try_from(sum).unwrap_or(0)
}

fn finish(batch: &Batch, bytes: &[u8], offload: Offload) {
    let mut scratch = Batch::new();
    let (start, offset) = (usize::from(offload.csum_start), usize::from(offload.csum_offset));
    finish_checksum(batch, 0, &mut scratch).expect("metadata that the classifier checked");
    let mut out = Vec::new();
    scratch.copy_out(0, &mut out);
    assert_eq!(scratch.frame(0).offload, Offload::NONE);
    let field = start + offset..start + offset + 2;
    let sum = !slow_sum(&[&bytes[start..]]);
    let sum = if sum == 0 { 0xffff } else { sum };
    let mut wanted = bytes.to_vec();
    wanted[field].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(out, wanted, "checksum finished in software");
}

fn cut(batch: &Batch, bytes: &[u8], offload: Offload) {
    let mut segmenter = Segmenter::new();
    let Ok(count) = segmenter.begin(batch, 0, SEGMENTS_PER_FRAME_MAX) else { return };
    let (header, mss) = (usize::from(offload.hdr_len), usize::from(offload.gso_size));
    let (mut scratch, mut segments) = (Batch::new(), Vec::new());
    loop {
        scratch.clear();
        let done = segmenter.fill(batch, 0, &mut scratch);
        for i in 0..scratch.len() {
            let mut out = Vec::new();
            scratch.copy_out(i, &mut out);
            segments.push(out);
        }
        assert!(!scratch.is_empty(), "no progress in segmentation");
        if done {
            break;
        }
    }
    assert_eq!(segments.len(), count, "announced and actual number of segments");
    let payload: Vec<u8> = segments.iter().flat_map(|s| &s[header..]).copied().collect();
    assert_eq!(payload, bytes[header..], "the payload of all segments");
    for segment in &segments {
        assert!(segment.len() - header <= mss, "a segment longer than the MSS");
        let (l3, l4) = (14, usize::from(offload.csum_start));
        let length = u32::try_from(segment.len() - l4).unwrap_or(0).to_be_bytes();
        let addresses = if segment[l3] >> 4 == 6 {
            l3 + 8..l3 + 40
        } else {
            assert_eq!(slow_sum(&[&segment[l3..l4]]), 0xffff, "IPv4 header checksum");
            l3 + 12..l3 + 20
        };
        let sum = slow_sum(&[&segment[addresses], &length, &[0, 6], &segment[l4..]]);
        assert_eq!(sum, 0xffff, "TCP checksum");
    }
}
