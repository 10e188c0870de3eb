//! A store in memory for a simulated controller.
//!
//! # Problem
//!
//! The controller stores each decision before it carries the decision out. A file would make a
//! simulation wait for the disk, and leases that end in real time would make runs differ.
//!
//! # Approach
//!
//! [`Memory`] keeps all keys in a map. A single controller uses the store, so the first candidate
//! leads, leases never end, and there are no watches.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use penstock_controller::store::{
    Change, Compare, Entry, Leadership, LeaseId, Listing, Revision, Store, StoreError, Transaction,
    Write, limits,
};
use tokio::sync::mpsc;

/// Name of the store in errors.
const NAME: &str = "memory";

/// Store in memory.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    leases: i64,
    /// Entries by key, each with the lease that deletes it.
    entries: BTreeMap<String, (Entry, Option<LeaseId>)>,
}

impl Memory {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn check(&self, compare: &Compare) -> Result<(), StoreError> {
        let entry = |key: &String| self.entries.get(key).map(|(entry, _)| entry);
        let (key, holds) = match compare {
            Compare::Absent(key) => (key, entry(key).is_none()),
            Compare::Modified(key, revision) => {
                (key, entry(key).map_or(Revision(0), |e| e.modified) == *revision)
            }
            Compare::Created(key, revision) => {
                (key, entry(key).map_or(Revision(0), |e| e.created) == *revision)
            }
            other => return Err(StoreError::Invalid(format!("unknown condition {other:?}"))),
        };
        if holds { Ok(()) } else { Err(StoreError::Conflict(key.clone())) }
    }

    fn commit(&mut self, transaction: Transaction) -> Result<Revision, StoreError> {
        limits::check(&transaction)?;
        transaction.compare.iter().try_for_each(|compare| self.check(compare))?;
        let next = Revision(self.revision + 1);
        let mut changed = false;
        for write in transaction.writes {
            match write {
                Write::Put { key, value, lease } => {
                    let created = self.entries.get(&key).map_or(next, |(entry, _)| entry.created);
                    let entry = Entry { key: key.clone(), value, created, modified: next };
                    self.entries.insert(key, (entry, lease));
                    changed = true;
                }
                Write::Delete(key) => changed |= self.entries.remove(&key).is_some(),
                other => return Err(StoreError::Invalid(format!("unknown write {other:?}"))),
            }
        }
        self.revision += u64::from(changed);
        Ok(Revision(self.revision))
    }
}

#[async_trait]
impl Store for Memory {
    fn name(&self) -> &str {
        NAME
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.inner().entries.get(key).map(|(entry, _)| entry.clone()))
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let inner = self.inner();
        let below = inner.entries.values().map(|(entry, _)| entry);
        let entries = below.filter(|entry| entry.key.starts_with(prefix)).cloned().collect();
        Ok(Listing { revision: Revision(inner.revision), entries })
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        self.inner().commit(transaction)
    }

    async fn watch(
        &self,
        _: &str,
        _: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError> {
        let problem = "a store in memory has no watches".to_owned();
        Err(StoreError::Unavailable { store: NAME.to_owned(), problem })
    }

    async fn lease(&self, _: Duration) -> Result<LeaseId, StoreError> {
        let mut inner = self.inner();
        inner.leases += 1;
        Ok(LeaseId(inner.leases))
    }

    async fn keep_alive(&self, _: LeaseId) -> Result<(), StoreError> {
        Ok(())
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner().entries.retain(|_, (_, of)| *of != Some(lease));
        Ok(())
    }

    async fn campaign(
        &self,
        key: &str,
        who: &str,
        lease: LeaseId,
    ) -> Result<Leadership, StoreError> {
        let key = format!("{key}/{:016x}", lease.0);
        let value = who.as_bytes().to_vec();
        let writes = vec![Write::Put { key: key.clone(), value, lease: Some(lease) }];
        let compare = vec![Compare::Absent(key.clone())];
        let created = self.inner().commit(Transaction { compare, writes })?;
        Ok(Leadership { key, created, lease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_does_not_hold_writes_nothing() {
        let store = Memory::default();
        let put = |compare| {
            let value = b"v".to_vec();
            let writes = vec![Write::Put { key: "k".to_owned(), value, lease: None }];
            store.inner().commit(Transaction { compare, writes })
        };
        let absent = || vec![Compare::Absent("k".to_owned())];
        assert_eq!(put(absent()), Ok(Revision(1)));
        assert_eq!(put(absent()), Err(StoreError::Conflict("k".to_owned())));
        let created = |at| vec![Compare::Created("k".to_owned(), Revision(at))];
        assert_eq!(put(created(1)), Ok(Revision(2)));
        assert_eq!(put(created(2)), Err(StoreError::Conflict("k".to_owned())));
        let delete = || {
            let writes = vec![Write::Delete("k".to_owned())];
            Transaction { compare: Vec::new(), writes }
        };
        assert_eq!(store.inner().commit(delete()), Ok(Revision(3)));
        assert_eq!(store.inner().commit(delete()), Ok(Revision(3)), "nothing is left");
    }
}
