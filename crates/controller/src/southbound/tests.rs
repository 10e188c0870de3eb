//! Tests the checks that every driver makes before it changes a switch.

use std::collections::BTreeMap;

use penstock_units::BitsPerSecond;

use super::*;
use crate::Stamp;

/// Creates a simulated switch with sixteen ports, whose names are their numbers.
fn switch(can: Capabilities) -> SimSwitch {
    let port = |n: u8| PortInfo { name: n.to_string(), rate: BitsPerSecond(1_000) };
    SimSwitch::new("leaf1", can, &(0..16).map(port).collect::<Vec<_>>())
}

/// Returns the state of a simulated switch with `all` tenants. Tenant n uses only ports n and
/// n + 1, and has code point n + 1 in one of three queues.
fn tenants(all: u8) -> SwitchState {
    let ports = (0..16).map(|port: u8| (port.to_string(), PortState::default()));
    let mut wanted = SwitchState { ports: ports.collect(), ..SwitchState::default() };
    for tenant in 0..all {
        for port in [tenant, tenant + 1] {
            let port = wanted.ports.entry(port.to_string()).or_default();
            port.map.insert(tenant + 1, 1 + tenant % 3);
            port.weights = vec![1, 1, 1, 1];
        }
    }
    wanted
}

#[tokio::test]
async fn tenants_on_more_sets_of_ports_than_there_are_classes_share_the_classes_of_their_queues() {
    let switch = switch(Capabilities::new(4, 4));
    let wanted = tenants(12);
    let changes = survey(&switch, &wanted).await.expect("three classes are enough").changes;
    switch.apply(Stamp::default(), &changes).await.expect("four classes, the shared one included");
    assert_eq!(survey(&switch, &wanted).await.expect("answers").changes, [], "that was all");
    let truth = switch.truth();
    for (port, state) in &wanted.ports {
        let has = |(dscp, queue): (&u8, &u8)| truth.ports[port].map.get(dscp) == Some(queue);
        assert!(state.map.iter().all(has), "port {port}");
    }
    assert_eq!(truth.ports["0"].map[&12], 3, "a port without it says the same");

    // A code point that no tenant uses any more is removed from all ports.
    let fewer = tenants(11);
    let changes = survey(&switch, &fewer).await.expect("answers").changes;
    switch.apply(Stamp::default(), &changes).await.expect("possible");
    assert!(switch.truth().ports.values().all(|port| !port.map.contains_key(&12)));
}

#[tokio::test]
async fn a_switch_of_one_step_has_what_each_port_was_told_and_no_more() {
    let switch = switch(Capabilities::new(4, ONE_STEP));
    let wanted = tenants(12);
    let changes = survey(&switch, &wanted).await.expect("answers").changes;
    switch.apply(Stamp::default(), &changes).await.expect("possible");
    assert!(wanted.ports.iter().all(|(port, state)| switch.truth().ports[port] == *state));
}

#[tokio::test]
async fn a_switch_is_not_told_what_it_cannot_do() {
    let mut wanted = tenants(3);
    let limit_of = |switch: SimSwitch, wanted: SwitchState| async move {
        let error = survey(&switch, &wanted).await.expect_err("beyond it");
        assert!(matches!(error, DriverError::Beyond { .. }), "{error}");
        error.to_string()
    };
    let mut crossed = wanted.clone();
    for (port, queues) in [("0", [1, 2, 1]), ("1", [2, 1, 1])] {
        let map = (1..).zip(queues).collect();
        crossed.ports.insert(port.to_owned(), PortState { weights: vec![1; 3], map });
    }
    crossed.ports.retain(|port, _| ["0", "1"].contains(&port.as_str()));
    let text = limit_of(switch(Capabilities::new(4, 3)), crossed).await;
    assert!(text.contains("3 traffic classes") && text.contains("3 classes in all"), "{text}");
    let fixed =
        Capabilities { remap: false, fixed_map: [(1, 1)].into(), ..Capabilities::new(4, 8) };
    let text = limit_of(switch(fixed), wanted.clone()).await;
    assert!(text.contains("map cannot change"), "{text}");
    wanted.ports.get_mut("0").expect("there").weights = vec![101];
    let text = limit_of(switch(Capabilities::new(4, 8)), wanted).await;
    assert!(text.contains("weights from 1 to 100"), "{text}");
}

#[tokio::test]
async fn a_switch_with_fewer_queues_gets_a_state_without_the_others() {
    for (can, queues) in
        [(Capabilities::new(3, 8), 3), (Capabilities::new(4, 3), 3), (Capabilities::new(4, 8), 4)]
    {
        let switch = switch(can);
        let told = survey(&switch, &tenants(3)).await.expect("it has some of the queues");
        assert_eq!(told.queues, queues);
        switch.apply(Stamp::default(), &told.changes).await.expect("possible");
        let truth = switch.truth();
        // Code point n is in queue n.
        let mapped = (1..queues).map(|n| (n, n)).collect::<BTreeMap<u8, u8>>();
        assert_eq!(truth.ports["0"].map, mapped, "{queues} queues");
        assert_eq!(truth.ports["0"].weights.len(), usize::from(queues));
        let then = survey(&switch, &tenants(3)).await.expect("answers");
        assert_eq!(then.changes, [], "{queues} queues");
    }
}

#[tokio::test]
async fn a_port_that_is_left_out_is_told_and_needs_no_classes() {
    let switch = switch(Capabilities::new(4, 3));
    let foreign = [("1".to_owned(), "another configuration".to_owned())];
    switch.set_faults(Faults { foreign: foreign.clone().into(), ..Faults::default() });
    // Only port 1 needs a third class.
    let mut wanted = tenants(2);
    wanted.ports.get_mut("1").expect("there").map.insert(9, 3);
    let first = survey(&switch, &wanted).await.expect("the other ports are possible");
    assert_eq!(first.left_out, foreign.into());
    assert!(!first.changes.is_empty());
    assert!(first.changes.iter().all(|change| change.port() != "1"), "{first:?}");
    switch.apply(Stamp::default(), &first.changes).await.expect("possible");
    assert_eq!(survey(&switch, &wanted).await.expect("answers").changes, []);
}

#[test]
fn a_plan_may_use_as_many_queues_as_the_switch_can_tell_apart() {
    assert_eq!(usable_queues(&Capabilities::new(8, 8)), 8);
    assert_eq!(usable_queues(&Capabilities::new(8, 4)), 4, "each queue needs a class");
    assert_eq!(usable_queues(&Capabilities::new(8, ONE_STEP)), 8);
    let fixed = Capabilities {
        remap: false,
        fixed_map: [(1, 1), (2, 2)].into(),
        ..Capabilities::new(8, 8)
    };
    assert_eq!(usable_queues(&fixed), 3, "the shared queue and two of the map");
}

#[tokio::test]
async fn a_simulated_switch_refuses_a_class_too_many() {
    let switch = switch(Capabilities::new(4, 3));
    let map = |port: &str, dscp, queue| Change::Map { port: port.to_owned(), dscp, queue };
    let two = [map("0", 8, 1), map("1", 8, 1), map("0", 16, 2)];
    switch.apply(Stamp::default(), &two).await.expect("two classes besides the shared class");
    let error = switch.apply(Stamp::default(), &[map("1", 16, 1), map("1", 24, 2)]).await;
    let error = error.expect_err("three").to_string();
    assert!(error.contains("3 traffic classes besides the shared class"), "{error}");
    assert!(!switch.truth().ports["1"].map.contains_key(&24), "nothing was done");
}
