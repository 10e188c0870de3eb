//! The part of a service manager that keeps descriptors over a restart (sd_pid_notify_with_fds(3)).

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use penstock_dataplane::port::passing;

/// A service manager with one service.
#[derive(Debug)]
pub struct Manager {
    path: PathBuf,
    notices: OwnedFd,
    /// Stored descriptors with their names.
    pub store: Vec<(String, OwnedFd)>,
}

impl Manager {
    /// Listens for notices in the directory `dir`.
    pub fn new(dir: &Path) -> Self {
        let path = dir.join("notify");
        let _ = std::fs::remove_file(&path);
        let notices = UnixDatagram::bind(&path).unwrap();
        notices.set_nonblocking(true).unwrap();
        Self { path, notices: notices.into(), store: Vec::new() }
    }

    /// Reads all notices that arrived, and stores or removes descriptors. Returns all lines.
    pub fn read(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok((length, fds)) = passing::receive(&self.notices, &mut buffer) {
            let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
            let value = |key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key));
                line.and_then(|line| line.strip_prefix('='))
            };
            let name = value("FDNAME").unwrap_or("stored").to_owned();
            if value("FDSTORE") == Some("1") {
                self.store.extend(fds.into_iter().map(|fd| (name.clone(), fd)));
            } else if value("FDSTOREREMOVE") == Some("1") {
                self.store.retain(|(stored, _)| *stored != name);
            }
            lines.extend(text.lines().map(str::to_owned));
        }
        lines
    }

    /// Keeps the stored descriptors out of the programs that other tests start. Call this function
    /// after the start of [`Self::command`].
    pub fn keep_private(&self) {
        for (_, fd) in &self.store {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        }
    }

    /// A command that starts `program` with the stored descriptors. The caller adds the program's
    /// arguments.
    pub fn command(&self, program: &str) -> Command {
        // First, copies get high numbers: number 3 may already be one of the descriptors.
        let (mut copies, mut passed) = (String::new(), String::new());
        for (number, (_, fd)) in (3..).zip(&self.store) {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
            let high = number + 200;
            // A further copy in the program would keep the session open.
            copies.push_str(&format!(" {high}<&{0} {0}<&-", fd.as_raw_fd()));
            passed.push_str(&format!(" {number}<&{high} {high}<&-"));
        }
        let script = format!("export LISTEN_PID=$$; exec {copies}; exec \"$@\" {passed}");
        let names = self.store.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash", program]).env("NOTIFY_SOCKET", &self.path);
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string());
            command.env("LISTEN_FDNAMES", names.join(":"));
        }
        command
    }
}
