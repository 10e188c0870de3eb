//! Implements a durable store in one file, for a single controller without other services.
//!
//! # Problem
//!
//! Most fabrics have a single controller. The tenants and their guarantees must survive a restart
//! of the controller.
//!
//! # Approach
//!
//! The store keeps all keys in memory, and reads and watches use only the memory. The store first
//! makes a write durable in the file, and then makes the write visible. If the disk is full or
//! fails, only writes fail.
//!
//! # Failures
//!
//! A failed write returns an error and does not become visible. The next write opens the file
//! again, so the store recovers when the disk has space again. [`redb`] writes the file by copy on
//! write. Because of copy on write, a power loss leaves the file in the state before or after a
//! transaction. The store refuses a damaged file as a whole. If a second program opens the store's
//! file, the second program gets an error that names the cause.
//!
//! Leases use tokio's clock and do not outlive the program. When the store opens its file, it
//! deletes the keys of earlier leases, because no client can renew these leases.
//!
//! # Cost
//!
//! The store needs memory for all keys and values. The store also keeps recent changes in memory,
//! at most 4,096 changes and at most 64 MiB. A write takes two `fsync` calls.

mod file;
mod state;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use self::file::{File, Opener, open_database};
use self::state::{Batch, State};
use super::contract::{
    Change, Entry, Leadership, LeaseId, Listing, Revision, Store, StoreError, Transaction,
};
use super::{campaign, limits};

/// Pause before the store tries again to delete the keys of an ended lease, after the disk has
/// failed.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum duration of a lease, as in etcd.
const LEASE_MAX: Duration = Duration::from_secs(9_000_000_000);
/// Number of changes that a watch takes from the history at once.
const WATCH_CHANGES: usize = 64;

/// Handle of a store in one file. Clones of a handle belong to a single store, which closes when
/// the last handle is dropped.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    /// Database file. A write locks the file from its checks until the write is visible, so writes
    /// are serialized. To avoid deadlocks, a function that locks both `file` and `state` locks
    /// `file` first.
    file: Mutex<File>,
    shared: Arc<Shared>,
    leases_changed: Arc<Notify>,
}

/// State that watches share with the store. A watch does not keep the store's file open.
struct Shared {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
}

impl Embedded {
    /// Opens or creates the store's file in an existing directory. The caller must run in a tokio
    /// runtime.
    ///
    /// # Errors
    /// - [`StoreError::Unavailable`]: another program has opened the file, or the disk failed.
    /// - [`StoreError::Damaged`]: the file is not a complete store.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, Box::new(open_database)).await
    }

    async fn open_with(path: &Path, opener: Opener) -> Result<Self, StoreError> {
        let (path, name) = (path.to_owned(), path.display().to_string());
        let opened = spawn_blocking(move || Self::load(&path, opener)).await;
        let (file, state) = opened.unwrap_or_else(|panic| {
            let problem = format!("the file cannot be read ({panic})");
            Err(StoreError::Damaged { store: name.clone(), problem })
        })?;
        let revision = watch::Sender::new(state.revision());
        let shared = Arc::new(Shared { state: Mutex::new(state), revision });
        let leases_changed = Arc::new(Notify::new());
        let inner = Arc::new(Inner {
            name,
            file: Mutex::new(file),
            shared,
            leases_changed: Arc::clone(&leases_changed),
        });
        tokio::spawn(end_leases(Arc::downgrade(&inner), leases_changed));
        Ok(Self { inner })
    }

    fn load(path: &Path, opener: Opener) -> Result<(File, State), StoreError> {
        let (mut file, content) = File::open(path, opener)?;
        let mut state = State::new(content);
        let restart = state.plan_restart();
        if !restart.writes.is_empty() {
            file.write(&restart, || state.content())?;
            state.apply(restart);
        }
        Ok((file, state))
    }

    /// Runs disk operations on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        let done = spawn_blocking(move || write(&inner)).await;
        done.unwrap_or_else(|panic| {
            let (store, problem) = (self.inner.name.clone(), format!("a write failed: {panic}"));
            Err(StoreError::Unavailable { store, problem })
        })
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Plans a write, makes the write durable in the file, and then applies the write in memory.
    fn write(
        &self,
        plan: impl FnOnce(&State) -> Result<Batch, StoreError>,
    ) -> Result<u64, StoreError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_locked(&mut file, plan)
    }

    fn write_locked(
        &self,
        file: &mut File,
        plan: impl FnOnce(&State) -> Result<Batch, StoreError>,
    ) -> Result<u64, StoreError> {
        let batch = plan(&self.state())?;
        let revision = batch.revision;
        if batch.writes.is_empty() {
            return Ok(revision - 1);
        }
        file.write(&batch, || self.state().content())?;
        self.state().apply(batch);
        self.shared.revision.send_replace(revision);
        Ok(revision)
    }

    fn end_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_locked(&mut file, |state| Ok(state.plan_end(lease)))?;
        self.state().forget(lease);
        Ok(())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.leases_changed.notify_one();
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Embedded").field(&self.inner.name).finish()
    }
}

#[async_trait]
impl Store for Embedded {
    fn name(&self) -> &str {
        &self.inner.name
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.inner.state().get(key))
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        Ok(self.inner.state().list(prefix))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        limits::check(&transaction)?;
        let now = Instant::now();
        let write = move |inner: &Inner| inner.write(|state| state.plan(transaction, now));
        self.blocking(write).await.map(Revision)
    }

    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError> {
        let (changes, receiver) = mpsc::channel(WATCH_CHANGES);
        let follow = Follow {
            store: self.inner.name.clone(),
            shared: Arc::downgrade(&self.inner.shared),
            revision: self.inner.shared.revision.subscribe(),
            prefix: prefix.to_owned(),
            from: from.0.max(1),
        };
        tokio::spawn(follow.run(changes));
        Ok(receiver)
    }

    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let id = self.inner.state().lease(ttl.min(LEASE_MAX), Instant::now());
        self.inner.leases_changed.notify_one();
        Ok(id)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.state().keep_alive(lease, Instant::now())
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.state().end_now(lease, Instant::now());
        self.blocking(move |inner| inner.end_lease(lease)).await
    }

    async fn campaign(
        &self,
        key: &str,
        who: &str,
        lease: LeaseId,
    ) -> Result<Leadership, StoreError> {
        campaign::run(self.clone(), key, who, lease).await
    }
}

/// Ends leases when they are due, until the store is closed.
async fn end_leases(store: Weak<Inner>, changed: Arc<Notify>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let next = inner.state().next_end();
        // The task has no handle while it waits, because the store closes when the last handle is
        // dropped.
        drop(inner);
        match next {
            Some(at) => tokio::select! {
                () = sleep_until(at) => {}
                () = changed.notified() => continue,
            },
            None => {
                changed.notified().await;
                continue;
            }
        }
        let Some(inner) = store.upgrade() else { return };
        let ended = inner.state().ended(Instant::now());
        let done =
            spawn_blocking(move || ended.into_iter().try_for_each(|lease| inner.end_lease(lease)));
        if let Ok(Err(error)) = done.await {
            tracing::warn!(%error, "keys of an ended lease cannot be deleted yet; trying again");
            sleep(RETRY).await;
        }
    }
}

/// State of a watch on keys with a prefix.
struct Follow {
    store: String,
    shared: Weak<Shared>,
    revision: watch::Receiver<u64>,
    prefix: String,
    from: u64,
}

impl Follow {
    async fn run(mut self, changes: mpsc::Sender<Result<Change, StoreError>>) {
        if let Err(error) = self.follow(&changes).await {
            // If the receiver is gone, nothing needs this error.
            let _ = changes.send(Err(error)).await;
        }
    }

    /// Sends changes to the watch's receiver until the receiver is gone or an error occurs.
    async fn follow(
        &mut self,
        changes: &mpsc::Sender<Result<Change, StoreError>>,
    ) -> Result<(), StoreError> {
        let mut place = self.shared()?.state().place(self.from)?;
        loop {
            self.revision.mark_unchanged();
            let (found, next) = self.take(place)?;
            let waits = next == place;
            place = next;
            for change in found {
                if changes.send(Ok(change)).await.is_err() {
                    return Ok(());
                }
            }
            if waits {
                tokio::select! {
                    alive = self.revision.changed() => alive.map_err(|_| self.closed())?,
                    () = changes.closed() => return Ok(()),
                }
            }
        }
    }

    fn take(&self, place: u64) -> Result<(Vec<Change>, u64), StoreError> {
        let shared = self.shared()?;
        let state = shared.state();
        let (all, next) = state.changes(place, WATCH_CHANGES)?;
        let wanted = |(revision, change): &&(u64, Change)| {
            let (Change::Put(Entry { key, .. }) | Change::Deleted { key, .. }) = change;
            *revision >= self.from && key.starts_with(&self.prefix)
        };
        Ok((all.filter(wanted).map(|(_, change)| change.clone()).collect(), next))
    }

    fn shared(&self) -> Result<Arc<Shared>, StoreError> {
        self.shared.upgrade().ok_or_else(|| self.closed())
    }

    fn closed(&self) -> StoreError {
        let problem = "the store was closed; open it again".to_owned();
        StoreError::Unavailable { store: self.store.clone(), problem }
    }
}

#[cfg(test)]
mod tests;
