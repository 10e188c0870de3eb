//! Programs that a measurement runs: daemons under the guard, and commands with an answer.

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

/// Time between two checks for an awaited event.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a command to its end and returns its output.
///
/// # Errors
/// The command cannot be run or fails. The error contains the command's message.
pub fn ask(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        bail!("{program} {}: {}: {}", words.join(" "), output.status, said(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The message of a program that failed: its standard error and its standard output. A program with
/// JSON output prints its reason in the answer.
fn said(output: &Output) -> String {
    let texts = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
    let texts = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    let said = texts.collect::<Vec<_>>().join("\n");
    if said.is_empty() { "it said nothing".to_owned() } else { said }
}

/// Calls `found` repeatedly until it returns a value.
///
/// # Errors
/// `limit` has passed, or `found` fails.
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
            bail!("{what}: not there after {} s", limit.as_secs());
        }
        clock::wait_readable(None, LOOK);
    }
}

/// Calls `tried` until it succeeds. An outer error of `tried` ends the attempts.
///
/// # Errors
/// `limit` has passed (with the last reason), or `tried` fails.
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
    log: PathBuf,
}

impl Daemon {
    /// Starts the daemon with its output in `log`.
    ///
    /// # Errors
    /// The daemon cannot be started, or the guard is gone.
    pub fn start(command: &mut Command, log: PathBuf, guard: &Guard) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let out = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let err = out.try_clone().with_context(|| format!("making {}", log.display()))?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        // If the guard cannot be notified, the daemon is dropped, which ends it.
        let mut daemon = Self { child, log };
        match Ward::process(daemon.child.id()) {
            Ok(ward) => guard.take(&ward)?,
            // A process that has already ended needs no guard; a later check reports it.
            Err(_) if daemon.child.try_wait().context("waiting for a child")?.is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(daemon)
    }

    /// Process id of the daemon.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the daemon has ended. The error contains the end of the daemon's log.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait().context("waiting for a child")? {
            bail!("ended by itself ({status}):\n{}", self.last_words());
        }
        Ok(())
    }

    /// The last lines of the daemon's log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Waits for a file that the daemon creates, such as a socket.
    ///
    /// # Errors
    /// The daemon has ended, or `limit` has passed.
    pub fn await_file(&mut self, file: &Path, limit: Duration) -> anyhow::Result<()> {
        await_some(&file.display().to_string(), limit, || {
            self.check()?;
            Ok(file.exists().then_some(()))
        })
    }

    /// Sends the daemon a signal.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("sending {signal} to process {pid}"))
    }

    /// Waits until the daemon has ended.
    ///
    /// # Errors
    /// `limit` has passed.
    pub fn await_end(&mut self, limit: Duration) -> anyhow::Result<std::process::ExitStatus> {
        let child = &mut self.child;
        await_some("end of a process", limit, || Ok(child.try_wait()?))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // If this fails, the guard ends the daemon later.
        let _ = self.signal(Signal::SIGTERM);
        let _ = self.signal(Signal::SIGCONT);
        if self.await_end(Duration::from_secs(5)).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads how long one thread was runnable but not running.
#[derive(Debug)]
pub struct ThreadClock(File);

impl ThreadClock {
    /// Finds the thread of process `pid` whose name begins with `prefix`, and waits for it if
    /// necessary.
    ///
    /// # Errors
    /// No such thread exists after ten seconds.
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

    /// Nanoseconds on the run queue since the thread's start; 0 if the kernel does not count them.
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
        assert!(text.contains("no good") && text.contains('3'), "{text}");
        assert_eq!(ask(Command::new("echo").arg("hello")).unwrap(), "hello\n");
        assert!(ask(&mut Command::new("/nonexistent/program")).is_err());
        // A program with JSON output prints its reason in the answer.
        let answer = "echo '{\"refused\": \"no room\"}'; exit 1";
        let text = ask(Command::new("sh").args(["-c", answer])).unwrap_err().to_string();
        assert!(text.contains("no room"), "{text}");
        let text = ask(&mut Command::new("false")).unwrap_err().to_string();
        assert!(text.ends_with("it said nothing"), "{text}");
    }

    #[test]
    fn repeated_attempts_report_the_last_reason() {
        let no = || Ok(ask(Command::new("sh").args(["-c", "echo not yet >&2; exit 1"])));
        let text = await_ok("a program", Duration::ZERO, no).unwrap_err().to_string();
        assert!(text.contains("a program: not there") && text.contains("not yet"), "{text}");
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
