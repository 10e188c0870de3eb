//! Records which bindings are stored, so that the leader knows which stored parts it may delete.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use serde::{Deserialize, Serialize};

use crate::Stamp;
use crate::fnv::fnv1a;
use crate::intent::{BOUND, BindingRecord, BoundRecord, VERSION};

/// Number of parts (shards) of a stored binding. For 10,000 tenants with queues on 20 ports each,
/// each shard of the binding takes 80 kB.
pub const SHARDS: usize = 256;

/// Head of a stored binding, which lists the parts (shards) of the binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingHead {
    /// Version of the record, which must be [`VERSION`].
    pub version: u32,
    /// Stamp of the decision that made the binding.
    pub stamp: Stamp,
    /// Number of binding passes up to this binding. A pass computes a binding from the tenants'
    /// scores.
    pub interval: u64,
    /// Stamp of the decision that last wrote each shard (part of the binding), or `None` for a
    /// shard without tenants.
    pub shards: Vec<Option<Stamp>>,
}

/// Heads, shards and queues that the leader has stored.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) head: Option<BindingHead>,
    /// Queues of each tenant, as stored in the shards of `head`. If `None`, the leader does not
    /// know the contents of the stored shards, and must write all shards next.
    pub(super) tenants: Option<BTreeMap<String, Bound>>,
    /// Heads (lists of the shards) of earlier bindings, oldest first.
    pub(super) history: Vec<BindingHead>,
    /// Keys of all shards (parts of bindings) in the store.
    pub(super) present: BTreeSet<String>,
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

impl BindingHead {
    pub(super) fn keys(&self) -> impl Iterator<Item = String> + '_ {
        let key = |(shard, stamp): (usize, &Option<Stamp>)| Some(shard_key((*stamp)?, shard));
        self.shards.iter().enumerate().filter_map(key)
    }

    pub(super) fn record(&self, bound: Vec<BoundRecord>) -> BindingRecord {
        let (stamp, interval) = (self.stamp, self.interval);
        BindingRecord { version: VERSION, stamp, interval, bound }
    }
}

impl Kept {
    /// Returns the shards that must be written, because they differ from the binding `now`.
    pub(super) fn dirty(&self, now: &BTreeMap<String, Bound>) -> BTreeSet<usize> {
        let Some(kept) = &self.tenants else { return (0..SHARDS).collect() };
        let gone = kept.keys().filter(|name| !now.contains_key(*name));
        let changed = now.iter().filter(|(name, bound)| kept.get(*name) != Some(bound));
        gone.chain(changed.map(|(name, _)| name)).map(|name| shard_of(name)).collect()
    }

    /// Returns the keys of stored shards that are in no [`BindingHead`].
    pub(super) fn garbage(&self) -> Vec<String> {
        let named: BTreeSet<String> =
            self.history.iter().chain(&self.head).flat_map(BindingHead::keys).collect();
        self.present.difference(&named).cloned().collect()
    }
}
