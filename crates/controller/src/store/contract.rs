//! What a store is asked and what it answers: its words, its errors, and the trait that every store
//! keeps.

use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use tokio::sync::mpsc;

/// A change's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The change that created the key, since it was absent last.
    pub created: Revision,
    /// The change that wrote this value.
    pub modified: Revision,
}

/// All keys below a prefix at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The store's revision when it was read: [`Store::watch`] from the next one misses nothing.
    pub revision: Revision,
    /// By key.
    pub entries: Vec<Entry>,
}

/// What must be so for a transaction to write. A key that is absent was created and last written by
/// change 0, as etcd has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compare {
    /// There is no such key.
    Absent(String),
    /// The key was last written by this change.
    Modified(String, Revision),
    /// The key was created by this change.
    Created(String, Revision),
}

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Write {
    /// The key has this value; with a lease it vanishes with that.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The lease.
        lease: Option<LeaseId>,
    },
    /// The key is gone.
    Delete(String),
}

impl Write {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &str {
        let (Self::Put { key, .. } | Self::Delete(key)) = self;
        key
    }

    /// What it adds to a transaction, bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let value = if let Self::Put { value, .. } = self { value.len() } else { 0 };
        self.key().len() + value
    }
}

/// Writes that happen together, if all of `compare` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must be so.
    pub compare: Vec<Compare>,
    /// What then happens.
    pub writes: Vec<Write>,
}

/// A lease: keys under it vanish when it is not kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(pub i64);

/// A change that a watch saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key has a value.
    Put(Entry),
    /// A key is gone.
    Deleted {
        /// The key.
        key: String,
        /// By which change.
        revision: Revision,
    },
}

/// Who leads, and since when: what a leader's writes compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The key that says who leads.
    pub key: String,
    /// The change that created it; larger with every election.
    pub created: Revision,
    /// What it vanishes with.
    pub lease: LeaseId,
}

impl Leadership {
    /// What a write of this leader compares: it leads still.
    #[must_use]
    pub fn fence(&self) -> Compare {
        Compare::Created(self.key.clone(), self.created)
    }
}

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A comparison of a transaction did not hold; nothing was written.
    #[error("{0} was changed meanwhile, so nothing was written; repeat the request")]
    Conflict(String),
    /// The revisions asked for are gone.
    #[error("changes before revision {} are gone; list again and watch from there", .0.0)]
    Compacted(Revision),
    /// A transaction that no store takes, whatever its state: a fault of the program that asks.
    #[error("transaction refused: {0}")]
    Invalid(String),
    /// A lease has ended.
    #[error("lease {} has ended; take a new one", .0.0)]
    LeaseEnded(LeaseId),
    /// Something is larger than the store takes.
    #[error("{what} of {size} is above the limit of {most}; {remedy}")]
    TooLarge {
        /// What.
        what: String,
        /// How much.
        size: usize,
        /// The most.
        most: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// The store cannot be reached, or said no; it may be able to later. A transaction that ended
    /// so may have been written, or be written yet: read again before repeating it.
    #[error("store {store}: {problem}")]
    Unavailable {
        /// Which one.
        store: String,
        /// What happened.
        problem: String,
    },
    /// What is stored cannot be read by this program.
    #[error("store {store}: {problem}; restore a copy or start from an empty store")]
    Damaged {
        /// Which one.
        store: String,
        /// What is wrong.
        problem: String,
    },
}

/// Keys and values with revisions.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// What errors call it: a file or addresses.
    fn name(&self) -> &str;

    /// A key's value, if there is one.
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// All keys that begin with `prefix`, at one revision.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;

    /// Writes if all that is compared holds; the change's number. One that writes nothing, as it
    /// has no writes or only deletes what is absent, is no change: the number is the last one's.
    ///
    /// Dropping it half way leaves open whether it is written.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] with the first key whose comparison did not hold;
    /// [`StoreError::LeaseEnded`] when a key was to have a lease that has ended;
    /// [`StoreError::TooLarge`] and [`StoreError::Invalid`] as
    /// [`limits::check`](super::limits::check) says;
    /// [`StoreError::Unavailable`] when it is not known whether it was written.
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError>;

    /// All changes below `prefix` from this one on, in order and without a gap; 0 is as 1. The
    /// channel ends with an error when that cannot be kept up ([`StoreError::Compacted`] when the
    /// changes asked for are gone already), and then the caller lists again. It ends when the
    /// receiver is dropped.
    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError>;

    /// Forgets what keys had before `revision`; what they have stays. Who watches from earlier is
    /// told that it is compacted. A store that forgets by itself does nothing.
    ///
    /// # Errors
    /// When it cannot be reached, or has no such revision yet.
    async fn compact(&self, _revision: Revision) -> Result<(), StoreError> {
        Ok(())
    }

    /// A new lease that ends `ttl` after it was last kept alive. A store may round up to its own
    /// step or its shortest lease; it never ends one early.
    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// The lease lasts for its time from now on.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`] when it has ended before.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// The lease ends now, and its keys vanish. One that has ended already is no error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Waits until `who` leads in the election at `key`; the leadership ends with `lease`. Who
    /// waits longest comes next. [`leader`](super::leader) tells who leads.
    ///
    /// Safe to drop at any time: who does not wait any more does not come to lead. Where the store
    /// cannot be told so at once, the end of the lease does it.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`] when the lease ends before that, and those of
    /// [`commit`](Store::commit).
    async fn campaign(
        &self,
        key: &str,
        who: &str,
        lease: LeaseId,
    ) -> Result<Leadership, StoreError>;
}
