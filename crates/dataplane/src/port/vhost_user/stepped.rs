//! A vhost-user port without threads. The port's owner serves the session message by message, and
//! takes the worker's turns between two messages.
//!
//! # Problem
//! The effect of a driver's change to its memory depends on the moment of the change. The driver
//! may change its memory between two messages, during a message, or before the worker polls a ring.
//! If the port runs in its own threads, chance decides when the driver changes its memory, so a
//! test cannot repeat a run.
//!
//! # Approach
//! A stepped port has the session, protocol and rings of [`super::VhostUser`]. A stepped port
//! differs from [`super::VhostUser`] only because the caller decides when the session and the rings
//! run. A run depends only on the caller's calls, so a test can replay the run.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use penstock_units::{Cycles, PortId, QueueId};
use vhost::vhost_user::BackendReqHandler;

use super::halt::Halt;
use super::queue::VhostQueue;
use super::serve::serve_message;
use super::session::{ExchangeResult, RingsOwner, Session};
use super::{SharedState, VhostUserConfig};
use crate::batch::Batch;
use crate::port::{ControlMessage, Pending, PortError, PortQueue, TxOutcome};

/// Function that the port calls while the session exchanges a message with the worker.
pub type Meanwhile = Box<dyn FnMut() + Send>;

/// The port's queue pairs, which the session's calls and the worker's turns share.
struct Queues {
    pairs: Mutex<Vec<VhostQueue>>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl RingsOwner for Arc<Queues> {
    fn exchange(&self, queue: QueueId, message: ControlMessage) -> ExchangeResult {
        if let Some(act) = &mut *held(&self.meanwhile) {
            act();
        }
        let port = PortId(0);
        let mut pairs = held(&self.pairs);
        let pair = pairs.get_mut(usize::from(queue.0));
        pair.map(|pair| pair.control(message))
            .ok_or_else(|| format!("port {port} has no queue pair {queue}").into())
    }

    fn ring_bell(&self, _queue: QueueId) {}
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A vhost-user port that its owner runs step by step, without threads.
pub struct SteppedPort {
    connection: UnixStream,
    session: Arc<Mutex<Session>>,
    handler: BackendReqHandler<Mutex<Session>>,
    queues: Arc<Queues>,
    batch: Box<Batch>,
}

impl core::fmt::Debug for SteppedPort {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SteppedPort").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl SteppedPort {
    /// Makes a stepped port for the driver at the other end of `connection`.
    ///
    /// # Errors
    /// Returns an error if no file descriptor is free.
    pub fn new(config: &VhostUserConfig, connection: UnixStream) -> Result<Self, PortError> {
        let failed = |e: std::io::Error| {
            PortError::system(&config.name, "make a descriptor", super::RAISE_NOFILE, e)
        };
        let alarm = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let alarm = alarm.map_err(|e| failed(e.into()))?;
        let ours = connection.try_clone().map_err(failed)?;
        let halt = Arc::new(Halt::new(Arc::new(alarm)));
        let pair = |_| VhostQueue::new(PortId(0), Arc::clone(&halt));
        let pairs = (0..config.queue_pairs).map(pair).collect();
        let queues = Arc::new(Queues { pairs: Mutex::new(pairs), meanwhile: Mutex::new(None) });
        let owner = Box::new(Arc::clone(&queues));
        let session = Session::new(config, owner, SharedState::default(), halt);
        let session = Arc::new(Mutex::new(session));
        let handler = BackendReqHandler::from_stream(ours, Arc::clone(&session));
        Ok(Self { connection, session, handler, queues, batch: Batch::new() })
    }

    /// Serves one message of the driver or the end of the connection. The driver must have sent its
    /// whole message before the caller calls `serve`.
    ///
    /// # Errors
    /// Returns the reason why the session has ended. The reason is an empty string if the driver
    /// closed the connection.
    pub fn serve(&mut self) -> Result<(), String> {
        let Err(end) = serve_message(&self.connection, &self.session, &mut self.handler) else {
            return Ok(());
        };
        let mut session = held(&self.session);
        session.end();
        Err(session.failure(&end, false).unwrap_or_default())
    }

    /// Sets a function that the port calls each time the session exchanges a message with the
    /// worker.
    pub fn set_meanwhile(&mut self, act: Option<Meanwhile>) {
        *held(&self.queues.meanwhile) = act;
    }

    /// Runs one turn of the worker, in which each queue pair sends every received frame back to the
    /// driver. Returns the number of received frames.
    pub fn turn(&mut self) -> usize {
        let mut sent = 0;
        for pair in &mut *held(&self.queues.pairs) {
            if pair.pending(Cycles::ZERO) == Pending::No {
                continue;
            }
            self.batch.clear();
            pair.rx_burst(&mut self.batch);
            let order: Vec<u8> = (0..).take(self.batch.len()).collect();
            let mut outcome = TxOutcome::default();
            if pair.tx_ready() {
                outcome = pair.tx_burst(&self.batch, &order);
            }
            pair.rx_done();
            pair.publish();
            pair.notify_taken();
            pair.notify();
            debug_assert!(
                outcome.frames as usize <= order.len(),
                "the port sent more frames than it received"
            );
            sent += order.len();
        }
        sent
    }

    /// Bytes of the driver's memory that the port has mapped.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        held(&self.session).mapped()
    }
}

impl Drop for SteppedPort {
    fn drop(&mut self) {
        held(&self.session).end();
    }
}
