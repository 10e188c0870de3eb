//! Reads files and runs processes with bounded time and memory.
//!
//! # Problem
//!
//! The bundle is often made by root, but other users own some of its sources. The user `penstock`
//! owns the directory of the configuration, so a file in it may be a symbolic link to a file that
//! only root may read, or a named pipe without a writer. A service that does not answer may be the
//! reason for the bundle.
//!
//! # Approach
//!
//! [`file()`] opens without following a link and without waiting, and reads only regular files.
//! [`output()`] ends a process that takes too long. Both keep the end of a text that is too long,
//! because the end of a log is its newest part.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::time::Instant;

/// Time after which [`output()`] no longer waits for a process that it killed.
const KILLED_WAIT: Duration = Duration::from_secs(1);
/// Interval in milliseconds of the checks whether a process has ended that closed its output.
const END_PAUSE_MS: u8 = 10;
/// Largest length of the error text of a process in bytes.
const ERRORS_MAX: usize = 4096;

/// The last bytes of a text.
struct Tail {
    bytes: Vec<u8>,
    max: usize,
    /// Whether bytes in front of `bytes` are missing.
    cut: bool,
}

impl Tail {
    fn new(max: usize) -> Self {
        Self { bytes: Vec::new(), max, cut: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // The bytes move only once in `max` bytes.
        if self.bytes.len() > self.max.saturating_mul(2) {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        let excess = self.bytes.len().saturating_sub(self.max);
        self.bytes.drain(..excess);
        self.cut |= excess > 0;
    }

    /// Returns the last `max` bytes. If bytes are missing, the text begins with a whole line,
    /// because the rest of a cut line may be a secret without its key.
    fn into_bytes(mut self) -> Vec<u8> {
        self.shorten();
        if self.cut {
            let line = self.bytes.iter().position(|byte| *byte == b'\n');
            self.bytes.drain(..line.map_or(self.bytes.len(), |at| at + 1));
        }
        self.bytes
    }
}

/// Whether [`file()`] follows a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Follow,
    Refuse,
}

/// Returns the last `max` bytes of a regular file.
///
/// # Errors
/// Returns an error if the file cannot be read, or is a link, pipe, socket or device.
pub fn file(path: &Path, links: Links, max: usize) -> io::Result<Vec<u8>> {
    let mut flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    if links == Links::Refuse {
        flags |= OFlag::O_NOFOLLOW;
    }
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if Errno::from_raw(code) == Errno::ELOOP => {
            io::Error::other("is a symbolic link")
        }
        _ => error,
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    let mut tail = Tail::new(max);
    let excess = metadata.len().saturating_sub(max as u64);
    if excess > 0 {
        file.seek(SeekFrom::Start(excess))?;
        tail.cut = true;
    }
    // A file may grow while it is read. A file in /proc has the length 0.
    let mut bytes = Vec::new();
    file.take(max as u64).read_to_end(&mut bytes)?;
    tail.push(&bytes);
    Ok(tail.into_bytes())
}

/// What a process wrote, and how it ended.
#[derive(Debug)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// `None` for a process that was killed because its time was over.
    pub status: Option<ExitStatus>,
}

/// Runs a process for at most `limit` and returns the last `max` bytes that it wrote.
///
/// # Errors
/// Returns an error if the process cannot be started or its output cannot be read.
pub fn output(command: &mut Command, limit: Duration, max: usize) -> io::Result<Output> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut pipes = [
        Pipe::new(child.stdout.take().map(OwnedFd::from), max),
        Pipe::new(child.stderr.take().map(OwnedFd::from), ERRORS_MAX),
    ];
    let read = read_until(&mut pipes, deadline);
    let status = match read {
        Ok(()) => wait_until(&mut child, deadline),
        Err(_) => Ok(None),
    };
    if !matches!(status, Ok(Some(_))) {
        // `kill` uses the process id, which cannot belong to another process before the wait.
        child.kill()?;
        let _ = wait_until(&mut child, Instant::now() + KILLED_WAIT);
    }
    read?;
    let [stdout, stderr] = pipes.map(|pipe| pipe.tail.into_bytes());
    Ok(Output { stdout, stderr, status: status? })
}

/// Output of a process. `file` is `None` after the process closed it.
struct Pipe {
    file: Option<File>,
    tail: Tail,
}

impl Pipe {
    fn new(fd: Option<OwnedFd>, max: usize) -> Self {
        Self { file: fd.map(File::from), tail: Tail::new(max) }
    }

    /// Whether the pipe has bytes or was closed. Otherwise, a read would wait.
    fn is_ready(&self) -> bool {
        self.file.as_ref().is_some_and(|file| {
            let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        match file.read(buffer) {
            Ok(0) => self.file = None,
            Ok(length) => self.tail.push(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Reads until all pipes are closed or the time is over.
fn read_until(pipes: &mut [Pipe], deadline: Instant) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let open = pipes.iter().filter_map(|pipe| pipe.file.as_ref());
        let mut fds: Vec<PollFd<'_>> =
            open.map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN)).collect();
        if fds.is_empty() || left.is_zero() {
            return Ok(());
        }
        // A wait of less than a millisecond counts as one, so that the loop does not spin.
        let left = left.max(Duration::from_millis(1));
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        drop(fds);
        for pipe in pipes.iter_mut().filter(|pipe| pipe.is_ready()) {
            pipe.read(&mut buffer)?;
        }
    }
}

/// Waits for the end of a process. Returns `None` if the time is over.
fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        let _ = poll(&mut [], PollTimeout::from(END_PAUSE_MS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use penstock_testing::temp_dir;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_file_is_read_from_its_end() {
        let scratch = temp_dir();
        let path = scratch.join("a.toml");
        fs::write(&path, "password = 1234\nlast = 1\n").unwrap();
        assert_eq!(file(&path, Links::Refuse, 100).unwrap(), b"password = 1234\nlast = 1\n");
        // A line whose beginning is missing is left out.
        assert_eq!(file(&path, Links::Refuse, 12).unwrap(), b"last = 1\n");
        assert_eq!(file(&path, Links::Refuse, 5).unwrap(), b"");
        // A sparse file of 64 GiB costs no memory.
        File::options().write(true).open(&path).unwrap().set_len(64 << 30).unwrap();
        assert!(file(&path, Links::Refuse, 5).unwrap().len() <= 5);
        assert!(!file(Path::new("/proc/version"), Links::Follow, 4096).unwrap().is_empty());
    }

    #[test]
    fn links_and_pipes_are_refused_without_waiting() {
        let scratch = temp_dir();
        let (link, pipe) = (scratch.join("link.toml"), scratch.join("pipe.toml"));
        symlink("/proc/version", &link).unwrap();
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let refused =
            |path: &Path| file(path, Links::Refuse, 100).map(|_| ()).unwrap_err().to_string();
        assert_eq!(refused(&link), "is a symbolic link");
        assert_eq!(refused(&pipe), "is not a regular file");
        assert_eq!(refused(&scratch), "is not a regular file");
        assert!(file(&link, Links::Follow, 100).is_ok());
    }

    #[test]
    fn the_end_of_much_output_is_kept() {
        let script = "i=0; while [ $i -lt 20000 ]; do echo line$i; i=$((i + 1)); done; echo no >&2";
        let told = output(&mut shell(script), Duration::from_secs(60), 19).unwrap();
        assert_eq!(told.stdout, b"line19999\n", "the first byte of line19998 is missing");
        assert_eq!((told.stderr, told.status.unwrap().code()), (b"no\n".to_vec(), Some(0)));
    }

    #[test]
    fn a_process_that_takes_too_long_is_killed() {
        for script in ["echo begun; exec sleep 600", "echo begun; exec >&- 2>&-; exec sleep 600"] {
            let began = Instant::now();
            let told = output(&mut shell(script), Duration::from_millis(500), 100).unwrap();
            assert_eq!((told.stdout, told.status), (b"begun\n".to_vec(), None), "{script}");
            assert!(began.elapsed() < Duration::from_secs(60), "{script}");
        }
    }
}
