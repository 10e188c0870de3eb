//! Records which bindings are stored, so that the leader knows which stored parts it may delete.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use serde::{Deserialize, Serialize};

use crate::Stamp;
use crate::fnv::fnv1a;
use crate::intent::{self, BINDING_VERSION, BOUND, HISTORY, JOURNAL, MovingRecord, VERSION};
use crate::store::limits::VALUE_BYTES_MAX;

/// Number of parts (shards) of a stored snapshot. For 18,000 tenants with queues on 20 ports each,
/// each shard takes about 20 kB.
pub const SHARDS: usize = 256;
/// Maximum number of changes that the store keeps after a snapshot. A successor reads the changes
/// when it takes over.
pub const JOURNAL_MAX: usize = 512;
/// Maximum number of bytes of all changes after a snapshot.
pub const JOURNAL_BYTES_MAX: usize = 8 << 20;

/// Head of a stored binding, which names the snapshot of the binding. A binding consists of a
/// snapshot and the changes after the snapshot, up to the change with the head's stamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingHead {
    /// Version of the record, at most [`BINDING_VERSION`].
    pub version: u32,
    /// Stamp of the decision that made the binding.
    pub stamp: Stamp,
    /// Number of binding passes up to this binding. A pass computes a binding from the tenants'
    /// scores.
    pub interval: u64,
    /// Stamp of the snapshot that contains the binding. `None` in the head of a snapshot itself,
    /// and in the heads of release 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Stamp>,
    /// Stamp of the decision that last wrote each shard (part of the snapshot), or `None` for a
    /// shard without tenants. Empty if the head names a snapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<Option<Stamp>>,
}

/// A stored snapshot and the changes after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// Head that lists the shards of the snapshot.
    pub(super) snapshot: BindingHead,
    /// Stamp and number of binding passes of each change, oldest first.
    pub(super) changes: Vec<(Stamp, u64)>,
}

/// Snapshots, changes and queues that a leader has stored.
#[derive(Debug, Default)]
pub struct StoredBindings {
    /// Queues of each tenant in the stored binding. If `None`, the leader does not know the
    /// contents of the store, and must write a whole snapshot next.
    pub(super) tenants: Option<BTreeMap<String, Bound>>,
    /// Snapshots with their changes, oldest first. The last chain ends with the stored binding.
    pub(super) chains: Vec<Chain>,
    /// Heads of executed bindings, oldest first.
    pub(super) history: Vec<BindingHead>,
    /// Keys of all shards, changes and heads of executed bindings in the store.
    pub(super) present: BTreeSet<String>,
    /// Shards that the changes after the last snapshot concern.
    pub(super) touched: BTreeSet<usize>,
    /// Number of bytes of the changes after the last snapshot.
    pub(super) journal_bytes: usize,
    /// Tenants that unfinished plans move.
    pub(super) moving: Moving,
    /// Tenants in the store's records of unfinished plans. `None` if the contents of the store are
    /// uncertain.
    pub(super) stored_moving: Option<Moving>,
    /// Keys of the records of unfinished plans that the store may have.
    pub(super) moving_keys: BTreeSet<String>,
    /// True if the store may have another binding than the leader's last one, because the outcome
    /// of a write is unknown.
    pub(super) in_doubt: bool,
    /// Head of an executed binding that the history lacks, because a write failed.
    pub(super) unlisted: Option<BindingHead>,
}

/// Tenants that unfinished plans move, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moving {
    /// True if all tenants may be moving.
    pub(super) all: bool,
    pub(super) tenants: BTreeSet<String>,
}

impl Moving {
    /// Returns the value of a record of these tenants.
    pub(super) fn value(&self) -> Vec<u8> {
        let (version, all) = (VERSION, self.all);
        let tenants = self.tenants.iter().cloned().collect();
        let value = intent::to_bytes(&MovingRecord { version, all, tenants });
        if value.len() <= VALUE_BYTES_MAX {
            return value;
        }
        let tenants = Vec::new();
        intent::to_bytes(&MovingRecord { version, all: true, tenants })
    }
}

/// Difference between the stored binding and a decision.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Tenants that got queues or other queues.
    pub(super) bound: Vec<String>,
    /// Tenants that lost their queues.
    pub(super) gone: Vec<String>,
}

impl Difference {
    pub(super) fn is_empty(&self) -> bool {
        self.bound.is_empty() && self.gone.is_empty()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = usize> + '_ {
        self.bound.iter().chain(&self.gone).map(|name| shard_of(name))
    }
}

pub(super) fn shard_of(tenant: &str) -> usize {
    usize::try_from(fnv1a(tenant.as_bytes()) % SHARDS as u64).unwrap_or(0)
}

/// Returns the key that consists of the prefix `below` and `stamp`. Keys with the same prefix sort
/// in the order of their stamps.
pub(super) fn stamped(below: &str, stamp: Stamp) -> String {
    format!("{below}{:020}.{:020}", stamp.epoch, stamp.generation)
}

pub(super) fn shard_key(stamp: Stamp, shard: usize) -> String {
    format!("{}/{shard:03}", stamped(BOUND, stamp))
}

/// Returns the key of the head that lists the shards of the snapshot `stamp`.
pub(super) fn snapshot_key(stamp: Stamp) -> String {
    format!("{}/base", stamped(BOUND, stamp))
}

impl BindingHead {
    /// Returns the keys of the shards that this head lists.
    pub(super) fn keys(&self) -> impl Iterator<Item = String> + '_ {
        let key = |(shard, stamp): (usize, &Option<Stamp>)| Some(shard_key((*stamp)?, shard));
        self.shards.iter().enumerate().filter_map(key)
    }

    /// Returns the stamp of the snapshot that contains this binding.
    pub(super) fn snapshot(&self) -> Stamp {
        self.base.unwrap_or(self.stamp)
    }
}

impl Chain {
    /// Returns the head of the binding at the end of the chain.
    pub(super) fn head(&self) -> BindingHead {
        let BindingHead { stamp: base, interval, .. } = self.snapshot;
        let (stamp, interval) = self.changes.last().copied().unwrap_or((base, interval));
        let (version, base, shards) = (BINDING_VERSION, Some(base), Vec::new());
        BindingHead { version, stamp, interval, base, shards }
    }

    fn keys(&self) -> impl Iterator<Item = String> + '_ {
        let changes = self.changes.iter().map(|(stamp, _)| stamped(JOURNAL, *stamp));
        let snapshot = std::iter::once(snapshot_key(self.snapshot.stamp));
        snapshot.chain(self.snapshot.keys()).chain(changes)
    }
}

impl StoredBindings {
    /// Returns the number of changes that the store has after the last snapshot.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.chains.last().map_or(0, |chain| chain.changes.len())
    }

    /// Returns the head of the stored binding. `None` if the store has no binding.
    pub(super) fn head(&self) -> Option<BindingHead> {
        self.chains.last().map(Chain::head)
    }

    /// Returns the difference between the stored binding and `now`. `None` if the stored binding is
    /// unknown.
    pub(super) fn difference(&self, now: &BTreeMap<String, Bound>) -> Option<Difference> {
        let stored = self.tenants.as_ref()?;
        let gone = stored.keys().filter(|name| !now.contains_key(*name)).cloned().collect();
        let changed = now.iter().filter(|(name, bound)| stored.get(*name) != Some(bound));
        let bound = changed.map(|(name, _)| name.clone()).collect();
        Some(Difference { bound, gone })
    }

    /// Forgets snapshots that neither the stored binding nor a binding of the history needs.
    pub(super) fn prune(&mut self) {
        let needed: BTreeSet<Stamp> = self.history.iter().map(BindingHead::snapshot).collect();
        let last = self.chains.len().saturating_sub(1);
        let mut at = 0;
        self.chains.retain(|chain| {
            at += 1;
            at > last || needed.contains(&chain.snapshot.stamp)
        });
    }

    /// Returns the keys of stored shards, changes and heads that no stored binding needs.
    pub(super) fn garbage(&self) -> Vec<String> {
        let heads = self.history.iter().map(|head| stamped(HISTORY, head.stamp));
        let named: BTreeSet<String> =
            self.chains.iter().flat_map(Chain::keys).chain(heads).collect();
        self.present.difference(&named).cloned().collect()
    }
}
