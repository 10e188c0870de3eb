//! A daemon in its own network namespace, controlled only through the command line.

pub mod controller;
pub mod flood;
pub mod flows;
pub mod manager;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use penstock_testing::{TempDir, patience, temp_dir};

/// Address of the daemon's pages in its own namespace.
pub const PAGES: &str = "127.0.0.1:9753";
pub const BINARY: &str = env!("CARGO_BIN_EXE_penstock");

/// Polls until `look` returns a value. Panics with the text `what` if `look` returns no value
/// within the time limit.
pub fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    #[expect(clippy::disallowed_methods, reason = "the bound of the wait is real time")]
    let now = Instant::now;
    let deadline = now() + patience();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(now() < deadline, "waited {} s in vain for: {what}", patience().as_secs());
        #[expect(clippy::disallowed_methods, reason = "between two polls of a bounded wait")]
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Polls until `look` returns true, like [`await_some`].
pub fn await_true(what: &str, mut look: impl FnMut() -> bool) {
    await_some(what, || look().then_some(()));
}

#[derive(Debug)]
pub struct Told {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Told {
    /// Returns the output of a command that must succeed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self:#?}");
        self.out
    }

    /// Returns the errors of a command that must fail with status 1.
    #[track_caller]
    pub fn fails(self) -> String {
        assert_eq!(self.status.code(), Some(1), "{self:#?}");
        self.err
    }

    /// Returns the output of a command that must succeed, as JSON.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

impl From<Output> for Told {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs `penstock` with the daemon's socket `socket`.
pub fn penstock(socket: &Path, arguments: &[&str]) -> Told {
    let mut command = Command::new(BINARY);
    command.args(arguments).env("PENSTOCK_SOCKET", socket).env_remove("RUST_LOG");
    command.output().unwrap().into()
}

/// Options of `unshare` that create a namespace on this machine. If no set of options works, prints
/// the reason on standard error and returns `None`.
pub fn namespace_options() -> Option<&'static [&'static str]> {
    let works = |options: &[&str]| {
        let script = "ip link set lo up && ip tuntap add dev tap0 mode tap";
        let mut command = Command::new("unshare");
        command.args(options).args(["--", "sh", "-c", script]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
    };
    let found = [&["--net"][..], &["--user", "--map-root-user", "--net"][..]]
        .into_iter()
        .find(|options| works(options));
    if found.is_none() {
        penstock_testing::skip(
            "no rights to make a network namespace with a TAP interface; run as root",
        );
    }
    found
}

#[derive(Debug)]
pub struct Daemon {
    child: Child,
    pub scratch: TempDir,
    manager: UnixDatagram,
    options: &'static [&'static str],
}

impl Daemon {
    /// Starts a daemon with `objects` after `[host]` in its file, and waits until the daemon is
    /// ready. Returns `None` if this machine does not permit a network namespace.
    pub fn start(objects: &str) -> Option<Self> {
        let scratch = temp_dir();
        fs::write(scratch.join("host.toml"), configuration(&scratch, objects)).unwrap();
        Self::start_in(scratch)
    }

    /// Starts a daemon in a directory that has a configuration.
    pub fn start_in(scratch: TempDir) -> Option<Self> {
        Self::start_after("true", scratch)
    }

    /// Like [`Self::start_in`]. Works like [`Self::start_in`], but a shell first runs the commands
    /// `setup` in the daemon's process.
    pub fn start_after(setup: &str, scratch: TempDir) -> Option<Self> {
        let options = namespace_options()?;
        let notify = scratch.join("notify");
        let _ = fs::remove_file(&notify);
        let manager = UnixDatagram::bind(&notify).unwrap();
        manager.set_read_timeout(Some(patience())).unwrap();
        let log = fs::File::create(scratch.join("log")).unwrap();
        let child = Command::new("unshare")
            .args(options)
            // With `exec`, the child process becomes the daemon.
            .args(["--", "sh", "-c", &format!("ip link set lo up && {setup} && exec \"$@\"")])
            .args(["sh", BINARY])
            .args(["host", "run", "--log-format", "json", "--config"])
            .arg(scratch.join("host.toml"))
            .env("NOTIFY_SOCKET", &notify)
            .env_remove("PENSTOCK_SOCKET")
            .env_remove("RUST_LOG")
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Self { child, scratch, manager, options };
        daemon.await_notice("READY=1");
        Some(daemon)
    }

    /// Waits until the daemon has sent the notice `wanted` to the service manager.
    #[track_caller]
    pub fn await_notice(&mut self, wanted: &str) {
        let mut buffer = [0; 512];
        let mut interruptions = 0;
        loop {
            let length = match self.manager.recv(&mut buffer) {
                Ok(length) => length,
                // A signal to any process of the group interrupts a receive that has a time-out.
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted && interruptions < 1000 => {
                    interruptions += 1;
                    continue;
                }
                Err(e) => panic!("no {wanted} from the daemon: {e}; its log:\n{}", self.log()),
            };
            let text = String::from_utf8_lossy(&buffer[..length]);
            if text.lines().any(|line| line == wanted) {
                return;
            }
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("log")).unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.scratch.join("host.sock")
    }

    pub fn config(&self) -> PathBuf {
        self.scratch.join("host.toml")
    }

    /// Rewrites the configuration file with `objects` after `[host]`.
    pub fn write_config(&self, objects: &str) {
        fs::write(self.config(), configuration(&self.scratch, objects)).unwrap();
    }

    /// Runs the `penstock` command `line` against the daemon.
    pub fn ask(&self, line: &str) -> Told {
        penstock(&self.socket(), &line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a shell command in the daemon's namespace.
    pub fn inside(&self, script: &str) -> Told {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.child.id())).arg("--net");
        if self.options.contains(&"--user") {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["--", "bash", "-c", script]).output().unwrap().into()
    }

    /// Requests a page of the daemon's HTTP service and returns its head and body.
    pub fn page(&self, path: &str) -> String {
        let (host, port) = PAGES.split_once(':').unwrap();
        self.inside(&format!(
            "exec 3<>/dev/tcp/{host}/{port}; \
             printf 'GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3; \
             cat <&3"
        ))
        .ok()
    }

    #[allow(dead_code, reason = "not every file of tests looks at the process")]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.unwrap().success());
    }

    pub fn await_end(&mut self) -> ExitStatus {
        await_some("the daemon's end", || self.child.try_wait().unwrap())
    }

    /// Kills the daemon and keeps its directory.
    pub fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.scratch, temp_dir())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a configuration file with `objects` after `[host]`.
pub fn configuration(directory: &Path, objects: &str) -> String {
    let at = directory.display();
    format!(
        "# This host's switch.\n[host]\nname = \"test\"\nsocket = \"{at}/host.sock\"\n\
         state_dir = \"{at}/state\"\nmetrics = \"{PAGES}\"\n\n\
         [worker]\nidle_backoff_us = 1000\n\n{objects}"
    )
}
