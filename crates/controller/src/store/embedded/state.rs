//! Holds the store's state in memory: keys, leases, and recent changes for watches.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::super::contract::{
    Change, Compare, Entry, LeaseId, Listing, Revision, StoreError, Transaction, Write,
};
use super::file::Content;

/// Maximum number of recent changes that the store keeps for watches.
pub(super) const HISTORY_CHANGES_MAX: usize = 4_096;
/// Maximum size of the recent changes that the store keeps for watches, in bytes of keys and
/// values.
pub(super) const HISTORY_BYTES_MAX: usize = 64 << 20;

/// Entry of a key, and the lease to which the key is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) entry: Entry,
    pub(super) lease: Option<LeaseId>,
}

/// Effect of a transaction that is not durable yet: a new value or a deletion for each written key.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) revision: u64,
    pub(super) writes: Vec<(String, Option<Held>)>,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    ends: Instant,
    keys: BTreeSet<String>,
}

/// Complete state of the store in memory.
#[derive(Debug)]
pub(super) struct State {
    content: Content,
    history: History,
    leases: HashMap<LeaseId, Lease>,
    leases_ever: i64,
}

impl State {
    pub(super) fn new(content: Content) -> Self {
        let history = History { kept_from: content.revision + 1, ..History::default() };
        Self { content, history, leases: HashMap::new(), leases_ever: 0 }
    }

    pub(super) fn revision(&self) -> u64 {
        self.content.revision
    }

    pub(super) fn content(&self) -> Content {
        Content { revision: self.content.revision, entries: self.content.entries.clone() }
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.content.entries.get(key).map(|held| held.entry.clone())
    }

    pub(super) fn list(&self, prefix: &str) -> Listing {
        let from = self.content.entries.range(prefix.to_owned()..);
        let below = from.take_while(|(key, _)| key.starts_with(prefix));
        Listing {
            revision: Revision(self.content.revision),
            entries: below.map(|(_, held)| held.entry.clone()).collect(),
        }
    }

    /// Returns the effect of a transaction, or an error if the transaction may not be written.
    pub(super) fn plan(&self, asked: Transaction, now: Instant) -> Result<Batch, StoreError> {
        for compare in &asked.compare {
            let (key, holds) = match compare {
                Compare::Absent(key) => (key, self.get_revisions(key).0 == 0),
                Compare::Created(key, by) => (key, self.get_revisions(key).0 == by.0),
                Compare::Modified(key, by) => (key, self.get_revisions(key).1 == by.0),
            };
            if !holds {
                return Err(StoreError::Conflict(key.clone()));
            }
        }
        let revision = self.content.revision + 1;
        let mut writes = Vec::new();
        for write in asked.writes {
            match write {
                Write::Put { key, value, lease } => {
                    if let Some(lease) = lease.filter(|lease| !self.lasts(*lease, now)) {
                        return Err(StoreError::LeaseEnded(lease));
                    }
                    let modified = Revision(revision);
                    let created = match self.get_revisions(&key).0 {
                        0 => modified,
                        created => Revision(created),
                    };
                    let entry = Entry { key: key.clone(), value, created, modified };
                    writes.push((key, Some(Held { entry, lease })));
                }
                Write::Delete(key) if self.content.entries.contains_key(&key) => {
                    writes.push((key, None));
                }
                Write::Delete(_) => {}
            }
        }
        Ok(Batch { revision, writes })
    }

    /// Returns the revisions of a key's creation and last modification. The revisions of an absent
    /// key are 0.
    fn get_revisions(&self, key: &str) -> (u64, u64) {
        let held = self.content.entries.get(key);
        held.map_or((0, 0), |held| (held.entry.created.0, held.entry.modified.0))
    }

    /// Makes a batch of changes visible to readers, after the batch is durable in the file.
    pub(super) fn apply(&mut self, batch: Batch) {
        let Batch { revision, writes } = batch;
        self.content.revision = revision;
        for (key, held) in writes {
            let change = match &held {
                Some(held) => Change::Put(held.entry.clone()),
                None => Change::Deleted { key: key.clone(), revision: Revision(revision) },
            };
            self.history.push(revision, change);
            let lease = held.as_ref().and_then(|held| held.lease);
            if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
                lease.keys.insert(key.clone());
            }
            let left = match held {
                Some(held) => self.content.entries.insert(key.clone(), held),
                None => self.content.entries.remove(&key),
            };
            let left = left.and_then(|left| left.lease).filter(|left| Some(*left) != lease);
            if let Some(lease) = left.and_then(|left| self.leases.get_mut(&left)) {
                lease.keys.remove(&key);
            }
        }
        self.history.trim();
    }

    pub(super) fn lease(&mut self, ttl: Duration, now: Instant) -> LeaseId {
        self.leases_ever += 1;
        let id = LeaseId(self.leases_ever);
        self.leases.insert(id, Lease { ttl, ends: now + ttl, keys: BTreeSet::new() });
        id
    }

    pub(super) fn keep_alive(&mut self, id: LeaseId, now: Instant) -> Result<(), StoreError> {
        let lease = self.leases.get_mut(&id).filter(|lease| now < lease.ends);
        let lease = lease.ok_or(StoreError::LeaseEnded(id))?;
        lease.ends = now + lease.ttl;
        Ok(())
    }

    fn lasts(&self, id: LeaseId, now: Instant) -> bool {
        self.leases.get(&id).is_some_and(|lease| now < lease.ends)
    }

    /// Returns the time at which the next lease ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.leases.values().map(|lease| lease.ends).min()
    }

    /// Returns the leases that have ended, in the order of their ends.
    pub(super) fn ended(&self, now: Instant) -> Vec<LeaseId> {
        let ended = self.leases.iter().filter(|(_, lease)| lease.ends <= now);
        let mut ended: Vec<_> = ended.map(|(id, lease)| (lease.ends, *id)).collect();
        ended.sort_by_key(|(ends, id)| (*ends, id.0));
        ended.into_iter().map(|(_, id)| id).collect()
    }

    /// Ends a lease. A lease that has ended accepts no keys and no renewals.
    pub(super) fn end_now(&mut self, id: LeaseId, now: Instant) {
        self.leases.entry(id).and_modify(|lease| lease.ends = lease.ends.min(now));
    }

    /// Returns the batch that deletes the keys of a lease that ended.
    pub(super) fn plan_end(&self, id: LeaseId) -> Batch {
        let keys = self.leases.get(&id).map(|lease| lease.keys.clone()).unwrap_or_default();
        let writes = keys.into_iter().map(|key| (key, None)).collect();
        Batch { revision: self.content.revision + 1, writes }
    }

    /// Returns the batch that deletes the keys of all leases that were in the file.
    pub(super) fn plan_restart(&self) -> Batch {
        let leased = self.content.entries.values().filter(|held| held.lease.is_some());
        let writes = leased.map(|held| (held.entry.key.clone(), None)).collect();
        Batch { revision: self.content.revision + 1, writes }
    }

    pub(super) fn forget(&mut self, id: LeaseId) {
        self.leases.remove(&id);
    }

    /// Returns the position in the history of the first change with revision `from` or later.
    pub(super) fn place(&self, from: u64) -> Result<u64, StoreError> {
        self.history.place(from)
    }

    /// Returns up to `most` changes, starting at position `place` of the history, and the position
    /// after the last returned change.
    pub(super) fn changes(
        &self,
        place: u64,
        most: usize,
    ) -> Result<(impl Iterator<Item = &(u64, Change)>, u64), StoreError> {
        self.history.changes(place, most)
    }
}

/// Recent changes of the store with their revisions. The position of a change is the number of
/// earlier changes since the store was opened.
#[derive(Debug, Default)]
struct History {
    changes: VecDeque<(u64, Change)>,
    bytes: usize,
    /// Position of the first change in the history.
    first: u64,
    /// Revision from which on the history has all changes.
    kept_from: u64,
}

impl History {
    fn push(&mut self, revision: u64, change: Change) {
        self.bytes += bytes(&change);
        self.changes.push_back((revision, change));
    }

    /// Removes the oldest changes until the history is within its limits. The history removes all
    /// changes of a revision together, so no watch receives only some changes of a revision. The
    /// last revision always stays in the history.
    fn trim(&mut self) {
        while self.changes.len() > HISTORY_CHANGES_MAX || self.bytes > HISTORY_BYTES_MAX {
            let Some((oldest, _)) = self.changes.front() else { return };
            let oldest = *oldest;
            if self.changes.back().is_some_and(|(newest, _)| *newest == oldest) {
                return;
            }
            while let Some((_, change)) = self.changes.pop_front_if(|(at, _)| *at == oldest) {
                self.bytes -= bytes(&change);
                self.first += 1;
            }
            self.kept_from = oldest + 1;
        }
    }

    fn place(&self, from: u64) -> Result<u64, StoreError> {
        if from < self.kept_from {
            return Err(StoreError::Compacted(Revision(self.kept_from)));
        }
        let skipped = self.changes.partition_point(|(revision, _)| *revision < from);
        Ok(self.first + skipped as u64)
    }

    fn changes(
        &self,
        place: u64,
        most: usize,
    ) -> Result<(impl Iterator<Item = &(u64, Change)>, u64), StoreError> {
        let gone = || StoreError::Compacted(Revision(self.kept_from));
        let skip = place.checked_sub(self.first).ok_or_else(gone)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(self.changes.len());
        let end = self.changes.len().min(skip + most);
        Ok((self.changes.range(skip..end), self.first + end as u64))
    }
}

fn bytes(change: &Change) -> usize {
    match change {
        Change::Put(entry) => entry.key.len() + entry.value.len(),
        Change::Deleted { key, .. } => key.len(),
    }
}
