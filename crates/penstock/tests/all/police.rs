//! Tests of ports with rate limits, and of a full link. The tests control the daemon through the
//! command line.
//!
//! Without the rights that the tests in `cli.rs` need, the tests are skipped.

use crate::support::{Daemon, await_some, await_true};

/// Configuration of a VM, and of an uplink with a rate of 2 Mbit/s.
const VM_AND_UPLINK: &str = r#"[[tenant]]
name = "red"

[[port]]
name = "vm"
tap.interface = "tapvm"
tenant = "red"
tap.offloads = false

[[port]]
name = "up"
tap.interface = "tapup"
tap.offloads = false
link = "2M"

[[fdb]]
tenant = "red"
mac = "52:54:00:00:00:77"
port = "up"
"#;

/// Makes the kernel send 200 datagrams of 1,400 bytes from the VM to an address behind the uplink.
const TRAFFIC: &str = "ip addr add 10.9.0.1/24 dev tapvm 2>/dev/null; ip link set tapvm up; \
     ip link set tapup up; \
     ip neigh replace 10.9.0.77 lladdr 52:54:00:00:00:77 dev tapvm; \
     body=$(head -c 1400 /dev/zero | tr '\\0' x); \
     for i in $(seq 200); do echo $body > /dev/udp/10.9.0.77/9; done";

fn count(stats: &serde_json::Value, port: &str, kind: &str, name: &str) -> u64 {
    let ports = stats["ports"].as_array().unwrap();
    let port = ports.iter().find(|entry| entry["port"] == port).unwrap();
    port[kind][name].as_u64().unwrap_or(0)
}

fn stats(daemon: &Daemon) -> serde_json::Value {
    daemon.ask("stats --json").json()
}

/// Repeats `penstock explain` until the answer is `limit`, because the history of counters is empty
/// when the daemon starts.
fn explained(daemon: &Daemon, port: &str, limit: &str) -> serde_json::Value {
    explained_during(daemon, port, limit, || ())
}

/// Repeats `traffic` and `penstock explain` until the answer is `limit`.
fn explained_during(
    daemon: &Daemon,
    port: &str,
    limit: &str,
    traffic: impl Fn(),
) -> serde_json::Value {
    await_some(&format!("{port} to be held by {limit}"), || {
        traffic();
        let told = daemon.ask(&format!("explain {port} --over 10 --json"));
        let answer = told.status.success().then(|| told.json())?;
        (answer["limit"] == limit).then_some(answer)
    })
}

#[test]
fn a_port_that_nothing_holds_and_one_that_cannot_pass_frames_are_told_as_such() {
    let Some(daemon) = Daemon::start(VM_AND_UPLINK) else { return };
    daemon.inside("ip link set tapvm up").ok();
    let answer = explained(&daemon, "vm", "nothing");
    assert_eq!((&answer["entitled"], &answer["priority"]), (&0.into(), &8.into()));
    let socket = daemon.scratch.join("vm2.sock");
    let add = format!("port add vm2 vhost-user.socket={} tenant=red", socket.display());
    daemon.ask(&format!("{add} --no-save")).ok();
    let answer = explained(&daemon, "vm2", "attachment");
    assert_eq!(answer["why"], "the port is waiting, so no frame can pass");
    let missing = daemon.ask("explain nobody").fails();
    assert!(missing.contains("port \"nobody\": the port does not exist"), "{missing}");
}

#[test]
fn what_is_above_the_rate_is_dropped_and_counted_and_the_rate_may_change() {
    let Some(daemon) = Daemon::start(VM_AND_UPLINK) else { return };
    let missing = daemon.ask("port set vm ingress_policy=pps --no-save").fails();
    assert!(missing.contains("policy `pps` has no rate; add police"), "{missing}");
    let set = "port set vm ingress_policy=pps police={pps=\"1\",burst=4} --no-save";
    daemon.ask(set).ok();
    await_true("frames to be policed", || {
        daemon.inside(TRAFFIC).ok();
        count(&stats(&daemon), "vm", "drops", "policed") > 100
    });
    let now = stats(&daemon);
    let of = |name| count(&now, "vm", "counters", name);
    assert_eq!(of("police_red"), count(&now, "vm", "drops", "policed"));
    assert!(of("police_green") >= 4 && of("police_yellow") == 0, "{now}");
    assert!(daemon.ask("stats --check").ok().contains("The counters add up"));
    assert!(daemon.ask("stats --drops").ok().contains("exceeds the port's rate"));
    let answer = explained(&daemon, "vm", "own-rate");
    assert!(answer["why"].as_str().unwrap().contains("(policy pps) dropped "), "{answer}");

    daemon
        .ask("port set vm ingress_policy=bps police={cir=\"8k\",cbs=1500,ebs=3000} --no-save")
        .ok();
    await_true("yellow frames", || {
        daemon.inside(TRAFFIC).ok();
        count(&stats(&daemon), "vm", "counters", "police_yellow") > 0
    });
    daemon.ask("port set vm ingress_policy= police= --no-save").ok();
    let before = count(&stats(&daemon), "vm", "counters", "police_red");
    daemon.inside(TRAFFIC).ok();
    assert_eq!(count(&stats(&daemon), "vm", "counters", "police_red"), before);
}

#[test]
fn a_full_link_brings_the_limits_in_and_they_go_when_it_has_room() {
    let Some(daemon) = Daemon::start(VM_AND_UPLINK) else { return };
    let link = || stats(&daemon)["links"][0].clone();
    assert_eq!(link()["limited"], false);
    assert_eq!(link()["parts"][0]["bps"], 1_980_000);
    await_true("the link to be full", || {
        daemon.inside(TRAFFIC).ok();
        let now = stats(&daemon);
        now["links"][0]["limited"] == true && count(&now, "vm", "counters", "link_waits") > 0
    });
    // All traffic so far may have passed before the daemon first recorded the counters.
    let answer = explained_during(&daemon, "vm", "link", || {
        daemon.inside(TRAFFIC).ok();
    });
    assert_eq!(answer["limit_port"], "up");
    let told = daemon.ask("explain vm").ok();
    assert!(told.starts_with("vm: limited by the link of up\n  the link of up sends "), "{told}");
    let told = daemon.ask("stats").ok();
    assert!(
        told.contains("link up: sends ") && told.contains(", bottleneck 1 time so far"),
        "{told}"
    );
    assert!(daemon.page("/metrics").contains("penstock_link_bottleneck_times_total{port=\"up\"}"));
    let quiet = await_some("the limits to go", || {
        let link = link();
        (link["limited"] == false).then_some(link)
    });
    assert!(quiet["entered"].as_u64().unwrap() >= 1);
    let log = daemon.log();
    assert!(log.contains("the link is the bottleneck"), "{log}");
    assert!(log.contains("the link has room again"), "{log}");
    assert!(daemon.ask("stats --check").ok().contains("The counters add up"));
}
