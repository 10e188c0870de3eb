//! Parses the output of `tc` strictly.
//!
//! The driver reads qdiscs and filters as JSON. The driver reads classes as text, because iproute2
//! before 6.14 has no JSON output for HTB's classes. Later versions of iproute2 also print text for
//! classes if the option `-j` is absent.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::layout::{MAP_HANDLE, MAP_PREF, ROOT, TOP_MINOR, class_of, leaf_of, queue_of};
use super::program::{Instruction, decode};

/// Origin of a port's root qdisc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Root {
    /// The port has the kernel's default qdisc.
    #[default]
    Default,
    /// The root qdisc belongs to the driver.
    Ours,
    /// The root qdisc belongs to another configuration. The variant contains the kind and handle of
    /// the foreign qdisc.
    Foreign(String),
}

/// Rates, quantum and priority of a class of HTB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) prio: u32,
    pub(super) quantum: u64,
    /// Guaranteed rate of the class in bit/s, as rounded by `tc`.
    pub(super) rate: u64,
    /// Ceiling of the class in bit/s, as rounded by `tc`.
    pub(super) ceil: u64,
    pub(super) bytes: u64,
    pub(super) packets: u64,
    pub(super) dropped: u64,
}

/// State of a port's qdiscs, classes and map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortRead {
    pub(super) root: Root,
    /// Queues on which the driver has set up its leaf qdisc.
    pub(super) leaves: BTreeSet<u8>,
    /// Class above the queues' classes, which has the port's rate.
    pub(super) top: Option<Class>,
    /// HTB class of each queue.
    pub(super) classes: BTreeMap<u8, Class>,
    /// Map from code point to queue of the port's BPF program, or `None` if the port has no BPF
    /// program.
    pub(super) map: Option<BTreeMap<u8, u8>>,
}

#[derive(Deserialize)]
struct Qdisc {
    kind: String,
    handle: String,
    dev: String,
    #[serde(default)]
    root: bool,
    #[serde(default)]
    parent: String,
}

/// Parses the qdiscs of all ports from `tc -j qdisc show`.
pub(super) fn qdiscs(text: &str) -> Result<BTreeMap<String, PortRead>, String> {
    let all: Vec<Qdisc> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let mut ports: BTreeMap<String, PortRead> = BTreeMap::new();
    for Qdisc { kind, handle, dev, root, parent } in all {
        let port = ports.entry(dev).or_default();
        if root {
            port.root = match (kind.as_str(), handle.as_str()) {
                (_, "0:") => Root::Default,
                ("htb", handle) if handle == format!("{ROOT:x}:") => Root::Ours,
                _ => Root::Foreign(format!("{kind} {handle}")),
            };
        } else {
            let of_queue = minor(&parent).and_then(queue_of);
            let ours = |queue: &u8| handle == format!("{:x}:", leaf_of(*queue));
            port.leaves.extend(of_queue.filter(ours));
        }
    }
    Ok(ports)
}

/// Returns the minor number of a handle such as `9e50:11`, or `None` for a handle that does not
/// belong to the driver.
fn minor(handle: &str) -> Option<u32> {
    let (major, minor) = handle.split_once(':')?;
    (u32::from_str_radix(major, 16).ok()? == ROOT).then_some(())?;
    u32::from_str_radix(minor, 16).ok()
}

#[derive(Deserialize)]
struct Filter {
    kind: String,
    pref: u32,
    options: Option<Options>,
}

#[derive(Deserialize)]
struct Options {
    handle: Option<String>,
    bytecode: Option<Bytecode>,
}

#[derive(Deserialize)]
struct Bytecode {
    insns: Vec<Instruction>,
}

/// Map from code point to queue of each port, in the order of the ports. The map is `None` for a
/// port without a filter, and `Err` for a port with a filter of another configuration.
pub(super) type Maps = Vec<Result<Option<BTreeMap<u8, u8>>, String>>;

/// Parses the output of `tc -j -batch` for a `filter show` of each port.
pub(super) fn filters(text: &str, ports: usize) -> Result<Maps, String> {
    let arrays = serde_json::Deserializer::from_str(text).into_iter::<Vec<Filter>>();
    let arrays: Vec<_> = arrays.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    if arrays.len() != ports {
        return Err(format!("tc printed {} filter lists for {ports} ports", arrays.len()));
    }
    Ok(arrays.into_iter().map(map).collect())
}

fn map(filters: Vec<Filter>) -> Result<Option<BTreeMap<u8, u8>>, String> {
    let mut map = None;
    for Filter { kind, pref, options } in filters {
        let not_ours = || format!("filter {kind} of preference {pref}");
        if kind != "bpf" || pref != MAP_PREF {
            return Err(not_ours());
        }
        // `tc` also lists each filter once without its options.
        let Some(Options { handle, bytecode }) = options else { continue };
        let program = bytecode.ok_or_else(not_ours)?.insns;
        let decoded = decode(&program, |class| queue_of(class.checked_sub(ROOT << 16)?));
        if handle != Some(format!("{MAP_HANDLE:#x}")) || map.is_some() {
            return Err(not_ours());
        }
        map = Some(decoded.ok_or_else(|| format!("the BPF program of filter {pref}"))?);
    }
    Ok(map)
}

/// Parses the top class and the queues' classes from `tc -s -d class show dev PORT`.
pub(super) fn classes(text: &str) -> Result<(Option<Class>, BTreeMap<u8, Class>), String> {
    let (mut top, mut queues) = (None, BTreeMap::new());
    let mut current: Option<&mut Class> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["class", "htb", handle, rest @ ..] => {
                let class = class(rest).ok_or_else(|| format!("class {line:?}"))?;
                current = match minor(handle) {
                    Some(TOP_MINOR) => Some(top.insert(class)),
                    Some(minor) => queue_of(minor).map(|queue| {
                        queues.insert(queue, class);
                        queues.get_mut(&queue).expect("just inserted")
                    }),
                    None => None,
                };
            }
            ["class", ..] => current = None,
            ["Sent", bytes, "bytes", packets, "pkt", "(dropped", dropped, ..] => {
                let Some(class) = current.as_deref_mut() else { continue };
                let number = |word: &str| word.trim_end_matches(',').parse().ok();
                let counts = (number(bytes), number(packets), number(dropped));
                let (Some(bytes), Some(packets), Some(dropped)) = counts else {
                    return Err(format!("counters {line:?}"));
                };
                (class.bytes, class.packets, class.dropped) = (bytes, packets, dropped);
            }
            _ => {}
        }
    }
    Ok((top, queues))
}

/// Parses the names and values that follow the handle of a class in `tc`'s output.
fn class(words: &[&str]) -> Option<Class> {
    let after = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1).copied()
    };
    Some(Class {
        // The top class has `root` instead of a priority.
        prio: after("prio").map_or(Some(0), |word| word.parse().ok())?,
        // Only leaf classes have a quantum.
        quantum: after("quantum").map_or(Some(0), |word| word.parse().ok())?,
        rate: bits(after("rate")?)?,
        ceil: bits(after("ceil")?)?,
        ..Class::default()
    })
}

/// Converts a rate such as `33333Kbit`, `1Gbit` or `800bit` to bit/s.
fn bits(word: &str) -> Option<u64> {
    let number = word.strip_suffix("bit")?;
    let digits = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &number[digits.len()..] {
        "" => 1,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Returns the name of a queue's HTB class, for commands and messages.
pub(super) fn class_name(queue: u8) -> String {
    format!("{ROOT:x}:{:x}", class_of(queue))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::southbound::linux_tc::program::{bytecode, encode};

    #[test]
    fn roots_are_told_apart() {
        let text = r#"[
          {"kind":"noqueue","handle":"0:","dev":"lo","root":true,"refcnt":2,"options":{}},
          {"kind":"htb","handle":"9e50:","dev":"a","root":true,"refcnt":3,"options":{"r2q":10}},
          {"kind":"pfifo","handle":"9e61:","dev":"a","parent":"9e50:11","options":{"limit":3}},
          {"kind":"pfifo","handle":"7:","dev":"a","parent":"9e50:12","options":{"limit":3}},
          {"kind":"htb","handle":"1:","dev":"b","root":true,"refcnt":3,"options":{}}]"#;
        let ports = qdiscs(text).expect("as tc prints it");
        assert_eq!((&ports["lo"].root, &ports["a"].root), (&Root::Default, &Root::Ours));
        assert_eq!(ports["a"].leaves, [1].into());
        assert_eq!(ports["b"].root, Root::Foreign("htb 1:".to_owned()));
    }

    #[test]
    fn classes_are_read_with_their_counters() {
        let text = "\
class htb 9e50:11 parent 9e50:1 leaf 9e61: prio 0 quantum 4800 rate 33333Kbit ceil 100Mbit \
linklayer ethernet burst 1584b/1 mpu 0b cburst 1600b/1 mpu 0b level 0 
 Sent 1514 bytes 1 pkt (dropped 2, overlimits 0 requeues 0) 
 backlog 0b 0p requeues 0

class htb 9e50:1 root rate 100Mbit ceil 100Mbit linklayer ethernet burst 2b/1 level 7 
 Sent 9 bytes 9 pkt (dropped 0, overlimits 0 requeues 0) 
class htb 9e50:99 root rate 1Gbit ceil 1Gbit
 Sent 7 bytes 7 pkt (dropped 0, overlimits 0 requeues 0) 
";
        let (top, queues) = classes(text).expect("as tc prints it");
        let (rate, ceil) = (33_333_000, 100_000_000);
        let queue =
            Class { prio: 0, quantum: 4_800, rate, ceil, bytes: 1_514, packets: 1, dropped: 2 };
        assert_eq!(queues, [(1, queue)].into());
        assert_eq!(top.expect("there").packets, 9);
    }

    #[test]
    fn the_map_is_the_one_program_of_ours() {
        let map = BTreeMap::from([(8, 1), (16, 7)]);
        let program = encode(&map, |queue| (ROOT << 16) + class_of(queue));
        let insns: Vec<String> = bytecode(&program)
            .split(',')
            .skip(1)
            .map(|i| {
                let n: Vec<&str> = i.split(' ').collect();
                format!(r#"{{"code":{},"jt":{},"jf":{},"k":{}}}"#, n[0], n[1], n[2], n[3])
            })
            .collect();
        let shown = format!(
            r#"[{{"parent":"9e50:","protocol":"all","pref":1,"kind":"bpf","chain":0}},
                {{"protocol":"all","pref":1,"kind":"bpf","chain":0,"options":{{"handle":"0x1",
                "bytecode":{{"length":{},"insns":[{}]}}}}}}]
               []"#,
            program.len(),
            insns.join(",")
        );
        let read = filters(&shown, 2).expect("as tc prints it");
        assert_eq!(read, [Ok(Some(map)), Ok(None)]);
        let other = r#"[{"protocol":"ip","pref":5,"kind":"u32","chain":0}]"#;
        let foreign = "filter u32 of preference 5".to_owned();
        assert_eq!(filters(other, 1), Ok(vec![Err(foreign)]));
    }

    #[test]
    fn rubbish_is_an_error_and_no_panic() {
        for text in ["", "[", "{}", "[1]", "[{\"kind\":3}]", "\u{0}\u{ffff}", "[[]]"] {
            assert!(qdiscs(text).is_err(), "{text:?}");
            assert!(filters(text, 1).is_err(), "{text:?}");
        }
        for line in [
            "class htb 9e50:11 rate",
            "class htb 9e50:11 rate fast ceil 1bit",
            "class htb 9e50:11 prio x rate 1bit ceil 1bit",
            "class htb 9e50:11 rate 99999999999999999999bit ceil 1bit",
            "class htb 9e50:11 rate 99999999999999Tbit ceil 1bit",
            "class htb 9e50:11 rate 1Ebit ceil 1bit",
            "class htb 9e50:11 rate 1bit ceil 1bit\n Sent x bytes 1 pkt (dropped 0, ",
        ] {
            assert!(classes(line).is_err(), "{line:?}");
        }
        assert_eq!(
            classes("class htb\nSent\nclass htb 9e50: x\n"),
            Err("class \"class htb 9e50: x\"".into())
        );
    }
}
