//! This oracle parses frames with `etherparse`, and lists the allowed differences from the switch's
//! parser.

use etherparse::err::packet::SliceError;
use etherparse::{SlicedPacket, TransportSlice};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::headers::key::KeyFields;
use penstock_dataplane::headers::parse::{FRAGMENT_FIRST, FRAGMENT_LATER, Headers, parse};
use penstock_dataplane::offload::Offload;

/// Parses a frame from port 7 with the switch's parser.
///
/// # Errors
/// Returns the reason if the parser refuses the frame.
pub fn ours(frame: &[u8]) -> Result<Headers, DropReason> {
    let mut batch = Batch::new();
    match batch.push(frame, Offload::NONE) {
        Ok(()) => parse(&mut batch, 0, 7),
        Err(full) => panic!("an empty batch takes a frame: {full:?}"),
    }
}

/// Parses a frame with `etherparse`, and returns the result as fields of the switch's key. Returns
/// `None` if `etherparse` finds no valid IP packet.
#[must_use]
pub fn theirs(frame: &[u8]) -> Option<KeyFields> {
    let p = SlicedPacket::from_ethernet(frame).ok()?;
    let mut k = KeyFields { in_port: 7, ..KeyFields::default() };
    let eth = p.link.as_ref()?.to_header()?.ethernet2()?;
    (k.src_mac, k.dst_mac) = (number(&eth.source), number(&eth.destination));
    k.ethertype = eth.ether_type.0;
    if let Some(vlan) = p.vlan() {
        // `etherparse` also treats 802.1ad's 0x88a8 and the old 0x9100 as tags. For the switch
        // those frames are not IP.
        if k.ethertype != 0x8100 {
            return None;
        }
        let vlan = vlan.to_header();
        match vlan {
            etherparse::VlanHeader::Single(tag) => {
                (k.vid, k.ethertype) = (tag.vlan_id.value(), tag.ether_type.0);
            }
            etherparse::VlanHeader::Double(_) => return None,
        }
    }
    let mut fragment = 0;
    match p.net.as_ref()? {
        etherparse::NetSlice::Ipv4(ip) => {
            let h = ip.header();
            k.ipv4_src = u32::from_be_bytes(h.source());
            k.ipv4_dst = u32::from_be_bytes(h.destination());
            k.proto = h.protocol().0;
            k.tos = h.dcp().value() << 2;
            if h.is_fragmenting_payload() {
                let first = h.fragments_offset().value() == 0;
                fragment = if first { FRAGMENT_FIRST } else { FRAGMENT_LATER };
            }
        }
        etherparse::NetSlice::Ipv6(ip) => {
            let h = ip.header();
            k.ipv6_src = u128::from_be_bytes(h.source());
            k.ipv6_dst = u128::from_be_bytes(h.destination());
            k.tos = h.traffic_class() & 0xfc;
            k.proto = ip.payload().ip_number.0;
            fragment = if ip.is_payload_fragmented() { FRAGMENT_FIRST } else { 0 };
        }
        etherparse::NetSlice::Arp(_) => return None,
    }
    k.tos |= fragment;
    match p.transport {
        Some(TransportSlice::Udp(u)) => {
            (k.src_port, k.dst_port) = (u.source_port(), u.destination_port());
        }
        Some(TransportSlice::Tcp(t)) => {
            (k.src_port, k.dst_port) = (t.source_port(), t.destination_port());
        }
        Some(TransportSlice::Icmpv4(i)) => {
            (k.src_port, k.dst_port) = (i.type_u8().into(), i.code_u8().into());
        }
        Some(TransportSlice::Icmpv6(i)) => {
            (k.src_port, k.dst_port) = (i.type_u8().into(), i.code_u8().into());
        }
        Some(TransportSlice::Igmp(_)) | None => {}
    }
    Some(k)
}

fn number(mac: &[u8; 6]) -> u64 {
    mac.iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// Parses a frame with the switch's parser and with `etherparse`, and checks that the results
/// differ only in the listed ways.
///
/// # Panics
/// Panics if the two parsers disagree about the frame in a way that is not listed.
pub fn agree(frame: &[u8]) {
    let mine = ours(frame);
    let tag = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
    if let Ok(h) = &mine {
        let ip = 14 + tag;
        let byte = |at: usize| usize::from(frame[ip + at]);
        let word = |at: usize| byte(at) << 8 | byte(at + 1);
        match h.key.ethertype() {
            0x0800 => assert!(ip + word(2) <= frame.len()),
            0x86dd => assert!(ip + 40 + word(4) <= frame.len()),
            _ => {}
        }
    }
    match (mine, theirs(frame)) {
        (Ok(h), Some(want)) => {
            let mine = h.key.fields();
            // `etherparse` treats SCTP as no transport; the switch treats ICMP of the other IP
            // version as no ICMP. Only `etherparse` reads after an IPv4 authentication header. For
            // IPv6, it does not say whether a fragment is the first, and it reads no ports of a
            // first fragment.
            let v6 = mine.ethertype == 0x86dd;
            let unread = if v6 { mine.proto == 1 } else { matches!(mine.proto, 51 | 58) };
            let other = mine.proto == 132 || unread || v6 && mine.tos & 3 != 0;
            let mine = if mine.tos & 3 == 0 {
                mine
            } else {
                KeyFields { src_port: want.src_port, dst_port: want.dst_port, ..mine }
            };
            assert!(other || mine == want, "{mine:?}\n{want:?}");
        }
        // The switch refuses more frames, but only frames that claim to be IP or ARP, or end inside
        // their tag.
        (Err(reason), _) => {
            let at = 12 + tag;
            let ethertype = frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
            let lawful = match ethertype {
                None => reason == DropReason::Runt,
                Some(0x0800 | 0x0806 | 0x86dd) => reason == DropReason::BadHeader,
                Some(_) => false,
            };
            assert!(lawful, "{reason:?}");
        }
        // If `etherparse` refuses and the switch passes, the frame is not IP for the switch, or has
        // a protocol that it does not parse.
        (Ok(h), None) => {
            let f = h.key.fields();
            let ip = matches!(f.ethertype, 0x0800 | 0x86dd);
            let looked_into = matches!(f.proto, 6 | 17) && f.tos & 3 == 0;
            // `etherparse` refuses a hop-by-hop header that is not the first (RFC 8200 §4.1), and
            // an IPv6 authentication header of length 0. A station may not check this, so the
            // switch continues to parse. Its rules thus apply to the headers that such a station
            // finds.
            let lax = matches!(SlicedPacket::from_ethernet(frame), Err(SliceError::Ipv6Exts(_)));
            assert!(!ip || !looked_into || lax || f.proto == 17, "{f:?}");
        }
    }
}
