//! Edits that a rule asks for, done to the frame's private head.
//!
//! **Source.** RFC 1624 for the checksum: `HC' = ~(~HC + ~m + m')`. **Rule.** The IP header begins
//! at byte 14: the parser took the VLAN tag off.

use super::parse::{HeaderFlags, L3};

/// Writes `dscp` (6 bits) into the IP header of `head`; ECN stays. Frames that are not IP, or too
/// short for an IP header, are left alone.
#[inline]
pub fn set_dscp(head: &mut [u8], flags: HeaderFlags, dscp: u8) {
    let dscp = dscp & 0x3f;
    if flags.has(HeaderFlags::IPV4) {
        let Some(ip) = head.get_mut(L3..L3 + 20) else { return };
        let before = u16::from_be_bytes([ip[0], ip[1]]);
        ip[1] = dscp << 2 | ip[1] & 3;
        let after = u16::from_be_bytes([ip[0], ip[1]]);
        let sum = u16::from_be_bytes([ip[10], ip[11]]);
        let wide = u32::from(!sum) + u32::from(!before) + u32::from(after);
        let once = (wide & 0xffff) + (wide >> 16);
        #[expect(clippy::cast_possible_truncation, reason = "folded twice: fits 16 bits")]
        let folded = ((once & 0xffff) + (once >> 16)) as u16;
        ip[10..12].copy_from_slice(&(!folded).to_be_bytes());
    } else if flags.has(HeaderFlags::IPV6) {
        let Some(ip) = head.get_mut(L3..L3 + 2) else { return };
        ip[0] = ip[0] & 0xf0 | dscp >> 2;
        ip[1] = ip[1] & 0x3f | (dscp & 3) << 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum over the whole header, its own field as zero.
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
