//! Runs `tc` and `ip` in a network namespace of the controller's machine.

use std::fs::{File, create_dir_all};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::runner::{Hold, Run, RunError, Runner};

/// Maximum size of a program's output, in bytes.
const ANSWER_MAX: usize = 16 << 20;
/// Time limit for a run of `tc` or `ip`, and for the wait for the lock.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Network namespace of the controller's machine. Only root can enter another network namespace.
#[derive(Clone, Debug)]
pub struct Netns {
    path: Option<PathBuf>,
    lock: PathBuf,
}

impl Netns {
    /// Returns the network namespace of the controller's own process. All controllers of a machine
    /// share the directory `locks`, such as `/run/penstock`.
    #[must_use]
    pub fn own(locks: &Path) -> Self {
        Self { path: None, lock: locks.join("tc.lock") }
    }

    /// Returns a network namespace by name (`ip netns add NAME`) or by path, such as
    /// `/proc/PID/ns/net`.
    #[must_use]
    pub fn new(name_or_path: &str, locks: &Path) -> Self {
        // `join` appends a name, but an absolute path replaces the base.
        let path = Path::new("/run/netns").join(name_or_path);
        let file = name_or_path.replace('/', "_");
        Self { path: Some(path), lock: locks.join(format!("tc-{file}.lock")) }
    }

    fn command(&self, run: &Run) -> Command {
        let mut command = match &self.path {
            None => Command::new(run.program),
            Some(path) => {
                let mut inside = Command::new("nsenter");
                inside.arg(format!("--net={}", path.display())).arg("--").arg(run.program);
                inside
            }
        };
        command.args(&run.args).env("LC_ALL", "C").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Reads a program's output to its end. Returns an error if the output exceeds [`ANSWER_MAX`].
async fn read(from: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(ANSWER_MAX).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes).await?;
    match bytes.len() > ANSWER_MAX {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

/// Writes the input of a program, and reads its standard output and standard error.
async fn converse(child: &mut Child, input: &str) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let missing = || io::Error::other("a pipe is missing");
    let mut stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    let feed = async move {
        // If the program stops reading its input, its standard error says why.
        let _ = stdin.write_all(input.as_bytes()).await;
        Ok(())
    };
    let ((), out, errors) = tokio::try_join!(feed, read(stdout), read(stderr))?;
    Ok((out, errors))
}

#[async_trait]
impl Runner for Netns {
    async fn run(&self, run: &Run) -> Result<String, RunError> {
        let unreachable = |what: String| RunError::Unreachable(format!("{}: {what}", run.program));
        let mut child = self.command(run).spawn().map_err(|e| unreachable(e.to_string()))?;
        let whole = async {
            let (out, errors) = converse(&mut child, &run.stdin).await?;
            Ok((out, errors, child.wait().await?))
        };
        let late = |_| unreachable(format!("the run did not end within {} s", TIME_MAX.as_secs()));
        // If the time limit is exceeded, dropping the child kills it.
        let answer: io::Result<_> = timeout(TIME_MAX, whole).await.map_err(late)?;
        let (out, errors, status) = answer.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => RunError::TooLong(ANSWER_MAX),
            _ => unreachable(error.to_string()),
        })?;
        let errors = String::from_utf8_lossy(&errors).trim().to_owned();
        match status.success() {
            true => Ok(String::from_utf8_lossy(&out).into_owned()),
            // nsenter reports that the namespace does not exist.
            false if errors.starts_with("nsenter:") => Err(RunError::Unreachable(errors)),
            false => Err(RunError::Failed(errors)),
        }
    }

    async fn hold(&self) -> Result<Box<dyn Hold>, RunError> {
        let path = self.lock.clone();
        let shown = path.display().to_string();
        let locked = tokio::task::spawn_blocking(move || -> io::Result<File> {
            path.parent().map_or(Ok(()), create_dir_all)?;
            let file = File::options().create(true).append(true).open(&path)?;
            file.lock()?;
            Ok(file)
        });
        let unreachable = |what: String| RunError::Unreachable(format!("lock {shown}: {what}"));
        // If the wait times out, the waiting thread takes the lock later and releases it at once.
        match timeout(TIME_MAX, locked).await {
            Err(_) => {
                Err(unreachable(format!("the lock was not free for {} s", TIME_MAX.as_secs())))
            }
            Ok(Err(e)) => Err(unreachable(e.to_string())),
            Ok(Ok(Err(e))) => Err(unreachable(e.to_string())),
            Ok(Ok(Ok(file))) => Ok(Box::new(FileHold { _file: file })),
        }
    }
}

/// Exclusive lock on a file. Closing the file releases the lock.
#[derive(Debug)]
struct FileHold {
    _file: File,
}

impl Hold for FileHold {}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &'static str, args: &[&str], stdin: &str) -> Run {
        Run { program, args: args.iter().map(ToString::to_string).collect(), stdin: stdin.into() }
    }

    fn here() -> (Netns, PathBuf) {
        let locks = std::env::temp_dir().join(format!("penstock-tc-{}", std::process::id()));
        (Netns::own(&locks), locks)
    }

    #[tokio::test]
    async fn a_program_reads_and_answers_and_fails_with_its_own_words() {
        let (own, _) = here();
        assert_eq!(own.run(&run("cat", &[], "hello")).await, Ok("hello".to_owned()));
        let error = own.run(&run("sh", &["-c", "echo no >&2; exit 3"], "")).await;
        assert_eq!(error, Err(RunError::Failed("no".to_owned())));
        let error = own.run(&run("there-is-no-such-program", &[], "")).await;
        assert!(matches!(error, Err(RunError::Unreachable(_))), "{error:?}");
    }

    #[tokio::test]
    async fn an_endless_answer_is_cut_off() {
        let (own, _) = here();
        assert_eq!(own.run(&run("yes", &[], "")).await, Err(RunError::TooLong(ANSWER_MAX)));
    }

    #[tokio::test]
    async fn no_such_namespace_is_not_reachable() {
        let nowhere = Netns::new("penstock-there-is-no-such", &std::env::temp_dir());
        let error = nowhere.run(&run("true", &[], "")).await;
        assert!(matches!(error, Err(RunError::Unreachable(_))), "{error:?}");
    }

    #[tokio::test]
    async fn one_at_a_time_holds_a_switch() {
        let (own, locks) = here();
        let first = own.hold().await.expect("nobody holds it");
        let file = File::open(locks.join("tc.lock")).expect("made");
        assert!(file.try_lock().is_err(), "held");
        drop(first);
        own.hold().await.expect("let go");
        std::fs::remove_dir_all(locks).expect("removed");
    }
}
