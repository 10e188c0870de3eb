//! Where `tc` and `ip` run.

use async_trait::async_trait;
use thiserror::Error;

/// One run of a program: `tc` or `ip`, with what it reads from its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// `tc` or `ip`.
    pub program: &'static str,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its standard input.
    pub stdin: String,
}

/// Why a run gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// It did not begin, or did not end.
    #[error("{0}")]
    Unreachable(String),
    /// It ended and said this.
    #[error("{0}")]
    Failed(String),
    /// It said more than is read.
    #[error("it answered more than {0} bytes")]
    TooLong(usize),
}

/// The right to change a switch, held until it is dropped.
pub trait Hold: Send + std::fmt::Debug {}

/// A place where programs of iproute2 can be run: a namespace of this machine, or a machine that an
/// agent answers for.
#[async_trait]
pub trait Runner: Send + Sync + std::fmt::Debug {
    /// What the program wrote.
    ///
    /// # Errors
    /// When it cannot be run, ends with another status than 0, takes too long or answers too much:
    /// an implementation bounds both.
    async fn run(&self, run: &Run) -> Result<String, RunError>;

    /// Waits until nobody else holds the switch. Between reading the stamp and writing it nobody
    /// else may change anything, whichever controller it belongs to.
    ///
    /// # Errors
    /// When somebody holds it for too long.
    async fn hold(&self) -> Result<Box<dyn Hold>, RunError>;
}
