//! Starts a controller as a process and sends requests to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use penstock_testing::scaled;
use serde_json::Value;

use super::BINARY;

/// Topology of a tree with ten servers.
pub const FABRIC: &str = r#"[fabric]
name = "two racks"
queues = 4

[servers]
slots = 10

[[tier]]
fan_out = 5
rate = "1G"

[[tier]]
fan_out = 2
rate = "1G"
"#;
/// Configuration of switches that exist only in memory.
pub const SWITCHES: &str = r#"
[[switch]]
name = "rack-0"
driver = "sim"

[[switch]]
name = "rack-1"
driver = "sim"

[[switch]]
name = "core-0"
driver = "sim"
"#;
/// Maximum time until another controller leads after the loss of the leader
/// (docs/reference/controller.md).
pub const TAKE_OVER: Duration = Duration::from_secs(15);
/// Maximum time until a controller answers on an idle machine. A leader answers after the messages
/// that it is sending to switches and hosts.
const ANSWER: Duration = Duration::from_secs(20);

/// Returns a command that sends a request to the controller with the socket `socket`. The command
/// ends if the controller does not answer in time.
pub fn client(socket: &Path) -> Command {
    let mut command = Command::new("timeout");
    let limit = scaled(ANSWER).as_secs().to_string();
    command.arg(limit).args([BINARY, "--socket"]).arg(socket);
    command
}

/// A controller as a process, killed with the test.
pub struct Controller {
    child: Child,
    socket: PathBuf,
}

impl Controller {
    /// Starts a controller with switches in memory.
    pub fn start(folder: &Path, name: &str, store: &str) -> Self {
        Self::over(folder, name, store, FABRIC, SWITCHES)
    }

    /// Starts a controller with the tables `fabric` and `switches` in its file.
    pub fn over(folder: &Path, name: &str, store: &str, fabric: &str, switches: &str) -> Self {
        Self::with(folder, name, "", store, fabric, switches)
    }

    /// Starts a controller with `keys` and the tables `fabric` and `switches` in its file.
    pub fn with(
        folder: &Path,
        name: &str,
        keys: &str,
        store: &str,
        fabric: &str,
        switches: &str,
    ) -> Self {
        fs::write(folder.join("fabric.toml"), fabric).unwrap();
        let (socket, file) = (folder.join(format!("{name}.sock")), folder.join(name));
        let text = format!(
            "[controller]\nname = \"{name}\"\ntopology = \"fabric.toml\"\nsocket = {socket:?}\n\
             interval_ms = 500\nreport_ms = 250\nverify_every = 1\n{keys}\n\
             [store]\n{store}\n{switches}"
        );
        fs::write(&file, text).unwrap();
        let log = fs::File::create(folder.join(format!("{name}.log"))).unwrap();
        let child = Command::new(BINARY)
            .args(["controller", "run", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, socket }
    }

    /// Sends a request. Returns whether the command's exit status is 0, and the controller's
    /// answer. Returns `None` if the controller does not answer.
    pub fn ask(&self, words: &[&str]) -> Option<(bool, Value)> {
        let mut command = client(&self.socket);
        let done = command.arg("controller").args(words).arg("--json").output().unwrap();
        let value = serde_json::from_slice(&done.stdout).ok()?;
        Some((done.status.success(), value))
    }

    /// Returns the reason why the controller refuses a request. Panics if the controller accepts
    /// the request or does not answer.
    pub fn refuses(&self, words: &[&str]) -> String {
        let done = client(&self.socket).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        // `timeout` exits with 124 if it had to end the program.
        assert_eq!(done.status.code(), Some(1), "{words:?}: {said}");
        said
    }

    /// Returns the request's output on standard error. Panics if the controller does not answer.
    pub fn complains(&self, words: &[&str]) -> String {
        let done = client(&self.socket).arg("controller").args(words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_ne!(done.status.code(), Some(124), "{words:?}: no answer: {said}");
        said
    }

    pub fn leads(&self) -> bool {
        self.ask(&["status"]).is_some_and(|(_, status)| status["leads"] == true)
    }

    pub fn epoch(&self) -> u64 {
        self.ask(&["status"]).unwrap().1["stamp"]["epoch"].as_u64().unwrap()
    }

    pub fn tenants(&self) -> Vec<String> {
        let (_, tenants) = self.ask(&["tenants"]).unwrap();
        let name = |tenant: &Value| tenant["name"].as_str().unwrap().to_owned();
        tenants.as_array().unwrap().iter().map(name).collect()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats a check until it is true and returns the time that this took. `limit` is the maximum
/// time that the check may take on an idle machine.
#[expect(clippy::disallowed_methods, reason = "what processes take is the result")]
pub fn until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let (start, limit) = (Instant::now(), scaled(limit));
    while !holds() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        // This is a pause between two requests to the process.
        std::thread::sleep(Duration::from_millis(50));
    }
    start.elapsed()
}
