//! The threads that poll a port's queue pairs, as the port's control side sees them.

use core::error::Error;
use core::fmt::Debug;

use penstock_units::{PortId, QueueId};

use super::ControlMessage;

/// Reason why no thread executed a message to a queue pair.
pub type Unreachable = Box<dyn Error + Send + Sync>;

/// The threads that poll queue pairs. The workers of a switch implement `QueueOwners`.
pub trait QueueOwners: Debug + Send + Sync {
    /// Sends a message to the thread that owns a queue pair, and returns the thread's answer.
    ///
    /// # Errors
    /// Returns an error if the queue pair has no owner, or if the owner has ended. If `exchange`
    /// returns an error, the message is dropped.
    fn exchange(
        &self,
        port: PortId,
        queue: QueueId,
        message: ControlMessage,
    ) -> Result<ControlMessage, Unreachable>;

    /// Lets the thread that owns a resting queue pair poll the queue pair again.
    fn ring_bell(&self, port: PortId, queue: QueueId);
}
