//! Types and errors of stores, and the trait that every store implements.

use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use tokio::sync::mpsc;

/// Number of a change to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// Revision of the last change that created the key.
    pub created: Revision,
    /// Revision of the change that wrote this value.
    pub modified: Revision,
}

/// All keys below a prefix at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Revision of the store at the time of reading. A [`Store::watch`] from the next revision
    /// misses nothing.
    pub revision: Revision,
    /// Entries, ordered by key.
    pub entries: Vec<Entry>,
}

/// A condition of a transaction. As in etcd, an absent key has revision 0 for both creation and
/// modification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compare {
    /// The key does not exist.
    Absent(String),
    /// The change with this revision wrote the key last.
    Modified(String, Revision),
    /// The change with this revision created the key.
    Created(String, Revision),
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Write {
    /// Sets a key. With a lease, the key is deleted when the lease ends.
    Put { key: String, value: Vec<u8>, lease: Option<LeaseId> },
    /// Deletes a key.
    Delete(String),
}

impl Write {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &str {
        let (Self::Put { key, .. } | Self::Delete(key)) = self;
        key
    }

    /// Bytes that this write adds to a transaction.
    #[must_use]
    pub fn size(&self) -> usize {
        let value = if let Self::Put { value, .. } = self { value.len() } else { 0 };
        self.key().len() + value
    }
}

/// Writes that happen atomically, if all conditions in `compare` hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Conditions for the writes.
    pub compare: Vec<Compare>,
    pub writes: Vec<Write>,
}

/// A lease. Keys under it are deleted when it is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(pub i64);

/// A change seen by a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has a new value.
    Put(Entry),
    /// The key was deleted.
    Deleted {
        key: String,
        /// Revision of the deletion.
        revision: Revision,
    },
}

/// The leadership of a controller. A leader's writes check it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The leader's key.
    pub key: String,
    /// Revision that created the key. The revision is larger in every later election.
    pub created: Revision,
    /// Lease of the key. The leadership ends with this lease.
    pub lease: LeaseId,
}

impl Leadership {
    /// The condition that this leader still leads.
    #[must_use]
    pub fn fence(&self) -> Compare {
        Compare::Created(self.key.clone(), self.created)
    }
}

/// Why a store failed or refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A condition of a transaction did not hold. Nothing was written.
    #[error("{0} was changed meanwhile, so nothing was written; repeat the request")]
    Conflict(String),
    /// The requested revisions were compacted.
    #[error("changes before revision {} are gone; list again and watch from there", .0.0)]
    Compacted(Revision),
    /// No store accepts the transaction in any state. This is an error of the calling program.
    #[error("transaction refused: {0}")]
    Invalid(String),
    /// The lease has ended.
    #[error("lease {} has ended; take a new one", .0.0)]
    LeaseEnded(LeaseId),
    /// A limit is exceeded.
    #[error("{what} of {size} is above the limit of {most}; {remedy}")]
    TooLarge {
        what: String,
        /// Size in the request.
        size: usize,
        /// Largest size that a store accepts.
        most: usize,
        /// How to stay within the limit.
        remedy: &'static str,
    },
    /// The store is unreachable or refused the request for now. A transaction may have been written
    /// or may still be written. The caller must read again before it repeats the transaction.
    #[error("store {store}: {problem}")]
    Unavailable { store: String, problem: String },
    /// The stored data cannot be read by this program.
    #[error("store {store}: {problem}; restore a copy or start from an empty store")]
    Damaged { store: String, problem: String },
}

/// A key-value store with revisions.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Name of the store in errors: a file, or the addresses of the members.
    fn name(&self) -> &str;

    /// Entry of a key, if it exists.
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// All keys that begin with `prefix`, at one revision.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;

    /// Writes if all conditions hold. Returns the revision of the change. A transaction changes
    /// nothing if it has no writes or only deletes absent keys. Its revision is then that of the
    /// last change.
    ///
    /// If the future is dropped, the transaction may or may not be written.
    ///
    /// # Errors
    /// - [`StoreError::Conflict`] has the first key whose condition did not hold.
    /// - [`StoreError::LeaseEnded`]: the lease of a write has ended.
    /// - [`StoreError::TooLarge`] and [`StoreError::Invalid`]: see
    ///   [`limits::check`](super::limits::check).
    /// - [`StoreError::Unavailable`]: it is unknown whether the transaction was written.
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError>;

    /// Sends all changes below `prefix` from a revision on, in order and without gaps. Revision 0
    /// counts as 1. If this is impossible, the channel ends with an error, and the caller must list
    /// again. The error is [`StoreError::Compacted`] if the changes are gone already. The watch
    /// ends when the receiver is dropped.
    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError>;

    /// Deletes values from before `revision`. Present values stay. Watches from earlier revisions
    /// fail with [`StoreError::Compacted`]. The method does nothing if the store compacts by
    /// itself.
    ///
    /// # Errors
    /// The store is unreachable, or has no such revision yet.
    async fn compact(&self, _revision: Revision) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes a lease that ends `ttl` after its last renewal. A store may round up to its resolution
    /// or shortest lease, but never ends a lease early.
    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Renews a lease.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`] if the lease has ended already.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends a lease and deletes its keys. A lease that has ended already is no error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Waits until the candidate `who` leads in the election at `key`. The leadership ends with
    /// `lease`. Candidates lead in the order of arrival. [`leader`](super::leader) returns the
    /// present leader.
    ///
    /// The caller may drop the future at any time. The candidate then does not become leader. If
    /// the store is unreachable at that time, the end of the lease withdraws the candidate.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`] if the lease ends first, and the errors of
    /// [`commit`](Store::commit).
    async fn campaign(
        &self,
        key: &str,
        who: &str,
        lease: LeaseId,
    ) -> Result<Leadership, StoreError>;
}
