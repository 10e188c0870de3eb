//! Tests of a restart under a service manager that keeps descriptors, apart from the frames on the
//! way (see [`crate::kill`]).

use std::fs::File;
use std::process::{Child, Command, Stdio};

use penstock_guest::driver::{DriverConfig, VirtioNet};
use penstock_testing::{TempDir, patience, temp_dir};

use crate::support::manager::Manager;
use crate::support::{Told, await_true, configuration, penstock};

/// Keys of a port with queues.
const QUEUES: &str = "egress = \"wfq\"\nlink = \"1G\"";
/// A folder that cannot be made, so that a start fails after the sessions continued.
const FAILS: &str = "[switch]\nplan = \"/proc/none/plan\"\n";

/// A daemon under a service manager.
struct Service {
    scratch: TempDir,
    manager: Manager,
    child: Child,
}

impl Service {
    fn start(objects: impl Fn(&str) -> String) -> Self {
        let scratch = temp_dir();
        let mut service = Self {
            manager: Manager::new(&scratch),
            child: Command::new("true").spawn().unwrap(),
            scratch,
        };
        service.configure(objects);
        service.run();
        service
    }

    fn configure(&self, objects: impl Fn(&str) -> String) {
        let objects = objects(&self.scratch.display().to_string());
        let text = configuration(&self.scratch, &objects).replace("metrics =", "# metrics =");
        std::fs::write(self.scratch.join("host.toml"), text).unwrap();
    }

    fn run(&mut self) {
        self.spawn();
        await_true("READY=1", || self.manager.read().iter().any(|line| line == "READY=1"));
    }

    fn spawn(&mut self) {
        let command = self.manager.command(crate::support::BINARY);
        self.spawn_with(command);
    }

    /// Starts the daemon with `command`, which is the manager's command for the daemon's program.
    fn spawn_with(&mut self, mut command: Command) {
        let log = self.scratch.join("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        self.child = command
            .args(["host", "run", "--config"])
            .arg(self.scratch.join("host.toml"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.manager.keep_private();
    }

    fn stop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.await_end();
    }

    fn await_end(&mut self) {
        await_true("the end of the daemon", || {
            self.manager.read();
            self.child.try_wait().unwrap().is_some()
        });
    }

    fn ask(&self, line: &str) -> Told {
        let words = line.split_whitespace().collect::<Vec<_>>();
        penstock(&self.scratch.join("host.sock"), &words)
    }

    /// Starts a service with the port `vm`, and stops it. Returns the driver of the port.
    fn stopped() -> (Self, VirtioNet) {
        let mut service = Self::start(|at| vms(at, &["vm"], QUEUES));
        let driver = service.driver("vm", 1);
        service.stop();
        (service, driver)
    }

    /// Configures the port `vm`, and the lines `more` after it.
    fn configure_vm(&self, more: &str) {
        self.configure(|at| vms(at, &["vm"], QUEUES) + more);
    }

    /// Runs the daemon, and checks that the session of the port `vm` continues.
    fn continues(&mut self, driver: &mut VirtioNet) {
        self.run();
        assert!(driver.is_connected());
        assert_eq!(self.ask("port show vm --json").json()["state"], "up");
    }

    fn driver(&self, port: &str, queue_pairs: u16) -> VirtioNet {
        let mut config = DriverConfig::new(self.scratch.join(format!("{port}.sock")));
        config.queue_pairs = queue_pairs;
        config.wait = patience();
        VirtioNet::connect(config).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn vms(at: &str, names: &[&str], more: &str) -> String {
    let port = |name: &&str| {
        format!(
            "[[port]]\nname = \"{name}\"\ntenant = \"t\"\n\
             vhost-user.socket = \"{at}/{name}.sock\"\n{more}\n"
        )
    };
    format!("[[tenant]]\nname = \"t\"\n{}", names.iter().map(port).collect::<String>())
}

#[test]
fn sessions_that_no_longer_fit_end_and_the_others_go_on() {
    let queues = "vhost-user.queues = 2";
    let mut service = Service::start(|at| vms(at, &["wide", "same", "gone"], queues));
    let mut drivers = ["wide", "same", "gone"].map(|port| service.driver(port, 2));
    service.stop();
    assert_eq!(service.manager.store.len(), 3);
    service.configure(|at| {
        let same = vms(at, &["same"], queues);
        same + "[[port]]\nname = \"wide\"\ntenant = \"t\"\nvhost-user.socket = \""
            + at
            + "/wide.sock\"\n"
    });
    service.run();
    let [wide, same, gone] = &mut drivers;
    await_true("the end of the session that does not fit", || !wide.is_connected());
    await_true("the end of the session without a port", || !gone.is_connected());
    assert!(same.is_connected());
    let state =
        |port: &str| service.ask(&format!("port show {port} --json")).json()["state"].clone();
    assert_eq!(state("same"), "up");
    assert_eq!(state("wide"), "error");
    assert!(service.log().contains("set `offloads` and `queues` back"), "{}", service.log());
    service.driver("wide", 1);
}

#[test]
fn a_connection_that_has_not_negotiated_ends_and_an_idle_port_has_nothing_to_keep() {
    let mut service = Service::start(|at| vms(at, &["early", "idle"], ""));
    let early = std::os::unix::net::UnixStream::connect(service.scratch.join("early.sock"));
    let early = early.unwrap();
    await_true("the connection", || {
        service.ask("port show early --json").json()["state"] == "connected"
    });
    service.stop();
    assert!(service.manager.store.is_empty());
    let end = std::io::Read::read(&mut &early, &mut [0; 1]);
    assert_eq!(end.unwrap(), 0, "the connection has ended");
    service.run();
    service.driver("idle", 1);
}

#[test]
fn a_start_that_fails_leaves_the_sessions_to_the_next_start() {
    let (mut service, mut driver) = Service::stopped();
    service.configure_vm(FAILS);
    service.spawn();
    service.await_end();
    assert!(!service.child.try_wait().unwrap().unwrap().success());
    assert!(service.log().contains("cannot be created"), "{}", service.log());
    assert_eq!(service.manager.store.len(), 1);
    assert!(driver.is_connected());
    service.configure_vm("");
    service.continues(&mut driver);
}

#[test]
fn a_start_that_fails_without_its_service_manager_ends_no_session() {
    let (mut service, mut driver) = Service::stopped();
    // Nobody listens for the notices of this start.
    service.configure_vm(FAILS);
    let mut command = service.manager.command(crate::support::BINARY);
    command.env("NOTIFY_SOCKET", service.scratch.join("nobody"));
    service.spawn_with(command);
    service.await_end();
    assert!(service.log().contains("the service manager cannot be reached"), "{}", service.log());
    assert!(driver.is_connected());
    service.configure_vm("");
    service.continues(&mut driver);
}

#[test]
fn a_crash_before_the_daemon_is_ready_ends_no_session() {
    let (mut service, mut driver) = Service::stopped();
    // The start waits for a writer of this file, after the session was prepared.
    let ca = service.scratch.join("ca.pem");
    assert!(Command::new("mkfifo").arg(&ca).status().unwrap().success());
    let tls = "ca = \"ca.pem\", cert = \"x.pem\", key = \"x.key\", controllers = [\"one\"]";
    let switch = format!("[switch]\nlisten = \"127.0.0.1:0\"\ntls = {{ {tls} }}\n");
    service.configure_vm(&switch);
    let text = "the session of the former process continues";
    for crashes in 1..=3 {
        service.spawn();
        await_true("a session that continues", || {
            assert!(!service.manager.read().iter().any(|line| line == "READY=1"));
            service.log().matches(text).count() == crashes
        });
        service.child.kill().unwrap();
        service.await_end();
        assert_eq!(service.manager.store.len(), 1, "crash {crashes}");
        assert!(driver.is_connected(), "crash {crashes}");
    }
    service.configure_vm("");
    service.continues(&mut driver);
    // After the daemon has taken the session over, the store has nothing that is outdated.
    assert!(service.manager.store.is_empty());
}

#[test]
fn a_signal_at_any_moment_of_a_start_ends_no_session() {
    let mut service = Service::start(|at| vms(at, &["vm"], ""));
    let mut driver = service.driver("vm", 1);
    service.stop();
    for delay in (0_u8..40).step_by(2) {
        service.spawn();
        let _ = nix::poll::poll(&mut [], nix::poll::PollTimeout::from(delay));
        service.stop();
        assert_eq!(service.manager.store.len(), 1, "a signal after {delay} ms");
        assert!(driver.is_connected(), "a signal after {delay} ms");
    }
    service.continues(&mut driver);
}

/// Number of drivers that stop in the middle of a message. If the switch waited 200 ms for each of
/// them, the wait would exceed the daemon's time to stop.
const STUCK: usize = 30;

#[test]
fn drivers_that_stop_in_a_message_lose_only_their_own_sessions() {
    let names: Vec<String> = (0..STUCK).map(|number| format!("stuck{number}")).collect();
    let ports: Vec<&str> = names.iter().map(String::as_str).chain(["whole"]).collect();
    let mut service = Service::start(|at| vms(at, &ports, ""));
    let mut driver = service.driver("whole", 1);
    let stuck = names.iter().map(|name| {
        let socket = service.scratch.join(format!("{name}.sock"));
        let mut stuck = std::os::unix::net::UnixStream::connect(socket).unwrap();
        // A part of a header. The session waits for the rest.
        std::io::Write::write_all(&mut stuck, &1_u32.to_ne_bytes()).unwrap();
        stuck
    });
    let stuck: Vec<_> = stuck.collect();
    await_true("the connections", || {
        let all = service.ask("port list --json").json();
        let is_waiting = |port: &&serde_json::Value| port["state"] == "waiting";
        all.as_array().unwrap().iter().filter(is_waiting).count() == 0
    });
    service.stop();
    assert!(service.child.try_wait().unwrap().unwrap().success(), "it stops within its time");
    assert_eq!(service.manager.store.len(), 1);
    for mut stuck in stuck {
        let end = std::io::Read::read(&mut stuck, &mut [0; 1]);
        assert_eq!(end.unwrap_or(0), 0, "the connection has ended");
    }
    service.run();
    assert!(driver.is_connected());
}

#[test]
fn an_interface_keeps_its_number_and_addresses() {
    let name = format!("penstock-restart-{}", std::process::id());
    let ip = |line: &str| {
        let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    if ip(&format!("netns add {name}")).is_none() {
        penstock_testing::skip("needs root and `ip netns`");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let mut service = Service::start(|_| {
            format!(
                "[[tenant]]\nname = \"t\"\n[[port]]\nname = \"tap\"\ntenant = \"t\"\n\
                 tap.interface = \"rt0\"\ntap.netns = \"{name}\"\ntap.queues = 2\n"
            )
        });
        ip(&format!("-n {name} addr add 10.9.0.1/24 dev rt0")).unwrap();
        // A frame from the interface teaches its address.
        let _ = ip(&format!("-n {name} neigh replace 10.9.0.2 lladdr 52:54:00:00:00:02 dev rt0"));
        let ping = ["netns", "exec", &name, "ping", "-c", "1", "-W", "1", "10.9.0.2"];
        let _ = Command::new("ip").args(ping).output();
        let learned = |service: &Service| {
            let all = service.ask("fdb list --json").json();
            let mac = |of: &serde_json::Value| of["mac"].as_str().unwrap().to_owned();
            all.as_array().unwrap().iter().map(mac).collect::<Vec<_>>()
        };
        await_true("a learned address", || !learned(&service).is_empty());
        let addresses = learned(&service);
        // A link-local address of IPv6 is tentative for a while.
        let before = ip(&format!("-n {name} -4 -o addr show dev rt0")).unwrap();
        assert!(before.contains("10.9.0.1"), "{before}");
        service.stop();
        service.run();
        assert_eq!(ip(&format!("-n {name} -4 -o addr show dev rt0")).unwrap(), before);
        assert_eq!(service.ask("port show tap --json").json()["state"], "up");
        assert_eq!(learned(&service), addresses, "the addresses are still known");
        service.stop();
        service.manager.store.clear();
        let left = ip(&format!("-n {name} -o addr show dev rt0"));
        assert_eq!(left, None, "without a store, the interface goes with the switch");
    });
    ip(&format!("netns del {name}")).unwrap();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
