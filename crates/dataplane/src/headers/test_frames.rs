//! Builds frames for tests of the header parser.

pub(crate) const A: u64 = 0x5254_0000_000a;
pub(crate) const B: u64 = 0x5254_0000_000b;

fn mac(m: u64) -> [u8; 6] {
    m.to_be_bytes()[2..].try_into().unwrap()
}

fn ethernet(src: u64, dst: u64, ethertype: u16) -> Vec<u8> {
    [&mac(dst)[..], &mac(src), &ethertype.to_be_bytes()].concat()
}

/// Builds a UDP frame of 60 bytes with an IPv4 datagram of 28 bytes.
pub(crate) fn udp4(s: u64, d: u64, src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16) -> Vec<u8> {
    let mut f = ethernet(s, d, 0x0800);
    f.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    f.extend(src);
    f.extend(dst);
    f.extend(sport.to_be_bytes());
    f.extend(dport.to_be_bytes());
    f.extend([0, 8, 0, 0]);
    f.resize(60, 0);
    f
}

pub(crate) fn arp4(s: u64, sha: u64, oper: u8, spa: [u8; 4], tpa: [u8; 4]) -> Vec<u8> {
    let mut f = ethernet(s, 0xffff_ffff_ffff, 0x0806);
    f.extend([0, 1, 8, 0, 6, 4, 0, oper]);
    f.extend(mac(sha));
    f.extend(spa);
    f.extend([0; 6]);
    f.extend(tpa);
    f.resize(60, 0);
    f
}

pub(crate) fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &0x8100_u16.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]].concat()
}

pub(crate) fn ip6_addr(host: u8) -> u128 {
    0x2001_0db8 << 96 | u128::from(host)
}

pub(crate) fn ip6(s: u64, d: u64, src: u128, dst: u128, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut f = ethernet(s, d, 0x86dd);
    f.extend([0x60, 0, 0, 0]);
    f.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    f.extend([next, 255]);
    f.extend(src.to_be_bytes());
    f.extend(dst.to_be_bytes());
    f.extend(payload);
    f
}

/// Builds an ICMPv6 neighbour discovery message with a target and one link-layer option.
pub(crate) fn nd(
    s: u64,
    d: u64,
    src: u128,
    dst: u128,
    kind: u8,
    target: u128,
    ll: Option<u64>,
) -> Vec<u8> {
    let mut p = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    p.extend(target.to_be_bytes());
    if kind == 134 {
        p.truncate(16);
    }
    if kind == 137 {
        p.extend(target.to_be_bytes());
    }
    if let Some(ll) = ll {
        p.extend([if kind == 136 { 2 } else { 1 }, 1]);
        p.extend(mac(ll));
    }
    ip6(s, d, src, dst, 58, &p)
}
