//! Tests of the daemon in a network namespace, controlled only through the command line.
//!
//! The tests need the right to create a network namespace and a TAP interface (root, or user
//! namespaces). If the process has no right to create a network namespace and a TAP interface, the
//! tests are skipped.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use penstock_control::report::{Cause, Minute, PortLabels, Store, Unit, Written};
use penstock_testing::temp_dir;

use crate::support::{Daemon, await_true, configuration, penstock};

/// Configuration with two TAP ports of one tenant.
const TWO_TAPS: &str = r#"[[tenant]]
name = "red"

# The first machine.
[[port]]
name = "a"
tap.interface = "tapa"
tenant = "red"

[[port]]
name = "b"
tap.interface = "tapb"
tenant = "red"
"#;

/// Gives interface `tapa` an address, and makes the kernel send ARP requests for another address
/// through port a.
const TRAFFIC: &str = "ip addr add 10.9.0.1/24 dev tapa 2>/dev/null; ip link set tapa up; \
     ip link set tapb up; echo x > /dev/udp/10.9.0.77/9; true";

fn counter(stats: &serde_json::Value, port: &str, name: &str) -> u64 {
    let ports = stats["ports"].as_array().unwrap();
    let port = ports.iter().find(|entry| entry["port"] == port).unwrap();
    port["counters"][name].as_u64().unwrap()
}

#[test]
fn a_daemon_starts_serves_and_ends_cleanly() {
    let Some(mut daemon) = Daemon::start(TWO_TAPS) else { return };
    let mode = fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let status = daemon.ask("host show --json").json();
    assert_eq!(status["name"], "test");
    assert_eq!(status["workers"].as_array().unwrap().len(), 1);
    assert!(daemon.ask("host show").ok().contains("worker 0"));
    let ports = daemon.ask("port list").ok();
    assert!(ports.starts_with("NAME"), "{ports}");
    assert!(ports.contains("tapa") && ports.contains("tapb"), "{ports}");
    assert!(daemon.ask("host config").ok().contains("interface = \"tapa\""));
    // A client that watches must not delay the shutdown.
    let mut watcher = Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(["stats", "--watch", "0.1", "--json"])
        .env("PENSTOCK_SOCKET", daemon.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(watcher.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("{\"time_ns\":"), "{first}");
    daemon.signal("TERM");
    daemon.await_notice("STOPPING=1");
    assert_eq!(daemon.await_end().code(), Some(0), "{}", daemon.log());
    assert!(!daemon.socket().exists(), "the socket is left behind");
    let output = watcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("penstock: daemon: "), "{error}");
    for line in daemon.log().lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(event["level"] == "INFO" || event["level"] == "WARN", "{line}");
    }
}

#[test]
fn ports_come_change_and_go() {
    let Some(daemon) = Daemon::start(TWO_TAPS) else { return };
    let told = daemon.ask("port add c tap.interface=tapc tenant=red --no-save").ok();
    assert!(told.contains("c"), "{told}");
    let shown = daemon.ask("port show c --json").json();
    assert_eq!((shown["kind"].as_str(), shown["tenant"].as_str()), (Some("tap"), Some("red")));
    assert_eq!(shown["config"]["tap"]["interface"], "tapc");
    daemon.inside("ip link show tapc").ok();
    let twice = daemon.ask("port add c tap.interface=tapd --no-save").fails();
    assert!(twice.starts_with("penstock: port \"c\""), "{twice}");
    daemon.ask("port set c mac=52:54:00:00:00:01,52:54:00:00:00:02 --no-save").ok();
    let shown = daemon.ask("port show c --json").json();
    assert_eq!(shown["config"]["mac"].as_array().unwrap().len(), 2);
    daemon.ask("port set c mac= --no-save").ok();
    assert!(daemon.ask("port show c --json").json()["config"].get("mac").is_none());
    // The daemon reports a key without effect when an operator sets the key, and in `explain`.
    let idle = "port c: `priority` 2 has no effect, as `schedule` in [worker] is round-robin";
    let told = daemon.ask("port set c priority=2 --no-save");
    assert!(told.err.contains(idle), "{}", told.err);
    await_true("explain to have readings", || daemon.ask("explain c").status.success());
    let told = daemon.ask("explain c").ok();
    assert!(told.contains(idle), "{told}");
    let wrong = daemon.ask("port set c vlan=5000 --no-save").fails();
    assert!(wrong.contains("port \"c\"") && wrong.contains("5000"), "{wrong}");
    let unknown = daemon.ask("port add d tap.interface=tapd colour=blue --no-save").fails();
    assert!(unknown.contains("colour"), "{unknown}");
    daemon.ask("port del c --no-save").ok();
    await_true("interface tapc to go", || !daemon.inside("ip link show tapc").status.success());
    let gone = daemon.ask("port show c").fails();
    assert_eq!(gone, "penstock: port \"c\": there is no such port; see `penstock port list`\n");
    assert!(daemon.ask("port del c --no-save").fails().contains("port \"c\""));
    assert!(
        !fs::read_to_string(daemon.config()).unwrap().contains("tapc"),
        "saved in spite of --no-save"
    );
}

#[test]
fn a_saved_change_survives_a_restart_and_keeps_comments() {
    let Some(daemon) = Daemon::start(TWO_TAPS) else { return };
    daemon.ask("port add c tap.interface=tapc tenant=red").ok();
    let text = fs::read_to_string(daemon.config()).unwrap();
    assert!(text.contains("# The first machine.") && text.contains("tapc"), "{text}");
    // A killed daemon leaves a stale socket, which the next daemon must replace.
    let scratch = daemon.kill();
    assert!(scratch.join("host.sock").exists());
    let Some(daemon) = Daemon::start_in(scratch) else { return };
    assert_eq!(daemon.ask("port list --json").json().as_array().unwrap().len(), 3);
}

#[test]
fn tenants_and_rules_come_and_go() {
    let Some(daemon) = Daemon::start(TWO_TAPS) else { return };
    daemon.ask("tenant add blue vlans=100,200-210 --no-save").ok();
    daemon.ask("tenant set blue fdb_limit=64 --no-save").ok();
    let tenants = daemon.ask("tenant list").ok();
    assert!(tenants.contains("100,200-210") && tenants.contains("a b"), "{tenants}");
    let list = daemon.ask("tenant list --json").json();
    let blue = list.as_array().unwrap().iter().find(|tenant| tenant["name"] == "blue").unwrap();
    assert_eq!(blue["fdb_limit"], 64);
    let used = daemon.ask("tenant del red --no-save").fails();
    let expected = "penstock: tenant \"red\": port \"a\" and port \"b\" need it; first delete or \
                    change the objects";
    assert!(used.starts_with(expected), "{used}");
    daemon.ask("tenant del blue --no-save").ok();

    let add = "flow add no-telnet priority=200 tenant=red match=proto=tcp,dst_port=23 actions=drop";
    daemon.ask(&format!("{add} --no-save")).ok();
    let flows = daemon.ask("flow list").ok();
    assert!(flows.contains("no-telnet") && flows.contains("proto=tcp dst_port=23"), "{flows}");
    let wrong = daemon.ask("flow add x match=dst_port=23 actions=drop --no-save").fails();
    assert!(wrong.contains("rule \"x\"") && wrong.contains("proto"), "{wrong}");
    daemon.ask("flow del no-telnet --no-save").ok();
    let gone = daemon.ask("flow del no-telnet --no-save").fails();
    assert!(gone.contains("the rule does not exist; see `penstock flow list`"), "{gone}");
    assert_eq!(daemon.ask("flow list --json").json().as_array().unwrap().len(), 0);
}

#[test]
fn frames_are_switched_counted_and_learned() {
    let Some(daemon) = Daemon::start(TWO_TAPS) else { return };
    await_true("a frame from a to reach b", || {
        daemon.inside(TRAFFIC).ok();
        let stats = daemon.ask("stats --json").json();
        counter(&stats, "a", "forwarded") > 0 && counter(&stats, "b", "tx_frames") > 0
    });
    await_true("the address behind a to be learned", || {
        let entries = daemon.ask("fdb list --port a --json").json();
        entries.as_array().unwrap().iter().any(|entry| entry["tenant"] == "red")
    });
    let told = daemon.ask("stats --check").ok();
    assert!(told.contains("The counters add up"), "{told}");
    daemon.ask("stats --drops").ok();
    daemon.ask("stats a").ok();
    assert!(daemon.ask("stats nobody").fails().contains("port nobody: there is no such port"));
    assert!(daemon.ask("top --count 1 --interval 0.1").ok().contains("UNATTRIBUTED"));
    // The test first sets the interfaces down. Otherwise the switch would learn addresses of the
    // kernel's multicast again at once.
    daemon.inside("ip link set tapa down; ip link set tapb down").ok();
    daemon.ask("stats --check").ok();
    assert!(daemon.ask("fdb flush --tenant red").ok().contains("deleted"));
    assert_eq!(daemon.ask("fdb list --json").json().as_array().unwrap().len(), 0);

    let page = daemon.page("/metrics");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains("penstock_port_rx_frames_total{port=\"a\"}"), "{page}");
    assert!(page.contains("# EOF"), "{page}");
    let health = daemon.page("/healthz");
    assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("ok\n"), "{health}");
}

#[test]
fn a_wrong_file_is_refused_whole_and_the_former_goes_on() {
    let Some(daemon) = Daemon::start(TWO_TAPS) else { return };
    let wrong =
        format!("{TWO_TAPS}\n[[port]]\nname = \"c\"\ntap.interface = \"tapc\"\nvlan = 9999\n");
    daemon.write_config(&wrong);
    let refused = daemon.ask("host reload").fails();
    assert!(refused.contains("host.toml:") && refused.contains("9999"), "{refused}");
    daemon.signal("HUP");
    await_true("the log to refuse the file", || {
        daemon.log().contains("the former configuration stays in force")
    });
    assert_eq!(daemon.ask("port list --json").json().as_array().unwrap().len(), 2);
    daemon.write_config(&wrong.replace("vlan = 9999\n", "tenant = \"red\"\n"));
    let told = daemon.ask("host reload").ok();
    assert!(told.contains("c"), "{told}");
    daemon.write_config(TWO_TAPS);
    daemon.signal("HUP");
    await_true("port c to go", || {
        daemon.ask("port list --json").json().as_array().unwrap().len() == 2
    });
}

#[test]
fn a_second_daemon_on_the_socket_is_refused() {
    let Some(daemon) = Daemon::start(TWO_TAPS) else { return };
    let config = daemon.config();
    let told = penstock(&daemon.socket(), &["host", "run", "--config", config.to_str().unwrap()]);
    let error = told.fails();
    assert!(error.contains("another process (pid "), "{error}");
    daemon.ask("host show").ok();
    // The error of a request for a controller says that a host answers.
    let error = penstock(&daemon.socket(), &["controller", "status"]).fails();
    assert!(error.contains("the daemon of a switch answers, not a controller"), "{error}");
}

#[test]
fn wrong_files_are_told_with_every_mistake() {
    let scratch = temp_dir();
    let file = scratch.join("wrong.toml");
    let config = file.to_str().unwrap();
    let socket = scratch.join("host.sock");
    let objects = "[[tenant]]\nname = \"red\"\n\n\
         [[port]]\nname = \"a\"\ntenant = \"red\"\n\n\
         [[port]]\nname = \"b\"\n\
         tap.interface = \"tapb\"\ntenant = \"nobody\"\n";
    fs::write(&file, configuration(&scratch, objects)).unwrap();
    let told = penstock(&socket, &["host", "check", "--config", config]).fails();
    assert!(told.contains("port \"a\"") && told.contains("port \"b\""), "{told}");
    assert!(told.ends_with("penstock: 2 mistakes in the configuration\n"), "{told}");
    let told = penstock(&socket, &["host", "check", "--json", "--config", config]);
    assert_eq!(told.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((json["ok"].as_bool(), json["errors"].as_array().unwrap().len()), (Some(false), 2));
    let told = penstock(&socket, &["host", "run", "--config", config]).fails();
    assert!(told.contains("2 mistakes"), "{told}");
    assert!(!socket.exists());
    let missing = penstock(&socket, &["host", "check", "--config", "/nonexistent.toml"]).fails();
    assert!(missing.contains("/nonexistent.toml"), "{missing}");
    fs::write(&file, configuration(&scratch, TWO_TAPS)).unwrap();
    let told = penstock(&socket, &["host", "check", "--config", config]).ok();
    assert!(told.contains("valid (2 ports, 1 tenant, 0 rules)"), "{told}");
    // Warnings are printed and do not fail the check.
    let ignored = TWO_TAPS.replacen("tenant = ", "priority = 1\ntenant = ", 1);
    fs::write(&file, configuration(&scratch, &ignored)).unwrap();
    let told = penstock(&socket, &["host", "check", "--config", config]).ok();
    assert!(told.contains("warning: port a: `priority` 1 has no effect"), "{told}");
    let json = penstock(&socket, &["host", "check", "--json", "--config", config]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["ok"].as_bool(), json["warnings"].as_array().unwrap().len()), (Some(true), 1));
}

/// The daemon reads a file of the previous release with a warning. `penstock host config --migrate`
/// rewrites the file in the new format.
#[test]
fn an_old_file_is_read_and_rewritten() {
    let old =
        TWO_TAPS.replace("tap.interface", "type = \"tap\"\ninterface") + "share = 3 # of red\n";
    let Some(daemon) = Daemon::start(&old) else { return };
    let warning = "port \"b\": `share` is now `uplink_share`";
    let logged = warning.replace('"', "\\\"");
    assert!(daemon.log().contains(&logged), "{}", daemon.log());
    let ports = daemon.ask("port list --json").json();
    assert!(ports.as_array().unwrap().iter().all(|port| port["state"] == "up"), "{ports}");
    let file = daemon.config();
    let file = file.to_str().unwrap();
    let told = penstock(&daemon.socket(), &["host", "check", "--config", file]).ok();
    assert!(told.contains(warning), "{told}");
    // A change of one object updates the format of that object only.
    daemon.ask("port set a mtu=1400").ok();
    let text = fs::read_to_string(daemon.config()).unwrap();
    assert!(text.contains("tap.interface = \"tapa\"\ntap.mtu = 1400\n"), "{text}");
    assert!(text.contains("interface = \"tapb\"\ntenant = \"red\"\nshare = 3"), "{text}");
    let told = penstock(&daemon.socket(), &["host", "config", "--migrate", file]).ok();
    assert!(told.contains(warning), "{told}");
    let new = fs::read_to_string(daemon.config()).unwrap();
    let end = "tap.interface = \"tapb\"\ntenant = \"red\"\nuplink_share = 3 # of red\n";
    assert!(new.ends_with(end) && new.contains("# The first machine."), "{new}");
    let again = penstock(&daemon.socket(), &["host", "config", "--migrate", file]).ok();
    assert!(again.contains("nothing to migrate"), "{again}");
    let reloaded = daemon.ask("host reload --json").json();
    assert_eq!(reloaded["changes"], serde_json::json!([]), "{reloaded}");
    assert_eq!(reloaded["warnings"], serde_json::json!([]), "{reloaded}");
    fs::write(daemon.config(), "[host]\nname = 5\n").unwrap();
    let told = penstock(&daemon.socket(), &["host", "config", "--migrate", file]).fails();
    assert!(told.contains("penstock: 1 mistake in the configuration"), "{told}");
}

#[test]
fn without_a_daemon_the_error_says_how_to_start_one() {
    let scratch = temp_dir();
    let socket = scratch.join("none.sock");
    for command in [&["port", "list"][..], &["stats", "--check"], &["top"], &["host", "reload"]] {
        let error = penstock(&socket, command).fails();
        assert!(error.contains("the daemon is not running; start it with"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_support_bundle_has_the_state_and_no_secret() {
    let Some(daemon) = Daemon::start(TWO_TAPS) else { return };
    let at = daemon.scratch.display().to_string();
    fs::write(daemon.scratch.join("other.toml"), "password = \"geheim\"\n").unwrap();
    let now = fs::metadata(daemon.config()).unwrap().modified().unwrap();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let minute = Minute {
        at: now,
        port: "sold".into(),
        unit: Unit::Bits,
        bought: 1_000,
        got: 1_000,
        cause: Cause::Kept,
        class: 0,
        wait_max_us: 0,
        bound_us: None,
        labels: PortLabels::default(),
    };
    let store = Store::new(&daemon.scratch.join("state"));
    store.add(&[minute], &mut Written::default()).unwrap();
    // The daemon uses a new directory only when it is started again.
    let moved = fs::read_to_string(daemon.config()).unwrap().replace("/state\"", "/moved\"");
    fs::write(daemon.config(), moved).unwrap();
    let told = daemon.ask("host reload");
    assert!(told.err.contains("[host]: takes effect when the daemon is started"), "{told:?}");
    let out = format!("{at}/bundle.tar.gz");
    let line = format!("support-bundle --out {out} --config-dir {at} --controller-socket {at}/no");
    assert_eq!(daemon.ask(&line).ok().trim(), out);
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(daemon.ask(&line).fails().contains("cannot be made; choose another file"));
    let unpacked = Command::new("tar").args(["-C", &at, "-xzf", &out]).status().unwrap();
    assert!(unpacked.success());
    let bundle = daemon.scratch.join("penstock-support");
    let part = |name: &str| fs::read_to_string(bundle.join(name)).unwrap();
    assert!(part("state/ports.json").contains("tapa"));
    assert!(part("counters/check.txt").contains("The counters add up"));
    assert!(part(&format!("config{at}/host.toml")).contains("name = \"red\""));
    assert_eq!(part(&format!("config{at}/other.toml")), "password = \"********\"\n");
    assert!(part("missing.txt").contains("state/vcpus.json"), "no scheduler runs");
    assert!(part("machine/kernel").contains("Linux"));
    let minutes = part("counters/contracts.json");
    assert!(minutes.contains("\"sold\""), "the minutes are in the old directory: {minutes}");
    assert!(part("state/host-config.toml").contains("/moved\""));
}

#[test]
fn a_support_bundle_follows_no_link_and_waits_for_no_pipe() {
    let scratch = temp_dir();
    let root = scratch.canonicalize().unwrap();
    let dirs = ["work", "config"].map(|name| root.join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let [work, config] = dirs;
    fs::write(config.join("good.toml"), "[auth]\nuser = \"geheim\"\n").unwrap();
    let host = format!("[host]\nname = \"h\"\nstate_dir = \"{}/state\"\n", root.display());
    fs::write(config.join("host.toml"), host).unwrap();
    fs::write(root.join("shadow"), "geheim\n").unwrap();
    std::os::unix::fs::symlink(root.join("shadow"), config.join("link.toml")).unwrap();
    nix::unistd::mkfifo(&config.join("pipe.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let line = "support-bundle --out b.tar.gz --config-dir ../config --config-dir ../none \
                --controller-socket no";
    let mut command = Command::new(crate::support::BINARY);
    command.args(line.split_whitespace()).current_dir(&work);
    let made = command.env("PENSTOCK_SOCKET", root.join("none.sock")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut unpack = Command::new("tar");
    let unpacked = unpack.args(["-xzf", "b.tar.gz"]).current_dir(&work).status().unwrap();
    assert!(unpacked.success());
    let bundle = work.join("penstock-support");
    let parts = bundle.join(format!("config{}", config.display()));
    let good = fs::read_to_string(parts.join("good.toml")).unwrap();
    assert_eq!(good, "[auth]\nuser = \"********\"\n");
    assert_eq!(fs::read_dir(&parts).unwrap().count(), 2, "no link and no pipe");
    let missing = fs::read_to_string(bundle.join("missing.txt")).unwrap();
    for reason in ["link.toml: is a symbolic link", "pipe.toml: is not a regular file", "../none"] {
        assert!(missing.contains(reason), "{reason}: {missing}");
    }
    let state = format!("counters/contracts.json: {}/state: there is no such", root.display());
    assert!(missing.contains(&state), "{missing}");
    assert!(missing.contains("(`state_dir` in "), "{missing}");
}

#[test]
fn objects_are_found_by_their_labels() {
    let uuid = "b7a0f3c1-0f7a-4f2e-9f10-2d6f4c1a9e55";
    let container = "c".repeat(64);
    let taps = TWO_TAPS
        .replace("name = \"red\"", "name = \"red\"\nlabels = { project = \"p1\" }")
        .replace(
            "\"tapa\"",
            &format!("\"tapa\"\nlabels = {{ vm-uuid = \"{uuid}\", zone = \"1\" }}"),
        )
        .replace(
            "\"tapb\"",
            &format!("\"tapb\"\nlabels = {{ container = \"{container}\", zone = \"1\" }}"),
        );
    let Some(daemon) = Daemon::start(&taps) else { return };
    let names = |line: &str| -> Vec<String> {
        let listed = daemon.ask(&format!("{line} --json")).json();
        let name = |of: &serde_json::Value| of["name"].as_str().unwrap().to_owned();
        listed.as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(names(&format!("port list -l vm-uuid={uuid}")), ["a"]);
    assert_eq!(names("port list -l container"), ["b"]);
    assert_eq!(names("port list -l zone=1"), ["a", "b"]);
    assert_eq!(names("port list -l zone=1 -l container"), ["b"]);
    assert!(names("port list -l zone=2").is_empty());
    assert_eq!(names("tenant list -l project=p1"), ["red"]);
    let shown = daemon.ask(&format!("port show container={container}")).ok();
    assert!(shown.contains(&format!("labels      container={container} zone=1")), "{shown}");
    let stats = daemon.ask(&format!("stats -l vm-uuid={uuid} --json")).json();
    assert_eq!(stats["ports"].as_array().unwrap().len(), 1);
    let explained = daemon.ask(&format!("explain vm-uuid={uuid}")).ok();
    assert!(explained.starts_with(&format!("a (vm-uuid={uuid} zone=1): ")), "{explained}");
    assert!(daemon.ask("port show zone=1").fails().contains("2 ports have this label, such as a"));
    let error = daemon.ask("port show zone=2").fails();
    assert!(error.contains("no port has this label; see `penstock port list -l zone`"), "{error}");
    assert!(daemon.ask("stats -l zone=2").fails().contains("no port has the label zone=2"));
    assert_eq!(daemon.ask(&format!("stats vm-uuid={uuid} --json")).json()["ports"][0]["port"], "a");
    assert!(daemon.ask("stats zone=2").fails().contains("no port has this label"));
    daemon.ask(&format!("fdb list --port vm-uuid={uuid} --tenant project=p1")).ok();
    daemon.ask("fdb flush --tenant project=p1").ok();
    assert!(daemon.ask("fdb list --port zone=1").fails().contains("2 ports have this label"));
    let error = daemon.ask("fdb list --port nobody").fails();
    assert!(error.contains("see `penstock port list`"), "{error}");
    let error = daemon.ask("fdb list --tenant project=p2").fails();
    assert!(error.contains("no such tenant; see `penstock tenant list`"), "{error}");
    daemon.ask(&format!("port set vm-uuid={uuid} priority=2")).ok();
    daemon.ask("port set a labels.k8s.io/pod=7 labels.zone=2 tap.queues=2 police.cir=1G").ok();
    let shown = daemon.ask("port show a --json").json();
    assert_eq!(shown["labels"]["k8s.io/pod"], "7");
    assert_eq!(shown["labels"]["zone"], "2");
    assert_eq!(shown["queues"], 2);
    let file = fs::read_to_string(daemon.config()).unwrap();
    assert!(file.contains("queues = 2") && file.contains("\"k8s.io/pod\" = \"7\""), "{file}");
    assert_eq!(daemon.ask("host reload").ok().lines().count(), 1, "the file is what runs");
    daemon.ask("port set b labels={zone=\"1\"}").ok();
    assert_eq!(names("port list -l zone=1"), ["b"]);
    daemon.ask(&format!("port set b labels.container={container}")).ok();
    let page = daemon.page("/metrics");
    let label = format!("penstock_port_labels{{port=\"a\",label=\"vm-uuid\",value=\"{uuid}\"}} 1");
    assert!(page.contains(&label), "{page}");
    assert!(
        page.contains("penstock_tenant_labels{tenant=\"red\",label=\"project\",value=\"p1\"} 1")
    );
    daemon.ask("port del container").fails();
    daemon.ask(&format!("port del container={container}")).ok();
    assert_eq!(names("port list"), ["a"]);
}

#[test]
fn what_needs_no_daemon_works_without() {
    let scratch = temp_dir();
    let socket = scratch.join("none.sock");
    assert!(penstock(&socket, &["completions", "bash"]).ok().contains("_penstock"));
    penstock(&socket, &["man", &scratch.display().to_string()]).ok();
    let page = std::fs::read_to_string(scratch.join("penstock-port-add.1")).unwrap();
    assert!(page.contains(".SH SYNOPSIS"), "{page}");
    let mut dated = Command::new(crate::support::BINARY);
    dated.arg("man").arg(scratch.as_os_str()).env("SOURCE_DATE_EPOCH", "951782400");
    assert!(dated.status().unwrap().success());
    let page = std::fs::read_to_string(scratch.join("penstock-port-add.1")).unwrap();
    let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
    assert!(title.starts_with(".TH penstock-port-add 1 2000-02-29 "), "{title}");
    assert!(penstock(&socket, &["man", "/nowhere"]).fails().contains("/nowhere"));
    let schema = penstock(&socket, &["host", "schema"]).json();
    assert!(schema["properties"]["host"].is_object());
    let schema = penstock(&socket, &["host", "schema", "controller"]).json();
    assert!(schema["properties"]["store"].is_object());
    assert_eq!(penstock(&socket, &["port", "frobnicate"]).status.code(), Some(2));
    assert!(penstock(&socket, &["port", "set", "x"]).fails().contains("nothing to set"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(["host", "schema"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}
