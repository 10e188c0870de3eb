//! vhost-user ports. The port is the back end of a VM's virtio-net device, and the rings lie in
//! memory shared with the VM.
//!
//! # Roles
//! Each vhost-user port has a control thread that implements the protocol (`session`) with the
//! `vhost` crate. The worker owns the port's rings (`queue`). Control thread and worker communicate
//! only through the worker's mailbox. Between two batches, the session gives a ring to the worker
//! or takes a ring back. No pointer into guest memory survives a ring's change of owner (datapath
//! rule 10).
//!
//! # Modes
//! In *server* mode the switch listens and the VM connects. In server mode, the VM connects again
//! after a restart of the switch or the VM. In *client* mode the VM listens, and the switch
//! connects and retries. In client mode, a separate thread (`dialler`) makes the connection,
//! because the session's thread is not allowed to connect.

mod attempts;
mod dialler;
mod early_enable;
mod gate;
mod halt;
mod kicks;
mod queue;
mod resume;
mod serve;
mod session;
mod socket;
pub mod stepped;
#[cfg(test)]
mod tests;
mod throttle;
mod virtqueue;

use std::os::unix::thread::JoinHandleExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use nix::poll::{PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::pthread::pthread_kill;
use penstock_units::PortId;

use super::kept::{Carrier, Files, Kept, KeptSession, State};
use super::{AttachState, AttachStatus, PortError, PortQueue};
use crate::offload::OffloadCaps;
use crate::port::QueueOwners;
use crate::unit::QUEUES_MAX;
use crate::wake;
use dialler::Dialler;
use gate::Gate;
use halt::Halt;
use queue::VhostQueue;
use serve::Source;
use socket::Listener;

/// Side that listens on the vhost-user socket: the switch or the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    Server,
    /// The VM listens on the socket, and the switch connects.
    Client,
}

#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// Name of the port for log messages and errors.
    pub name: String,
    /// Path of the vhost-user socket, at most 107 bytes.
    pub path: PathBuf,
    pub mode: SocketMode,
    /// Number of queue pairs that the port offers to the driver, 1 to 8.
    pub queue_pairs: u16,
    /// Offloads that the port offers to the guest, in both directions.
    pub offloads: OffloadCaps,
    /// Permission bits of a socket that the port creates.
    pub socket_mode: u32,
    /// Numeric user id of the owner of a socket that the port creates. If `socket_owner` is `None`,
    /// the socket gets the daemon's user.
    pub socket_owner: Option<u32>,
    /// Numeric group id of a socket that the port creates. If `socket_group` is `None`, the socket
    /// gets the daemon's group.
    pub socket_group: Option<u32>,
}

impl VhostUserConfig {
    /// A port with one queue pair and all offloads, which creates a socket for the daemon's user.
    #[must_use]
    pub fn new(name: &str, path: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            path,
            mode: SocketMode::Server,
            queue_pairs: 1,
            offloads: OffloadCaps::ALL,
            socket_mode: 0o600,
            socket_owner: None,
            socket_group: None,
        }
    }
}

/// State of the vhost-user session, for status output.
#[derive(Debug, Default)]
struct Shared {
    connected: bool,
    stopping: bool,
    /// Whether a session that stops keeps its state for the next process.
    keeps: bool,
    kept: Option<(KeptSession, Files)>,
    error: Option<String>,
    /// Reason why the port has no connection yet. `waits` is `None` if the port does not wait for a
    /// VM's connection.
    waits: Option<String>,
    features: u64,
    rings: Vec<(u32, bool)>,
}

type SharedState = Arc<Mutex<Shared>>;

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Control side of a vhost-user port.
#[derive(Debug)]
pub struct VhostUser {
    config: VhostUserConfig,
    id: PortId,
    owners: Arc<dyn QueueOwners>,
    shared: SharedState,
    wake: Arc<EventFd>,
    halt: Arc<Halt>,
    thread: Option<JoinHandle<()>>,
    /// Channel that gets a message when a kept session runs or has failed.
    continues: Option<Receiver<()>>,
    /// Carrier of the kept session until [`Self::take_over`].
    carrier: Option<Carrier>,
    /// Gate before the messages of the kept session's driver.
    taken_over: Arc<Gate>,
    listener: Option<Arc<Listener>>,
}

impl VhostUser {
    /// Creates the port's queue pairs. The caller attaches the queue pairs to the worker, then
    /// calls [`Self::serve`].
    ///
    /// # Errors
    /// Returns a [`PortError`] if the configuration has too many queue pairs, or if no file
    /// descriptor is free.
    pub fn start(
        config: VhostUserConfig,
        id: PortId,
        owners: impl QueueOwners + 'static,
    ) -> Result<(Self, Vec<Box<dyn PortQueue>>), PortError> {
        let object = config.path.display().to_string();
        if !(1..=QUEUES_MAX).contains(&usize::from(config.queue_pairs)) {
            let limit = QUEUES_MAX as u64;
            return Err(PortError::Limit { object, problem: "number of queue pairs", limit });
        }
        let event = || {
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(|e| {
                PortError::system(&object, "make an event descriptor", RAISE_NOFILE, e)
            })
        };
        let (wake, halt) = (Arc::new(event()?), Arc::new(Halt::new(Arc::new(event()?))));
        let queues = (0..config.queue_pairs)
            .map(|_| Box::new(VhostQueue::new(id, Arc::clone(&halt))) as Box<dyn PortQueue>)
            .collect();
        let shared = SharedState::default();
        Ok((
            Self {
                config,
                id,
                owners: Arc::new(owners),
                shared,
                wake,
                halt,
                thread: None,
                continues: None,
                carrier: None,
                taken_over: Arc::default(),
                listener: None,
            },
            queues,
        ))
    }

    /// Binds the socket in server mode, and starts the session thread.
    ///
    /// # Errors
    /// Returns a [`PortError`] if the switch cannot bind the socket's path, or cannot start a
    /// thread.
    pub fn serve(&mut self) -> Result<(), PortError> {
        self.serve_from(None)
    }

    /// Like [`Self::serve`], but first continues the session that the former process kept. The
    /// session serves its driver after [`Self::take_over`]. If the kept session does not fit the
    /// port's configuration, the session then ends, and the driver can connect again.
    ///
    /// # Errors
    /// Returns a [`PortError`] as [`Self::serve`] does.
    pub fn serve_from(&mut self, kept: Option<Kept>) -> Result<(), PortError> {
        let object = self.config.path.display().to_string();
        wake::prepare()
            .map_err(|e| PortError::system(&object, "watch its threads", RAISE_NOFILE, e))?;
        let failed = |e| PortError::system(&object, "start its thread", RAISE_NOFILE, e);
        let source = match self.config.mode {
            SocketMode::Server => {
                let listener = Arc::new(socket::bind(&self.config)?);
                // `stop` removes the socket's entry, because the session's thread can open no
                // directory.
                self.listener = Some(Arc::clone(&listener));
                Source::Listener(listener)
            }
            SocketMode::Client => Source::Dialler(Dialler::start(&self.config).map_err(failed)?),
        };
        // The former process may have had a port of another kind with this name.
        let kept = kept.filter(|kept| matches!(kept.state, State::VhostUser(_)));
        let (mut carrier, mut session) = (None, None);
        if let Some(mut kept) = kept {
            carrier = kept.take_carrier();
            session = match kept.state {
                State::VhostUser(session) => Some((session, kept.files)),
                State::Tap(_) | State::Addresses(_) => None,
            };
        }
        let (continued, continues) = bounded(1);
        let continues = session.is_some().then_some(continues);
        let server = serve::Server {
            config: self.config.clone(),
            id: self.id,
            owners: Arc::clone(&self.owners),
            shared: Arc::clone(&self.shared),
            wake: Arc::clone(&self.wake),
            halt: Arc::clone(&self.halt),
            kept: session,
            continued,
            taken_over: Arc::clone(&self.taken_over),
        };
        let thread = std::thread::Builder::new()
            .name(format!("vhost-{}", self.config.name))
            .stack_size(256 * 1024)
            .spawn(move || server.run(&source))
            .map_err(failed)?;
        self.thread = Some(thread);
        self.continues = continues;
        self.carrier = carrier;
        Ok(())
    }

    /// Waits until the session that the former process kept runs or has failed. Returns at once if
    /// the former process kept none.
    pub fn await_continued(&mut self) {
        if let Some(continues) = self.continues.take() {
            let _ = continues.recv_timeout(CONTINUE_LIMIT);
        }
    }

    /// Takes the kept session over, immediately before its rings run: no other process can continue
    /// the session from now on, and the driver's messages are read.
    pub fn take_over(&mut self) {
        if let Some(carrier) = self.carrier.take() {
            // The driver's messages and its rings make the state in the carrier outdated.
            carrier.empty();
        }
        self.taken_over.open();
    }

    #[must_use]
    pub fn status(&self) -> AttachStatus {
        let shared = lock(&self.shared);
        let up = shared.rings.chunks(2).filter(|pair| pair.iter().all(|r| r.1)).count();
        let state = match (shared.connected, up, &shared.error) {
            (true, 1.., _) => AttachState::Up,
            (true, _, _) => AttachState::Connected,
            (false, _, Some(_)) => AttachState::Error,
            (false, _, None) => AttachState::Waiting,
        };
        AttachStatus {
            state,
            error: shared.error.as_ref().or(shared.waits.as_ref()).cloned(),
            features: session::feature_names(shared.features),
            ring_sizes: shared.rings.iter().filter(|r| r.0 > 0).map(|r| r.0).collect(),
            queues_up: u16::try_from(up).unwrap_or(u16::MAX),
        }
    }

    /// Waits at most two seconds for the session's thread to end. A hostile peer can block the
    /// session's thread in a system call. The blocked call is a write to the peer's call
    /// descriptor, or the closing of a file that the peer serves. Signals end most system calls
    /// that block the session's thread. If signals do not help, the switch abandons the session's
    /// thread. An abandoned session thread has no resources of the worker.
    fn join(&self, thread: JoinHandle<()>) {
        let pause = PollTimeout::from(JOIN_PAUSE_MS);
        for _ in 0..JOIN_TRIES {
            if thread.is_finished() {
                let _ = thread.join();
                return;
            }
            let _ = pthread_kill(thread.as_pthread_t(), wake::SIGNAL);
            let _ = poll(&mut [], pause);
        }
        tracing::error!(port = %self.config.name, "the session does not end: thread abandoned");
    }

    /// Asks the session's thread to end and to keep its state, and returns at once. If the switch
    /// asks all ports before it waits for the first one, the sessions end at the same time.
    pub fn begin_to_keep(&self) {
        {
            let mut shared = lock(&self.shared);
            (shared.keeps, shared.stopping) = (true, true);
        }
        let _ = self.wake.write(1);
        self.taken_over.open();
    }

    /// Whether the session's thread has ended, so that [`Self::keep`] returns at once. Waits at
    /// most `wait_ms` milliseconds for the end.
    #[must_use]
    pub fn has_ended(&self, wait_ms: u8) -> bool {
        let has_ended = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        if wait_ms > 0 && !has_ended() {
            let _ = poll(&mut [], PollTimeout::from(wait_ms));
        }
        has_ended()
    }

    /// Hangs up a session that did not end after [`Self::begin_to_keep`], and does not wait for its
    /// end. A session ends between two messages. A driver that stopped in the middle of a message,
    /// or that reads no answer, loses its session. A session that has just ended stays.
    pub fn give_up(&self) {
        {
            let mut shared = lock(&self.shared);
            if shared.kept.is_some() {
                return;
            }
            shared.keeps = false;
        }
        self.halt.hang_up();
    }

    /// Ends the port and returns its session for the next process. Returns `None` if no driver is
    /// connected, or if the session was given up. The connection and the driver's memory stay open
    /// in the returned value. The caller first waits for the end of the session
    /// ([`Self::has_ended`]), because this function hangs up.
    pub fn keep(&mut self) -> Option<Kept> {
        self.stop();
        let (session, files) = lock(&self.shared).kept.take()?;
        let kept = Kept::new(self.config.name.clone(), State::VhostUser(session), files);
        Some(kept.stored_in(self.carrier.take()))
    }

    /// Ends the session and waits until the worker has released the guest's memory.
    pub fn stop(&mut self) {
        // The session sets its connection before it checks whether it must stop.
        lock(&self.shared).stopping = true;
        self.halt.hang_up();
        let _ = self.wake.write(1);
        self.taken_over.open();
        if let Some(thread) = self.thread.take() {
            self.join(thread);
        }
        if let Some(listener) = self.listener.take() {
            listener.remove();
        }
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Milliseconds between two signals to a session that must end.
const JOIN_PAUSE_MS: u16 = 2;
/// Number of signals after which the switch abandons the session's thread. After two seconds of
/// signals without effect, the switch abandons the thread.
const JOIN_TRIES: u32 = 1_000;
/// Longest wait for a kept session to continue.
const CONTINUE_LIMIT: Duration = Duration::from_millis(500);
const RAISE_NOFILE: &str = "raise the limits of open files and threads (LimitNOFILE, TasksMax)";
