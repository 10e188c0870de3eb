//! Computes the lines of `tc -batch` that change a port's qdiscs to the wanted state.
//!
//! # Problem
//!
//! HTB guarantees each class its rate and divides spare bandwidth in proportion to quanta. HTB's
//! default quantum is rate / 10, at most 200,000 bytes. As a result, HTB's default quantum is equal
//! for all classes above 16 Mbit/s. With the default quantum, two classes of 20 and 60 Mbit/s
//! divided a link of 200 Mbit/s at a ratio of 1:1.46 instead of 1:3.
//!
//! # Approach
//!
//! R is the port's rate, w is a queue's weight, W is the sum of all weights, and U is
//! [`Settings::quantum`] in bytes.
//!
//! - The HTB class of a queue of weight w above 0 has priority 0, the ceiling R (the port's rate)
//!   and the quantum w·U. The class guarantees the rate w/W · (R - Z): the part w/W of the port's
//!   rate R without the rates Z of queues of weight 0.
//! - The HTB class of a queue of weight 0 has priority 1, the rate [`RATE_LEAST`], the ceiling R
//!   (the port's rate) and the quantum U ([`Settings::quantum`]).
//!
//! With the lower priority of its HTB class, a queue of weight 0 gets only bandwidth that other
//! queues do not use. The kernel replaces the port's map atomically after all classes of the map
//! exist. The driver lowers some rates before it raises others, so the sum of a port's rates never
//! exceeds R.
//!
//! # Example
//!
//! In a test, a port of 100 Mbit/s has queues of weights 1 and 3. In the test, the queues of
//! weights 1 and 3 have rates of 25 and 75 Mbit/s, and quanta U and 3·U.

use std::cmp::Reverse;

use penstock_units::BitsPerSecond;

use super::layout::{MAP_HANDLE, MAP_PREF, ROOT, TOP_MINOR, class_of, leaf_of};
use super::program::{bytecode, encode};
use super::read::{Class, PortRead, Root, class_name};
use super::settings::{Leaf, Settings};
use crate::southbound::PortState;

/// Guaranteed rate of a queue of weight 0, in bit/s, which only keeps the queue from starving.
pub(super) const RATE_LEAST: u64 = 8_000;
/// Number of bursts that an HTB class sends per second at its rate. The burst size of an HTB class
/// is the traffic of one millisecond, but at least [`BURST_LEAST`] bytes.
const BURSTS_A_SECOND: u64 = 1_000;
const BURST_LEAST: u64 = 3_200;
/// Rates that differ by at most 1/1000 are equal for the driver, because `tc` may print only four
/// digits.
const ROUNDING: u64 = 1_000;

/// Returns the HTB class that a queue should have.
fn wanted(settings: &Settings, rate: BitsPerSecond, weights: &[u32], queue: u8) -> Class {
    let weight = |queue: u8| u64::from(*weights.get(usize::from(queue)).unwrap_or(&0));
    let all = || (0..settings.queues).map(weight);
    let sum: u64 = all().sum();
    let idle = all().filter(|w| *w == 0).map(|_| RATE_LEAST).sum();
    let unit = u64::from(settings.quantum);
    let class = Class { ceil: rate.0, ..Class::default() };
    match weight(queue) {
        0 => Class { prio: 1, quantum: unit, rate: RATE_LEAST, ..class },
        w => {
            let part = u128::from(rate.0.saturating_sub(idle)) * u128::from(w) / u128::from(sum);
            let part = u64::try_from(part).unwrap_or(u64::MAX).max(RATE_LEAST);
            Class { prio: 0, quantum: w * unit, rate: part, ..class }
        }
    }
}

/// Returns true if an HTB class has the wanted values, within the precision of `tc`.
fn same(is: &Class, wanted: &Class) -> bool {
    let near = |a: u64, b: u64| a.abs_diff(b) <= b / ROUNDING + 1;
    let as_told = (is.prio, is.quantum) == (wanted.prio, wanted.quantum);
    as_told && near(is.rate, wanted.rate) && near(is.ceil, wanted.ceil)
}

/// Returns the weights of a port's queues. If a queue's HTB class does not have the values for the
/// queue's weight, the weight counts as 0, so the driver configures the class again.
pub(super) fn weights(settings: &Settings, rate: BitsPerSecond, read: &PortRead) -> Vec<u32> {
    let unit = u64::from(settings.quantum);
    let weight = |queue: u8| {
        let class = read.classes.get(&queue).filter(|class| class.prio == 0)?;
        let whole = class.quantum.is_multiple_of(unit);
        whole.then(|| u32::try_from(class.quantum / unit).ok()).flatten()
    };
    let told: Vec<u32> = (0..settings.queues).map(|q| weight(q).unwrap_or(0)).collect();
    let holds = |queue: u8| {
        let class = read.classes.get(&queue);
        class.is_some_and(|class| same(class, &wanted(settings, rate, &told, queue)))
    };
    let each = (0..settings.queues).zip(&told);
    each.map(|(queue, weight)| if holds(queue) { *weight } else { 0 }).collect()
}

/// Returns the lines of `tc -batch` that give a port the state `target`. Returns no lines if the
/// port already has the state `target`.
pub(super) fn lines(
    settings: &Settings,
    (name, rate): (&str, BitsPerSecond),
    read: &PortRead,
    target: &PortState,
) -> Vec<String> {
    let mut lines = Vec::new();
    if read.root != Root::Ours {
        let default = class_of(0);
        lines.push(format!(
            "qdisc replace dev {name} root handle {ROOT:x}: htb default {default:x}"
        ));
    }
    let top = Class { rate: rate.0, ceil: rate.0, ..Class::default() };
    if !read.top.as_ref().is_some_and(|is| same(&Class { quantum: 0, ..is.clone() }, &top)) {
        let (parent, class) = (format!("{ROOT:x}:"), format!("{ROOT:x}:{TOP_MINOR:x}"));
        lines.push(class_line(name, &parent, &class, &top));
    }
    let nothing = Class::default();
    let is = |queue: u8| read.classes.get(&queue).unwrap_or(&nothing);
    let wanted = |queue: u8| wanted(settings, rate, &target.weights, queue);
    let parent = format!("{ROOT:x}:{TOP_MINOR:x}");
    let line = |queue: u8| class_line(name, &parent, &class_name(queue), &wanted(queue));
    let queues = || 0..settings.queues;
    // A new class is created in its final state. The map may refer to it afterwards.
    let new = queues().filter(|queue| !read.classes.contains_key(queue));
    lines.extend(new.map(line));
    for queue in queues().filter(|queue| !read.leaves.contains(queue)) {
        let leaf = match settings.leaf {
            Leaf::Fifo { frames } => format!("pfifo limit {frames}"),
            Leaf::FqCodel => "fq_codel".to_owned(),
        };
        let (class, handle) = (class_name(queue), leaf_of(queue));
        lines.push(format!("qdisc replace dev {name} parent {class} handle {handle:x}: {leaf}"));
    }
    if read.map.as_ref() != Some(&target.map) {
        let program = encode(&target.map, |queue| (ROOT << 16) + class_of(queue));
        lines.push(format!(
            "filter replace dev {name} parent {ROOT:x}: protocol all pref {MAP_PREF} \
             handle {MAP_HANDLE} bpf bytecode \"{}\"",
            bytecode(&program)
        ));
    }
    let mut old: Vec<u8> = queues().filter(|queue| read.classes.contains_key(queue)).collect();
    old.retain(|queue| !same(is(*queue), &wanted(*queue)));
    old.sort_by_key(|queue| Reverse(i128::from(is(*queue).rate) - i128::from(wanted(*queue).rate)));
    lines.extend(old.into_iter().map(line));
    lines
}

fn class_line(port: &str, parent: &str, handle: &str, class: &Class) -> String {
    let burst = |rate: u64| (rate / 8 / BURSTS_A_SECOND).max(BURST_LEAST);
    let Class { prio, quantum, rate, ceil, .. } = class;
    let share = match quantum {
        // The class above the queues has no quantum, because it shares with no other class.
        0 => String::new(),
        _ => format!(" prio {prio} quantum {quantum}"),
    };
    format!(
        "class replace dev {port} parent {parent} classid {handle} htb rate {rate}bit \
         ceil {ceil}bit burst {}b cburst {}b{share}",
        burst(*rate),
        burst(*ceil),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const RATE: BitsPerSecond = BitsPerSecond(100_000_000);

    fn settings() -> Settings {
        Settings { queues: 3, ..Settings::default() }
    }

    fn state(weights: &[u32], map: &[(u8, u8)]) -> PortState {
        PortState { weights: weights.to_vec(), map: map.iter().copied().collect() }
    }

    /// Returns the values that the driver would read from a port in the state `target`, with rates
    /// rounded as `tc` prints them.
    fn read(target: &PortState) -> PortRead {
        let class = |queue: u8| {
            let class = wanted(&settings(), RATE, &target.weights, queue);
            (queue, Class { rate: class.rate / 1_000 * 1_000, ..class })
        };
        let top = Some(Class { rate: RATE.0, ceil: RATE.0, ..Class::default() });
        let classes: BTreeMap<u8, Class> = (0..3).map(class).collect();
        let map = Some(target.map.clone());
        PortRead { root: Root::Ours, leaves: [0, 1, 2].into(), top, classes, map }
    }

    fn plan(read: &PortRead, target: &PortState) -> Vec<String> {
        lines(&settings(), ("e0", RATE), read, target)
    }

    #[test]
    fn a_port_is_set_up_from_the_root_to_the_map() {
        let lines = plan(&PortRead::default(), &state(&[0, 1, 3], &[(8, 1), (16, 2)]));
        let begin = |line: &str| line.split(' ').take(8).collect::<Vec<_>>().join(" ");
        let begins: Vec<String> = lines.iter().map(|line| begin(line)).collect();
        assert_eq!(
            begins,
            [
                "qdisc replace dev e0 root handle 9e50: htb",
                "class replace dev e0 parent 9e50: classid 9e50:1",
                "class replace dev e0 parent 9e50:1 classid 9e50:10",
                "class replace dev e0 parent 9e50:1 classid 9e50:11",
                "class replace dev e0 parent 9e50:1 classid 9e50:12",
                "qdisc replace dev e0 parent 9e50:10 handle 9e60:",
                "qdisc replace dev e0 parent 9e50:11 handle 9e61:",
                "qdisc replace dev e0 parent 9e50:12 handle 9e62:",
                "filter replace dev e0 parent 9e50: protocol all",
            ]
        );
        assert!(lines[0].ends_with("htb default 10"), "{}", lines[0]);
        assert!(lines[2].contains("rate 8000bit ceil 100000000bit"), "{}", lines[2]);
        assert!(lines[2].ends_with("prio 1 quantum 1600"), "{}", lines[2]);
        assert!(lines[3].contains("rate 24998000bit"), "a quarter, less 8 kbit/s: {}", lines[3]);
        assert!(lines[4].ends_with("prio 0 quantum 4800"), "{}", lines[4]);
    }

    #[test]
    fn the_example() {
        let classes = [0, 1].map(|queue| {
            let two = Settings { queues: 2, ..Settings::default() };
            wanted(&two, RATE, &[1, 3], queue)
        });
        assert_eq!(classes.clone().map(|class| class.rate), [25_000_000, 75_000_000]);
        assert_eq!(classes.map(|class| class.quantum), [1_600, 4_800]);
    }

    #[test]
    fn a_correct_port_is_left_alone() {
        let target = state(&[1, 2, 4], &[(8, 1)]);
        assert_eq!(plan(&read(&target), &target), Vec::<String>::new());
        assert_eq!(weights(&settings(), RATE, &read(&target)), [1, 2, 4]);
    }

    #[test]
    fn a_new_map_is_one_line_and_falling_rates_come_first() {
        let is = read(&state(&[1, 1, 2], &[(8, 1)]));
        let lines = plan(&is, &state(&[1, 1, 2], &[(8, 2), (16, 1)]));
        assert_eq!(lines.len(), 1, "{lines:?}");
        let lines = plan(&is, &state(&[1, 2, 1], &[(8, 1)]));
        assert!(lines[0].contains("9e50:12") && lines[1].contains("9e50:11"), "{lines:?}");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn a_class_that_somebody_changed_has_no_weight_and_is_told_anew() {
        let target = state(&[1, 1, 2], &[]);
        let mut is = read(&target);
        is.classes.get_mut(&1).expect("there").rate = 1_000_000;
        assert_eq!(weights(&settings(), RATE, &is), [1, 0, 2]);
        assert!(plan(&is, &target)[0].contains("9e50:11"));
        let mut is = read(&target);
        is.classes.get_mut(&1).expect("there").quantum = 1_700;
        assert_eq!(weights(&settings(), RATE, &is)[1], 0);
    }

    #[test]
    fn a_port_with_another_rate_is_told_its_rate() {
        let target = state(&[1, 1, 2], &[]);
        let faster = BitsPerSecond(1_000_000_000);
        let lines = lines(&settings(), ("e0", faster), &read(&target), &target);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].contains("classid 9e50:1 htb rate 1000000000bit"));
    }
}
