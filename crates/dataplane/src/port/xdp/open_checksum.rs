//! Completes checksums that the kernel at the other end of a software interface left incomplete.
//!
//! # Problem
//! A network stack that sends through a veth writes only the pseudo-header's sum into the checksum
//! field of TCP and UDP. The stack records in metadata that the checksum is incomplete, but an XDP
//! program cannot see this metadata. The receiver would drop a frame with an incomplete checksum.
//!
//! # Approach
//! If a frame's checksum field equals the pseudo-header's sum, the port completes the checksum in
//! its own memory, before any other stage reads the frame. A correct checksum that happens to equal
//! the pseudo-header's sum stays unchanged, because the computation yields the same value.
//!
//! # Source
//! The sources for checksums are RFC 1071, RFC 9293 §3.1, RFC 768 and RFC 8200 §8.1.
//!
//! # Cost
//! On software interfaces, the port reads the headers of each frame, and all bytes of frames with
//! an incomplete checksum. On interfaces other than software interfaces, the port does not look at
//! checksums.

use crate::finish::{checksum, sum};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Location of a frame's transport header, and the sum of the frame's pseudo-header.
struct Transport {
    start: usize,
    end: usize,
    field: usize,
    pseudo: u16,
}

/// Completes the frame's TCP or UDP checksum if the checksum is incomplete. Returns whether the
/// checksum was incomplete.
pub(super) fn finish(frame: &mut [u8]) -> bool {
    let Some(t) = transport(frame) else { return false };
    if frame[t.field..t.field + 2] != t.pseudo.to_be_bytes() {
        return false;
    }
    // The field contains the pseudo-header's sum, so the sum over transport header and payload
    // includes the pseudo-header.
    let sum = checksum(sum(&frame[t.start..t.end], 0));
    // RFC 768: a UDP checksum of zero means "none", and all ones is the same number. For TCP the
    // replacement does no harm.
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[t.field..t.field + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Finds a complete TCP or UDP header directly after an IP header. Returns `None` for fragments and
/// for frames with extension headers.
fn transport(frame: &[u8]) -> Option<Transport> {
    let word = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let tagged = matches!(word(12)?, 0x8100 | 0x88a8);
    let ip_at = if tagged { 18 } else { 14 };
    let ip = frame.get(ip_at..)?;
    let (header, protocol, len, addresses) = match word(ip_at - 2)? {
        0x0800 => {
            let first = ip.get(..20)?;
            let header = usize::from(first[0] & 0xf) * 4;
            let fragment = u16::from_be_bytes([first[6] & 0x3f, first[7]]) != 0;
            if first[0] >> 4 != 4 || header < 20 || fragment {
                return None;
            }
            let total = usize::from(u16::from_be_bytes([first[2], first[3]]));
            (header, first[9], total.checked_sub(header)?, &first[12..20])
        }
        0x86dd => {
            let first = ip.get(..40)?;
            let len = usize::from(u16::from_be_bytes([first[4], first[5]]));
            (40, first[6], len, &first[8..40])
        }
        _ => return None,
    };
    let (least, field) = match protocol {
        TCP => (20, 16),
        UDP => (8, 6),
        _ => return None,
    };
    let start = ip_at + header;
    let end = start + len;
    if len < least || end > frame.len() {
        return None;
    }
    let pseudo = !checksum(sum(addresses, u64::from(protocol) + len as u64));
    Some(Transport { start, end, field: start + field, pseudo })
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    /// Makes one frame of each kind that can have an incomplete checksum. A library other than the
    /// code under test computes the expected checksums.
    fn frames() -> Vec<Vec<u8>> {
        let made = |payload: &[u8], tagged: bool, ipv6: bool, tcp: bool| {
            let mut out = Vec::new();
            let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let ip = if ipv6 {
                link.ipv6([1; 16], [0xfd; 16], 9)
            } else {
                link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9)
            };
            if tcp {
                ip.tcp(40_000, 80, 5, 6).write(&mut out, payload).unwrap();
            } else {
                ip.udp(40_000, 53).write(&mut out, payload).unwrap();
            }
            if tagged {
                out.splice(12..12, [0x81, 0, 0, 7]);
            }
            out
        };
        let payloads: [&[u8]; 4] = [b"", b"x", b"hello", &[0xa5; 999]];
        let mut all = Vec::new();
        for payload in payloads {
            for n in 0..8 {
                all.push(made(payload, n & 1 != 0, n & 2 != 0, n & 4 != 0));
            }
        }
        all
    }

    fn open(frame: &[u8]) -> Vec<u8> {
        let mut open = frame.to_vec();
        let t = transport(frame).unwrap();
        open[t.field..t.field + 2].copy_from_slice(&t.pseudo.to_be_bytes());
        open
    }

    #[test]
    fn an_open_checksum_is_finished_and_a_finished_one_stays() {
        for whole in frames() {
            let mut frame = whole.clone();
            assert!(!finish(&mut frame) && frame == whole);
            let mut frame = open(&whole);
            assert!(frame != whole && finish(&mut frame));
            assert_eq!(frame, whole);
            // Padding after the datagram is not part of the datagram.
            let mut padded = open(&whole);
            padded.extend([0xee; 9]);
            assert!(finish(&mut padded) && padded.starts_with(&whole));
        }
    }

    #[test]
    fn a_wrong_checksum_stays_wrong() {
        for whole in frames() {
            let mut frame = whole;
            let last = frame.len() - 1;
            frame[last] ^= 1;
            let before = frame.clone();
            assert!(!finish(&mut frame) && frame == before);
        }
    }

    #[test]
    fn what_is_cut_off_or_a_fragment_is_left_alone() {
        for whole in frames() {
            let open = open(&whole);
            for len in 0..open.len() {
                assert!(!finish(&mut open[..len].to_vec()), "{len} bytes of {}", open.len());
            }
        }
        let mut fragment = open(&frames()[0]);
        fragment[20] = 0x20;
        assert!(!finish(&mut fragment));
        fragment[20..22].copy_from_slice(&[0, 1]);
        assert!(!finish(&mut fragment));
        fragment[20..22].copy_from_slice(&[0x40, 0]);
        assert!(finish(&mut fragment), "do not fragment");
    }
}
