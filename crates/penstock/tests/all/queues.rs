//! Tests of outputs that queue frames, configured on running ports. The tests control the daemon
//! through the command line while guests flood the switch. Without the rights that the tests in
//! `cli.rs` need, the tests are skipped.

use std::time::Instant;

use crate::support::await_true;
use crate::support::flood::{Bed, CAPACITY};

/// This number of frames does not fit into the queues of two VMs, which have room for 262144 bytes
/// each.
const WAITING: u64 = 400;

/// Waits until two VMs together have sent `all` further frames, and returns the number of frames
/// that each VM sent.
fn sent(bed: &Bed, all: u64) -> [u64; 2] {
    let read = || bed.counts(["vm1", "vm2"], "forwarded");
    let before = read();
    let since = |now: [u64; 2]| [now[0] - before[0], now[1] - before[1]];
    await_true("frames to leave the queue", || since(read()).iter().sum::<u64>() >= all);
    since(read())
}

#[test]
fn a_shared_output_divides_its_link_by_shares_and_loses_nothing() {
    // The link must be the bottleneck and not the worker. If other guests of the machine's
    // hypervisor interrupt a VM's batch, the worker charges the VM for the interruption. With a
    // tenth of this capacity the VM would then pause until its queue is empty.
    let Some(bed) = Bed::start(10 * CAPACITY, true) else { return };
    bed.set("sink egress=fair-share link=8M");
    bed.set("vm1 share=3");
    await_true("VMs to be held back", || {
        ["vm1", "vm2"].iter().all(|vm| bed.count(vm, "held_back") > 0)
    });
    // Frames that waited before the share was set leave by the old share.
    sent(&bed, WAITING);
    let [first, second] = sent(&bed, 1_200);
    assert!(first.abs_diff(3 * second) <= first / 20, "{first} and {second}");
    // Another weight applies from the next frame on.
    bed.set("vm1 share=1");
    sent(&bed, WAITING);
    let [first, second] = sent(&bed, 1_200);
    assert!(first.abs_diff(second) <= first / 20, "{first} and {second}");
    for vm in ["vm1", "vm2"] {
        let dropped = bed.dropped(vm);
        assert!(dropped.is_empty(), "{vm}: {dropped:?}");
    }
    assert!(bed.count("sink", "tx_queued") > 0 && bed.count("sink", "tx_queue_p50") > 0);
    // The daemon removes the queue with its waiting frames and counts the frames. The worker polls
    // all ports again.
    bed.set("sink egress= link=");
    let moved = sent(&bed, 5_000);
    assert!(moved.iter().all(|frames| *frames > 500), "{moved:?}");
    assert_eq!(bed.count("sink", "tx_queued"), 0);
    assert!(bed.dropped("vm1").keys().all(|reason| reason == "queue-gone"), "counted");
    bed.daemon.ask("stats --check").ok();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a rate is of time")]
fn a_vm_is_delayed_to_its_rate_and_its_neighbour_is_not() {
    let Some(bed) = Bed::start(CAPACITY, true) else { return };
    let refused = bed.daemon.ask(r#"port set vm1 shape={send="100k"}"#).fails();
    assert!(refused.contains("out of range; write 256k to 10G"), "{refused}");
    bed.set(r#"vm1 shape={send="4M"}"#);
    let began = Instant::now();
    let before = bed.count("vm1", "forwarded");
    let [_, neighbour] = sent(&bed, 8_000);
    let took = began.elapsed().as_secs_f64();
    let shaped = bed.count("vm1", "forwarded") - before;
    // The limit is 4 Mbit/s with frames of 1504 bytes, plus the shaper's depth.
    let most = 4e6 * took / 8.0 / 1504.0 + 50.0;
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let (shaped_f, neighbour_f) = (shaped as f64, neighbour as f64);
    assert!(shaped > 0 && shaped_f <= most, "{shaped} frames in {took} s");
    assert!(neighbour_f > 4.0 * shaped_f, "{neighbour} beside {shaped}");
    assert!(bed.dropped("vm1").is_empty(), "what is shaped waits");
    bed.daemon.ask("stats --check").ok();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a rate is of time")]
fn what_a_vm_receives_is_delayed_and_more_is_dropped_before_it_is_copied() {
    let Some(bed) = Bed::start(CAPACITY, true) else { return };
    bed.set(r#"sink shape={receive="4M"} queue={bytes=65536}"#);
    await_true("frames to find no room", || bed.dropped("vm2").contains_key("queue-full"));
    let began = Instant::now();
    let before = bed.count("sink", "tx_frames");
    await_true("frames to arrive", || bed.count("sink", "tx_frames") > before + 400);
    let arrived = bed.count("sink", "tx_frames") - before;
    let most = 4e6 * began.elapsed().as_secs_f64() / 8.0 / 1504.0 + 50.0;
    #[expect(clippy::cast_precision_loss, reason = "hundreds")]
    let arrived_f = arrived as f64;
    assert!(arrived_f <= most, "{arrived} frames, at most {most}");
    bed.daemon.ask("stats --check").ok();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a rate is of time")]
fn what_may_come_for_a_vm_is_set_live_and_its_delays_are_told() {
    let Some(bed) = Bed::start(CAPACITY, true) else { return };
    let refused = bed.daemon.ask(r#"port set sink receive={burst=9000}"#).fails();
    assert!(refused.contains("`receive.burst` needs `rate`; add `rate`, or remove"), "{refused}");
    bed.set(r#"sink receive={pps="500",frames=32}"#);
    await_true("frames above the limit", || bed.dropped("vm2").contains_key("receive-limit"));
    let (began, before) = (Instant::now(), bed.count("sink", "tx_frames"));
    await_true("frames to arrive", || bed.count("sink", "tx_frames") > before + 400);
    let arrived = bed.count("sink", "tx_frames") - before;
    #[expect(clippy::cast_precision_loss, reason = "hundreds")]
    let arrived_f = arrived as f64;
    let took = began.elapsed().as_secs_f64();
    // The second reading of the counter precedes the reading of the time.
    assert!(arrived_f <= 500.0 * took + 33.0, "{arrived} frames in {took} s");
    bed.set("sink receive= egress=fair-share link=8M");
    await_true("frames that waited", || {
        let stats = bed.daemon.ask("stats vm1 --json").json();
        let waited = &stats["ports"][0]["delays"]["waited"];
        waited["frames"].as_u64().is_some_and(|frames| frames > 100)
            && waited["p99"].as_u64() > Some(1_000)
    });
    let text = bed.daemon.ask("stats --delays").ok();
    assert!(text.contains("vm1   waited") && text.contains("sink  tx_waited"), "{text}");
    bed.daemon.ask("stats --check").ok();
}
