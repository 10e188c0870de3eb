//! Decodes the kernel's messages about network interfaces, qdiscs, filters and classes strictly.

use std::collections::{BTreeMap, BTreeSet};

use super::class::Class;
use super::kernel::Message;
use super::layout::{
    MAP_HANDLE, MAP_PREF, QUEUES_MAX, ROOT, TOP, acks_class_of, class_of, inner_of, leaf_of, name,
    others_class_of, queue_of,
};
use super::netlink::{LinkHeader, TCA_KIND, TCA_OPTIONS, TcHeader, attributes, text, word};
use super::program;
use super::requests::{IFLA_IFALIAS, TC_H_ROOT, TCA_BPF_OPS};

const IFLA_IFNAME: u16 = 3;
const LOOPBACK: &str = "lo";

/// Network interfaces of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// The kernel's number of each interface, by the interface's name.
    pub(super) indices: BTreeMap<String, i32>,
    /// The kernel's number of `lo`.
    pub(super) lo: i32,
    /// Alias of `lo`, or an empty text if `lo` has no alias.
    pub(super) alias: String,
}

/// Origin of a port's root qdisc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Root {
    /// The port has the kernel's default qdisc, or none because the port is down.
    #[default]
    Default,
    /// The root qdisc belongs to the driver.
    Ours,
    /// The root qdisc belongs to another configuration. The variant contains the kind and handle of
    /// the foreign qdisc.
    Foreign(String),
}

/// Filters of a port's root qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filters {
    None,
    /// The only filter is the driver's map from code point to queue.
    Ours(BTreeMap<u8, u8>),
    /// A filter belongs to another configuration. The variant describes the foreign filter.
    Foreign(String),
}

/// State of a port's qdiscs, classes and map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortRead {
    pub(super) root: Root,
    /// Queues with an HTB of the driver for two FIFOs. The two FIFOs may be missing.
    pub(super) inner: BTreeSet<u8>,
    /// Queues with both FIFOs, each with the number of frames that wait in the FIFO that the driver
    /// sets up last. The number is `None` if the kernel does not say it.
    pub(super) pairs: BTreeMap<u8, Option<u32>>,
    /// Queues of `pairs` whose filter is the one that this version of the driver sets.
    pub(super) filtered: BTreeSet<u8>,
    /// Class above the queues' classes, which has the port's rate.
    pub(super) top: Option<Class>,
    /// HTB class of each queue.
    pub(super) classes: BTreeMap<u8, Class>,
    /// Map from code point to queue of the port's BPF program, or `None` if the port has no BPF
    /// program.
    pub(super) map: Option<BTreeMap<u8, u8>>,
}

fn short(what: &str) -> String {
    format!("a message about {what} is incomplete")
}

/// Decodes the names, numbers and aliases of the network interfaces.
pub(super) fn links(messages: &[Message]) -> Result<Links, String> {
    let (mut links, mut lo) = (Links::default(), None);
    for message in messages {
        let read = LinkHeader::read(&message.body).and_then(|(header, link)| {
            let alias = link.get(&IFLA_IFALIAS).map_or_else(String::new, |alias| text(alias));
            Some((header.index, text(link.get(&IFLA_IFNAME)?), alias))
        });
        let (index, name, alias) = read.ok_or_else(|| short("a network interface"))?;
        if name == LOOPBACK {
            (lo, links.alias) = (Some(index), alias);
        }
        links.indices.insert(name, index);
    }
    links.lo = lo.ok_or_else(|| format!("there is no network interface {LOOPBACK}"))?;
    Ok(links)
}

/// Decodes the qdiscs of all network interfaces, by the interface's index. The kernel sends no
/// qdisc of an interface that is down and has only the default qdisc.
pub(super) fn qdiscs(messages: &[Message]) -> Result<BTreeMap<i32, PortRead>, String> {
    let mut ports: BTreeMap<i32, PortRead> = BTreeMap::new();
    for message in messages {
        let read = TcHeader::read(&message.body);
        let read = read.and_then(|(header, qdisc)| {
            Some((header, text(qdisc.get(&TCA_KIND)?), qdisc.get(&TCA_OPTIONS).copied()))
        });
        let (TcHeader { index, handle, parent, .. }, kind, options) =
            read.ok_or_else(|| short("a qdisc"))?;
        let port = ports.entry(index).or_default();
        if parent == TC_H_ROOT {
            port.root = match (kind.as_str(), handle) {
                (_, 0) => Root::Default,
                ("htb", ROOT) => Root::Ours,
                _ => Root::Foreign(format!("{kind} {}", name(handle))),
            };
        } else {
            let queue = |handle_of: fn(u8) -> u32, parent_of: fn(u8) -> u32| {
                let is = |queue: &u8| (handle, parent) == (handle_of(*queue), parent_of(*queue));
                (0..QUEUES_MAX).find(is)
            };
            port.inner.extend(queue(inner_of, class_of).filter(|_| kind == "htb"));
            let limit = options.filter(|_| kind == "pfifo").and_then(|bytes| word(bytes, 0));
            let limit = limit.map(u32::from_ne_bytes);
            port.pairs.extend(queue(leaf_of, others_class_of).map(|queue| (queue, limit)));
        }
    }
    Ok(ports)
}

/// Decodes the header, the kind and the options of a filter.
fn one_filter(message: &Message) -> Result<(TcHeader, String, Option<&[u8]>), String> {
    let read = TcHeader::read(&message.body).and_then(|(header, filter)| {
        Some((header, text(filter.get(&TCA_KIND)?), filter.get(&TCA_OPTIONS).copied()))
    });
    read.ok_or_else(|| short("a filter"))
}

/// Decodes the filters of the HTB below a queue's class. Returns true if they have the filter for
/// acknowledgements and markers that this version of the driver sets.
pub(super) fn finds_acks(messages: &[Message], queue: u8) -> Result<bool, String> {
    let program = program::bytes(&program::acks(acks_class_of(queue)));
    for message in messages {
        let (header, kind, options) = one_filter(message)?;
        let place = (header.info >> 16, header.handle);
        let Some(options) = options.filter(|_| kind == "bpf" && place == (MAP_PREF, MAP_HANDLE))
        else {
            continue;
        };
        let options = attributes(options).ok_or_else(|| short("a filter"))?;
        if options.get(&TCA_BPF_OPS).is_some_and(|code| *code == program.as_slice()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Decodes the filters of a port's root qdisc.
pub(super) fn filters(messages: &[Message]) -> Result<Filters, String> {
    let mut filters = Filters::None;
    for message in messages {
        let (header, kind, options) = one_filter(message)?;
        let pref = header.info >> 16;
        let foreign = || Ok(Filters::Foreign(format!("filter {kind} of preference {pref}")));
        if kind != "bpf" || pref != MAP_PREF {
            return foreign();
        }
        // The kernel also lists each preference once without options.
        let Some(options) = options else { continue };
        let options = attributes(options).ok_or_else(|| short("a filter"))?;
        let Some(code) = options.get(&TCA_BPF_OPS) else { return foreign() };
        if header.handle != MAP_HANDLE || filters != Filters::None {
            return foreign();
        }
        let map = program::read(code).and_then(|code| program::decode(&code, queue_of));
        let Some(map) = map else {
            return Ok(Filters::Foreign(format!("the BPF program of filter {pref}")));
        };
        filters = Filters::Ours(map);
    }
    Ok(filters)
}

/// Decodes the top class and the queues' classes of a port.
pub(super) fn classes(
    messages: &[Message],
) -> Result<(Option<Class>, BTreeMap<u8, Class>), String> {
    let (mut top, mut queues) = (None, BTreeMap::new());
    for message in messages {
        let read = TcHeader::read(&message.body);
        let (TcHeader { handle, .. }, class) = read.ok_or_else(|| short("a class"))?;
        let queue = queue_of(handle);
        if handle != TOP && queue.is_none() {
            continue;
        }
        let class = Class::read(&class)
            .ok_or_else(|| format!("the values of class {} are incomplete", name(handle)))?;
        match queue {
            Some(queue) => {
                queues.insert(queue, class);
            }
            None => top = Some(class),
        }
    }
    Ok((top, queues))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::southbound::linux_tc::netlink::put;
    use crate::southbound::linux_tc::requests::{self, Interface};

    /// Returns a message from its bytes in hexadecimal, as Linux 6.18 sent them.
    fn recorded(hex: &str) -> Message {
        let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit");
        let pairs = hex.as_bytes().as_chunks::<2>().0.iter();
        let byte = |pair: &[u8; 2]| u8::try_from(digit(pair[0]) << 4 | digit(pair[1]));
        let body = pairs.map(|pair| byte(pair).expect("two digits")).collect();
        Message { body }
    }

    fn qdisc(index: i32, kind: &str, handle: u32, parent: u32) -> Message {
        let mut body = TcHeader { index, handle, parent, info: 0 }.bytes();
        put(&mut body, TCA_KIND, kind.as_bytes());
        Message { body }
    }

    fn link(index: i32, name: &str, alias: Option<&str>) -> Message {
        let mut body = LinkHeader { index }.bytes();
        put(&mut body, IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        if let Some(alias) = alias {
            put(&mut body, IFLA_IFALIAS, &[alias.as_bytes(), &[0]].concat());
        }
        Message { body }
    }

    #[test]
    fn interfaces_have_their_numbers_and_lo_its_alias() {
        let all = [link(2, "e0", Some("uplink")), link(1, "lo", Some("penstock 7.3"))];
        let read = links(&all).expect("valid");
        assert_eq!(read.indices, [("e0".to_owned(), 2), ("lo".to_owned(), 1)].into());
        assert_eq!((read.lo, read.alias.as_str()), (1, "penstock 7.3"));
        assert_eq!(links(&[link(7, "lo", None)]).expect("valid").alias, "");
        assert!(links(&all[..1]).is_err(), "there is no lo");
    }

    #[test]
    fn roots_are_told_apart() {
        let mut fifo = qdisc(2, "pfifo", 0x9e65_0000, 0x9e75_0002);
        put(&mut fifo.body, TCA_OPTIONS, &400_u32.to_ne_bytes());
        let all = [
            fifo,
            qdisc(1, "noqueue", 0, TC_H_ROOT),
            qdisc(2, "htb", ROOT, TC_H_ROOT),
            qdisc(2, "pfifo", 0x9e61_0000, 0x9e50_0011),
            qdisc(2, "pfifo", 0x0007_0000, 0x9e50_0012),
            qdisc(2, "ingress", 0xffff_0000, 0xffff_fff1),
            qdisc(2, "htb", 0x9e73_0000, 0x9e50_0013),
            qdisc(2, "pfifo", 0x9e83_0000, 0x9e73_0001),
            qdisc(2, "htb", 0x9e74_0000, 0x9e50_0014),
            qdisc(2, "pfifo", 0x9e64_0000, 0x9e74_0002),
            qdisc(2, "tbf", 0x9e75_0000, 0x9e50_0015),
            qdisc(3, "htb", 0x0001_0000, TC_H_ROOT),
            qdisc(4, "mq", 0x9e50_0000, TC_H_ROOT),
        ];
        let ports = qdiscs(&all).expect("valid");
        assert_eq!((&ports[&1].root, &ports[&2].root), (&Root::Default, &Root::Ours));
        assert_eq!(ports[&2].inner, [3, 4].into());
        let pairs: BTreeMap<u8, Option<u32>> = [(4, None), (5, Some(400))].into();
        assert_eq!(ports[&2].pairs, pairs, "the last FIFO of queue 3 is missing");
        assert_eq!(ports[&3].root, Root::Foreign("htb 1:".to_owned()));
        assert_eq!(ports[&4].root, Root::Foreign("mq 9e50:".to_owned()));
    }

    #[test]
    fn qdiscs_of_the_kernel_are_read() {
        let root = "00000000030000000000509effffffff03000000080001006874620024000200180002001100\
                03000a00000010000000000000000000000008000500e803000005000c000000000030000700\
                1400010008c90100000000004e00000000000000180003000000000000000000420100000000\
                00006a0000002c00030008c90100000000004e000000420100006a0000000000000000000000\
                000000000000000000000000";
        let leaf = "00000000030000000000619e1100509e010000000a000100706669666f000000080002000200\
                000005000c0000000000300007001400010008c90100000000004e0000000000000018000300\
                00000000000000004201000000000000000000002c00030008c90100000000004e0000004201\
                0000000000000000000000000000000000000000000000000000";
        let ports = qdiscs(&[recorded(root), recorded(leaf)]).expect("valid");
        let port = PortRead { root: Root::Ours, ..PortRead::default() };
        assert_eq!(ports, [(3, port)].into());
    }

    /// Classes after 400 frames of 1,500 bytes to queue 1, which has room for two. `tc` showed 78
    /// frames, 117,000 bytes and 322 drops.
    #[test]
    fn classes_of_the_kernel_are_read_with_their_counters() {
        let top = "00000000030000000100509effffffff00000000080001006874620034000200300001000001\
                00000000000020bcbe00000100000000000020bcbe00093d0000093d0000400d030007000000\
                00000000480007001400010008c90100000000004e0000000000000018000300000000000000\
                000000000000000000002e000000180004003a000000000000000000000089faffff89faffff\
                2c00030008c90100000000004e000000000000002e0000000000000000000000000000000000\
                000000000000180004003a000000000000000000000089faffff89faffff";
        let first = "00000000030000001100509e0100509e0000619e080001006874620034000200300001000001\
                0000000000000eae2f00000100000000000020bcbe00803e0000093d0000c012000000000000\
                00000000480007001400010008c90100000000004e0000000000000018000300000000000000\
                000042010000000000003c00000018000400140000003a000000000000004fedffff89faffff\
                2c00030008c90100000000004e000000420100003c0000000000000000000000000000000000\
                00000000000018000400140000003a000000000000004fedffff89faffff";
        let zero = "00000000030000001000509e0100509e00000000080001006874620040000200300001000001\
                000000000000e80300000001000000000000ffffffff80f0fa021f0000004006000000000000\
                010000000c00070000f2052a0100000048000700140001000000000000000000000000000000\
                0000180003000000000000000000000000000000000000000000180004000000000000000000\
                0000000080f0fa021f0000002c00030000000000000000000000000000000000000000000000\
                0000000000000000000000000000000000001800040000000000000000000000000080f0fa02\
                1f000000";
        let all = [top, first, zero].map(recorded);
        let (top, queues) = classes(&all).expect("valid");
        let (rate, ceil) = (24_998_000, 100_000_000);
        let counted = Class { bytes: 117_000, packets: 78, ..Class::default() };
        let first = Class { quantum: 4_800, rate, ceil, dropped: 322, ..counted.clone() };
        let zero = Class {
            prio: 1,
            quantum: 1_600,
            rate: 8_000,
            ceil: 40_000_000_000,
            ..Class::default()
        };
        assert_eq!(queues, [(0, zero), (1, first)].into());
        assert_eq!(top, Some(Class { rate: ceil, ceil, ..counted }));
    }

    fn filter(handle: u32, pref: u32, kind: &str, options: Option<&[u8]>) -> Message {
        let mut body = TcHeader { index: 3, handle, parent: ROOT, info: pref << 16 }.bytes();
        put(&mut body, TCA_KIND, kind.as_bytes());
        if let Some(options) = options {
            put(&mut body, TCA_OPTIONS, options);
        }
        Message { body }
    }

    #[test]
    fn the_map_is_the_one_program_of_ours() {
        let map = BTreeMap::from([(8, 1), (16, 7)]);
        let ours = Message { body: requests::map(Interface { name: "e0", index: 3 }, &map).body };
        let all = [filter(0, 1, "bpf", None), ours.clone()];
        assert_eq!(filters(&all), Ok(Filters::Ours(map)));
        assert_eq!(filters(&[]), Ok(Filters::None));
        let foreign = |text: &str| Ok(Filters::Foreign(text.to_owned()));
        assert_eq!(filters(&[filter(0, 5, "u32", None)]), foreign("filter u32 of preference 5"));
        let twice = [ours.clone(), ours];
        assert_eq!(filters(&twice), foreign("filter bpf of preference 1"));
        let other_handle = filter(2, 1, "bpf", Some(&[8, 0, 5, 0, 6, 0, 0, 0]));
        assert_eq!(filters(&[other_handle]), foreign("filter bpf of preference 1"));
        let extended = filter(1, 1, "bpf", Some(&[8, 0, 11, 0, 6, 0, 0, 0]));
        assert_eq!(filters(&[extended]), foreign("filter bpf of preference 1"));
    }

    #[test]
    fn a_queue_without_this_versions_filter_is_noticed() {
        let port = Interface { name: "e0", index: 3 };
        let ours = Message { body: requests::find_acks(port, 1).body };
        let listed = filter(0, 1, "bpf", None);
        assert_eq!(finds_acks(&[listed.clone(), ours.clone()], 1), Ok(true));
        assert_eq!(finds_acks(&[listed, ours], 2), Ok(false), "the class of another queue");
        assert_eq!(finds_acks(&[], 1), Ok(false));
        // The program of an earlier version, and another filter.
        let earlier = filter(1, 1, "bpf", Some(&[12, 0, 5, 0, 6, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(finds_acks(&[earlier, filter(0, 5, "u32", None)], 1), Ok(false));
        assert!(finds_acks(&[Message { body: vec![0; 3] }], 1).is_err());
    }

    #[test]
    fn a_program_of_the_kernel_is_read_and_is_not_ours() {
        let program = "0000000003000000010000000000509e00030100080001006270660008000b00000000002800\
                0200060004000200000014000500280000000c000000060000001100509e0800090008000000";
        let all = [recorded(program)];
        assert_eq!(filters(&all), Ok(Filters::Foreign("the BPF program of filter 1".to_owned())));
    }

    #[test]
    fn damaged_messages_are_errors_and_no_panic() {
        let whole = [
            link(1, "lo", None),
            qdisc(2, "htb", ROOT, TC_H_ROOT),
            filter(1, 1, "bpf", Some(&[8, 0, 5, 0, 6, 0, 0, 0])),
        ];
        for message in whole {
            for length in 0..message.body.len() {
                let cut = [Message { body: message.body[..length].to_vec() }];
                // The padding behind the last attribute may be absent.
                assert!(links(&cut).is_err() || length >= 23, "{length}");
                assert!(qdiscs(&cut).is_err() || length > 20, "{length}");
                assert!(filters(&cut).is_err() || length > 20, "{length}");
                assert!(classes(&cut).is_err() || length >= 20, "{length}");
            }
        }
        let class = TcHeader { index: 3, handle: TOP, parent: ROOT, info: 0 }.bytes();
        let message = Message { body: class };
        let error = Err("the values of class 9e50:1 are incomplete".to_owned());
        assert_eq!(classes(&[message]), error);
    }
}
