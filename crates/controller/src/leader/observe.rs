//! Sets observe mode in a restored store.

use crate::intent::{self, MODE, Mode};
use crate::store::{Store, StoreError, Transaction, Write};

/// Sets observe mode in a store. The caller must set the mode before a controller leads with the
/// store. In observe mode, switches and hosts get no changes until an operator changes the mode.
///
/// # Errors
/// Returns an error if the store refused the write.
pub async fn begin_observing(store: &dyn Store) -> Result<(), StoreError> {
    let value = intent::to_bytes(&Mode::Observe);
    let writes = vec![Write::Put { key: MODE.to_owned(), value, lease: None }];
    store.commit(Transaction { writes, ..Transaction::default() }).await.map(|_| ())
}
