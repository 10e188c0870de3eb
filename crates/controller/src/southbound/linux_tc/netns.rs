//! Asks the kernel in a network namespace of the controller's machine.
//!
//! # Approach
//!
//! Each exchange with the kernel has its own thread. The thread enters the network namespace, opens
//! a socket there, sends the requests, and ends. The threads of the controller's runtime therefore
//! stay in the controller's network namespace. A socket of an earlier exchange would keep a deleted
//! network namespace alive, and would not follow a name to a new network namespace.
//!
//! # Cost
//!
//! An exchange costs one thread, and one pair of system calls for each request. The kernel answers
//! a request within some tens of microseconds, unless another program changes network interfaces.

use std::fs::{File, create_dir_all};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::kernel::{Hold, Kernel, KernelError, Message, Request};
use super::socket::Socket;

/// Time limit for an exchange with the kernel, and for the wait for the lock.
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
}

/// Moves the calling thread to the network namespace at `path`.
fn enter(path: &Path) -> Result<(), KernelError> {
    let unreachable = |problem: String| {
        KernelError::Unreachable(format!("network namespace {}: {problem}", path.display()))
    };
    let file = File::open(path).map_err(|error| unreachable(error.to_string()))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| unreachable(error.to_string()))
}

/// Sends requests in order from the network namespace at `path`. Sends no further request when
/// `given_up` returns true.
fn exchange(
    path: Option<&Path>,
    requests: &[Request],
    given_up: impl Fn() -> bool,
) -> Result<Vec<Vec<Message>>, KernelError> {
    path.map_or(Ok(()), enter)?;
    let mut socket = Socket::open(TIME_MAX)
        .map_err(|error| KernelError::Unreachable(format!("netlink socket: {error}")))?;
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        if given_up() {
            let problem = format!("{}: the controller stopped waiting", request.words);
            return Err(KernelError::Unreachable(problem));
        }
        answers.push(socket.ask(request)?);
    }
    Ok(answers)
}

#[async_trait]
impl Kernel for Netns {
    async fn ask(&self, requests: Vec<Request>) -> Result<Vec<Vec<Message>>, KernelError> {
        let (sender, answers) = oneshot::channel();
        let path = self.path.clone();
        let thread = thread::Builder::new().name("penstock-tc".to_owned());
        let started = thread.spawn(move || {
            let answers = exchange(path.as_deref(), &requests, || sender.is_closed());
            // If nobody waits for the answers, nobody needs them.
            let _ = sender.send(answers);
        });
        let unreachable = |problem: String| KernelError::Unreachable(format!("netlink: {problem}"));
        started.map_err(|error| unreachable(error.to_string()))?;
        let late = |_| unreachable(format!("no answer within {} s", TIME_MAX.as_secs()));
        // Dropping the receiver stops the thread before its next request.
        let answers = timeout(TIME_MAX, answers).await.map_err(late)?;
        answers.map_err(|_| unreachable("the thread ended without an answer".to_owned()))?
    }

    async fn namespace(&self) -> Result<String, KernelError> {
        let path = self.path.clone().unwrap_or_else(|| PathBuf::from("/proc/self/ns/net"));
        let found = tokio::fs::metadata(&path).await.map_err(|error| {
            let path = path.display();
            KernelError::Unreachable(format!("network namespace {path}: {error}"))
        })?;
        let mut text = format!("{}:{}", found.dev(), found.ino());
        if !path.starts_with("/proc") {
            // A name keeps its inode until the namespace is deleted. A new namespace may get the
            // same number, but another time.
            text += &format!(":{}.{}", found.ctime(), found.ctime_nsec());
        }
        Ok(text)
    }

    async fn hold(&self) -> Result<Box<dyn Hold>, KernelError> {
        let path = self.lock.clone();
        let shown = path.display().to_string();
        let locked = tokio::task::spawn_blocking(move || -> io::Result<File> {
            path.parent().map_or(Ok(()), create_dir_all)?;
            let file = File::options().create(true).append(true).open(&path)?;
            file.lock()?;
            Ok(file)
        });
        let unreachable = |what: String| KernelError::Unreachable(format!("lock {shown}: {what}"));
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
    use crate::southbound::linux_tc::class::Class;
    use crate::southbound::linux_tc::layout::{ROOT, TOP};
    use crate::southbound::linux_tc::read;
    use crate::southbound::linux_tc::requests::{self, Interface};

    /// No network interface has this number.
    const NOWHERE: Interface<'_> = Interface { name: "nowhere", index: i32::MAX };

    fn here() -> (Netns, PathBuf) {
        let locks = std::env::temp_dir().join(format!("penstock-tc-{}", std::process::id()));
        (Netns::own(&locks), locks)
    }

    #[tokio::test]
    async fn the_kernel_lists_the_interfaces_and_qdiscs_of_this_machine() {
        let (own, _) = here();
        let answers = own.ask(vec![requests::links(), requests::qdiscs()]).await.expect("answers");
        let [links, qdiscs] = answers.as_slice() else { panic!("{} answers", answers.len()) };
        let links = read::links(links).expect("valid");
        assert_eq!(links.indices.get("lo"), Some(&links.lo));
        read::qdiscs(qdiscs).expect("valid");
    }

    #[tokio::test]
    async fn the_kernel_receives_nothing_after_a_refused_request() {
        let (own, _) = here();
        let class = |handle| requests::class(NOWHERE, ROOT, handle, &Class::default());
        let refused = own.ask(vec![requests::links(), class(TOP), class(TOP + 1)]).await;
        let Err(KernelError::Refused { words, problem }) = refused else { panic!("{refused:?}") };
        assert!(words.contains("dev nowhere") && words.contains("classid 9e50:1 "), "{words}");
        // Only root learns that there is no such interface.
        assert!(problem.contains("ENODEV") || problem.contains("EPERM"), "{problem}");
    }

    #[test]
    fn an_exchange_without_a_waiter_sends_nothing() {
        let error = exchange(None, &[requests::links()], || true).expect_err("given up");
        assert!(error.to_string().contains("stopped waiting"), "{error}");
    }

    #[tokio::test]
    async fn no_such_namespace_is_not_reachable() {
        let nowhere = Netns::new("penstock-there-is-no-such", &std::env::temp_dir());
        let error = nowhere.ask(vec![requests::links()]).await.expect_err("no namespace");
        let text = error.to_string();
        assert!(matches!(error, KernelError::Unreachable(_)), "{text}");
        assert!(text.contains("/run/netns/penstock-there-is-no-such: No such file"), "{text}");
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
