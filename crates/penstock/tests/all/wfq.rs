//! A switch with two ports between two network namespaces. Real packets with two code points share
//! one output of 100 Mbit/s, and its queues change while they flow. The test needs root. Without
//! root it is skipped.

use std::sync::atomic::Ordering::Relaxed;

use crate::support::flows::{Flows, Namespace};
use crate::support::{Daemon, await_true, namespace_options};

/// A fabric's switch. One tenant has its untagged network.
const SWITCH: &str = r#"[[tenant]]
name = "fabric"

[[port]]
name = "left"
packet.interface = "left0"
tenant = "fabric"

[[port]]
name = "right"
packet.interface = "right0"
link = "100M"
egress = "wfq"
wfq = { weights = [1, 3], map = { 8 = 1 } }
"#;
const LINK: f64 = 100e6;
/// Bytes that Ethernet adds to a frame on a link.
const OVERHEAD: u64 = 24;
/// Range of the link's load in a window that shows how the link is divided. Below the range,
/// senders left the link idle. Above it, the link caught up after a late worker, and a queue may
/// have been empty meanwhile. Both bounds are closer than the deviation that the shares may have.
const FULL: std::ops::Range<f64> = 0.99..1.005;
/// Longest delay that a link catches up, in seconds of its rate (`OWED_MOST` of the pacer).
const OWED: f64 = 0.1;
/// Ports of the receivers, and the code points of the frames to them.
const FLOWS: [(u16, u8); 2] = [(5_000, 0), (5_008, 8)];

/// Frames, bytes, drops and waiting frames of each queue of the right port, and the time of the
/// reading in nanoseconds.
fn reading(daemon: &Daemon) -> (Vec<[u64; 4]>, u64) {
    let stats = daemon.ask("stats right --json").json();
    let queues = stats["ports"][0]["queues"].as_array().unwrap().iter();
    let keys = ["frames", "bytes", "drops", "backlog_frames"];
    let of = |queue: &serde_json::Value| keys.map(|key| queue[key].as_u64().unwrap());
    (queues.map(of).collect(), stats["time_ns"].as_u64().unwrap())
}

fn queues(daemon: &Daemon) -> Vec<[u64; 4]> {
    reading(daemon).0
}

/// Counts the bytes that leave queues 0 and 1 from now on, until their sum is `all`. Also returns
/// the load of the link.
///
/// # Panics
/// The link carried more than its rate and the bytes that it may catch up.
#[expect(clippy::cast_precision_loss, reason = "some millions")]
fn measure(daemon: &Daemon, all: u64) -> ([u64; 2], f64) {
    let (before, from) = reading(daemon);
    let mut after = (before.clone(), from);
    let grown = |after: &[[u64; 4]], key: usize| {
        [0, 1].map(|queue: usize| after[queue][key] - before[queue][key])
    };
    await_true("bytes to leave the queues", || {
        after = reading(daemon);
        grown(&after.0, 1).iter().sum::<u64>() >= all
    });
    let (frames, bytes) = (grown(&after.0, 0), grown(&after.0, 1));
    let wire = bytes.iter().sum::<u64>() + OVERHEAD * frames.iter().sum::<u64>();
    let seconds = (after.1 - from) as f64 / 1e9;
    let load = wire as f64 * 8.0 / LINK / seconds;
    assert!(load < FULL.end + OWED / seconds, "{load} of the link for {seconds} s");
    (bytes, load)
}

/// Largest number of windows of [`measure`] that may show nothing.
const TRIES: usize = 20;

/// Counts the bytes that leave queues 0 and 1, and the bytes that arrive, in one second of the
/// link. The senders must keep the link busy. A busy machine sometimes stops them. Then a queue is
/// empty and its weight has no effect. After a stop, the link catches up. Such windows are measured
/// again.
fn shares(daemon: &Daemon, flows: &Flows) -> ([u64; 2], [u64; 2]) {
    let arrived = || flows.arrived.each_ref().map(|bytes| bytes.load(Relaxed));
    let mut loads = Vec::new();
    while loads.len() < TRIES {
        let before = arrived();
        let (left, load) = measure(daemon, 12_000_000);
        let after = arrived();
        if FULL.contains(&load) {
            println!("{left:?} bytes left at {load:.3} of the link");
            return (left, [0, 1].map(|flow: usize| after[flow] - before[flow]));
        }
        loads.push(load);
    }
    panic!("no window in which the link carried its rate: {loads:?}");
}

/// Checks that only frames without room were dropped, and that every frame is counted.
fn adds_up(daemon: &Daemon) {
    await_true("what waits to go", || queues(daemon).iter().all(|queue| queue[3] == 0));
    daemon.ask("stats --check").ok();
    let stats = daemon.ask("stats --json").json();
    let ports = stats["ports"].as_array().unwrap();
    let drops = ports.iter().find(|port| port["port"] == "left").unwrap()["drops"].clone();
    let lost = drops["queue-full"].as_u64().unwrap();
    let in_queues: u64 = queues(daemon).iter().map(|queue| queue[2]).sum();
    assert_eq!(lost, in_queues, "{drops}");
    assert!(drops.get("queue-gone").is_none() && drops.get("queue-late").is_none(), "{drops}");
    let page = daemon.page("/metrics");
    assert!(page.contains("penstock_queue_frames_total{port=\"right\",queue=\"2\"}"), "{page}");
    let table = daemon.ask("stats right --queues").ok();
    assert!(table.lines().any(|line| line.starts_with("right      2       1  46")), "{table}");
}

#[test]
fn a_switch_divides_a_port_by_code_point_and_is_changed_while_it_does() {
    if namespace_options() != Some(&["--net"]) {
        penstock_testing::skip("two namespaces and a switch between them need root");
        return;
    }
    let Some(daemon) = Daemon::start(SWITCH) else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    left.join(&daemon, "left0", "10.9.0.1");
    right.join(&daemon, "right0", "10.9.0.2");
    await_true("both ports to be up", || {
        let ports = daemon.ask("port list --json").json();
        ports.as_array().unwrap().iter().all(|port| port["state"] == "up")
    });
    let flows = Flows::start(&left, &right, FLOWS);
    await_true("frames to wait in both queues", || {
        let queues = queues(&daemon);
        queues[0][3] > 50 && queues[1][3] > 50
    });
    let arrived = || flows.arrived.each_ref().map(|bytes| bytes.load(Relaxed));
    let ([shared, own], came) = shares(&daemon, &flows);
    assert!(own.abs_diff(3 * shared) <= own / 50, "{shared} and {own}");
    assert!(came[1].abs_diff(3 * came[0]) <= came[1] / 5, "{came:?} arrived");

    // Another weight applies from the next frame on.
    daemon.ask("port set right wfq={weights=[1,1],map={8=1}} --no-save").ok();
    let ([shared, own], _) = shares(&daemon, &flows);
    assert!(own.abs_diff(shared) <= own / 50, "{shared} and {own}");
    let why = daemon.ask("explain left --over 1 --json").json();
    let text = why["why"].as_str().unwrap();
    assert!(why["limit"] == "link" && text.contains("of right (weight 1 of 8)"), "{why}");

    // The sender's port receives the code point of its tenant. Both flows have it from now on.
    daemon.ask("port set right wfq={weights=[1,1,1],map={8=1,46=2}} --no-save").ok();
    daemon.ask("tenant set fabric dscp=46 --no-save").ok();
    await_true("the old queues to be empty", || {
        let queues = queues(&daemon);
        queues[0][3] + queues[1][3] == 0 && queues[2][3] > 50
    });
    let (before, marked) = (arrived(), queues(&daemon));
    let mut after = marked.clone();
    await_true("marked frames to leave and to arrive in both flows", || {
        after = queues(&daemon);
        let now = arrived();
        after[2][0] > marked[2][0] + 200
            && now[0] > before[0] + 100_000
            && now[1] > before[1] + 100_000
    });
    let others = |queues: &[[u64; 4]]| queues[0][0] + queues[1][0];
    assert_eq!(others(&after), others(&marked), "every frame is marked: {after:?}");
    drop(flows);
    adds_up(&daemon);
}
