//! Defines the interface through which the driver asks the kernel.

use async_trait::async_trait;
use thiserror::Error;

/// Request to the kernel, which becomes a netlink message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command line of `tc` or `ip` with the same effect, for errors and dry runs.
    pub words: String,
    /// Type of the message, such as `RTM_NEWTCLASS`.
    pub kind: u16,
    /// Flags of the message. The sender of the message adds `NLM_F_REQUEST` and `NLM_F_ACK`.
    pub flags: u16,
    /// Message without `struct nlmsghdr`.
    pub body: Vec<u8>,
}

/// Message of the kernel's answer to a [`Request`]. The request determines the message's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Message without `struct nlmsghdr`.
    pub body: Vec<u8>,
}

/// Reason why the kernel did not carry out all requests.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The driver could not send a request, or the kernel did not answer within the time limit.
    #[error("{0}")]
    Unreachable(String),
    /// The kernel refused a request.
    #[error("{words}: {problem}")]
    Refused {
        /// [`Request::words`] of the refused request.
        words: String,
        problem: String,
    },
    /// The kernel's answer is not valid.
    #[error("the answer to {words} is not valid: {problem}")]
    Invalid {
        /// [`Request::words`] of the request to which the kernel sent the invalid answer.
        words: String,
        problem: String,
    },
}

/// Exclusive right to change a switch. The exclusive right ends when the [`Hold`] is dropped.
pub trait Hold: Send + std::fmt::Debug {}

/// Kernel that forwards a switch's frames, in a particular network namespace.
#[async_trait]
pub trait Kernel: Send + Sync + std::fmt::Debug {
    /// Sends requests in order, each after the answer to the request before it. Returns one answer
    /// for each request. The kernel receives no further request after a refused request.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a request, cannot be reached, or exceeds the
    /// implementation's limits on time or answers.
    async fn ask(&self, requests: Vec<Request>) -> Result<Vec<Vec<Message>>, KernelError>;

    /// Returns a text that identifies the network namespace, which changes if another namespace
    /// gets the same name. The text is empty if the implementation has only one namespace.
    ///
    /// # Errors
    /// Returns an error if the network namespace does not exist.
    async fn namespace(&self) -> Result<String, KernelError> {
        Ok(String::new())
    }

    /// Waits for the exclusive right to change the switch. With the exclusive right, no other
    /// controller changes the switch between the reading and the writing of the stamp.
    ///
    /// # Errors
    /// Returns an error if another controller kept the exclusive right for too long.
    async fn hold(&self) -> Result<Box<dyn Hold>, KernelError>;
}
