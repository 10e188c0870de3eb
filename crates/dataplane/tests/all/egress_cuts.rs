//! A worker's turn has a limited length even if its frames request segmentation into thousands of
//! segments (datapath rule 20).

use penstock_dataplane::batch::{BATCH_FRAMES, Batch, Verdict};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::finish::CUTS_PER_TURN_MAX;
use penstock_dataplane::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload, OffloadCaps};

use crate::common::{access, deliver, one_network};

/// Returns a TCP/IPv4 frame with 54 bytes of headers and `payload` bytes of payload.
fn frame(payload: usize) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend(u16::try_from(40 + payload).unwrap().to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 1, 0, 0, 0, 0]);
    bytes.resize(54 + payload, 7);
    bytes
}

/// Sends `frames` frames with the given payload and segment size to a port without offloads, in one
/// turn. Returns the number of frames that the port received, and the number of refused frames.
fn cut(frames: usize, payload: usize, mss: u16) -> (usize, u64) {
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: mss,
        csum_start: 34,
        csum_offset: 16,
    };
    let mut batch = Batch::new();
    for i in 0..frames {
        batch.push(&frame(payload), offload).unwrap();
        batch.frame_mut(i).verdict = Verdict::Output(1);
    }
    let snapshot = one_network([access(0), access(1)]);
    let (reading, driver) = deliver(&mut batch, &snapshot, OffloadCaps::NONE);
    let got = core::iter::from_fn(|| driver.receive()).count();
    (got, reading.drops[DropReason::TooBig as usize])
}

#[test]
fn a_turn_cuts_no_more_than_a_few_hundred_segments() {
    let (got, refused) = cut(BATCH_FRAMES, 120, 1);
    assert_eq!((got, refused), (240, 30), "two frames of 120 segments fit");
    assert!(got <= CUTS_PER_TURN_MAX);
}

#[test]
fn honest_segments_are_all_cut() {
    assert_eq!(cut(2, 60_000, 1448), (84, 0));
    assert_eq!(cut(2, 64_000, 536), (240, 0));
    assert_eq!(cut(BATCH_FRAMES, 1900, 536), (128, 0));
}
