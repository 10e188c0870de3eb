//! Values that a rule compares with frames: masked addresses, prefixes, ports and protocols.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use penstock_toml::text_value;
use penstock_units::MacAddr;

/// Limit on the pairs of value and mask that match a range of ports. At most 30 pairs of value and
/// mask are necessary for a range of ports.
pub const PORT_MASKS_MAX: usize = 30;

/// A MAC address with a mask, such as `52:54:00:00:00:01` or `52:54:00:00:00:00/ff:ff:ff:00:00:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MacMatch {
    /// All bits of the address outside the mask are 0.
    pub value: MacAddr,
    /// Bits of the MAC address that are compared: a 1 in the mask selects a bit.
    pub mask: MacAddr,
}

impl fmt::Display for MacMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)?;
        if self.mask == MacAddr::BROADCAST { Ok(()) } else { write!(f, "/{}", self.mask) }
    }
}

impl FromStr for MacMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |part: &str| {
            format!(
                "{part:?} is not a MAC address; write six hexadecimal bytes, as in \
                 52:54:00:00:00:01, and for a mask add / and six more bytes"
            )
        };
        let (value, mask) = text.split_once('/').unwrap_or((text, "ff:ff:ff:ff:ff:ff"));
        let value: MacAddr = value.parse().map_err(|_| bad(value))?;
        let mask: MacAddr = mask.parse().map_err(|_| bad(mask))?;
        if value.to_u64() & !mask.to_u64() != 0 {
            return Err(format!(
                "{text} sets bits outside its mask; set bits to 0 where the mask is 0"
            ));
        }
        Ok(Self { value, mask })
    }
}

text_value!(MacMatch, "MacMatch", "a MAC address, optionally with / and a mask", {
    "type": "string",
    "pattern": "^([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}(/([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2})?$"
});

/// A MAC address of one station: neither zero nor a group address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StationMac(pub MacAddr);

impl fmt::Display for StationMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for StationMac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mac: MacAddr = text.parse().map_err(|_| {
            format!(
                "{text:?} is not a MAC address; write six hexadecimal bytes, as in \
                 52:54:00:00:00:01"
            )
        })?;
        if mac.is_group() || mac.is_zero() {
            return Err(format!(
                "{mac} is not a unicast address; the first byte must be even and the address \
                 not all zero"
            ));
        }
        Ok(Self(mac))
    }
}

text_value!(StationMac, "StationMac", "a MAC address, as in \"52:54:00:00:00:01\"", {
    "type": "string", "pattern": "^([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}$"
});

/// An IPv4 or IPv6 prefix or address, such as `10.0.0.0/24`, `2001:db8::/32` or `10.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpPrefix {
    /// Network address. All host bits, which are the bits after the prefix, are 0.
    pub addr: IpAddr,
    /// Prefix length: up to 32 for IPv4, up to 128 for IPv6.
    pub len: u8,
}

impl IpPrefix {
    #[must_use]
    pub const fn is_ipv6(self) -> bool {
        self.addr.is_ipv6()
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addr.fmt(f)?;
        let full = if self.is_ipv6() { 128 } else { 32 };
        if self.len == full { Ok(()) } else { write!(f, "/{}", self.len) }
    }
}

impl FromStr for IpPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is not an IP prefix; write an address or a prefix, such as 10.0.0.0/24 \
                 or 2001:db8::/32"
            )
        };
        let (addr, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let full = if addr.is_ipv6() { 128 } else { 32 };
        let len = match len {
            None => full,
            Some(len) => len.parse::<u8>().ok().filter(|l| *l <= full).ok_or_else(bad)?,
        };
        let network = match addr {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
        };
        if network != addr {
            return Err(format!(
                "{text} has bits set after the first {len}; write {network}/{len}"
            ));
        }
        Ok(Self { addr, len })
    }
}

text_value!(IpPrefix, "IpPrefix", "an IP address or prefix, as in \"10.0.0.0/24\"", {
    "type": "string", "pattern": "^[0-9a-fA-F.:]+(/[0-9]{1,3})?$"
});

/// An Ethernet type: the name `ipv4`, `ipv6` or `arp`, or a number from `0x0600` on, such as
/// `"0x88cc"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    pub const IPV4: Self = Self(0x0800);
    pub const ARP: Self = Self(0x0806);
    pub const IPV6: Self = Self(0x86dd);
    const NAMES: [(&'static str, Self); 3] =
        [("ipv4", Self::IPV4), ("ipv6", Self::IPV6), ("arp", Self::ARP)];
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(_, value)| value == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "0x{:04x}", self.0),
        }
    }
}

/// Reads a decimal number, or a hexadecimal number after `0x`.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl FromStr for EtherType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, value)) = Self::NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        match number(text).and_then(|n| u16::try_from(n).ok()) {
            Some(0x8100) => Err("ethertype 0x8100 is the VLAN tag; match on `vlan`".to_owned()),
            Some(value) if value >= 0x600 => Ok(Self(value)),
            _ => Err(format!(
                "{text:?} is not an Ethernet type; write ipv4, ipv6, arp or a number from 0x0600 \
                 to 0xffff"
            )),
        }
    }
}

text_value!(EtherType, "EtherType", "an Ethernet type: ipv4, ipv6, arp or a number", {
    "oneOf": [
        {"enum": ["ipv4", "ipv6", "arp"]},
        {"type": "string", "pattern": "^(0x[0-9a-fA-F]{3,4}|[0-9]{4,5})$"},
        {"type": "integer", "minimum": 1536, "maximum": 65535}
    ]
});

/// An IP protocol: a number, or one of the names `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, `gre` and
/// `esp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpProto(pub u8);

impl IpProto {
    const NAMES: [(&'static str, u8); 7] = [
        ("tcp", 6),
        ("udp", 17),
        ("sctp", 132),
        ("icmp", 1),
        ("icmpv6", 58),
        ("gre", 47),
        ("esp", 50),
    ];

    /// Whether the protocol's header begins with a source port and a destination port.
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self.0, 6 | 17 | 132)
    }
}

impl fmt::Display for IpProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(_, value)| *value == self.0) {
            Some((name, _)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

impl FromStr for IpProto {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        named.or_else(|| number(text).and_then(|n| u8::try_from(n).ok())).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not an IP protocol; write tcp, udp, sctp, icmp, icmpv6, gre, esp or a \
                 number from 0 to 255"
            )
        })
    }
}

text_value!(IpProto, "IpProto", "tcp, udp, icmp or another IP protocol as name or number", {
    "oneOf": [
        {"enum": ["tcp", "udp", "sctp", "icmp", "icmpv6", "gre", "esp"]},
        {
            "type": "string",
            "pattern": "^(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9]|0x[0-9a-fA-F]{1,2})$"
        },
        {"type": "integer", "minimum": 0, "maximum": 255}
    ]
});

/// TCP, UDP or SCTP ports that a rule matches: one port as in `80`, a value with a mask as in
/// `"80/0xfff0"`, or a range as in `"1024-65535"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortMatch {
    /// Matches TCP, UDP or SCTP ports that equal `value` in the bits of the mask.
    Masked {
        value: u16,
        /// A 1 in the mask marks a bit of the port number that is compared.
        mask: u16,
    },
    /// Ports from `first` to `last`, including both.
    Range {
        first: u16,
        /// Last port of the range, not below `first`.
        last: u16,
    },
}

impl PortMatch {
    /// Converts matched TCP, UDP or SCTP ports to pairs of value and mask. A match with a mask
    /// becomes a single pair of value and mask. A range becomes at most [`PORT_MASKS_MAX`] pairs,
    /// each for an aligned block of ports.
    #[must_use]
    pub fn to_masks(self) -> Vec<(u16, u16)> {
        let (first, last) = match self {
            Self::Masked { value, mask } => return vec![(value, mask)],
            Self::Range { first, last } => (u32::from(first), u32::from(last)),
        };
        let mut masks = Vec::new();
        let mut at = first;
        while at <= last {
            // The largest block that begins here and ends within the range.
            let mut size = if at == 0 { 1 << 16 } else { at & at.wrapping_neg() };
            while at + size - 1 > last {
                size /= 2;
            }
            let mask = !(size - 1) & 0xffff;
            if let (Ok(value), Ok(mask)) = (u16::try_from(at), u16::try_from(mask)) {
                masks.push((value, mask));
            }
            at += size;
        }
        masks
    }
}

impl fmt::Display for PortMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Masked { value, mask: 0xffff } => value.fmt(f),
            Self::Masked { value, mask } => write!(f, "{value}/0x{mask:04x}"),
            Self::Range { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

impl FromStr for PortMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |part: &str| {
            number(part.trim()).and_then(|n| u16::try_from(n).ok()).ok_or_else(|| {
                format!(
                    "{text:?} is not a port; write a number from 0 to 65535, a range as in \
                     \"1024-65535\" or a value and mask as in \"80/0xfff0\""
                )
            })
        };
        if let Some((value, mask)) = text.split_once('/') {
            let (value, mask) = (port(value)?, port(mask)?);
            return if value & !mask == 0 {
                Ok(Self::Masked { value, mask })
            } else {
                Err(format!(
                    "port {text} sets bits outside its mask; write {}/0x{mask:04x}",
                    value & mask
                ))
            };
        }
        if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (port(first)?, port(last)?);
            return if first <= last {
                Ok(Self::Range { first, last })
            } else {
                Err(format!("port range {text} ends before it begins; write {last}-{first}"))
            };
        }
        Ok(Self::Masked { value: port(text)?, mask: 0xffff })
    }
}

text_value!(PortMatch, "PortMatch", "a port, \"1024-65535\" or \"80/0xfff0\"", {
    "oneOf": [
        {"type": "integer", "minimum": 0, "maximum": 65535},
        {"type": "string", "pattern": "^[0-9]+(-[0-9]+|/(0x)?[0-9a-fA-F]+)?$"}
    ]
});

/// A differentiated services code point, 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dscp(u8);

impl Dscp {
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Dscp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match number(text).and_then(|n| u8::try_from(n).ok()) {
            Some(value) if value <= 63 => Ok(Self(value)),
            _ => Err(format!("DSCP {text} is out of range; write a number from 0 to 63")),
        }
    }
}

text_value!(Dscp, "Dscp", "a number from 0 to 63", {
    "type": ["integer", "string"],
    "minimum": 0,
    "maximum": 63,
    "pattern": "^([0-5]?[0-9]|6[0-3]|0x[0-3]?[0-9a-fA-F])$"
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_range_becomes_exactly_its_ports() {
        for (first, last) in [(0, 65535), (1, 65534), (1024, 65535), (80, 80), (7, 9), (0, 0)] {
            let masks = PortMatch::Range { first, last }.to_masks();
            assert!(masks.len() <= PORT_MASKS_MAX, "{first}-{last}: {}", masks.len());
            for port in 0..=u16::MAX {
                let hits = masks.iter().filter(|(value, mask)| port & mask == *value).count();
                assert_eq!(hits, usize::from(first <= port && port <= last), "{port}");
            }
        }
        assert_eq!(PortMatch::Range { first: 1, last: 65534 }.to_masks().len(), PORT_MASKS_MAX);
    }

    #[test]
    fn values_show_as_they_are_written() {
        fn same<T: FromStr<Err: fmt::Debug> + fmt::Display>(texts: &[&str]) {
            for text in texts {
                assert_eq!(text.parse::<T>().unwrap().to_string(), *text);
            }
        }
        same::<MacMatch>(&["52:54:00:00:00:01", "52:54:00:00:00:00/ff:ff:ff:00:00:00"]);
        same::<IpPrefix>(&["10.0.0.0/24", "0.0.0.0/0", "10.0.0.1", "2001:db8::/32", "::/0"]);
        same::<EtherType>(&["ipv4", "arp", "0x88cc"]);
        same::<IpProto>(&["tcp", "89"]);
        same::<PortMatch>(&["80", "80/0xfff0", "1024-65535"]);
    }

    #[test]
    fn wrong_values_are_refused_with_a_remedy() {
        fn refused<T: FromStr<Err = String> + fmt::Debug>(texts: &[&str]) {
            for text in texts {
                assert!(text.parse::<T>().unwrap_err().contains("; "), "{text}");
            }
        }
        refused::<MacMatch>(&["x", "52:54:00:00:00:01/ff:ff:ff:00:00:00"]);
        refused::<StationMac>(&["01:00:5e:00:00:01", "00:00:00:00:00:00"]);
        refused::<IpPrefix>(&["10.0.0.1/24", "10.0.0.0/33", "10.0.0", "::1/129"]);
        refused::<EtherType>(&["ip", "0x8100", "5", "0x10000"]);
        refused::<IpProto>(&["256", "http"]);
        refused::<PortMatch>(&["65536", "9-3", "80/0xff00", "-", ""]);
        refused::<Dscp>(&["64", "-1"]);
    }
}
