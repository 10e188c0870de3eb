//! Tests that the leader stores a large binding atomically, and that no part of an old binding
//! remains. The tested binding is too large for one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use penstock_controller::Stamp;
use penstock_controller::carry_out::Crew;
use penstock_controller::fabric_state::{Fabric, Usage, Used};
use penstock_controller::intent::{BOUND, HISTORY, LEADER, QueueRecord};
use penstock_controller::leader::{BindingHead, HISTORY_MAX, Leader, LeaderError, Settings};
use penstock_controller::store::{
    Change, Entry, Leadership, LeaseId, Listing, Revision, Store, StoreError, Transaction,
};
use penstock_fabric::queue_binding::{Mode, Settings as BindingSettings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{Regular, Tier};
use penstock_units::{BitsPerSecond, Nanos};
use tokio::sync::mpsc;

use crate::world;
use crate::world::{FakeHosts, Folder, tenant};

const TENANTS: usize = 900;
const RATE: u64 = 10_000_000_000;

/// Store that fails after a number of transactions.
#[derive(Debug)]
struct Cut {
    inner: Arc<dyn Store>,
    left: AtomicUsize,
    taken: AtomicUsize,
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
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.inner.commit(transaction).await
    }
    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError> {
        self.inner.watch(prefix, from).await
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
        let number: usize = name[1..].parse().unwrap();
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

#[tokio::test]
async fn a_binding_is_in_force_as_a_whole_wherever_the_store_fails() {
    let folder = Folder::new("leader-parts");
    let inner = world::store(&folder.0).await;
    let (left, taken) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
    let store = Arc::new(Cut { inner, left, taken });
    let (mut leader, mut lease) = lead(&store, "first").await;
    for number in 0..TENANTS {
        leader.add(tenant(&format!("t{number}"), 2, 1)).await.unwrap();
    }
    let before = store.taken.load(Ordering::Relaxed);
    let used = usage(leader.fabric(), 0);
    leader.interval(&used).await.unwrap();
    let needed = store.taken.load(Ordering::Relaxed) - before;
    let mut now = queues(leader.fabric());
    assert!(now.len() > 200, "{} tenants have queues", now.len());
    assert!(needed > 2, "the binding took {needed} transactions");
    let mut whole = BTreeSet::new();
    for cut in 0..=needed {
        let used = usage(leader.fabric(), cut + 1);
        let mut ahead = leader.fabric().clone();
        ahead.follow(&used);
        ahead.rebind(|_| true, false);
        let would = queues(&ahead);
        assert_ne!(would, now);
        store.left.store(cut, Ordering::Relaxed);
        let done = leader.interval(&used).await;
        store.left.store(usize::MAX, Ordering::Relaxed);
        let cut_off = matches!(done, Err(LeaderError::Store(StoreError::Unavailable { .. })));
        assert!(done.is_ok() || cut_off, "{done:?}");
        drop(leader);
        store.revoke(lease).await.unwrap();
        (leader, lease) = lead(&store, &format!("after {cut}")).await;
        let stored = queues(leader.fabric());
        assert!(stored == now || stored == would, "half of each after {cut}");
        assert!(done.is_err() || stored == would, "what was done is stored");
        whole.insert(stored == now);
        // The next leader continues from the stored state and leaves no unused parts.
        let used = usage(leader.fabric(), 100 + cut);
        leader.interval(&used).await.unwrap();
        now = queues(leader.fabric());
        assert_eq!(named(&store).await, parts(&store).await, "after {cut}");
    }
    assert_eq!(whole.len(), 2, "some were cut off before the head was written, some after");
    let history = store.list(HISTORY).await.unwrap().entries.len();
    assert!(history > 1 && history <= HISTORY_MAX, "{history}");
    leader.revert().await.unwrap();
}

/// Returns the keys of all shards (parts of bindings) that a stored head lists.
async fn named(store: &Cut) -> BTreeSet<String> {
    let mut heads = store.list(HISTORY).await.unwrap().entries;
    heads.extend(store.get("penstock/binding").await.unwrap());
    let mut all = BTreeSet::new();
    for entry in heads {
        let head: BindingHead = serde_json::from_slice(&entry.value).unwrap();
        for (shard, stamp) in head.shards.iter().enumerate() {
            let key = |s: &Stamp| format!("{BOUND}{:020}.{:020}/{shard:03}", s.epoch, s.generation);
            all.extend(stamp.as_ref().map(key));
        }
    }
    all
}
