//! The session thread: makes connections, runs a session on each, cleans up after it.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::time::{ClockId, clock_gettime};
use penstock_units::{Nanos, PortId};
use vhost::vhost_user::BackendReqHandler;

use super::session::Session;
use super::throttle::{self, Throttle};
use super::{SharedState, SocketMode, VhostUserConfig, early_enable, lock, socket};
use crate::worker::Workers;

/// Milliseconds between two attempts to connect.
const RETRY_MS: u16 = 250;

/// What the session thread works with.
pub(super) struct Server {
    pub(super) config: VhostUserConfig,
    pub(super) id: PortId,
    pub(super) workers: Workers,
    pub(super) shared: SharedState,
    pub(super) wake: Arc<EventFd>,
}

impl Server {
    pub(super) fn run(self, listener: Option<&UnixListener>) {
        let mut throttle = Throttle::new(now());
        while !lock(&self.shared).stopping {
            let stream = match listener {
                Some(listener) => self.accept(listener),
                None => self.connect(),
            };
            if let Some(stream) = stream {
                self.pay(&mut throttle, throttle::CONNECTION);
                self.session(stream, &mut throttle);
                if listener.is_none() {
                    // A peer that accepts and hangs up at once must not keep a core busy.
                    self.wait(None, PollTimeout::from(RETRY_MS));
                }
            }
        }
        if self.config.mode == SocketMode::Server {
            let _ = std::fs::remove_file(&self.config.path);
        }
    }

    /// Waits for `other` to become readable or for the wake-up at the end.
    fn wait(&self, other: Option<&UnixListener>, timeout: PollTimeout) {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if let Some(listener) = other {
            fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        }
        let _ = poll(&mut fds, timeout);
    }

    fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        self.wait(Some(listener), PollTimeout::NONE);
        match listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(false)?;
            Ok(stream)
        }) {
            Ok(stream) => Some(stream),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(e) => {
                // Out of descriptors, most likely: the listener stays readable, so wait a while.
                lock(&self.shared).error = Some(format!("accept: {e}"));
                self.wait(None, PollTimeout::from(RETRY_MS));
                None
            }
        }
    }

    fn connect(&self) -> Option<UnixStream> {
        match socket::connect(&self.config.path) {
            Ok(stream) => Some(stream),
            Err(e) => {
                // No socket yet, or a busy one, is the ordinary wait for the VM; anything else is
                // worth a word.
                use std::io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
                if !matches!(e.kind(), NotFound | ConnectionRefused | WouldBlock) {
                    lock(&self.shared).error = Some(format!("connect: {e}"));
                }
                self.wait(None, PollTimeout::from(RETRY_MS));
                None
            }
        }
    }

    /// Takes what the driver spent, and makes it wait if that was too much.
    fn pay(&self, throttle: &mut Throttle, units: u64) {
        let wait = throttle.pay(units, now());
        if wait == Nanos::ZERO || lock(&self.shared).stopping {
            return;
        }
        tracing::debug!(port = %self.config.name, ns = wait.0, "the driver asks for too much");
        let ms = i32::try_from(wait.0.div_ceil(1_000_000)).unwrap_or(i32::MAX);
        self.wait(None, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
    }

    /// One connection from its first message to its last.
    fn session(&self, stream: UnixStream, throttle: &mut Throttle) {
        let name = &self.config.name;
        // Without the first, `stop` could not end the session: it would be waited for for ever.
        let (connection, early) = match (stream.try_clone(), stream.try_clone()) {
            (Ok(connection), Ok(early)) => (connection, early),
            (Err(e), _) | (_, Err(e)) => {
                lock(&self.shared).error = Some(format!("session: {e}"));
                self.wait(None, PollTimeout::from(RETRY_MS));
                return;
            }
        };
        {
            let mut shared = lock(&self.shared);
            if shared.stopping {
                return;
            }
            shared.connection = Some(connection);
            shared.connected = true;
            shared.error = None;
        }
        tracing::info!(port = %name, socket = %self.config.path.display(), "driver connected");
        let session =
            Session::new(&self.config, self.id, self.workers.clone(), Arc::clone(&self.shared));
        let backend = Arc::new(Mutex::new(session));
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&backend));
        let end = loop {
            if let Ok(session) = backend.lock() {
                super::kicks::serve_until_message(&early, &session);
            }
            let served =
                if is_early(&backend) { early_enable::serve(&early, &backend) } else { Ok(false) };
            let done = match served {
                Ok(true) => Ok(()),
                Ok(false) => handler.handle_request(),
                Err(end) => Err(end),
            };
            if let Err(end) = done {
                break end;
            }
            self.pay(throttle, throttle::MESSAGE + spent(&backend));
        };
        drop(handler);
        if let Ok(mut session) = backend.lock() {
            session.end();
        }
        self.pay(throttle, spent(&backend));
        let mut shared = lock(&self.shared);
        shared.connection = None;
        shared.connected = false;
        shared.rings.clear();
        shared.features = 0;
        if shared.stopping || matches!(end, vhost::vhost_user::Error::Disconnected) {
            tracing::info!(port = %name, "driver disconnected");
        } else {
            let what = "session ended: the driver broke the protocol";
            tracing::warn!(port = %name, error = %end, "{what}");
            shared.error = Some(format!("last session: {end}"));
        }
    }
}

/// What the session has spent since it was last asked.
fn spent(session: &Mutex<Session>) -> u64 {
    session.lock().map_or(0, |session| session.take_spent())
}

/// A monotonic time.
fn now() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map_or(Nanos::ZERO, |time| {
        let nanos = std::time::Duration::from(time).as_nanos();
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    })
}

/// Whether the driver has not acknowledged features yet.
fn is_early(session: &Mutex<Session>) -> bool {
    session.lock().is_ok_and(|session| !session.knows_protocol_features())
}
