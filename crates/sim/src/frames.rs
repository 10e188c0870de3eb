//! Ethernet frames for simulated traffic.

use penstock_dataplane::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload};
use penstock_dataplane::port::memory_queue::MemoryFrame;
use penstock_units::MacAddr;

/// Number of bytes that Ethernet adds to a frame on a link: FCS, preamble, start delimiter and gap.
const OVERHEAD: u64 = 24;
/// Length in bytes of the headers of Ethernet, IPv4 and TCP without options.
const TCP_HEADERS: u16 = 54;
/// Value of the IP header's type of service if the sender supports ECN (ECT(0), RFC 3168).
const ECT_0: u8 = 2;

fn word(n: usize) -> [u8; 2] {
    u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes()
}

/// Returns the headers of Ethernet and IPv4 of a frame of `len` bytes, with room for the frame. The
/// IP addresses are 10.x.x.x, with the last three bytes of the MAC addresses.
fn headers(source: MacAddr, target: MacAddr, len: usize, (service, protocol): (u8, u8)) -> Vec<u8> {
    let mut f = Vec::with_capacity(len);
    f.extend(target.0);
    f.extend(source.0);
    f.extend([8, 0, 0x45, service]);
    f.extend(word(len - 14));
    f.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    f.extend([10, source.0[3], source.0[4], source.0[5]]);
    f.extend([10, target.0[3], target.0[4], target.0[5]]);
    let header = penstock_dataplane::finish::sum(&f[14..34], 0);
    let checksum = penstock_dataplane::finish::checksum(header);
    f[24..26].copy_from_slice(&checksum.to_be_bytes());
    f
}

/// Creates a UDP frame of `len` bytes (without FCS, 60 to 65000) from `source` to `target`. `flow`
/// is the UDP source port. The first 8 bytes of the payload are `sequence`. The IP addresses are
/// 10.x.x.x, with the last three bytes of the MAC addresses.
#[must_use]
pub fn udp_frame(
    source: MacAddr,
    target: MacAddr,
    len: usize,
    flow: u16,
    sequence: u64,
) -> Vec<u8> {
    let len = len.clamp(60, 65_000);
    let mut f = headers(source, target, len, (0, 17));
    f.extend(flow.to_be_bytes());
    f.extend([0, 9]);
    f.extend(word(len - 34));
    f.extend([0, 0]);
    f.extend(sequence.to_be_bytes());
    f.resize(len, 0);
    f
}

/// Creates a large TCP segment (TSO) from `source` to `target`, which becomes `parts` frames with
/// `payload` bytes of payload each. `parts` times `payload` must be below 65,000. `flow` is the TCP
/// source port. If `ecn` is true, the sender supports ECN (RFC 3168).
#[must_use]
pub fn tcp_segment(
    source: MacAddr,
    target: MacAddr,
    (parts, payload): (u16, u16),
    flow: u16,
    ecn: bool,
) -> MemoryFrame {
    let len = usize::from(TCP_HEADERS) + usize::from(parts) * usize::from(payload);
    let mut f = headers(source, target, len, (if ecn { ECT_0 } else { 0 }, 6));
    f.extend(flow.to_be_bytes());
    f.extend([0, 9]);
    // Sequence and acknowledgement number, the length of the header (five words), the flag ACK, the
    // window, the unfinished checksum and the urgent pointer.
    f.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    f.resize(len, 0);
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: TCP_HEADERS,
        gso_size: payload,
        csum_start: 34,
        csum_offset: 16,
    };
    MemoryFrame { bytes: f, offload }
}

/// Returns the bytes that a frame occupies on a link, including FCS, preamble and gap. A large
/// segment occupies the bytes of the frames that it becomes, each with its own headers.
#[must_use]
pub fn wire_bytes(frame: &MemoryFrame) -> u64 {
    let (len, offload) = (frame.bytes.len() as u64, frame.offload);
    if !offload.is_gso() || offload.gso_size == 0 {
        return len + OVERHEAD;
    }
    let headers = u64::from(offload.hdr_len);
    let parts = len.saturating_sub(headers).div_ceil(offload.gso_size.into()).max(1);
    len + (parts - 1) * headers + parts * OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_segment_is_what_a_guest_would_send() {
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let frame = tcp_segment(a, b, (44, 1_460), 7, true);
        let len = u32::try_from(frame.bytes.len()).unwrap();
        assert_eq!(len, 54 + 44 * 1_460);
        let mut offload = frame.offload;
        assert_eq!(offload.check(34, 6, 54, false, len), Ok(()));
        assert_eq!(offload.hdr_len, frame.offload.hdr_len);
        assert_eq!((frame.bytes[15] & 3, &frame.bytes[34..36]), (2, &[0, 7][..]));
        // Each part has 1,514 bytes without FCS.
        assert_eq!(wire_bytes(&frame), 44 * (1_514 + 24));
        assert_eq!(wire_bytes(&MemoryFrame::plain(udp_frame(a, b, 60, 7, 1))), 84);
    }
}
