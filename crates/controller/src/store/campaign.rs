//! Implements the leader election for all kinds of stores.
//!
//! # Approach
//!
//! Each candidate writes a key below the election's key, and binds the written key to its lease.
//! The candidate with the oldest key leads. Every other candidate watches the key that was created
//! just before its own key. When a leader's key disappears, only one candidate is notified.
//!
//! # Source
//!
//! The election follows etcd's Go package `client/v3/concurrency`.
//!
//! # Departures
//!
//! A candidate's key contains a number in addition to the lease's number. Without the additional
//! number, a candidate that withdraws and campaigns again with the same lease could delete its new
//! key.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::contract::{
    Change, Compare, Entry, Leadership, LeaseId, Revision, Store, StoreError, Transaction, Write,
};

/// Returns the leader of the election at `key`. The returned entry of the store has the leader's
/// name as its value.
///
/// # Errors
/// Returns an error in the same cases as [`Store::list`].
pub async fn leader(store: &dyn Store, key: &str) -> Result<Option<Entry>, StoreError> {
    let candidates = store.list(&below(key)).await?.entries;
    Ok(candidates.into_iter().min_by_key(|candidate| candidate.created))
}

/// Implements [`Store::campaign`] for a store that implements `Clone`.
///
/// The campaign runs as a separate task. If the caller drops the future, the campaign's task waits
/// for the end of a pending write and then undoes the write. As a result, a candidate's write
/// cannot arrive after the candidate's withdrawal.
pub(super) async fn run<S>(
    store: S,
    key: &str,
    who: &str,
    lease: LeaseId,
) -> Result<Leadership, StoreError>
where
    S: Store + Clone + 'static,
{
    let name = store.name().to_owned();
    let (answer, result) = oneshot::channel();
    tokio::spawn(stand(store, below(key), who.to_owned(), lease, answer));
    let (place, leadership) = result.await.map_err(|_| StoreError::Unavailable {
        store: name,
        problem: "the election ended early; campaign again".to_owned(),
    })??;
    place.keep();
    Ok(leadership)
}

fn below(key: &str) -> String {
    format!("{key}/")
}

type Answer<S> = oneshot::Sender<Result<(CandidateKey<S>, Leadership), StoreError>>;

async fn stand<S>(store: S, prefix: String, who: String, lease: LeaseId, mut answer: Answer<S>)
where
    S: Store + Clone + 'static,
{
    static STOOD: AtomicU64 = AtomicU64::new(0);
    let number = STOOD.fetch_add(1, Ordering::Relaxed);
    let key = format!("{prefix}{:016x}.{number}", lease.0);
    // From here on the key may exist, even if the store returns an error.
    let place = CandidateKey { store: Some(store.clone()), key: key.clone() };
    let written = store
        .commit(Transaction {
            compare: vec![Compare::Absent(key.clone())],
            writes: vec![Write::Put {
                key: key.clone(),
                value: who.into_bytes(),
                lease: Some(lease),
            }],
        })
        .await;
    let result = match written {
        Ok(created) => tokio::select! {
            led = wait(&store, &prefix, &key, lease) => {
                led.map(|()| (place, Leadership { key, created, lease }))
            }
            // The caller gave up. Dropping `place` withdraws the candidate.
            () = answer.closed() => return,
        },
        Err(error) => Err(error),
    };
    // If the caller does not receive the key, the key is dropped, which also withdraws the
    // candidate.
    let _ = answer.send(result);
}

/// Waits until no earlier candidate of the election remains.
async fn wait<S: Store>(
    store: &S,
    prefix: &str,
    key: &str,
    lease: LeaseId,
) -> Result<(), StoreError> {
    loop {
        let listing = store.list(prefix).await?;
        let Some(own) = listing.entries.iter().find(|candidate| candidate.key == key) else {
            return Err(StoreError::LeaseEnded(lease));
        };
        let earlier = listing.entries.iter().filter(|other| other.created < own.created);
        let Some(before) = earlier.max_by_key(|other| other.created) else { return Ok(()) };
        let next = Revision(listing.revision.0 + 1);
        let mut changes = store.watch(prefix, next).await?;
        until_gone(&mut changes, [&before.key, key]).await?;
    }
}

/// Waits until a watched key is deleted or the watch ends. When the function returns, the caller
/// must list the candidates' keys again.
async fn until_gone(
    changes: &mut mpsc::Receiver<Result<Change, StoreError>>,
    keys: [&str; 2],
) -> Result<(), StoreError> {
    while let Some(change) = changes.recv().await {
        match change {
            Ok(Change::Deleted { key, .. }) if keys.contains(&key.as_str()) => break,
            Ok(_) => {}
            Err(StoreError::Compacted(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Key of a candidate in the store. Dropping the [`CandidateKey`] deletes the key, unless the
/// candidate keeps its key.
struct CandidateKey<S: Store + 'static> {
    store: Option<S>,
    key: String,
}

impl<S: Store + 'static> CandidateKey<S> {
    fn keep(mut self) {
        self.store = None;
    }
}

impl<S: Store + 'static> Drop for CandidateKey<S> {
    fn drop(&mut self) {
        let Some(store) = self.store.take() else { return };
        let key = std::mem::take(&mut self.key);
        // If there is no runtime, the process is ending and the candidate's lease will end.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let withdrawal =
                Transaction { compare: Vec::new(), writes: vec![Write::Delete(key.clone())] };
            if let Err(error) = store.commit(withdrawal).await {
                tracing::warn!(%error, %key, "a candidate's key stays until its lease ends");
            }
        });
    }
}
