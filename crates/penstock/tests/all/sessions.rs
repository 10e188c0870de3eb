//! Test of hypervisors with settings that do not fit their ports. The hypervisors retry their
//! connections endlessly. The port reports the reason for the failed sessions, and the log stays
//! short.
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::time::Instant;

use penstock_guest::driver::{DriverConfig, Features, VirtioNet};
use penstock_testing::{patience, temp_dir};

use crate::support;
use crate::support::{Daemon, await_true};

const SESSIONS: usize = 60;
/// Maximum number of log lines about one kind of failed session in 90 seconds. The daemon should
/// log the first two sessions, the cause of the failures, and repeats after 10, 30 and 70 seconds.
const LINES: usize = 8;

/// Starts a switch with the ports `narrow`, `plain` and `absent`. The port `narrow` has a single
/// queue pair, the port `plain` has no offloads, and the VM of the port `absent` does not listen.
fn switch() -> Option<Daemon> {
    let scratch = temp_dir();
    let at = scratch.display();
    let port = |name: &str, more: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\ntenant = \"t\"\n\
             vhost-user.socket = \"{at}/{name}.sock\"\n{more}\n"
        )
    };
    let objects = format!(
        "[[tenant]]\nname = \"t\"\n{}{}{}",
        port("narrow", ""),
        port("plain", "vhost-user.offloads = false"),
        port("absent", "vhost-user.mode = \"client\"")
    );
    let file = support::configuration(&scratch, &objects);
    std::fs::write(scratch.join("host.toml"), file).unwrap();
    Daemon::start_in(scratch)
}

fn driver(switch: &Daemon, port: &str, queue_pairs: u16, required: Features) -> DriverConfig {
    let mut config = DriverConfig::new(switch.scratch.join(format!("{port}.sock")));
    config.queue_pairs = queue_pairs;
    config.required = required;
    config.wait = patience();
    config
}

fn port(switch: &Daemon, name: &str) -> (String, String) {
    let text = switch.ask(&format!("port show {name}")).ok();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line[name.len().min(line.len())..].trim().to_owned()
    };
    (field("state"), field("error"))
}

/// Waits until the port `name` reports `state` and an error that contains all `parts`.
fn await_port(switch: &Daemon, name: &str, state: &str, parts: &[&str]) {
    await_true(&format!("{name}: {state}, with {parts:?}"), || {
        let (is, error) = port(switch, name);
        is == state && parts.iter().all(|part| error.contains(part))
    });
}

#[test]
fn a_port_says_why_its_driver_fails_and_the_log_does_not_fill() {
    let Some(switch) = switch() else { return };
    let start = Instant::now();
    // This driver has more queue pairs than the port. QEMU hangs up when it has read the number.
    let wide = driver(&switch, "narrow", 2, Features::NONE);
    // Segmentation was disabled while the guest ran. QEMU hangs up when it has read the features.
    let rich = driver(&switch, "plain", 1, Features::OFFLOADS);
    for _ in 0..SESSIONS {
        assert!(VirtioNet::connect(wide.clone()).is_err());
        assert!(VirtioNet::connect(rich.clone()).is_err());
    }
    await_port(&switch, "narrow", "error", &["last session", "1 queue pair;", "`queues`"]);
    let words = [
        "host-tso4",
        "guest-tso6",
        "host-uso",
        "(0x1c0000000001983)",
        "`offloads`",
        "restart the VM",
    ];
    await_port(&switch, "plain", "error", &words);
    let missing = ["absent.sock: no such socket", "start the VM"];
    await_port(&switch, "absent", "waiting", &missing);
    let minutes = usize::try_from(start.elapsed().as_secs() / 60).unwrap();
    for port in ["narrow", "plain", "absent"] {
        let lines = switch.log().lines().filter(|line| line.contains(port)).count();
        assert!(lines <= LINES * (1 + minutes), "{lines} lines about {port}");
    }
    // The port accepts a fitting driver at once, and clears the error.
    let _fits = VirtioNet::connect(driver(&switch, "narrow", 1, Features::NONE)).unwrap();
    await_port(&switch, "narrow", "up", &[]);
    assert_eq!(port(&switch, "narrow").1, "-");
}
