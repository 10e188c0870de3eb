//! A rule specifies which frames it matches, and the treatment of the matching frames.
//!
//! A frame must match all fields that a rule names. If a rule names an IPv4 address, the rule
//! matches only frames with `EtherType` IPv4. If the rule names ARP, its IPv4 addresses are the ARP
//! sender's and target's addresses. An IPv6 address in a rule implies `EtherType` IPv6.
//! [`Match::compile`] refuses a protocol without an `EtherType`, so the caller makes one rule for
//! IPv4 and one rule for IPv6.

use core::net::{Ipv4Addr, Ipv6Addr};

use penstock_units::{MacAddr, Vid};

use crate::headers::key::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FlowKey, FlowMask, KeyFields};

/// An IP address, and a mask with the bits to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpMatch {
    /// IPv4 address and mask of the bits to compare.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6 address and mask of the bits to compare.
    V6(Ipv6Addr, Ipv6Addr),
}

impl IpMatch {
    /// Returns the match for the IPv4 network `addr/len`. A prefix length above 32 counts as 32.
    #[must_use]
    pub fn v4_prefix(addr: Ipv4Addr, len: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
        Self::V4(addr, Ipv4Addr::from_bits(mask))
    }

    /// Returns the match for the IPv6 network `addr/len`. A prefix length above 128 counts as 128.
    #[must_use]
    pub fn v6_prefix(addr: Ipv6Addr, len: u8) -> Self {
        let mask = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
        Self::V6(addr, Ipv6Addr::from_bits(mask))
    }
}

/// Header fields that a frame must have to match a rule. A match does not compare a field that is
/// `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Number of the port from which the frame came.
    pub in_port: Option<u16>,
    /// VLAN ID of the frame. An untagged frame of an access port belongs to the port's own VLAN.
    pub vlan: Option<Vid>,
    /// Source MAC address and mask of the bits to compare.
    pub src_mac: Option<(MacAddr, MacAddr)>,
    /// Destination MAC address and mask of the bits to compare.
    pub dst_mac: Option<(MacAddr, MacAddr)>,
    /// `EtherType` of the frame's payload.
    pub ethertype: Option<u16>,
    /// Source IP address, or the ARP sender's IP address.
    pub src_ip: Option<IpMatch>,
    /// Destination IP address, or the ARP target's IP address.
    pub dst_ip: Option<IpMatch>,
    /// IP protocol number after all extension headers.
    pub proto: Option<u8>,
    /// Source port or ICMP type, and mask of the bits to compare.
    pub src_port: Option<(u16, u16)>,
    /// Destination port, ICMP code or ARP operation, and mask of the bits to compare.
    pub dst_port: Option<(u16, u16)>,
    /// Differentiated services code point (DSCP), 0 to 63.
    pub dscp: Option<u8>,
}

/// Error of [`Match::compile`]: the reason for which a rule's match is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatchError {
    /// The match combines IPv4 and IPv6 fields, or an IP address with an `EtherType` of another
    /// protocol.
    #[error("the rule names an {0} address and a field that does not belong to {0}")]
    Family(&'static str),
    /// The match names a protocol, port or DSCP without an `EtherType`.
    #[error("a rule with a protocol, port or dscp also needs an address or an ethertype")]
    NeedsEthertype,
    /// The match's DSCP is above 63 and does not fit six bits.
    #[error("dscp {0} is out of range; write 0 to 63")]
    Dscp(u8),
}

/// Destination of a frame that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Drop,
    /// The switch forwards the frame by destination MAC, as if no rule matched.
    Normal,
    /// The frame goes to the port with the given number.
    Output(u16),
    /// The frame goes to the ports of the snapshot's output set with the given number.
    OutputSet(u16),
}

/// Treatment of the frames that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// VLAN of the tenant to which the rule moves the frame. If `set_vlan` is `None`, the rule
    /// leaves the VLAN unchanged.
    pub set_vlan: Option<Vid>,
    /// DSCP that the rule writes into the IP header. If `set_dscp` is `None`, the rule leaves the
    /// DSCP unchanged.
    pub set_dscp: Option<u8>,
    /// Number of the port that gets a copy of the frame.
    pub mirror: Option<u16>,
    pub then: Then,
}

impl Actions {
    /// Returns rule actions that forward the frame as `then` says and leave the frame unchanged.
    #[must_use]
    pub const fn only(then: Then) -> Self {
        Self { set_vlan: None, set_dscp: None, mirror: None, then }
    }
}

/// A rule for frames from a port. If several rules match, the rule with the highest `priority`
/// wins. Among rules of equal priority, the rule with the lowest `id` wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// If several rules match a frame, the rule with the highest priority wins.
    pub priority: u16,
    pub matching: Match,
    pub actions: Actions,
    /// ID of the rule in the control plane.
    pub id: u32,
}

impl Match {
    /// Compiles the fields of the match to a flow key, and to a mask of the key bits that the
    /// search compares.
    ///
    /// # Errors
    /// Returns [`MatchError`] if no frame can match, or if the meaning of a field is ambiguous.
    pub fn compile(&self) -> Result<(FlowKey, FlowMask), MatchError> {
        let (mut v, mut m) = (KeyFields::default(), KeyFields::default());
        let put16 = |from: Option<u16>, value: &mut u16, mask: &mut u16, all: u16| {
            if let Some(x) = from {
                (*value, *mask) = (x, all);
            }
        };
        put16(self.in_port, &mut v.in_port, &mut m.in_port, u16::MAX);
        put16(self.vlan.map(Vid::get), &mut v.vid, &mut m.vid, 0xfff);
        put16(self.implied_ethertype()?, &mut v.ethertype, &mut m.ethertype, u16::MAX);
        if let Some((mac, mask)) = self.src_mac {
            (v.src_mac, m.src_mac) = (mac.to_u64(), mask.to_u64());
        }
        if let Some((mac, mask)) = self.dst_mac {
            (v.dst_mac, m.dst_mac) = (mac.to_u64(), mask.to_u64());
        }
        match self.src_ip {
            Some(IpMatch::V4(a, mask)) => (v.ipv4_src, m.ipv4_src) = (a.to_bits(), mask.to_bits()),
            Some(IpMatch::V6(a, mask)) => (v.ipv6_src, m.ipv6_src) = (a.to_bits(), mask.to_bits()),
            None => {}
        }
        match self.dst_ip {
            Some(IpMatch::V4(a, mask)) => (v.ipv4_dst, m.ipv4_dst) = (a.to_bits(), mask.to_bits()),
            Some(IpMatch::V6(a, mask)) => (v.ipv6_dst, m.ipv6_dst) = (a.to_bits(), mask.to_bits()),
            None => {}
        }
        if let Some(proto) = self.proto {
            (v.proto, m.proto) = (proto, u8::MAX);
        }
        if let Some((port, mask)) = self.src_port {
            (v.src_port, m.src_port) = (port, mask);
        }
        if let Some((port, mask)) = self.dst_port {
            (v.dst_port, m.dst_port) = (port, mask);
        }
        if let Some(dscp) = self.dscp {
            (v.tos, m.tos) = (dscp << 2, 0xfc);
        }
        let mask = FlowMask::new(&m);
        Ok((FlowKey::new(&v).masked(&mask), mask))
    }

    /// Returns the `EtherType` that the match's other fields imply. Returns an error if the match
    /// names a different `EtherType`.
    fn implied_ethertype(&self) -> Result<Option<u16>, MatchError> {
        let addresses = [self.src_ip, self.dst_ip];
        let v4 = addresses.iter().flatten().any(|a| matches!(a, IpMatch::V4(..)));
        let v6 = addresses.iter().flatten().any(|a| matches!(a, IpMatch::V6(..)));
        if self.dscp.is_some_and(|d| d > 63) {
            return Err(MatchError::Dscp(self.dscp.unwrap_or(0)));
        }
        match self.ethertype {
            _ if v4 && v6 => Err(MatchError::Family("IPv4")),
            Some(ETHERTYPE_IPV6) if v4 => Err(MatchError::Family("IPv4")),
            Some(named) if v6 && named != ETHERTYPE_IPV6 => Err(MatchError::Family("IPv6")),
            Some(named) => Ok(Some(named)),
            None if v4 => Ok(Some(ETHERTYPE_IPV4)),
            None if v6 => Ok(Some(ETHERTYPE_IPV6)),
            None if self.proto.is_some()
                || self.src_port.is_some()
                || self.dst_port.is_some()
                || self.dscp.is_some() =>
            {
                Err(MatchError::NeedsEthertype)
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_implies_its_ethertype() {
        let net = IpMatch::v4_prefix(Ipv4Addr::new(10, 1, 2, 3), 8);
        let (value, mask) = Match { src_ip: Some(net), ..Match::default() }.compile().unwrap();
        assert_eq!(value.fields().ethertype, ETHERTYPE_IPV4);
        assert_eq!((value.fields().ipv4_src, mask.is_wide()), (0x0a00_0000, false));
        let all = IpMatch::v6_prefix(Ipv6Addr::LOCALHOST, 0);
        let (value, mask) = Match { src_ip: Some(all), ..Match::default() }.compile().unwrap();
        assert_eq!((value.fields().ethertype, mask.is_wide()), (ETHERTYPE_IPV6, false));
    }

    #[test]
    fn contradictory_or_ambiguous_matches_are_refused() {
        let v4 = Some(IpMatch::v4_prefix(Ipv4Addr::LOCALHOST, 32));
        let v6 = Some(IpMatch::v6_prefix(Ipv6Addr::LOCALHOST, 128));
        let none = Match::default();
        for (bad, why) in [
            (Match { src_ip: v4, dst_ip: v6, ..none }, MatchError::Family("IPv4")),
            (
                Match { src_ip: v4, ethertype: Some(ETHERTYPE_IPV6), ..none },
                MatchError::Family("IPv4"),
            ),
            (Match { dst_ip: v6, ethertype: Some(0x0806), ..none }, MatchError::Family("IPv6")),
            (Match { proto: Some(6), ..none }, MatchError::NeedsEthertype),
            (Match { dscp: Some(64), ethertype: Some(0x0800), ..none }, MatchError::Dscp(64)),
        ] {
            assert_eq!(bad.compile(), Err(why));
        }
    }
}
