//! The session thread of a vhost-user port. The thread gets connections, runs a session on each
//! connection, and cleans up after each session.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Sender;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::time::{ClockId, clock_gettime};
use penstock_units::{Nanos, PortId};
use vhost::vhost_user::{BackendReqHandler, Error};

use super::attempts::Attempts;
use super::dialler::Dialler;
use super::gate::Gate;
use super::halt::{Halt, Pauses};
use super::resume::{Handler, negotiate};
use super::session::{Session, SessionError};
use super::socket::Listener;
use super::throttle::{self, Throttle};
use super::{SharedState, VhostUserConfig, early_enable, lock};
use crate::confine::{Role, confine};
use crate::port::QueueOwners;
use crate::port::kept::{Files, KeptSession};

const RETRY_MS: u16 = 250;

/// A session that is shorter than `AT_ONCE` counts as ended at once.
const AT_ONCE: Nanos = Nanos::from_secs(1);

/// State that the session thread keeps from one connection to the next.
struct Memory {
    throttle: Throttle,
    /// Whether the last session ended at once because the driver refused the features.
    was_refused: bool,
    has_failed: bool,
    pauses: Pauses,
    failures: Attempts,
    /// Limits the log messages about successful connections between failures.
    greetings: Attempts,
    /// Limits the log messages about failed attempts to connect.
    knocks: Attempts,
}

/// Source of a port's connections: a listening socket or a dialling thread.
pub(super) enum Source {
    Listener(Arc<Listener>),
    Dialler(Dialler),
}

/// Configuration and shared state that the session thread uses.
pub(super) struct Server {
    pub(super) config: VhostUserConfig,
    pub(super) id: PortId,
    pub(super) owners: Arc<dyn QueueOwners>,
    pub(super) shared: SharedState,
    pub(super) wake: Arc<EventFd>,
    pub(super) halt: Arc<Halt>,
    /// Session of the former process, which the port continues before it accepts connections.
    pub(super) kept: Option<(KeptSession, Files)>,
    /// Channel that gets a message when the kept session runs or has failed.
    pub(super) continued: Sender<()>,
    /// Gate behind which the kept session serves its driver.
    pub(super) taken_over: Arc<Gate>,
}

/// Begin of a session.
struct Begin {
    stream: UnixStream,
    /// Session that the former process left; `None` if the driver has just connected.
    continued: Option<Continued>,
}

/// Session of the former process, of which only the features are negotiated again.
struct Continued {
    session: Arc<Mutex<Session>>,
    handler: vhost::vhost_user::Result<Handler>,
    kept: KeptSession,
    files: Files,
}

impl Server {
    pub(super) fn run(mut self, source: &Source) {
        let kept = self.kept.take();
        let mut kept = kept.and_then(|(kept, files)| self.continued(kept, files));
        if let Err(e) = confine(Role::Session) {
            lock(&self.shared).error = Some(format!("cannot give up privileges: {e}"));
            return;
        }
        let mut memory = Memory {
            throttle: Throttle::new(now()),
            was_refused: false,
            has_failed: false,
            pauses: Pauses::default(),
            failures: Attempts::default(),
            greetings: Attempts::default(),
            knocks: Attempts::default(),
        };
        while !lock(&self.shared).stopping {
            let begin = kept.take().or_else(|| self.connection(source, &mut memory.knocks));
            if let Some(begin) = begin {
                self.pay(&mut memory.throttle, throttle::CONNECTION);
                // The session's descriptors and memory are released before any pause.
                if self.session(begin, &mut memory) {
                    self.stay_out(&mut memory.pauses);
                }
                if matches!(source, Source::Dialler(_)) {
                    // A peer that accepts a connection and hangs up at once must not keep a core
                    // busy.
                    self.wait(None, PollTimeout::from(RETRY_MS));
                }
            }
        }
    }

    fn connection(&self, source: &Source, knocks: &mut Attempts) -> Option<Begin> {
        let stream = match source {
            Source::Listener(listener) => self.accept(&listener.socket),
            Source::Dialler(dialler) => self.connect(dialler, knocks),
        };
        stream.map(|stream| Begin { stream, continued: None })
    }

    /// Negotiates the features of the former process's session again. The thread is not confined
    /// yet.
    fn continued(&self, kept: KeptSession, mut files: Files) -> Option<Begin> {
        match files.take(kept.connection) {
            Ok(connection) => {
                let (stream, session) = (UnixStream::from(connection), self.new_session());
                let handler = negotiate(&session, &stream, &kept);
                let continued = Some(Continued { session, handler, kept, files });
                Some(Begin { stream, continued })
            }
            Err(error) => {
                tracing::warn!(port = %self.config.name, "the session does not continue: {error}");
                None
            }
        }
    }

    /// Waits until a peer connects to the listener `other`, the port ends, or `timeout` is over.
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
                // Most likely no descriptor is free. The listener stays readable, so the thread
                // pauses before the next attempt.
                lock(&self.shared).error = Some(format!("accept: {e}"));
                self.wait(None, PollTimeout::from(RETRY_MS));
                None
            }
        }
    }

    fn connect(&self, dialler: &Dialler, knocks: &mut Attempts) -> Option<UnixStream> {
        let error = match dialler.connect() {
            Ok(stream) => return Some(stream),
            Err(error) => error,
        };
        use std::io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
        let path = self.config.path.display();
        // The first three kinds only mean that the VM does not listen or accept yet.
        let (is_wait, text) = match error.kind() {
            NotFound => (true, format!("{path}: no such socket; start the VM or correct `socket`")),
            ConnectionRefused => (true, format!("{path}: no process listens on it; start the VM")),
            WouldBlock => (true, format!("{path}: the VM accepts no connections")),
            _ => (false, format!("connect: {error}")),
        };
        if let Some(times) = knocks.failed(&text, now()) {
            tracing::info!(port = %self.config.name, times, "the port waits for its VM: {text}");
        }
        let mut shared = lock(&self.shared);
        if is_wait {
            shared.waits = Some(text);
        } else {
            shared.error = Some(text);
        }
        drop(shared);
        self.wait(None, PollTimeout::from(RETRY_MS));
        None
    }

    /// Charges `units` of the driver's work to the throttle, and waits if the driver exceeded its
    /// limit.
    fn pay(&self, throttle: &mut Throttle, units: u64) {
        let wait = throttle.pay(units, now());
        if wait == Nanos::ZERO || lock(&self.shared).stopping {
            return;
        }
        tracing::debug!(port = %self.config.name, ns = wait.0, "too many requests of the driver");
        let ms = i32::try_from(wait.0.div_ceil(1_000_000)).unwrap_or(i32::MAX);
        self.wait(None, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
    }

    /// Serves one connection from its first message to its last message. Returns whether the worker
    /// stopped the port.
    fn session(&self, begin: Begin, memory: &mut Memory) -> bool {
        let Begin { stream, continued } = begin;
        // Without the first clone, `stop` could not end the session and would wait for it forever.
        let (connection, early) = match (stream.try_clone(), stream.try_clone()) {
            (Ok(connection), Ok(early)) => (connection, early),
            (Err(e), _) | (_, Err(e)) => {
                lock(&self.shared).error = Some(format!("session: {e}"));
                self.wait(None, PollTimeout::from(RETRY_MS));
                return false;
            }
        };
        self.halt.set_connection(Some(connection));
        {
            let mut shared = lock(&self.shared);
            if shared.stopping {
                self.halt.set_connection(None);
                return false;
            }
            shared.connected = true;
            shared.waits = None;
        }
        let began = now();
        // Discards the alarm of the previous session. Its driver may have hung up while the worker
        // slept.
        let _ = self.halt.alarm.read();
        if let Some(halted) = self.halt.take() {
            self.halt.set_connection(None);
            let mut shared = lock(&self.shared);
            shared.connected = false;
            shared.error = Some(format!("last session: {}", SessionError::Halted(halted)));
            return true;
        }
        let is_kept = continued.is_some();
        let (backend, handler) = self.handler(stream, continued);
        let mut end = match handler {
            Ok(mut handler) => self.serve(&early, &backend, &mut handler, is_kept, memory),
            Err(end) => end,
        };
        let at_once = now().saturating_sub(began) < AT_ONCE;
        let mut was_halted = false;
        if let Ok(mut session) = backend.lock() {
            self.keep(&mut session, early);
            session.end();
            // The alarm may have been signalled while the driver hung up.
            if let Err(late) = session.check_alarm() {
                end = late;
            }
            self.ended(&session, &end, at_once, memory);
            was_halted = session.was_halted();
        }
        self.pay(&mut memory.throttle, spent(&backend));
        was_halted
    }

    fn new_session(&self) -> Arc<Mutex<Session>> {
        let (shared, halt) = (Arc::clone(&self.shared), Arc::clone(&self.halt));
        let owner = Box::new((self.id, Arc::clone(&self.owners)));
        Arc::new(Mutex::new(Session::new(&self.config, owner, shared, halt)))
    }

    /// Returns a session and the handler of its messages. A session of the former process gets its
    /// memory and its rings again. Returns an error instead of the handler if the state of the
    /// former process does not fit the port.
    fn handler(
        &self,
        stream: UnixStream,
        continued: Option<Continued>,
    ) -> (Arc<Mutex<Session>>, vhost::vhost_user::Result<Handler>) {
        let Some(Continued { session, handler, kept, mut files }) = continued else {
            let session = self.new_session();
            let handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
            return (session, Ok(handler));
        };
        let handler = handler.and_then(|handler| {
            session.lock().unwrap_or_else(PoisonError::into_inner).resume(kept, &mut files)?;
            Ok(handler)
        });
        let outcome = if handler.is_ok() { "continues" } else { "cannot continue" };
        tracing::info!(port = %self.config.name, "the session of the former process {outcome}");
        let _ = self.continued.send(());
        // Until then, the next process may have to continue the session after a crash of this one.
        // So the driver's messages wait.
        self.taken_over.pass();
        (session, handler)
    }

    /// Serves the driver's messages and kicks. Returns the reason why the session ends. `is_told`
    /// says that the driver's connection needs no log message.
    fn serve(
        &self,
        connection: &UnixStream,
        backend: &Mutex<Session>,
        handler: &mut BackendReqHandler<Mutex<Session>>,
        mut is_told: bool,
        memory: &mut Memory,
    ) -> Error {
        loop {
            if let Ok(session) = backend.lock() {
                is_told = is_told || self.greet(&session, memory);
                super::kicks::serve_until_message(connection, &session, &self.wake);
            }
            // A driver may have sent thousands of messages that the session has not read yet.
            if lock(&self.shared).stopping {
                return Error::Disconnected;
            }
            if let Err(end) = serve_message(connection, backend, handler) {
                return end;
            }
            self.pay(&mut memory.throttle, throttle::MESSAGE + spent(backend));
        }
    }

    /// Keeps the session for the next process if the switch stops for a restart.
    fn keep(&self, session: &mut Session, connection: UnixStream) {
        if !lock(&self.shared).keeps || !session.can_continue() {
            return;
        }
        let mut files = Files::default();
        let kept = session.keep(connection.into(), &mut files);
        // A later hang-up would end the connection that the next process gets.
        self.halt.set_connection(None);
        let mut shared = lock(&self.shared);
        match kept {
            Ok(kept) if shared.keeps => shared.kept = Some((kept, files)),
            // The switch gave the session up meanwhile, and may have hung up.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(port = %self.config.name, "the session is not kept: {error}");
            }
        }
    }

    /// Waits until the pause of the stopped port is over.
    fn stay_out(&self, pauses: &mut Pauses) {
        let pause = pauses.next(now());
        let seconds = pause.0 / 1_000_000_000;
        tracing::warn!(port = %self.config.name, seconds, "stopped; admitted again later");
        if let Some(error) = &mut lock(&self.shared).error {
            error.push_str(&format!(" ({seconds} s)"));
        }
        let ms = i32::try_from(pause.0 / 1_000_000).unwrap_or(i32::MAX);
        self.wait(None, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
    }

    /// Logs that a driver has connected. After a failed session, `greet` does not log the next
    /// connection until the driver's rings run.
    fn greet(&self, session: &Session, memory: &mut Memory) -> bool {
        let again = memory.has_failed || memory.was_refused;
        if again && !session.has_run() {
            return false;
        }
        if !again || memory.greetings.failed("connected", now()).is_some() {
            let (port, socket) = (&self.config.name, self.config.path.display());
            tracing::info!(%port, %socket, "driver connected");
        }
        true
    }

    /// Logs the reason why a session ended, unless the same reason was logged recently
    /// ([`Attempts`]).
    fn ended(&self, session: &Session, end: &Error, at_once: bool, memory: &mut Memory) {
        let name = &self.config.name;
        self.halt.set_connection(None);
        let mut shared = lock(&self.shared);
        shared.connected = false;
        shared.rings.clear();
        shared.features = 0;
        let was_refused = at_once && session.was_refused();
        let failure = session.failure(end, was_refused && memory.was_refused);
        memory.was_refused = was_refused;
        memory.has_failed = failure.is_some();
        match failure.filter(|_| !shared.stopping) {
            Some(failure) => {
                if let Some(times) = memory.failures.failed(&failure, now()) {
                    tracing::warn!(port = %name, times, "session ended: {failure}");
                }
                shared.error = Some(format!("last session: {failure}"));
            }
            None if shared.kept.is_some() => {}
            None => tracing::info!(port = %name, "driver disconnected"),
        }
    }
}

/// Serves the next vhost-user message on the connection. If the driver has shortened a mapped file
/// or the worker stopped the port, `serve_message` returns an error.
pub(super) fn serve_message(
    connection: &UnixStream,
    session: &Mutex<Session>,
    handler: &mut BackendReqHandler<Mutex<Session>>,
) -> vhost::vhost_user::Result<()> {
    if let Ok(session) = session.lock() {
        session.check_alarm()?;
    }
    if is_early(session) && early_enable::serve(connection, session)? {
        return Ok(());
    }
    handler.handle_request()
}

/// Number of [`throttle`] units that the session spent since the last call of `spent`.
fn spent(session: &Mutex<Session>) -> u64 {
    session.lock().map_or(0, |session| session.take_spent())
}

fn now() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map_or(Nanos::ZERO, |time| {
        let nanos = std::time::Duration::from(time).as_nanos();
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    })
}

/// Whether the driver has not yet acknowledged the vhost-user protocol features.
fn is_early(session: &Mutex<Session>) -> bool {
    session.lock().is_ok_and(|session| !session.knows_protocol_features())
}
