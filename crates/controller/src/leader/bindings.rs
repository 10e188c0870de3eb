//! Stores the current binding and earlier bindings. A binding says which queues each tenant has.
//!
//! # Problem
//!
//! The binding of ten thousand tenants takes megabytes. A binding of ten thousand tenants exceeds
//! the store's limits on the size of a value and of a transaction. In most intervals, the queues of
//! most tenants stay the same. A crash between two transactions must not leave a mix of two
//! bindings. A store such as etcd has a quota, and keeps earlier values for some time.
//!
//! # Approach
//!
//! - The store has a *snapshot* of a binding, and a *journal* of the changes after the snapshot. In
//!   an interval with changes, the leader writes one change under a new key, which contains the
//!   queues of the changed tenants only. The write of a change is atomic.
//! - Each change names the stamp of the binding before the change. A reader begins with the
//!   snapshot and follows this chain. A change that a broken connection delivers late is in no
//!   chain.
//! - A snapshot has [`SHARDS`] parts, the shards. A hash of the tenant's name selects the shard
//!   that stores the tenant's queues. The leader writes a shard under a new key that contains the
//!   decision's stamp.
//! - After the shards, the leader writes the list of the shards, and a single key that names the
//!   snapshot. This last write is atomic, so the store changes from one whole binding to the next.
//!   The store refuses this write if another write of the key has arrived since the leader read the
//!   key.
//! - The leader writes a new snapshot if the journal has [`JOURNAL_MAX`] changes or
//!   [`JOURNAL_BYTES_MAX`] bytes, if a change is too large for one value, and if the leader does
//!   not know the contents of the store. The last case occurs with the first change of each leader.
//! - Before a binding whose plan moves tenants, the leader writes the names of these tenants. The
//!   record stays until their hosts and switches have executed the plan, also if several leaders
//!   end one after the other. A write that fails is repeated in the next interval.
//! - For each executed binding, the store has a head, which names a snapshot and the last change.
//!   With the heads, an operator can revert to an earlier binding.
//! - The leader deletes stored shards and changes that no stored head needs.
//!
//! # Cost
//!
//! In each interval, the leader compares all tenants' queues with the stored queues. If the queues
//! of `n` tenants changed, the leader writes about 200 bytes for each of the `n` tenants. If no
//! tenant's queues changed, the leader writes nothing. A snapshot of 18,000 tenants takes about 5
//! MB and replaces the journal after some hundred intervals. The store has at most two snapshots
//! with their journals if every interval changes a binding, and more if bindings of the history are
//! old.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use penstock_fabric::tenant_placement::TenantSlot;
use penstock_fabric::topology::Topology;

use super::journal::StoredParts;
use super::kept::{
    BindingHead, Chain, Difference, JOURNAL_BYTES_MAX, JOURNAL_MAX, Moving, SHARDS, StoredBindings,
    shard_key, shard_of, snapshot_key, stamped,
};
use super::record::Writer;
use super::{HISTORY_MAX, Leader, LeaderError, StoreError, Write};
use crate::Stamp;
use crate::intent::{
    self, BINDING, BINDING_VERSION, BindingRecord, BoundRecord, ChangeRecord, HISTORY, JOURNAL,
    MOVING, Names,
};
use crate::store::Compare;
use crate::store::limits::VALUE_BYTES_MAX;

/// Binding that a leader stores.
#[derive(Debug)]
pub struct BindingToStore<'a> {
    /// Stamp of the decision. A binding that differs from the stored binding needs a later stamp
    /// than any stored binding.
    pub stamp: Stamp,
    /// Number of binding passes up to this binding.
    pub interval: u64,
    /// Queues of each tenant that has queues, by name.
    pub tenants: BTreeMap<String, Bound>,
    pub topology: &'a Topology,
}

fn put<T: serde::Serialize>(key: String, record: &T) -> Write {
    Write::Put { key, value: intent::to_bytes(record), lease: None }
}

/// Returns true if the store certainly did not execute the transaction that failed with `error`.
fn is_unwritten(error: &LeaderError) -> bool {
    let LeaderError::Store(error) = error else { return matches!(error, LeaderError::Deposed) };
    matches!(error, StoreError::Full { .. } | StoreError::TooLarge { .. } | StoreError::Invalid(_))
}

impl StoredBindings {
    /// Stores a binding, which the leader has not executed yet.
    ///
    /// # Errors
    /// Returns [`LeaderError::Deposed`] if another controller leads, or the error of the store.
    /// After an error, the store has either the earlier binding or this binding.
    pub async fn put(
        &mut self,
        writer: &mut Writer<'_>,
        binding: BindingToStore<'_>,
    ) -> Result<(), LeaderError> {
        let stamp = binding.stamp;
        match self.difference(&binding.tenants) {
            Some(difference) if difference.is_empty() => {}
            Some(difference) => self.put_change(writer, binding, &difference).await?,
            None => self.put_snapshot(writer, binding, (0..SHARDS).collect()).await?,
        }
        self.finish(writer, stamp).await?;
        self.sweep(writer).await
    }

    /// Adds the stored binding to the history, because the leader has executed the binding.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::put`].
    pub async fn put_done(
        &mut self,
        writer: &mut Writer<'_>,
        stamp: Stamp,
    ) -> Result<(), LeaderError> {
        self.unlisted = self.head();
        self.finish(writer, stamp).await?;
        self.sweep(writer).await
    }

    /// Sets the names of the tenants that unfinished plans move. The next [`Self::put`] stores
    /// them.
    pub fn set_moving(&mut self, tenants: BTreeSet<String>) {
        self.moving = Moving { all: false, tenants };
    }

    /// Stores which tenants unfinished plans move ([`Self::set_moving`]), and lists an executed
    /// binding in the history if the history lacks it. Writes nothing if the store is up to date.
    ///
    /// # Errors
    /// Returns [`LeaderError::Deposed`] if another controller leads, or the error of the store. The
    /// next call tries again.
    pub(super) async fn finish(
        &mut self,
        writer: &mut Writer<'_>,
        stamp: Stamp,
    ) -> Result<(), LeaderError> {
        self.put_head(writer, stamp).await?;
        self.commit_moving(writer, stamp, Vec::new(), None).await
    }

    /// Commits writes together with the record of the tenants that unfinished plans move, if the
    /// store does not have this record. The record is in the first transaction, so that the store
    /// never has a binding without the record. Commits nothing if there are no writes.
    async fn commit_moving(
        &mut self,
        writer: &mut Writer<'_>,
        stamp: Stamp,
        writes: Vec<Write>,
        last: Option<Compare>,
    ) -> Result<(), LeaderError> {
        let mut all = Vec::new();
        if self.stored_moving.as_ref() != Some(&self.moving) {
            let key = stamped(MOVING, stamp);
            let old = std::mem::take(&mut self.moving_keys);
            if self.moving != Moving::default() {
                let value = self.moving.value();
                all.push(Write::Put { key: key.clone(), value, lease: None });
                self.moving_keys.insert(key.clone());
            }
            all.extend(old.difference(&self.moving_keys).cloned().map(Write::Delete));
            // Until the commit returns, the store may have the old records too.
            self.moving_keys.extend(old);
            self.stored_moving = None;
        }
        all.extend(writes);
        if all.is_empty() {
            self.stored_moving = Some(self.moving.clone());
            return Ok(());
        }
        writer.commit_if(all, last).await?;
        if self.stored_moving.is_none() {
            self.stored_moving = Some(self.moving.clone());
            let (key, empty) = (stamped(MOVING, stamp), self.moving == Moving::default());
            self.moving_keys.retain(|kept| !empty && *kept == key);
        }
        Ok(())
    }

    /// Adds a change to the journal, or replaces the journal by a snapshot.
    async fn put_change(
        &mut self,
        writer: &mut Writer<'_>,
        binding: BindingToStore<'_>,
        difference: &Difference,
    ) -> Result<(), LeaderError> {
        let touched = self.touched.iter().copied().chain(difference.shards()).collect();
        let Some(head) = self.head() else {
            return self.put_snapshot(writer, binding, (0..SHARDS).collect()).await;
        };
        let BindingToStore { stamp, interval, topology, .. } = binding;
        let bound = |name: &String| BoundRecord::of(name, &binding.tenants[name], Names(topology));
        let change = ChangeRecord {
            version: BINDING_VERSION,
            stamp,
            after: head.stamp,
            interval,
            bound: difference.bound.iter().map(bound).collect(),
            gone: difference.gone.clone(),
        };
        let value = intent::to_bytes(&change);
        let bytes = self.journal_bytes + value.len();
        if value.len() > VALUE_BYTES_MAX
            || bytes > JOURNAL_BYTES_MAX
            || self.changes() >= JOURNAL_MAX
        {
            return self.put_snapshot(writer, binding, touched).await;
        }
        let change = Write::Put { key: stamped(JOURNAL, stamp), value, lease: None };
        self.commit(writer, stamp, (vec![change], None), binding.tenants).await?;
        if let Some(chain) = self.chains.last_mut() {
            chain.changes.push((stamp, interval));
        }
        (self.journal_bytes, self.touched) = (bytes, touched);
        Ok(())
    }

    /// Writes a snapshot. The argument `dirty` contains the shards that differ from the previous
    /// snapshot.
    async fn put_snapshot(
        &mut self,
        writer: &mut Writer<'_>,
        binding: BindingToStore<'_>,
        dirty: BTreeSet<usize>,
    ) -> Result<(), LeaderError> {
        let BindingToStore { stamp, interval, topology, tenants } = binding;
        let known = |chain: &&Chain| chain.snapshot.shards.len() == SHARDS;
        let before = self.chains.last().filter(known);
        let mut shards =
            before.map_or_else(|| vec![None; SHARDS], |chain| chain.snapshot.shards.clone());
        dirty.iter().for_each(|shard| shards[*shard] = None);
        let mut parts: BTreeMap<usize, Vec<BoundRecord>> = BTreeMap::new();
        for (name, bound) in &tenants {
            let shard = shard_of(name);
            if dirty.contains(&shard) {
                let record = BoundRecord::of(name, bound, Names(topology));
                parts.entry(shard).or_default().push(record);
            }
        }
        let mut writes = Vec::new();
        for (shard, part) in parts {
            shards[shard] = Some(stamp);
            writes.push(put(shard_key(stamp, shard), &part));
        }
        let snapshot =
            BindingHead { version: BINDING_VERSION, stamp, interval, base: None, shards };
        writes.push(put(snapshot_key(stamp), &snapshot));
        let chain = Chain { snapshot, changes: Vec::new() };
        // This write is in the last transaction, after all parts of the snapshot.
        writes.push(put(BINDING.to_owned(), &chain.head()));
        let absent = || Compare::Absent(BINDING.to_owned());
        let same = writer
            .get(BINDING)
            .await?
            .map_or_else(absent, |entry| Compare::Modified(BINDING.to_owned(), entry.modified));
        self.commit(writer, stamp, (writes, Some(same)), tenants).await?;
        // The sweep deletes the changes of a binding that is not in the history.
        self.unlisted = None;
        self.chains.push(chain);
        self.touched.clear();
        self.journal_bytes = 0;
        self.prune();
        Ok(())
    }

    /// Commits the writes after which the store has the queues of `tenants`. The condition `last`
    /// must hold at the last transaction.
    async fn commit(
        &mut self,
        writer: &mut Writer<'_>,
        stamp: Stamp,
        (writes, last): (Vec<Write>, Option<Compare>),
        tenants: BTreeMap<String, Bound>,
    ) -> Result<(), LeaderError> {
        let keys = writes.iter().map(Write::key).filter(|key| *key != BINDING);
        let keys: Vec<String> = keys.map(str::to_owned).collect();
        self.present.extend(keys.iter().cloned());
        // Until the commit returns, the contents of the store are uncertain.
        let before = self.tenants.take();
        let done = self.commit_moving(writer, stamp, writes, last).await;
        self.tenants = match &done {
            Ok(()) => Some(tenants),
            Err(error) => before.filter(|_| is_unwritten(error)),
        };
        self.in_doubt = self.tenants.is_none();
        if matches!(done, Err(LeaderError::Store(StoreError::Full { .. }))) {
            // The last write was refused, so nothing refers to the writes before it. A full etcd
            // accepts deletions.
            let deletes = keys.iter().cloned().map(Write::Delete).collect();
            if writer.commit(deletes).await.is_ok() {
                for key in &keys {
                    self.present.remove(key);
                }
            }
        }
        done
    }

    /// Adds the head of an executed binding to the history, if the history lacks one.
    async fn put_head(&mut self, writer: &mut Writer<'_>, stamp: Stamp) -> Result<(), LeaderError> {
        let Some(head) = self.unlisted.clone() else { return Ok(()) };
        if self.history.last().is_some_and(|last| last.stamp >= head.stamp) {
            self.unlisted = None;
            return Ok(());
        }
        let key = stamped(HISTORY, head.stamp);
        let mut writes = vec![put(key.clone(), &head)];
        self.present.insert(key);
        let mut history = self.history.clone();
        history.push(head);
        let old = history.drain(..history.len().saturating_sub(HISTORY_MAX));
        let old: Vec<String> = old.map(|head| stamped(HISTORY, head.stamp)).collect();
        writes.extend(old.iter().cloned().map(Write::Delete));
        self.commit_moving(writer, stamp, writes, None).await?;
        self.present.retain(|key| !old.contains(key));
        (self.history, self.unlisted) = (history, None);
        self.prune();
        Ok(())
    }

    /// Deletes what no stored binding needs. If a deletion fails, the next call deletes the
    /// remaining keys.
    async fn sweep(&mut self, writer: &mut Writer<'_>) -> Result<(), LeaderError> {
        let garbage = self.garbage();
        if garbage.is_empty() {
            return Ok(());
        }
        let deletes = garbage.iter().cloned().map(Write::Delete).collect();
        match writer.commit(deletes).await {
            Ok(()) => self.present.retain(|key| garbage.binary_search(key).is_err()),
            Err(LeaderError::Deposed) => return Err(LeaderError::Deposed),
            Err(error) => tracing::warn!(%error, "the store still contains parts of old bindings"),
        }
        Ok(())
    }
}

impl Leader {
    /// Reads the stored binding and history. Returns `None` if the store has no binding.
    pub(super) async fn load_binding(&mut self) -> Result<Option<BindingRecord>, LeaderError> {
        // The contents of the store are uncertain until the fabric resumes the binding, because the
        // topology may lack a part of the binding.
        let (kept, record) = StoredBindings::load(&*self.store).await?;
        self.kept = kept;
        Ok(record)
    }

    /// Stores the current binding. A binding that differs from the stored binding needs a later
    /// stamp than any stored binding.
    pub(super) async fn put_binding(&mut self) -> Result<(), LeaderError> {
        let was_full = self.horizon.is_full();
        let Self { fabric, store, leadership, horizon, kept, stamp, .. } = self;
        let binding = fabric.binding();
        let named = |(slot, bound): (TenantSlot, &Bound)| {
            // A successor must not give away the queues of a removed tenant before its hosts have
            // confirmed the removal.
            let name = fabric.stored_name(slot);
            (!name.is_empty()).then(|| (name.to_owned(), bound.clone()))
        };
        let tenants = binding.bound().filter_map(named).collect();
        let (interval, topology) = (binding.interval(), fabric.topology());
        let binding = BindingToStore { stamp: *stamp, interval, tenants, topology };
        let mut writer = Writer::new(&**store, leadership, horizon);
        let stored = kept.put(&mut writer, binding).await;
        self.note_full(was_full, &stored).await;
        stored
    }

    /// Adds the stored binding to the history, because the leader has executed the binding.
    pub(super) async fn put_done(&mut self) -> Result<(), LeaderError> {
        let was_full = self.horizon.is_full();
        let Self { store, leadership, horizon, kept, stamp, .. } = self;
        let mut writer = Writer::new(&**store, leadership, horizon);
        let stored = kept.put_done(&mut writer, *stamp).await;
        self.note_full(was_full, &stored).await;
        stored
    }

    /// Returns the queues of the last binding in the history that differs from the current binding.
    pub(super) async fn binding_before(&self) -> Result<Vec<(TenantSlot, Bound)>, LeaderError> {
        let queues = |record: &BindingRecord| {
            let of = |b: &BoundRecord| {
                let mut queues = b.queues.clone();
                queues.sort_unstable();
                (b.tenant.clone(), (b.dscp, queues))
            };
            record.bound.iter().map(of).collect::<BTreeMap<_, _>>()
        };
        let now = queues(&self.fabric.binding_record(self.stamp));
        let current = self.kept.head().filter(|_| self.kept.tenants.is_some());
        let same =
            |head: &&BindingHead| current.as_ref().is_some_and(|last| last.stamp == head.stamp);
        let stored = StoredParts::read(&*self.store).await?;
        for head in self.kept.history.iter().rev().filter(|head| !same(head)) {
            let Some(chain) = stored.chain(head)? else { continue };
            let record = match stored.record(&chain.snapshot, head.stamp) {
                Ok(record) if queues(&record) == now => continue,
                Ok(record) => record,
                Err(error) => {
                    tracing::warn!(%error, "a binding of the history is incomplete");
                    continue;
                }
            };
            let names = Names(self.fabric.topology());
            let one = |bound: &BoundRecord| {
                Some((self.fabric.slot(&bound.tenant)?, bound.bound(names).ok()?))
            };
            return Ok(record.bound.iter().filter_map(one).collect());
        }
        Err(LeaderError::NoHistory)
    }
}
