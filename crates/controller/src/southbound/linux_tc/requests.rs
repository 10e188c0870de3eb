//! Creates the driver's requests to the kernel, each with the command line of `tc` or `ip` that has
//! the same effect.
//!
//! # Source
//!
//! `linux/rtnetlink.h`, `linux/pkt_sched.h` and `linux/pkt_cls.h` define the messages. The flags
//! and the order of the attributes follow iproute2 6.1.

use std::collections::BTreeMap;

use super::class::Class;
use super::kernel::Request;
use super::layout::{
    MAP_HANDLE, MAP_PREF, OTHERS, ROOT, acks_class_of, acks_of, class_of, inner_of, leaf_of, name,
    others_class_of,
};
use super::netlink::{LinkHeader, NLM_F_DUMP, TCA_KIND, TCA_OPTIONS, TcHeader, put};
use super::program::{Instruction, acks, bytecode, bytes, encode};

const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTCLASS: u16 = 40;
const RTM_GETTCLASS: u16 = 42;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;

/// Flag with which the kernel replaces an existing object.
const NLM_F_REPLACE: u16 = 0x100;
/// Flag with which the kernel creates an object that does not exist.
const NLM_F_CREATE: u16 = 0x400;

pub(super) const IFLA_IFALIAS: u16 = 20;
const IFLA_EXT_MASK: u16 = 29;
/// Value of `IFLA_EXT_MASK` that omits the counters of interfaces from the answer.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
const TCA_HTB_INIT: u16 = 2;
const TCA_BPF_OPS_LEN: u16 = 4;
pub(super) const TCA_BPF_OPS: u16 = 5;

/// Parent of a root qdisc.
pub(super) const TC_H_ROOT: u32 = 0xffff_ffff;
/// Version of the options of HTB.
const TC_HTB_PROTOVER: u32 = 3;
/// Default divisor of `tc` for a class's default quantum. Every class that sends has a quantum.
const RATE_TO_QUANTUM: u32 = 10;
/// Protocol of a filter for all frames.
const ETH_P_ALL: u16 = 3;
/// Rate and ceiling of both classes of a queue with two FIFOs, in bit/s. The class of the queue
/// limits the rate, so the two classes only take turns.
const UNLIMITED: u64 = 400_000_000_000;
/// Bytes that each of the two FIFOs of a queue sends in its turn. A full frame of data is between
/// two groups of acknowledgements, so acknowledgements cannot use more than half of a queue's rate.
const TURN: u32 = 1_600;

/// Network interface of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface<'a> {
    pub(super) name: &'a str,
    /// The kernel's number of the interface.
    pub(super) index: i32,
}

/// Requests all network interfaces with their names and aliases.
pub(super) fn links() -> Request {
    let mut body = LinkHeader::default().bytes();
    put(&mut body, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    Request { words: "ip link show".to_owned(), kind: RTM_GETLINK, flags: NLM_F_DUMP, body }
}

/// Requests the qdiscs of all network interfaces.
pub(super) fn qdiscs() -> Request {
    dump("tc qdisc show".to_owned(), RTM_GETQDISC, TcHeader::default())
}

/// Requests the filters of the qdisc with the handle `parent`.
pub(super) fn filters(port: Interface<'_>, parent: u32) -> Request {
    let header = TcHeader { index: port.index, parent, ..TcHeader::default() };
    let words = format!("tc filter show dev {} parent {}", port.name, name(parent));
    dump(words, RTM_GETTFILTER, header)
}

/// Requests the classes of the port's root qdisc with their counters.
pub(super) fn classes(port: Interface<'_>) -> Request {
    let header = TcHeader { index: port.index, parent: ROOT, ..TcHeader::default() };
    let words = format!("tc -s class show dev {} parent {}", port.name, name(ROOT));
    dump(words, RTM_GETTCLASS, header)
}

/// Replaces the port's root qdisc with HTB, which sends unclassified frames to queue 0.
pub(super) fn root(port: Interface<'_>) -> Request {
    htb(port, (TC_H_ROOT, ROOT), class_of(0) & 0xffff)
}

/// Creates the qdisc HTB, which sends unclassified frames to the class with the minor number
/// `default`.
fn htb(port: Interface<'_>, place: (u32, u32), default: u32) -> Request {
    let mut settings = Vec::new();
    // The last two numbers are debug flags and a counter.
    for number in [TC_HTB_PROTOVER, RATE_TO_QUANTUM, default, 0, 0] {
        settings.extend(number.to_ne_bytes());
    }
    let mut options = Vec::new();
    put(&mut options, TCA_HTB_INIT, &settings);
    qdisc(port, place, ("htb", &format!("htb default {default:x}")), Some(&options))
}

/// Creates or replaces a qdisc with its parent and handle, its kind, and the words that describe
/// it.
fn qdisc(
    port: Interface<'_>,
    (parent, handle): (u32, u32),
    (kind, text): (&str, &str),
    options: Option<&[u8]>,
) -> Request {
    let header = TcHeader { index: port.index, handle, parent, info: 0 };
    let place = match parent {
        TC_H_ROOT => "root".to_owned(),
        _ => format!("parent {}", name(parent)),
    };
    let words =
        format!("tc qdisc replace dev {} {place} handle {} {text}", port.name, name(handle));
    let body = object(header, kind, options);
    Request { words, kind: RTM_NEWQDISC, flags: NLM_F_CREATE | NLM_F_REPLACE, body }
}

fn fifo(port: Interface<'_>, place: (u32, u32), frames: u32) -> Request {
    let text = format!("pfifo limit {frames}");
    qdisc(port, place, ("pfifo", &text), Some(&frames.to_ne_bytes()))
}

/// Creates or changes a class of HTB.
pub(super) fn class(port: Interface<'_>, parent: u32, handle: u32, class: &Class) -> Request {
    let header = TcHeader { index: port.index, handle, parent, info: 0 };
    let words = format!("tc class replace dev {} {}", port.name, class.words(parent, handle));
    let body = object(header, "htb", Some(&class.options()));
    Request { words, kind: RTM_NEWTCLASS, flags: NLM_F_CREATE, body }
}

/// Creates the qdiscs of a queue: a FIFO of `frames` frames for acknowledgements, and one for all
/// other frames. `has_inner` says whether the queue already has the HTB for the FIFOs, which the
/// kernel cannot replace by an equal one.
pub(super) fn fifos(port: Interface<'_>, queue: u8, frames: u32, has_inner: bool) -> Vec<Request> {
    let inner = inner_of(queue);
    let [first, rest] = [acks_class_of(queue), others_class_of(queue)];
    let turns = Class { quantum: TURN, rate: UNLIMITED, ceil: UNLIMITED, ..Class::default() };
    let mut all = Vec::new();
    if !has_inner {
        all.push(htb(port, (class_of(queue), inner), OTHERS));
    }
    all.extend([first, rest].map(|handle| class(port, inner, handle, &turns)));
    all.push(fifo(port, (first, acks_of(queue)), frames));
    all.push(find_acks(port, queue));
    // The driver reads from this FIFO that the queue is complete.
    all.push(fifo(port, (rest, leaf_of(queue)), frames));
    all
}

/// Creates or atomically replaces the filter that finds a queue's acknowledgements and markers.
pub(super) fn find_acks(port: Interface<'_>, queue: u8) -> Request {
    filter(port, inner_of(queue), &acks(acks_class_of(queue)))
}

/// Creates or atomically replaces the filter that maps code points to queues.
pub(super) fn map(port: Interface<'_>, map: &BTreeMap<u8, u8>) -> Request {
    filter(port, ROOT, &encode(map, class_of))
}

/// Creates or atomically replaces the filter of an HTB.
fn filter(port: Interface<'_>, parent: u32, program: &[Instruction]) -> Request {
    let length = u16::try_from(program.len()).expect("a program has some hundreds of instructions");
    let mut options = Vec::new();
    put(&mut options, TCA_BPF_OPS_LEN, &length.to_ne_bytes());
    put(&mut options, TCA_BPF_OPS, &bytes(program));
    let header = TcHeader {
        index: port.index,
        handle: MAP_HANDLE,
        parent,
        // The protocol has the byte order of the network.
        info: MAP_PREF << 16 | u32::from(ETH_P_ALL.to_be()),
    };
    let words = format!(
        "tc filter replace dev {} parent {} protocol all pref {MAP_PREF} handle {MAP_HANDLE} bpf \
         bytecode \"{}\"",
        port.name,
        name(parent),
        bytecode(program)
    );
    let body = object(header, "bpf", Some(&options));
    Request { words, kind: RTM_NEWTFILTER, flags: NLM_F_CREATE, body }
}

/// Sets the alias of `lo`, whose index is `lo`.
pub(super) fn alias(lo: i32, text: &str) -> Request {
    let mut body = LinkHeader { index: lo }.bytes();
    put(&mut body, IFLA_IFALIAS, text.as_bytes());
    Request { words: alias_words(text), kind: RTM_SETLINK, flags: 0, body }
}

/// Returns the command line that sets the alias of `lo`.
pub(super) fn alias_words(text: &str) -> String {
    format!("ip link set dev lo alias \"{text}\"")
}

fn dump(words: String, kind: u16, header: TcHeader) -> Request {
    Request { words, kind, flags: NLM_F_DUMP, body: header.bytes() }
}

/// Returns the body of a message about a qdisc, class or filter of the kind `kind`.
fn object(header: TcHeader, kind: &str, options: Option<&[u8]>) -> Vec<u8> {
    let mut body = header.bytes();
    put(&mut body, TCA_KIND, &[kind.as_bytes(), &[0]].concat());
    if let Some(options) = options {
        put(&mut body, TCA_OPTIONS, options);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    const E0: Interface<'_> = Interface { name: "e0", index: 3 };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The texts after the headers are what iproute2 6.1 sends for the same command lines.
    #[test]
    fn messages_are_those_of_iproute2() {
        let header = |handle, parent| hex(&TcHeader { index: 3, handle, parent, info: 0 }.bytes());
        let root = root(E0);
        assert_eq!(root.words, "tc qdisc replace dev e0 root handle 9e50: htb default 10");
        let options = "08000100687462001c0002001800020003000000\
                       0a000000100000000000000000000000";
        assert_eq!(hex(&root.body), header(0x9e50_0000, 0xffff_ffff) + options);
        assert_eq!((root.kind, root.flags), (36, 0x500));

        let leaf = fifo(E0, (class_of(1), leaf_of(1)), 500);
        let words = "tc qdisc replace dev e0 parent 9e50:11 handle 9e61: pfifo limit 500";
        assert_eq!(leaf.words, words);
        let options = "0a000100706669666f00000008000200f4010000";
        assert_eq!(hex(&leaf.body), header(0x9e61_0000, 0x9e50_0011) + options);

        let map = map(E0, &[(8, 1)].into());
        assert!(map.words.starts_with(
            "tc filter replace dev e0 parent 9e50: protocol all pref 1 handle 1 bpf bytecode \""
        ));
        let start = TcHeader { index: 3, handle: 1, parent: ROOT, info: 66_304 };
        let head = "0800010062706600";
        assert!(hex(&map.body).starts_with(&(hex(&start.bytes()) + head)), "{}", hex(&map.body));

        let alias = alias(1, "penstock 3.4");
        assert_eq!(alias.words, "ip link set dev lo alias \"penstock 3.4\"");
        let text = "1000140070656e73746f636b20332e34";
        assert_eq!(hex(&alias.body), hex(&LinkHeader { index: 1 }.bytes()) + text);
    }

    #[test]
    fn two_fifos_take_turns_below_a_second_htb() {
        let (whole, again) = (fifos(E0, 1, 500, false), fifos(E0, 1, 500, true));
        assert_eq!(again, whole[1..]);
        let words: Vec<&str> = whole.iter().map(|request| request.words.as_str()).collect();
        assert_eq!(words[0], "tc qdisc replace dev e0 parent 9e50:11 handle 9e71: htb default 2");
        let class = "htb rate 400000000000bit ceil 400000000000bit burst 50000000b cburst \
                     50000000b prio 0 quantum 1600";
        for (at, minor) in [(1, 1), (2, 2)] {
            let begin = format!("tc class replace dev e0 parent 9e71: classid 9e71:{minor} ");
            assert_eq!(words[at], begin + class);
        }
        assert_eq!(words[3], "tc qdisc replace dev e0 parent 9e71:1 handle 9e81: pfifo limit 500");
        assert!(words[4].starts_with(
            "tc filter replace dev e0 parent 9e71: protocol all pref 1 handle 1 bpf bytecode \""
        ));
        assert_eq!(words[5], "tc qdisc replace dev e0 parent 9e71:2 handle 9e61: pfifo limit 500");
        assert_eq!(words.len(), 6);
    }

    #[test]
    fn a_class_has_its_handles_and_options() {
        let speed =
            Class { quantum: 4_800, rate: 24_998_000, ceil: 100_000_000, ..Class::default() };
        let request = class(E0, 0x9e50_0001, 0x9e50_0011, &speed);
        let words = "tc class replace dev e0 parent 9e50:1 classid 9e50:11 htb rate 24998000bit \
                     ceil 100000000bit burst 3200b cburst 12500b prio 0 quantum 4800";
        assert_eq!(request.words, words);
        let (header, attributes) = TcHeader::read(&request.body).expect("a message about a class");
        assert_eq!((header.handle, header.parent), (0x9e50_0011, 0x9e50_0001));
        assert_eq!(attributes[&TCA_OPTIONS], speed.options());
    }
}
