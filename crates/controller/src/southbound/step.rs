//! Applies a change to the state of a switch, with the checks that are common to all drivers.

use super::classes;
use super::driver::{Capabilities, Change, DriverError, PortState, SwitchState};

/// Largest code point. A code point has six bits (RFC 2474 §3).
const DSCP_MAX: u8 = 63;

/// Applies `change` to the state of a switch with the capabilities `can`. The ports of `state` keep
/// their canonical form ([`PortState::canonical`]).
///
/// # Errors
/// After an error, `state` is unchanged. Returns [`DriverError::Beyond`] in these cases:
///
/// - The port, queue or code point of the change does not exist.
/// - The code point is 0, which belongs to the shared queue.
/// - A weight is neither 0 nor in the switch's range of weights.
/// - The change differs from the switch's fixed map.
pub fn step(
    switch: &str,
    can: &Capabilities,
    state: &mut SwitchState,
    change: &Change,
) -> Result<(), DriverError> {
    let name = change.port();
    if let Some(why) = state.left_out.get(name) {
        return beyond(switch, format!("port {name}"), why.clone(), "or leave the port unchanged");
    }
    let Some(port) = state.ports.get_mut(name) else {
        let limit = format!("the driver configures {} ports, but not this port", state.ports.len());
        return beyond(switch, format!("port {name}"), limit, "name the port in the topology");
    };
    match change {
        Change::Weigh { weights, .. } => {
            check_weights(switch, can, name, weights)?;
            port.weights.clone_from(weights);
            port.weights.truncate(port.trimmed_weights().len());
        }
        Change::Map { dscp, queue, .. } => {
            check_map(switch, can, name, (*dscp, *queue))?;
            if *queue == 0 {
                port.map.remove(dscp);
            } else {
                port.map.insert(*dscp, *queue);
            }
        }
        Change::Unmap { dscp, .. } => {
            check_unmap(switch, can, name, *dscp)?;
            port.map.remove(dscp);
        }
    }
    Ok(())
}

fn beyond(switch: &str, what: String, limit: String, remedy: &str) -> Result<(), DriverError> {
    let (switch, remedy) = (switch.to_owned(), remedy.to_owned());
    Err(DriverError::Beyond { switch, what, limit, remedy })
}

/// Checks that the queues of a port can have the weights `weights`.
pub(super) fn check_weights(
    switch: &str,
    can: &Capabilities,
    port: &str,
    weights: &[u32],
) -> Result<(), DriverError> {
    if weights.len() > usize::from(can.queues) {
        let what = format!("a list of {} weights on port {port}", weights.len());
        return beyond(switch, what, format!("{} queues", can.queues), "use fewer queues");
    }
    let (low, high) = can.weights;
    if let Some(wrong) = weights.iter().find(|w| **w != 0 && !(low..=high).contains(*w)) {
        let what = format!("weight {wrong} on port {port}");
        let limit = format!("weights from {low} to {high}, or 0");
        return beyond(switch, what, limit, "scale the port's weights");
    }
    Ok(())
}

/// Checks that a port can map a code point to a queue.
pub(super) fn check_map(
    switch: &str,
    can: &Capabilities,
    port: &str,
    (dscp, queue): (u8, u8),
) -> Result<(), DriverError> {
    let what = || format!("mapping code point {dscp} to queue {queue} on port {port}");
    if dscp == 0 || dscp > DSCP_MAX {
        return beyond(switch, what(), "code points 1 to 63".to_owned(), "use another");
    }
    if queue >= can.queues {
        let limit = format!("queues 0 to {}", can.queues - 1);
        return beyond(switch, what(), limit, "use a lower queue");
    }
    if !can.remap && can.fixed_map.get(&dscp).copied().unwrap_or(0) != queue {
        let remedy = "bind each code point to its queue in this map";
        return beyond(switch, what(), fixed(can), remedy);
    }
    Ok(())
}

/// Checks that a port can remove a code point from its map.
pub(super) fn check_unmap(
    switch: &str,
    can: &Capabilities,
    port: &str,
    dscp: u8,
) -> Result<(), DriverError> {
    if !can.remap && can.fixed_map.get(&dscp).is_some_and(|queue| *queue != 0) {
        let what = format!("removing code point {dscp} from the map of port {port}");
        let remedy = "keep the code point in the map, but let no host use the code point";
        return beyond(switch, what, fixed(can), remedy);
    }
    Ok(())
}

fn fixed(can: &Capabilities) -> String {
    let pairs: Vec<String> = can.fixed_map.iter().map(|(d, q)| format!("{d} in {q}")).collect();
    format!("the switch's DSCP map cannot change: {}", pairs.join(", "))
}

/// Checks that the switch can implement the maps of all ports together.
///
/// # Errors
/// Returns [`DriverError::Beyond`] if two maps differ but the switch has a single map for all
/// ports. Also returns [`DriverError::Beyond`] if the maps need more classes than the switch has.
pub fn agree(switch: &str, can: &Capabilities, state: &SwitchState) -> Result<(), DriverError> {
    let needed = classes::needed(state.ports.values());
    if can.remap && needed >= usize::from(can.classes) {
        return Err(DriverError::Beyond {
            switch: switch.to_owned(),
            what: format!("the use of {needed} traffic classes besides the shared class"),
            limit: format!("{} classes in all", can.classes),
            remedy: "bind each tenant to the same queue on all ports of the switch".to_owned(),
        });
    }
    let mut ports = state.ports.iter();
    let Some((first, PortState { map, .. })) = ports.next() else { return Ok(()) };
    match ports.find(|(_, port)| port.map != *map) {
        Some((other, _)) if !can.map_per_port => Err(DriverError::Beyond {
            switch: switch.to_owned(),
            what: format!(
                "a code-point map on port {other} that differs from the map of port {first}"
            ),
            limit: "the switch has one map for all ports".to_owned(),
            remedy: "bind each tenant to the same queue on all ports of the switch".to_owned(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAN: Capabilities = Capabilities::new(8, 8);

    fn one_port() -> SwitchState {
        SwitchState { ports: [("e0".to_owned(), PortState::default())].into(), ..<_>::default() }
    }

    fn map(port: &str, dscp: u8, queue: u8) -> Change {
        Change::Map { port: port.to_owned(), dscp, queue }
    }

    #[test]
    fn each_limit_is_named_and_nothing_changes() {
        let weigh = |weights: &[u32]| Change::Weigh { port: "e0".into(), weights: weights.into() };
        let wrong = [
            (map("e1", 8, 1), "port e1"),
            (map("e0", 0, 1), "code points 1 to 63"),
            (map("e0", 64, 1), "code points 1 to 63"),
            (map("e0", 8, 8), "queues 0 to 7"),
            (weigh(&[1; 9]), "8 queues"),
            (weigh(&[101]), "weights from 1 to 100, or 0"),
        ];
        for (change, limit) in wrong {
            let mut state = one_port();
            let error = step("leaf1", &CAN, &mut state, &change).expect_err("beyond it");
            let text = error.to_string();
            assert!(text.starts_with("switch leaf1: ") && text.contains(limit), "{text}");
            assert_eq!(state, one_port());
        }
    }

    #[test]
    fn a_fixed_map_takes_what_agrees_with_it_and_nothing_else() {
        let can = Capabilities { remap: false, fixed_map: [(8, 1)].into(), ..CAN };
        let mut state = one_port();
        assert!(step("s", &can, &mut state, &map("e0", 8, 1)).is_ok());
        assert!(step("s", &can, &mut state, &map("e0", 8, 2)).is_err());
        assert!(step("s", &can, &mut state, &map("e0", 16, 1)).is_err());
        let unmap = |dscp| Change::Unmap { port: "e0".to_owned(), dscp };
        assert!(step("s", &can, &mut state, &unmap(8)).is_err());
        assert!(step("s", &can, &mut state, &unmap(16)).is_ok(), "it is not mapped anyway");
        assert_eq!(state.ports["e0"].map, [(8, 1)].into());
    }

    #[test]
    fn one_map_for_all_ports_means_that() {
        let mut state = one_port();
        state.ports.insert("e1".to_owned(), PortState::default());
        step("s", &CAN, &mut state, &map("e1", 8, 1)).expect("possible");
        assert!(agree("s", &CAN, &state).is_ok());
        let one_map = Capabilities { map_per_port: false, ..CAN };
        let error = agree("s", &one_map, &state).expect_err("two maps");
        assert!(error.to_string().contains("port e1"), "{error}");
    }
}
