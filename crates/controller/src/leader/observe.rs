//! Sets observe mode in a restored store.

use crate::intent::{self, MODE, Mode};
use crate::store::{Store, StoreError, Transaction, Write};

/// Sets the mode to observe before any controller leads with this store. Switches and hosts then
/// get no changes until an operator changes the mode.
///
/// # Errors
/// The store refused the write.
pub async fn begin_observing(store: &dyn Store) -> Result<(), StoreError> {
    let value = intent::to_bytes(&Mode::Observe);
    let writes = vec![Write::Put { key: MODE.to_owned(), value, lease: None }];
    store.commit(Transaction { writes, ..Transaction::default() }).await.map(|_| ())
}
