//! Encodes a map from code point to queue as a classic BPF program, and a program that finds TCP's
//! pure acknowledgements and the markers of hosts.
//!
//! # Problem
//!
//! If a map from code point to queue consists of many filters, the driver can only change one
//! filter after the other. While a map of many filters changes, the kernel may classify a frame
//! with a partly changed map.
//!
//! # Approach
//!
//! A port's map is a single program of `cls_bpf`, which the kernel replaces atomically. The program
//! skips up to two VLAN tags, reads the DSCP of IPv4 and IPv6, and returns the class. For frames
//! without IP, the program returns 0, so the kernel uses HTB's default class, which is the class of
//! queue 0.
//!
//! A pure acknowledgement is a segment of TCP without data, SYN, FIN, RST or URG. The program
//! compares the length in the IP header with the lengths of the headers, because Ethernet pads
//! short frames. Fragments and IPv6 packets with extension headers are no acknowledgements.
//!
//! Markers are the questions and answers about pairs of VMs that hosts exchange
//! (`penstock-dataplane`, module `pairs::marker`). The program finds the markers that may pass
//! data.
//!
//! # Cost
//!
//! A map's BPF program has at most 38 + 2·63 instructions. The kernel executes the instructions in
//! order until it finds the frame's code point.
//!
//! # Source
//!
//! Linux `net/core/filter.c` defines the instructions, and `net/sched/cls_bpf.c` defines the
//! meaning of the return value 0. RFC 2474 §3 and RFC 8200 §3 define the location of the DSCP, and
//! RFC 9293 §3.1 defines the header of TCP.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::netlink::word;

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const SHIFT_RIGHT: u16 = 0x74;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const JUMP_ANY_BIT: u16 = 0x45;
const JUMP_EQUAL_X: u16 = 0x1d;
/// Loads a byte at an offset that is counted from X.
const LOAD_BYTE_X: u16 = 0x50;
/// Loads the length of an IPv4 header into X.
const LOAD_HEADER_X: u16 = 0xb1;
const SUBTRACT_X: u16 = 0x1c;
const COPY_TO_X: u16 = 0x07;
const STORE: u16 = 0x02;
const LOAD_STORED: u16 = 0x60;

const TCP: u32 = 6;
/// Flags that a pure acknowledgement has or lacks: URG, ACK, RST, SYN and FIN.
const FLAGS: u32 = 0x37;
const ACK: u32 = 0x10;

/// Ethernet type of a marker, and the first bytes behind it.
const MARKER: (u32, u32) = (0x88b5, 0x5065_6e31);
/// Flag of a marker that may pass data, six bytes behind the Ethernet type.
const AHEAD: u32 = 1;

const TAGS_MAX: u32 = 2;

/// Length of an instruction in the kernel's representation, in bytes.
const INSTRUCTION: usize = 8;

/// Classic BPF instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

const fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

/// Returns a BPF instruction that continues if the accumulator equals `k`, and otherwise skips
/// `skip` instructions.
const fn unless_equal(k: u32, skip: u8) -> Instruction {
    Instruction { code: JUMP_EQUAL, jt: 0, jf: skip, k }
}

/// Returns a BPF instruction that skips `skip` instructions if the accumulator equals `k`.
const fn if_equal(k: u32, skip: u8) -> Instruction {
    Instruction { code: JUMP_EQUAL, jt: skip, jf: 0, k }
}

/// Returns the BPF instructions that load the DSCP of an IP frame into the accumulator. For a frame
/// without IP, the instructions return 0.
fn head() -> Vec<Instruction> {
    let mut all = Vec::new();
    let mut found = Vec::new();
    for tags in 0..=TAGS_MAX {
        let at = |offset: u32| offset + 4 * tags;
        all.extend([plain(LOAD_HALF, at(12)), unless_equal(0x0800, 3)]);
        all.extend([plain(LOAD_BYTE, at(15)), plain(SHIFT_RIGHT, 2)]);
        found.push(all.len());
        all.extend([plain(JUMP, 0), unless_equal(0x86dd, 4)]);
        all.extend([plain(LOAD_HALF, at(14)), plain(SHIFT_RIGHT, 6), plain(AND, 0x3f)]);
        found.push(all.len());
        all.push(plain(JUMP, 0));
        if tags < TAGS_MAX {
            // These are the types of 802.1Q and 802.1ad. The program continues behind the tag.
            all.extend([if_equal(0x8100, 2), if_equal(0x88a8, 1)]);
        }
        all.push(plain(RETURN, 0));
    }
    let end = all.len();
    for at in found {
        all[at].k = u32::try_from(end - at - 1).expect("some dozens of instructions");
    }
    all
}

/// Returns the BPF program for a map from code point to queue. The caller's function `class`
/// returns the HTB class of a queue.
pub(super) fn encode(map: &BTreeMap<u8, u8>, class: impl Fn(u8) -> u32) -> Vec<Instruction> {
    let mut all = head();
    for (dscp, queue) in map {
        all.extend([unless_equal(u32::from(*dscp), 1), plain(RETURN, class(*queue))]);
    }
    all.push(plain(RETURN, 0));
    all
}

/// Returns the first instructions for an IPv4 packet at the offset `at`. They begin with the
/// Ethernet type in the accumulator. For a packet of TCP, they store the packet's length behind the
/// IP header, and [`acks_of_tcp`] must follow. Otherwise, they continue at its last instruction, or
/// behind it for another Ethernet type.
const fn tcp_of_ipv4(at: u32) -> [Instruction; 9] {
    [
        unless_equal(0x0800, 19),
        plain(LOAD_BYTE, at + 9),
        unless_equal(TCP, 16),
        // More fragments follow, or the fragment is not the first one.
        plain(LOAD_HALF, at + 6),
        Instruction { code: JUMP_ANY_BIT, jt: 14, jf: 0, k: 0x3fff },
        plain(LOAD_HEADER_X, at),
        plain(LOAD_HALF, at + 2),
        plain(SUBTRACT_X, 0),
        plain(STORE, 0),
    ]
}

/// Returns the first instructions for an IPv6 packet, as [`tcp_of_ipv4`] does for IPv4.
const fn tcp_of_ipv6(at: u32) -> [Instruction; 5] {
    [
        unless_equal(0x86dd, 15),
        plain(LOAD_BYTE, at + 6),
        unless_equal(TCP, 12),
        plain(LOAD_HALF, at + 4),
        plain(STORE, 0),
    ]
}

/// Returns the instructions for a TCP segment, whose length is stored. `load` loads a byte at an
/// offset, and `tcp` is the offset of the TCP header.
const fn acks_of_tcp(load: u16, tcp: u32, class: u32) -> [Instruction; 11] {
    [
        plain(load, tcp + 13),
        plain(AND, FLAGS),
        unless_equal(ACK, 7),
        plain(load, tcp + 12),
        plain(AND, 0xf0),
        plain(SHIFT_RIGHT, 2),
        plain(COPY_TO_X, 0),
        plain(LOAD_STORED, 0),
        Instruction { code: JUMP_EQUAL_X, jt: 0, jf: 1, k: 0 },
        plain(RETURN, class),
        plain(RETURN, 0),
    ]
}

/// Returns the instructions for a marker behind the offset `at`. They begin with the Ethernet type
/// in the accumulator, and continue behind their end for another type.
const fn markers(at: u32, class: u32) -> [Instruction; 7] {
    [
        unless_equal(MARKER.0, 6),
        plain(LOAD_WORD, at),
        unless_equal(MARKER.1, 3),
        plain(LOAD_HALF, at + 6),
        unless_equal(AHEAD, 1),
        plain(RETURN, class),
        plain(RETURN, 0),
    ]
}

/// Returns the BPF program that returns `class` for TCP's pure acknowledgements and for markers
/// that may pass data, and 0 for all other frames.
pub(super) fn acks(class: u32) -> Vec<Instruction> {
    let mut all = Vec::new();
    for tags in 0..=TAGS_MAX {
        let at = 14 + 4 * tags;
        all.push(plain(LOAD_HALF, at - 2));
        all.extend(tcp_of_ipv4(at));
        all.extend(acks_of_tcp(LOAD_BYTE_X, at, class));
        all.extend(tcp_of_ipv6(at));
        all.extend(acks_of_tcp(LOAD_BYTE, at + 40, class));
        all.extend(markers(at, class));
        if tags < TAGS_MAX {
            all.extend([if_equal(0x8100, 2), if_equal(0x88a8, 1)]);
        }
        all.push(plain(RETURN, 0));
    }
    all
}

/// Returns the map of a BPF program if [`encode`] could have made the program. The caller's
/// function `queue` returns the queue of an HTB class.
pub(super) fn decode(
    program: &[Instruction],
    queue: impl Fn(u32) -> Option<u8>,
) -> Option<BTreeMap<u8, u8>> {
    let [pairs @ .., last] = program.strip_prefix(head().as_slice())? else { return None };
    if *last != plain(RETURN, 0) {
        return None;
    }
    let (pairs, []) = pairs.as_chunks::<2>() else { return None };
    let mut map = BTreeMap::new();
    for [test, answer] in pairs {
        let dscp = u8::try_from(test.k).ok().filter(|dscp| *dscp < 64)?;
        let known = *test == unless_equal(test.k, 1) && *answer == plain(RETURN, answer.k);
        if !known || map.insert(dscp, queue(answer.k)?).is_some() {
            return None;
        }
    }
    Some(map)
}

/// Returns a BPF program in the syntax of `tc`, which is `LENGTH,CODE JT JF K,...`.
pub(super) fn bytecode(program: &[Instruction]) -> String {
    let mut text = program.len().to_string();
    for Instruction { code, jt, jf, k } in program {
        let _ = write!(text, ",{code} {jt} {jf} {k}");
    }
    text
}

/// Returns a BPF program for the kernel.
pub(super) fn bytes(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INSTRUCTION * program.len());
    for Instruction { code, jt, jf, k } in program {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([jt, jf]);
        bytes.extend(k.to_ne_bytes());
    }
    bytes
}

/// Returns the BPF program in the kernel's bytes, or `None` if the last instruction is not whole.
pub(super) fn read(bytes: &[u8]) -> Option<Vec<Instruction>> {
    let (instructions, []) = bytes.as_chunks::<INSTRUCTION>() else { return None };
    let instruction = |bytes: &[u8; INSTRUCTION]| {
        let [_, _, jt, jf, ..] = *bytes;
        let code = u16::from_ne_bytes(word(bytes, 0)?);
        Some(Instruction { code, jt, jf, k: u32::from_ne_bytes(word(bytes, 4)?) })
    };
    instructions.iter().map(instruction).collect()
}

#[cfg(test)]
mod tests {
    use penstock_testing::segment;

    use super::*;

    fn class(queue: u8) -> u32 {
        0x9e50_0010 + u32::from(queue)
    }

    fn queue(class: u32) -> Option<u8> {
        u8::try_from(class.checked_sub(0x9e50_0010)?).ok()
    }

    /// Runs a BPF program in the same way as the kernel. The interpreter supports only the kinds of
    /// instructions that [`encode`] and [`acks`] use.
    fn run(program: &[Instruction], frame: &[u8]) -> u32 {
        let (mut at, mut a, mut x, mut stored) = (0, 0u32, 0u32, 0u32);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let from = usize::try_from(k).unwrap_or(usize::MAX);
            let from_x = from + usize::try_from(x).expect("a length");
            match code {
                LOAD_BYTE_X => {
                    let Some(byte) = frame.get(from_x) else { return 0 };
                    a = u32::from(*byte);
                }
                LOAD_HEADER_X => {
                    let Some(byte) = frame.get(from) else { return 0 };
                    x = 4 * u32::from(byte & 0xf);
                }
                SUBTRACT_X => a = a.wrapping_sub(x),
                COPY_TO_X => x = a,
                STORE => stored = a,
                LOAD_STORED => a = stored,
                JUMP_ANY_BIT => at += usize::from(if a & k == 0 { jf } else { jt }),
                JUMP_EQUAL_X => at += usize::from(if a == x { jt } else { jf }),
                LOAD_BYTE | LOAD_HALF | LOAD_WORD => {
                    let long = match code {
                        LOAD_BYTE => 1,
                        LOAD_HALF => 2,
                        _ => 4,
                    };
                    // A load beyond the end of the frame terminates the program with 0.
                    let Some(bytes) = frame.get(from..from + long) else { return 0 };
                    a = bytes.iter().fold(0, |a, b| a << 8 | u32::from(*b));
                }
                JUMP => at += from,
                JUMP_EQUAL => at += usize::from(if a == k { jt } else { jf }),
                SHIFT_RIGHT => a >>= k,
                AND => a &= k,
                RETURN => return k,
                _ => panic!("instruction {code}"),
            }
        }
    }

    fn frame(tags: &[u16], dscp: u8, v6: bool) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        for tag in tags {
            bytes.extend(tag.to_be_bytes());
            bytes.extend([0, 7]);
        }
        let traffic_class = dscp << 2 | 0b01;
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60 | traffic_class >> 4, traffic_class << 4 | 0xf, 0, 0]);
        } else {
            bytes.extend([0x08, 0x00, 0x45, traffic_class]);
        }
        bytes.resize(bytes.len() + 60, 0);
        bytes
    }

    #[test]
    fn every_code_point_in_every_kind_of_frame_goes_where_the_map_says() {
        let map: BTreeMap<u8, u8> = (1..64).filter(|d| d % 5 != 0).map(|d| (d, d % 8)).collect();
        let program = encode(&map, class);
        assert_eq!(program.len(), head().len() + 2 * map.len() + 1);
        let tags: [&[u16]; 4] = [&[], &[0x8100], &[0x88a8, 0x8100], &[0x8100, 0x88a8]];
        for (tags, dscp, v6) in tags.iter().flat_map(|tags| {
            (0..64).flat_map(move |dscp| [(*tags, dscp, false), (*tags, dscp, true)])
        }) {
            let wanted = map.get(&dscp).map_or(0, |queue| class(*queue));
            let got = run(&program, &frame(tags, dscp, v6));
            assert_eq!(got, wanted, "DSCP {dscp}, IPv6 {v6}, tags {tags:x?}");
        }
    }

    #[test]
    fn frames_without_ip_or_cut_short_are_not_mapped() {
        let program = encode(&[(8, 1)].into(), class);
        let mut arp = frame(&[], 8, false);
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(run(&program, &arp), 0);
        assert_eq!(
            run(&program, &frame(&[0x8100; 3], 8, false)),
            0,
            "more tags than are looked at"
        );
        let whole = frame(&[0x8100], 8, true);
        for short in 0..20 {
            assert_eq!(run(&program, &whole[..short]), 0, "{short} bytes");
        }
    }

    const CLASS: u32 = 0x9e71_0001;

    #[test]
    fn pure_acknowledgements_are_found_in_every_kind_of_frame() {
        let program = acks(CLASS);
        let tags: [&[u16]; 4] = [&[], &[0x8100], &[0x88a8, 0x8100], &[0x8100, 0x88a8]];
        for (tags, v6) in tags.iter().flat_map(|tags| [(*tags, false), (*tags, true)]) {
            let class = |flags, lengths| run(&program, &segment(tags, v6, flags, lengths));
            // With timestamps, with selective acknowledgements, without options, and with ECN.
            let pure = [(0x10, [12, 0]), (0x10, [40, 0]), (0x18, [0, 0]), (0xd0, [12, 0])];
            for (flags, lengths) in pure {
                assert_eq!(class(flags, lengths), CLASS, "{flags:x} {lengths:?} {tags:x?} {v6}");
            }
            let others = [
                (0x10, [12, 1]),
                (0x02, [20, 0]),
                (0x12, [20, 0]),
                (0x11, [12, 0]),
                (0x14, [0, 0]),
                (0x30, [0, 0]),
            ];
            for (flags, lengths) in others {
                assert_eq!(class(flags, lengths), 0, "{flags:x} {lengths:?} {tags:x?} {v6}");
            }
        }
    }

    #[test]
    fn fragments_other_protocols_and_cut_frames_are_no_acknowledgements() {
        let program = acks(CLASS);
        let whole = segment(&[], false, 0x10, [12, 0]);
        for (at, value) in [(20, 0x20), (21, 1), (23, 17), (12, 0x09)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(run(&program, &other), 0, "byte {at}");
        }
        let v6 = segment(&[0x8100], true, 0x10, [12, 0]);
        for (frame, end) in [(&whole, 14 + 24 + 14), (&v6, 18 + 40 + 14)] {
            assert_eq!(run(&program, &frame[..end]), CLASS);
            for short in 0..end {
                assert_eq!(run(&program, &frame[..short]), 0, "{short} bytes");
            }
        }
        assert_eq!(run(&program, &segment(&[0x8100; 3], false, 0x10, [12, 0])), 0);
        let mut arp = whole.clone();
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(run(&program, &arp), 0);
    }

    #[test]
    fn markers_of_hosts_are_found_if_they_may_pass_data() {
        let program = acks(CLASS);
        // The test of penstock-dataplane's `pairs::marker` has the same bytes.
        let marker = |tags: &[u16]| {
            let mut bytes = vec![2; 12];
            for tag in tags {
                bytes.extend(tag.to_be_bytes());
                bytes.extend([0, 7]);
            }
            bytes.extend([0x88, 0xb5, 0x50, 0x65, 0x6e, 0x31, 1, 1, 0, 1]);
            bytes.extend([0; 44]);
            bytes
        };
        let tags: [&[u16]; 4] = [&[], &[0x8100], &[0x88a8, 0x8100], &[0x8100, 0x88a8]];
        for tags in tags {
            assert_eq!(run(&program, &marker(tags)), CLASS, "{tags:x?}");
        }
        assert_eq!(run(&program, &marker(&[0x8100; 3])), 0);
        let whole = marker(&[]);
        assert_eq!(whole.len(), 66);
        // Another type or experiment, and a marker that must stay behind data.
        for (at, value) in [(13, 0xb6), (14, 0x51), (17, 0), (20, 1), (21, 0)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(run(&program, &other), 0, "byte {at}");
        }
        assert!((0..22).all(|short| run(&program, &whole[..short]) == 0));
    }

    #[test]
    fn a_map_comes_back_and_what_is_not_one_does_not() {
        let map: BTreeMap<u8, u8> = [(8, 1), (16, 2), (63, 7)].into();
        let program = encode(&map, class);
        assert_eq!(decode(&program, queue), Some(map));
        assert_eq!(decode(&encode(&BTreeMap::new(), class), queue), Some(BTreeMap::new()));
        for at in 0..program.len() {
            let mut other = program.clone();
            other[at].code ^= 1;
            assert_eq!(decode(&other, queue), None, "instruction {at} differs");
            assert_eq!(decode(&program[..at], queue), None, "cut at {at}");
        }
        let twice = [&program[..program.len() - 1], &program[head().len()..]].concat();
        assert_eq!(decode(&twice, queue), None, "a code point that is there twice");
    }

    #[test]
    fn tc_is_told_its_length_first() {
        let text = bytecode(&[plain(LOAD_HALF, 12), unless_equal(0x0800, 1), plain(RETURN, 0)]);
        assert_eq!(text, "3,40 0 0 12,21 0 1 2048,6 0 0 0");
    }

    #[test]
    fn the_kernels_bytes_are_the_instructions() {
        // tc filter replace ... bytecode "2,40 0 0 12,6 0 0 0", as iproute2 6.1 sends it.
        let sent = [0x28, 0, 0, 0, 0x0c, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0];
        let program = [plain(LOAD_HALF, 12), plain(RETURN, 0)];
        assert_eq!(bytes(&program), sent);
        assert_eq!(read(&sent), Some(program.to_vec()));
        assert_eq!(read(&sent[..15]), None);
        let map: BTreeMap<u8, u8> = (1..64).map(|dscp| (dscp, dscp % 8)).collect();
        let whole = encode(&map, class);
        assert_eq!(read(&bytes(&whole)), Some(whole));
    }
}
