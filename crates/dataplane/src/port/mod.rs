//! Ports: where frames come in and go out.
//!
//! A *port* is the attachment of one VM, namespace or NIC. The worker sees each of its queue pairs
//! as one [`PortQueue`], owned by exactly one worker (datapath rule 1). Calls are per batch,
//! so dynamic dispatch costs a few cycles per 32 frames.

pub mod dirty_log;
pub mod guest_memory;
pub mod helper;
pub mod inflight;
pub mod memory_queue;
pub mod packed_ring;
pub mod packet;
pub mod peer_memory;
mod ring;
pub mod split_ring;
pub mod tap;
pub mod vcpu_bells;
pub mod vhost_user;
mod vnet_socket;
pub mod xdp;

use core::any::Any;

use penstock_units::{Cycles, Nanos};

use crate::batch::Batch;
use crate::offload::OffloadCaps;
use crate::worker::SleepCause;

/// Whether a frame is waiting, as far as can be said without a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// A frame is waiting.
    Yes,
    /// Nothing is waiting; polling would be wasted.
    No,
    /// Only a poll can tell.
    Unknown,
}

/// What became of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOutcome {
    /// Frames delivered.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that carry a segmentation request.
    pub tso: u32,
    /// Dropped: no buffer.
    pub ring_full: u32,
    /// Dropped: larger than the receiver's buffers.
    pub too_big: u32,
    /// Dropped: no driver, no link.
    pub down: u32,
    /// Dropped: the far side or the kernel refused.
    pub error: u32,
}

/// A message from a port's control thread to its queue in the worker; see [`PortQueue::control`].
pub type ControlMessage = Box<dyn Any + Send>;

/// One queue pair of a port.
///
/// # Order of calls in a turn
/// `pending` → `rx_burst` → (`tx_burst` on any queues) → `rx_done` → `publish` on all that were
/// touched → one full fence → `notify_taken` and `notify` on the same.
pub trait PortQueue: Send {
    /// Whether `rx_burst` would find something. No system call. `now` lets a port whose poll is
    /// a system call space its polls out.
    fn pending(&mut self, now: Cycles) -> Pending;

    /// Takes frames into the empty `batch` until nothing waits or [`Batch::has_room`] says no.
    /// The bytes behind the frames' heads stay where they are until [`Self::rx_done`].
    fn rx_burst(&mut self, batch: &mut Batch);

    /// The frames of the last `rx_burst` are no longer needed: their buffers may go back.
    fn rx_done(&mut self);

    /// Whether frames can be delivered at all: a driver is there, the queue is enabled.
    fn tx_ready(&self) -> bool;

    /// What the far side can finish itself. Frames handed to `tx_burst` obey it.
    fn caps(&self) -> OffloadCaps;

    /// Delivers the frames of `batch` named by `frames`, in that order. Never waits: what cannot
    /// go now is dropped and said in the outcome.
    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome;

    /// How many frames `tx_burst` would take now, as far as can be said without a system call.
    fn tx_room(&mut self) -> usize {
        usize::MAX
    }

    /// Makes all that was done since the last call visible to the far side.
    fn publish(&mut self);

    /// After `publish` and a full fence: wakes the far side, if it asked for it, for what was
    /// delivered to it. Returns how many notifications were sent.
    fn notify(&mut self) -> u32;

    /// The same for what was taken from it. Who sent is charged for this one, whoever's frames were
    /// delivered for the other.
    fn notify_taken(&mut self) -> u32 {
        0
    }

    /// Nothing came for a while. Asks the far side to tell when something does, and looks once
    /// more. True: it may be left alone until its [`Doorbell`](crate::worker::Doorbell) rings, or
    /// [`Self::pending`] says otherwise. False: something waits, or this port cannot tell.
    fn rest(&mut self) -> bool {
        false
    }

    /// Ends what [`Self::rest`] began: the queue is polled again, the far side need not tell.
    fn wake(&mut self) {}

    /// The worker slept for so long over this port, which nobody's may be: it takes nothing from it
    /// and gives it nothing until its control side has heard of it. False: it did not anyway.
    fn stop(&mut self, _cause: SleepCause, _slept: Nanos) -> bool {
        false
    }

    /// The queue's own memory, if frames can wait in it.
    fn buffers(&mut self) -> Option<&mut dyn Buffers> {
        None
    }

    /// A message from this port's own control thread, executed between two batches. The returned
    /// box goes back to the sender, so that nothing is freed in the worker.
    fn control(&mut self, message: ControlMessage) -> ControlMessage {
        message
    }
}

/// A frame in a buffer of the port's own memory, in its present form and finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub(crate) buffer: u32,
    pub(crate) len: u32,
}

/// Ports with memory of their own in which frames can wait.
///
/// A frame waits from [`Self::fill`] until it is sent or released, once. Frames that wait have a
/// share of the memory to themselves: however many they are, the port goes on receiving.
pub trait Buffers {
    /// Buffers that are free for frames that wait or are sent.
    fn free(&self) -> usize;

    /// Copies frame `i` of `batch`, finished, into a buffer, where it waits for [`Self::send`].
    /// `None`: no buffer is free, or it is too long.
    fn fill(&mut self, batch: &Batch, i: usize) -> Option<Held>;

    /// Sends frames that wait, in order. The first `frames + down + error` of them are taken, the
    /// others stay: the ring is full. As after [`PortQueue::tx_burst`], [`PortQueue::publish`]
    /// and [`PortQueue::notify`] follow.
    fn send(&mut self, frames: &[Held]) -> TxOutcome;

    /// The frame waits no longer, its buffer is free.
    fn release(&mut self, frame: Held);
}

/// What an attachment looks like from outside the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachState {
    /// No driver is there yet.
    Waiting,
    /// A driver is connected, its rings are not started.
    Connected,
    /// Frames can pass.
    Up,
    /// The interface is down.
    Down,
    /// The attachment failed; the status says why.
    Error,
}

/// An attachment's state with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachStatus {
    /// The state.
    pub state: AttachState,
    /// The last error.
    pub error: Option<String>,
    /// Negotiated features by name.
    pub features: Vec<&'static str>,
    /// Ring sizes the driver set, receive and transmit ring of each queue pair in turn.
    pub ring_sizes: Vec<u32>,
    /// Queue pairs that can pass frames.
    pub queues_up: u16,
}

/// A port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A call to the kernel failed.
    #[error("{object}: {call}: {source}; {remedy}")]
    System {
        /// The socket's path or the interface's name.
        object: String,
        /// What was being done.
        call: &'static str,
        /// What would help.
        remedy: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The configuration asks for more than the port type can do.
    #[error("{object}: {problem} (limit {limit})")]
    Limit {
        /// The socket's path or the interface's name.
        object: String,
        /// What is too much.
        problem: &'static str,
        /// The most that goes.
        limit: u64,
    },
}

impl PortError {
    /// Whether the kernel or the driver refuses the *way* of attaching (no permission, not
    /// supported), so that another way may succeed. Not so if there is no such interface or
    /// another program has it.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        /// `ENOTSUPP`, which some drivers answer; libc does not name it.
        const NOT_SUPPORTED: i32 = 524;
        let Self::System { source, .. } = self else { return false };
        matches!(
            source.raw_os_error(),
            Some(
                libc::EPERM
                    | libc::EACCES
                    | libc::ENOSYS
                    | libc::EOPNOTSUPP
                    | libc::EAFNOSUPPORT
                    | libc::EPROTONOSUPPORT
                    | libc::ENOPROTOOPT
                    | libc::EINVAL
                    | libc::E2BIG
                    | libc::ENOMEM
                    | libc::ENOBUFS
                    | libc::ENOSPC
                    | libc::ERANGE
                    | NOT_SUPPORTED
            )
        )
    }

    pub(crate) fn system(
        object: impl Into<String>,
        call: &'static str,
        remedy: &'static str,
        source: impl Into<std::io::Error>,
    ) -> Self {
        Self::System { object: object.into(), call, remedy, source: source.into() }
    }
}

/// Names of offloads, for people.
fn offload_names(caps: OffloadCaps) -> Vec<&'static str> {
    [(caps.csum, "csum"), (caps.tso4, "tso4"), (caps.tso6, "tso6")]
        .into_iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| name)
        .collect()
}
