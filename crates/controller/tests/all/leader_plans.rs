//! Tests how a leader executes plans: the limits of tenants while their queues change hands, the
//! messages that hosts and switches get, a leader that ends in the middle of a plan, and a switch
//! that refuses forever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_controller::Stamp;
use penstock_controller::carry_out::{Crew, Outcome};
use penstock_controller::fabric_state::Fabric;
use penstock_controller::hosts::{HostPlan, HostTenant};
use penstock_controller::leader::{Leader, Settings};
use penstock_controller::southbound::{Change, Faults, PortState, QueueCounters};
use penstock_controller::store::Store;
use penstock_controller::view::explain;
use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::{Mode, Plan, Port, Step};
use penstock_testing::{TempDir, temp_dir};
use penstock_units::Nanos;
use tokio::time::Instant;

use crate::world::{
    FakeHosts, Message, RACK, World, add_five, fabric, five, interval, store, tenant, usage, within,
};

const MODES: [Mode; 3] = [Mode::StaticMap, Mode::PerPortMap, Mode::PerEgressMap];
/// Usage with which tenants a, b and c get the three queues.
const FIRST: [(&str, u64); 5] = [("a", 9), ("b", 8), ("c", 7), ("d", 2), ("e", 1)];
/// Usage with which tenants d and e take the queues of b and c.
const THEN: [(&str, u64); 5] = [("a", 9), ("b", 0), ("c", 0), ("d", 9), ("e", 8)];

/// Returns a world whose leader has given queues to tenants a, b and c, and its store's folder.
async fn first(mode: Mode) -> (TempDir, World, Leader) {
    let folder = temp_dir();
    let world = World::new(mode);
    let (mut leader, _) = five(&world, &store(&folder).await).await;
    interval(&mut leader, &FIRST).await;
    (folder, world, leader)
}

/// Runs intervals until some tenants lose their queues to others. Returns the messages of the last
/// interval.
async fn until_queues_change_hands(leader: &mut Leader, world: &World) -> Vec<Message> {
    for _ in 0..10 {
        world.messages.take();
        interval(leader, &THEN).await;
        if leader.last().demoted > 0 {
            return world.messages.take();
        }
    }
    panic!("no tenant has lost its queues: {:?}", leader.last());
}

fn of_host(message: &Message) -> Option<(&str, &HostPlan)> {
    match message {
        Message::Host(host, plan) => Some((host, plan)),
        _ => None,
    }
}

fn find<'a>(plan: &'a HostPlan, tenant: &str) -> &'a HostTenant {
    plan.tenants.iter().find(|t| t.name == tenant).unwrap()
}

/// Returns true if the host limits the tenant to its guarantee.
fn is_limited(tenant: &HostTenant) -> bool {
    (tenant.dscp == 0 || tenant.limited) && tenant.headroom_permille <= 1_000
}

#[tokio::test]
async fn tenants_are_limited_from_before_their_queues_change_hands_until_the_end() {
    for mode in MODES {
        let (_folder, world, mut leader) = first(mode).await;
        let before = world.marks();
        let messages = until_queues_change_hands(&mut leader, &world).await;
        let after = world.marks();
        let movers: Vec<&String> =
            after.keys().filter(|name| before[*name] != after[*name]).collect();
        assert!(movers.len() >= 2, "{mode:?}: {before:?} {after:?}");
        // Until the last message to each host, its tenants that move are limited. All hosts have
        // the limits before any switch or mark changes.
        let mut plans: BTreeMap<&str, Vec<&HostPlan>> = BTreeMap::new();
        for (host, plan) in messages.iter().filter_map(of_host) {
            plans.entry(host).or_default().push(plan);
        }
        let changes = messages.iter().filter(|message| !matches!(message, Message::Read(_)));
        let first = changes.take_while(|message| of_host(message).is_some());
        assert!(first.count() >= plans.len(), "{mode:?}: {messages:#?}");
        for (host, plans) in plans {
            assert!(plans.len() <= 4, "{mode:?}: {host} got {} messages", plans.len());
            let (last, limited) = plans.split_last().unwrap();
            for mover in &movers {
                assert!(limited.iter().all(|plan| is_limited(find(plan, mover))), "{limited:#?}");
                assert!(!is_limited(find(last, mover)), "{mode:?}: {host}: {last:#?}");
                assert_eq!(BTreeSet::from([find(last, mover).dscp]), after[*mover]);
                // The first message changes no mark.
                assert_eq!(BTreeSet::from([find(limited[0], mover).dscp]), before[*mover]);
            }
            // Tenant a keeps its queue and is never limited.
            assert!(plans.iter().all(|plan| !find(plan, "a").limited), "{plans:#?}");
        }
        let times = &leader.last().plan;
        assert!(times.0.len() >= 6 && leader.totals().longest_plan >= times.took(), "{times:?}");
    }
}

#[tokio::test]
async fn hosts_that_refuse_marks_once_have_them_before_limits_are_released() {
    for mode in MODES {
        let (_folder, world, mut leader) = first(mode).await;
        let before = world.marks();
        let all: BTreeSet<String> = world.hosts.plans.lock().unwrap().keys().cloned().collect();
        world.hosts.refuse_once.lock().unwrap().clone_from(&all);
        let messages = until_queues_change_hands(&mut leader, &world).await;
        let refused = all.len() - world.hosts.refuse_once.lock().unwrap().len();
        assert!(refused >= 2, "{mode:?}: {refused} of {} hosts refused", all.len());
        let promoted = |plan: &HostPlan| {
            let is_new = |t: &&HostTenant| t.dscp != 0 && !before[&t.name].contains(&t.dscp);
            plan.tenants.iter().find(is_new).cloned()
        };
        let mut marked: BTreeMap<&str, usize> = BTreeMap::new();
        let mut released = None;
        for (at, (host, plan)) in messages.iter().filter_map(of_host).enumerate() {
            let Some(tenant) = promoted(plan) else { continue };
            marked.entry(host).or_insert(at);
            released = released.or((!is_limited(&tenant)).then_some(at));
        }
        let released = released.unwrap();
        assert!(marked.len() >= 2, "{mode:?}: {marked:?}");
        assert!(marked.values().all(|at| *at < released), "{mode:?}: {marked:?}, {released}");
    }
}

#[tokio::test]
async fn a_plan_reads_a_switch_once_and_once_more_before_new_marks() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let settings = Settings { verify_every: 0, ..Settings::default() };
    let (mut leader, _) = world.leader_with(store(&folder).await, "one", settings).await;
    add_five(&mut leader).await;
    let reads = |messages: &[Message]| {
        let mut reads: BTreeMap<String, usize> = BTreeMap::new();
        for message in messages {
            if let Message::Read(switch) = message {
                *reads.entry(switch.clone()).or_default() += 1;
            }
        }
        reads
    };
    interval(&mut leader, &FIRST).await;
    let messages = until_queues_change_hands(&mut leader, &world).await;
    let applied =
        |message: &&Message| matches!(message, Message::Apply(name, _) if name == "core-0");
    assert!(messages.iter().filter(applied).count() >= 1);
    assert_eq!(reads(&messages).into_values().collect::<Vec<_>>(), [2; 3], "{messages:#?}");
    // A plan that changes only weights needs one read.
    leader.add(tenant("f", 10, 60)).await.unwrap();
    leader.remove("f").await.unwrap();
    world.messages.take();
    interval(&mut leader, &THEN).await;
    assert!(leader.last().steps > 0 && leader.last().demoted + leader.last().promoted == 0);
    let reads = reads(&world.messages.take());
    assert!(!reads.is_empty() && reads.values().all(|reads| *reads == 1), "{reads:?}");
}

/// Lets the leader run an interval, and stops it before the change of a host or switch that follows
/// after `count` other changes. Returns false if the interval has no such change.
async fn stops_in_a_plan(
    leader: &mut Leader,
    world: &World,
    rates: &[(&str, u64)],
    count: usize,
) -> bool {
    let used = usage(leader.fabric(), rates);
    world.messages.answer(Some(count));
    let stopped = tokio::select! {
        biased;
        () = world.messages.stalled.notified() => true,
        done = leader.interval(&used) => {
            done.unwrap();
            false
        }
    };
    world.messages.answer(None);
    stopped
}

/// Lets a successor take over, to which the hosts come one after the other. Checks that hosts then
/// mark as the binding says, and that no tenant has a limit of a plan.
async fn succeeds(mode: Mode, count: usize, world: &World, store: &Arc<dyn Store>) -> Leader {
    let hosts: Vec<String> = (0..2 * RACK).map(|host| format!("server-{host}")).collect();
    world.hosts.away.lock().unwrap().extend(hosts.iter().cloned());
    let (mut leader, _) = world.leader(Arc::clone(store), "successor").await;
    for host in &hosts {
        world.hosts.away.lock().unwrap().remove(host);
        leader.host_came(host);
        leader.catch_up().await;
    }
    assert!(leader.crew().out_of_date().is_empty(), "{mode:?} {count}");
    for (name, marks) in world.marks() {
        let slot = leader.fabric().slot(&name).unwrap();
        assert_eq!(marks, BTreeSet::from([leader.fabric().dscp(slot)]), "{mode:?} {count}: {name}");
    }
    let plans = world.hosts.plans.lock().unwrap().clone();
    let tenants = plans.values().flat_map(|plan| &plan.tenants);
    let limited: Vec<_> = tenants.filter(|tenant| is_limited(tenant)).collect();
    assert!(limited.is_empty(), "{mode:?} {count}: {limited:#?}");
    leader
}

/// Lets a leader end before the change of a host or switch that follows after `count` other
/// changes of a plan. Returns false if the plan has no such change.
async fn ends_in_a_plan(mode: Mode, count: usize) -> bool {
    let folder = temp_dir();
    let world = World::new(mode);
    let store = store(&folder).await;
    let (mut leader, lease) = five(&world, &store).await;
    interval(&mut leader, &FIRST).await;
    let ended = stops_in_a_plan(&mut leader, &world, &THEN, count).await;
    assert!(ended || leader.last().demoted > 0);
    drop(leader);
    store.revoke(lease).await.unwrap();
    let mut leader = succeeds(mode, count, &world, &store).await;
    for _ in 0..3 {
        interval(&mut leader, &THEN).await;
    }
    assert!(leader.crew().out_of_date().is_empty(), "{mode:?} {count}");
    ended
}

/// The second leader takes back what the plan of the first one moved, and ends in its own plan. The
/// stored binding is then the same as the last one of the history, but hosts and switches may have
/// parts of either plan.
#[tokio::test]
async fn two_leaders_that_end_in_plans_leave_no_unmapped_code_point_and_no_limit() {
    for mode in MODES {
        let mut ends = 0;
        for count in (0..200).step_by(7) {
            let folder = temp_dir();
            let world = World::new(mode);
            let store = store(&folder).await;
            let (mut leader, lease) = five(&world, &store).await;
            interval(&mut leader, &FIRST).await;
            if !stops_in_a_plan(&mut leader, &world, &THEN, count).await {
                break;
            }
            drop(leader);
            store.revoke(lease).await.unwrap();
            let (mut leader, lease) = world.leader(Arc::clone(&store), "two").await;
            let ended = stops_in_a_plan(&mut leader, &world, &FIRST, count).await;
            assert!(ended || leader.last().promoted > 0, "{mode:?} {count}: {:?}", leader.last());
            drop(leader);
            store.revoke(lease).await.unwrap();
            succeeds(mode, count, &world, &store).await;
            ends += usize::from(ended);
        }
        assert!(ends >= 2, "{mode:?}: {ends} points of a plan were tried");
    }
}

/// A host that does not connect to the successor may send with its last marks for any time.
#[tokio::test]
async fn a_successor_limits_the_tenants_of_a_host_that_is_away_until_it_comes() {
    let mut tried = 0;
    for count in 0..60 {
        let folder = temp_dir();
        let world = World::new(Mode::PerPortMap);
        let store = store(&folder).await;
        let (mut leader, lease) = five(&world, &store).await;
        interval(&mut leader, &FIRST).await;
        if !stops_in_a_plan(&mut leader, &world, &THEN, count).await {
            break;
        }
        drop(leader);
        store.revoke(lease).await.unwrap();
        // The losers of the plan share queue 0, and the winners have no marks yet.
        let marks = world.marks();
        let marked = marks.values().filter(|marks| **marks != BTreeSet::from([0])).count();
        if marked != 1 {
            continue;
        }
        tried += 1;
        world.hosts.away.lock().unwrap().insert("server-0".to_owned());
        let (mut leader, _) = world.leader(Arc::clone(&store), "two").await;
        for _ in 0..6 {
            interval(&mut leader, &THEN).await;
            assert!(leader.crew().moving().count() >= 4, "{count}");
            let plans = world.hosts.plans.lock().unwrap();
            for slot in leader.crew().moving() {
                let found = find(&plans["server-1"], leader.fabric().name(slot));
                assert!(found.dscp == 0 && is_limited(found), "{count}: {found:?}");
            }
        }
        world.hosts.away.lock().unwrap().clear();
        leader.host_came("server-0");
        leader.catch_up().await;
        assert_eq!(leader.crew().moving().count(), 0, "{count}");
        let plans = world.hosts.plans.lock().unwrap();
        assert!(!plans.values().flat_map(|plan| &plan.tenants).any(is_limited), "{count}");
    }
    assert!(tried > 0, "no moment without marks was found");
}

/// A plan limits the tenants of queue 0 beside its tenants, and releases them at its end.
#[tokio::test]
async fn a_plan_of_others_does_not_release_a_tenant_of_an_unfinished_plan() {
    let mut fabric = fabric(Mode::PerPortMap, 2);
    let names = ["a", "b"];
    for name in names {
        fabric.add(within(name, "rack-0", RACK, 10)).unwrap();
    }
    fabric.reserve_all();
    let slots = names.map(|name| fabric.slot(name).unwrap());
    let hosts = Arc::new(FakeHosts::default());
    let mut crew = Crew::new(BTreeMap::new(), hosts, Duration::from_secs(1));
    crew.resume(&fabric, BTreeSet::from([slots[0]]));
    let (limits, releases) =
        (slots.map(|tenant| Step::Limit { tenant }), slots.map(|tenant| Step::Release { tenant }));
    let plan = Plan { epoch: 1, steps: limits.into_iter().chain(releases).collect() };
    let stamp = Stamp { epoch: 1, generation: 1 };
    assert_eq!(crew.carry_out(&fabric, &plan, stamp).await, Outcome::Done(Vec::new()));
    let server = fabric.servers_of(slots[0]).next().unwrap();
    let told = crew.host_plan(&fabric, server, stamp);
    assert_eq!(names.map(|name| is_limited(find(&told, name))), [true, false], "{told:?}");
}

/// Sets the number of frames that wait in a queue of a port of `rack-0` to a server.
fn hold_frames(world: &World, fabric: &Fabric, (port, queue): (Port, u8), waiting: u64) {
    let topology = fabric.topology();
    let port = topology.name(topology.child(port.link)).to_string();
    let counters = QueueCounters { port, queue, waiting: Some(waiting), ..Default::default() };
    world.switches["rack-0"].count(&counters);
}

#[tokio::test(start_paused = true)]
async fn a_plan_waits_until_the_queues_that_tenants_lose_are_empty() {
    let (world, fabric) = (World::new(Mode::PerEgressMap), fabric(Mode::PerEgressMap, 2));
    let mut crew = world.crew();
    let ports = fabric.ports_of(fabric.topology().find("rack-0").unwrap());
    let port = ports.into_iter().find(|port| !port.up).unwrap();
    let time = Nanos::from_millis(100);
    let plan = Plan { epoch: 1, steps: vec![Step::Drain { queues: vec![(port, 1)], time }] };
    let stamp = Stamp { epoch: 1, generation: 1 };
    for (queue, waiting, wait_ms) in [(1, 0, 100), (2, 3, 100), (1, 3, 200)] {
        hold_frames(&world, &fabric, (port, queue), waiting);
        assert_eq!(crew.carry_out(&fabric, &plan, stamp).await, Outcome::Done(Vec::new()));
        assert_eq!(crew.times().took().as_millis(), wait_ms, "{waiting} frames in queue {queue}");
    }
}

/// Frames of tenants that lost queues in an unfinished plan may still wait there.
#[tokio::test(start_paused = true)]
async fn a_successor_waits_until_the_queues_of_the_plan_are_empty() {
    let mut fabric = fabric(Mode::PerPortMap, 2);
    fabric.add(within("a", "rack-0", RACK, 10)).unwrap();
    assert_eq!(fabric.rebind(|_| true, false).promoted.len(), 1);
    let slot = fabric.slot("a").unwrap();
    let bound = fabric.binding().of(slot).unwrap();
    let queue = *bound.queues.iter().find(|(port, _)| !port.up).unwrap();
    let mut waits = Vec::new();
    for waiting in [0, 3] {
        let world = World::new(Mode::PerPortMap);
        hold_frames(&world, &fabric, queue, waiting);
        let mut crew = world.crew();
        crew.resume(&fabric, BTreeSet::from([slot]));
        let began = Instant::now();
        crew.mend(&fabric, Stamp { epoch: 1, generation: 1 }).await;
        assert_eq!(crew.moving().count(), 0);
        waits.push(began.elapsed());
    }
    assert!(waits[1] > waits[0], "{waits:?}");
}

#[tokio::test]
async fn a_rollback_marks_nobody_through_a_switch_that_may_have_lost_the_code_point() {
    for mode in [Mode::PerPortMap, Mode::PerEgressMap] {
        let (_folder, world, mut leader) = first(mode).await;
        let before = world.marks();
        // The switch has two ports, so it dies after some changes of its map.
        world.fault("core-0", Faults { dies_after: Some(3), ..Faults::default() });
        let plan = leader.stamp().generation + 1;
        interval(&mut leader, &THEN).await;
        let has = world.switches["rack-0"].truth().stamp;
        assert!(has.generation > plan, "{mode:?}: a late message of the plan could undo {has}");
        assert_eq!(leader.totals().taken_back, 1, "{mode:?}: {:?}", leader.last());
        let held: Vec<_> = leader.crew().moving().collect();
        assert!(!held.is_empty(), "{mode:?}");
        for slot in held {
            let name = leader.fabric().name(slot);
            assert_ne!(before[name], BTreeSet::from([0]), "{mode:?}: {name} had queues");
            let plans = world.hosts.plans.lock().unwrap();
            let mut found = plans.values().map(|plan| find(plan, name));
            assert!(found.all(|tenant| tenant.dscp == 0 && is_limited(tenant)), "{mode:?}: {name}");
        }
        assert_eq!(world.marks()["a"], before["a"], "{mode:?}: the plan did not move this tenant");
        world.fault("core-0", Faults::default());
        interval(&mut leader, &FIRST).await;
        assert_eq!(world.marks(), before, "{mode:?}: the switch is repaired");
        assert_eq!(leader.crew().moving().count(), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn a_switch_that_restarts_between_comparisons_is_repaired_in_the_next_interval() {
    let folder = temp_dir();
    let world = World::new(Mode::PerPortMap);
    let settings = Settings { verify_every: 0, ..Settings::default() };
    let (mut leader, _) = world.leader_with(store(&folder).await, "one", settings).await;
    add_five(&mut leader).await;
    interval(&mut leader, &FIRST).await;
    let was = world.switches["rack-1"].truth().ports;
    world.switches["rack-1"].restart();
    assert_ne!(world.switches["rack-1"].truth().ports, was);
    interval(&mut leader, &FIRST).await;
    assert_eq!(world.switches["rack-1"].truth().ports, was);
    let told = leader.events().iter().filter(|event| event.text.contains("restarted")).count();
    assert_eq!(told, 1);
    interval(&mut leader, &FIRST).await;
    assert_eq!(leader.last().drifted, 0);
}

/// The auditor of the world checks each change of a host or switch: no packet meets an unmapped
/// code point, before and after the end of the leader.
#[tokio::test]
async fn a_leader_that_ends_in_a_plan_leaves_no_unmapped_code_point_and_no_limit() {
    for mode in MODES {
        let mut ends = 0;
        for count in (0..200).step_by(3) {
            if !ends_in_a_plan(mode, count).await {
                break;
            }
            ends += 1;
        }
        assert!((5..60).contains(&ends), "{mode:?}: {ends} points of a plan were tried");
    }
}

#[tokio::test]
async fn one_switch_of_four_that_refuses_forever_stops_nobody_else() {
    for fault in [
        Faults { refuses_after: Some(0), ..Faults::default() },
        Faults { refuses_after: Some(1), ..Faults::default() },
        // What is read back differs from what was acknowledged.
        Faults { ignores: true, ..Faults::default() },
    ] {
        let folder = temp_dir();
        let world = World::with_racks(Mode::PerPortMap, 3);
        assert_eq!(world.switches.len(), 4);
        let (mut leader, _) = world.leader(store(&folder).await, "one").await;
        let racks = [("a", "rack-0"), ("b", "rack-1"), ("c", "rack-2")];
        for (name, rack) in racks {
            leader.add(within(name, rack, 4, 10)).await.unwrap();
            leader.add(within(&format!("{name}2"), rack, 4, 10)).await.unwrap();
        }
        world.fault("rack-2", fault.clone());
        let all = |rate: u64| ["a", "b", "c", "a2", "b2", "c2"].map(|name| (name, rate));
        interval(&mut leader, &all(9)).await;
        for _ in 0..40 {
            let shares = |name: &str| world.marks()[name] == BTreeSet::from([0]);
            assert!(!["a", "b", "a2", "b2"].into_iter().any(shares), "{fault:?}");
            assert!(["c", "c2"].into_iter().all(shares), "{fault:?}");
            interval(&mut leader, &all(9)).await;
        }
        let why = explain(&leader, "c").unwrap()["why"].to_string();
        let switch = "switch rack-2 cannot be reached, or refused a plan";
        assert!(why.contains(switch), "{fault:?}: {why}");
        // Queues also change hands at once.
        leader.remove("a").await.unwrap();
        leader.add(within("a3", "rack-0", 4, 10)).await.unwrap();
        interval(&mut leader, &[("a3", 9), ("b", 9), ("c", 9)]).await;
        assert_ne!(world.marks()["a3"], BTreeSet::from([0]), "{fault:?}");
    }
}

#[tokio::test]
async fn a_port_of_others_concerns_only_its_tenants() {
    let folder = temp_dir();
    let world = World::with_racks(Mode::PerPortMap, 3);
    let (mut leader, _) = world.leader(store(&folder).await, "one").await;
    let mut names = Vec::new();
    for rack in 0..3 {
        for tenant in ["a", "b"] {
            names.push(format!("{tenant}{rack}"));
            let name = names.last().unwrap();
            leader.add(within(name, &format!("rack-{rack}"), 4, 10)).await.unwrap();
        }
    }
    let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 9)).collect();
    let shares = |name: &str| world.marks()[name] == BTreeSet::from([0]);
    let told =
        |leader: &Leader| leader.events().iter().filter(|event| event.kind == "left-out").count();
    interval(&mut leader, &all).await;
    assert!(!names.iter().any(|name| shares(name)), "{:?}", world.marks());
    let ports = world.switches["rack-2"].truth().ports;
    let foreign = ports.keys().map(|port| (port.clone(), "another map".to_owned())).collect();
    world.fault("rack-2", Faults { foreign, ..Faults::default() });
    // The leader compares switches with its intent in some intervals only.
    for _ in 0..6 {
        interval(&mut leader, &all).await;
    }
    for name in &names {
        assert_eq!(shares(name), name.ends_with('2'), "{name}: {:?}", world.marks());
        let why = explain(&leader, name).unwrap()["why"].to_string();
        assert_eq!(why.contains("event `left-out`"), name.ends_with('2'), "{name}: {why}");
    }
    assert_eq!(told(&leader), 1);
    world.fault("rack-2", Faults::default());
    for _ in 0..6 {
        interval(&mut leader, &all).await;
    }
    assert!(!names.iter().any(|name| shares(name)), "{:?}", world.marks());
    assert_eq!(told(&leader), 2);
}

#[tokio::test]
async fn a_switch_with_fewer_queues_gets_plans_that_it_can_execute() {
    let folder = temp_dir();
    let world = World::with_racks(Mode::PerPortMap, 2);
    world.fault("rack-1", Faults { queues: Some(2), ..Faults::default() });
    let (mut leader, _) = world.leader(store(&folder).await, "one").await;
    let mut names = Vec::new();
    for rack in 0..2 {
        for tenant in ["a", "b", "c"] {
            names.push(format!("{tenant}{rack}"));
            let name = names.last().unwrap();
            leader.add(within(name, &format!("rack-{rack}"), 4, 10)).await.unwrap();
        }
    }
    let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 9)).collect();
    let own = || names.iter().filter(|name| world.marks()[*name] != BTreeSet::from([0])).cloned();
    let told = |leader: &Leader| {
        let events = leader.events().iter().filter(|event| event.kind == "few-queues");
        events.map(|event| (event.subject.clone(), event.text.clone())).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        interval(&mut leader, &all).await;
        assert!(!leader.crew().switches().keys().any(|node| leader.crew().in_trouble(*node)));
    }
    assert_eq!(own().collect::<Vec<_>>(), ["a0", "b0", "c0", "a1"]);
    assert_eq!(world.switches["rack-1"].truth().ports["server-5"].weights.len(), 2);
    let events = told(&leader);
    assert_eq!((events.len(), events[0].0.as_str()), (1, "rack-1"));
    let parts = ["2 queues for plans", "file says 4", "raise `reserved_queues`"];
    assert!(parts.iter().all(|part| events[0].1.contains(part)), "{events:?}");
    let why = explain(&leader, "b1").unwrap()["why"].to_string();
    assert!(why.contains("all queues from rack-1 to"), "{why}");

    // A switch that is replaced by one with more queues is read when it restarts.
    world.fault("rack-1", Faults::default());
    world.switches["rack-1"].restart();
    interval(&mut leader, &all).await;
    interval(&mut leader, &all).await;
    assert_eq!(own().collect::<Vec<_>>(), names);
    assert!(told(&leader)[1].1.contains("all 4 queues again"), "{:?}", told(&leader));
}

#[tokio::test]
async fn tenants_of_a_switch_that_loses_queues_are_limited_until_the_next_decision() {
    let folder = temp_dir();
    let world = World::with_racks(Mode::PerPortMap, 2);
    let store = store(&folder).await;
    let (mut leader, lease) = world.leader(Arc::clone(&store), "one").await;
    for name in ["a", "b", "c"] {
        leader.add(within(name, "rack-1", 4, 10)).await.unwrap();
    }
    let all = [("a", 9), ("b", 9), ("c", 9)];
    interval(&mut leader, &all).await;
    // Returns the tenants that hosts limit in their own queues, and those that share queue 0.
    let seen = || {
        let plans = world.hosts.plans.lock().unwrap();
        let of = |is: fn(&HostTenant) -> bool| -> BTreeSet<String> {
            let tenants = plans.values().flat_map(|plan| &plan.tenants);
            tenants.filter(|tenant| is(tenant)).map(|tenant| tenant.name.clone()).collect()
        };
        [of(|tenant| tenant.limited), of(|tenant| tenant.dscp == 0)]
    };
    let (none, two) = (BTreeSet::new(), BTreeSet::from(["b".to_owned(), "c".to_owned()]));
    assert_eq!(seen(), [none.clone(), none.clone()]);
    let replace = |queues: Option<u8>| {
        world.fault("rack-1", Faults { queues, ..Faults::default() });
        world.switches["rack-1"].restart();
    };

    // A switch with two queues has the frames of b and c in queue 0.
    world.end_audits();
    replace(Some(2));
    store.revoke(lease).await.unwrap();
    let (mut leader, _) = world.leader(Arc::clone(&store), "two").await;
    assert_eq!(seen(), [two.clone(), none.clone()], "before the successor's first decision");
    replace(None);
    interval(&mut leader, &all).await;
    assert_eq!(seen(), [none.clone(), none.clone()], "the tenants have their queues again");
    replace(Some(2));
    interval(&mut leader, &all).await;
    assert_eq!(seen(), [none, two], "the decision took their queues");
}

/// Checks that at each message to a host, the ports to and from the host have enough weight for the
/// tenants that share queue 0. The argument `ports` has the weights before the messages.
fn check_shares(mut ports: BTreeMap<String, BTreeMap<String, PortState>>, messages: &[Message]) {
    let share = |weights: &[u32]| {
        let all: u32 = weights.iter().sum();
        1e9 * f64::from(weights.first().copied().unwrap_or(1)) / f64::from(all.max(1))
    };
    for message in messages {
        match message {
            Message::Apply(switch, changes) => {
                for change in changes {
                    let Change::Weigh { port, weights } = change else { continue };
                    let state = ports.get_mut(switch).unwrap().get_mut(port).unwrap();
                    state.weights.clone_from(weights);
                }
            }
            Message::Host(host, plan) => {
                let shared = plan.tenants.iter().filter(|tenant| tenant.dscp == 0);
                let wanted = shared.map(|t| t.recv as f64).sum::<f64>();
                for (switch, uplink) in &plan.uplinks {
                    let down = share(&ports[switch][host].weights);
                    assert!(down >= wanted, "{host}: {down} of {wanted}: {plan:#?}");
                    let up = share(&uplink.weights);
                    assert!(up >= wanted, "{host}: {up} of {wanted}: {plan:#?}");
                }
            }
            Message::Read(_) => {}
        }
    }
}

fn ports(world: &World) -> BTreeMap<String, BTreeMap<String, PortState>> {
    world.switches.iter().map(|(name, switch)| (name.clone(), switch.truth().ports)).collect()
}

#[tokio::test]
async fn a_tenant_that_arrives_grows_or_moves_has_its_weights_before_its_hosts_know() {
    for mode in MODES {
        let folder = temp_dir();
        let world = World::new(mode);
        let store = store(&folder).await;
        let (mut leader, lease) = world.leader(Arc::clone(&store), "one").await;
        // Before the first interval, all tenants share queue 0.
        leader.add(tenant("c", 10, 10)).await.unwrap();
        let headroom = |host: &str| {
            let plans = world.hosts.plans.lock().unwrap();
            find(&plans[host], "c").headroom_permille
        };
        let high = headroom("server-9");
        world.messages.take();
        let before = ports(&world);
        leader.add(within("b", "rack-0", 3, 400)).await.unwrap();
        let messages = world.messages.take();
        check_shares(before, &messages);
        // Tenant c shares ports with b, so its other hosts first lower its limit.
        assert!(headroom("server-9") < high, "{high}");
        let weighs = |message: &Message| match message {
            Message::Apply(_, changes) => {
                changes.iter().any(|change| matches!(change, Change::Weigh { .. }))
            }
            _ => false,
        };
        let first = messages.iter().position(weighs).unwrap();
        let lower = messages
            .iter()
            .position(|message| of_host(message).is_some_and(|(host, _)| host == "server-9"));
        assert!(lower.unwrap() < first, "{mode:?}: {messages:#?}");

        let before = ports(&world);
        leader.grow("b", 0, 1, true).await.unwrap();
        let messages = world.messages.take();
        assert!(messages.iter().any(weighs), "{mode:?}: {messages:#?}");
        check_shares(before, &messages);

        let before = ports(&world);
        let slot = leader.fabric().slot("b").unwrap();
        let server = leader.fabric().servers_of(slot).next().unwrap();
        let server = leader.fabric().topology().name(server).to_string();
        let moves = leader.set_service(&server, Service::Drained).await.unwrap();
        assert!(moves.iter().any(|moved| moved.tenant == slot && moved.outcome.is_ok()));
        let messages = world.messages.take();
        assert!(messages.iter().any(weighs), "{mode:?}: {messages:#?}");
        check_shares(before, &messages);

        // A successor has the same weights before it sends plans to hosts.
        store.revoke(lease).await.unwrap();
        let before = ports(&world);
        let (mut leader, _) = world.leader(Arc::clone(&store), "two").await;
        (0..2 * RACK).for_each(|host| leader.host_came(&format!("server-{host}")));
        leader.catch_up().await;
        let messages = world.messages.take();
        assert!(messages.iter().filter_map(of_host).count() >= 10, "{mode:?}: {messages:#?}");
        check_shares(before, &messages);
    }
}

#[tokio::test]
async fn a_moved_tenant_keeps_its_queues_while_a_host_that_is_away_may_mark() {
    for mode in [Mode::PerPortMap, Mode::PerEgressMap] {
        let folder = temp_dir();
        let world = World::new(mode);
        let (mut leader, _) = world.leader(store(&folder).await, "one").await;
        leader.add(within("a", "rack-0", 3, 10)).await.unwrap();
        interval(&mut leader, &[("a", 9)]).await;
        let slot = leader.fabric().slot("a").unwrap();
        let topology = leader.fabric().topology();
        let name = |server| topology.name(server).to_string();
        let servers: Vec<String> = leader.fabric().servers_of(slot).map(name).collect();
        world.hosts.away.lock().unwrap().extend(servers[..2].iter().cloned());
        // The tenant loses a server, which changes the links of its tree.
        let moves = leader.set_service(&servers[2], Service::Drained).await.unwrap();
        assert!(moves[0].outcome.is_ok(), "{moves:?}");
        leader.add(within("b", "rack-0", 4, 10)).await.unwrap();
        for _ in 0..4 {
            // The auditor checks the packets that the hosts that are away still mark.
            interval(&mut leader, &[("a", 9), ("b", 9)]).await;
            assert_ne!(world.mark(&servers[0], "a"), Some(0), "nobody could tell the host");
        }
        world.hosts.away.lock().unwrap().clear();
        servers.iter().for_each(|server| leader.host_came(server));
        for _ in 0..3 {
            interval(&mut leader, &[("a", 9), ("b", 9)]).await;
        }
        let dscp = leader.fabric().dscp(slot);
        assert_ne!(dscp, 0, "{mode:?}: it has queues at its new place");
        assert_eq!(world.marks()["a"], BTreeSet::from([dscp]));
    }
}
