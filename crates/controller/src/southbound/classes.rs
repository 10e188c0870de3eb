//! Which traffic class each code point has.
//!
//! **Problem.** Switches classify twice: code point to traffic class where a frame comes in, class
//! to queue where it goes out. The first map is the switch's, the second a port's; what is asked
//! for is a map from code point to queue on each port. **Rule.** Code points that are in the same
//! queue on every port share a class, others do not; those that are in queue 0 everywhere have
//! class 0. A class stays with who has it; what is new takes one that nobody has now, if there is
//! one, so that it can be made ready before a frame has it.
//! **Example** (a test). Two ports, classes 0 to 7: 8 in queue 1 on both, 16 in 2 and 1, 24 in 1 on
//! both: classes 1, 2, 1.
//! **Cost.** O(code points · ports); at most 63 code points and 16 classes.
//!
//! Source: SONiC `DSCP_TO_TC_MAP`, `TC_TO_QUEUE_MAP`; QShare §VI assumes the one map.

use std::collections::{BTreeMap, BTreeSet};

use super::driver::{Capabilities, ONE_STEP, PortState, SwitchState};

/// What is `wanted` of a switch with classes, as it can do it: a code point that is in one queue
/// wherever a port names it is in that queue on all ports. No tenant with that code point sends by
/// the other ports, so nothing is said about them; read as queue 0 each set of ports would need a
/// class of its own. With one queue a switch for each tenant there are then fewer classes than
/// queues.
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

/// How many classes beside 0 these maps take.
pub(super) fn needed<'a>(ports: impl Iterator<Item = &'a PortState>) -> usize {
    groups(&ports.map(|port| &port.map).collect::<Vec<_>>()).len()
}

/// The class of each code point that has one but 0, and each class's queue on each port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) class: BTreeMap<u8, u8>,
    /// By class: the queues, in the order of the ports.
    pub(super) queues: BTreeMap<u8, Vec<u8>>,
}

/// The code points of each class that is needed, by their queues on the ports.
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

/// Classes for what is `wanted` on the ports, in their order; `now` says who has which.
///
/// # Errors
/// How many classes beside 0 it takes, when that is more than there are.
pub(super) fn assign(
    now: &BTreeMap<u8, u8>,
    wanted: &[&BTreeMap<u8, u8>],
    classes: u8,
) -> Result<Assignment, usize> {
    let groups = groups(wanted);
    if groups.len() >= usize::from(classes) {
        return Err(groups.len());
    }
    // The lowest code point first, so that the outcome is the same each time.
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
    fn who_has_a_class_keeps_it_and_the_new_take_what_nobody_has() {
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
