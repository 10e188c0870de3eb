//! Defines why a leader stops or refuses a request.

use thiserror::Error;

use crate::fabric_state::ChangeRefused;
use crate::intent::IntentError;
use crate::store::StoreError;

/// Reason why a leader stops or refuses a request.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LeaderError {
    /// Another controller leads.
    #[error("another controller leads; send the request to it")]
    Deposed,
    #[error(transparent)]
    Store(StoreError),
    /// The leader cannot use a stored record.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// The leader refused the requested change.
    #[error(transparent)]
    Refused(#[from] Box<ChangeRefused>),
    /// The epoch that the operator requested is above the limit.
    #[error(
        "epoch {asked}: the limit is {most}; a host with a later epoch is faulty: remove \
         its plan file and restart it"
    )]
    Epoch { asked: u64, most: u64 },
    /// The store has no earlier binding to which the leader can revert.
    #[error("no earlier binding is stored, so a rollback is not possible")]
    NoHistory,
}

impl From<ChangeRefused> for LeaderError {
    fn from(refused: ChangeRefused) -> Self {
        Self::Refused(Box::new(refused))
    }
}
