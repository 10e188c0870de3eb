//! Ports: the attachments by which frames enter and leave the switch.
//!
//! A *port* attaches one VM, namespace or NIC. The worker sees each queue pair of a port as one
//! [`PortQueue`], which exactly one worker owns (datapath rule 1). Calls are per batch, so that
//! dynamic dispatch costs a few cycles per 32 frames.

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

/// Whether a frame can be received, as far as the port knows without a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    Yes,
    /// No frame waits, so a poll would be wasted.
    No,
    /// Only a poll can answer.
    Unknown,
}

/// Result of sending a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOutcome {
    /// Delivered frames.
    pub frames: u32,
    /// Bytes of the delivered frames.
    pub bytes: u64,
    /// Delivered frames with a segmentation request.
    pub tso: u32,
    /// Frames dropped because the receiver had no buffer.
    pub ring_full: u32,
    /// Frames dropped because they exceed the receiver's buffers.
    pub too_big: u32,
    /// Frames dropped because there is no driver or no link.
    pub down: u32,
    /// Frames dropped because the far side or the kernel refused them.
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
    /// Whether `rx_burst` would find a frame, without a system call. If a port can poll only by a
    /// system call, it uses `now` to space its polls.
    fn pending(&mut self, now: Cycles) -> Pending;

    /// Receives frames into the empty `batch` until no frame waits or [`Batch::has_room`] is false.
    /// The bytes behind the frames' heads stay in place until [`Self::rx_done`].
    fn rx_burst(&mut self, batch: &mut Batch);

    /// Returns the buffers of the last `rx_burst`, whose frames are no longer needed.
    fn rx_done(&mut self);

    /// Whether frames can be delivered: a driver is present and the queue is enabled.
    fn tx_ready(&self) -> bool;

    /// Offloads of the far side. Frames passed to `tx_burst` need no other offloads.
    fn caps(&self) -> OffloadCaps;

    /// Delivers the frames of `batch` with the indices `frames`, in that order. Never waits: a
    /// frame that cannot be delivered now is dropped and counted in the outcome.
    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome;

    /// Number of frames that `tx_burst` would accept now, as far as the port knows without a system
    /// call.
    fn tx_room(&mut self) -> usize {
        usize::MAX
    }

    /// Makes all deliveries and returned buffers since the last call visible to the far side.
    fn publish(&mut self);

    /// Notifies the far side of deliveries, if it enabled notifications. Called after `publish`
    /// and a full fence. Returns the number of notifications.
    fn notify(&mut self) -> u32;

    /// Notifies the far side of buffers that were taken from it. This notification is charged to
    /// the sender whose buffers were taken. A notification by [`Self::notify`] is charged to the
    /// senders of the delivered frames.
    fn notify_taken(&mut self) -> u32 {
        0
    }

    /// Stops polling after a time without frames: asks the far side for a notification and looks
    /// once more. True if the queue may stay unpolled until its
    /// [`Doorbell`](crate::worker::Doorbell) rings or [`Self::pending`] says otherwise. False if a
    /// frame waits, or if this port has no notifications.
    fn rest(&mut self) -> bool {
        false
    }

    /// Ends the state that [`Self::rest`] began: polling resumes and notifications are not needed.
    fn wake(&mut self) {}

    /// Called after the worker slept for `slept` because of this port. No port may make the worker
    /// sleep. For this reason the port receives and delivers nothing until its control side has
    /// handled the event. False if the port was stopped already or cannot be stopped.
    fn stop(&mut self, _cause: SleepCause, _slept: Nanos) -> bool {
        false
    }

    /// The queue's own memory, if frames can wait in it.
    fn buffers(&mut self) -> Option<&mut dyn Buffers> {
        None
    }

    /// Executes a message of this port's control thread between two batches. The returned box goes
    /// back to the sender, so that the worker frees nothing.
    fn control(&mut self, message: ControlMessage) -> ControlMessage {
        message
    }
}

/// A finished frame in a buffer of the port's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub(crate) buffer: u32,
    pub(crate) len: u32,
}

/// Memory of a port in which frames can wait.
///
/// A frame waits from [`Self::fill`] until it is sent or released once. Waiting frames have their
/// own share of the memory, so that the port can always receive.
pub trait Buffers {
    /// Free buffers for frames to wait in or to be sent from.
    fn free(&self) -> usize;

    /// Copies frame `i` of `batch`, finished, into a buffer, where it waits for [`Self::send`].
    /// `None` if no buffer is free or the frame is too long.
    fn fill(&mut self, batch: &Batch, i: usize) -> Option<Held>;

    /// Sends waiting frames in order. The first `frames + down + error` of them leave the queue.
    /// The others stay, because the ring is full. [`PortQueue::publish`] and [`PortQueue::notify`]
    /// follow, as after [`PortQueue::tx_burst`].
    fn send(&mut self, frames: &[Held]) -> TxOutcome;

    /// Frees the buffer of a waiting frame without sending it.
    fn release(&mut self, frame: Held);
}

/// State of an attachment, for status output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachState {
    Waiting,
    /// A driver is connected, but has not started its rings.
    Connected,
    Up,
    Down,
    /// The attachment failed; [`AttachStatus::error`] has the reason.
    Error,
}

/// State of an attachment with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachStatus {
    pub state: AttachState,
    pub error: Option<String>,
    /// Names of the negotiated features.
    pub features: Vec<&'static str>,
    /// Ring sizes that the driver set: receive and transmit ring of each queue pair in turn.
    pub ring_sizes: Vec<u32>,
    /// Queue pairs that can carry frames.
    pub queues_up: u16,
}

/// Error of opening a port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A call to the kernel failed.
    #[error("{object}: {call}: {source}; {remedy}")]
    System {
        /// Path of the socket or name of the interface.
        object: String,
        /// The operation that failed.
        call: &'static str,
        /// Suggestion for the operator.
        remedy: &'static str,
        source: std::io::Error,
    },
    /// The configuration exceeds a limit of the port type.
    #[error("{object}: {problem} (limit {limit})")]
    Limit {
        /// Path of the socket or name of the interface.
        object: String,
        /// The parameter that exceeds its limit.
        problem: &'static str,
        /// The largest allowed value.
        limit: u64,
    },
}

impl PortError {
    /// Whether the kernel or the driver refuses this *way* of attaching (no permission, not
    /// supported), so that another way may succeed. False if the interface does not exist or
    /// another program uses it.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        /// `ENOTSUPP`, which some drivers return and libc does not define.
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

/// Names of the offloads, for status output.
fn offload_names(caps: OffloadCaps) -> Vec<&'static str> {
    [(caps.csum, "csum"), (caps.tso4, "tso4"), (caps.tso6, "tso6")]
        .into_iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| name)
        .collect()
}
