//! What a leader writes into the store, and what it reports of an interval.

use super::{
    BINDING, BTreeMap, BindingRecord, Bound, Duration, HISTORY, HISTORY_MAX, Leader, LeaderError,
    OPERATIONS_MAX, Stamp, StoreError, TenantSlot, Transaction, Write, intent,
};
use crate::intent::BoundRecord;
use crate::intent::Names;

/// What an interval came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalReport {
    /// Its number.
    pub interval: u64,
    /// Hosts whose usage was known.
    pub hosts_heard: usize,
    /// Tenants that got queues.
    pub promoted: usize,
    /// Tenants that lost them.
    pub demoted: usize,
    /// Tenants for which there was no code point.
    pub without_code_point: usize,
    /// Steps of the plan.
    pub steps: usize,
    /// Whether the plan was taken back.
    pub taken_back: bool,
    /// Elements that did not follow.
    pub failed: usize,
    /// Switches that did not do what they were told.
    pub drifted: usize,
    /// How long scoring and binding took.
    pub decided_in: Duration,
    /// How long all of it took.
    pub took: Duration,
}

/// Sorts as the stamp does.
fn history_key(stamp: Stamp) -> String {
    format!("{HISTORY}{:020}.{:020}", stamp.epoch, stamp.generation)
}

impl Leader {
    /// Commits, if this controller leads still.
    pub(super) async fn commit(&self, writes: Vec<Write>) -> Result<(), LeaderError> {
        // Large changes go in parts; each is whole by itself.
        for part in writes.chunks(OPERATIONS_MAX - 1) {
            let compare = vec![self.leadership.fence()];
            let transaction = Transaction { compare, writes: part.to_vec() };
            self.store.commit(transaction).await.map_err(|error| match error {
                StoreError::Conflict(_) => LeaderError::Deposed,
                other => LeaderError::Store(other),
            })?;
        }
        Ok(())
    }

    /// Stores the binding; one that was carried out whole is kept to go back to.
    pub(super) async fn put_binding(&mut self, done: bool) -> Result<(), LeaderError> {
        let record = self.fabric.binding_record(self.stamp);
        let value = intent::to_bytes(&record);
        let put = |key: String| Write::Put { key, value: value.clone(), lease: None };
        let mut writes = vec![put(BINDING.to_owned())];
        if done {
            writes.push(put(history_key(self.stamp)));
            self.history.push(self.stamp);
            while self.history.len() > HISTORY_MAX {
                writes.push(Write::Delete(history_key(self.history.remove(0))));
            }
        }
        self.commit(writes).await
    }

    /// The binding before the one in force that differs from it, if one is kept.
    pub(super) async fn binding_before(&self) -> Result<Vec<(TenantSlot, Bound)>, LeaderError> {
        let queues = |record: &BindingRecord| {
            let of = |b: &BoundRecord| (b.tenant.clone(), (b.dscp, b.queues.clone()));
            record.bound.iter().map(of).collect::<BTreeMap<_, _>>()
        };
        let now = queues(&self.fabric.binding_record(self.stamp));
        for stamp in self.history.iter().rev() {
            let key = history_key(*stamp);
            let entry = self.store.get(&key).await.map_err(LeaderError::Store)?;
            let Some(entry) = entry else { continue };
            let record: BindingRecord = intent::from_bytes(&key, &entry.value)?;
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
