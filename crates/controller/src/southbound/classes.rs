//! Assigns traffic classes to code points.
//!
//! # Problem
//!
//! A controller's decision contains a map from code point to queue for each port. Switches classify
//! frames in two steps. At ingress, the switch maps the code point to a traffic class, with a
//! single map for the whole switch. At egress, each port maps the traffic class to a queue, with
//! its own map.
//!
//! # Source
//!
//! SONiC calls the two maps `DSCP_TO_TC_MAP` and `TC_TO_QUEUE_MAP`. QShare §VI assumes a single map
//! from code point to queue.
//!
//! # Approach
//!
//! Two code points share a traffic class if and only if both code points have the same queue on
//! every port. Code points in queue 0 on every port have class 0. A code point keeps its class if
//! possible. A new code point gets an unused class if possible, so that the driver can prepare the
//! class before any frame uses it.
//!
//! # Example
//!
//! The unit test of this module has a switch with two ports and classes 0 to 7. In the test, code
//! points 8 and 24 use queue 1 on both ports, so the code points share class 1. Code point 16 has
//! class 2, because code point 16 uses queue 2 on one port and queue 1 on the other port.
//!
//! # Cost
//!
//! An assignment takes O(code points · ports), with at most 63 code points and 16 classes.

use std::collections::{BTreeMap, BTreeSet};

use super::driver::{Capabilities, ONE_STEP, PortState, SwitchState};

/// Extends the maps in `wanted`, so that the maps need fewer traffic classes. Before the call, a
/// port's map contains only code points of tenants that send through the port. If a code point has
/// the same queue on all ports of its tenant, the call maps the code point to this queue on all
/// other ports too.
///
/// Without the extension, a code point is in queue 0 on the ports that its tenant does not use. Two
/// tenants with the same queue number but different ports then need different traffic classes.
pub(super) fn complete(can: &Capabilities, wanted: &mut SwitchState) {
    if can.classes >= ONE_STEP || !can.remap {
        return;
    }
    let mut queues: BTreeMap<u8, BTreeSet<u8>> = BTreeMap::new();
    for (dscp, queue) in wanted.ports.values().flat_map(|port| &port.map) {
        queues.entry(*dscp).or_default().insert(*queue);
    }
    for (dscp, queues) in &queues {
        if let [queue] = Vec::from_iter(queues)[..] {
            for port in wanted.ports.values_mut() {
                port.map.insert(*dscp, *queue);
            }
        }
    }
}

/// Returns the number of traffic classes besides class 0 that the maps of `ports` need.
pub(super) fn needed<'a>(ports: impl Iterator<Item = &'a PortState>) -> usize {
    groups(&ports.map(|port| &port.map).collect::<Vec<_>>()).len()
}

/// Traffic class of each code point that is not in class 0, and queue of each traffic class on each
/// port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) class: BTreeMap<u8, u8>,
    /// Queue of each class on each port, in the order of the ports.
    pub(super) queues: BTreeMap<u8, Vec<u8>>,
}

/// Groups code points by their queues on the ports. Each group of code points needs a traffic
/// class. Code points in queue 0 on all ports need no class.
fn groups(wanted: &[&BTreeMap<u8, u8>]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let code_points: BTreeSet<u8> = wanted.iter().flat_map(|map| map.keys().copied()).collect();
    let mut groups: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for dscp in code_points {
        let queues: Vec<u8> = wanted.iter().map(|map| *map.get(&dscp).unwrap_or(&0)).collect();
        if queues.iter().any(|queue| *queue != 0) {
            groups.entry(queues).or_default().push(dscp);
        }
    }
    groups
}

/// Assigns a class to each code point. `wanted` contains the map of each port, in the order of the
/// ports. The argument `now` contains the present traffic class of each code point.
///
/// # Errors
/// If the switch has too few classes, returns the number of needed classes besides class 0.
pub(super) fn assign(
    now: &BTreeMap<u8, u8>,
    wanted: &[&BTreeMap<u8, u8>],
    classes: u8,
) -> Result<Assignment, usize> {
    let groups = groups(wanted);
    if groups.len() >= usize::from(classes) {
        return Err(groups.len());
    }
    // The lowest code point goes first, so that the result is deterministic.
    let mut groups: Vec<(Vec<u8>, Vec<u8>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, members)| members[0]);
    let mut taken = BTreeSet::new();
    let keeps: Vec<Option<u8>> = groups
        .iter()
        .map(|(_, members)| {
            let has = members.iter().filter_map(|dscp| now.get(dscp).copied());
            let class =
                has.filter(|class| (1..classes).contains(class)).find(|c| !taken.contains(c))?;
            taken.insert(class);
            Some(class)
        })
        .collect();
    let used: BTreeSet<u8> = now.values().copied().collect();
    let mut assignment = Assignment::default();
    for ((queues, members), keeps) in groups.into_iter().zip(keeps) {
        let free = || (1..classes).filter(|class| !taken.contains(class));
        let new = || free().find(|class| !used.contains(class)).or_else(|| free().next());
        let class = keeps.or_else(new).expect("fewer groups than classes");
        taken.insert(class);
        assignment.class.extend(members.into_iter().map(|dscp| (dscp, class)));
        assignment.queues.insert(class, queues);
    }
    Ok(assignment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(u8, u8)]) -> BTreeMap<u8, u8> {
        pairs.iter().copied().collect()
    }

    #[test]
    fn the_example() {
        let (a, b) = (map(&[(8, 1), (16, 2), (24, 1)]), map(&[(8, 1), (16, 1), (24, 1)]));
        let got = assign(&map(&[]), &[&a, &b], 8).expect("two classes");
        assert_eq!(got.class, map(&[(8, 1), (16, 2), (24, 1)]));
        assert_eq!(got.queues, [(1, vec![1, 1]), (2, vec![2, 1])].into());
    }

    #[test]
    fn a_code_point_keeps_its_class_and_new_ones_take_unused_classes() {
        let now = map(&[(16, 1), (40, 2)]);
        let wanted = map(&[(8, 1), (16, 2)]);
        let got = assign(&now, &[&wanted], 4).expect("two classes");
        assert_eq!(got.class, map(&[(8, 3), (16, 1)]), "2 has frames of 40 in it still");
        let got = assign(&now, &[&wanted], 3).expect("two classes");
        assert_eq!(got.class, map(&[(8, 2), (16, 1)]), "there is no other");
    }

    #[test]
    fn two_that_part_do_not_share_a_class_any_more() {
        let got = assign(&map(&[(8, 1), (16, 1)]), &[&map(&[(8, 1), (16, 2)])], 8);
        assert_eq!(got.expect("two").class, map(&[(8, 1), (16, 2)]));
    }

    #[test]
    fn a_class_that_is_none_of_ours_is_not_kept() {
        let got = assign(&map(&[(8, 15)]), &[&map(&[(8, 1)])], 8).expect("one");
        assert_eq!(got.class, map(&[(8, 1)]));
    }

    #[test]
    fn more_than_there_are_is_told() {
        let wanted: BTreeMap<u8, u8> = (1..8).map(|n| (n, n)).collect();
        assert!(assign(&map(&[]), &[&wanted], 8).is_ok());
        assert_eq!(assign(&map(&[]), &[&wanted], 7), Err(7));
        let everywhere_0 = map(&[(1, 0)]);
        assert_eq!(assign(&map(&[]), &[&everywhere_0], 1), Ok(Assignment::default()));
    }
}
