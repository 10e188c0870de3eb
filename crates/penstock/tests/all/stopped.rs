//! Test of a switch that is stopped and continues (SIGSTOP, SIGCONT): its guests stay connected.
#![expect(clippy::disallowed_methods, reason = "how long it is stopped is what is tried")]

use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::support::await_true;
use crate::support::flood::Bed;

/// Duration of the stop: longer than a guest may make a worker wait.
const STOP: Duration = Duration::from_millis(200);

#[test]
fn a_switch_that_was_stopped_blames_no_guest() {
    let Some(bed) = Bed::start(100_000_000, true) else { return };
    // The worker has page faults before and after each stop, so page faults do not tell a stop from
    // a wait for a page.
    bed.orders.balloons.store(true, Relaxed);
    for _ in 0..5 {
        let before = bed.count("vm1", "forwarded");
        await_true("frames to pass", || bed.count("vm1", "forwarded") > before + 1_000);
        bed.daemon.signal("STOP");
        let stat = format!("/proc/{}/stat", bed.daemon.pid());
        let is_stopped = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
        await_true("the switch to stop", is_stopped);
        std::thread::sleep(STOP);
        bed.daemon.signal("CONT");
    }
    let before = bed.count("vm1", "forwarded");
    await_true("frames to pass again", || bed.count("vm1", "forwarded") > before + 1_000);
    let log = bed.daemon.log();
    assert!(!log.contains("made the worker wait"), "{log}");
}
