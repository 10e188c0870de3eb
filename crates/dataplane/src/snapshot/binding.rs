//! Source-address binding limits the source addresses that a port may use.
//!
//! # Problem
//! A guest that uses the MAC, IP, ARP or ND address of another guest receives the other guest's
//! traffic.
//!
//! # Source
//! The sources are RFC 7039 (SAVI), RFC 5227 (ARP probe), RFC 4861 and RFC 4862 (duplicate address
//! detection).
//!
//! # Approach
//! The configuration of a port may have a list for each kind of address. For a kind of address with
//! a list, the port may use only the listed addresses. A bound port must also obey the following
//! rules about ARP, ND and DHCP addresses.
//!
//! - The hardware address of an ARP sender and an ND link-layer option must equal the frame's
//!   source MAC.
//! - The source address 0.0.0.0 is allowed for a DHCP client and in an ARP probe. The source
//!   address `::` is allowed in ICMPv6.
//! - The link-local address that is derived from a bound MAC (EUI-64) is allowed.
//! - A bound port may not send router advertisements and redirects.
//!
//! Each check is a binary search in a sorted list of addresses.

use core::net::{Ipv4Addr, Ipv6Addr};

use penstock_units::MacAddr;

use crate::batch::HEAD_COPY;
use crate::drop::DropReason;
use crate::headers::ipv6::NEIGHBOUR_ADVERTISEMENT;
use crate::headers::key::{FlowMask, KeyFields, MAC_MASK};
use crate::headers::parse::{HeaderFlags, Headers, ICMPV6, UDP, be64};

/// Source addresses that a port may use, with one list per kind of address. If the list for a kind
/// of address is `None`, the switch does not check addresses of that kind. If the list for a kind
/// of address is empty, the port may not use any address of that kind as a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    macs: Option<Box<[u64]>>,
    ipv4: Option<Box<[u32]>>,
    ipv6: Option<Box<[u128]>>,
}

fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Box<[T]> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items.into_boxed_slice()
}

/// Returns the link-local address that a host derives from its MAC address (RFC 4291, appendix A).
fn eui64(mac: MacAddr) -> u128 {
    let [a, b, c, d, e, f] = mac.0;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    0xfe80_u128 << 112 | u128::from(id)
}

fn in_list<T: Ord>(list: Option<&[T]>, item: &T) -> bool {
    list.is_none_or(|list| list.binary_search(item).is_ok())
}

impl Binding {
    /// Creates a binding to the listed addresses. If the list for a kind of address is `None`, the
    /// switch does not check source addresses of that kind.
    #[must_use]
    pub fn new(
        macs: Option<&[MacAddr]>,
        ipv4: Option<&[Ipv4Addr]>,
        ipv6: Option<&[Ipv6Addr]>,
    ) -> Self {
        let own = macs.unwrap_or_default().iter().map(|&m| eui64(m));
        Self {
            macs: macs.map(|list| sorted(list.iter().map(|m| m.to_u64()))),
            ipv4: ipv4.map(|list| sorted(list.iter().map(|a| a.to_bits()))),
            ipv6: ipv6.map(|list| sorted(list.iter().map(|a| a.to_bits()).chain(own))),
        }
    }

    /// Returns the bits of a flow key on which [`Self::check`] depends. For an IPv4 frame without a
    /// source address (DHCP), [`Self::check`] depends on more bits of the flow key. If an IPv4
    /// frame has no source address, the decision cache compares all bits of the frame's flow key.
    pub(crate) fn mask(&self) -> FlowMask {
        FlowMask::new(&KeyFields {
            ethertype: u16::MAX,
            proto: u8::MAX,
            src_mac: if self.macs.is_some() { MAC_MASK } else { 0 },
            ipv4_src: if self.ipv4.is_some() { u32::MAX } else { 0 },
            ipv6_src: if self.ipv6.is_some() { u128::MAX } else { 0 },
            ..KeyFields::default()
        })
    }

    /// Checks the source addresses in the headers `h` of a frame that begins with the bytes `w`.
    pub(crate) fn check(&self, w: &[u8; HEAD_COPY], h: &Headers) -> Result<(), DropReason> {
        if !in_list(self.macs.as_deref(), &h.key.src_mac()) {
            return Err(DropReason::SpoofedMac);
        }
        let flags = h.flags;
        let fine = if flags.has(HeaderFlags::IPV4) {
            self.ipv4_fine(h)
        } else if flags.has(HeaderFlags::ARP) {
            self.arp_fine(h)
        } else if flags.has(HeaderFlags::IPV6) {
            self.ipv6_fine(h) && (!flags.has(HeaderFlags::ND) || self.nd_fine(w, h))
        } else {
            true
        };
        if fine { Ok(()) } else { Err(DropReason::SpoofedIp) }
    }

    fn ipv4_fine(&self, h: &Headers) -> bool {
        let dhcp = h.key.ipv4_src() == 0 && h.key.proto() == UDP && h.key.ports() == (68, 67);
        dhcp || in_list(self.ipv4.as_deref(), &h.key.ipv4_src())
    }

    fn arp_fine(&self, h: &Headers) -> bool {
        let probe = h.key.ipv4_src() == 0 && h.key.ports().1 == 1;
        h.flags.has(HeaderFlags::ARP_OWN_SENDER)
            && (probe || in_list(self.ipv4.as_deref(), &h.key.ipv4_src()))
    }

    fn ipv6_fine(&self, h: &Headers) -> bool {
        let unspecified = h.key.ipv6_src() == 0 && h.key.proto() == ICMPV6;
        unspecified || in_list(self.ipv6.as_deref(), &h.key.ipv6_src())
    }

    fn nd_fine(&self, w: &[u8; HEAD_COPY], h: &Headers) -> bool {
        if h.flags.has(HeaderFlags::ND_ROUTER) || h.flags.has(HeaderFlags::ND_UNREADABLE) {
            return false;
        }
        let at = usize::from(h.nd_link_layer);
        if at != 0 && be64(w, at - 2) & 0xffff_ffff_ffff != h.key.src_mac() {
            return false;
        }
        if h.key.ports().0 != NEIGHBOUR_ADVERTISEMENT {
            return true;
        }
        let at = usize::from(h.nd_target);
        let target = u128::from(be64(w, at)) << 64 | u128::from(be64(w, at + 8));
        in_list(self.ipv6.as_deref(), &target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::headers::parse::parse;
    use crate::headers::test_frames::*;
    use crate::offload::Offload;

    const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x0a]);

    fn check(bytes: &[u8]) -> Result<(), DropReason> {
        let binding = Binding::new(
            Some(&[MAC]),
            Some(&[Ipv4Addr::new(10, 0, 0, 1)]),
            Some(&[Ipv6Addr::from_bits(ip6_addr(1))]),
        );
        let mut batch = Batch::new();
        batch.push(bytes, Offload::NONE).unwrap();
        let h = parse(&mut batch, 0, 3).unwrap();
        binding.check(batch.head_window(0), &h)
    }

    #[test]
    fn a_foreign_mac_or_ipv4_address_is_refused() {
        let me = [10, 0, 0, 1];
        assert_eq!(check(&udp4(A, B, me, [10, 0, 0, 2], 1, 2)), Ok(()));
        assert_eq!(check(&udp4(B, A, me, [10, 0, 0, 2], 1, 2)), Err(DropReason::SpoofedMac));
        assert_eq!(check(&udp4(A, B, [10, 0, 0, 3], me, 1, 2)), Err(DropReason::SpoofedIp));
        assert_eq!(check(&udp4(A, B, [0; 4], [255; 4], 68, 67)), Ok(()));
        assert_eq!(check(&udp4(A, B, [0; 4], [255; 4], 68, 68)), Err(DropReason::SpoofedIp));
    }

    #[test]
    fn a_foreign_arp_sender_is_refused() {
        let me = [10, 0, 0, 1];
        assert_eq!(check(&arp4(A, A, 2, me, [10, 0, 0, 2])), Ok(()));
        assert_eq!(check(&arp4(A, A, 1, [0; 4], me)), Ok(()));
        assert_eq!(check(&arp4(A, A, 2, [0; 4], me)), Err(DropReason::SpoofedIp));
        assert_eq!(check(&arp4(A, A, 2, [10, 0, 0, 2], me)), Err(DropReason::SpoofedIp));
        assert_eq!(check(&arp4(A, B, 2, me, [10, 0, 0, 2])), Err(DropReason::SpoofedIp));
    }

    #[test]
    fn a_foreign_ipv6_or_neighbour_address_is_refused() {
        let (me, you, router) = (ip6_addr(1), ip6_addr(2), ip6_addr(3));
        let local = eui64(MAC);
        assert_eq!(local, 0xfe80_u128 << 112 | 0x5054_00ff_fe00_000a);
        let bad = Err(DropReason::SpoofedIp);
        assert_eq!(check(&ip6(A, B, me, you, 59, &[])), Ok(()));
        assert_eq!(check(&ip6(A, B, local, you, 59, &[])), Ok(()));
        assert_eq!(check(&ip6(A, B, local + 1, you, 59, &[])), bad);
        assert_eq!(check(&ip6(A, B, you, me, 59, &[])), bad);
        assert_eq!(check(&ip6(A, B, 0, you, 17, &[0; 8])), bad);
        assert_eq!(check(&nd(A, B, 0, you, 135, me, None)), Ok(()));
        assert_eq!(check(&nd(A, B, me, you, 135, you, Some(A))), Ok(()));
        assert_eq!(check(&nd(A, B, me, you, 135, you, Some(B))), bad);
        assert_eq!(check(&nd(A, B, me, you, 136, me, Some(A))), Ok(()));
        assert_eq!(check(&nd(A, B, me, you, 136, you, Some(A))), bad);
        assert_eq!(check(&nd(A, B, me, you, 136, me, Some(B))), bad);
        assert_eq!(check(&nd(A, B, local, you, 134, router, None)), bad);
        assert_eq!(check(&nd(A, B, local, you, 137, router, None)), bad);
    }
}
