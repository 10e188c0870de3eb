//! Stores the current binding and earlier bindings. A binding says which queues each tenant has.
//!
//! # Problem
//!
//! The binding of ten thousand tenants takes megabytes. A binding of ten thousand tenants exceeds
//! the store's limits on the size of a value and of a transaction. In most intervals, the queues of
//! most tenants stay the same. A crash between two transactions must not leave a mix of two
//! bindings.
//!
//! # Approach
//!
//! - The leader stores a binding in [`SHARDS`] parts, the shards. A hash of the tenant's name
//!   selects the shard that stores the tenant's queues.
//! - The leader writes a changed shard under a new key that contains the decision's stamp.
//! - After the shards, the leader writes a single key, the head, which lists the stamp of each
//!   shard. The write of the head is atomic, so the store changes from one whole binding to the
//!   next.
//! - The store keeps the heads of earlier bindings, so that an operator can revert to an earlier
//!   binding.
//! - The leader deletes stored shards that no stored head lists.
//!
//! # Cost
//!
//! In each interval, the leader compares all tenants' queues with the stored queues. If the queues
//! of `n` tenants changed, the leader writes at most `n` shards. If no tenant's queues changed, the
//! leader writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use penstock_fabric::tenant_placement::TenantSlot;

use super::kept::{BindingHead, Kept, SHARDS, shard_key, shard_of, stamped};
use super::{HISTORY_MAX, Leader, LeaderError};
use crate::intent::{
    self, BINDING, BOUND, BindingRecord, BoundRecord, HISTORY, IntentError, Names, VERSION,
};
use crate::store::{Store, Write};

/// Reads the parts of a binding that the head of the binding lists.
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
    /// Reads the stored history, the keys of the shards and the current binding. Returns `None` if
    /// the store has no binding.
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

    /// Reads the current binding from the store. Returns `None` if the store has no binding.
    pub(super) async fn stored_binding(&mut self) -> Result<Option<BindingRecord>, LeaderError> {
        let entry = self.store.get(BINDING).await.map_err(LeaderError::Store)?;
        let Some(entry) = entry else { return Ok(None) };
        let head: BindingHead = intent::from_bytes(BINDING, &entry.value)?;
        let record = record_of(&*self.store, &head).await?;
        self.kept.head = Some(head);
        // The contents are uncertain until the fabric resumes the binding, because the topology may
        // lack a part of the binding.
        self.kept.tenants = None;
        Ok(Some(record))
    }

    /// Stores the current binding. If `done` is true, which means that the leader has executed the
    /// binding, the function also adds the binding to the history. A binding that differs from the
    /// stored binding needs a later stamp than any stored binding.
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
        // Until the commit returns, the contents of the store are uncertain.
        self.kept.tenants = None;
        self.commit(writes).await?;
        (self.kept.head, self.kept.tenants) = (Some(head), Some(now));
        self.kept.history = history;
        self.sweep().await
    }

    /// Returns a write for each shard (part of the binding) that has changed, and puts the stamps
    /// of the changed shards into `head`.
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

    /// Deletes the stored shards that no head lists. Shards that remain after a failed deletion are
    /// deleted by the next call.
    async fn sweep(&mut self) -> Result<(), LeaderError> {
        let garbage = self.kept.garbage();
        if garbage.is_empty() {
            return Ok(());
        }
        let deletes = garbage.iter().cloned().map(Write::Delete).collect();
        match self.commit(deletes).await {
            Ok(()) => self.kept.present.retain(|key| garbage.binary_search(key).is_err()),
            Err(LeaderError::Deposed) => return Err(LeaderError::Deposed),
            Err(error) => tracing::warn!(%error, "the store still contains parts of old bindings"),
        }
        Ok(())
    }

    /// Returns the queues of the last binding in the history that differs from the current binding.
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
