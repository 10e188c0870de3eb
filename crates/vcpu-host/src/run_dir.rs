//! The run directory of a vCPU scheduler. Only one scheduler at a time uses a run directory, and
//! other users may not write to the directory.
//!
//! # Problem
//! The privileged scheduler changes the policies of threads that the files in the run directory
//! name. If two schedulers used one run directory, both schedulers would change the same threads.
//! If two schedulers changed the same threads, each scheduler would record the other scheduler's
//! changes as the original state.
//!
//! # Approach
//! No other user may write to the run directory. The switch has the same user and may write to the
//! directory, but the switch has fewer privileges than the scheduler. The switch must not make the
//! scheduler open a file of another user. The scheduler therefore follows no link in the run
//! directory. The scheduler reads only regular files of its user or of root (`open`), and always
//! writes new files (`replace`). The scheduler and its watchdog have a lock on the directory
//! (`flock`). The watchdog inherits the lock, so a new scheduler does not start before the threads
//! of the old scheduler are restored.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::unistd::geteuid;

use crate::lease::{Identity, LeaseTable};
use crate::restore::{self, LEASES};

/// Name of the file in the run directory that the scheduler locks.
const LOCK: &str = "lock";
/// Time limit for the watchdog of a dead scheduler. The watchdog of a dead scheduler normally ends
/// within some milliseconds.
const WATCHDOG_WITHIN: Duration = Duration::from_secs(5);
/// Mode bits for write permission of the group and of other users.
const OTHERS_WRITE: u32 = 0o022;

/// A run directory that this process has locked. The directory is unlocked when this value is
/// dropped and the last watchdog has ended.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: File,
}

impl RunDir {
    /// Locks the run directory at `path`. If the directory does not exist, the function creates it.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created, if other users may write to the
    /// directory, or if a scheduler uses the directory.
    pub fn take(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        is_ours(path)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.custom_flags(libc::O_NOFOLLOW).open(path.join(LOCK))?;
        let lock = match lock.try_lock() {
            Ok(()) => lock,
            Err(TryLockError::WouldBlock) => wait(path, lock)?,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        // Another process may have removed a lock file in use, so the table is checked too.
        match living(path) {
            Some(owner) => Err(busy(owner.pid)),
            None => Ok(Self { path: path.to_owned(), lock }),
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the lock as standard input for a child process. A child process with this standard
    /// input also has the lock on the run directory.
    pub(crate) fn lock(&self) -> io::Result<Stdio> {
        Ok(self.lock.try_clone()?.into())
    }
}

/// Opens the file at `path`, which is in a scheduler's run directory.
///
/// # Errors
/// Returns an error if the path is a link, or if the file is not regular or belongs to another
/// user.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // O_NONBLOCK is set, so that opening a pipe does not wait for its other end.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() && [0, geteuid().as_raw()].contains(&meta.uid()) {
        return Ok(file);
    }
    let (at, owner) = (path.display(), meta.uid());
    let why = format!(
        "{at}: belongs to user {owner}, or is not a regular file; remove it, because the scheduler \
         uses only files of its own user and of root"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Writes the file `name` in the run directory `dir`, completely or not at all.
pub(crate) fn replace(dir: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    let fresh = dir.join(format!(".{name}"));
    // This creates a new file and never writes to an existing file.
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&fresh)?;
    file.write_all(contents)?;
    std::fs::rename(fresh, dir.join(name))
}

/// Checks that no other user can change the run directory's content.
fn is_ours(path: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(path)?;
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    if [0, geteuid().as_raw()].contains(&owner) && mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    let why = format!(
        "user {owner} owns the directory with mode {mode:o}, so other users could make the \
         scheduler change threads; give the directory to the scheduler's user, with mode 700"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// The scheduler that created the table of thread policies in the run directory; `None` if that
/// scheduler is dead.
fn living(path: &Path) -> Option<Identity> {
    let owner = LeaseTable::open(&path.join(LEASES)).ok()?.owner().ok()?;
    restore::is_alive(owner).then_some(owner)
}

fn busy(pid: u32) -> io::Error {
    let why = format!(
        "the vCPU scheduler with pid {pid} uses this run directory; stop it, or set another \
         `run_dir`"
    );
    io::Error::new(io::ErrorKind::AddrInUse, why)
}

/// Waits for the watchdog of a dead scheduler, which has the lock until all threads and cgroups are
/// restored.
fn wait(path: &Path, lock: File) -> io::Result<File> {
    if let Some(owner) = living(path) {
        return Err(busy(owner.pid));
    }
    let (send, got) = channel();
    // The call has no time limit, so a separate thread makes the call. A thread that still waits
    // ends with the process.
    std::thread::spawn(move || send.send(lock.lock().map(|()| lock)));
    got.recv_timeout(WATCHDOG_WITHIN).unwrap_or_else(|_| {
        if let Some(owner) = living(path) {
            return Err(busy(owner.pid));
        }
        let why = format!(
            "another scheduler starts in this directory, or the watchdog of a dead scheduler does \
             not end; find and stop the process that has {} open, with `fuser`, or set another \
             `run_dir`",
            path.join(LOCK).display()
        );
        Err(io::Error::new(io::ErrorKind::AddrInUse, why))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_scheduler_waits_for_the_watchdog_of_a_dead_one() {
        let home = penstock_testing::temp_dir();
        let dir = home.join("run");
        let first = RunDir::take(&dir).unwrap();
        let mut watchdog = std::process::Command::new("tail")
            .args(["-f", "/dev/null"])
            .stdin(first.lock().unwrap())
            .spawn()
            .unwrap();
        drop(first);
        let other = File::open(dir.join(LOCK)).unwrap();
        assert!(other.try_lock().is_err(), "the watchdog has it");
        let (send, taken) = channel();
        std::thread::spawn({
            let dir = dir.clone();
            move || send.send(RunDir::take(&dir).map(|taken| taken.path().to_owned()))
        });
        assert!(taken.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
        watchdog.kill().unwrap();
        watchdog.wait().unwrap();
        assert_eq!(taken.recv().unwrap().unwrap(), dir);
    }

    #[test]
    fn links_and_files_of_others_in_it_are_neither_written_nor_read() {
        use crate::bells::Bells;
        use crate::restore::{BEFORE, Before};
        use crate::state::{STATE, State};
        use std::os::unix::fs::symlink;
        let dir = penstock_testing::temp_dir();
        let precious = dir.join("precious");
        std::fs::write(&precious, "weight 7 /a\n").unwrap();
        let named = || std::fs::read_to_string(&precious).unwrap();
        for fresh in [".before", ".state", ".state.json"] {
            symlink(&precious, dir.join(fresh)).unwrap();
        }
        let saved = Before { weights: vec![(PathBuf::from("/b"), 8)], ..Before::default() };
        saved.save(&dir).unwrap();
        State::default().save(&dir).unwrap();
        assert_eq!(named(), "weight 7 /a\n");
        assert_eq!(Before::load(&dir), saved);
        assert!(dir.join(STATE).symlink_metadata().unwrap().is_file());

        // `load` accepts neither a link nor a file of another user.
        std::fs::remove_file(dir.join(BEFORE)).unwrap();
        symlink(&precious, dir.join(BEFORE)).unwrap();
        assert_eq!(Before::load(&dir), Before::default());
        let bells = dir.join(penstock_vcpu::bells::BELLS_FILE);
        std::fs::write(&precious, penstock_vcpu::bells::MAGIC.to_ne_bytes()).unwrap();
        symlink(&precious, &bells).unwrap();
        assert!(Bells::open(&dir).is_err(), "a link");
        std::fs::remove_file(&bells).unwrap();
        std::fs::copy(&precious, &bells).unwrap();
        Bells::open(&dir).unwrap();
        nix::unistd::mkfifo(&dir.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::rename(dir.join("pipe"), dir.join(BEFORE)).unwrap();
        assert_eq!(Before::load(&dir), Before::default());
        if geteuid().is_root() {
            std::os::unix::fs::chown(&bells, Some(12_345), None).unwrap();
            let said = Bells::open(&dir).unwrap_err().to_string();
            assert!(said.contains("user 12345"), "{said}");
        }
    }

    #[test]
    fn a_directory_of_everybody_is_refused() {
        let dir = penstock_testing::temp_dir();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        let said = RunDir::take(&dir).unwrap_err().to_string();
        assert!(said.contains("mode 777") && said.contains("mode 700"), "{said}");
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.join(LOCK)).unwrap();
        assert!(RunDir::take(&dir).is_err(), "a link");
    }
}
