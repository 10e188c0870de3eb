//! A hypervisor that does not fit its port tries again and again. The port says why it fails, and
//! the log does not fill.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use penstock_lab::driver::{DriverConfig, Features, VirtioNet};

const PATIENCE: Duration = Duration::from_secs(60);
/// Sessions of each kind, and the lines that may be logged of one kind in a minute and a half:
/// the first two sessions, the cause, and again after 10, 30 and 70 seconds.
const SESSIONS: usize = 60;
const LINES: usize = 8;

struct Switch {
    dir: PathBuf,
    child: Child,
}

impl Switch {
    fn start() -> Self {
        let dir = std::env::temp_dir().join(format!("penstock-sessions-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let at = dir.display();
        let port = |name: &str, more: &str| {
            format!(
                "[[port]]\nname = \"{name}\"\ntype = \"vhost-user\"\ntenant = \"t\"\n\
                 socket = \"{at}/{name}.sock\"\n{more}\n"
            )
        };
        let config = format!(
            "[host]\nname = \"sessions\"\nsocket = \"{at}/host.sock\"\n\
             state_dir = \"{at}/state\"\n[[tenant]]\nname = \"t\"\n{}{}{}",
            port("narrow", ""),
            port("plain", "offloads = false"),
            port("absent", "mode = \"client\"")
        );
        std::fs::write(dir.join("host.toml"), config).unwrap();
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_penstock"))
            .args(["host", "run", "--config"])
            .arg(dir.join("host.toml"))
            .env_remove("PENSTOCK_SOCKET")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap();
        Self { dir, child }
    }

    fn driver(&self, port: &str, queue_pairs: u16, required: Features) -> DriverConfig {
        let mut config = DriverConfig::new(self.dir.join(format!("{port}.sock")));
        config.queue_pairs = queue_pairs;
        config.required = required;
        config.wait = PATIENCE;
        config
    }

    /// State and error of a port.
    fn port(&self, name: &str) -> (String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_penstock"))
            .arg("--socket")
            .arg(self.dir.join("host.sock"))
            .args(["port", "show", name])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line[name.len().min(line.len())..].trim().to_owned()
        };
        (field("state"), field("error"))
    }

    /// Waits until the port says what it is to say.
    fn await_port(&self, name: &str, state: &str, parts: &[&str]) {
        let start = Instant::now();
        loop {
            let (is, error) = self.port(name);
            if is == state && parts.iter().all(|part| error.contains(part)) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{name} is {is}: {error}");
        }
    }

    /// Lines that the daemon has logged about a port.
    fn lines(&self, port: &str) -> usize {
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap();
        log.lines().filter(|line| line.contains(port)).count()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_port_says_why_its_driver_fails_and_the_log_does_not_fill() {
    let switch = Switch::start();
    let start = Instant::now();
    // More queue pairs than the port has; QEMU hangs up when it has seen the number.
    let wide = switch.driver("narrow", 2, Features::NONE);
    // Segmentation was switched off under a running guest; QEMU hangs up when it has seen that.
    let rich = switch.driver("plain", 1, Features::OFFLOADS);
    for _ in 0..SESSIONS {
        assert!(VirtioNet::connect(wide.clone()).is_err());
        assert!(VirtioNet::connect(rich.clone()).is_err());
    }
    switch.await_port("narrow", "error", &["last session", "1 queue pair;", "`queues`"]);
    let words = ["host-tso4", "guest-tso6", "(0x1983)", "`offloads`", "restart the VM"];
    switch.await_port("plain", "error", &words);
    let missing = ["absent.sock: no such socket", "start the VM"];
    switch.await_port("absent", "waiting", &missing);
    let minutes = usize::try_from(start.elapsed().as_secs() / 60).unwrap();
    for port in ["narrow", "plain", "absent"] {
        let lines = switch.lines(port);
        assert!(lines <= LINES * (1 + minutes), "{lines} lines about {port}");
    }
    // A driver that fits is taken at once, and nothing is left of the error.
    let _fits = VirtioNet::connect(switch.driver("narrow", 1, Features::NONE)).unwrap();
    switch.await_port("narrow", "up", &[]);
    assert_eq!(switch.port("narrow").1, "-");
}
