//! Test of a switch with two ports between two network namespaces. Real packets with two code
//! points share an output of 100 Mbit/s, and the queues of the output change while packets flow.
//! Without root the test is skipped.

use std::sync::atomic::Ordering::Relaxed;

use crate::support::flows::{Flows, Namespace};
use crate::support::{Daemon, await_true, namespace_options};

/// A switch of a fabric. One tenant owns the untagged network.
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
/// Range of the link's load in a valid window. If the load is below 0.99, the senders left the link
/// idle. If the load is above 1.005, the link caught up after a delay of the worker, and a queue
/// may have been empty earlier. The range of 0.99 to 1.005 is narrower than the deviation that the
/// test allows for the shares of queues.
const FULL: std::ops::Range<f64> = 0.99..1.005;
/// If the worker was late, the link sends faster than its rate until it has caught up. The constant
/// `OWED` is the longest delay, in seconds, for which the link catches up (`OWED_MOST` of the
/// pacer).
const OWED: f64 = 0.1;
/// Ports of the receivers, and the code points of the frames to them.
const FLOWS: [(u16, u8); 2] = [(5_000, 0), (5_008, 8)];

/// Returns the frames, bytes, drops and backlog of each queue of the port `right`, and the time of
/// the reading in nanoseconds.
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

/// Waits until queues 0 and 1 together have sent `all` further bytes, and returns the bytes of each
/// queue. Also returns the load of the link, and the smallest backlog of queues 0 and 1 in frames.
///
/// # Panics
/// Panics if the link sent more than its rate permits, including the longest delay for which the
/// link may catch up.
#[expect(clippy::cast_precision_loss, reason = "some millions")]
fn measure(daemon: &Daemon, all: u64) -> ([u64; 2], f64, u64) {
    let (before, from) = reading(daemon);
    let mut after = (before.clone(), from);
    let grown = |after: &[[u64; 4]], key: usize| {
        [0, 1].map(|queue: usize| after[queue][key] - before[queue][key])
    };
    let mut least = u64::MAX;
    await_true("bytes to leave the queues", || {
        after = reading(daemon);
        least = after.0[..2].iter().map(|queue| queue[3]).min().unwrap().min(least);
        grown(&after.0, 1).iter().sum::<u64>() >= all
    });
    let (frames, bytes) = (grown(&after.0, 0), grown(&after.0, 1));
    let wire = bytes.iter().sum::<u64>() + OVERHEAD * frames.iter().sum::<u64>();
    let seconds = (after.1 - from) as f64 / 1e9;
    let load = wire as f64 * 8.0 / LINK / seconds;
    assert!(load < FULL.end + OWED / seconds, "{load} of the link for {seconds} s");
    (bytes, load, least)
}

/// Maximum number of calls of [`measure`] until the load is in [`FULL`] and each queue has at least
/// [`WAITING`] frames.
const TRIES: usize = 20;
/// Number of frames that must wait in each queue. If fewer frames wait, a queue may become empty
/// between two readings of its backlog.
const WAITING: u64 = 20;

/// Counts the bytes that leave queues 0 and 1, and the bytes that arrive at the receivers, while
/// the link sends for one second. The senders must send enough frames to keep the link busy. If a
/// busy machine stops a sender, a queue becomes empty, and its weight has no effect. When the
/// sender continues after a pause, the link sends faster than its rate to catch up. The function
/// repeats a measurement in which a queue had too few frames, or in which the load of the link was
/// not in [`FULL`]. A queue may also have been empty between two readings. So the function repeats
/// a measurement up to twice if queue 1 did not get `weight` times the bytes of queue 0, within
/// 2 %. Returns the bytes that arrived.
///
/// # Panics
/// Panics if three measurements show other shares.
fn shares(daemon: &Daemon, flows: &Flows, weight: u64) -> [u64; 2] {
    let arrived = || flows.arrived.each_ref().map(|bytes| bytes.load(Relaxed));
    let (mut loads, mut wrong) = (Vec::new(), Vec::new());
    while loads.len() < TRIES && wrong.len() < 3 {
        let before = arrived();
        let (left, load, least) = measure(daemon, 12_000_000);
        let after = arrived();
        if !FULL.contains(&load) || least < WAITING {
            loads.push((load, least));
        } else if left[1].abs_diff(weight * left[0]) <= left[1] / 50 {
            return [0, 1].map(|flow: usize| after[flow] - before[flow]);
        } else {
            wrong.push(left);
        }
    }
    panic!("other shares than 1:{weight} in {wrong:?}; no full link or no backlog in {loads:?}");
}

/// Checks that every frame is counted, and that the queues dropped only frames for which they had
/// no room. On a busy machine, the queues also drop frames that waited for longer than the queue
/// allows.
fn adds_up(daemon: &Daemon) {
    await_true("what waits to go", || queues(daemon).iter().all(|queue| queue[3] == 0));
    daemon.ask("stats --check").ok();
    let stats = daemon.ask("stats --json").json();
    let ports = stats["ports"].as_array().unwrap();
    let drops = ports.iter().find(|port| port["port"] == "left").unwrap()["drops"].clone();
    let lost = drops["queue-full"].as_u64().unwrap() + drops["queue-late"].as_u64().unwrap_or(0);
    let in_queues: u64 = queues(daemon).iter().map(|queue| queue[2]).sum();
    assert_eq!(lost, in_queues, "{drops}");
    assert!(drops.get("queue-gone").is_none(), "{drops}");
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
    let came = shares(&daemon, &flows, 3);
    assert!(came[1].abs_diff(3 * came[0]) <= came[1] / 5, "{came:?} arrived");

    // Another weight applies from the next frame on.
    daemon.ask("port set right wfq={weights=[1,1],map={8=1}} --no-save").ok();
    shares(&daemon, &flows, 1);
    let why = daemon.ask("explain left --over 1 --json").json();
    let text = why["why"].as_str().unwrap();
    assert!(why["limit"] == "link" && text.contains("of right (weight 1 of 8)"), "{why}");

    // The sender's port receives the code point of its tenant, so both flows have this code point
    // from now on.
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
