//! Writes to the store while this controller leads.

use super::{Instant, Leader, LeaderError, OPERATIONS_MAX, StoreError, Transaction, Write};
use crate::store::limits::TRANSACTION_BYTES_MAX;

/// Bytes of each transaction that are reserved for the check that this controller still leads.
const FENCE_BYTES: usize = 4_096;

/// Splits writes, in order, into parts that a store accepts. For an empty list of writes, returns
/// one part without writes.
fn parts(writes: Vec<Write>) -> Vec<Vec<Write>> {
    if writes.is_empty() {
        return vec![writes];
    }
    let mut parts: Vec<Vec<Write>> = Vec::new();
    let mut size = 0;
    for write in writes {
        size += write.size();
        let fits = size <= TRANSACTION_BYTES_MAX - FENCE_BYTES;
        match parts.last_mut().filter(|part| fits && part.len() < OPERATIONS_MAX) {
            Some(part) => part.push(write),
            None => {
                size = write.size();
                parts.push(vec![write]);
            }
        }
    }
    parts
}

impl Leader {
    /// Commits writes if this controller still leads. The store checks the leadership even if the
    /// list of writes is empty. If the writes exceed a limit of stores, the leader commits the
    /// writes in several transactions, in order.
    pub(super) async fn commit(&mut self, writes: Vec<Write>) -> Result<(), LeaderError> {
        for writes in parts(writes) {
            let transaction = Transaction { compare: vec![self.leadership.fence()], writes };
            let done = self.store.commit(transaction).await.map_err(|error| match error {
                StoreError::Conflict(_) => LeaderError::Deposed,
                other => LeaderError::Store(other),
            })?;
            self.horizon.saw(done);
        }
        Ok(())
    }

    /// Compacts the store's history if a compaction is due.
    pub(super) async fn forget(&mut self) {
        let Some(revision) = self.horizon.due(Instant::now(), self.settings.history) else {
            return;
        };
        if let Err(error) = self.store.compact(revision).await {
            tracing::warn!(%error, "the store's history cannot be compacted; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::limits::{VALUE_BYTES_MAX, check};

    #[test]
    fn every_part_fits_into_a_transaction_and_none_is_lost() {
        let put = |n: usize, size: usize| {
            let (key, value) = (format!("key-{n}"), vec![0; size]);
            Write::Put { key, value, lease: None }
        };
        let small = (0..300).map(|n| put(n, 10));
        let large = (300..310).map(|n| put(n, VALUE_BYTES_MAX));
        let middle = (310..400).map(|n| put(n, 100_000));
        let all: Vec<Write> = small.chain(large).chain(middle).collect();
        let parts = parts(all.clone());
        assert!(parts.len() < 30, "{} transactions", parts.len());
        for writes in &parts {
            let compare = vec![crate::store::Compare::Absent("k".repeat(1_024))];
            assert_eq!(check(&Transaction { compare, writes: writes.clone() }), Ok(()));
        }
        assert_eq!(parts.concat(), all);
    }
}
