//! Assignment of traffic classes to code points.
//!
//! # Problem
//!
//! Switches classify in two steps: they map the code point to a traffic class at ingress, and the
//! class to a queue at egress. The first map belongs to the switch, and the second map belongs to a
//! port. A binding needs a map from code point to queue on each port.
//!
//! # Source
//!
//! SONiC has the two maps as `DSCP_TO_TC_MAP` and `TC_TO_QUEUE_MAP`. QShare §VI assumes a single
//! map.
//!
//! # Approach
//!
//! Code points with the same queue on every port share a class. Code points with different queues
//! on any port do not share a class. Code points in queue 0 on every port have class 0. A code
//! point keeps its class. A new code point gets an unused class if there is one. That class can
//! then be prepared before any frame uses it.
//!
//! # Example
//!
//! A test has two ports and classes 0 to 7. Code points 8 and 24 are in queue 1 on both ports. Code
//! point 16 is in queue 2 on the first port and in queue 1 on the second. The test expects class 1
//! for 8, class 2 for 16 and class 1 for 24.
//!
//! # Cost
//!
//! An assignment takes O(code points · ports), with at most 63 code points and 16 classes.

use std::collections::{BTreeMap, BTreeSet};

use super::driver::{Capabilities, ONE_STEP, PortState, SwitchState};

/// Completes `wanted` for a switch with classes. A port does not name a code point if the code
/// point's tenant does not send through the port. If all ports that name a code point use the same
/// queue, the code point gets that queue on all ports. With queue 0 on the other ports, each set of
/// ports would need a class of its own. With one queue per switch and tenant, the switch then needs
/// fewer classes than queues.
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

/// Number of classes besides 0 that these maps need.
pub(super) fn needed<'a>(ports: impl Iterator<Item = &'a PortState>) -> usize {
    groups(&ports.map(|port| &port.map).collect::<Vec<_>>()).len()
}

/// The class of each code point except those in class 0, and the queue of each class on each port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) class: BTreeMap<u8, u8>,
    /// For each class, its queues in the order of the ports.
    pub(super) queues: BTreeMap<u8, Vec<u8>>,
}

/// Code points of each needed class, by their queues on the ports.
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

/// Assigns classes for the maps `wanted`, which are in the order of the ports. `now` is the present
/// assignment.
///
/// # Errors
/// Returns the number of classes needed besides 0, if the switch has fewer.
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
