//! Defines the types and errors of stores, and the trait that every store implements.

use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use tokio::sync::mpsc;

/// Number of a change to the store, which increases with every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// Revision of the last change that created the key.
    pub created: Revision,
    /// Revision of the change that wrote the key's present value.
    pub modified: Revision,
}

/// All keys below a prefix at a single revision of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Revision of the store at the time of reading. To get every change after the listing, start a
    /// [`Store::watch`] at the next revision.
    pub revision: Revision,
    /// Entries of the listed keys, ordered by key.
    pub entries: Vec<Entry>,
}

/// Condition of a transaction. As in etcd, an absent key has revision 0 for creation and
/// modification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compare {
    /// The condition holds if the key does not exist.
    Absent(String),
    /// The condition holds if the change with the given revision wrote the key last.
    Modified(String, Revision),
    /// The condition holds if the change with the given revision created the key.
    Created(String, Revision),
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Write {
    /// Sets a key. If the write has a lease, the store deletes the key when the lease ends.
    Put { key: String, value: Vec<u8>, lease: Option<LeaseId> },
    /// Deletes a key, if the key exists.
    Delete(String),
}

impl Write {
    /// Returns the key that the write sets or deletes.
    #[must_use]
    pub fn key(&self) -> &str {
        let (Self::Put { key, .. } | Self::Delete(key)) = self;
        key
    }

    /// Returns the number of bytes that the write adds to a transaction.
    #[must_use]
    pub fn size(&self) -> usize {
        let value = if let Self::Put { value, .. } = self { value.len() } else { 0 };
        self.key().len() + value
    }
}

/// Writes that the store makes atomically if all conditions in `compare` hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Conditions that must hold for the writes.
    pub compare: Vec<Compare>,
    pub writes: Vec<Write>,
}

/// Number of a lease. If the client does not renew a lease in time, the store deletes the keys of
/// the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(pub i64);

/// Change of a key that a watch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A transaction set the key to a new value.
    Put(Entry),
    Deleted {
        key: String,
        /// Revision of the change that deleted the key.
        revision: Revision,
    },
}

/// Leadership of a controller, which every transaction of a leader checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Key of the leader in the election.
    pub key: String,
    /// Revision that created the leader's key. The key of every later leader has a larger revision.
    pub created: Revision,
    /// Lease of the leader's key. The leadership ends with the lease.
    pub lease: LeaseId,
}

impl Leadership {
    /// Returns a transaction condition that holds while the leader leads.
    #[must_use]
    pub fn fence(&self) -> Compare {
        Compare::Created(self.key.clone(), self.created)
    }
}

/// Reason why a store failed or refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A condition of the transaction did not hold. The store wrote nothing.
    #[error("{0} was changed meanwhile, so nothing was written; repeat the request")]
    Conflict(String),
    /// The store has compacted the requested revisions.
    #[error("changes before revision {} are gone; list the keys again, and watch from the listed \
             revision", .0.0)]
    Compacted(Revision),
    /// The transaction is invalid for every store, because the calling program has a defect.
    #[error("transaction refused: {0}")]
    Invalid(String),
    #[error("lease {} has ended; request a new lease", .0.0)]
    LeaseEnded(LeaseId),
    /// The request exceeds a limit of stores.
    #[error("{what}: {size} is above the limit of {most}; {remedy}")]
    TooLarge {
        what: String,
        /// Size of the refused request.
        size: usize,
        /// Maximum size that a store accepts for the refused key, value or transaction.
        most: usize,
        /// Advice on how to keep a request within the limit.
        remedy: &'static str,
    },
    /// The store is unreachable or refused the request for now. The store may have written a
    /// transaction, or may still write it. Before the caller repeats a transaction, the caller must
    /// read the affected keys again.
    #[error("store {store}: {problem}")]
    Unavailable { store: String, problem: String },
    /// The store has no space for new values, and wrote nothing. The store still accepts
    /// compactions.
    #[error("store {store} is full: {problem}")]
    Full { store: String, problem: String },
    /// This version of Penstock cannot read the stored data.
    #[error("store {store}: {problem}; restore a copy or start from an empty store")]
    Damaged { store: String, problem: String },
}

/// Key-value store with revisions, in which the controller keeps its state.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Returns the name of the store for errors: a file, or the addresses of the members.
    fn name(&self) -> &str;

    /// Returns the entry of a key, or `None` if the key does not exist.
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Returns all keys that begin with `prefix`, at a single revision of the store.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;

    /// Makes the writes of a transaction if all its conditions hold. Returns the revision that the
    /// transaction created. A transaction changes nothing if it has no writes or only deletes
    /// absent keys. A transaction that changes nothing returns the revision of the last change.
    ///
    /// If the caller drops the future, the store may or may not write the transaction.
    ///
    /// # Errors
    /// - [`StoreError::Conflict`]: a condition did not hold. The error contains the key of the
    ///   first condition that did not hold.
    /// - [`StoreError::LeaseEnded`]: the lease of a write has ended.
    /// - [`StoreError::TooLarge`] and [`StoreError::Invalid`]:
    ///   [`limits::check`](super::limits::check) refuses the transaction.
    /// - [`StoreError::Full`]: the store has no space for the written values.
    /// - [`StoreError::Unavailable`]: it is unknown whether the transaction was written.
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError>;

    /// Sends all changes of keys that begin with `prefix`, from revision `from` on, in order and
    /// without gaps. A watch from revision 0 starts at revision 1. If the store cannot continue the
    /// watch, it sends an error and closes the channel. After an error, the caller must list the
    /// keys again. The error is [`StoreError::Compacted`] if the store has compacted some of the
    /// changes. The watch ends when the caller drops the receiver.
    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError>;

    /// Deletes all values from before `revision` except present values. Watches from earlier
    /// revisions fail with [`StoreError::Compacted`]. For a store that compacts its history by
    /// itself, `compact` has no effect.
    ///
    /// # Errors
    /// Returns an error if the store is unreachable or has no revision `revision` yet.
    async fn compact(&self, _revision: Revision) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes a lease that ends `ttl` after its last renewal. A store may round `ttl` up to its
    /// resolution or shortest lease, but never ends a lease early.
    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Renews a lease, which then lasts for its whole duration again.
    ///
    /// # Errors
    /// Returns [`StoreError::LeaseEnded`] if the lease has ended already.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends a lease and deletes the keys of the lease. A lease that has already ended causes no
    /// error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Waits until the candidate `who` leads in the election at `key`. The leadership ends when the
    /// lease `lease` ends. Candidates lead in the order of arrival. [`leader`](super::leader)
    /// returns the present leader.
    ///
    /// If the caller drops the future, the candidate does not become leader. If the caller drops
    /// the future while the store is unreachable, the end of the lease withdraws the candidate.
    ///
    /// # Errors
    /// Returns [`StoreError::LeaseEnded`] if the lease ends before the candidate leads, and the
    /// errors of [`commit`](Store::commit).
    async fn campaign(
        &self,
        key: &str,
        who: &str,
        lease: LeaseId,
    ) -> Result<Leadership, StoreError>;
}
