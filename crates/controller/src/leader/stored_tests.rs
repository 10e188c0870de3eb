//! Tests of stored bindings with a store in memory that fails, fills up, and executes writes late.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use penstock_fabric::queue_binding::{Bound, Port};
use penstock_fabric::topology::{LinkId, Regular, Tier, Topology};
use penstock_units::BitsPerSecond;
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::journal::StoredParts;
use super::kept::shard_key;
use super::{
    BindingHead, BindingToStore, HISTORY_MAX, Horizon, JOURNAL_MAX, LeaderError, SHARDS,
    StoredBindings, Writer,
};
use crate::Stamp;
use crate::intent::{BINDING, BOUND, BindingRecord, HISTORY, JOURNAL, Names, ROOT, to_bytes};
use crate::store::{
    Change, Compare, Entry, Leadership, LeaseId, Listing, Revision, Store, StoreError, Transaction,
    Write,
};

const KEY: &str = "penstock/leader/one";

/// Fate of the transactions of a [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Done,
    /// The caller gets an error, and the transaction waits for [`Memory::arrive`].
    Late,
    /// Values are refused.
    Full,
}

#[derive(Debug)]
struct Memory(Mutex<Content>);

#[derive(Debug)]
struct Content {
    revision: u64,
    entries: BTreeMap<String, Entry>,
    /// Number of transactions that succeed before `fate` applies.
    good: usize,
    fate: Fate,
    late: Vec<Transaction>,
    /// Keys and sizes of all values written so far.
    written: Vec<(String, usize)>,
}

impl Content {
    fn apply(&mut self, transaction: Transaction) -> Result<Revision, StoreError> {
        for compare in transaction.compare {
            let (Compare::Absent(key) | Compare::Created(key, _) | Compare::Modified(key, _)) =
                &compare;
            let found = self.entries.get(key);
            let holds = match &compare {
                Compare::Absent(_) => found.is_none(),
                Compare::Created(_, at) => found.is_some_and(|entry| entry.created == *at),
                Compare::Modified(_, at) => found.is_some_and(|entry| entry.modified == *at),
            };
            if !holds {
                return Err(StoreError::Conflict(key.clone()));
            }
        }
        self.revision += 1;
        let modified = Revision(self.revision);
        for write in transaction.writes {
            match write {
                Write::Put { key, value, .. } => {
                    self.written.push((key.clone(), value.len()));
                    let created = self.entries.get(&key).map_or(modified, |entry| entry.created);
                    self.entries.insert(key.clone(), Entry { key, value, created, modified });
                }
                Write::Delete(key) => {
                    self.entries.remove(&key);
                }
            }
        }
        Ok(modified)
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable { store: "memory".to_owned(), problem: "late".to_owned() }
}

impl Memory {
    fn new() -> Self {
        Self(Mutex::new(Content {
            revision: 0,
            entries: BTreeMap::new(),
            good: 0,
            fate: Fate::Done,
            late: Vec::new(),
            written: Vec::new(),
        }))
    }

    /// Elects another leader, so that the store refuses the writes of the leader before.
    fn elect(&self) -> Leadership {
        let mut content = self.0.lock().unwrap();
        let writes = vec![Write::Delete(KEY.to_owned())];
        content.apply(Transaction { compare: Vec::new(), writes }).unwrap();
        let put = Write::Put { key: KEY.to_owned(), value: Vec::new(), lease: None };
        let writes = vec![put];
        let created = content.apply(Transaction { compare: Vec::new(), writes }).unwrap();
        Leadership { key: KEY.to_owned(), created, lease: LeaseId(1) }
    }

    /// Sets the fate of all transactions after `good` further transactions.
    fn turns(&self, good: usize, fate: Fate) {
        let mut content = self.0.lock().unwrap();
        (content.good, content.fate) = (good, fate);
    }

    /// Executes the late transactions.
    fn arrive(&self) {
        let mut content = self.0.lock().unwrap();
        for transaction in std::mem::take(&mut content.late) {
            let _ = content.apply(transaction);
        }
    }

    fn put(&self, key: &str, value: Vec<u8>) {
        let put = Write::Put { key: key.to_owned(), value, lease: None };
        let transaction = Transaction { compare: Vec::new(), writes: vec![put] };
        self.0.lock().unwrap().apply(transaction).unwrap();
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        let content = self.0.lock().unwrap();
        content.entries.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    /// Returns the keys and sizes of the values that were written since the last call.
    fn written(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.0.lock().unwrap().written)
    }
}

#[async_trait]
impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.0.lock().unwrap().entries.get(key).cloned())
    }
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let content = self.0.lock().unwrap();
        let entries = content.entries.values().filter(|entry| entry.key.starts_with(prefix));
        Ok(Listing { revision: Revision(content.revision), entries: entries.cloned().collect() })
    }
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        crate::store::limits::check(&transaction)?;
        let mut content = self.0.lock().unwrap();
        let puts = transaction.writes.iter().any(|write| matches!(write, Write::Put { .. }));
        if let Some(left) = content.good.checked_sub(1) {
            content.good = left;
            return content.apply(transaction);
        }
        match content.fate {
            Fate::Late => {
                content.late.push(transaction);
                Err(unavailable())
            }
            Fate::Full if puts => {
                let (store, problem) = ("memory".to_owned(), "no space".to_owned());
                Err(StoreError::Full { store, problem })
            }
            Fate::Done | Fate::Full => content.apply(transaction),
        }
    }
    async fn watch(
        &self,
        _prefix: &str,
        _from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError> {
        Err(unavailable())
    }
    async fn lease(&self, _ttl: Duration) -> Result<LeaseId, StoreError> {
        Err(unavailable())
    }
    async fn keep_alive(&self, _lease: LeaseId) -> Result<(), StoreError> {
        Err(unavailable())
    }
    async fn revoke(&self, _lease: LeaseId) -> Result<(), StoreError> {
        Err(unavailable())
    }
    async fn campaign(
        &self,
        _key: &str,
        _who: &str,
        _lease: LeaseId,
    ) -> Result<Leadership, StoreError> {
        Err(unavailable())
    }
}

type Queues = BTreeMap<String, Bound>;

/// A leader that stores bindings, and the bindings that it must have stored.
struct Bed {
    store: Memory,
    topology: Topology,
    leadership: Leadership,
    horizon: Horizon,
    kept: StoredBindings,
    stamp: Stamp,
    /// Binding of each stamp.
    all: BTreeMap<Stamp, Queues>,
    now: Queues,
    /// Bindings that failed writes may have stored.
    maybe: Vec<Queues>,
}

impl Bed {
    fn new() -> Self {
        let tier = |fan_out| Tier { fan_out, uplinks: 1, rate: BitsPerSecond(1_000_000_000) };
        let topology = Regular { slots: 10, tiers: vec![tier(5), tier(2)] }.build().unwrap();
        let store = Memory::new();
        let leadership = store.elect();
        let stamp = Stamp { epoch: leadership.created.0, generation: 0 };
        Self {
            store,
            topology,
            leadership,
            horizon: Horizon::default(),
            kept: StoredBindings::default(),
            stamp,
            all: BTreeMap::new(),
            now: Queues::new(),
            maybe: Vec::new(),
        }
    }

    /// Returns queues on three links, which depend on `seed`.
    fn bound(&self, seed: u64) -> Bound {
        let links = self.topology.links() as u64;
        let first = seed % (links - 2);
        let queue = |n: u64| u8::try_from(1 + (seed + n) % 7).unwrap();
        let both = |n: u64| {
            let link = LinkId(u32::try_from(first + n).unwrap());
            [false, true].map(|up| (Port { link, up }, queue(n)))
        };
        let dscp = u8::try_from(1 + seed % 63).unwrap();
        Bound { dscp, queues: (0..3).flat_map(both).collect(), since: seed }
    }

    /// Returns the present binding, with other queues for one tenant, or without its queues.
    fn changed(&self, tenant: u64, seed: u64) -> Queues {
        let mut next = self.now.clone();
        let name = format!("t{tenant}");
        if next.remove(&name).is_none() || seed.is_multiple_of(3) {
            next.insert(name, self.bound(seed));
        }
        next
    }

    /// Stores the binding `next` with a new stamp.
    async fn put(&mut self, next: Queues, done: bool) -> Result<(), LeaderError> {
        self.stamp.generation += 1;
        let (stamp, tenants) = (self.stamp, next.clone());
        self.all.insert(stamp, next.clone());
        let topology = &self.topology;
        let binding = BindingToStore { stamp, interval: stamp.generation, tenants, topology };
        let mut writer = Writer::new(&self.store, &self.leadership, &mut self.horizon);
        let mut stored = self.kept.put(&mut writer, binding).await;
        if done && stored.is_ok() {
            stored = self.kept.put_done(&mut writer, stamp).await;
        }
        match &stored {
            Ok(()) => (self.now, self.maybe) = (next, Vec::new()),
            Err(_) => self.maybe.push(next),
        }
        stored
    }

    fn queues(&self, record: &BindingRecord) -> Queues {
        let names = Names(&self.topology);
        record.bound.iter().map(|b| (b.tenant.clone(), b.bound(names).unwrap())).collect()
    }

    /// Reads the store as a successor does. Checks the stored binding and the history.
    async fn read(&self) -> (StoredBindings, Queues) {
        let (kept, record) = StoredBindings::load(&self.store).await.unwrap();
        let stored = record.map(|record| self.queues(&record)).unwrap_or_default();
        assert!(stored == self.now || self.maybe.contains(&stored), "a mix of bindings");
        let parts = StoredParts::read(&self.store).await.unwrap();
        for head in &kept.history {
            let chain = parts.chain(head).unwrap().unwrap();
            let record = parts.record(&chain.snapshot, head.stamp).unwrap();
            assert_eq!(record.stamp, head.stamp);
            assert_eq!(self.queues(&record), self.all[&head.stamp], "{head:?}");
        }
        (kept, stored)
    }

    /// Continues as the next leader.
    async fn succeed(&mut self) {
        self.store.turns(0, Fate::Done);
        self.leadership = self.store.elect();
        self.stamp = Stamp { epoch: self.leadership.created.0, generation: 0 };
        let (kept, stored) = self.read().await;
        (self.kept, self.now, self.maybe) = (kept, stored, Vec::new());
    }
}

#[tokio::test]
async fn a_long_run_keeps_few_keys_and_writes_changes_only() {
    let mut bed = Bed::new();
    let first = (0..60).map(|n| (format!("t{n}"), bed.bound(n))).collect();
    bed.put(first, true).await.unwrap();
    let (mut snapshots, mut most) = (0, 0);
    for round in 0..1_300 {
        bed.store.written();
        let next = bed.changed(round * 7 % 60, round + 100);
        bed.put(next.clone(), false).await.unwrap();
        // The same binding again, now executed, needs no second change.
        bed.put(next, true).await.unwrap();
        let written = bed.store.written();
        let bytes: usize = written.iter().map(|(key, size)| key.len() + size).sum();
        if written.iter().any(|(key, _)| key == BINDING) {
            snapshots += 1;
        } else {
            assert_eq!(written.len(), 2, "a change and a head: {written:?}");
            assert!(bytes < 700, "{bytes} bytes for one tenant");
        }
        most = most.max(bed.store.keys(ROOT).len());
        if round % 101 == 0 {
            bed.read().await;
        }
    }
    assert_eq!(snapshots, 1_300 / (JOURNAL_MAX + 1), "a snapshot replaces a full journal");
    assert!(most < 2 * (JOURNAL_MAX + 60) + HISTORY_MAX + 10, "{most} keys");
    let (kept, _) = bed.read().await;
    assert_eq!(kept.history.len(), HISTORY_MAX);
    assert_eq!(bed.store.keys(HISTORY).len(), HISTORY_MAX);
    assert!(bed.store.keys(JOURNAL).len() <= JOURNAL_MAX + HISTORY_MAX);
}

#[tokio::test]
async fn a_change_of_most_tenants_writes_a_snapshot_within_the_stores_limits() {
    let mut bed = Bed::new();
    let all = |bed: &Bed, seed: u64| -> Queues {
        (0..12_000).map(|n| (format!("tenant-{n}"), bed.bound(n + seed))).collect()
    };
    let first = all(&bed, 0);
    bed.put(first, true).await.unwrap();
    bed.store.written();
    let second = all(&bed, 5);
    bed.put(second, true).await.unwrap();
    assert!(bed.store.written().iter().any(|(key, _)| key == BINDING), "no new snapshot");
    bed.read().await;
}

#[tokio::test]
async fn a_late_write_of_a_snapshot_does_not_replace_a_later_snapshot() {
    let mut bed = Bed::new();
    let next = bed.changed(1, 3);
    // The writes of this snapshot fit into one transaction, which waits.
    bed.store.turns(0, Fate::Late);
    bed.put(next, false).await.unwrap_err();
    bed.store.turns(0, Fate::Done);
    let next = bed.changed(2, 6);
    bed.put(next, true).await.unwrap();
    bed.store.arrive();
    let (_, stored) = bed.read().await;
    assert_eq!(stored, bed.now);
    // The leader does not depend on what arrived late.
    let next = bed.changed(3, 9);
    bed.put(next, true).await.unwrap();
    bed.read().await;
}

#[tokio::test]
async fn a_full_store_keeps_its_binding_and_needs_only_a_change_afterwards() {
    let mut bed = Bed::new();
    let first: Queues = (0..60).map(|n| (format!("t{n}"), bed.bound(n))).collect();
    // A refused snapshot leaves nothing.
    bed.store.turns(0, Fate::Full);
    let error = bed.put(first.clone(), false).await.unwrap_err();
    assert!(matches!(error, LeaderError::Store(StoreError::Full { .. })), "{error:?}");
    assert!(bed.horizon.is_full());
    assert_eq!(bed.store.keys(BOUND), Vec::<String>::new());
    bed.store.turns(0, Fate::Done);
    bed.put(first, true).await.unwrap();
    assert!(!bed.horizon.is_full());
    bed.store.turns(0, Fate::Full);
    for seed in 1..5 {
        let next = bed.changed(seed, 3 * seed);
        bed.put(next, false).await.unwrap_err();
        bed.maybe.clear();
        bed.read().await;
    }
    bed.store.turns(0, Fate::Done);
    bed.store.written();
    let next = bed.changed(1, 3);
    bed.put(next, true).await.unwrap();
    let written = bed.store.written();
    assert!(written.iter().all(|(key, _)| !key.starts_with(BOUND)), "{written:?}");
    bed.read().await;
}

#[tokio::test]
async fn bindings_of_release_0_1_are_read_and_stay_in_the_history() {
    let mut bed = Bed::new();
    let names = Names(&bed.topology);
    let mut head = String::new();
    for (generation, queue) in [(1, 2), (2, 4)] {
        let stamp = Stamp { epoch: 1, generation };
        let (below, above) = names.ends(LinkId(0));
        let queues = |up: bool| {
            let (down, top) = (&below, &above);
            serde_json::json!({ "below": down, "above": top, "up": up, "queue": queue })
        };
        let part = serde_json::json!([
            { "tenant": "web", "dscp": 10, "since": 3, "queues": [queues(true), queues(false)] }
        ]);
        bed.store.put(&shard_key(stamp, 9), to_bytes(&part));
        let mut shards = vec![serde_json::Value::Null; SHARDS];
        shards[9] = serde_json::json!({ "epoch": 1, "generation": generation });
        head = serde_json::json!({
            "version": 1,
            "stamp": { "epoch": 1, "generation": generation },
            "interval": generation,
            "shards": shards,
        })
        .to_string();
        let key = format!("{HISTORY}{:020}.{generation:020}", 1);
        bed.store.put(&key, head.clone().into_bytes());
        let port = |up| (Port { link: LinkId(0), up }, queue);
        let bound = Bound { dscp: 10, queues: vec![port(false), port(true)], since: 3 };
        bed.all.insert(stamp, Queues::from([("web".to_owned(), bound)]));
    }
    bed.store.put(BINDING, head.into_bytes());
    bed.now = bed.all[&Stamp { epoch: 1, generation: 2 }].clone();
    bed.succeed().await;
    assert_eq!((bed.now.len(), bed.kept.history.len()), (1, 2));
    let next = bed.changed(1, 3);
    bed.put(next, true).await.unwrap();
    let (kept, _) = bed.read().await;
    assert_eq!(kept.history.len(), 3);
    // Once the old bindings leave the history, their parts leave the store.
    for round in 0..HISTORY_MAX as u64 {
        let next = bed.changed(round, 3 * round + 30);
        bed.put(next, true).await.unwrap();
    }
    let old = format!("{BOUND}{:020}.", 1);
    assert_eq!(bed.store.keys(&old), Vec::<String>::new());
    bed.read().await;
}

#[test]
fn a_head_of_a_later_version_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let bed = Bed::new();
        let (version, stamp, base) = (3, bed.stamp, None);
        let head = BindingHead { version, stamp, interval: 1, base, shards: Vec::new() };
        bed.store.put(BINDING, to_bytes(&head));
        let error = StoredBindings::load(&bed.store).await.unwrap_err().to_string();
        assert!(error.contains("use the newer program"), "{error}");
    });
}

#[tokio::test]
async fn tenants_of_an_unfinished_plan_stay_on_record_when_writes_fail_or_come_late() {
    let mut bed = Bed::new();
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
    let stored = async |bed: &Bed| {
        let (kept, _) = StoredBindings::load(&bed.store).await.unwrap();
        kept.moving.tenants
    };
    let next = bed.changed(1, 1);
    bed.kept.set_moving(names(&["t1", "t2"]));
    bed.put(next.clone(), false).await.unwrap();
    assert_eq!(stored(&bed).await, names(&["t1", "t2"]));
    // The write at the end of the plan comes late, when the next plan has begun.
    bed.kept.set_moving(BTreeSet::new());
    bed.store.turns(0, Fate::Late);
    bed.put(next, true).await.unwrap_err();
    assert_eq!(stored(&bed).await, names(&["t1", "t2"]), "the leader may try again");
    bed.store.turns(0, Fate::Done);
    let next = bed.changed(3, 4);
    bed.kept.set_moving(names(&["t3"]));
    bed.put(next.clone(), false).await.unwrap();
    bed.store.arrive();
    assert_eq!(stored(&bed).await, names(&["t3"]));
    bed.kept.set_moving(BTreeSet::new());
    bed.put(next, true).await.unwrap();
    assert_eq!(stored(&bed).await, BTreeSet::new());
    let many: BTreeSet<String> = (0..40_000).map(|n| format!("{n:064}")).collect();
    bed.kept.set_moving(many);
    let next = bed.changed(5, 7);
    bed.put(next, false).await.unwrap();
    let (kept, _) = StoredBindings::load(&bed.store).await.unwrap();
    assert!(kept.moving.all, "the names do not fit into a value");
}

async fn run(turns: &[(u8, u8, u8)]) {
    let mut bed = Bed::new();
    for (number, (kind, tenant, good)) in turns.iter().enumerate() {
        let seed = number as u64 + u64::from(*tenant);
        let (next, done) = (bed.changed(u64::from(tenant % 12), seed), !kind.is_multiple_of(4));
        match kind {
            0..12 => {
                bed.store.turns(0, Fate::Done);
                bed.put(next, done).await.unwrap();
            }
            12..17 => {
                bed.store.turns(usize::from(good % 5), Fate::Late);
                let _ = bed.put(next, done).await;
            }
            17..19 => {
                bed.store.turns(usize::from(good % 3), Fate::Full);
                let _ = bed.put(next, done).await;
            }
            19..22 => bed.store.arrive(),
            _ => bed.succeed().await,
        }
        let _ = bed.read().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_store_has_one_whole_binding_wherever_writes_fail_or_come_late(
        turns in proptest::collection::vec((0..24_u8, any::<u8>(), any::<u8>()), 1..80)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(&turns));
    }
}
