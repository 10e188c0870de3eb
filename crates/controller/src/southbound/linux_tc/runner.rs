//! Interface for running `tc` and `ip`.

use async_trait::async_trait;
use thiserror::Error;

/// A run of `tc` or `ip` with its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Name of the program: `tc` or `ip`.
    pub program: &'static str,
    pub args: Vec<String>,
    pub stdin: String,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program could not be started, or did not end in time.
    #[error("{0}")]
    Unreachable(String),
    /// The program failed with this output.
    #[error("{0}")]
    Failed(String),
    /// The program's output exceeded the limit.
    #[error("it answered more than {0} bytes")]
    TooLong(usize),
}

/// Exclusive right to change a switch. The right ends when this value is dropped.
pub trait Hold: Send + std::fmt::Debug {}

/// A place to run iproute2 programs: a namespace of this machine, or a machine with an agent.
#[async_trait]
pub trait Runner: Send + Sync + std::fmt::Debug {
    /// Runs a program and returns its output.
    ///
    /// # Errors
    /// The program cannot be run, exits with a status other than 0, or exceeds the implementation's
    /// limits on time or output.
    async fn run(&self, run: &Run) -> Result<String, RunError>;

    /// Waits for the exclusive right to the switch. No other controller may change anything between
    /// reading and writing the stamp.
    ///
    /// # Errors
    /// Another controller has this right for too long.
    async fn hold(&self) -> Result<Box<dyn Hold>, RunError>;
}
