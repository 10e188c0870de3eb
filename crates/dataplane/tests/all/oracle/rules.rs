//! This test oracle evaluates a rule's match field by field, as the match is defined.

use penstock_dataplane::headers::key::KeyFields;
use penstock_dataplane::snapshot::{IpMatch, Match};
use penstock_units::MacAddr;

/// Whether the match `m` fits the key `k`, compared field by field.
#[must_use]
pub fn fits(m: &Match, k: &KeyFields) -> bool {
    let ip = |want: Option<IpMatch>, v4: u32, wide: u128| match want {
        None => true,
        Some(IpMatch::V4(a, mask)) => {
            k.ethertype == 0x0800 && (a.to_bits() ^ v4) & mask.to_bits() == 0
        }
        Some(IpMatch::V6(a, mask)) => {
            k.ethertype == 0x86dd && (a.to_bits() ^ wide) & mask.to_bits() == 0
        }
    };
    let masked_mac = |want: Option<(MacAddr, MacAddr)>, have: u64| {
        want.is_none_or(|(a, mask)| (a.to_u64() ^ have) & mask.to_u64() == 0)
    };
    let port =
        |want: Option<(u16, u16)>, have: u16| want.is_none_or(|(p, mask)| (p ^ have) & mask == 0);
    m.in_port.is_none_or(|p| p == k.in_port)
        && m.vlan.is_none_or(|v| v.get() == k.vid)
        && masked_mac(m.src_mac, k.src_mac)
        && masked_mac(m.dst_mac, k.dst_mac)
        && m.ethertype.is_none_or(|t| t == k.ethertype)
        && ip(m.src_ip, k.ipv4_src, k.ipv6_src)
        && ip(m.dst_ip, k.ipv4_dst, k.ipv6_dst)
        && m.proto.is_none_or(|p| p == k.proto)
        && port(m.src_port, k.src_port)
        && port(m.dst_port, k.dst_port)
        && m.dscp.is_none_or(|d| d == k.tos >> 2)
}
