//! vhost-user ports: a VM's virtio-net device, its rings in memory we share with it.
//!
//! **Roles.** A control thread per port speaks the protocol (`session`) with the `vhost` crate;
//! the worker owns the rings (`queue`). They meet only through the worker's mailbox: the session
//! swaps a ring in or out between two batches, and no guest pointer outlives the swap (datapath
//! rule 10). **Modes.** *Server*: we listen, the VM connects (again after a restart of
//! either). *Client*: the VM listens, we connect and try again; a thread of its own (`dialler`)
//! makes the connection, as the session's may not.

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

/// Who listens on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// The switch listens.
    Server,
    /// The VM listens, the switch connects.
    Client,
}

/// How a vhost-user port is attached.
#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// The port's name, for messages.
    pub name: String,
    /// The unix socket; at most 107 bytes.
    pub path: PathBuf,
    /// Who listens.
    pub mode: SocketMode,
    /// Queue pairs offered, 1 to 8.
    pub queue_pairs: u16,
    /// Offloads offered to the guest, both ways.
    pub offloads: OffloadCaps,
    /// Permissions of a socket we make.
    pub socket_mode: u32,
    /// Owner of a socket we make, a user's number; `None`: the daemon's user.
    pub socket_owner: Option<u32>,
    /// Its group; `None`: the daemon's group.
    pub socket_group: Option<u32>,
}

/// What the session tells about itself.
#[derive(Debug, Default)]
struct Shared {
    connected: bool,
    stopping: bool,
    error: Option<String>,
    /// Why nobody is connected, where that is the ordinary wait for a VM.
    waits: Option<String>,
    features: u64,
    rings: Vec<(u32, bool)>,
}

type SharedState = Arc<Mutex<Shared>>;

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A vhost-user port's control side.
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
    /// Makes the port's queue pairs; attach them to the worker, then call [`Self::serve`].
    ///
    /// # Errors
    /// [`PortError`]: too many queue pairs, or no event descriptor to be had.
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
    /// [`PortError`]: the path cannot be bound, or no thread is to be had.
    pub fn serve(&mut self) -> Result<(), PortError> {
        let object = self.config.path.display().to_string();
        install_interrupt()
            .map_err(|e| PortError::system(&object, "set a signal handler", RAISE_NOFILE, e))?;
        let failed = |e| PortError::system(&object, "start its thread", RAISE_NOFILE, e);
        let source = match self.config.mode {
            SocketMode::Server => {
                let listener = Arc::new(socket::bind(&self.config)?);
                // Removed by `stop`: the session's thread opens no directory.
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

    /// What the attachment looks like now.
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

    /// Waits for the session's thread, but not for ever: a hostile peer can make a call of it wait
    /// (its call descriptor, the closing of a file that it serves itself). Most such calls end with
    /// a signal; a thread that none ends is left behind, with nothing of the worker's.
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

    /// Ends the session and waits until the worker has let go of the guest's memory.
    pub fn stop(&mut self) {
        // The session sets its connection before it looks whether it is to stop.
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

/// Between two signals to a session that is to end, in milliseconds.
const JOIN_PAUSE_MS: u16 = 2;
/// Signals after which it is left behind: after two seconds.
const JOIN_TRIES: u32 = 1_000;
const RAISE_NOFILE: &str = "raise the limits of open files and threads (LimitNOFILE, TasksMax)";
