//! The binding in the store, which consists of the present and earlier queues of tenants.
//!
//! # Problem
//!
//! The binding of ten thousand tenants takes megabytes. This size exceeds the limits of a value and
//! of a transaction, and most of the binding does not change between intervals. A crash between two
//! transactions must not leave parts of both bindings.
//!
//! # Approach
//!
//! Tenants are distributed over [`SHARDS`] by name. The leader writes a changed shard under a new
//! key that contains the decision's stamp. Then it writes a single key, the head. The head names
//! the stamp of each shard, so this write replaces the whole binding atomically. Earlier heads are
//! kept so that an operator can revert. Shards that no head names are deleted.
//!
//! # Cost
//!
//! Each pass compares all queues. If `n` tenants changed, the pass writes at most `n` shards. A
//! pass without changes writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use penstock_fabric::tenant_placement::TenantSlot;

use super::kept::{BindingHead, Kept, SHARDS, shard_key, shard_of, stamped};
use super::{HISTORY_MAX, Leader, LeaderError};
use crate::intent::{
    self, BINDING, BOUND, BindingRecord, BoundRecord, HISTORY, IntentError, Names, VERSION,
};
use crate::store::{Store, Write};

/// Reads the binding of a head.
async fn record_of(store: &dyn Store, head: &BindingHead) -> Result<BindingRecord, LeaderError> {
    let mut all = Vec::new();
    for key in head.keys() {
        let entry = store.get(&key).await.map_err(LeaderError::Store)?;
        let lost = || {
            let problem = "a part of the binding is missing".to_owned();
            IntentError::Malformed { key: key.clone(), problem }
        };
        let part: Vec<BoundRecord> = intent::from_bytes(&key, &entry.ok_or_else(lost)?.value)?;
        all.extend(part);
    }
    Ok(head.record(all))
}

impl Leader {
    /// Reads the stored state of bindings. Returns the binding in force, if there is one.
    pub(super) async fn load_binding(&mut self) -> Result<Option<BindingRecord>, LeaderError> {
        let mut kept = Kept::default();
        let history = self.store.list(HISTORY).await.map_err(LeaderError::Store)?;
        for entry in history.entries {
            kept.history.push(intent::from_bytes(&entry.key, &entry.value)?);
        }
        kept.history.sort_by_key(|head| head.stamp);
        let parts = self.store.list(BOUND).await.map_err(LeaderError::Store)?;
        kept.present = parts.entries.into_iter().map(|entry| entry.key).collect();
        self.kept = kept;
        self.stored_binding().await
    }

    /// Reads the binding in force.
    pub(super) async fn stored_binding(&mut self) -> Result<Option<BindingRecord>, LeaderError> {
        let entry = self.store.get(BINDING).await.map_err(LeaderError::Store)?;
        let Some(entry) = entry else { return Ok(None) };
        let head: BindingHead = intent::from_bytes(BINDING, &entry.value)?;
        let record = record_of(&*self.store, &head).await?;
        self.kept.head = Some(head);
        // The binding must be resumed first, because this topology may have only a part of it.
        self.kept.tenants = None;
        Ok(Some(record))
    }

    /// Stores the binding. If `done` is true, the binding is complete and is added to the history.
    /// The binding's stamp must be later than the stamp of any stored binding, unless the same
    /// binding is stored already.
    pub(super) async fn put_binding(&mut self, done: bool) -> Result<(), LeaderError> {
        let (stamp, binding) = (self.stamp, self.fabric.binding());
        let named = |(slot, bound): (TenantSlot, &Bound)| {
            // A removed tenant has no name and loses its queues in the next pass.
            let name = self.fabric.name(slot);
            (!name.is_empty()).then(|| (name.to_owned(), bound.clone()))
        };
        let now: BTreeMap<String, Bound> = binding.bound().filter_map(named).collect();
        let dirty = self.kept.dirty(&now);
        let before = self.kept.head.as_ref().filter(|head| head.shards.len() == SHARDS);
        let same = before.filter(|_| dirty.is_empty()).cloned();
        let shards = before.map_or_else(|| vec![None; SHARDS], |head| head.shards.clone());
        let (mut writes, mut written) = (Vec::new(), Vec::new());
        let put = |key: String, head: &BindingHead| Write::Put {
            key,
            value: intent::to_bytes(head),
            lease: None,
        };
        let head = same.unwrap_or_else(|| {
            let interval = binding.interval();
            let mut head = BindingHead { version: VERSION, stamp, interval, shards };
            writes = self.shards(&now, &dirty, &mut head);
            written = writes.iter().map(|write| write.key().to_owned()).collect();
            writes.push(put(BINDING.to_owned(), &head));
            head
        });
        let mut history = self.kept.history.clone();
        if done && history.last().is_none_or(|last| last.shards != head.shards) {
            writes.push(put(stamped(HISTORY, head.stamp), &head));
            history.push(head.clone());
            while history.len() > HISTORY_MAX {
                writes.push(Write::Delete(stamped(HISTORY, history.remove(0).stamp)));
            }
        }
        self.kept.present.extend(written);
        // Until the commit returns, it is uncertain what the store contains.
        self.kept.tenants = None;
        self.commit(writes).await?;
        (self.kept.head, self.kept.tenants) = (Some(head), Some(now));
        self.kept.history = history;
        self.sweep().await
    }

    /// Returns the changed shards as writes, and updates `head` so that it names them.
    fn shards(
        &self,
        now: &BTreeMap<String, Bound>,
        dirty: &BTreeSet<usize>,
        head: &mut BindingHead,
    ) -> Vec<Write> {
        let names = Names(self.fabric.topology());
        let mut parts: BTreeMap<usize, Vec<BoundRecord>> = BTreeMap::new();
        for (name, bound) in now {
            let shard = shard_of(name);
            if dirty.contains(&shard) {
                parts.entry(shard).or_default().push(BoundRecord::of(name, bound, names));
            }
        }
        dirty.iter().for_each(|shard| head.shards[*shard] = None);
        let write = |(shard, part): (usize, Vec<BoundRecord>)| {
            head.shards[shard] = Some(head.stamp);
            let (key, value) = (shard_key(head.stamp, shard), intent::to_bytes(&part));
            Write::Put { key, value, lease: None }
        };
        parts.into_iter().map(write).collect()
    }

    /// Deletes shards that no head names. If a deletion fails, the next call repeats it.
    async fn sweep(&mut self) -> Result<(), LeaderError> {
        let garbage = self.kept.garbage();
        if garbage.is_empty() {
            return Ok(());
        }
        let deletes = garbage.iter().cloned().map(Write::Delete).collect();
        match self.commit(deletes).await {
            Ok(()) => self.kept.present.retain(|key| garbage.binary_search(key).is_err()),
            Err(LeaderError::Deposed) => return Err(LeaderError::Deposed),
            Err(error) => tracing::warn!(%error, "parts of old bindings are still stored"),
        }
        Ok(())
    }

    /// Returns the last binding in the history that differs from the binding in force.
    pub(super) async fn binding_before(&self) -> Result<Vec<(TenantSlot, Bound)>, LeaderError> {
        let queues = |record: &BindingRecord| {
            let of = |b: &BoundRecord| (b.tenant.clone(), (b.dscp, b.queues.clone()));
            record.bound.iter().map(of).collect::<BTreeMap<_, _>>()
        };
        let now = queues(&self.fabric.binding_record(self.stamp));
        let same = |head: &&BindingHead| {
            self.kept.tenants.is_some()
                && self.kept.head.as_ref().is_some_and(|now| now.shards == head.shards)
        };
        for head in self.kept.history.iter().rev().filter(|head| !same(head)) {
            let record = record_of(&*self.store, head).await?;
            if queues(&record) == now {
                continue;
            }
            let names = Names(self.fabric.topology());
            let one = |bound: &BoundRecord| {
                Some((self.fabric.slot(&bound.tenant)?, bound.bound(names).ok()?))
            };
            return Ok(record.bound.iter().filter_map(one).collect());
        }
        Err(LeaderError::NoHistory)
    }
}
