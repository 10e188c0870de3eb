//! The test compares the switch's parser with an independent parser (`etherparse`), on valid and on
//! mutated frames.

#[path = "oracle/headers.rs"]
mod oracle;

use etherparse::PacketBuilder;
use oracle::{agree, ours, theirs};
use proptest::prelude::*;

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

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn sound_frames_are_read_alike(s in shape()) {
        let frame = build(&s);
        let mine = ours(&frame).map(|h| h.key.fields());
        prop_assert_eq!(mine.ok(), theirs(&frame));
    }

    /// The switch's parser and `etherparse` may differ about a mutated frame only in the listed
    /// ways.
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
        // The frame is cut at the end of the datagram, so that some lengths are wrong by one.
        frame.truncate((frame.len() - s.padding).saturating_sub(cut).max(14));
        agree(&frame);
    }

    /// The parser never panics, whatever bytes a frame contains, and all offsets that it returns
    /// are inside the frame's head.
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
