//! The leader's record of the stored bindings. The record shows which parts are no longer needed.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use serde::{Deserialize, Serialize};

use crate::Stamp;
use crate::fnv::fnv1a;
use crate::intent::{BOUND, BindingRecord, BoundRecord, VERSION};

/// Number of parts of a binding. With 10,000 tenants that have queues on 20 ports each, a part is
/// 80 kB.
pub const SHARDS: usize = 256;

/// A list of the parts of a binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingHead {
    /// Version of the record: [`VERSION`].
    pub version: u32,
    /// Stamp of the decision.
    pub stamp: Stamp,
    /// Number of passes so far.
    pub interval: u64,
    /// Stamp with which each shard was written. `None` for a shard without queues.
    pub shards: Vec<Option<Stamp>>,
}

/// The leader's record of the stored bindings.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) head: Option<BindingHead>,
    /// Contents of the head's shards. `None` if the contents are uncertain. The next write then
    /// includes all shards.
    pub(super) tenants: Option<BTreeMap<String, Bound>>,
    /// Earlier heads, oldest first.
    pub(super) history: Vec<BindingHead>,
    /// Keys of the stored shards.
    pub(super) present: BTreeSet<String>,
}

pub(super) fn shard_of(tenant: &str) -> usize {
    usize::try_from(fnv1a(tenant.as_bytes()) % SHARDS as u64).unwrap_or(0)
}

/// Returns the key of `stamp` below the prefix `below`. Such keys sort in the order of their
/// stamps.
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
    /// Returns the shards that have other contents in the store than in the binding.
    pub(super) fn dirty(&self, now: &BTreeMap<String, Bound>) -> BTreeSet<usize> {
        let Some(kept) = &self.tenants else { return (0..SHARDS).collect() };
        let gone = kept.keys().filter(|name| !now.contains_key(*name));
        let changed = now.iter().filter(|(name, bound)| kept.get(*name) != Some(bound));
        gone.chain(changed.map(|(name, _)| name)).map(|name| shard_of(name)).collect()
    }

    /// Returns the stored keys that no head names.
    pub(super) fn garbage(&self) -> Vec<String> {
        let named: BTreeSet<String> =
            self.history.iter().chain(&self.head).flat_map(BindingHead::keys).collect();
        self.present.difference(&named).cloned().collect()
    }
}
