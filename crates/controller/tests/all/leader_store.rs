//! Tests that the leader stores a large binding atomically, and that no part of an old binding
//! remains. The tested binding is too large for one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use penstock_controller::Stamp;
use penstock_controller::carry_out::Crew;
use penstock_controller::fabric_state::{Fabric, Usage, Used};
use penstock_controller::intent::{
    BOUND, HISTORY, JOURNAL, LEADER, MOVING, Mode as ControlMode, QueueRecord,
};
use penstock_controller::leader::{BindingHead, HISTORY_MAX, Leader, LeaderError, Settings};
use penstock_controller::store::{
    Change, Entry, Leadership, LeaseId, Listing, Revision, Store, StoreError, Transaction, Write,
};
use penstock_fabric::queue_binding::{Mode, Settings as BindingSettings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{Regular, Tier};
use penstock_testing::{TempDir, temp_dir};
use penstock_units::{BitsPerSecond, Nanos};
use tokio::sync::mpsc;

use crate::world;
use crate::world::{FakeHosts, tenant};

const TENANTS: usize = 900;
const RATE: u64 = 10_000_000_000;

/// Store that fails after a number of transactions.
#[derive(Debug)]
struct Cut {
    inner: Arc<dyn Store>,
    left: AtomicUsize,
    taken: AtomicUsize,
    /// Keys and sizes of the values that were written.
    written: Mutex<Vec<(String, usize)>>,
    /// True if the store refuses values, as etcd does above its quota.
    full: AtomicBool,
    /// Last revision up to which the store was compacted.
    compacted: Mutex<Option<Revision>>,
}

impl Cut {
    async fn open(folder: &TempDir) -> Arc<Self> {
        let inner = world::store(folder).await;
        let (left, taken) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
        let (written, full) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { inner, left, taken, written, full, compacted: Mutex::default() })
    }
}

#[async_trait]
impl Store for Cut {
    fn name(&self) -> &str {
        self.inner.name()
    }
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.inner.get(key).await
    }
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.inner.list(prefix).await
    }
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let less = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            let (store, problem) = (self.name().to_owned(), "cut".to_owned());
            return Err(StoreError::Unavailable { store, problem });
        }
        let puts = transaction.writes.iter().any(|write| matches!(write, Write::Put { .. }));
        if puts && self.full.load(Ordering::Relaxed) {
            let (store, problem) = (self.name().to_owned(), "run `etcdctl defrag`".to_owned());
            return Err(StoreError::Full { store, problem });
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        let put = |write: &Write| match write {
            Write::Put { key, value, .. } => Some((key.clone(), value.len())),
            _ => None,
        };
        self.written.lock().unwrap().extend(transaction.writes.iter().filter_map(put));
        self.inner.commit(transaction).await
    }
    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError> {
        self.inner.watch(prefix, from).await
    }
    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        *self.compacted.lock().unwrap() = Some(revision);
        Ok(())
    }
    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.inner.lease(ttl).await
    }
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.keep_alive(lease).await
    }
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.revoke(lease).await
    }
    async fn campaign(
        &self,
        key: &str,
        who: &str,
        lease: LeaseId,
    ) -> Result<Leadership, StoreError> {
        self.inner.campaign(key, who, lease).await
    }
}

/// Returns a fabric of 16 racks of 16 servers, without managed switches.
fn fabric() -> Fabric {
    let tier = |fan_out| Tier { fan_out, uplinks: 1, rate: BitsPerSecond(RATE) };
    let topology = Regular { slots: 10, tiers: vec![tier(16), tier(16)] }.build().unwrap();
    let settings = BindingSettings {
        queues: 4,
        hold: 0,
        drain: Nanos(0),
        ..BindingSettings::new(Mode::PerEgressMap)
    };
    let policy = Policy { queues: 4, ..Policy::default() };
    Fabric::new(topology, 0, policy, settings).unwrap()
}

async fn lead(store: &Arc<Cut>, who: &str) -> (Leader, LeaseId) {
    // No test waits until the lease ends, because tests revoke it.
    let lease = store.lease(penstock_testing::scaled(Duration::from_secs(10))).await.unwrap();
    let leadership = store.campaign(LEADER, who, lease).await.unwrap();
    let crew = Crew::new(BTreeMap::new(), Arc::new(FakeHosts::default()), Duration::from_secs(5));
    let store: Arc<dyn Store> = store.clone();
    let settings = Settings { verify_every: 0, ..Settings::default() };
    let leader = Leader::take_over(fabric(), crew, store, leadership, settings).await;
    (leader.unwrap(), lease)
}

/// Returns measurements in which each tenant's rates depend on its number and on `round`.
fn usage(fabric: &Fabric, round: usize) -> Usage {
    let mut usage = Usage::new();
    for (name, slot, _) in fabric.tenants() {
        // A tenant without a number is idle.
        let Ok(number) = name[1..].parse::<usize>() else { continue };
        let rate = BitsPerSecond(1_000 * (1 + (number * 7_919 + round * 613) % 997) as u64);
        for server in fabric.servers_of(slot) {
            let used = Used { tenant: name.to_owned(), sent: rate, received: rate };
            usage.entry(server).or_default().push(used);
        }
    }
    usage
}

type Queues = BTreeMap<String, (u8, Vec<QueueRecord>)>;

fn queues(fabric: &Fabric) -> Queues {
    let record = fabric.binding_record(Stamp::default());
    record.bound.into_iter().map(|b| (b.tenant, (b.dscp, b.queues))).collect()
}

async fn parts(store: &Cut) -> BTreeSet<String> {
    let all = store.list(BOUND).await.unwrap().entries;
    all.into_iter().map(|entry| entry.key).collect()
}

/// Places the tenants of the tests, and gives some of them queues.
async fn begin(leader: &mut Leader) {
    for number in 0..TENANTS {
        leader.add(tenant(&format!("t{number}"), 2, 1)).await.unwrap();
    }
    let used = usage(leader.fabric(), 0);
    leader.interval(&used).await.unwrap();
    let bound = queues(leader.fabric()).len();
    assert!(bound > 200, "{bound} tenants have queues");
}

#[tokio::test]
async fn a_binding_is_in_force_as_a_whole_wherever_the_store_fails() {
    let folder = temp_dir();
    let store = Cut::open(&folder).await;
    let (mut leader, mut lease) = lead(&store, "first").await;
    begin(&mut leader).await;
    let mut whole = BTreeSet::new();
    // The first change of a leader is a snapshot in several transactions. Later changes take one.
    for (cut, fresh) in (0..5).flat_map(|cut| [(cut, true), (cut, false)]) {
        drop(leader);
        store.revoke(lease).await.unwrap();
        (leader, lease) = lead(&store, &format!("before {cut} {fresh}")).await;
        if !fresh {
            let used = usage(leader.fabric(), 300 + cut);
            leader.interval(&used).await.unwrap();
        }
        let now = queues(leader.fabric());
        let used = usage(leader.fabric(), 1 + 2 * cut + usize::from(fresh));
        let mut ahead = leader.fabric().clone();
        ahead.follow(&used);
        ahead.rebind(|_| true, false);
        let would = queues(&ahead);
        assert_ne!(would, now);
        store.left.store(cut, Ordering::Relaxed);
        let before = store.taken.load(Ordering::Relaxed);
        let done = leader.interval(&used).await;
        let taken = store.taken.load(Ordering::Relaxed) - before;
        store.left.store(usize::MAX, Ordering::Relaxed);
        assert!(done.is_err() || !fresh || taken > 2, "the snapshot took {taken} transactions");
        let cut_off = matches!(done, Err(LeaderError::Store(StoreError::Unavailable { .. })));
        assert!(done.is_ok() || cut_off, "{done:?}");
        drop(leader);
        store.revoke(lease).await.unwrap();
        (leader, lease) = lead(&store, &format!("after {cut} {fresh}")).await;
        let stored = queues(leader.fabric());
        assert!(stored == now || stored == would, "half of each after {cut} {fresh}");
        assert!(done.is_err() || stored == would, "what was done is stored");
        whole.insert((fresh, stored == now));
        // The next leader continues from the stored state and leaves no unused parts.
        let used = usage(leader.fabric(), 100 + cut);
        leader.interval(&used).await.unwrap();
        let (named, parts) = (named(&store).await, parts(&store).await);
        assert_eq!(named, parts, "after {cut} {fresh}");
    }
    assert_eq!(whole.len(), 4, "some were cut off before the binding was whole, some after");
    let history = store.list(HISTORY).await.unwrap().entries.len();
    assert!(history > 1 && history <= HISTORY_MAX, "{history}");
    leader.revert().await.unwrap();
}

/// Issue 31, defect I: the leader used to write the whole part of the binding, with the queues of
/// all tenants of the part, for each tenant whose queues changed.
#[tokio::test]
async fn an_interval_writes_the_queues_of_changed_tenants_only() {
    let folder = temp_dir();
    let store = Cut::open(&folder).await;
    let (mut leader, _) = lead(&store, "first").await;
    begin(&mut leader).await;
    let mut changes = 0;
    for round in 1..6 {
        let before = queues(leader.fabric());
        let used = usage(leader.fabric(), round);
        store.written.lock().unwrap().clear();
        leader.interval(&used).await.unwrap();
        let after = queues(leader.fabric());
        let changed = before.keys().chain(after.keys()).collect::<BTreeSet<_>>();
        let changed = changed.into_iter().filter(|name| before.get(*name) != after.get(*name));
        let changed = changed.count();
        let written = std::mem::take(&mut *store.written.lock().unwrap());
        assert!(written.iter().all(|(key, _)| !key.starts_with(BOUND)), "{written:?}");
        let bytes: usize = written.iter().map(|(_, size)| size).sum();
        assert!(bytes < 500 + 400 * changed, "{bytes} bytes for {changed} tenants");
        changes += written.iter().filter(|(key, _)| key.starts_with(JOURNAL)).count();
    }
    assert!(changes > 3, "{changes} changes");
}

/// The record of the tenants that a plan moves, and the entry of the history, are separate from the
/// binding. If their write failed, nothing wrote them again before the next plan.
#[tokio::test]
async fn the_end_of_a_plan_is_stored_later_if_its_write_failed() {
    let folder = temp_dir();
    let store = Cut::open(&folder).await;
    let (mut leader, _) = lead(&store, "first").await;
    begin(&mut leader).await;
    let count = async |prefix: &str| store.list(prefix).await.unwrap().entries.len();
    let executed = count(HISTORY).await;
    assert_eq!(count(MOVING).await, 0, "the first plan is complete");
    let used = usage(leader.fabric(), 1);
    store.left.store(1, Ordering::Relaxed);
    let done = leader.interval(&used).await;
    assert!(matches!(done, Err(LeaderError::Store(StoreError::Unavailable { .. }))), "{done:?}");
    store.left.store(usize::MAX, Ordering::Relaxed);
    assert_eq!((count(MOVING).await, count(HISTORY).await), (1, executed));
    leader.set_mode(ControlMode::Hold).await.unwrap();
    leader.interval(&used).await.unwrap();
    assert_eq!((count(MOVING).await, count(HISTORY).await), (0, executed + 1));
}

#[tokio::test]
async fn with_a_full_store_the_leader_keeps_the_binding_and_goes_on_when_there_is_space() {
    let folder = temp_dir();
    let store = Cut::open(&folder).await;
    let (mut leader, _) = lead(&store, "first").await;
    begin(&mut leader).await;
    let before = queues(leader.fabric());
    store.full.store(true, Ordering::Relaxed);
    for round in 1..4 {
        let used = usage(leader.fabric(), round);
        let done = leader.interval(&used).await;
        assert!(matches!(done, Err(LeaderError::Store(StoreError::Full { .. }))), "{done:?}");
        assert_eq!(queues(leader.fabric()), before);
    }
    assert!(leader.is_store_full());
    let refused = leader.add(tenant("late", 2, 1)).await;
    assert!(matches!(refused, Err(LeaderError::Store(StoreError::Full { .. }))), "{refused:?}");
    assert_eq!(leader.fabric().slot("late"), None);
    let all = store.list("penstock/").await.unwrap();
    assert_eq!(*store.compacted.lock().unwrap(), Some(all.revision));
    // A deletion succeeds, but does not show that the store accepts values.
    leader.remove("t1").await.unwrap();
    let told = |leader: &Leader| -> Vec<(String, String)> {
        let about = leader.events().iter().filter(|event| event.kind.starts_with("store-"));
        about.map(|event| (event.kind.clone(), event.text.clone())).collect()
    };
    let events = told(&leader);
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].0 == "store-full" && events[0].1.contains("etcdctl defrag"), "{events:?}");
    store.full.store(false, Ordering::Relaxed);
    leader.add(tenant("late", 2, 1)).await.unwrap();
    let used = usage(leader.fabric(), 4);
    leader.interval(&used).await.unwrap();
    assert_ne!(queues(leader.fabric()), before);
    assert!(!leader.is_store_full());
    let events = told(&leader);
    assert_eq!((events.len(), events[1].0.as_str()), (2, "store-writable"));
}

/// Returns the keys of all snapshots that a stored head names, with their shards.
async fn named(store: &Cut) -> BTreeSet<String> {
    let key = |s: Stamp| format!("{BOUND}{:020}.{:020}", s.epoch, s.generation);
    let mut heads = store.list(HISTORY).await.unwrap().entries;
    heads.extend(store.get("penstock/binding").await.unwrap());
    let mut all = BTreeSet::new();
    for entry in heads {
        let head: BindingHead = serde_json::from_slice(&entry.value).unwrap();
        let base = format!("{}/base", key(head.base.unwrap()));
        let entry = store.get(&base).await.unwrap().unwrap();
        all.insert(base);
        let snapshot: BindingHead = serde_json::from_slice(&entry.value).unwrap();
        for (shard, stamp) in snapshot.shards.iter().enumerate() {
            all.extend(stamp.map(|stamp| format!("{}/{shard:03}", key(stamp))));
        }
    }
    all
}
