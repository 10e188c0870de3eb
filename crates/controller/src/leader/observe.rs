//! What is told a store that was restored.

use crate::intent::{self, MODE, Mode};
use crate::store::{Store, StoreError, Transaction, Write};

/// Has whoever leads next by this store observe, before anybody does: nothing is told to switches
/// or hosts until an operator says otherwise. For a store that was restored.
///
/// # Errors
/// The store did not take it.
pub async fn begin_observing(store: &dyn Store) -> Result<(), StoreError> {
    let value = intent::to_bytes(&Mode::Observe);
    let writes = vec![Write::Put { key: MODE.to_owned(), value, lease: None }];
    store.commit(Transaction { writes, ..Transaction::default() }).await.map(|_| ())
}
