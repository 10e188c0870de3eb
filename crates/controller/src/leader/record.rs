//! Writes to the store while this controller leads.
//!
//! # Full stores
//!
//! An etcd whose file has reached the quota refuses writes of values, but accepts compactions. When
//! a write is refused, the leader reports the remedy once as an event, and compacts the whole
//! history, so that defragmentation frees as much as possible. The leader keeps the present
//! binding, because a decision that cannot be stored is not executed. Every interval tries again,
//! so the leader continues without a restart when the store has space again. The leader does not
//! defragment etcd, because a member answers nothing while it defragments.

use std::time::Duration;

use tokio::time::Instant;

use super::horizon::Horizon;
use super::{Leader, LeaderError, MODE, OPERATIONS_MAX, Severity, StoreError, Transaction, Write};
use crate::store::limits::TRANSACTION_BYTES_MAX;
use crate::store::{Compare, Entry, Leadership, Revision, Store};

/// Bytes of each transaction that are reserved for the check that this controller still leads.
const FENCE_BYTES: usize = 4_096;

/// Splits writes, in order, into parts that a store accepts. For an empty list of writes, returns
/// one part without writes.
fn parts(writes: Vec<Write>) -> Vec<Vec<Write>> {
    if writes.is_empty() {
        return vec![writes];
    }
    let mut parts: Vec<Vec<Write>> = Vec::new();
    let mut size = 0;
    for write in writes {
        size += write.size();
        let fits = size <= TRANSACTION_BYTES_MAX - FENCE_BYTES;
        match parts.last_mut().filter(|part| fits && part.len() < OPERATIONS_MAX) {
            Some(part) => part.push(write),
            None => {
                size = write.size();
                parts.push(vec![write]);
            }
        }
    }
    parts
}

/// Writes to a store in the name of a leader. The store refuses the writes when another controller
/// leads.
#[derive(Debug)]
pub struct Writer<'a> {
    store: &'a dyn Store,
    leadership: &'a Leadership,
    horizon: &'a mut Horizon,
}

impl<'a> Writer<'a> {
    #[must_use]
    pub fn new(store: &'a dyn Store, leadership: &'a Leadership, horizon: &'a mut Horizon) -> Self {
        Self { store, leadership, horizon }
    }

    /// Commits writes if this controller still leads. The store checks the leadership even if the
    /// list of writes is empty. If the writes exceed a limit of stores, the writer commits the
    /// writes in several transactions, in order.
    ///
    /// # Errors
    /// Returns [`LeaderError::Deposed`] if another controller leads, or the error of the store.
    /// After an error, the store may have some of the transactions.
    pub async fn commit(&mut self, writes: Vec<Write>) -> Result<(), LeaderError> {
        self.commit_if(writes, None).await
    }

    /// Commits writes like [`Self::commit`], if the condition `last` holds at the last transaction.
    pub(super) async fn commit_if(
        &mut self,
        writes: Vec<Write>,
        last: Option<Compare>,
    ) -> Result<(), LeaderError> {
        let parts = parts(writes);
        let end = parts.len() - 1;
        for (number, writes) in parts.into_iter().enumerate() {
            let puts = writes.iter().any(|write| matches!(write, Write::Put { .. }));
            let also = last.clone().filter(|_| number == end);
            let compare = std::iter::once(self.leadership.fence()).chain(also).collect();
            match self.store.commit(Transaction { compare, writes }).await {
                Ok(done) => {
                    self.horizon.saw(done);
                    if puts {
                        self.horizon.found(false);
                    }
                }
                Err(StoreError::Conflict(key)) if key == self.leadership.key => {
                    return Err(LeaderError::Deposed);
                }
                Err(error) => {
                    if matches!(error, StoreError::Full { .. }) {
                        self.horizon.found(true);
                    }
                    return Err(LeaderError::Store(error));
                }
            }
        }
        Ok(())
    }

    /// Reads the entry of a key.
    pub(super) async fn get(&self, key: &str) -> Result<Option<Entry>, LeaderError> {
        self.store.get(key).await.map_err(LeaderError::Store)
    }

    /// Compacts the store's history if a compaction is due at the time `now`. Returns the revision
    /// up to which the history was compacted.
    pub async fn forget(&mut self, now: Instant, period: Duration) -> Option<Revision> {
        let revision = self.horizon.due(now, period)?;
        match self.store.compact(revision).await {
            Ok(()) => Some(revision),
            Err(error) => {
                tracing::warn!(%error, "the store's history cannot be compacted; trying again");
                None
            }
        }
    }

    /// Compacts the whole history of the store.
    async fn forget_all(&self) {
        let listed = self.store.list(MODE).await;
        let compacted = match listed {
            Ok(listing) => self.store.compact(listing.revision).await,
            Err(error) => Err(error),
        };
        if let Err(error) = compacted {
            tracing::warn!(%error, "the full store's history cannot be compacted; trying again");
        }
    }
}

impl Leader {
    /// Commits writes if this controller still leads ([`Writer::commit`]).
    pub(super) async fn commit(&mut self, writes: Vec<Write>) -> Result<(), LeaderError> {
        let was_full = self.horizon.is_full();
        let mut writer = Writer::new(&*self.store, &self.leadership, &mut self.horizon);
        let done = writer.commit(writes).await;
        self.note_full(was_full, &done).await;
        done
    }

    /// Compacts the store's history if a compaction is due.
    pub(super) async fn forget(&mut self) {
        let period = self.settings.history;
        let mut writer = Writer::new(&*self.store, &self.leadership, &mut self.horizon);
        writer.forget(Instant::now(), period).await;
    }

    /// Reports that the store has become full, or that it accepts writes again. If the store is
    /// full, compacts the store's history.
    pub(super) async fn note_full(&mut self, was_full: bool, done: &Result<(), LeaderError>) {
        let is_full = self.horizon.is_full();
        match done {
            Err(LeaderError::Store(error @ StoreError::Full { .. })) => {
                if !was_full {
                    let text = format!("{error}; until then, no tenant and no queue changes");
                    self.tell(Severity::Warning, "store-full", "", &text);
                }
                Writer::new(&*self.store, &self.leadership, &mut self.horizon).forget_all().await;
            }
            _ if was_full && !is_full => {
                self.tell(Severity::Info, "store-writable", "", "the store accepts writes again");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::limits::{VALUE_BYTES_MAX, check};

    #[test]
    fn every_part_fits_into_a_transaction_and_none_is_lost() {
        let put = |n: usize, size: usize| {
            let (key, value) = (format!("key-{n}"), vec![0; size]);
            Write::Put { key, value, lease: None }
        };
        let small = (0..300).map(|n| put(n, 10));
        let large = (300..310).map(|n| put(n, VALUE_BYTES_MAX));
        let middle = (310..400).map(|n| put(n, 100_000));
        let all: Vec<Write> = small.chain(large).chain(middle).collect();
        let parts = parts(all.clone());
        assert!(parts.len() < 30, "{} transactions", parts.len());
        for writes in &parts {
            let compare = vec![crate::store::Compare::Absent("k".repeat(1_024))];
            assert_eq!(check(&Transaction { compare, writes: writes.clone() }), Ok(()));
        }
        assert_eq!(parts.concat(), all);
    }
}
