//! Tests the driver of SONiC switches with a real redis. A test double replaces SONiC's orchagent,
//! which reads the configuration from redis.

mod orchagent;
mod server;
mod yang;

use std::sync::Arc;
use std::time::Duration;

use orchagent::{AsicState, Orchagent, show_ports};
use penstock_controller::Stamp;
use penstock_controller::southbound::sonic::{MapMode, Reference, Settings, SonicSwitch};
use penstock_controller::southbound::{
    Change, DriverError, PortInfo, PortState, SwitchDriver, SwitchState, diff, survey,
};
use penstock_testing::temp_dir;
use penstock_units::BitsPerSecond;
use server::Redis;

fn switch(redis: &Redis, mode: MapMode) -> SonicSwitch {
    let port = |name: &str| PortInfo { name: name.into(), rate: BitsPerSecond(10_000_000_000) };
    let settings = Settings { mode, settle: Duration::ZERO, ..Settings::default() };
    let ports = [port("Ethernet0"), port("Ethernet4")];
    SonicSwitch::new("leaf1", &ports, settings, redis.endpoint()).expect("good settings")
}

fn stamp(generation: u64) -> Stamp {
    Stamp { epoch: 3, generation }
}

fn map(port: &str, dscp: u8, queue: u8) -> Change {
    Change::Map { port: port.to_owned(), dscp, queue }
}

fn weigh(port: &str, weights: &[u32]) -> Change {
    Change::Weigh { port: port.to_owned(), weights: weights.to_vec() }
}

fn port_changes() -> Vec<Change> {
    vec![
        map("Ethernet0", 8, 1),
        map("Ethernet0", 16, 2),
        map("Ethernet4", 8, 3),
        weigh("Ethernet0", &[10, 30, 60]),
        weigh("Ethernet4", &[1, 0, 0, 3]),
    ]
}

#[tokio::test]
async fn the_switch_hears_of_each_key_in_an_order_that_leaves_nobody_unmapped_and_counts() {
    let Some(redis) = Redis::start().await else { return };
    let switch = switch(&redis, MapMode::PerPort);
    let heard = redis.switch().await;
    switch.apply(stamp(1), &port_changes()).await.expect("told");
    redis.set("DONE", &[("all", "done")]).await;
    let heard = heard.await.expect("it ends");
    let at = |key: &str| heard.iter().position(|k| k == key).unwrap_or_else(|| panic!("no {key}"));
    assert!(at("TC_TO_QUEUE_MAP|PENSTOCK_Ethernet0") < at("DSCP_TO_TC_MAP|PENSTOCK"));
    assert!(at("TC_TO_QUEUE_MAP|PENSTOCK_Ethernet4") < at("DSCP_TO_TC_MAP|PENSTOCK"));
    assert!(at("DSCP_TO_TC_MAP|PENSTOCK") < at("PORT_QOS_MAP|Ethernet0"));
    assert!(at("SCHEDULER|pen.Ethernet0.1") < at("QUEUE|Ethernet0|1"));
    assert!(!heard.iter().any(|key| key.contains("stamp")), "it has no model in CONFIG_DB");
    let stamp = redis.hash(6, "PENSTOCK_TABLE|stamp").await;
    assert_eq!((&*stamp["epoch"], &*stamp["generation"]), ("3", "1"));

    let counters = switch.counters().await.expect("counted");
    assert_eq!(counters.len(), 14);
    let three = counters.iter().find(|c| c.port == "Ethernet4" && c.queue == 3).expect("counted");
    assert_eq!((three.packets, three.bytes, three.dropped), (3, 300, 7));
}

#[tokio::test]
async fn changes_are_read_back_and_are_idempotent() {
    let Some(redis) = Redis::start().await else { return };
    let fresh = switch(&redis, MapMode::PerPort).read_back().await.expect("readable");
    assert_eq!((fresh.stamp, &fresh.ports["Ethernet4"]), (Stamp::default(), &PortState::default()));
    let before = redis.all().await;
    let words = switch(&redis, MapMode::PerPort).words(&port_changes()).await.expect("dry run");
    let word =
        "redis-cli -n 4 HSET 'SCHEDULER|pen.Ethernet0.1' type DWRR weight 30 meter_type bytes";
    assert!(words.iter().any(|w| w == word), "{words:#?}");
    assert_eq!(redis.all().await, before, "nothing was done");

    switch(&redis, MapMode::PerPort).apply(stamp(1), &port_changes()).await.expect("told");
    let is = switch(&redis, MapMode::PerPort).read_back().await.expect("readable");
    assert_eq!(is.stamp, stamp(1));
    let state = |weights: &[u32], map: &[(u8, u8)]| PortState {
        weights: weights.to_vec(),
        map: map.iter().copied().collect(),
    };
    assert_eq!(is.ports["Ethernet0"], state(&[10, 30, 60], &[(8, 1), (16, 2)]));
    assert_eq!(is.ports["Ethernet4"], state(&[1, 0, 0, 3], &[(8, 3)]));
    let all = redis.all().await;
    let heard = redis.switch().await;
    switch(&redis, MapMode::PerPort).apply(stamp(1), &port_changes()).await.expect("again");
    redis.set("DONE", &[("all", "done")]).await;
    assert_eq!(heard.await.expect("it ends"), Vec::<String>::new(), "nothing is written");
    let mut after = redis.all().await;
    after.remove("DONE");
    assert_eq!(after, all);

    let late = switch(&redis, MapMode::PerPort).apply(Stamp { epoch: 2, generation: 9 }, &[]).await;
    assert!(matches!(late, Err(DriverError::Fenced { .. })), "{late:?}");
}

#[tokio::test]
async fn a_static_map_is_told_once_and_only_weights_change() {
    let Some(redis) = Redis::start().await else { return };
    let fixed = MapMode::Static([(8, 1), (16, 2), (24, 3)].into());
    let switch = switch(&redis, fixed);
    let can = switch.capabilities().await.expect("known");
    assert!(!can.remap && !can.map_per_port && can.fixed_map.len() == 3);
    switch.apply(stamp(1), &[weigh("Ethernet0", &[1, 2, 3])]).await.expect("told");
    let mut wanted = switch.read_back().await.expect("readable");
    assert!(wanted.ports.values().all(|port| port.map == can.fixed_map), "on all ports");
    assert_eq!(redis.all().await["PORT_QOS_MAP|Ethernet4"]["tc_to_queue_map"], "PENSTOCK");

    let mut before = redis.all().await;
    before.retain(|key, _| key.contains("MAP|"));
    wanted.ports.get_mut("Ethernet4").expect("there").weights = vec![5, 5];
    let changes = diff(&switch.read_back().await.expect("readable"), &wanted);
    assert_eq!(changes, [weigh("Ethernet4", &[5, 5])]);
    switch.apply(stamp(2), &changes).await.expect("told");
    assert_eq!(diff(&switch.read_back().await.expect("readable"), &wanted), []);
    let mut after = redis.all().await;
    after.retain(|key, _| key.contains("MAP|"));
    assert_eq!(after, before);
    let error = switch.apply(stamp(3), &[map("Ethernet0", 8, 2)]).await.expect_err("fixed");
    assert!(error.to_string().contains("map cannot change"), "{error}");
}

#[tokio::test]
async fn other_configurations_are_never_changed() {
    let Some(redis) = Redis::start().await else { return };
    let foreign: [(&str, &[(&str, &str)]); 9] = [
        ("PORT_QOS_MAP|global", &[("dscp_to_tc_map", "AZURE")]),
        ("PORT_QOS_MAP|Ethernet8", &[("dscp_to_tc_map", "AZURE"), ("pfc_enable", "3,4")]),
        ("DSCP_TO_TC_MAP|AZURE", &[("8", "1"), ("9", "3")]),
        ("TC_TO_QUEUE_MAP|AZURE", &[("1", "1")]),
        ("SCHEDULER|scheduler.0", &[("type", "DWRR"), ("weight", "14")]),
        ("QUEUE|Ethernet8|3-4", &[("scheduler", "scheduler.0")]),
        ("QUEUE|Ethernet4|7", &[("scheduler", "scheduler.0")]),
        ("WRED_PROFILE|AZURE_LOSSLESS", &[("ecn", "ecn_all")]),
        ("DEVICE_METADATA|localhost", &[("hostname", "leaf1")]),
    ];
    for (key, fields) in foreign {
        redis.set(key, fields).await;
    }
    redis.set("PORT_QOS_MAP|Ethernet0", &[("tc_to_pg_map", "AZURE")]).await;
    redis.set("QUEUE|Ethernet0|1", &[("wred_profile", "AZURE_LOSSLESS")]).await;
    let before = redis.all().await;
    let switch = switch(&redis, MapMode::PerPort);
    switch.apply(stamp(1), &port_changes()).await.expect("told");
    let none = ["Ethernet0", "Ethernet4"].map(|port| weigh(port, &[]));
    switch.apply(stamp(2), &none).await.expect("told");
    switch.apply(stamp(3), &port_changes()).await.expect("told");
    let after = redis.all().await;
    for (key, _) in foreign {
        assert_eq!(after[key], before[key], "{key}");
    }
    assert_eq!(after["PORT_QOS_MAP|Ethernet0"]["tc_to_pg_map"], "AZURE");
    assert_eq!(after["QUEUE|Ethernet0|1"]["wred_profile"], "AZURE_LOSSLESS");
    let ours = |key: &str| {
        let names = ["PENSTOCK", "|pen.", "QUEUE|Ethernet"];
        names.iter().any(|name| key.contains(name)) || key == "PORT_QOS_MAP|Ethernet4"
    };
    let new = after.keys().filter(|key| !before.contains_key(*key));
    let strange: Vec<&String> = new.filter(|key| !ours(key)).collect();
    assert!(strange.is_empty(), "{strange:?}");

    // The driver leaves out a port that gets another configuration, and changes it no more.
    redis.set("QUEUE|Ethernet4|6", &[("scheduler", "scheduler.0")]).await;
    let before = redis.all().await;
    let is = switch.read_back().await.expect("readable");
    let why = &is.left_out["Ethernet4"];
    assert!(why.contains("QUEUE|Ethernet4|6") && why.contains("scheduler.0"), "{why}");
    let error = switch.apply(stamp(4), &[weigh("Ethernet4", &[1, 1])]).await.expect_err("left out");
    assert!(error.to_string().contains("scheduler.0"), "{error}");
    assert_eq!(redis.all().await, before);
    let mut wanted = SwitchState::default();
    for port in ["Ethernet0", "Ethernet4"] {
        let state = PortState { weights: vec![7, 8], map: [(8, 1)].into() };
        wanted.ports.insert(port.to_owned(), state);
    }
    let changes = survey(&switch, &wanted).await.expect("readable").changes;
    assert!(changes.iter().all(|change| change.port() == "Ethernet0"), "{changes:?}");
    switch.apply(stamp(5), &changes).await.expect("the other port is told");
    let is = switch.read_back().await.expect("readable");
    assert_eq!(is.ports["Ethernet0"].weights, [7, 8]);
    assert_eq!(survey(&switch, &wanted).await.expect("readable").changes, []);
}

#[tokio::test]
async fn a_switch_that_wants_a_password_gets_it() {
    let Some(redis) = Redis::start().await else { return };
    redis.require("secret").await;
    let folder = temp_dir();
    let file = folder.join("password");
    let with = |password_file| {
        let port = PortInfo { name: "Ethernet0".into(), rate: BitsPerSecond(10_000_000_000) };
        let settings = Settings { password_file, ..Settings::default() };
        SonicSwitch::new("leaf1", &[port], settings, redis.endpoint()).expect("good settings")
    };
    let error = with(None).read_back().await.expect_err("no password").to_string();
    assert!(
        error.starts_with("switch leaf1: ") && error.contains("Authentication required"),
        "{error}"
    );
    // The file may change while the controller runs.
    let switch = with(Some(file.clone()));
    let error = switch.read_back().await.expect_err("no file").to_string();
    assert!(error.contains(&file.display().to_string()), "{error}");
    std::fs::write(&file, "old\n").expect("written");
    switch.read_back().await.expect_err("an old password");
    std::fs::write(&file, "secret\n").expect("written");
    assert_eq!(switch.read_back().await.expect("readable").ports.len(), 1);
}

/// Tests two controllers that write at the same time. The switch must have only the configuration
/// of the controller with the later stamp.
#[tokio::test]
async fn of_two_controllers_at_once_the_later_prevails() {
    let Some(redis) = Redis::start().await else { return };
    for round in 0..20u64 {
        let (old, new) = (switch(&redis, MapMode::PerPort), switch(&redis, MapMode::PerPort));
        let told = |generation| Stamp { epoch: 1 + round * 2 + generation, generation };
        let late = [map("Ethernet0", 8, 4), weigh("Ethernet0", &[9, 9])];
        let changes = port_changes();
        let (first, second) = tokio::join!(old.apply(told(0), &late), new.apply(told(1), &changes));
        second.expect("nobody is later");
        assert!(matches!(first, Ok(()) | Err(DriverError::Fenced { .. })), "{first:?}");
        let is = new.read_back().await.expect("readable");
        assert_eq!(is.stamp, told(1));
        assert_eq!(is.ports["Ethernet0"].map[&8], 1, "round {round}");
        assert_eq!(is.ports["Ethernet0"].weights, [10, 30, 60], "round {round}");
    }
}

#[tokio::test]
async fn old_images_get_references_with_brackets() {
    let Some(redis) = Redis::start().await else { return };
    let port = PortInfo { name: "Ethernet0".into(), rate: BitsPerSecond(10_000_000_000) };
    let settings = Settings { reference: Reference::Bracketed, ..Settings::default() };
    let switch = SonicSwitch::new("leaf1", &[port], settings, redis.endpoint()).expect("good");
    switch.apply(stamp(1), &[weigh("Ethernet0", &[1, 2])]).await.expect("told");
    let all = redis.all().await;
    assert_eq!(all["QUEUE|Ethernet0|1"]["scheduler"], "[SCHEDULER|pen.Ethernet0.1]");
    assert_eq!(all["PORT_QOS_MAP|Ethernet0"]["dscp_to_tc_map"], "[DSCP_TO_TC_MAP|PENSTOCK]");
    assert_eq!(switch.read_back().await.expect("readable").ports["Ethernet0"].weights, [1, 2]);
}

/// Tests that the ASIC gets the steps of a change one after the other, although orchagent reads
/// CONFIG_DB only now and then. A driver that does not wait for the ASIC fails: orchagent then sees
/// the new class of code point 24 before the new queue of this class.
#[tokio::test]
async fn each_step_reaches_the_asic_before_the_next_is_written() {
    let Some(redis) = Redis::start().await else { return };
    let redis = Arc::new(redis);
    let orchagent = Orchagent::start(&redis).await;
    let switch = switch(&redis, MapMode::PerPort);
    let both = |dscp, queues: [u8; 2]| {
        [map("Ethernet0", dscp, queues[0]), map("Ethernet4", dscp, queues[1])]
    };
    let unmap = |port: &str| Change::Unmap { port: port.to_owned(), dscp: 32 };
    let first = [both(8, [1, 1]), both(16, [2, 2]), both(32, [2, 1])].concat();
    switch.apply(stamp(1), &first).await.expect("told");
    // The class of code point 32 stays mapped to queues 2 and 1, and becomes free.
    let gone = ["Ethernet0", "Ethernet4"].map(unmap);
    switch.apply(stamp(2), &gone).await.expect("told");
    let before: Vec<AsicState> = orchagent.states();
    let last = before.last().expect("the ASIC has maps");
    assert_eq!((last.queue("Ethernet0", 16), last.queue("Ethernet0", 32)), (2, 0));

    switch.apply(stamp(3), &both(24, [1, 2])).await.expect("told");
    let states = orchagent.states();
    assert!(!states.is_empty(), "the change reached the ASIC before the driver returned");
    for state in &states {
        for (port, queue) in [("Ethernet0", 1), ("Ethernet4", 2)] {
            let is = state.queue(port, 24);
            assert!(is == 0 || is == queue, "{port}: code point 24 in queue {is}");
            assert_eq!((state.queue(port, 8), state.queue(port, 16)), (1, 2), "{port}");
        }
    }
    let last = states.last().expect("not empty");
    assert_eq!((last.queue("Ethernet0", 24), last.queue("Ethernet4", 24)), (1, 2));
}

#[tokio::test]
async fn a_caller_waits_for_the_asic_longer_than_for_an_answer_and_notices_a_restart() {
    let Some(redis) = Redis::start().await else { return };
    let switch = switch(&redis, MapMode::PerPort);
    let run = switch.run_id().await.expect("readable");
    assert!(run.is_some());
    // The ASIC shows its ports, but has no orchagent yet.
    show_ports(&redis).await;
    assert_eq!(switch.patience(), None);
    let changes = port_changes();
    let patience = async {
        loop {
            if let Some(patience) = switch.patience() {
                return patience;
            }
            tokio::task::yield_now().await;
        }
    };
    let patience = tokio::select! {
        done = switch.apply(stamp(1), &changes) => panic!("the ASIC has no maps: {done:?}"),
        patience = patience => patience,
    };
    assert!(patience > Duration::ZERO);
    assert_eq!(switch.patience(), None, "nobody waits any more");
    assert_eq!(switch.run_id().await.expect("readable"), run, "it did not restart");
    drop(redis);
    let Some(redis) = Redis::start().await else { return };
    let next = self::switch(&redis, MapMode::PerPort).run_id().await.expect("readable");
    assert_ne!(next, run);
}

#[tokio::test]
async fn a_map_that_the_asic_does_not_have_is_not_read_back() {
    let Some(redis) = Redis::start().await else { return };
    let switch = switch(&redis, MapMode::PerPort);
    switch.apply(stamp(1), &port_changes()).await.expect("told");
    let told = switch.read_back().await.expect("readable");
    assert_eq!(told.ports["Ethernet4"].map, [(8, 3)].into());
    // The ASIC shows the ports, but orchagent has not given them any map.
    show_ports(&redis).await;
    let is = switch.read_back().await.expect("readable");
    assert!(is.ports.values().all(|port| port.map.is_empty()), "{is:?}");
    assert_eq!(is.ports["Ethernet0"].weights, told.ports["Ethernet0"].weights);
    assert!(!diff(&is, &told).is_empty());
}

#[tokio::test]
async fn more_tenants_than_classes_are_bound_if_each_has_one_queue_on_the_switch() {
    let Some(redis) = Redis::start().await else { return };
    let switch = switch(&redis, MapMode::PerPort);
    let mut wanted = SwitchState::default();
    for port in ["Ethernet0", "Ethernet4"] {
        wanted.ports.insert(port.to_owned(), PortState { weights: vec![1; 7], map: [].into() });
    }
    // Two of three tenants use only one of the ports.
    for tenant in 1..=30u8 {
        let ports: &[&str] = match tenant % 3 {
            0 => &["Ethernet0"],
            1 => &["Ethernet4"],
            _ => &["Ethernet0", "Ethernet4"],
        };
        for port in ports {
            let port = wanted.ports.get_mut(*port).expect("there");
            port.map.insert(tenant, 1 + tenant % 6);
        }
    }
    let changes =
        survey(&switch, &wanted).await.expect("seven classes besides the shared class").changes;
    switch.apply(stamp(1), &changes).await.expect("told");
    assert_eq!(survey(&switch, &wanted).await.expect("readable").changes, []);
}
