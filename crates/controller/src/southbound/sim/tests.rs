//! Tests that a simulated switch applies changes, and that it fails in the configured way.

use super::*;
use crate::southbound::diff;

fn switch(per_port: bool) -> SimSwitch {
    let can = Capabilities { map_per_port: per_port, ..Capabilities::new(8, 8) };
    let port =
        |name: &str| PortInfo { name: name.into(), rate: penstock_units::BitsPerSecond(1_000) };
    SimSwitch::new("leaf1", can, &[port("e0"), port("e1")])
}

fn stamp(generation: u64) -> Stamp {
    Stamp { epoch: 1, generation }
}

fn changes() -> Vec<Change> {
    let map = |port: &str| Change::Map { port: port.into(), dscp: 8, queue: 1 };
    vec![map("e0"), map("e1"), Change::Weigh { port: "e0".into(), weights: vec![3, 1, 0] }]
}

#[tokio::test]
async fn changes_are_applied_and_read_back_and_are_idempotent() {
    let switch = switch(true);
    let before = switch.read_back().await.expect("answers");
    assert_eq!(before.ports.len(), 2, "its ports are there before anything is told");
    switch.apply(stamp(1), &changes()).await.expect("does");
    let after = switch.read_back().await.expect("answers");
    assert_eq!((after.stamp, after.clone()), (stamp(1), switch.truth()));
    assert_eq!(after.ports["e0"], PortState { weights: vec![3, 1], map: [(8, 1)].into() });
    switch.apply(stamp(1), &changes()).await.expect("does");
    assert_eq!(switch.truth(), after);
    assert_eq!(diff(&after, &after), []);
    assert_eq!(switch.words(&changes()).await.expect("answers")[2], "set weights of e0: 3 1 0");
}

#[tokio::test]
async fn a_late_change_is_refused_as_a_whole() {
    let switch = switch(true);
    switch.apply(stamp(2), &[]).await.expect("does");
    let told = stamp(1);
    let fenced = DriverError::Fenced { switch: "leaf1".into(), has: stamp(2), told };
    assert_eq!(switch.apply(told, &changes()).await, Err(fenced));
    assert!(switch.truth().ports.values().all(|port| *port == PortState::default()));
}

#[tokio::test]
async fn a_refusal_half_way_leaves_the_stamp() {
    let switch = switch(true);
    switch.set_faults(Faults { refuses_after: Some(1), ..Faults::default() });
    let error = switch.apply(stamp(1), &changes()).await.expect_err("refuses");
    assert!(matches!(error, DriverError::Refused { .. }), "{error}");
    let half = switch.truth();
    assert_eq!((half.stamp, half.ports["e0"].map.len()), (Stamp::default(), 1));
    assert!(half.ports["e1"].map.is_empty());
    switch.set_faults(Faults::default());
    switch.apply(stamp(1), &changes()).await.expect("asking again is safe");
    assert_eq!(switch.truth().ports["e1"].map, [(8, 1)].into());
}

#[tokio::test]
async fn a_read_back_shows_an_ignored_change_but_not_a_lie() {
    for (faults, seen) in [
        (Faults { ignores: true, ..Faults::default() }, true),
        (Faults { lies: true, ..Faults::default() }, false),
    ] {
        let (good, bad) = (switch(true), switch(true));
        bad.set_faults(faults);
        good.apply(stamp(1), &changes()).await.expect("does");
        bad.apply(stamp(1), &changes()).await.expect("says yes");
        let wanted = good.truth();
        assert!(!diff(&bad.truth(), &wanted).is_empty(), "it did nothing");
        let says = bad.read_back().await.expect("answers");
        assert_eq!(!diff(&says, &wanted).is_empty(), seen);
    }
}

#[tokio::test]
async fn a_restart_forgets() {
    let switch = switch(true);
    switch.apply(stamp(5), &changes()).await.expect("does");
    let port = "e0".into();
    let more = QueueCounters { port, queue: 1, packets: 2, bytes: 3, dropped: 4, waiting: None };
    switch.count(&more);
    switch.count(&more);
    assert_eq!(switch.counters().await.expect("answers")[0].bytes, 6);
    switch.restart();
    assert_eq!(switch.truth().stamp, Stamp::default());
    assert!(switch.read_back().await.expect("answers").ports["e0"].map.is_empty());
    assert_eq!(switch.counters().await, Ok(vec![]));
    switch.apply(stamp(1), &changes()).await.expect("it knows no later one");
}

#[tokio::test(start_paused = true)]
async fn a_slow_one_can_go_while_it_is_asked() {
    let switch = switch(true);
    let slow = Duration::from_secs(3);
    switch.set_faults(Faults { slow, ..Faults::default() });
    let begun = tokio::time::Instant::now();
    let (answer, ()) = tokio::join!(switch.read_back(), async {
        tokio::time::sleep(slow / 2).await;
        switch.set_faults(Faults { unreachable: true, ..Faults::default() });
    });
    assert!(matches!(answer, Err(DriverError::Unreachable { .. })));
    assert_eq!(begun.elapsed(), slow);
}

#[tokio::test]
async fn one_map_for_all_ports_is_changed_on_all_or_not_at_all() {
    let switch = switch(false);
    let error = switch.apply(stamp(1), &changes()[..1]).await.expect_err("two maps");
    assert!(error.to_string().contains("one map for all ports"), "{error}");
    assert!(switch.truth().ports["e0"].map.is_empty());
    switch.apply(stamp(1), &changes()).await.expect("the same on both");
}
