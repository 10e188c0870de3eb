//! Rules: which frames a rule matches, and what happens to them.
//!
//! All fields that a rule names must match. An IPv4 address implies `EtherType` IPv4. If the rule
//! names ARP, the addresses are those of sender and target. An IPv6 address implies IPv6.
//! [`Match::compile`] refuses a protocol without an `EtherType`; the caller makes two rules
//! instead.

use core::net::{Ipv4Addr, Ipv6Addr};

use penstock_units::{MacAddr, Vid};

use super::key::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FlowKey, FlowMask, KeyFields};

/// An IP address and a mask of the compared bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpMatch {
    /// Address and mask.
    V4(Ipv4Addr, Ipv4Addr),
    /// Address and mask.
    V6(Ipv6Addr, Ipv6Addr),
}

impl IpMatch {
    /// The network `addr/len`. A length above 32 counts as 32.
    #[must_use]
    pub fn v4_prefix(addr: Ipv4Addr, len: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
        Self::V4(addr, Ipv4Addr::from_bits(mask))
    }

    /// The network `addr/len`. A length above 128 counts as 128.
    #[must_use]
    pub fn v6_prefix(addr: Ipv6Addr, len: u8) -> Self {
        let mask = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
        Self::V6(addr, Ipv6Addr::from_bits(mask))
    }
}

/// Fields that a frame must have. A field that is `None` is not compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The port from which the frame came.
    pub in_port: Option<u16>,
    /// VLAN of the frame. Untagged frames of an access port belong to the port's own VLAN.
    pub vlan: Option<Vid>,
    /// Source MAC and mask.
    pub src_mac: Option<(MacAddr, MacAddr)>,
    /// Destination MAC and mask.
    pub dst_mac: Option<(MacAddr, MacAddr)>,
    /// `EtherType` of the payload.
    pub ethertype: Option<u16>,
    /// Source address, or ARP sender.
    pub src_ip: Option<IpMatch>,
    /// Destination address, or ARP target.
    pub dst_ip: Option<IpMatch>,
    /// IP protocol behind extension headers.
    pub proto: Option<u8>,
    /// Source port and mask, or ICMP type.
    pub src_port: Option<(u16, u16)>,
    /// Destination port and mask, ICMP code, or ARP operation.
    pub dst_port: Option<(u16, u16)>,
    /// Differentiated services code point (6 bits).
    pub dscp: Option<u8>,
}

/// Reason for which a [`Match`] cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatchError {
    /// The fields name both IPv4 and IPv6, or an address and another `EtherType`.
    #[error("the rule names an {0} address and something that is not {0}")]
    Family(&'static str),
    /// A protocol, port or DSCP is given without its `EtherType`.
    #[error("a protocol, port or dscp needs an address or an ethertype beside it")]
    NeedsEthertype,
    /// The DSCP does not fit six bits.
    #[error("dscp {0} is out of range; it goes from 0 to 63")]
    Dscp(u8),
}

/// Destination of a frame that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Drop,
    /// The frame is forwarded by destination MAC, as without rules.
    Normal,
    /// The port with this index.
    Output(u16),
    /// This output set of the snapshot.
    OutputSet(u16),
}

/// What happens to the frames that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Moves the frame to another VLAN of the tenant.
    pub set_vlan: Option<Vid>,
    /// Writes this DSCP into the IP header.
    pub set_dscp: Option<u8>,
    pub then: Then,
}

impl Actions {
    /// Sends frames to `output` without edits.
    #[must_use]
    pub const fn only(then: Then) -> Self {
        Self { set_vlan: None, set_dscp: None, then }
    }
}

/// A rule. If several match, the highest `priority` wins, then the lowest `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Higher values win.
    pub priority: u16,
    pub matching: Match,
    pub actions: Actions,
    /// The rule's number in the control plane.
    pub id: u32,
}

impl Match {
    /// Compiles the match to a value and a mask of the flow key.
    ///
    /// # Errors
    /// [`MatchError`] if no frame could match, or if the meaning is ambiguous.
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

    /// The `EtherType` that the other fields imply, checked against the named one.
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
