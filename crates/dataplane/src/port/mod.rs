//! Ports: the attachments by which frames enter and leave the switch.
//!
//! A *port* attaches one VM, namespace or NIC. The worker sees each queue pair of a port as one
//! [`PortQueue`], which exactly one worker owns (datapath rule 1). Each call of a `PortQueue`
//! handles a batch, so that dynamic dispatch costs a few cycles per 32 frames.

pub mod dirty_log;
pub mod guest_memory;
pub mod helper;
pub mod inflight;
pub mod kept;
pub mod memory_queue;
mod owners;
pub mod packed_ring;
pub mod packet;
pub mod passing;
pub mod peer_memory;
mod ring;
pub mod split_ring;
pub mod tap;
pub mod vcpu_bells;
pub mod vhost_user;
mod vnet_socket;
pub mod xdp;

pub use owners::{QueueOwners, Unreachable};

use core::any::Any;

use penstock_units::{Cycles, Nanos};

use crate::batch::Batch;
use crate::offload::{Offload, OffloadCaps};
use crate::wake::Cause as SleepCause;

/// Whether the worker can receive a frame from the port, as far as the port knows without a system
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    Yes,
    /// The worker need not call `rx_burst`: no frame waits at the port, or the next poll is not yet
    /// due.
    No,
    /// Only a poll by system call can tell whether a frame waits.
    Unknown,
}

/// Result of sending a burst of frames to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOutcome {
    /// Number of frames that the port delivered.
    pub frames: u32,
    /// Number of bytes of the delivered frames.
    pub bytes: u64,
    /// Number of delivered frames that still need segmentation.
    pub tso: u32,
    /// Number of frames that were dropped because the receiver had no buffer.
    pub ring_full: u32,
    /// Number of frames that were dropped because they exceed the receiver's buffers.
    pub too_big: u32,
    /// Number of frames that were dropped because the port has no driver or no link.
    pub down: u32,
    /// Number of frames that were dropped because the peer or the kernel refused them.
    pub error: u32,
}

/// A message from a port's control thread to the port's queue in the worker; see
/// [`PortQueue::control`].
pub type ControlMessage = Box<dyn Any + Send>;

/// One queue pair of a port, as its worker uses it.
///
/// # Order of calls in a turn
/// The worker calls `pending` → `rx_burst` → (`tx_burst` on any queues) → `rx_done` → `publish` on
/// all used queues → one full fence → `notify_taken` and `notify` on all used queues.
pub trait PortQueue: Send {
    /// Tells without a system call whether `rx_burst` would find a frame. If a port can poll only
    /// by a system call, the port uses the time `now` to limit how often the worker polls.
    fn pending(&mut self, now: Cycles) -> Pending;

    /// Receives frames into the empty `batch` until no frame waits or [`Batch::has_room`] is false.
    /// The bytes after the frames' heads stay in the port's buffers until [`Self::rx_done`].
    fn rx_burst(&mut self, batch: &mut Batch);

    /// Number of frames that the next `rx_burst` would find, or `None` if the port cannot tell
    /// without a system call. The number is only an estimate, because the peer may write what it
    /// wants.
    fn backlog(&mut self) -> Option<usize> {
        None
    }

    /// Returns the buffers of the last `rx_burst` to their owner. The worker calls `rx_done` when
    /// it no longer needs the frames in the received buffers.
    fn rx_done(&mut self) {}

    /// Whether the queue can deliver frames, because a driver is present and the queue is enabled.
    fn tx_ready(&self) -> bool;

    /// Offloads that the receiver accepts. The worker passes no frame to `tx_burst` that needs
    /// other offloads.
    fn caps(&self) -> OffloadCaps;

    /// Delivers the frames of `batch` with the indices `frames`, in the order of `frames`. A call
    /// of `tx_burst` never waits. A frame that the port cannot deliver now is dropped and counted
    /// in the outcome.
    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome;

    /// Maximum number of frames that `tx_burst` would accept now. A port estimates `tx_room`
    /// without a system call.
    fn tx_room(&mut self) -> usize {
        usize::MAX
    }

    /// Makes all deliveries and returned buffers since the last call of `publish` visible to the
    /// driver or kernel.
    fn publish(&mut self) {}

    /// Notifies the driver or kernel of deliveries, if the driver or kernel enabled notifications.
    /// The worker calls `notify` after `publish` and a full fence. Returns the number of
    /// notifications that the port sent.
    fn notify(&mut self) -> u32 {
        0
    }

    /// Notifies the port's driver that the switch has taken the driver's frames. The worker charges
    /// a notification of taken frames to the port that sent the frames. The worker charges a
    /// notification by [`Self::notify`] to the senders of the delivered frames.
    fn notify_taken(&mut self) -> u32 {
        0
    }

    /// Stops polling of the queue after a time without frames. The port requests a notification
    /// from the driver, and then looks for a frame once more. Returns true if the worker need not
    /// poll the queue until its [`Doorbell`](crate::wake::Doorbell) rings or [`Self::pending`]
    /// reports a frame. Returns false if a frame waits, or if the port has no notifications.
    fn rest(&mut self) -> bool {
        false
    }

    /// Lets the worker poll the queue pair again after [`Self::rest`]. The worker polls the queue
    /// again and needs no notifications.
    fn wake(&mut self) {}

    /// Stops the port after the worker slept for the time `slept` because of the port. A port must
    /// not make its worker sleep. A stopped port receives and delivers nothing until its control
    /// side has handled the event. Returns false if the port was stopped already or cannot be
    /// stopped.
    fn stop(&mut self, _cause: SleepCause, _slept: Nanos) -> bool {
        false
    }

    /// The queue's own memory, if frames can wait in that memory. `None` if no frames can wait in
    /// the queue's memory.
    fn buffers(&mut self) -> Option<&mut dyn Buffers> {
        None
    }

    /// Executes a message of the port's control thread between two batches. The returned box goes
    /// back to the sender of the message, so that the worker frees no memory.
    fn control(&mut self, message: ControlMessage) -> ControlMessage {
        message
    }
}

/// A frame that is ready to be sent, in a buffer of the port's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub(crate) buffer: u32,
    pub(crate) len: u32,
}

/// Memory of a port in which frames can wait.
///
/// A frame waits in the memory from [`Self::fill`] until the frame is sent or released. Waiting
/// frames may use only a part of the port's memory, so that the port can always receive.
pub trait Buffers {
    /// Number of free buffers for frames that wait or that are sent.
    fn free(&self) -> usize;

    /// Copies frame `i` of `batch` into a buffer, ready to be sent. The frame waits in the buffer
    /// for [`Self::send`]. `None` if no buffer is free or the frame is too long.
    fn fill(&mut self, batch: &Batch, i: usize) -> Option<Held>;

    /// Returns the bytes of a waiting frame. Returns `None` if no frame waits in the buffer.
    fn bytes(&mut self, frame: Held) -> Option<&mut [u8]>;

    /// Copies a waiting frame into `batch`, for a capture. Returns false if no frame waits in the
    /// buffer, or if the batch has no room.
    fn read(&mut self, frame: Held, batch: &mut Batch) -> bool {
        self.bytes(frame).is_some_and(|bytes| batch.push(bytes, Offload::NONE).is_ok())
    }

    /// Sends the waiting frames `frames` in order. The first `frames + down + error` frames leave
    /// the output queue; the three numbers are fields of the returned `TxOutcome`. The remaining
    /// frames stay in the output queue, because the ring is full. The worker calls
    /// [`PortQueue::publish`] and [`PortQueue::notify`] afterwards, as after
    /// [`PortQueue::tx_burst`].
    fn send(&mut self, frames: &[Held]) -> TxOutcome;

    /// Frees the buffer of a waiting frame without sending the frame.
    fn release(&mut self, frame: Held);
}

/// State of a port's attachment, for status output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachState {
    Waiting,
    /// A driver is connected to the port, but has not started its rings.
    Connected,
    Up,
    Down,
    /// The port's attachment failed; [`AttachStatus::error`] has the reason.
    Error,
}

/// State of a port's attachment, with the error, the features and the ring sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachStatus {
    pub state: AttachState,
    pub error: Option<String>,
    /// Names of the virtio features that the driver negotiated.
    pub features: Vec<&'static str>,
    /// Number of entries of each ring that the driver set up. Each queue pair has two numbers:
    /// first the receive ring, then the transmit ring.
    pub ring_sizes: Vec<u32>,
    /// Number of the port's queue pairs that can carry frames.
    pub queues_up: u16,
}

/// Error of an attempt to open a port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A call to the kernel failed when the port was opened.
    #[error("{object}: {call}: {source}; {remedy}")]
    System {
        /// Path of the port's socket or name of the port's interface.
        object: String,
        /// Name of the operation that failed, for the error message.
        call: &'static str,
        /// Remedy that the error message suggests to the operator.
        remedy: &'static str,
        source: std::io::Error,
    },
    /// A value in the port's configuration exceeds a limit of the port type.
    #[error("{object}: {problem} (limit {limit})")]
    Limit {
        /// Path of the port's socket or name of the port's interface.
        object: String,
        /// Name of the parameter that exceeds its limit.
        problem: &'static str,
        /// Largest allowed value of the port parameter.
        limit: u64,
    },
}

impl PortError {
    /// Returns true if the kernel or the driver refuses the *kind* of attachment (no permission,
    /// not supported). If `is_refusal` is true, another kind of attachment may succeed.
    /// `is_refusal` is false if the interface does not exist or if another program uses the
    /// interface.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        /// Error number `ENOTSUPP`, which some network drivers return and libc does not define.
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

/// Names of the offloads in `caps`, for status output.
fn offload_names(caps: OffloadCaps) -> Vec<&'static str> {
    [(caps.csum, "csum"), (caps.tso4, "tso4"), (caps.tso6, "tso6"), (caps.uso, "uso")]
        .into_iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| name)
        .collect()
}
