//! Parser for IPv6: walks a limited number of extension headers, and reads neighbour discovery
//! (ND).
//!
//! Sources: The sources for IPv6 parsing are RFC 8200, RFC 4861, RFC 6980 (ND is never fragmented)
//! and RFC 7112 (the first fragment contains the whole header chain).
//!
//! The parser walks over hop-by-hop, routing, destination options, fragment and authentication
//! headers. The parser reads at most [`EXTENSIONS_MAX`] extension headers and stays inside the
//! frame's private head. A longer chain of extension headers is refused, because the parser cannot
//! check the transport header after the chain. Unlike the RFCs, the parser refuses jumbograms (RFC
//! 2675).

use super::parse::{
    FRAGMENT_FIRST, FRAGMENT_LATER, HeaderFlags, Headers, ICMP, ICMPV6, L3, be16, be64, byte,
    offset, transport,
};
use crate::batch::HEAD_COPY;
use crate::drop::DropReason;

/// Maximum number of IPv6 extension headers that the parser accepts in a frame.
pub const EXTENSIONS_MAX: usize = 8;
/// Maximum number of options that the parser reads in a neighbour discovery (ND) message.
pub const ND_OPTIONS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

pub(crate) const NEIGHBOUR_ADVERTISEMENT: u16 = 136;
const ROUTER_ADVERTISEMENT: u16 = 134;
const REDIRECT: u16 = 137;

pub(crate) fn ipv6(w: &[u8; HEAD_COPY], len: usize, h: &mut Headers) -> Result<(), DropReason> {
    const HEADER: usize = 40;
    h.flags.set(HeaderFlags::IPV6);
    let end = L3 + HEADER + usize::from(be16(w, L3 + 4));
    if w[L3] >> 4 != 6 || end > len {
        return Err(DropReason::BadHeader);
    }
    let class = (w[L3] & 15) << 4 | w[L3 + 1] >> 4;
    for word in 0..4 {
        h.key.0[4 + word] = be64(w, L3 + 8 + 8 * word);
    }
    let chain = walk(w, w[L3 + 6], end)?;
    h.key.0[0] |= u64::from(chain.proto) << 8 | u64::from(class & 0xfc | chain.fragment);
    if chain.fragment == FRAGMENT_LATER || chain.proto == ICMP {
        return Ok(());
    }
    h.set_transport(transport(w, chain.at, end, chain.proto)?);
    if chain.proto == ICMPV6 && matches!(h.key.ports().0, 133..=137) {
        if chain.fragment != 0 {
            return Err(DropReason::BadHeader);
        }
        neighbour_discovery(w, chain.at, end, h)?;
    }
    Ok(())
}

/// Result of the walk over IPv6 extension headers: the protocol and the offset of the header that
/// follows.
struct Chain {
    proto: u8,
    at: usize,
    fragment: u8,
}

#[inline]
fn walk(w: &[u8; HEAD_COPY], mut proto: u8, end: usize) -> Result<Chain, DropReason> {
    let limit = end.min(HEAD_COPY);
    let mut at = L3 + 40;
    let mut fragment = 0;
    for _ in 0..=EXTENSIONS_MAX {
        if !matches!(proto, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION) {
            return Ok(Chain { proto, at, fragment });
        }
        if at + 8 > limit {
            return Err(DropReason::BadHeader);
        }
        let units = usize::from(byte(w, at + 1));
        let next = byte(w, at);
        at += match proto {
            FRAGMENT => {
                let place = be16(w, at + 2);
                if fragment != 0 {
                    return Err(DropReason::BadHeader);
                }
                if place & 0xfff8 != 0 {
                    return Ok(Chain { proto: next, at: at + 8, fragment: FRAGMENT_LATER });
                }
                // An atomic fragment (RFC 6946) is a whole datagram.
                fragment = if place & 1 != 0 { FRAGMENT_FIRST } else { 0 };
                8
            }
            AUTHENTICATION => 8 + 4 * units,
            _ => 8 + 8 * units,
        };
        if at > end {
            return Err(DropReason::BadHeader);
        }
        proto = next;
    }
    Err(DropReason::BadHeader)
}

/// Records the target and the link-layer option of a neighbour discovery message in `h`.
#[inline(never)]
fn neighbour_discovery(
    w: &[u8; HEAD_COPY],
    at: usize,
    end: usize,
    h: &mut Headers,
) -> Result<(), DropReason> {
    h.flags.set(HeaderFlags::ND);
    let kind = h.key.ports().0;
    let fixed = match kind {
        133 => 8,
        ROUTER_ADVERTISEMENT => 16,
        REDIRECT => 40,
        _ => 24,
    };
    if matches!(kind, ROUTER_ADVERTISEMENT | REDIRECT) {
        h.flags.set(HeaderFlags::ND_ROUTER);
    }
    let mut option = at + fixed;
    if option > end {
        return Err(DropReason::BadHeader);
    }
    if option > HEAD_COPY {
        h.flags.set(HeaderFlags::ND_UNREADABLE);
        return Ok(());
    }
    if fixed >= 24 {
        h.nd_target = offset(at + 8);
    }
    for _ in 0..ND_OPTIONS_MAX {
        if option >= end {
            return Ok(());
        }
        if option + 8 > HEAD_COPY {
            break;
        }
        let bytes = usize::from(byte(w, option + 1)) * 8;
        if bytes == 0 || option + bytes > end {
            return Err(DropReason::BadHeader);
        }
        if matches!(byte(w, option), 1 | 2) {
            if h.nd_link_layer != 0 {
                break;
            }
            h.nd_link_layer = offset(option + 2);
        }
        option += bytes;
    }
    if option < end {
        h.flags.set(HeaderFlags::ND_UNREADABLE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::super::test_frames::*;
    use super::*;
    use crate::batch::Batch;
    use crate::offload::Offload;

    fn read(bytes: &[u8]) -> Result<Headers, DropReason> {
        let mut batch = Batch::new();
        batch.push(bytes, Offload::NONE).unwrap();
        parse(&mut batch, 0, 3)
    }

    #[test]
    fn the_walk_finds_the_ports_behind_extension_headers() {
        let mut payload = vec![DESTINATION, 0, 1, 4, 0, 0, 0, 0];
        payload.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        payload.extend([0x03, 0xe8, 0, 53, 0, 8, 0, 0]);
        let h = read(&ip6(A, B, ip6_addr(1), ip6_addr(2), HOP_BY_HOP, &payload)).unwrap();
        assert_eq!((h.key.proto(), h.key.ports(), h.l4), (17, (1000, 53), 70));
        assert_eq!(h.key.ipv6_src(), ip6_addr(1));
    }

    #[test]
    fn an_unreadable_chain_is_refused() {
        let beyond_head = [&[17, 9, 1, 4][..], &[0; 76], &[0x03, 0xe8, 0, 53, 0, 8, 0, 0]].concat();
        let beyond_frame = [17, 9, 1, 4, 0, 0, 0, 0];
        let endless: Vec<u8> = [DESTINATION, 0, 1, 4, 0, 0, 0, 0].repeat(9);
        for payload in [&beyond_head[..], &beyond_frame, &endless] {
            let frame = ip6(A, B, ip6_addr(1), ip6_addr(2), DESTINATION, payload);
            assert_eq!(read(&frame), Err(DropReason::BadHeader));
        }
    }

    #[test]
    fn fragments_and_atomic_fragments_are_told_apart() {
        let udp = [0x03, 0xe8, 0, 53, 0, 8, 0, 0];
        for (place, state, ports) in
            [(0, 0, (1000, 53)), (1, FRAGMENT_FIRST, (1000, 53)), (8, FRAGMENT_LATER, (0, 0))]
        {
            let payload = [&[17, 0, 0, place, 0, 0, 0, 0][..], &udp].concat();
            let h = read(&ip6(A, B, ip6_addr(1), ip6_addr(2), FRAGMENT, &payload)).unwrap();
            assert_eq!((h.key.fields().tos, h.key.ports()), (state, ports));
        }
    }

    #[test]
    fn neighbour_discovery_shows_target_and_link_layer_address() {
        let h = read(&nd(A, B, ip6_addr(1), ip6_addr(2), 136, ip6_addr(1), Some(A))).unwrap();
        assert!(h.flags.has(HeaderFlags::ND) && !h.flags.has(HeaderFlags::ND_ROUTER));
        assert_eq!((h.nd_target, h.nd_link_layer), (62, 80));
        let ra = read(&nd(A, B, ip6_addr(1), ip6_addr(2), 134, ip6_addr(1), None)).unwrap();
        assert!(ra.flags.has(HeaderFlags::ND_ROUTER));
        let mut zero_option = nd(A, B, ip6_addr(1), ip6_addr(2), 135, ip6_addr(1), Some(A));
        zero_option[79] = 0;
        assert_eq!(read(&zero_option), Err(DropReason::BadHeader));
    }
}
