//! Computes the requests to the kernel that change a port's qdiscs to the wanted state.
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
//! exist. A queue's FIFO for data is created last, so its presence shows that the queue is
//! complete. The driver lowers some rates before it raises others, so the sum of a port's rates
//! never exceeds R.
//!
//! # Example
//!
//! In a test, a port of 100 Mbit/s has queues of weights 1 and 3. In the test, the queues of
//! weights 1 and 3 have rates of 25 and 75 Mbit/s, and quanta U and 3·U.

use std::cmp::Reverse;

use penstock_units::BitsPerSecond;

use super::class::Class;
use super::kernel::Request;
use super::layout::{ROOT, TOP, class_of};
use super::read::{PortRead, Root};
use super::requests::{self, Interface};
use super::settings::Settings;
use crate::southbound::PortState;

/// Guaranteed rate of a queue of weight 0, in bit/s, which only keeps the queue from starving.
pub(super) const RATE_LEAST: u64 = 8_000;

/// Returns the HTB class that a queue should have.
fn wanted(settings: &Settings, rate: BitsPerSecond, weights: &[u32], queue: u8) -> Class {
    let weight = |queue: u8| u64::from(*weights.get(usize::from(queue)).unwrap_or(&0));
    let all = || (0..settings.queues).map(weight);
    let sum: u64 = all().sum();
    let idle = all().filter(|w| *w == 0).map(|_| RATE_LEAST).sum();
    let quantum = |parts: u64| {
        u32::try_from(u64::from(settings.quantum).saturating_mul(parts)).unwrap_or(u32::MAX)
    };
    let class = Class { ceil: rate.0, ..Class::default() };
    match weight(queue) {
        0 => Class { prio: 1, quantum: quantum(1), rate: RATE_LEAST, ..class },
        w => {
            let part = u128::from(rate.0.saturating_sub(idle)) * u128::from(w) / u128::from(sum);
            let part = u64::try_from(part).unwrap_or(u64::MAX).max(RATE_LEAST);
            Class { prio: 0, quantum: quantum(w), rate: part, ..class }
        }
    }
}

/// Returns the weights of a port's queues. If a queue's HTB class does not have the values for the
/// queue's weight, the weight counts as 0, so the driver configures the class again.
pub(super) fn weights(settings: &Settings, rate: BitsPerSecond, read: &PortRead) -> Vec<u32> {
    let unit = settings.quantum;
    let weight = |queue: u8| {
        let class = read.classes.get(&queue).filter(|class| class.prio == 0)?;
        class.quantum.is_multiple_of(unit).then(|| class.quantum / unit)
    };
    let told: Vec<u32> = (0..settings.queues).map(|q| weight(q).unwrap_or(0)).collect();
    let holds = |queue: u8| {
        let class = read.classes.get(&queue);
        class.is_some_and(|class| class.same(&wanted(settings, rate, &told, queue)))
    };
    let each = (0..settings.queues).zip(&told);
    each.map(|(queue, weight)| if holds(queue) { *weight } else { 0 }).collect()
}

/// Returns the requests that give a port the state `target`, in order. Returns no requests if the
/// port already has the state `target`.
pub(super) fn steps(
    settings: &Settings,
    port: Interface<'_>,
    rate: BitsPerSecond,
    read: &PortRead,
    target: &PortState,
) -> Vec<Request> {
    let mut all = Vec::new();
    if read.root != Root::Ours {
        all.push(requests::root(port));
    }
    let top = Class { rate: rate.0, ceil: rate.0, ..Class::default() };
    if !read.top.as_ref().is_some_and(|is| Class { quantum: 0, ..is.clone() }.same(&top)) {
        all.push(requests::class(port, ROOT, TOP, &top));
    }
    let nothing = Class::default();
    let is = |queue: u8| read.classes.get(&queue).unwrap_or(&nothing);
    let wanted = |queue: u8| wanted(settings, rate, &target.weights, queue);
    let class = |queue: u8| requests::class(port, TOP, class_of(queue), &wanted(queue));
    let queues = || 0..settings.queues;
    // A new class is created in its final state. The map may refer to it afterwards.
    let new = queues().filter(|queue| !read.classes.contains_key(queue));
    all.extend(new.map(class));
    let frames = settings.frames_at(rate);
    // A port whose rate has changed needs FIFOs of another length. The kernel changes them without
    // a loss.
    let has_fifos =
        |queue: &u8| read.pairs.get(queue).is_some_and(|has| has.is_none_or(|has| has == frames));
    for queue in queues() {
        if !has_fifos(&queue) {
            all.extend(requests::fifos(port, queue, frames, read.inner.contains(&queue)));
        } else if !read.filtered.contains(&queue) {
            all.push(requests::find_acks(port, queue));
        }
    }
    if read.map.as_ref() != Some(&target.map) {
        all.push(requests::map(port, &target.map));
    }
    let mut old: Vec<u8> = queues().filter(|queue| read.classes.contains_key(queue)).collect();
    old.retain(|queue| !is(*queue).same(&wanted(*queue)));
    old.sort_by_key(|queue| Reverse(i128::from(is(*queue).rate) - i128::from(wanted(*queue).rate)));
    all.extend(old.into_iter().map(class));
    all
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
    /// in whole bytes per second, as in the kernel.
    fn read(target: &PortState) -> PortRead {
        let class = |queue: u8| {
            let class = wanted(&settings(), RATE, &target.weights, queue);
            (queue, Class { rate: class.rate / 8 * 8, ..class })
        };
        let top = Some(Class { rate: RATE.0, ceil: RATE.0, ..Class::default() });
        let classes: BTreeMap<u8, Class> = (0..3).map(class).collect();
        let map = Some(target.map.clone());
        let frames = Some(settings().frames_at(RATE));
        let pairs = [0, 1, 2].map(|queue| (queue, frames)).into();
        let (inner, filtered) = ([0, 1, 2].into(), [0, 1, 2].into());
        PortRead { root: Root::Ours, inner, pairs, filtered, top, classes, map }
    }

    const E0: Interface<'_> = Interface { name: "e0", index: 3 };

    fn words(steps: Vec<Request>) -> Vec<String> {
        steps.into_iter().map(|request| request.words).collect()
    }

    fn plan(read: &PortRead, target: &PortState) -> Vec<String> {
        words(steps(&settings(), E0, RATE, read, target))
    }

    #[test]
    fn a_port_is_set_up_from_the_root_to_the_map() {
        let lines = plan(&PortRead::default(), &state(&[0, 1, 3], &[(8, 1), (16, 2)]));
        let begin = |line: &str| line.split(' ').take(9).collect::<Vec<_>>().join(" ");
        let begins: Vec<String> = lines.iter().map(|line| begin(line)).collect();
        assert_eq!(begins.len(), 5 + 3 * 6 + 1, "{begins:?}");
        assert_eq!(
            begins[..5],
            [
                "tc qdisc replace dev e0 root handle 9e50: htb",
                "tc class replace dev e0 parent 9e50: classid 9e50:1",
                "tc class replace dev e0 parent 9e50:1 classid 9e50:10",
                "tc class replace dev e0 parent 9e50:1 classid 9e50:11",
                "tc class replace dev e0 parent 9e50:1 classid 9e50:12",
            ]
        );
        assert_eq!(begins[11], "tc qdisc replace dev e0 parent 9e50:11 handle 9e71:");
        assert_eq!(begins[23], "tc filter replace dev e0 parent 9e50: protocol all");
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
    fn a_queue_with_a_single_fifo_gets_two_and_an_unfinished_one_is_finished() {
        let target = state(&[1, 2, 4], &[(8, 1)]);
        let mut is = read(&target);
        // Queue 1 has the FIFO of an earlier version. Queue 2 lacks its last FIFO.
        is.inner.remove(&1);
        is.pairs.retain(|queue, _| *queue == 0);
        let lines = plan(&is, &target);
        let begin = |line: &str| line.split(' ').take(7).collect::<Vec<_>>().join(" ");
        let begins: Vec<String> = lines.iter().map(|line| begin(line)).collect();
        let first = [
            "tc qdisc replace dev e0 parent 9e50:11",
            "tc class replace dev e0 parent 9e71:",
            "tc class replace dev e0 parent 9e71:",
            "tc qdisc replace dev e0 parent 9e71:1",
            "tc filter replace dev e0 parent 9e71:",
            "tc qdisc replace dev e0 parent 9e71:2",
        ];
        assert_eq!(begins[..6], first);
        // The kernel refuses to replace an HTB by another one with the same handle.
        assert_eq!(begins[6], "tc class replace dev e0 parent 9e72:");
        assert_eq!(begins[10..], ["tc qdisc replace dev e0 parent 9e72:2"]);
    }

    #[test]
    fn a_queue_with_the_filter_of_an_earlier_version_gets_the_present_one() {
        let target = state(&[1, 2, 4], &[(8, 1)]);
        let mut is = read(&target);
        is.filtered.remove(&1);
        let lines = plan(&is, &target);
        let begin = "tc filter replace dev e0 parent 9e71: protocol all pref 1 handle 1 bpf ";
        assert!(lines.len() == 1 && lines[0].starts_with(begin), "{lines:?}");
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
        let lines = words(steps(&settings(), E0, faster, &read(&target), &target));
        let (fifos, classes): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line.contains(" parent 9e7"));
        assert_eq!(classes.len(), 4, "{lines:?}");
        assert!(classes[0].contains("classid 9e50:1 htb rate 1000000000bit"));
        // Two FIFOs of each queue.
        assert_eq!(fifos.iter().filter(|line| line.ends_with(" pfifo limit 500")).count(), 6);
    }
}
