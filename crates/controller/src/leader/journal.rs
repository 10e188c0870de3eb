//! Reads bindings from the store: a snapshot, and the changes after the snapshot.

use std::collections::BTreeMap;

use super::error::LeaderError;
use super::kept::{BindingHead, Chain, StoredBindings, snapshot_key, stamped};
use crate::Stamp;
use crate::intent::{
    BINDING, BINDING_VERSION, BOUND, BindingRecord, BoundRecord, ChangeRecord, HISTORY,
    IntentError, JOURNAL, MOVING, MovingRecord, binding_from_bytes, from_bytes,
};
use crate::store::Store;

/// Parts of all stored bindings.
#[derive(Debug)]
pub(super) struct StoredParts {
    /// Shards and heads of snapshots, by key.
    parts: BTreeMap<String, Vec<u8>>,
    /// Changes by the stamp of the binding before the change.
    changes: BTreeMap<Stamp, ChangeRecord>,
    /// Keys of all changes.
    change_keys: Vec<String>,
}

fn missing(key: String) -> IntentError {
    IntentError::Malformed { key, problem: "a part of the binding is missing".to_owned() }
}

impl StoredParts {
    pub(super) async fn read(store: &dyn Store) -> Result<Self, LeaderError> {
        let listed = store.list(BOUND).await.map_err(LeaderError::Store)?;
        let parts = listed.entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
        let listed = store.list(JOURNAL).await.map_err(LeaderError::Store)?;
        let (mut changes, mut change_keys) = (BTreeMap::new(), Vec::new());
        for entry in listed.entries {
            let change: ChangeRecord = binding_from_bytes(&entry.key, &entry.value)?;
            changes.insert(change.after, change);
            change_keys.push(entry.key);
        }
        Ok(Self { parts, changes, change_keys })
    }

    /// Returns the head that lists the shards of the snapshot of `head`. `None` if the store does
    /// not have the snapshot.
    fn snapshot(&self, head: &BindingHead) -> Result<Option<BindingHead>, IntentError> {
        let Some(stamp) = head.base else { return Ok(Some(head.clone())) };
        let key = snapshot_key(stamp);
        self.parts.get(&key).map(|value| binding_from_bytes(&key, value)).transpose()
    }

    /// Returns the changes after the snapshot `stamp`, oldest first.
    fn changes(&self, mut stamp: Stamp) -> Vec<&ChangeRecord> {
        let mut changes = Vec::new();
        // The stamps of a leader's decisions increase, so the loop ends.
        while let Some(change) = self.changes.get(&stamp).filter(|next| next.stamp > stamp) {
            stamp = change.stamp;
            changes.push(change);
        }
        changes
    }

    /// Returns the snapshot of `head` and the changes after the snapshot. `None` if the store does
    /// not have the snapshot.
    pub(super) fn chain(&self, head: &BindingHead) -> Result<Option<Chain>, IntentError> {
        let Some(snapshot) = self.snapshot(head)? else { return Ok(None) };
        let changes = self.changes(snapshot.stamp);
        let changes = changes.into_iter().map(|change| (change.stamp, change.interval)).collect();
        Ok(Some(Chain { snapshot, changes }))
    }

    /// Returns the binding with the stamp `stamp`, which consists of `snapshot` and the changes up
    /// to the stamp.
    pub(super) fn record(
        &self,
        snapshot: &BindingHead,
        stamp: Stamp,
    ) -> Result<BindingRecord, IntentError> {
        let mut tenants: BTreeMap<String, BoundRecord> = BTreeMap::new();
        for key in snapshot.keys() {
            let value = self.parts.get(&key).ok_or_else(|| missing(key.clone()))?;
            let part: Vec<BoundRecord> = binding_from_bytes(&key, value)?;
            tenants.extend(part.into_iter().map(|bound| (bound.tenant.clone(), bound)));
        }
        let (mut at, mut interval) = (snapshot.stamp, snapshot.interval);
        for change in self.changes(snapshot.stamp) {
            if at == stamp {
                break;
            }
            for name in &change.gone {
                tenants.remove(name);
            }
            let bound = change.bound.iter().map(|bound| (bound.tenant.clone(), bound.clone()));
            tenants.extend(bound);
            (at, interval) = (change.stamp, change.interval);
        }
        if at != stamp {
            return Err(missing(stamped(JOURNAL, stamp)));
        }
        let (version, bound) = (BINDING_VERSION, tenants.into_values().collect());
        Ok(BindingRecord { version, stamp, interval, bound })
    }
}

impl StoredBindings {
    /// Reads which tenants the unfinished plans move.
    async fn load_moving(&mut self, store: &dyn Store) -> Result<(), LeaderError> {
        let listed = store.list(MOVING).await.map_err(LeaderError::Store)?;
        for entry in listed.entries {
            let record: MovingRecord = from_bytes(&entry.key, &entry.value)?;
            self.moving.all |= record.all;
            self.moving.tenants.extend(record.tenants);
            self.moving_keys.insert(entry.key);
        }
        self.stored_moving = Some(self.moving.clone());
        Ok(())
    }

    /// Reads which bindings are stored, and returns the stored binding. The binding is `None` if
    /// the store has no binding.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read, or if a record is malformed or of a later
    /// version.
    pub async fn load(store: &dyn Store) -> Result<(Self, Option<BindingRecord>), LeaderError> {
        let stored = StoredParts::read(store).await?;
        let mut kept = Self::default();
        let mut chains: BTreeMap<Stamp, Chain> = BTreeMap::new();
        let history = store.list(HISTORY).await.map_err(LeaderError::Store)?;
        for entry in history.entries {
            let head: BindingHead = binding_from_bytes(&entry.key, &entry.value)?;
            match stored.chain(&head)? {
                Some(chain) => {
                    chains.insert(head.snapshot(), chain);
                    kept.history.push(head);
                }
                None => tracing::warn!(key = %entry.key, "a binding of the history is incomplete"),
            }
            kept.present.insert(entry.key);
        }
        kept.history.sort_by_key(|head| head.stamp);
        kept.present.extend(stored.parts.keys().chain(&stored.change_keys).cloned());
        kept.load_moving(store).await?;
        let entry = store.get(BINDING).await.map_err(LeaderError::Store)?;
        let Some(entry) = entry else {
            kept.chains = chains.into_values().collect();
            return Ok((kept, None));
        };
        let head: BindingHead = binding_from_bytes(BINDING, &entry.value)?;
        let lost = || missing(snapshot_key(head.snapshot()));
        let last = stored.chain(&head)?.ok_or_else(lost)?;
        let record = stored.record(&last.snapshot, last.head().stamp)?;
        chains.remove(&head.snapshot());
        kept.chains = chains.into_values().chain([last]).collect();
        Ok((kept, Some(record)))
    }
}
