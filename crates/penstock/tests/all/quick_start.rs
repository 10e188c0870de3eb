//! The quick start of docs/reference/controller.md, as it is printed, on a machine where Penstock
//! never ran: nothing in /run and /var/lib, a loopback of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::support::controller::{TAKE_OVER, until};

/// What a user has in front of them: the folder of the sources.
fn sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A shell where `penstock` is a command, as it is after an installation.
fn shell(command: &mut Command) -> &mut Command {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_penstock"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    command.current_dir(sources()).env("PATH", path).env_remove("PENSTOCK_SOCKET")
}

struct Running(Child);

impl Running {
    /// The command that stays, in namespaces of its own; it ends with the test.
    fn start(words: &str) -> Self {
        let script = format!(
            "ip link set lo up && mount -t tmpfs none /run && mount -t tmpfs none /var/lib && \
             exec {words}"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-c", &script]);
        Self(shell(&mut command).stdin(Stdio::null()).spawn().unwrap())
    }

    /// A command beside it.
    fn beside(&self, words: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.0.id().to_string(), "--mount", "--net", "--wd"]);
        shell(command.args(["--", "sh", "-c", words])).output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_quick_start_of_the_controller_works_as_printed() {
    if !nix::unistd::geteuid().is_root() {
        penstock_testing::skip("run as root");
        return;
    }
    let text = fs::read_to_string(sources().join("docs/reference/controller.md")).unwrap();
    let section = text.split("\n## Quick start\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let commands: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let [first, rest @ ..] = commands.as_slice() else { panic!("no commands in {section}") };
    let mut running = Running::start(first);
    until(TAKE_OVER, "it leads", || {
        let ended = running.0.try_wait().unwrap();
        assert!(ended.is_none(), "{first}: {ended:?}");
        let status = running.beside("penstock controller status --json");
        String::from_utf8_lossy(&status.stdout).contains("\"leads\": true")
    });
    assert!(rest.len() >= 4, "{rest:?}");
    for words in rest {
        let done = running.beside(words);
        let said = [done.stdout, done.stderr].map(|t| String::from_utf8_lossy(&t).into_owned());
        assert!(done.status.success(), "{words}: {}: {said:?}", done.status);
        assert!(said[0].contains("web") && said[1].is_empty(), "{words}: {said:?}");
    }
}
