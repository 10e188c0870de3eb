//! Defines the interface through which the driver runs `tc` and `ip`.

use async_trait::async_trait;
use thiserror::Error;

/// Arguments and standard input of a run of `tc` or `ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Name of the program to run, which is `tc` or `ip`.
    pub program: &'static str,
    pub args: Vec<String>,
    pub stdin: String,
}

/// Reason why a run of a program failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program could not be started, or did not end within the time limit.
    #[error("{0}")]
    Unreachable(String),
    /// The program failed. The text is the program's output.
    #[error("{0}")]
    Failed(String),
    /// The program's output exceeded the limit in bytes, which the error contains.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
}

/// Exclusive right to change a switch. The exclusive right ends when the [`Hold`] is dropped.
pub trait Hold: Send + std::fmt::Debug {}

/// Runs iproute2 programs in a particular place, such as a network namespace of the controller's
/// machine.
#[async_trait]
pub trait Runner: Send + Sync + std::fmt::Debug {
    /// Runs a program and returns its output.
    ///
    /// # Errors
    /// Returns an error if the program cannot be run, exits with a status other than 0, or exceeds
    /// the implementation's limits on time or output.
    async fn run(&self, run: &Run) -> Result<String, RunError>;

    /// Waits for the exclusive right to change the switch. With the exclusive right, no other
    /// controller changes the switch between the reading and the writing of the stamp.
    ///
    /// # Errors
    /// Returns an error if another controller kept the exclusive right for too long.
    async fn hold(&self) -> Result<Box<dyn Hold>, RunError>;
}
