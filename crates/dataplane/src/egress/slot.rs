//! State that each worker keeps for each port number: the port's queue pairs, and the port's output
//! queue.

use super::Mark;
use crate::port::PortQueue;
use crate::queue::OutputQueue;
use crate::unit::QUEUES_MAX;

/// State of a port on one worker. Each port number has a slot, even if no port with the number is
/// attached.
#[derive(Default)]
pub struct PortSlot {
    /// Queue pairs of the port, with placeholders for the queue pairs of other workers. The list is
    /// empty if this worker polls no queue pair of the port.
    pub queues: Vec<Box<dyn PortQueue>>,
    /// Indices in [`super::Touched`] of the port's queue pairs that wait for a notification.
    pub marked: [Mark; QUEUES_MAX],
    /// Bit mask of the port's queue pairs that this worker polls. The port's other queue pairs are
    /// placeholders, which neither send nor receive.
    pub owned: u8,
    /// Output queue with the frames that wait for the port. `output` is `None` if the port has no
    /// output queue on this worker.
    pub output: Option<Box<OutputQueue>>,
    /// Value of the port's `tx_frames` when the worker last woke the scheduler of the VM's vCPUs.
    pub rung: u64,
}

impl core::fmt::Debug for PortSlot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PortSlot").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}
