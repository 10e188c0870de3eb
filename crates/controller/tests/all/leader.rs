//! Tests a leader with simulated switches and hosts, some of which fail. At every moment, each port
//! must map the code points with which hosts mark packets. A successor of the leader must continue
//! from the stored state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use penstock_controller::fabric_state::Used;
use penstock_controller::intent::{LEADER, Mode as ControlMode};
use penstock_controller::leader::{Leader, LeaderError, Settings};
use penstock_controller::southbound::Faults;
use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::Mode;
use penstock_testing::{TempDir, temp_dir};
use penstock_units::BitsPerSecond;
use proptest::prelude::*;

use crate::world::{World, fabric, five, interval, store, tenant, usage, within};

fn has_queue(world: &World) -> Vec<String> {
    let marked = |(name, marks): (String, BTreeSet<u8>)| {
        assert_eq!(marks.len(), 1, "{name}: all of its hosts mark alike");
        (!marks.contains(&0)).then_some(name)
    };
    world.marks().into_iter().filter_map(marked).collect()
}

const BUSY: [(&str, u64); 5] = [("a", 9), ("b", 8), ("c", 7), ("d", 2), ("e", 1)];

#[tokio::test]
async fn queues_follow_use_and_every_packet_stays_mapped() {
    for mode in [Mode::StaticMap, Mode::PerPortMap, Mode::PerEgressMap] {
        let folder = temp_dir();
        let world = World::new(mode);
        let (mut leader, _) = five(&world, &store(&folder).await).await;
        interval(&mut leader, &BUSY).await;
        assert_eq!(has_queue(&world), ["a", "b", "c"]);
        // In each interval, a score moves half of the way to the usage.
        for _ in 0..6 {
            interval(&mut leader, &[("a", 9), ("b", 0), ("c", 0), ("d", 9), ("e", 8)]).await;
        }
        assert_eq!(has_queue(&world), ["a", "d", "e"]);
        leader.remove("d").await.unwrap();
        interval(&mut leader, &[("a", 9), ("b", 0), ("c", 5), ("e", 8)]).await;
        assert_eq!(has_queue(&world), ["a", "c", "e"]);
        assert!(*world.auditor.audits.lock().unwrap() > 50);
    }
}

#[tokio::test]
async fn a_connected_host_without_reports_keeps_scores_up_for_some_intervals_only() {
    let folder = temp_dir();
    let world = World::new(Mode::StaticMap);
    let (mut leader, _) = world.leader(store(&folder).await, "one").await;
    leader.add(tenant("a", 10, 10)).await.unwrap();
    interval(&mut leader, &[("a", 9)]).await;
    let slot = leader.fabric().slot("a").unwrap();
    let busy = leader.fabric().score(slot);
    let mut idle = usage(leader.fabric(), &[]);
    let silent = leader.fabric().topology().find("server-3").unwrap();
    assert!(idle.remove(&silent).is_some());
    // Returns the score, and the number of events about silent hosts.
    let seen = |leader: &Leader| {
        let events = leader.events().iter().filter(|event| event.kind == "silent-host");
        (leader.fabric().score(slot), events.count())
    };
    for is_away in [true, false] {
        if is_away {
            world.hosts.away.lock().unwrap().insert("server-3".to_owned());
        } else {
            world.hosts.away.lock().unwrap().clear();
        }
        for _ in 0..14 {
            leader.interval(&idle).await.unwrap();
        }
        assert_eq!(seen(&leader), (busy, 0), "away: {is_away}");
    }
    leader.interval(&idle).await.unwrap();
    assert_eq!(seen(&leader), (busy / 2, 1));
    leader.interval(&idle).await.unwrap();
    assert_eq!(seen(&leader), (busy / 4, 1));
    interval(&mut leader, &[]).await;
    assert_eq!(seen(&leader), (busy / 8, 2), "the host reports again");
}

#[tokio::test]
async fn lasting_traffic_of_tenants_that_were_not_placed_is_reported_once() {
    let folder = temp_dir();
    let world = World::new(Mode::StaticMap);
    let (mut leader, _) = world.leader(store(&folder).await, "one").await;
    leader.add(within("a", "rack-0", 2, 10)).await.unwrap();
    let slot = leader.fabric().slot("a").unwrap();
    let here = leader.fabric().servers_of(slot).next().unwrap();
    let elsewhere = leader.fabric().topology().find("server-9").unwrap();
    let used = |tenant: &str, rate| {
        let (sent, received) = (BitsPerSecond(rate), BitsPerSecond(0));
        Used { tenant: tenant.to_owned(), sent, received }
    };
    let mut usage = usage(leader.fabric(), &[("a", 9)]);
    usage.get_mut(&here).unwrap().push(used("idle", 0));
    usage.insert(elsewhere, vec![used("a", 8), used("unknown", 8)]);
    let told = |leader: &Leader| {
        let events = leader.events().iter().filter(|event| event.kind == "unplaced");
        events.map(|event| (event.subject.clone(), event.text.clone())).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        leader.interval(&usage).await.unwrap();
    }
    assert!(told(&leader).is_empty(), "{:?}", told(&leader));
    let unheard = usage.remove(&elsewhere).unwrap();
    leader.interval(&usage).await.unwrap();
    usage.insert(elsewhere, unheard);
    for _ in 0..3 {
        leader.interval(&usage).await.unwrap();
    }
    let (subject, text) = told(&leader).pop().unwrap();
    assert_eq!((told(&leader).len(), subject.as_str()), (1, "server-9"), "{text}");
    assert!(text.contains("share queue 0 without a limit: \"a\"; \"unknown\"; add"), "{text}");
    usage.insert(elsewhere, Vec::new());
    leader.interval(&usage).await.unwrap();
    assert_eq!(told(&leader).len(), 2, "{:?}", told(&leader));
}

#[tokio::test]
async fn intervals_are_added_up_and_the_last_of_them_are_kept() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let (mut leader, _) = five(&world, &store(&folder).await).await;
    interval(&mut leader, &BUSY).await;
    world.fault("rack-1", Faults { refuses_after: Some(0), ..Faults::default() });
    interval(&mut leader, &[("d", 9), ("e", 9)]).await;
    world.fault("rack-1", Faults::default());
    interval(&mut leader, &[("d", 9), ("e", 9)]).await;
    let totals = leader.totals();
    assert_eq!((totals.intervals, totals.taken_back), (3, 1), "{totals:?}");
    assert!(totals.promoted >= 3 && totals.failed >= 1 && totals.took >= totals.decided_in);
    leader.remove("b").await.unwrap();
    let all = leader.samples().view("", 1_000).unwrap();
    assert_eq!(all["times"].as_array().unwrap().len(), 3);
    let a = &all["tenants"]["a"];
    // Ten servers send 9 Mbit/s each, then nothing. The tenant's queue stays while the plan is
    // rolled back.
    assert_eq!(a["sent"], serde_json::json!([90_000_000, 0, 0]));
    assert!(a["dscp"][0] != 0 && a["dscp"][1] == a["dscp"][0], "{a}");
    interval(&mut leader, &BUSY).await;
    assert_eq!(leader.samples().view("b", 1_000), None);
}

#[tokio::test]
async fn a_switch_that_fails_in_the_middle_changes_nothing_for_anybody() {
    let folder = temp_dir();
    for fault in [
        Faults { refuses_after: Some(0), ..Faults::default() },
        Faults { unreachable: true, ..Faults::default() },
        Faults { ignores: true, ..Faults::default() },
    ] {
        let _ = std::fs::remove_file(folder.join("controller.redb"));
        let world = World::new(Mode::PerPortMap);
        let (mut leader, _) = five(&world, &store(&folder).await).await;
        interval(&mut leader, &BUSY).await;
        let before = has_queue(&world);
        world.fault("rack-1", fault.clone());
        for _ in 0..4 {
            interval(&mut leader, &[("d", 9), ("e", 9)]).await;
            assert_eq!(has_queue(&world), before, "{fault:?}");
        }
        let told = leader.events().iter().filter(|event| event.subject == "rack-1").count();
        assert!(told > 0, "{fault:?} is told of");
        world.fault("rack-1", Faults::default());
        for _ in 0..4 {
            interval(&mut leader, &[("d", 9), ("e", 9)]).await;
        }
        let now = has_queue(&world);
        assert!(now.contains(&"d".to_owned()) && now.contains(&"e".to_owned()), "{now:?}");
        drop(leader);
    }
}

#[tokio::test]
async fn a_host_that_is_away_keeps_its_tenants_queues_and_is_told_when_it_comes_back() {
    let folder = temp_dir();
    let world = World::new(Mode::StaticMap);
    let (mut leader, _) = five(&world, &store(&folder).await).await;
    // While server-3 is unreachable, no tenant with a VM there gets or loses a queue.
    interval(&mut leader, &BUSY).await;
    let before = has_queue(&world);
    world.hosts.away.lock().unwrap().insert("server-3".into());
    for _ in 0..3 {
        interval(&mut leader, &[("d", 9), ("e", 9)]).await;
    }
    assert_eq!(has_queue(&world), before, "all of them have a VM there");
    leader.remove("c").await.unwrap();
    assert_eq!(world.mark("server-3", "c"), Some(3), "nobody could tell it");
    world.hosts.away.lock().unwrap().clear();
    leader.host_came("server-3");
    leader.catch_up().await;
    assert_eq!(world.mark("server-3", "c"), None);
    interval(&mut leader, &[("d", 9), ("e", 9)]).await;
    assert!(has_queue(&world).contains(&"d".to_owned()));
}

#[tokio::test]
async fn a_host_that_fails_or_lies_holds_up_nobody_else() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let (mut leader, _) = world.leader(store(&folder).await, "one").await;
    for name in ["a", "b", "c", "d"] {
        leader.add(within(name, "rack-0", 5, 10)).await.unwrap();
    }
    leader.add(within("bad", "rack-1", 5, 10)).await.unwrap();
    interval(&mut leader, &[("a", 9), ("b", 8), ("c", 7), ("d", 1)]).await;
    leader.remove("bad").await.unwrap();
    interval(&mut leader, &[("a", 9), ("b", 8), ("c", 7), ("d", 1)]).await;
    leader.add(within("bad", "rack-1", 5, 10)).await.unwrap();
    world.hosts.fails.lock().unwrap().insert("server-7".into());
    for _ in 0..6 {
        interval(&mut leader, &[("a", 9), ("b", 8), ("d", 9), ("bad", 9)]).await;
    }
    assert!(has_queue(&world).contains(&"d".to_owned()), "{:?}", has_queue(&world));
    // A switch claims that another controller leads, but the store denies it.
    world.hosts.fails.lock().unwrap().clear();
    let later = penstock_controller::Stamp { epoch: u64::MAX, generation: 1 };
    world.hosts.plans.lock().unwrap().get_mut("server-7").unwrap().stamp = later;
    for _ in 0..6 {
        interval(&mut leader, &[("a", 9), ("b", 8), ("c", 9), ("bad", 9)]).await;
    }
    assert!(has_queue(&world).contains(&"c".to_owned()), "{:?}", has_queue(&world));
}

#[tokio::test]
async fn a_switch_that_lost_everything_is_mended() {
    let folder = temp_dir();
    let world = World::new(Mode::PerEgressMap);
    let (mut leader, _) = five(&world, &store(&folder).await).await;
    interval(&mut leader, &BUSY).await;
    let was = world.switches["core-0"].truth().ports;
    world.switches["core-0"].restart();
    assert_ne!(world.switches["core-0"].truth().ports, was);
    interval(&mut leader, &BUSY).await;
    assert_eq!(world.switches["core-0"].truth().ports, was);
    assert!(leader.events().iter().any(|event| event.kind == "drift"));
}

#[tokio::test]
async fn a_successor_goes_on_and_a_deposed_leader_can_do_nothing() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let store = store(&folder).await;
    let (mut old, lease) = five(&world, &store).await;
    interval(&mut old, &BUSY).await;
    let (before, marks) = (old.stamp(), has_queue(&world));
    let switches: Vec<_> = world.switches.values().map(|switch| switch.truth().ports).collect();
    store.revoke(lease).await.unwrap();
    let (mut new, _) = world.leader(Arc::clone(&store), "two").await;
    assert!(new.stamp().epoch > before.epoch);
    assert_eq!(has_queue(&world), marks);
    interval(&mut new, &BUSY).await;
    let same: Vec<_> = world.switches.values().map(|switch| switch.truth().ports).collect();
    assert_eq!(same, switches, "a change of leaders changes nothing else");
    // The old leader believes that it still leads.
    let used = usage(old.fabric(), &[("d", 9), ("e", 9)]);
    assert_eq!(old.interval(&used).await, Err(LeaderError::Deposed));
    assert_eq!(old.add(tenant("f", 2, 1)).await, Err(LeaderError::Deposed));
    assert_eq!(old.remove("a").await, Err(LeaderError::Deposed));
    assert!(store.get("penstock/tenants/a").await.unwrap().is_some());
    assert!(store.get("penstock/tenants/f").await.unwrap().is_none());
    assert_eq!(has_queue(&world), marks);
}

#[tokio::test]
async fn a_restart_finds_tenants_places_and_queues() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let (mut leader, lease) = {
        let store = store(&folder).await;
        five(&world, &store).await
    };
    interval(&mut leader, &BUSY).await;
    leader.set_service("server-9", Service::Drained).await.unwrap();
    let _ = lease;
    let tenants: Vec<_> =
        leader.fabric().tenants().map(|(_, slot, _)| leader.fabric().record(slot)).collect();
    let marks = has_queue(&world);
    drop(leader);
    let (leader, _) = world.leader(store(&folder).await, "one").await;
    let again: Vec<_> =
        leader.fabric().tenants().map(|(_, slot, _)| leader.fabric().record(slot)).collect();
    let places = |all: &[penstock_controller::intent::TenantRecord]| {
        all.iter().map(|r| (r.spec.name.clone(), r.placement.shares.clone())).collect::<Vec<_>>()
    };
    assert_eq!(places(&again), places(&tenants));
    assert_eq!(has_queue(&world), marks);
    let drained = leader.fabric().topology().find("server-9").unwrap();
    let service = leader.fabric().datacenter().ledger().service(drained);
    assert_eq!(service, Service::Drained);
}

#[tokio::test]
async fn tenants_stay_on_nodes_that_the_file_takes_out_of_service() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let store = store(&folder).await;
    let (mut old, lease) = five(&world, &store).await;
    interval(&mut old, &BUSY).await;
    let marks = has_queue(&world);
    store.revoke(lease).await.unwrap();
    let lease = store.lease(Duration::from_secs(10)).await.unwrap();
    let leadership = store.campaign(LEADER, "two", lease).await.unwrap();
    let mut file = fabric(world.mode, 2);
    for node in ["server-9", "rack-0"] {
        file.set_service(node, Service::Drained, false).unwrap();
    }
    let settings = Settings::default();
    let new = Leader::take_over(file, world.crew(), store, leadership, settings).await.unwrap();
    let names: Vec<&str> = new.fabric().tenants().map(|(name, ..)| name).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    assert_eq!(has_queue(&world), marks);
    let ledger = new.fabric().datacenter().ledger();
    let drained = new.fabric().topology().find("server-9").unwrap();
    assert_eq!(ledger.service(drained), Service::Drained);
}

#[tokio::test]
async fn observing_changes_nothing_and_reverting_brings_back() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let (mut leader, _) = five(&world, &store(&folder).await).await;
    assert_eq!(leader.revert().await.unwrap_err(), LeaderError::NoHistory);
    interval(&mut leader, &BUSY).await;
    leader.set_mode(ControlMode::Observe).await.unwrap();
    let changed = |world: &World| world.switches.values().map(|s| s.applied()).sum::<u64>();
    let before = changed(&world);
    for _ in 0..3 {
        interval(&mut leader, &[("d", 9), ("e", 9)]).await;
    }
    assert_eq!((changed(&world), has_queue(&world).join("")), (before, "abc".to_owned()));
    let events = leader.events();
    let would = events.iter().find(|event| event.kind == "would-promote").unwrap();
    assert!(would.text.starts_with("the tenant would have its own queues"), "{}", would.text);
    leader.set_mode(ControlMode::Active).await.unwrap();
    for _ in 0..3 {
        interval(&mut leader, &[("d", 9), ("e", 9)]).await;
    }
    let after = has_queue(&world);
    assert!(after.contains(&"d".to_owned()), "{after:?}");
    leader.revert().await.unwrap();
    assert_eq!(has_queue(&world).join(""), "abc");
    assert_eq!(leader.mode(), ControlMode::Hold);
    for _ in 0..3 {
        interval(&mut leader, &[("d", 9), ("e", 9)]).await;
    }
    assert_eq!(has_queue(&world).join(""), "abc", "held");
}

#[tokio::test]
async fn a_tenant_without_a_place_is_refused_with_what_would_fit() {
    let folder = temp_dir();
    let world = World::new(Mode::StaticMap);
    let (mut leader, _) = world.leader(store(&folder).await, "one").await;
    let refused = leader.add(tenant("big", 10, 300)).await.unwrap_err().to_string();
    assert!(
        refused.contains("tenant big") && refused.contains("the tenant fits with"),
        "{refused}"
    );
    leader.add(tenant("a", 10, 10)).await.unwrap();
    let twice = leader.add(tenant("a", 10, 10)).await.unwrap_err().to_string();
    assert!(twice.contains("tenant a exists already"), "{twice}");
    let name = leader.add(tenant("a/b", 10, 10)).await.unwrap_err().to_string();
    assert!(name.contains("the name contains '/'"), "{name}");
    let nobody = leader.remove("x").await.unwrap_err().to_string();
    assert!(nobody.contains("no tenant x"), "{nobody}");
    let (_, record) = leader.grow("a", 0, 5, true).await.unwrap_err_or_ok();
    assert_eq!(record, None, "eleven VMs, one a server, ten servers");
}

trait ErrOrOk {
    fn unwrap_err_or_ok(self) -> (Option<String>, Option<u32>);
}

impl<A> ErrOrOk for Result<(A, penstock_controller::intent::TenantRecord), LeaderError> {
    fn unwrap_err_or_ok(self) -> (Option<String>, Option<u32>) {
        match self {
            Ok((_, record)) => (None, Some(record.spec.classes[0].vms)),
            Err(error) => (Some(error.to_string()), None),
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Interval(Vec<u64>),
    Add(u8),
    Remove(u8),
    Away(u8, bool),
    Fail(u8, bool),
    Fault(u8, Faults),
    NewLeader,
}

fn act() -> impl Strategy<Value = Act> {
    let faults = prop_oneof![
        3 => Just(Faults::default()),
        1 => Just(Faults { unreachable: true, ..Faults::default() }),
        1 => (0_usize..3).prop_map(|n| Faults { refuses_after: Some(n), ..Faults::default() }),
        1 => Just(Faults { ignores: true, ..Faults::default() }),
    ];
    prop_oneof![
        6 => prop::collection::vec(0_u64..10, 6).prop_map(Act::Interval),
        2 => (0_u8..6).prop_map(Act::Add),
        1 => (0_u8..6).prop_map(Act::Remove),
        1 => (0_u8..10, any::<bool>()).prop_map(|(host, away)| Act::Away(host, away)),
        1 => (0_u8..10, any::<bool>()).prop_map(|(host, fails)| Act::Fail(host, fails)),
        2 => (0_u8..3, faults).prop_map(|(switch, faults)| Act::Fault(switch, faults)),
        1 => Just(Act::NewLeader),
    ]
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const SWITCHES: [&str; 3] = ["core-0", "rack-0", "rack-1"];

async fn play(mode: Mode, acts: Vec<Act>, folder: &TempDir) {
    let _ = std::fs::remove_file(folder.join("controller.redb"));
    let world = World::new(mode);
    let store = store(folder).await;
    let (mut leader, mut lease) = world.leader(Arc::clone(&store), "one").await;
    for act in acts {
        match act {
            Act::Interval(rates) => {
                let rates: Vec<_> = NAMES.into_iter().zip(rates).collect();
                interval(&mut leader, &rates).await;
            }
            Act::Add(at) => drop(leader.add(tenant(NAMES[usize::from(at)], 10, 10)).await),
            Act::Remove(at) => drop(leader.remove(NAMES[usize::from(at)]).await),
            Act::Away(host, away) => {
                let name = format!("server-{host}");
                let mut list = world.hosts.away.lock().unwrap();
                if away {
                    list.insert(name.clone())
                } else {
                    list.remove(&name)
                };
                drop(list);
                leader.host_came(&name);
            }
            Act::Fail(host, fails) => {
                let name = format!("server-{host}");
                let mut list = world.hosts.fails.lock().unwrap();
                if fails {
                    list.insert(name)
                } else {
                    list.remove(&name)
                };
            }
            Act::Fault(switch, faults) => world.fault(SWITCHES[usize::from(switch)], faults),
            Act::NewLeader => {
                store.revoke(lease).await.unwrap();
                (leader, lease) = world.leader(Arc::clone(&store), "next").await;
            }
        }
    }
    // All faults are gone, so everything follows the binding within a few intervals.
    world.hosts.away.lock().unwrap().clear();
    world.hosts.fails.lock().unwrap().clear();
    SWITCHES.iter().for_each(|switch| world.fault(switch, Faults::default()));
    (0..10).for_each(|host| leader.host_came(&format!("server-{host}")));
    // The intervals cover the longest pause for a host or switch that refused.
    for _ in 0..32 {
        interval(&mut leader, &BUSY).await;
    }
    for (name, marks) in world.marks() {
        let slot = leader.fabric().slot(&name).expect("who is marked is there");
        assert_eq!(marks, BTreeSet::from([leader.fabric().dscp(slot)]), "{name}");
    }
    assert!(leader.crew().out_of_date().is_empty());
}

/// An unreachable host marks packets by its last plan, so it continues to mark the packets of a
/// removed tenant.
#[tokio::test]
async fn a_removed_tenant_keeps_its_queues_while_a_host_that_is_away_may_mark() {
    let folder = temp_dir();
    for mode in [Mode::PerPortMap, Mode::PerEgressMap] {
        let acts = vec![
            Act::Add(1),
            Act::Interval(vec![0; 6]),
            Act::Away(0, true),
            Act::Away(1, true),
            Act::Remove(1),
            Act::Interval(vec![0; 6]),
        ];
        play(mode, acts, &folder).await;
    }
}

/// The queues of a removed tenant were in the memory of the leader only, so its successor gave them
/// away at once.
#[tokio::test]
async fn a_successor_keeps_the_queues_of_a_removed_tenant_while_a_host_may_mark() {
    let folder = temp_dir();
    for mode in [Mode::PerPortMap, Mode::PerEgressMap] {
        for writes in [false, true] {
            let mut acts = vec![Act::Add(1), Act::Add(2), Act::Interval(vec![0, 9, 0, 0, 0, 0])];
            acts.extend([Act::Away(0, true), Act::Away(1, true), Act::Remove(1)]);
            if writes {
                // The next plan stores the binding without the name of the removed tenant.
                acts.extend([Act::Remove(2), Act::Interval(vec![0; 6])]);
            }
            acts.extend([Act::NewLeader, Act::Interval(vec![0; 6]), Act::Add(1)]);
            acts.extend([Act::NewLeader, Act::Interval(vec![9; 6]), Act::Interval(vec![9; 6])]);
            play(mode, acts, &folder).await;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Tests that hosts mark no packet with an unmapped code point, whatever fails. The auditor
    /// checks the state after every single change of a host or a switch.
    #[test]
    fn whatever_fails_no_packet_meets_an_unmapped_code_point(
        mode in prop_oneof![
            Just(Mode::StaticMap), Just(Mode::PerPortMap), Just(Mode::PerEgressMap)
        ],
        acts in prop::collection::vec(act(), 1..30),
    ) {
        let folder = temp_dir();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let played = async {
            let limit = penstock_testing::scaled(Duration::from_secs(60));
            tokio::time::timeout(limit, play(mode, acts, &folder)).await
        };
        runtime.block_on(played).unwrap();
    }
}
