//! vhost-user ports: a VM's virtio-net device, whose rings lie in memory shared with the VM.
//!
//! # Roles
//! A control thread per port implements the protocol (`session`) with the `vhost` crate, and the
//! worker owns the rings (`queue`). Both threads communicate only through the worker's mailbox. The
//! session swaps a ring in or out between two batches, and no guest pointer survives the swap
//! (datapath rule 10).
//!
//! # Modes
//! In *server* mode the switch listens and the VM connects. The VM connects again after a restart
//! of either side. In *client* mode the VM listens, and the switch connects and retries. A separate
//! thread (`dialler`) makes the connection, because the session's thread is not allowed to connect.

mod attempts;
mod dialler;
mod early_enable;
mod halt;
mod kicks;
mod queue;
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

use nix::poll::{PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::pthread::pthread_kill;
use penstock_units::PortId;

use super::{AttachState, AttachStatus, PortError, PortQueue};
use crate::offload::OffloadCaps;
use crate::worker::{INTERRUPT_SIGNAL, QUEUES_MAX, Workers, install_interrupt};
use dialler::Dialler;
use halt::Halt;
use queue::VhostQueue;
use serve::Source;
use socket::Listener;

/// Which side listens on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    Server,
    /// The VM listens, and the switch connects.
    Client,
}

#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// Name of the port, for messages.
    pub name: String,
    /// Path of the unix socket, at most 107 bytes.
    pub path: PathBuf,
    pub mode: SocketMode,
    /// Number of queue pairs offered, 1 to 8.
    pub queue_pairs: u16,
    /// Offloads offered to the guest, in both directions.
    pub offloads: OffloadCaps,
    /// Permissions of a socket that the port creates.
    pub socket_mode: u32,
    /// Numeric user id of the owner of a socket that the port creates; `None` is the daemon's user.
    pub socket_owner: Option<u32>,
    /// Numeric group id of a socket that the port creates; `None` is the daemon's group.
    pub socket_group: Option<u32>,
}

/// State that the session publishes.
#[derive(Debug, Default)]
struct Shared {
    connected: bool,
    stopping: bool,
    error: Option<String>,
    /// Reason for the missing connection, if the port only waits for a VM.
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
    workers: Workers,
    shared: SharedState,
    wake: Arc<EventFd>,
    halt: Arc<Halt>,
    thread: Option<JoinHandle<()>>,
    listener: Option<Arc<Listener>>,
}

impl VhostUser {
    /// Creates the port's queue pairs. Attach them to the worker, then call [`Self::serve`].
    ///
    /// # Errors
    /// [`PortError`]: too many queue pairs, or no free event descriptor.
    pub fn start(
        config: VhostUserConfig,
        id: PortId,
        workers: impl Into<Workers>,
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
                workers: workers.into(),
                shared,
                wake,
                halt,
                thread: None,
                listener: None,
            },
            queues,
        ))
    }

    /// Binds the socket (server mode) and starts the session thread.
    ///
    /// # Errors
    /// [`PortError`]: the path cannot be bound, or no thread can be started.
    pub fn serve(&mut self) -> Result<(), PortError> {
        let object = self.config.path.display().to_string();
        install_interrupt()
            .map_err(|e| PortError::system(&object, "set a signal handler", RAISE_NOFILE, e))?;
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
        let server = serve::Server {
            config: self.config.clone(),
            id: self.id,
            workers: self.workers.clone(),
            shared: Arc::clone(&self.shared),
            wake: Arc::clone(&self.wake),
            halt: Arc::clone(&self.halt),
        };
        let thread = std::thread::Builder::new()
            .name(format!("vhost-{}", self.config.name))
            .stack_size(256 * 1024)
            .spawn(move || server.run(&source))
            .map_err(failed)?;
        self.thread = Some(thread);
        Ok(())
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

    /// Waits for the session's thread, at most two seconds. A hostile peer can block a call of that
    /// thread, by its call descriptor or when a file that the peer serves is closed. A signal ends
    /// most such calls. If signals do not end the thread, it is abandoned. It holds no resources of
    /// the worker.
    fn join(&self, thread: JoinHandle<()>) {
        let pause = PollTimeout::from(JOIN_PAUSE_MS);
        for _ in 0..JOIN_TRIES {
            if thread.is_finished() {
                let _ = thread.join();
                return;
            }
            let _ = pthread_kill(thread.as_pthread_t(), INTERRUPT_SIGNAL);
            let _ = poll(&mut [], pause);
        }
        tracing::error!(port = %self.config.name, "its session does not end; the thread is left");
    }

    /// Ends the session and waits until the worker has released the guest's memory.
    pub fn stop(&mut self) {
        // The session sets its connection before it checks whether it must stop.
        lock(&self.shared).stopping = true;
        self.halt.hang_up();
        let _ = self.wake.write(1);
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
/// Number of signals after which the session's thread is abandoned. They take two seconds.
const JOIN_TRIES: u32 = 1_000;
const RAISE_NOFILE: &str = "raise the limits of open files and threads (LimitNOFILE, TasksMax)";
