//! Tests tenants that arrive, grow and move, and hosts and switches that refuse a change.
//!
//! - No host marks a tenant's packets for another tenant's queue.
//! - When a tenant arrives, ports get their new queue weights before hosts get a plan with the
//!   tenant.
//! - If a host or switch refuses a change, no other host or switch waits for the refusing element.

use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_controller::intent::Mode as ControlMode;
use penstock_controller::leader::Leader;
use penstock_controller::southbound::Faults;
use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::Mode;
use penstock_testing::temp_dir;

use crate::world::{World, interval, store, tenant, within};

const MODES: [Mode; 3] = [Mode::StaticMap, Mode::PerPortMap, Mode::PerEgressMap];

fn marks(world: &World, tenant: &str) -> BTreeSet<u8> {
    world.marks().remove(tenant).unwrap_or_default()
}

fn shares_queue_0(world: &World, tenant: &str) -> bool {
    marks(world, tenant) == BTreeSet::from([0])
}

#[tokio::test]
async fn a_new_tenant_is_not_marked_as_one_was_that_is_gone() {
    for mode in MODES {
        for same_place in [true, false] {
            let folder = temp_dir();
            let world = World::new(mode);
            let (mut leader, _) = world.leader(store(&folder).await, "one").await;
            leader.add(tenant("old", 10, 10)).await.unwrap();
            interval(&mut leader, &[("old", 9)]).await;
            assert!(!shares_queue_0(&world, "old"));
            leader.remove("old").await.unwrap();
            let vms = if same_place { 10 } else { 4 };
            leader.add(tenant("new", vms, 10)).await.unwrap();
            assert!(shares_queue_0(&world, "new"), "{mode:?}: {:?}", marks(&world, "new"));
            let slot = leader.fabric().slot("new").unwrap();
            assert_eq!(leader.fabric().dscp(slot), 0);
            interval(&mut leader, &[("new", 9)]).await;
            assert!(!shares_queue_0(&world, "new"), "{mode:?}: it gets queues of its own");
            let promoted = leader.events().iter().filter(|e| e.kind == "promoted");
            let who: Vec<_> = promoted.map(|event| event.subject.clone()).collect();
            assert_eq!(who, ["old", "new"], "{mode:?}");
        }
    }
}

#[tokio::test]
async fn a_tenant_that_grows_or_moves_shares_queue_0_until_its_new_ports_are_ready() {
    for mode in MODES {
        let folder = temp_dir();
        let world = World::new(mode);
        let (mut leader, _) = world.leader(store(&folder).await, "one").await;
        leader.add(tenant("a", 3, 10)).await.unwrap();
        leader.add(tenant("b", 8, 10)).await.unwrap();
        interval(&mut leader, &[("a", 9), ("b", 9)]).await;
        assert!(!shares_queue_0(&world, "a") && !shares_queue_0(&world, "b"));
        leader.grow("a", 0, 7, true).await.unwrap();
        let grown = leader.events().iter().find(|event| event.kind == "grown").unwrap();
        assert_eq!(
            grown.text,
            "7 more VMs; no other VM moved, but the tenant's tree has a new root"
        );
        assert!(shares_queue_0(&world, "a"), "{mode:?}: {:?}", marks(&world, "a"));
        assert!(!shares_queue_0(&world, "b"), "{mode:?}: it has not moved");
        interval(&mut leader, &[("a", 9), ("b", 9)]).await;
        assert!(!shares_queue_0(&world, "a"), "{mode:?}");

        let b = leader.fabric().slot("b").unwrap();
        let server = leader.fabric().servers_of(b).next().unwrap();
        let server = leader.fabric().topology().name(server).to_string();
        leader.remove("a").await.unwrap();
        let moves = leader.set_service(&server, Service::Drained).await.unwrap();
        assert!(moves.iter().any(|moved| moved.tenant == b && moved.outcome.is_ok()));
        let told = leader.events().iter().find(|event| event.kind == "service").unwrap();
        assert_eq!((told.subject.as_str(), told.text.as_str()), (server.as_str(), "drained"));
        assert!(shares_queue_0(&world, "b"), "{mode:?}: {:?}", marks(&world, "b"));
        interval(&mut leader, &[("b", 9)]).await;
        assert!(!shares_queue_0(&world, "b"), "{mode:?}");
    }
}

#[tokio::test]
async fn a_successor_marks_nobody_by_queues_of_where_it_was_before() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let store = store(&folder).await;
    let (mut leader, lease) = world.leader(Arc::clone(&store), "one").await;
    leader.add(tenant("a", 3, 10)).await.unwrap();
    interval(&mut leader, &[("a", 9)]).await;
    leader.grow("a", 0, 7, true).await.unwrap();
    store.revoke(lease).await.unwrap();
    let (mut leader, _) = world.leader(Arc::clone(&store), "two").await;
    assert!(shares_queue_0(&world, "a"), "{:?}", marks(&world, "a"));
    interval(&mut leader, &[("a", 9)]).await;
    assert!(!shares_queue_0(&world, "a"));
}

/// Returns the queue weights of rack-0's port to each of the tenant's servers, from queue 0 on.
fn all_weights(leader: &Leader, world: &World, tenant: &str) -> Vec<(String, Vec<u32>)> {
    let slot = leader.fabric().slot(tenant).unwrap();
    let name = |server| leader.fabric().topology().name(server).to_string();
    let ports = world.switches["rack-0"].truth().ports;
    let weights = |server: String| (server.clone(), ports[&server].weights.clone());
    leader.fabric().servers_of(slot).map(name).map(weights).collect()
}

#[tokio::test]
async fn a_placed_tenant_has_its_share_of_each_port_before_its_hosts_know() {
    let folder = temp_dir();
    let world = World::new(Mode::StaticMap);
    let store = store(&folder).await;
    let (mut leader, lease) = world.leader(Arc::clone(&store), "one").await;
    leader.add(within("a", "rack-0", 5, 50)).await.unwrap();
    interval(&mut leader, &[("a", 50)]).await;
    let part = |weights: &[u32]| f64::from(weights[0]) / f64::from(weights.iter().sum::<u32>());
    // This tenant is in queue 0 and has 40 % of the links of its servers.
    leader.add(within("b", "rack-0", 4, 400)).await.unwrap();
    let placed = all_weights(&leader, &world, "b");
    assert!(placed.iter().all(|(_, weights)| part(weights) >= 0.4), "{placed:?}");
    for (server, _) in &placed {
        let up = world.hosts.plans.lock().unwrap()[server].uplinks["rack-0"].clone();
        assert!(part(&up.weights) >= 0.4, "{server}: {up:?}");
    }

    store.revoke(lease).await.unwrap();
    let (mut leader, _) = world.leader(Arc::clone(&store), "two").await;
    assert_eq!(all_weights(&leader, &world, "b"), placed, "a takeover changes no weights");
    leader.set_mode(ControlMode::Hold).await.unwrap();
    interval(&mut leader, &[]).await;
    assert_eq!(all_weights(&leader, &world, "b"), placed, "nor does the next interval");
    // A tenant that moves takes its reservation with it.
    let moves = leader.set_service(&placed[0].0, Service::Drained).await.unwrap();
    assert!(moves.iter().any(|moved| moved.outcome.is_ok()), "{moves:?}");
    let moved = all_weights(&leader, &world, "b");
    assert!(moved.iter().all(|(server, _)| *server != placed[0].0), "{moved:?}");
    assert!(moved.iter().all(|(_, weights)| part(weights) >= 0.4), "{moved:?}");
}

#[tokio::test]
async fn a_switch_that_refuses_stops_nobody_whose_way_is_another() {
    for fault in [
        Faults { refuses_after: Some(0), ..Faults::default() },
        Faults { refuses_after: Some(1), ..Faults::default() },
        Faults { ignores: true, ..Faults::default() },
    ] {
        let folder = temp_dir();
        let world = World::new(Mode::PerPortMap);
        let (mut leader, _) = world.leader(store(&folder).await, "one").await;
        for (name, rack) in [("a", "rack-0"), ("b", "rack-1")] {
            leader.add(within(name, rack, 5, 10)).await.unwrap();
        }
        world.fault("rack-1", fault.clone());
        interval(&mut leader, &[("a", 9), ("b", 9)]).await;
        assert!(!shares_queue_0(&world, "a"), "{fault:?}: the other rack's switch follows");
        assert!(shares_queue_0(&world, "b"), "{fault:?}");
        for _ in 0..40 {
            interval(&mut leader, &[("a", 9), ("b", 9)]).await;
        }
        let told = |event: &&penstock_controller::events::Event| {
            event.subject == "rack-1" && event.kind != "mended"
        };
        let events: Vec<_> = leader.events().iter().filter(told).cloned().collect();
        assert_eq!(events.len(), 1, "{fault:?}: once, not each interval: {events:#?}");
        let tried = leader.totals().taken_back;
        assert!((2..=8).contains(&tried), "{fault:?}: tried again at growing pauses: {tried}");

        world.fault("rack-1", Faults::default());
        for _ in 0..40 {
            interval(&mut leader, &[("a", 9), ("b", 9)]).await;
        }
        assert!(!shares_queue_0(&world, "b"), "{fault:?}: it follows again");
        assert!(leader.crew().out_of_date().is_empty());
    }
}

#[tokio::test]
async fn an_interval_that_changes_nobodys_queues_writes_nothing() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let store = store(&folder).await;
    let (mut leader, _) = world.leader(Arc::clone(&store), "one").await;
    for name in ["a", "b", "c"] {
        leader.add(tenant(name, 10, 10)).await.unwrap();
    }
    leader.add(tenant("d", 10, 60)).await.unwrap();
    let busy = [("a", 9), ("b", 8), ("c", 7), ("d", 1)];
    interval(&mut leader, &busy).await;
    // Tenant d shares queue 0. Its removal changes weights but no queues.
    leader.remove("d").await.unwrap();
    let before = store.list("").await.unwrap();
    interval(&mut leader, &busy).await;
    assert!(leader.last().steps > 0, "{:?}", leader.last());
    assert_eq!(store.list("").await.unwrap(), before);
}

#[tokio::test]
async fn a_switch_that_is_away_is_told_of_once_and_mended_when_it_is_back() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let (mut leader, _) = world.leader(store(&folder).await, "one").await;
    for (name, rack) in [("a", "rack-0"), ("b", "rack-1")] {
        leader.add(within(name, rack, 5, 10)).await.unwrap();
    }
    world.fault("rack-1", Faults { unreachable: true, ..Faults::default() });
    for _ in 0..10 {
        interval(&mut leader, &[("a", 9), ("b", 9)]).await;
    }
    assert!(!shares_queue_0(&world, "a"));
    let told = leader.events().iter().filter(|e| e.subject == "rack-1" && e.kind != "mended");
    let events: Vec<_> = told.collect();
    assert_eq!(events.len(), 1, "once: {events:#?}");
    world.fault("rack-1", Faults::default());
    interval(&mut leader, &[("a", 9), ("b", 9)]).await;
    assert!(!shares_queue_0(&world, "b"), "at once: nobody waits for who does not refuse");
    world.fault("rack-1", Faults { unreachable: true, ..Faults::default() });
    interval(&mut leader, &[("a", 9), ("b", 9)]).await;
    let events = leader.events().iter().filter(|e| e.subject == "rack-1" && e.kind == "drift");
    assert_eq!(events.count(), 2, "and the next time it is news again");
}
