//! Compares the embedded store with a map as its model. After any requests and restarts, the store
//! must have the contents of the map, and a watch must report all changes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use penstock_controller::store::{
    Change, Compare, Embedded, Entry, LeaseId, Revision, Store, StoreError, Transaction, Write,
};
use penstock_testing::temp_dir;
use proptest::collection::vec;
use proptest::prelude::*;

const KEYS: usize = 6;
const TTL: Duration = Duration::from_secs(3_600);

/// Step of a test with random requests. A number in a step is the index of a key or of a lease.
#[derive(Clone, Debug)]
enum Step {
    Commit { compare: Vec<(usize, Kind)>, writes: BTreeMap<usize, Option<(Vec<u8>, Lease)>> },
    Lease,
    Revoke(usize),
    Reopen,
}

/// Kind of condition on a key. A condition with `ByLast` in its name requires that the store's last
/// change created or modified the key.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Absent,
    Created,
    Modified,
    CreatedByLast,
    ModifiedByLast,
}

/// Index of a lease among all leases that the test has made, or `None` for a key without a lease.
type Lease = Option<usize>;

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        1 => Just(Kind::Absent),
        4 => Just(Kind::Created),
        4 => Just(Kind::Modified),
        1 => Just(Kind::CreatedByLast),
        1 => Just(Kind::ModifiedByLast),
    ];
    let lease = prop_oneof![2 => Just(None), 1 => (0..3_usize).prop_map(Some)];
    let value = prop_oneof![1 => Just(None), 3 => (vec(any::<u8>(), 0..20), lease).prop_map(Some)];
    let compare = vec((0..KEYS, kind), 0..3);
    let writes = proptest::collection::btree_map(0..KEYS, value, 0..4);
    prop_oneof![
        10 => (compare, writes).prop_map(|(compare, writes)| Step::Commit { compare, writes }),
        1 => Just(Step::Lease),
        1 => (0..3_usize).prop_map(Step::Revoke),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Debug, Default)]
struct Model {
    revision: u64,
    entries: BTreeMap<String, (Entry, Option<LeaseId>)>,
    leases: Vec<(LeaseId, bool)>,
    /// Changes since the store was last opened.
    changes: Vec<Change>,
    opened_at: u64,
}

fn key(number: usize) -> String {
    format!("key/{number}")
}

impl Model {
    fn revisions(&self, key: &str) -> (u64, u64) {
        self.entries.get(key).map_or((0, 0), |(entry, _)| (entry.created.0, entry.modified.0))
    }

    fn compare(&self, number: usize, kind: Kind) -> Compare {
        let key = key(number);
        let (created, modified) = self.revisions(&key);
        match kind {
            Kind::Absent => Compare::Absent(key),
            Kind::Created => Compare::Created(key, Revision(created)),
            Kind::Modified => Compare::Modified(key, Revision(modified)),
            Kind::CreatedByLast => Compare::Created(key, Revision(self.revision)),
            Kind::ModifiedByLast => Compare::Modified(key, Revision(self.revision)),
        }
    }

    /// Applies a transaction to the model. Returns the result that the tested store should return.
    fn commit(&mut self, asked: &Transaction) -> Result<Revision, StoreError> {
        for compare in &asked.compare {
            let (key, holds) = match compare {
                Compare::Absent(key) => (key, !self.entries.contains_key(key)),
                Compare::Created(key, by) => (key, self.revisions(key).0 == by.0),
                Compare::Modified(key, by) => (key, self.revisions(key).1 == by.0),
                other => panic!("{other:?}"),
            };
            if !holds {
                return Err(StoreError::Conflict(key.clone()));
            }
        }
        for write in &asked.writes {
            if let Write::Put { lease: Some(lease), .. } = write
                && !self.leases.contains(&(*lease, true))
            {
                return Err(StoreError::LeaseEnded(*lease));
            }
        }
        let mut changes = Vec::new();
        let revision = Revision(self.revision + 1);
        for write in asked.writes.clone() {
            match write {
                Write::Put { key, value, lease } => {
                    let created = match self.revisions(&key).0 {
                        0 => revision,
                        created => Revision(created),
                    };
                    let entry = Entry { key: key.clone(), value, created, modified: revision };
                    changes.push(Change::Put(entry.clone()));
                    self.entries.insert(key, (entry, lease));
                }
                Write::Delete(key) => {
                    if self.entries.remove(&key).is_some() {
                        changes.push(Change::Deleted { key, revision });
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        self.changed(changes);
        Ok(Revision(self.revision))
    }

    fn changed(&mut self, changes: Vec<Change>) {
        self.revision += u64::from(!changes.is_empty());
        self.changes.extend(changes);
    }

    fn end_leases(&mut self, ended: impl Fn(LeaseId) -> bool) {
        for (lease, lasts) in &mut self.leases {
            *lasts &= !ended(*lease);
        }
        let revision = Revision(self.revision + 1);
        let mut changes = Vec::new();
        self.entries.retain(|key, (_, lease)| {
            let goes = lease.is_some_and(&ended);
            if goes {
                changes.push(Change::Deleted { key: key.clone(), revision });
            }
            !goes
        });
        self.changed(changes);
    }

    async fn step(&mut self, step: Step, store: Embedded, file: &Path) -> Embedded {
        match step {
            Step::Commit { compare, writes } => {
                let lease = |number: Lease| {
                    number.and_then(|number| self.leases.get(number).map(|(lease, _)| *lease))
                };
                let write = |(number, value): (usize, Option<(Vec<u8>, Lease)>)| match value {
                    Some((value, number_of_lease)) => {
                        Write::Put { key: key(number), value, lease: lease(number_of_lease) }
                    }
                    None => Write::Delete(key(number)),
                };
                let writes = writes.into_iter().map(write).collect();
                let compare = compare.into_iter().map(|(n, kind)| self.compare(n, kind)).collect();
                let asked = Transaction { compare, writes };
                assert_eq!(store.commit(asked.clone()).await, self.commit(&asked), "{asked:?}");
            }
            Step::Lease => self.leases.push((store.lease(TTL).await.unwrap(), true)),
            Step::Revoke(number) => {
                if let Some((lease, _)) = self.leases.get(number).copied() {
                    store.revoke(lease).await.unwrap();
                    self.end_leases(|ended| ended == lease);
                }
            }
            Step::Reopen => {
                self.told(&store).await;
                drop(store);
                self.end_leases(|_| true);
                // A new process knows no lease of the old process.
                self.leases.clear();
                self.changes.clear();
                self.opened_at = self.revision;
                return Embedded::open(file).await.unwrap();
            }
        }
        store
    }

    /// Checks that the store has the contents of the model.
    async fn matches(&self, store: &Embedded) {
        let listing = store.list("").await.unwrap();
        assert_eq!(listing.revision, Revision(self.revision));
        let entries: Vec<_> = self.entries.values().map(|(entry, _)| entry.clone()).collect();
        assert_eq!(listing.entries, entries);
        for number in 0..KEYS {
            let expected = self.entries.get(&key(number)).map(|(entry, _)| entry.clone());
            assert_eq!(store.get(&key(number)).await.unwrap(), expected);
        }
    }

    /// Checks that a watch reports all changes since the store was opened.
    async fn told(&self, store: &Embedded) {
        let mut watch = store.watch("", Revision(self.opened_at + 1)).await.unwrap();
        for change in &self.changes {
            assert_eq!(watch.recv().await.unwrap().as_ref(), Ok(change));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_embedded_store_is_a_map_with_revisions(steps in vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let dir = temp_dir();
        let file = dir.join("store.redb");
        runtime.block_on(async {
            let mut store = Embedded::open(&file).await.unwrap();
            let mut model = Model::default();
            for step in steps {
                store = model.step(step, store, &file).await;
                model.matches(&store).await;
            }
            model.told(&store).await;
        });
    }
}
