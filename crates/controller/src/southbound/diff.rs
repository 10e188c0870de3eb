//! Computes the changes from the present state of a switch to the wanted state.

use super::driver::{Change, PortState, SwitchState};

/// Returns the changes from the state `is` to the state `wanted`. The list starts with unmapped
/// code points, continues with mapped code points, and ends with queue weights. Ports that are
/// missing in `wanted`, or that are in `is.left_out`, do not change.
#[must_use]
pub fn diff(is: &SwitchState, wanted: &SwitchState) -> Vec<Change> {
    let nothing = PortState::default();
    let (mut unmap, mut map, mut weigh) = (Vec::new(), Vec::new(), Vec::new());
    for (name, want) in wanted.ports.iter().filter(|(name, _)| !is.left_out.contains_key(*name)) {
        let has = is.ports.get(name).unwrap_or(&nothing);
        let port = || name.clone();
        let gone = has.map.iter().filter(|(dscp, queue)| **queue != 0 && want.queue(**dscp) == 0);
        unmap.extend(gone.map(|(dscp, _)| Change::Unmap { port: port(), dscp: *dscp }));
        let new = want.map.iter().filter(|(dscp, q)| **q != 0 && has.queue(**dscp) != **q);
        map.extend(new.map(|(dscp, q)| Change::Map { port: port(), dscp: *dscp, queue: *q }));
        let weights = want.trimmed_weights();
        if has.trimmed_weights() != weights {
            weigh.push(Change::Weigh { port: port(), weights: weights.to_vec() });
        }
    }
    unmap.append(&mut map);
    unmap.append(&mut weigh);
    unmap
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn state(weights: &[u32], map: &[(u8, u8)]) -> SwitchState {
        let map: BTreeMap<u8, u8> = map.iter().copied().collect();
        let port = PortState { weights: weights.to_vec(), map };
        SwitchState { ports: [("eth0".to_owned(), port)].into(), ..SwitchState::default() }
    }

    #[test]
    fn only_what_differs_changes_and_nothing_is_mapped_before_the_old_is_gone() {
        let (is, wanted) =
            (state(&[4, 1], &[(8, 1), (16, 2)]), state(&[4, 2], &[(16, 3), (24, 1)]));
        let port = || "eth0".to_owned();
        let wanted_changes = [
            Change::Unmap { port: port(), dscp: 8 },
            Change::Map { port: port(), dscp: 16, queue: 3 },
            Change::Map { port: port(), dscp: 24, queue: 1 },
            Change::Weigh { port: port(), weights: vec![4, 2] },
        ];
        assert_eq!(diff(&is, &wanted), wanted_changes);
        assert!(diff(&wanted, &wanted).is_empty());
        let mut away = SwitchState::default();
        away.left_out.insert(port(), "somebody else's".to_owned());
        assert_eq!(diff(&away, &wanted), [], "nor ports that are left out");
        let nobody = SwitchState::default();
        assert_eq!(diff(&is, &nobody), [], "ports that are not named are left alone");
    }

    #[test]
    fn two_notations_of_one_state_do_not_differ() {
        let (is, wanted) = (state(&[4, 1, 0, 0], &[(8, 1)]), state(&[4, 1], &[(8, 1), (16, 0)]));
        assert_eq!(diff(&is, &wanted), []);
        assert_eq!(diff(&wanted, &is), []);
    }
}
