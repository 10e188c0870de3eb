//! Writes the DSCP into a frame's private head, and reads what an output's queues need from it.
//!
//! RFC 1624 computes the new IPv4 header checksum HC' from the old checksum HC and a word that
//! changes from m to m': `HC' = ~(~HC + ~m + m')`. In `set_dscp` the IP header begins at byte 14,
//! because the parser has removed the VLAN tag.

use super::key::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use super::parse::{HeaderFlags, L3, TCP, is_tag};

/// ECN bits of a frame whose sender does not support ECN (RFC 3168 §5).
const NOT_ECT: u8 = 0;
/// ECN bits of a frame whose sender expects frequent marks at a short wait (L4S, RFC 9331 §4.1).
const ECT_1: u8 = 1;
/// ECN bits that mean "congestion experienced" (RFC 3168 §5).
const CE: u8 = 3;
/// Bits of an IPv4 header's fragment word that are 0 in a whole packet: MF and the offset.
const FRAGMENT: u16 = 0x3fff;
const IPV6_HEADER: usize = 40;
/// Flags of TCP that decide about a pure acknowledgement: URG, ACK, RST, SYN and FIN.
const ACK_MASK: u8 = 0x37;
const ACK: u8 = 0x10;

/// Writes `dscp` (6 bits) into the IP header of `head` and keeps the ECN bits. A frame that is not
/// IP, or that is too short for an IP header, stays unchanged.
#[inline]
pub fn set_dscp(head: &mut [u8], flags: HeaderFlags, dscp: u8) {
    set_traffic_class(head, flags, |before| dscp << 2 | before & 3);
}

/// Changes the byte of the IP header that contains the DSCP and the ECN bits.
#[inline]
fn set_traffic_class(head: &mut [u8], flags: HeaderFlags, change: impl Fn(u8) -> u8) {
    if flags.has(HeaderFlags::IPV4) {
        let Some(ip) = head.get_mut(L3..L3 + 20) else { return };
        let before = u16::from_be_bytes([ip[0], ip[1]]);
        ip[1] = change(ip[1]);
        let after = u16::from_be_bytes([ip[0], ip[1]]);
        let sum = u16::from_be_bytes([ip[10], ip[11]]);
        let wide = u32::from(!sum) + u32::from(!before) + u32::from(after);
        let once = (wide & 0xffff) + (wide >> 16);
        #[expect(clippy::cast_possible_truncation, reason = "a sum folded twice fits 16 bits")]
        let folded = ((once & 0xffff) + (once >> 16)) as u16;
        ip[10..12].copy_from_slice(&(!folded).to_be_bytes());
    } else if flags.has(HeaderFlags::IPV6) {
        let Some(ip) = head.get_mut(L3..L3 + 2) else { return };
        let class = change(ip[0] << 4 | ip[1] >> 4);
        ip[0] = ip[0] & 0xf0 | class >> 4;
        ip[1] = ip[1] & 0x0f | class << 4;
    }
}

/// Maximum number of VLAN tags that the switch skips to write a DSCP into an IP header. The
/// controller's programs on fabric switches (`southbound/linux_tc`) skip the same number of tags.
/// If the virtual switch skipped fewer tags than the fabric switches, a sender could keep its own
/// DSCP by adding a tag.
const TAGS_MAX: usize = 2;

/// Returns the length in bytes of the VLAN tags before the IP header, and the IP version as a flag.
/// `None` if the frame is not IP.
pub(crate) fn ip_of(head: &[u8]) -> Option<(usize, HeaderFlags)> {
    for tags in 0..=TAGS_MAX {
        let at = L3 - 2 + 4 * tags;
        let ethertype = u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?]);
        match ethertype {
            ETHERTYPE_IPV4 => return Some((4 * tags, HeaderFlags::IPV4)),
            ETHERTYPE_IPV6 => return Some((4 * tags, HeaderFlags::IPV6)),
            _ if is_tag(ethertype) => {}
            _ => return None,
        }
    }
    None
}

/// DSCP of a frame that begins with `head`, with or without VLAN tags. The DSCP is 0 if the frame
/// is not IP.
#[inline]
pub(crate) fn dscp_of(head: &[u8]) -> u8 {
    let Some((tag, flags)) = ip_of(head) else { return 0 };
    let Some(&[first, second]) = head.get(L3 + tag..L3 + tag + 2).and_then(|h| h.first_chunk())
    else {
        return 0;
    };
    if flags.has(HeaderFlags::IPV4) { second >> 2 } else { (first & 0xf) << 2 | second >> 6 }
}

/// Whether a frame that begins with `head` is a pure acknowledgement: a segment of TCP without
/// data, SYN, FIN, RST and URG. The IP header has the length, because Ethernet pads short frames.
/// IPv6 packets with extension headers are no pure acknowledgements. Returns `None` for fragments
/// and for frames that are no IP packets with a whole header.
#[inline]
pub(crate) fn is_pure_ack(head: &[u8]) -> Option<bool> {
    let (tag, version) = ip_of(head)?;
    let ip = head.get(L3 + tag..)?;
    let word = |at: usize| Some(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?]));
    let (protocol, tcp, length) = if version.has(HeaderFlags::IPV4) {
        if word(6)? & FRAGMENT != 0 {
            return None;
        }
        let header = 4 * usize::from(ip.first()? & 0xf);
        (*ip.get(9)?, header, usize::from(word(2)?).checked_sub(header)?)
    } else {
        (*ip.get(6)?, IPV6_HEADER, usize::from(word(4)?))
    };
    let (offset, flags) = (*ip.get(tcp + 12)?, *ip.get(tcp + 13)?);
    let is_bare = 4 * usize::from(offset >> 4) == length;
    Some(protocol == TCP && flags & ACK_MASK == ACK && is_bare)
}

/// Writes `dscp` into a frame that begins with `head`, with or without VLAN tags. Returns the
/// previous DSCP. If the frame is not IP or is too short, the frame stays unchanged and the result
/// is `None`.
#[inline]
pub(crate) fn mark(head: &mut [u8], dscp: u8) -> Option<u8> {
    let (tag, flags) = ip_of(head)?;
    let before = dscp_of(head);
    if head.len() < tag + L3 + 20 {
        return None;
    }
    set_dscp(&mut head[tag..], flags, dscp);
    Some(before)
}

/// Returns the ECN bits of a frame that begins with `head`, with or without VLAN tags. The bits are
/// 0 (not capable of ECN) if the frame is not IP.
fn ecn_of(head: &[u8]) -> u8 {
    let Some((tag, flags)) = ip_of(head) else { return NOT_ECT };
    let Some(&[_, second]) = head.get(L3 + tag..L3 + tag + 2).and_then(|h| h.first_chunk()) else {
        return NOT_ECT;
    };
    if flags.has(HeaderFlags::IPV4) { second & 3 } else { second >> 4 & 3 }
}

/// Whether the sender of a frame supports ECN, so that a mark in the frame signals congestion (RFC
/// 3168 §5).
pub(crate) fn is_ect(head: &[u8]) -> bool {
    ecn_of(head) != NOT_ECT
}

/// Whether a frame has a congestion mark (RFC 3168 §5).
pub(crate) fn is_ce(head: &[u8]) -> bool {
    ecn_of(head) == CE
}

/// Whether the sender of a frame expects marks at a short wait (L4S, RFC 9331).
pub(crate) fn is_l4s(head: &[u8]) -> bool {
    ecn_of(head) == ECT_1
}

/// Marks a frame that begins with `head` as "congestion experienced" (RFC 3168 §5). A frame whose
/// sender does not support ECN stays unchanged.
pub(crate) fn mark_congestion(head: &mut [u8]) {
    if let Some((tag, flags)) = ip_of(head)
        && is_ect(head)
    {
        set_traffic_class(&mut head[tag..], flags, |before| before | CE);
    }
}

#[cfg(test)]
mod tests {
    use penstock_testing::segment;

    use super::*;

    /// Builds an IP header with a correct checksum, after a VLAN tag if `tagged` is true. Returns
    /// the bytes of the frame's head and the IP header's offset.
    fn ip(version: u8, tagged: bool, tos: u8) -> (Vec<u8>, usize) {
        let mut frame = vec![2_u8; 12];
        if tagged {
            frame.extend([0x81, 0, 0, 100]);
        }
        frame.extend(if version == 4 { [8, 0] } else { [0x86, 0xdd] });
        let at = frame.len();
        if version == 4 {
            frame.extend([0x45, tos, 0, 20, 1, 2, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = checksum(&frame[at..]);
            frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            frame.extend([0x60 | tos >> 4, tos << 4 | 0xa]);
            frame.resize(at + 40, 7);
        }
        (frame, at)
    }

    #[test]
    fn only_a_frame_that_supports_ecn_is_marked_and_keeps_its_code_point() {
        for (version, tagged) in [(4, false), (4, true), (6, false), (6, true)] {
            for ecn in 0..4 {
                let (mut frame, at) = ip(version, tagged, 46 << 2 | ecn);
                let untouched = frame.clone();
                assert_eq!(is_ect(&frame), ecn != NOT_ECT);
                mark_congestion(&mut frame);
                let (ecn, what) = (ecn_of(&frame), format!("IPv{version}, ECN {ecn}"));
                assert_eq!(dscp_of(&frame), 46, "{what}");
                if is_ect(&untouched) {
                    assert_eq!(ecn, CE, "{what}");
                } else {
                    assert_eq!(frame, untouched, "{what}");
                }
                if version == 4 {
                    let sum = u16::from_be_bytes([frame[at + 10], frame[at + 11]]);
                    assert_eq!(sum, checksum(&frame[at..at + 20]), "{what}");
                }
            }
        }
        let mut short = vec![2; 14];
        short[12..14].copy_from_slice(&[8, 0]);
        mark_congestion(&mut short);
        assert!(!is_ect(&short));
    }

    #[test]
    fn the_code_point_of_a_vm_is_overwritten_and_ecn_kept_also_behind_a_tag() {
        for (version, tagged) in [(4, false), (4, true), (6, false), (6, true)] {
            let (mut frame, at) = ip(version, tagged, 46 << 2 | 2);
            let untouched = frame.clone();
            assert_eq!(dscp_of(&frame), 46);
            assert_eq!(mark(&mut frame, 8), Some(46));
            assert_eq!(dscp_of(&frame), 8);
            let tos =
                if version == 4 { frame[at + 1] } else { frame[at] << 4 | frame[at + 1] >> 4 };
            assert_eq!(tos, 8 << 2 | 2, "IPv{version}, tagged: {tagged}");
            if version == 4 {
                let sum = u16::from_be_bytes([frame[at + 10], frame[at + 11]]);
                assert_eq!(sum, checksum(&frame[at..]));
            } else {
                assert_eq!(frame[at + 1] & 0xf, 0xa, "the flow label");
            }
            assert_eq!(mark(&mut frame, 46), Some(8));
            assert_eq!(frame, untouched, "and back");
        }
    }

    #[test]
    fn a_code_point_is_found_behind_as_many_tags_as_switches_look_behind() {
        let (plain, _) = ip(4, false, 46 << 2);
        let behind = |tags: &[u16]| {
            let mut frame = plain[..12].to_vec();
            tags.iter().for_each(|tag| {
                frame.extend(tag.to_be_bytes());
                frame.extend([0, 5]);
            });
            frame.extend(&plain[12..]);
            frame
        };
        for tags in [&[0x88a8_u16][..], &[0x9100], &[0x8100, 0x8100], &[0x88a8, 0x8100]] {
            let mut frame = behind(tags);
            assert_eq!(mark(&mut frame, 8), Some(46), "{tags:x?}");
            assert_eq!(dscp_of(&frame), 8);
        }
        let mut deeper = behind(&[0x8100, 0x8100, 0x8100]);
        assert_eq!(mark(&mut deeper, 8), None);
    }

    #[test]
    fn pure_acknowledgements_are_found_behind_tags_and_options() {
        let tags: [&[u16]; 3] = [&[], &[0x8100], &[0x88a8, 0x8100]];
        for (tags, v6) in tags.iter().flat_map(|tags| [(*tags, false), (*tags, true)]) {
            let is_pure = |flags, lengths| is_pure_ack(&segment(tags, v6, flags, lengths)).unwrap();
            for (flags, lengths) in [(0x10, [12, 0]), (0x18, [0, 0]), (0xd0, [40, 0])] {
                assert!(is_pure(flags, lengths), "{flags:x} {lengths:?} {tags:x?} {v6}");
            }
            let others = [(0x10, 1), (0x02, 0), (0x12, 0), (0x11, 0), (0x14, 0), (0x30, 0)];
            for (flags, data) in others {
                assert!(!is_pure(flags, [12, data]), "{flags:x} {data} {tags:x?} {v6}");
            }
        }
    }

    #[test]
    fn fragments_other_protocols_and_cut_heads_are_no_pure_acknowledgements() {
        let whole = segment(&[], false, 0x10, [12, 0]);
        for (at, value) in [(20, 0x20), (21, 1), (23, 17), (17, 3), (12, 0x09)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_ne!(is_pure_ack(&other), Some(true), "byte {at}");
        }
        let v6 = segment(&[], true, 0x10, [12, 0]);
        for (frame, end) in [(whole, 14 + 24 + 14), (v6, 14 + 40 + 14)] {
            assert_eq!(is_pure_ack(&frame[..end]), Some(true));
            assert!((0..end).all(|short| is_pure_ack(&frame[..short]) != Some(true)));
        }
    }

    #[test]
    fn frames_without_a_whole_ip_header_stay_unchanged() {
        let (whole, _) = ip(4, true, 0);
        let mut arp = whole.clone();
        arp[16..18].copy_from_slice(&[8, 6]);
        for frame in [&arp[..], &whole[..30], &whole[..17], &whole[..13], &[]] {
            let mut frame = frame.to_vec();
            let before = frame.clone();
            assert_eq!(mark(&mut frame, 8), None);
            assert_eq!((dscp_of(&frame), &frame), (0, &before));
        }
    }

    /// Checksum over the whole IPv4 header, computed with a checksum field of zero.
    fn checksum(ip: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for (at, pair) in ip.chunks(2).enumerate() {
            if at != 5 {
                sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
            }
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_incremental_checksum_equals_the_full_one() {
        let mut seed = 1_u32;
        for round in 0..20_000_u32 {
            let mut head = [0_u8; 34];
            for byte in &mut head[14..] {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (seed >> 24) as u8;
            }
            head[14] = 0x45;
            let sum = checksum(&head[14..]);
            head[24..26].copy_from_slice(&sum.to_be_bytes());
            let ecn = head[15] & 3;
            let dscp = (round % 64) as u8;
            set_dscp(&mut head, HeaderFlags::IPV4, dscp);
            assert_eq!(head[15], dscp << 2 | ecn);
            assert_eq!(u16::from_be_bytes([head[24], head[25]]), checksum(&head[14..]));
        }
    }

    #[test]
    fn the_traffic_class_of_ipv6_changes_alone() {
        let mut head = [0xff_u8; 54];
        head[14] = 0x6f;
        set_dscp(&mut head, HeaderFlags::IPV6, 0b10_1110);
        // version 6, DSCP 46, ECN 3, flow label all ones
        assert_eq!(head[14..18], [0x6b, 0xbf, 0xff, 0xff]);
    }
}
