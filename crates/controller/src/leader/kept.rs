//! What the store has of bindings, and which of it nobody needs any more.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use serde::{Deserialize, Serialize};

use crate::Stamp;
use crate::fnv::fnv1a;
use crate::intent::{BOUND, BindingRecord, BoundRecord, VERSION};

/// Parts of a binding: of 10,000 tenants with queues on 20 ports each a part is 80 kB.
pub const SHARDS: usize = 256;

/// Which parts make up a binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingHead {
    /// Of this record's form: [`VERSION`].
    pub version: u32,
    /// The decision.
    pub stamp: Stamp,
    /// How many passes there were.
    pub interval: u64,
    /// By shard, with which decision it was written; `None`: nobody in it has queues.
    pub shards: Vec<Option<Stamp>>,
}

/// What the store has of bindings, as far as this leader knows.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) head: Option<BindingHead>,
    /// What the head's shards say; `None`: not known for certain, all of them are written next.
    pub(super) tenants: Option<BTreeMap<String, Bound>>,
    /// Earlier heads, the oldest first.
    pub(super) history: Vec<BindingHead>,
    /// Keys of shards that are in the store.
    pub(super) present: BTreeSet<String>,
}

pub(super) fn shard_of(tenant: &str) -> usize {
    usize::try_from(fnv1a(tenant.as_bytes()) % SHARDS as u64).unwrap_or(0)
}

/// Sorts as stamps do.
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
    /// The shards that are not as they should be.
    pub(super) fn dirty(&self, now: &BTreeMap<String, Bound>) -> BTreeSet<usize> {
        let Some(kept) = &self.tenants else { return (0..SHARDS).collect() };
        let gone = kept.keys().filter(|name| !now.contains_key(*name));
        let changed = now.iter().filter(|(name, bound)| kept.get(*name) != Some(bound));
        gone.chain(changed.map(|(name, _)| name)).map(|name| shard_of(name)).collect()
    }

    /// Keys that no head names.
    pub(super) fn garbage(&self) -> Vec<String> {
        let named: BTreeSet<String> =
            self.history.iter().chain(&self.head).flat_map(BindingHead::keys).collect();
        self.present.difference(&named).cloned().collect()
    }
}
