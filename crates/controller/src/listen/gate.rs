//! Limits the number of connections of a listener.
//!
//! # Problem
//!
//! Connections use file descriptors, and a process has a limited number of descriptors. If `accept`
//! fails for lack of descriptors, the listener stays readable, so a loop around `accept` would
//! spin.
//!
//! # Approach
//!
//! The listener has a limited number of slots for connections, and accepts a connection only if a
//! slot is free. Connections without a free slot wait in the kernel's queue. The slots use only a
//! fraction of the process's descriptors, so that the process can also open other files. After a
//! failed `accept`, the listener pauses for [`PAUSE`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Pause of the listener after a failed call of `accept`.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two log lines about failed `accept` calls.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Permit that occupies a slot for one connection. Dropping the permit of a connection frees the
/// connection's slot.
pub type ConnectionPermit = OwnedSemaphorePermit;

/// Source of connections, such as a TCP listener.
pub trait Listener: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    fn accept_one(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept_one(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Listener with a limited number of slots for connections.
#[derive(Debug)]
pub struct Gate<L> {
    /// Name of the listener in log lines.
    what: &'static str,
    listener: L,
    places: Arc<Semaphore>,
    /// Time of the last log line about a failed `accept`.
    told: Option<Instant>,
}

impl<L: Listener> Gate<L> {
    /// Limits `listener` to `connections` open connections. If the process may open D file
    /// descriptors, the limit is at most D / `descriptors` connections.
    #[must_use]
    pub fn new(what: &'static str, listener: L, connections: usize, descriptors: usize) -> Self {
        let places = connections.min(descriptor_limit() / descriptors.max(1)).max(1);
        Self { what, listener, places: Arc::new(Semaphore::new(places)), told: None }
    }

    /// Waits until a slot is free, and returns the next connection.
    pub async fn next(&mut self) -> (L::Stream, ConnectionPermit) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                // The semaphore is never closed.
                return std::future::pending().await;
            };
            let error = match self.listener.accept_one().await {
                Ok(stream) => return (stream, place),
                Err(error) => error,
            };
            drop(place);
            let now = Instant::now();
            if self.told.is_none_or(|told| now - told >= TOLD_EVERY) {
                self.told = Some(now);
                tracing::warn!(
                    "{}: a connection cannot be accepted: {error}; the listener tries again \
                     every {} ms",
                    self.what,
                    PAUSE.as_millis()
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Returns the number of file descriptors that this process may have.
fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1_024, |(soft, _)| soft);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Raises the process's soft limit of open file descriptors to the hard limit.
pub fn open_many() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, soft, "the limit of open files cannot be raised");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Test listener that fails `left` times and then returns connections.
    struct Failing {
        left: AtomicUsize,
        calls: Arc<AtomicUsize>,
    }

    impl Listener for Failing {
        type Stream = tokio::io::DuplexStream;

        async fn accept_one(&self) -> io::Result<Self::Stream> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let failed = self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            match failed {
                Ok(_) => Err(io::Error::from_raw_os_error(24)),
                Err(_) => Ok(tokio::io::duplex(1).0),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_accept_is_tried_again_after_a_pause_and_places_are_bounded() {
        let calls = Arc::new(AtomicUsize::new(0));
        let listener = Failing { left: AtomicUsize::new(5), calls: Arc::clone(&calls) };
        let mut gate = Gate::new("test", listener, 2, 1);
        let start = Instant::now();
        let first = gate.next().await;
        assert_eq!(Instant::now() - start, 5 * PAUSE);
        assert_eq!(calls.load(Ordering::Relaxed), 6);
        let _second = gate.next().await;
        let third = tokio::time::timeout(PAUSE, gate.next()).await;
        assert!(third.is_err(), "two places");
        assert_eq!(calls.load(Ordering::Relaxed), 7, "without a place nothing is accepted");
        drop(first);
        let _third = gate.next().await;
    }

    #[tokio::test(start_paused = true)]
    async fn connections_leave_descriptors_for_others() {
        let listener = || Failing { left: AtomicUsize::new(0), calls: Arc::default() };
        let gate =
            |most, each| Gate::new("test", listener(), most, each).places.available_permits();
        let limit = descriptor_limit();
        assert_eq!(gate(usize::MAX >> 4, 4), limit / 4);
        assert_eq!(gate(3, 4), 3);
        assert_eq!(gate(3, usize::MAX), 1);
    }
}
