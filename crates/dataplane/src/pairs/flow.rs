//! Numbers of flows by which hosts announce code points. All hosts compute the same number.
//!
//! # Approach
//!
//! The number depends on the Ethernet and IP addresses, the protocol, and the ports of TCP, UDP,
//! SCTP, DCCP and UDP-Lite. Fragments, and IPv6 packets with extension headers, have no ports in
//! this sense, so that all fragments of a packet have the same number. The number does not depend
//! on VLAN tags, which differ between links, and not on fields that routers or queues change.
//!
//! A VM can send two flows with the same number. They then have one code point at the receiver.
//! Flows of other VMs have other places in the table ([`penstock_qos::pair_table::CodePoints`]).

use crate::headers::ip_of;
use crate::headers::parse::{HeaderFlags, L3, SCTP, TCP, UDP};

const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;
/// Bits of an IPv4 header's fragment word that are 0 in a whole packet: MF and the offset.
const FRAGMENT: [u8; 2] = [0x3f, 0xff];
const IPV6_HEADER: usize = 40;

/// Fields of an IP header, and the offset of the transport header. The offset is `None` if the
/// packet is a fragment.
struct Ip<'a> {
    addresses: &'a [u8],
    protocol: u8,
    transport: Option<usize>,
}

impl<'a> Ip<'a> {
    fn v4(ip: &'a [u8]) -> Option<Self> {
        let header = ip.first_chunk::<20>()?;
        let is_whole = header[6] & FRAGMENT[0] == 0 && header[7] & FRAGMENT[1] == 0;
        let transport = is_whole.then_some(4 * usize::from(header[0] & 0xf));
        Some(Self { addresses: ip.get(12..20)?, protocol: header[9], transport })
    }

    fn v6(ip: &'a [u8]) -> Option<Self> {
        let addresses = ip.get(8..IPV6_HEADER)?;
        Some(Self { addresses, protocol: *ip.get(6)?, transport: Some(IPV6_HEADER) })
    }

    /// Returns the source and destination port, or 0 if the packet has none.
    fn ports(&self, ip: &[u8]) -> u32 {
        let has_ports = matches!(self.protocol, TCP | UDP | SCTP | DCCP | UDP_LITE);
        let at = self.transport.filter(|_| has_ports);
        let bytes = at.and_then(|at| ip.get(at..)?.first_chunk::<4>());
        bytes.map_or(0, |ports| u32::from_be_bytes(*ports))
    }
}

/// Returns the number of the flow of a frame that begins with `head`, with or without VLAN tags.
/// Returns `None` if the frame is no IP packet with a whole header.
pub(crate) fn number(head: &[u8]) -> Option<u64> {
    let (tags, version) = ip_of(head)?;
    let bytes = head.get(L3 + tags..)?;
    let ip = if version.has(HeaderFlags::IPV4) { Ip::v4(bytes)? } else { Ip::v6(bytes)? };
    let (first, rest) = head.split_first_chunk::<8>()?;
    let last = rest.first_chunk::<4>()?;
    let last = u64::from(u32::from_be_bytes(*last)) << 32 | u64::from(ip.ports(bytes));
    let mut number = with(with(ip.protocol.into(), u64::from_be_bytes(*first)), last);
    for word in ip.addresses.as_chunks::<8>().0 {
        number = with(number, u64::from_be_bytes(*word));
    }
    Some(number)
}

/// Returns a number that depends on all bits of `number` and `word`.
const fn with(number: u64, word: u64) -> u64 {
    let mixed = (number ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::mark;

    /// Returns a UDP packet between two ports, behind VLAN tags.
    fn packet(version: u8, tags: usize, ports: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 7];
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 100]));
        if version == 4 {
            frame.extend([8, 0, 0x45, 0, 0, 28, 1, 2, 0, 0, 64, 17, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            frame.extend([3; 16].into_iter().chain([4; 16]));
        }
        frame.extend(ports);
        frame.extend([0, 8, 0, 0]);
        frame
    }

    fn flow(frame: &[u8]) -> u64 {
        number(frame).unwrap()
    }

    #[test]
    fn the_number_of_a_flow_stays_on_its_way() {
        for version in [4, 6] {
            let sent = packet(version, 0, [0, 5, 0, 6]);
            for tags in 0..=2 {
                let mut frame = packet(version, tags, [0, 5, 0, 6]);
                assert_eq!(flow(&frame), flow(&sent), "IPv{version}, {tags} tags");
                mark(&mut frame, 46).unwrap();
                let at = L3 + 4 * tags + if version == 4 { 8 } else { 7 };
                frame[at] -= 1;
                assert_eq!(flow(&frame), flow(&sent), "after a router");
            }
        }
        // Hosts with other versions must compute the same numbers.
        let known = [4, 6].map(|version| flow(&packet(version, 0, [0, 5, 0, 6])));
        assert_eq!(known, [0xcb0c_67e2_0f81_741a, 0x30a8_040d_f4bc_ae19]);
    }

    #[test]
    fn flows_that_differ_in_a_field_have_different_numbers() {
        for (version, fields) in [(4, [0, 6, 23, 26, 30, 34, 36]), (6, [0, 6, 20, 22, 38, 54, 56])]
        {
            let first = packet(version, 0, [0, 5, 0, 6]);
            for at in fields {
                let mut other = first.clone();
                other[at] ^= 0x40;
                assert_ne!(flow(&other), flow(&first), "IPv{version}, byte {at}");
            }
        }
    }

    #[test]
    fn all_fragments_of_a_packet_and_packets_without_ports_have_one_number() {
        let fragment = |word: [u8; 2], ports| {
            let mut frame = packet(4, 0, ports);
            frame[20..22].copy_from_slice(&word);
            flow(&frame)
        };
        assert_eq!(fragment([0x20, 0], [0, 5, 0, 6]), fragment([0, 8], [9; 4]));
        assert_ne!(fragment([0x20, 0], [0, 5, 0, 6]), fragment([0x40, 0], [0, 5, 0, 6]));
        let ping = |version, protocol, ports| {
            let mut frame = packet(version, 0, ports);
            frame[if version == 4 { 23 } else { 20 }] = protocol;
            flow(&frame)
        };
        assert_eq!(ping(4, 1, [8, 0, 1, 2]), ping(4, 1, [0, 0, 3, 4]));
        assert_eq!(ping(6, 44, [17, 0, 0, 1]), ping(6, 44, [17, 0, 0, 8]));
    }

    #[test]
    fn a_frame_without_a_whole_ip_header_has_no_flow() {
        for (version, header) in [(4, 20), (6, 40)] {
            let frame = packet(version, 1, [0, 5, 0, 6]);
            let shorter = (0..frame.len()).filter(|len| number(&frame[..*len]).is_some());
            assert_eq!(shorter.min(), Some(L3 + 4 + header));
        }
        assert_eq!(number(&packet(4, 3, [0; 4])), None);
    }
}
