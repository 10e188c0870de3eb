//! Tests of two controllers and three members of etcd, as processes. Sold guarantees survive the
//! loss of a controller. If the leader is killed, frozen or cut off from its store, the other
//! controller leads within 15 s. The store refuses late writes of a frozen controller. Without etcd
//! the tests are skipped.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use penstock_guest::bed::relay::Relay;
use penstock_testing::temp_dir;

use crate::etcd::Cluster;
use crate::support::controller::{Controller, TAKE_OVER, until};

const TENANTS: &str = r#"[[tenant]]
name = "web"
vms = 10
rate = "10M"
most_per_server = 1

[[tenant]]
name = "big"
vms = 10
rate = "500M"
most_per_server = 1
"#;

fn add(controller: &Controller, folder: &Path) {
    let file = folder.join("tenants.toml");
    fs::write(&file, TENANTS).unwrap();
    let (fine, answer) = controller.ask(&["tenant", "add", file.to_str().unwrap()]).unwrap();
    assert!(!fine, "one of two has no place");
    assert_eq!(answer["placed"][0]["name"], "web");
    let why = answer["refused"][0]["why"].as_str().unwrap();
    assert!(why.contains("the tenant fits with"), "{why}");
}

#[test]
fn what_was_sold_outlives_the_controller() {
    let folder = temp_dir();
    let store = format!("path = {:?}", folder.join("store.redb"));
    let controller = Controller::start(&folder, "one", &store);
    until(TAKE_OVER, "it leads", || controller.leads());
    let why = controller.refuses(&["port", "list"]);
    assert!(why.contains("a controller answers, not a switch"), "{why}");
    add(&controller, &folder);
    let second = Controller::start(&folder, "two", &store);
    let refused = until(TAKE_OVER, "a second on the same file ends", || {
        fs::read_to_string(folder.join("two.log")).unwrap().contains("store.redb")
    });
    drop((second, refused));
    controller.signal(Signal::SIGKILL);
    drop(controller);
    let controller = Controller::start(&folder, "one", &store);
    until(TAKE_OVER, "it leads again", || controller.leads());
    assert_eq!(controller.tenants(), ["web"]);
    let (_, explained) = controller.ask(&["explain", "web"]).unwrap();
    assert_eq!(explained["tenant"]["vms"], 10);
    controller.ask(&["tenant", "remove", "web"]).unwrap();
    assert!(controller.tenants().is_empty());
}

#[test]
fn a_leader_that_is_killed_or_frozen_is_followed_and_can_do_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let Some(mut cluster) = runtime.block_on(Cluster::start()) else { return };
    let folder = temp_dir();
    let store = format!("endpoints = {:?}", cluster.endpoints());
    let one = Controller::start(&folder, "one", &store);
    until(TAKE_OVER, "one leads", || one.leads());
    let two = Controller::start(&folder, "two", &store);
    until(TAKE_OVER, "two answers", || two.ask(&["status"]).is_some());
    assert!(!two.leads());
    add(&one, &folder);
    let first = one.epoch();
    // A frozen leader still believes that it leads when it continues.
    one.signal(Signal::SIGSTOP);
    let took = until(TAKE_OVER, "two leads after one was frozen", || two.leads());
    eprintln!("frozen leader followed after {took:?}");
    assert!(two.epoch() > first);
    assert_eq!(two.tenants(), ["web"]);
    one.signal(Signal::SIGCONT);
    until(TAKE_OVER, "one knows that it leads no more", || {
        one.ask(&["status"]).is_some_and(|(_, status)| status["leads"] == false)
    });
    let why = one.refuses(&["controller", "tenant", "remove", "web"]);
    assert!(why.contains("this controller does not lead"), "{why}");
    assert_eq!(two.tenants(), ["web"]);
    // First the test kills the leader of etcd, then the leading controller.
    let member = runtime.block_on(cluster.leads()).unwrap();
    cluster.kill(member);
    until(TAKE_OVER, "two decides on", || {
        two.ask(&["service", "server-9", "drained"]).is_some_and(|(fine, _)| fine)
    });
    two.signal(Signal::SIGKILL);
    let took = until(TAKE_OVER, "one leads after two was killed", || one.leads());
    eprintln!("killed leader followed after {took:?}");
    assert_eq!(one.tenants(), ["web"]);
    let (_, topology) = one.ask(&["topology"]).unwrap();
    let nodes = topology["nodes"].as_array().unwrap();
    let drained = nodes.iter().find(|node| node["name"] == "server-9").unwrap();
    assert_eq!(drained["service"], "drained");
    // All members of etcd restart.
    for member in 0..3 {
        cluster.kill(member);
    }
    for member in 0..3 {
        cluster.restart(member);
    }
    until(2 * TAKE_OVER, "one leads with the etcd of before", || {
        one.leads() && one.ask(&["tenants"]).is_some_and(|(_, t)| t[0]["name"] == "web")
    });
}

#[test]
fn a_leader_that_is_cut_off_stops_by_itself_and_is_followed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let Some(cluster) = runtime.block_on(Cluster::start()) else { return };
    let folder = temp_dir();
    let members = cluster.endpoints();
    let relay = |member: &String| {
        Relay::start(member.trim_start_matches("http://").parse().unwrap()).unwrap()
    };
    let relays: Vec<Relay> = members.iter().map(relay).collect();
    let through: Vec<String> = relays.iter().map(|r| format!("http://{}", r.address())).collect();
    let one = Controller::start(&folder, "one", &format!("endpoints = {through:?}"));
    until(TAKE_OVER, "one leads", || one.leads());
    let two = Controller::start(&folder, "two", &format!("endpoints = {members:?}"));
    until(TAKE_OVER, "two answers", || two.ask(&["status"]).is_some());
    add(&one, &folder);
    let first = one.epoch();
    relays.iter().for_each(|relay| relay.cut(true));
    let took = until(TAKE_OVER, "two leads after one was cut off", || two.leads());
    eprintln!("leader that was cut off followed after {took:?}");
    assert!(two.epoch() > first);
    // No message tells the controller that it lost the lease. It measures the time since the
    // store's last answer.
    assert!(!one.leads(), "one has stopped before another began");
    let why = one.refuses(&["controller", "tenant", "remove", "web"]);
    assert!(why.contains("this controller does not lead"), "{why}");
    assert!(two.ask(&["service", "server-9", "drained"]).is_some_and(|(fine, _)| fine));
    relays.iter().for_each(|relay| relay.cut(false));
    two.signal(Signal::SIGKILL);
    until(TAKE_OVER, "one leads again, with what two decided", || {
        let drained = one.ask(&["topology"]).is_some_and(|(_, topology)| {
            let nodes = topology["nodes"].as_array().into_iter().flatten();
            nodes.into_iter().any(|n| n["name"] == "server-9" && n["service"] == "drained")
        });
        one.leads() && drained
    });
    assert_eq!(one.tenants(), ["web"]);
}

#[test]
fn an_epoch_that_was_raised_outlives_the_controller() {
    let folder = temp_dir();
    let store = format!("path = {:?}", folder.join("store.redb"));
    let controller = Controller::start(&folder, "one", &store);
    until(TAKE_OVER, "it leads", || controller.leads());
    let before = controller.epoch();
    let (fine, told) = controller.ask(&["epoch", "--at-least", "1000"]).unwrap();
    assert!(fine && before < 1000, "{before}");
    assert_eq!((&told["epoch"], &told["before"]), (&1000.into(), &before.into()));
    assert_eq!(controller.epoch(), 1000);
    let why = controller.refuses(&["controller", "epoch", "--at-least", "18446744073709551615"]);
    assert!(why.contains("the limit is 4611686018427387904"), "{why}");
    drop(controller);
    let next = Controller::start(&folder, "one", &store);
    until(TAKE_OVER, "the next leads", || next.leads());
    assert!(next.epoch() > 1000);
}
