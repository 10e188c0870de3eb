//! The parser against an independent one (`etherparse`), on sound and on mutated frames.
#![allow(clippy::unwrap_used, reason = "a test")]

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::classify::key::KeyFields;
use penstock_dataplane::classify::parse::{FRAGMENT_FIRST, FRAGMENT_LATER, Headers, parse};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::Offload;
use proptest::prelude::*;

fn ours(frame: &[u8]) -> Result<Headers, DropReason> {
    let mut batch = Batch::new();
    batch.push(frame, Offload::NONE).unwrap();
    parse(&mut batch, 0, 7)
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    tag: Option<u16>,
    v6: bool,
    proto: u8,
    dscp: u8,
    src: [u8; 16],
    dst: [u8; 16],
    ports: (u16, u16),
    payload: usize,
    padding: usize,
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        proptest::option::of(0_u16..4095),
        any::<bool>(),
        0_u8..4,
        0_u8..64,
        any::<([u8; 16], [u8; 16])>(),
        any::<(u16, u16)>(),
        0_usize..200,
        0_usize..20,
    )
        .prop_map(|(tag, v6, proto, dscp, (src, dst), ports, payload, padding)| Shape {
            tag,
            v6,
            proto,
            dscp,
            src,
            dst,
            ports,
            payload,
            padding,
        })
}

const SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DST: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn four(a: [u8; 16]) -> [u8; 4] {
    [a[0], a[1], a[2], a[3]]
}

fn build(s: &Shape) -> Vec<u8> {
    let payload = vec![0xa5; s.payload];
    let mut out = Vec::new();
    macro_rules! finish {
        ($builder:expr) => {{
            let b = $builder;
            match s.proto {
                0 => b.udp(s.ports.0, s.ports.1).write(&mut out, &payload),
                1 => b.tcp(s.ports.0, s.ports.1, 1, 1000).write(&mut out, &payload),
                2 if s.v6 => b.icmpv6_echo_request(1, 2).write(&mut out, &payload),
                2 => b.icmpv4_echo_request(1, 2).write(&mut out, &payload),
                _ => b.write(&mut out, 47.into(), &payload),
            }
        }};
    }
    let base = PacketBuilder::ethernet2(SRC, DST);
    match (s.tag, s.v6) {
        (None, false) => finish!(base.ipv4(four(s.src), four(s.dst), 64)),
        (None, true) => finish!(base.ipv6(s.src, s.dst, 64)),
        (Some(t), false) => {
            finish!(base.single_vlan(t.try_into().unwrap()).ipv4(four(s.src), four(s.dst), 64))
        }
        (Some(t), true) => {
            finish!(base.single_vlan(t.try_into().unwrap()).ipv6(s.src, s.dst, 64))
        }
    }
    .unwrap();
    let ip = if s.tag.is_some() { 18 } else { 14 };
    if s.v6 {
        out[ip] = 0x60 | s.dscp >> 2;
        out[ip + 1] = (s.dscp & 3) << 6;
    } else {
        out[ip + 1] = s.dscp << 2;
    }
    out.resize(out.len() + s.padding, 0);
    out
}

/// What `etherparse` finds, in our terms; `None` if it finds no sound IP packet.
fn theirs(frame: &[u8]) -> Option<KeyFields> {
    let p = SlicedPacket::from_ethernet(frame).ok()?;
    let mut k = KeyFields { in_port: 7, ..KeyFields::default() };
    let eth = p.link.as_ref()?.to_header()?.ethernet2()?;
    (k.src_mac, k.dst_mac) = (number(&eth.source), number(&eth.destination));
    k.ethertype = eth.ether_type.0;
    if let Some(vlan) = p.vlan() {
        // They take 802.1ad's 0x88a8 and the old 0x9100 for tags too; to us those frames are no IP.
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn sound_frames_are_read_alike(s in shape()) {
        let frame = build(&s);
        let mine = ours(&frame).map(|h| h.key.fields());
        prop_assert_eq!(mine.ok(), theirs(&frame));
    }

    /// Of a mutated frame both may think differently in the ways listed here, and in no other.
    #[test]
    fn mutated_frames_are_read_alike_or_refused(
        s in shape(),
        mutations in prop::collection::vec((12_usize..90, any::<u8>()), 1..6),
        cut in prop::sample::select(vec![0_usize, 0, 0, 1, 2, 9, 30, 70]),
    ) {
        let mut frame = build(&s);
        for (at, value) in mutations {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        // From the end of the datagram, so that lengths miss by one too.
        frame.truncate((frame.len() - s.padding).saturating_sub(cut).max(14));
        if let Ok(h) = ours(&frame) {
            let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
            let byte = |at: usize| usize::from(frame[ip + at]);
            let word = |at: usize| byte(at) << 8 | byte(at + 1);
            match h.key.ethertype() {
                0x0800 => prop_assert!(ip + word(2) <= frame.len()),
                0x86dd => prop_assert!(ip + 40 + word(4) <= frame.len()),
                _ => {}
            }
        }
        match (ours(&frame), theirs(&frame)) {
            (Ok(h), Some(want)) => {
                let mine = h.key.fields();
                // SCTP is no transport to them. Of IPv6 fragments they do not say which.
                // Behind a first fragment they read no ports.
                let other = mine.proto == 132 || mine.ethertype == 0x86dd && mine.tos & 3 != 0;
                let mine = if mine.tos & 3 == 0 {
                    mine
                } else {
                    KeyFields { src_port: want.src_port, dst_port: want.dst_port, ..mine }
                };
                prop_assert!(other || mine == want, "{:?}\n{:?}", mine, want);
            }
            // We refuse more, but only what says it is IP or ARP, or ends inside its tag.
            (Err(reason), _) => {
                let at = if frame[12..14] == [0x81, 0] { 16 } else { 12 };
                let ethertype = frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
                prop_assert!(match ethertype {
                    None => reason == DropReason::Runt,
                    Some(0x0800 | 0x0806 | 0x86dd) => reason == DropReason::BadHeader,
                    Some(_) => false,
                }, "{:?}", reason);
            }
            // What they refuse and we pass is not IP to us, or a protocol we do not look into.
            (Ok(h), None) => {
                let f = h.key.fields();
                let ip = matches!(f.ethertype, 0x0800 | 0x86dd);
                let looked_into = matches!(f.proto, 6 | 17) && f.tos & 3 == 0;
                prop_assert!(!ip || !looked_into || f.proto == 17, "{:?}", f);
            }
        }
    }

    /// Whatever the bytes: an answer, no panic, and offsets inside the head.
    #[test]
    fn any_bytes_get_an_answer(
        bytes in prop::collection::vec(any::<u8>(), 14..200),
        ethertype in prop::sample::select(vec![0x0800_u16, 0x0806, 0x86dd, 0x8100, 0x88a8, 0x1234]),
        version in any::<u8>(),
        next in prop::sample::select(vec![0_u8, 6, 17, 43, 44, 51, 58, 60, 132]),
    ) {
        let mut frame = bytes;
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        if let Some(byte) = frame.get_mut(14) {
            *byte = if ethertype == 0x86dd { 0x60 } else { 0x45 } ^ (version & version >> 4);
        }
        if ethertype == 0x86dd && frame.len() > 54 {
            let payload = u16::try_from(frame.len() - 54).unwrap();
            frame[18..20].copy_from_slice(&payload.to_be_bytes());
            frame[20] = next;
            frame[54] = next.wrapping_add(version & 1);
        }
        if ethertype == 0x0800 && frame.len() > 34 {
            let total = u16::try_from(frame.len() - 14).unwrap();
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame[23] = next;
        }
        if let Ok(h) = ours(&frame) {
            prop_assert!(usize::from(h.l4) + 4 <= 128);
            prop_assert!(usize::from(h.l4_end) <= frame.len());
            let head = frame.len().min(128);
            prop_assert!(h.nd_target == 0 || usize::from(h.nd_target) + 16 <= head);
            prop_assert!(h.nd_link_layer == 0 || usize::from(h.nd_link_layer) + 6 <= head);
        }
    }
}
