//! The header parser. The parser reads only the head of a frame, which the switch has copied to
//! private memory.
//!
//! # Problem
//! A hostile guest may write any bytes into the headers of its frames.
//!
//! # Source
//! Sources are datapath rules 3 and 4, and RFC 791, 826, 1858 and 3128.
//!
//! # Approach
//! The parser removes one 802.1Q tag, so that the IP header is at byte 14 of every frame. The
//! parser does not read the bytes after a second tag, or after LLC/SNAP. For a frame with a second
//! tag or LLC/SNAP, the parser reports a hidden header, because stations accept such frames as IP
//! (CVE-2021-27853).
//!
//! The parser refuses a header that contradicts the frame's length or its own fields, or that
//! cannot be read in full. For this reason, no frame can evade a rule on TCP or UDP ports with a
//! header that the parser did not read. The parser refuses truncated transport headers, and ARP
//! that is not Ethernet/IPv4. The parser also refuses a first fragment that ends inside the TCP
//! header, and a TCP fragment at offset 8. The parser does not read the padding after the IP
//! datagram.
//!
//! # Cost
//! The parser reads IPv4 headers at fixed offsets. For IPv6, the parser reads at most eight
//! extension headers and eight ND options.

use super::ipv6;
use super::key::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, FlowKey};
use crate::batch::{Batch, HEAD_COPY};
use crate::drop::DropReason;
use crate::offload::Offload;

/// Offset in bytes of the network header in a frame without a VLAN tag.
pub const L3: usize = 14;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

/// Fragment state of the first of several fragments. The fragment state is the lowest two bits of
/// the key's DSCP byte.
pub const FRAGMENT_FIRST: u8 = 1;
/// Fragment state of an IP fragment after the first, which has no transport header.
pub const FRAGMENT_LATER: u8 = 2;

/// Flags that describe a frame's headers, for example its IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderFlags(u8);

impl HeaderFlags {
    pub const IPV4: Self = Self(1);
    pub const IPV6: Self = Self(2);
    pub const ARP: Self = Self(4);
    /// Flag for an ARP message in which the sender hardware address equals the frame's source MAC.
    pub const ARP_OWN_SENDER: Self = Self(8);
    /// Flag for ICMPv6 neighbour discovery (RFC 4861).
    pub const ND: Self = Self(16);
    /// Flag for a neighbour discovery message that only a router sends: router advertisement or
    /// redirect.
    pub const ND_ROUTER: Self = Self(32);
    /// Flag for neighbour discovery options that the parser cannot check: options outside the
    /// frame's head, or two link-layer addresses.
    pub const ND_UNREADABLE: Self = Self(64);
    /// Flag for a frame in which an IP or ARP header may follow a second tag or LLC/SNAP. The
    /// parser did not read the hidden IP or ARP header.
    pub const HIDDEN: Self = Self(128);

    /// Whether at least one flag of `other` is set.
    #[inline]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether the decision on the frame depends on more than the flow key (ARP, ND). The flow
    /// cache must not store a decision that depends on more than the key.
    #[inline]
    #[must_use]
    pub const fn uncacheable(self) -> bool {
        self.0 & (Self::ARP.0 | Self::ND.0) != 0
    }
}

/// Headers of a frame that the parser read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The flow key. The key's VLAN id is the id of the frame's tag, or 0 without a tag.
    pub key: FlowKey,
    /// Offset in bytes of the transport header. `l4` is 0 if the frame is not IP, is a later
    /// fragment, or has an unknown protocol.
    pub l4: u8,
    /// Offset in bytes of the end of the transport header.
    pub l4_end: u8,
    pub flags: HeaderFlags,
    /// Offset in bytes of the target address of a neighbour discovery message. 0 if there is none.
    pub nd_target: u8,
    /// Offset in bytes of the link-layer address in a neighbour discovery option. 0 if there is
    /// none.
    pub nd_link_layer: u8,
}

/// A transport header: the ports as a [`FlowKey`] stores them, and the header's offsets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transport {
    pub(crate) ports: (u16, u16),
    pub(crate) start: u8,
    pub(crate) end: u8,
}

#[inline]
pub(crate) fn be16(w: &[u8; HEAD_COPY], at: usize) -> u16 {
    w.get(at..).and_then(|s| s.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b))
}

#[inline]
pub(crate) fn be32(w: &[u8; HEAD_COPY], at: usize) -> u32 {
    w.get(at..).and_then(|s| s.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

#[inline]
pub(crate) fn be64(w: &[u8; HEAD_COPY], at: usize) -> u64 {
    w.get(at..).and_then(|s| s.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b))
}

#[inline]
pub(crate) fn byte(w: &[u8; HEAD_COPY], at: usize) -> u8 {
    w.get(at).copied().unwrap_or(0)
}

/// Converts an offset inside a frame's head to a byte. The private head of a frame is shorter than
/// 256 bytes.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "`at` is at most HEAD_COPY + 60")]
pub(crate) const fn offset(at: usize) -> u8 {
    at as u8
}

/// Reads the transport header at offset `at` of a datagram that ends at offset `end`. All fields
/// that the function reads must lie inside the frame's head.
#[inline]
pub(crate) fn transport(
    w: &[u8; HEAD_COPY],
    at: usize,
    end: usize,
    proto: u8,
) -> Result<Transport, DropReason> {
    let (need, header) = match proto {
        TCP => (20, usize::from(byte(w, at + 12) >> 4) * 4),
        UDP => (8, 8),
        SCTP => (12, 12),
        ICMP | ICMPV6 => (4, 4),
        _ => return Ok(Transport::default()),
    };
    if at + need > HEAD_COPY || header < need || at + header > end {
        return Err(DropReason::BadHeader);
    }
    let ports = match proto {
        ICMP | ICMPV6 => (u16::from(byte(w, at)), u16::from(byte(w, at + 1))),
        _ => (be16(w, at), be16(w, at + 2)),
    };
    Ok(Transport { ports, start: offset(at), end: offset(at + header) })
}

/// Parses frame `i` of `batch`, which came from port `in_port`. The parser removes the frame's tag,
/// reads the headers, and compares the offload metadata with the headers.
///
/// # Errors
/// If the frame is invalid, returns [`DropReason::Runt`], [`DropReason::BadHeader`] or
/// [`DropReason::BadOffload`].
pub fn parse(batch: &mut Batch, i: usize, in_port: u16) -> Result<Headers, DropReason> {
    let mut headers = Headers::default();
    match parse_plain(batch, i, in_port) {
        Some(plain) => headers = plain?,
        None => parse_any(batch, i, in_port, &mut headers)?,
    }
    Ok(headers)
}

/// Like [`parse`], but only for the most common kind of frame. Returns `None` for a frame that
/// needs the full parser.
#[inline(always)]
pub(crate) fn parse_plain(
    batch: &mut Batch,
    i: usize,
    in_port: u16,
) -> Option<Result<Headers, DropReason>> {
    let (len, asks) = (batch.at(i).len, !batch.at(i).offload.is_none());
    let h = plain_ipv4(batch.head_window(i), len as usize, u64::from(in_port) << 48)?;
    if asks {
        return Some(check_offload(batch, i, &h).map(|()| h));
    }
    batch.at_mut(i).offload = Offload::NONE;
    Some(Ok(h))
}

/// Parses a frame of any kind, with all checks.
#[inline]
pub(crate) fn parse_any(
    batch: &mut Batch,
    i: usize,
    in_port: u16,
    h: &mut Headers,
) -> Result<(), DropReason> {
    let mut len = batch.frame(i).len as usize;
    if len < L3 {
        return Err(DropReason::Runt);
    }
    let mut first = u64::from(in_port) << 48;
    if be16(batch.head_window(i), 12) == ETHERTYPE_VLAN {
        if len < L3 + 4 {
            return Err(DropReason::Runt);
        }
        batch.strip_tag(i);
        len -= 4;
        first |= u64::from(batch.frame(i).tci & 0xfff) << 32;
    }
    let w = batch.head_window(i);
    let ethertype = be16(w, 12);
    let words = [first | u64::from(ethertype) << 16, be64(w, 0) & !0xffff, be64(w, 6) & !0xffff];
    let key = FlowKey([words[0], words[1], words[2], 0, 0, 0, 0, 0]);
    *h = Headers { key, ..Headers::default() };
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(w, len, h)?,
        ETHERTYPE_IPV6 => ipv6::ipv6(w, len, h)?,
        ETHERTYPE_ARP => arp(w, len, h)?,
        _ if hides(w, len) => h.flags.set(HeaderFlags::HIDDEN),
        _ => {}
    }
    check_offload(batch, i, h)
}

/// Whether an `EtherType` marks a VLAN tag: 802.1Q, 802.1ad, or one of their predecessors.
#[inline]
pub(crate) const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_VLAN | 0x88a8 | 0x9100 | 0x9200 | 0x9300)
}

/// Whether a frame without its first tag continues with a second tag, or with LLC that carries IP
/// or ARP. LLC carries IP or ARP by SNAP (RFC 1042, 802.1H) or by IP's own service access point.
/// The function does not check a length in place of the `EtherType`, because stations treat wrong
/// lengths differently (CVE-2021-27862).
fn hides(w: &[u8; HEAD_COPY], len: usize) -> bool {
    const SNAP: u16 = 0xaaaa;
    const IP: u16 = 0x0606;
    let ethertype = be16(w, L3 - 2);
    if ethertype >= 0x0600 {
        return is_tag(ethertype);
    }
    if len < L3 + 8 {
        return false;
    }
    // The lowest bit of each byte means group or response and is not part of the address.
    match be16(w, L3) & 0xfefe {
        IP => true,
        SNAP => {
            let inner = be16(w, L3 + 6);
            // The organisation codes of RFC 1042 and of 802.1H. No other code carries IP or ARP.
            matches!(be32(w, L3 + 2) & 0x00ff_ffff, 0 | 0x0000_00f8)
                && (matches!(inner, ETHERTYPE_IPV4 | ETHERTYPE_IPV6 | ETHERTYPE_ARP)
                    || is_tag(inner))
        }
        _ => false,
    }
}

/// Whether a frame that hides a header has exactly one further tag, with a VLAN id that is not 0,
/// and no cut IP header behind the tag. Stations treat a frame with VLAN id 0 as untagged. In a cut
/// IP header, switches would obey the code point of the VM, because no host overwrites it.
pub(crate) fn hides_behind_one_tag(w: &[u8; HEAD_COPY], len: usize) -> bool {
    is_tag(be16(w, L3 - 2)) && len >= L3 + 4 && be16(w, L3) & 0xfff != 0 && {
        let inner = be16(w, L3 + 2);
        let least = match inner {
            ETHERTYPE_IPV4 => 20,
            ETHERTYPE_IPV6 => 40,
            _ => 0,
        };
        inner >= 0x0600 && !is_tag(inner) && len >= L3 + 4 + least
    }
}

/// Parses the most common kind of frame in few instructions: no tag, a 20-byte IPv4 header, no
/// fragment, and a valid TCP or UDP header. Returns the same headers as [`parse_any`], or `None`
/// for a frame of another kind.
#[inline(always)]
fn plain_ipv4(w: &[u8; HEAD_COPY], len: usize, first: u64) -> Option<Headers> {
    const TOTAL_MIN: usize = 28;
    let (dst, src, ip) = (be64(w, 0), be64(w, 6), be64(w, L3));
    let total = usize::from(be16(w, L3 + 2));
    // Version 4, a header of five words, no "more fragments" flag and no fragment offset.
    let plain = ip & 0xff00_0000_0000_3fff == 0x4500_0000_0000_0000;
    if !plain || src & 0xffff != u64::from(ETHERTYPE_IPV4) || total < TOTAL_MIN || L3 + total > len
    {
        return None;
    }
    let proto = w[L3 + 9];
    let l4_end = match proto {
        UDP => L3 + TOTAL_MIN,
        TCP => {
            let header = usize::from(w[L3 + 32] >> 4) * 4;
            if header < 20 || 20 + header > total {
                return None;
            }
            L3 + 20 + header
        }
        _ => return None,
    };
    let ports = be32(w, L3 + 20);
    let bits = u64::from(ETHERTYPE_IPV4) << 16 | u64::from(proto) << 8 | (ip >> 48) & 0xfc;
    let (dst, src) = (dst & !0xffff, src & !0xffff);
    let (from, to) = (u64::from(ports >> 16), u64::from(ports & 0xffff));
    // All words are written whole, because reading back words that were stored in parts stalls.
    Some(Headers {
        key: FlowKey([first | bits, dst | from, src | to, be64(w, L3 + 12), 0, 0, 0, 0]),
        l4: offset(L3 + 20),
        l4_end: offset(l4_end),
        flags: HeaderFlags::IPV4,
        nd_target: 0,
        nd_link_layer: 0,
    })
}

#[inline]
fn check_offload(batch: &mut Batch, i: usize, h: &Headers) -> Result<(), DropReason> {
    let frame = batch.frame_mut(i);
    if frame.offload.is_none() {
        frame.offload = Offload::NONE;
        return Ok(());
    }
    // The transport checksum covers the whole datagram, so a fragment has no checksum to compute.
    let whole = h.key.0[0] & 3 == 0;
    let l4 = if whole { u16::from(h.l4) } else { 0 };
    let ipv6 = h.flags.has(HeaderFlags::IPV6);
    frame.offload.check(l4, h.key.proto(), u16::from(h.l4_end), ipv6, frame.len)
}

fn ipv4(w: &[u8; HEAD_COPY], len: usize, h: &mut Headers) -> Result<(), DropReason> {
    h.flags.set(HeaderFlags::IPV4);
    let header = usize::from(w[L3] & 15) * 4;
    let total = usize::from(be16(w, L3 + 2));
    if w[L3] >> 4 != 4 || header < 20 || total < header || L3 + total > len {
        return Err(DropReason::BadHeader);
    }
    let proto = w[L3 + 9];
    let fragment = be16(w, L3 + 6) & 0x3fff;
    h.key.0[0] |= u64::from(proto) << 8 | u64::from(w[L3 + 1] & 0xfc);
    h.key.0[3] = be64(w, L3 + 12);
    if fragment != 0 {
        let place = fragment & 0x1fff;
        // RFC 3128: a fragment at offset 8 contains the TCP flags, which a rule or a host may
        // examine.
        if place == 1 && proto == TCP {
            return Err(DropReason::BadHeader);
        }
        if place != 0 {
            h.key.0[0] |= u64::from(FRAGMENT_LATER);
            return Ok(());
        }
        h.key.0[0] |= u64::from(FRAGMENT_FIRST);
    }
    if proto != ICMPV6 {
        h.set_transport(transport(w, L3 + header, L3 + total, proto)?);
    }
    Ok(())
}

fn arp(w: &[u8; HEAD_COPY], len: usize, h: &mut Headers) -> Result<(), DropReason> {
    // Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
    if len < L3 + 28 || be64(w, L3) >> 16 != 0x0001_0800_0604 {
        return Err(DropReason::BadHeader);
    }
    h.flags.set(HeaderFlags::ARP);
    h.key.0[2] |= u64::from(be16(w, L3 + 6));
    h.key.0[3] = u64::from(be32(w, L3 + 14)) << 32 | u64::from(be32(w, L3 + 24));
    if be64(w, L3 + 8) >> 16 == h.key.src_mac() {
        h.flags.set(HeaderFlags::ARP_OWN_SENDER);
    }
    Ok(())
}

impl Headers {
    #[inline]
    pub(crate) fn set_transport(&mut self, t: Transport) {
        self.key.0[1] |= u64::from(t.ports.0);
        self.key.0[2] |= u64::from(t.ports.1);
        self.l4 = t.start;
        self.l4_end = t.end;
    }
}

/// Returns the headers of frame `i`, which came from `port`, as a key. Returns `None` if the
/// headers are invalid or the frame's offload metadata does not agree with them. The frame keeps
/// its VLAN tag.
pub(crate) fn key_of(batch: &mut Batch, i: usize, port: penstock_units::PortId) -> Option<FlowKey> {
    let len = batch.frame(i).len;
    let headers = parse(batch, i, port.0);
    if batch.frame(i).len < len {
        // The parser took the tag off.
        batch.set_tagged(i, true);
    }
    headers.ok().map(|headers| headers.key)
}

#[cfg(test)]
mod tests {
    use super::super::test_frames::*;
    use super::*;
    use crate::offload::F_NEEDS_CSUM;

    fn read(bytes: &[u8]) -> Result<Headers, DropReason> {
        let mut batch = Batch::new();
        batch.push(bytes, Offload::NONE).unwrap();
        parse(&mut batch, 0, 3)
    }

    #[test]
    fn a_udp_frame_becomes_its_key() {
        let h = read(&udp4(A, B, [10, 0, 0, 1], [10, 0, 0, 2], 1000, 53)).unwrap();
        let f = h.key.fields();
        assert_eq!((f.in_port, f.vid, f.ethertype, f.proto), (3, 0, 0x0800, 17));
        assert_eq!((f.src_mac, f.dst_mac), (A, B));
        assert_eq!((f.ipv4_src, f.ipv4_dst), (0x0a00_0001, 0x0a00_0002));
        assert_eq!((f.src_port, f.dst_port), (1000, 53));
        assert_eq!((h.l4, h.l4_end), (34, 42));
    }

    #[test]
    fn one_tag_comes_off_and_its_vid_is_in_the_key() {
        let inner = udp4(A, B, [10, 0, 0, 1], [10, 0, 0, 2], 1000, 53);
        let mut batch = Batch::new();
        batch.push(&tagged(&inner, 0x6064), Offload::NONE).unwrap();
        let h = parse(&mut batch, 0, 3).unwrap();
        assert_eq!((h.key.vid(), batch.frame(0).tci, batch.frame(0).len), (100, 0x6064, 60));
        assert_eq!(h.key.proto(), 17);
        let twice = read(&tagged(&tagged(&inner, 5), 100)).unwrap();
        assert_eq!((twice.key.vid(), twice.key.ethertype()), (100, ETHERTYPE_VLAN));
    }

    #[test]
    fn headers_that_contradict_themselves_are_refused() {
        let good = udp4(A, B, [10, 0, 0, 1], [10, 0, 0, 2], 1000, 53);
        for (at, value) in [(14, 0x55), (14, 0x44), (14, 0x4f), (16, 1), (17, 19), (17, 27)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(read(&bad), Err(DropReason::BadHeader), "byte {at} = {value:#x}");
        }
        assert_eq!(read(&tagged(&good, 5)[..17]), Err(DropReason::Runt));
        assert_eq!(read(&good[..20]), Err(DropReason::BadHeader));
    }

    #[test]
    fn fragments_have_a_state_and_only_the_first_has_ports() {
        let mut frame = udp4(A, B, [10, 0, 0, 1], [10, 0, 0, 2], 1000, 53);
        frame[20] = 0x20;
        let first = read(&frame).unwrap();
        assert_eq!((first.key.fields().tos, first.key.ports()), (FRAGMENT_FIRST, (1000, 53)));
        frame[21] = 0xb9;
        let later = read(&frame).unwrap();
        assert_eq!((later.key.fields().tos, later.key.ports()), (FRAGMENT_LATER, (0, 0)));
        assert_eq!(later.l4, 0);
        // RFC 3128: a TCP fragment at offset 8.
        frame[23] = TCP;
        frame[20..22].copy_from_slice(&[0, 1]);
        assert_eq!(read(&frame), Err(DropReason::BadHeader));
    }

    #[test]
    fn arp_gives_operation_and_addresses_and_whether_the_sender_is_its_own() {
        let own = read(&arp4(A, A, 1, [10, 0, 0, 1], [10, 0, 0, 2])).unwrap();
        assert!(own.flags.has(HeaderFlags::ARP_OWN_SENDER));
        assert_eq!(own.key.ports(), (0, 1));
        assert_eq!(own.key.ipv4_src(), 0x0a00_0001);
        let lie = read(&arp4(A, B, 1, [10, 0, 0, 1], [10, 0, 0, 2])).unwrap();
        assert!(lie.flags.has(HeaderFlags::ARP) && !lie.flags.has(HeaderFlags::ARP_OWN_SENDER));
        assert_eq!(read(&arp4(A, A, 1, [1; 4], [2; 4])[..41]), Err(DropReason::BadHeader));
    }

    #[test]
    fn offload_metadata_is_checked_against_the_headers() {
        let frame = udp4(A, B, [10, 0, 0, 1], [10, 0, 0, 2], 1000, 53);
        let offload =
            Offload { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..Offload::NONE };
        let mut batch = Batch::new();
        batch.push(&frame, offload).unwrap();
        batch.push(&frame, Offload { csum_start: 35, ..offload }).unwrap();
        batch.push(&frame, Offload { hdr_len: 99, gso_size: 9, ..Offload::NONE }).unwrap();
        let mut part = frame.clone();
        part[20] = 0x20;
        batch.push(&part, offload).unwrap();
        assert!(parse(&mut batch, 0, 0).is_ok());
        assert_eq!(parse(&mut batch, 1, 0), Err(DropReason::BadOffload));
        assert!(parse(&mut batch, 2, 0).is_ok());
        assert_eq!(batch.frame(2).offload, Offload::NONE);
        assert_eq!(parse(&mut batch, 3, 0), Err(DropReason::BadOffload));
    }
}
