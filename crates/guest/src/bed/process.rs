//! Runs programs of a measurement: daemons that the guard process ends, and commands with output.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::guard::{Guard, Ward};
use crate::clock;

/// Time between two checks while a function of this module waits for an event.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a command, waits for the command's end, and returns its standard output.
///
/// # Errors
/// Returns an error if the command cannot be started or fails. The error contains the command with
/// its arguments, the exit status and the command's output.
pub fn ask(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {}", line(command)))?;
    if !output.status.success() {
        bail!("{}: {}: {}", line(command), output.status, said(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the program and the arguments of a command as one line, for errors.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns the standard error and the standard output of a failed program. A program with JSON
/// output prints the reason of the failure on standard output.
fn said(output: &Output) -> String {
    let texts = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
    let texts = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    let said = texts.collect::<Vec<_>>().join("\n");
    if said.is_empty() { "no output".to_owned() } else { said }
}

/// Calls the function `found` repeatedly until `found` returns `Some`.
///
/// # Errors
/// Returns an error if `found` fails, or if `found` returned no value within the time `limit`.
pub fn await_some<T>(
    what: &str,
    limit: Duration,
    mut found: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let since = clock::now();
    loop {
        if let Some(it) = found()? {
            return Ok(it);
        }
        if since.elapsed() >= limit {
            bail!("{what}: not ready after {} s", limit.as_secs());
        }
        clock::wait_readable(None, LOOK);
    }
}

/// Calls the function `tried` repeatedly until an attempt succeeds. If `tried` returns
/// `Ok(Err(error))`, the attempt failed and the function calls `tried` again. If `tried` returns an
/// outer error, the function stops and returns this error.
///
/// # Errors
/// Returns an error if `limit` has passed or `tried` returns an outer error. If `limit` has passed,
/// the error contains the error of the last attempt.
pub fn await_ok<T>(
    what: &str,
    limit: Duration,
    mut tried: impl FnMut() -> anyhow::Result<anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut last = None;
    let found = await_some(what, limit, || match tried()? {
        Ok(it) => Ok(Some(it)),
        Err(error) => {
            last = Some(error);
            Ok(None)
        }
    });
    found.map_err(|error| match last {
        Some(last) => anyhow::anyhow!("{error:#}: {last:#}"),
        None => error,
    })
}

#[derive(Debug)]
pub struct Daemon {
    child: std::process::Child,
    /// Program and arguments of the daemon.
    line: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts a daemon, and writes the daemon's output to the file `log`.
    ///
    /// # Errors
    /// Returns an error if the daemon cannot be started or the guard process has ended.
    pub fn start(command: &mut Command, log: PathBuf, guard: &Guard) -> anyhow::Result<Self> {
        let line = line(command);
        let out = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let err = out.try_clone().with_context(|| format!("making {}", log.display()))?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .with_context(|| format!("starting {line}"))?;
        // If the guard cannot be notified, `daemon` is dropped, and the program ends.
        let mut daemon = Self { child, line, log };
        match Ward::process(daemon.child.id()) {
            Ok(ward) => guard.take(&ward)?,
            // A process that has already ended needs no guard. A later check reports its end.
            Err(_) if daemon.child.try_wait().context("waiting for a child")?.is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(daemon)
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Checks that the daemon is still running.
    ///
    /// # Errors
    /// Returns an error if the daemon has ended. The error contains the daemon's command, its exit
    /// status and the last lines of its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait().context("waiting for a child")? {
            bail!("{} ended by itself ({status}):\n{}", self.line, self.last_words());
        }
        Ok(())
    }

    /// The last twelve lines of the daemon's log, or `no output`.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        match lines.len() {
            0 => "no output".to_owned(),
            all => lines[all.saturating_sub(12)..].join("\n"),
        }
    }

    /// Waits until a file of the daemon exists, such as its socket.
    ///
    /// # Errors
    /// Returns an error if the daemon has ended or `limit` has passed.
    pub fn await_file(&mut self, file: &Path, limit: Duration) -> anyhow::Result<()> {
        await_some(&file.display().to_string(), limit, || {
            self.check()?;
            Ok(file.exists().then_some(()))
        })
    }

    /// Sends a signal to the daemon.
    ///
    /// # Errors
    /// Returns an error if the signal cannot be sent.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("sending {signal} to process {pid}"))
    }

    /// Waits until the daemon's process has ended, and returns its exit status.
    ///
    /// # Errors
    /// Returns an error if the daemon still runs after `limit`.
    pub fn await_end(&mut self, limit: Duration) -> anyhow::Result<std::process::ExitStatus> {
        let child = &mut self.child;
        await_some(&format!("end of {}", self.line), limit, || Ok(child.try_wait()?))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process id of a process that has ended may belong to another process.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // If the signal fails, the guard ends the daemon later.
        let _ = self.signal(Signal::SIGTERM);
        let _ = self.signal(Signal::SIGCONT);
        if self.await_end(Duration::from_secs(5)).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Clock that counts the time in which one thread is runnable but does not run.
#[derive(Debug)]
pub struct ThreadClock(File);

impl ThreadClock {
    /// Waits until process `pid` has a thread with a name that begins with `prefix`, and opens that
    /// thread's clock.
    ///
    /// # Errors
    /// Returns an error if the process has no thread with the prefix after ten seconds.
    pub fn find(pid: u32, prefix: &str) -> anyhow::Result<Self> {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let what = format!("thread {prefix} of process {pid}");
        await_some(&what, Duration::from_secs(10), || {
            let entries = std::fs::read_dir(&tasks).context("reading its threads")?;
            for task in entries.filter_map(Result::ok) {
                let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
                if name.starts_with(prefix) {
                    let file = File::open(task.path().join("schedstat"));
                    return Ok(Some(Self(file.context("opening its clock")?)));
                }
            }
            Ok(None)
        })
    }

    /// Nanoseconds in which the thread was runnable but did not run, since the thread's start. 0 if
    /// the kernel does not count this time.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        let mut text = [0; 96];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..len]);
        text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_says_why() {
        let error = ask(Command::new("sh").args(["-c", "echo no good >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "sh -c echo no good >&2; exit 3: exit status: 3: no good");
        assert_eq!(ask(Command::new("echo").arg("hello")).unwrap(), "hello\n");
        let absent = ask(Command::new("/nonexistent/program").args(["one", "two"])).unwrap_err();
        assert_eq!(absent.to_string(), "running /nonexistent/program one two");
        // A program with JSON output prints the reason on standard output.
        let answer = "echo '{\"refused\": \"no room\"}'; exit 1";
        let text = ask(Command::new("sh").args(["-c", answer])).unwrap_err().to_string();
        assert!(text.contains("no room"), "{text}");
        let text = ask(&mut Command::new("false")).unwrap_err().to_string();
        assert!(text.ends_with("no output"), "{text}");
    }

    #[test]
    fn a_daemon_that_ended_is_named_with_its_status_and_its_last_lines() {
        let log = std::env::temp_dir().join(format!("penstock-ended-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room; exit 4"]).stdout(File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        child.wait().unwrap();
        let mut daemon = Daemon { child, line: line(&command), log: log.clone() };
        let text = daemon.check().unwrap_err().to_string();
        assert!(text.starts_with("sh -c echo no room; exit 4 ended by itself"), "{text}");
        assert!(text.contains("exit status: 4") && text.ends_with("no room"), "{text}");
        std::fs::remove_file(&log).unwrap();
    }

    #[test]
    fn repeated_attempts_report_the_last_reason() {
        let no = || Ok(ask(Command::new("sh").args(["-c", "echo not yet >&2; exit 1"])));
        let text = await_ok("a program", Duration::ZERO, no).unwrap_err().to_string();
        assert!(text.contains("a program: not ready") && text.contains("not yet"), "{text}");
        let mut left = 3;
        let third = await_ok("a number", Duration::from_secs(10), || {
            left -= 1;
            Ok(if left == 0 { Ok(7) } else { Err(anyhow::anyhow!("not yet")) })
        });
        assert_eq!(third.unwrap(), 7);
    }

    #[test]
    fn a_thread_is_found_by_the_beginning_of_its_name() {
        let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let prefix: String = name.trim().chars().take(6).collect();
        let clock = ThreadClock::find(std::process::id(), &prefix).unwrap();
        assert!(clock.waited_ns() <= clock.waited_ns());
    }
}
