//! Tests that a leader compacts etcd's history but keeps the values that a successor or a waiting
//! candidate needs, and that a leader survives a full etcd. If etcd is not installed, the tests are
//! skipped.

use std::sync::Arc;
use std::time::Duration;

use penstock_controller::intent::LEADER;
use penstock_controller::leader::{LeaderError, Settings};
use penstock_controller::store::{Revision, Store, StoreError, Transaction, Write};
use penstock_fabric::queue_binding::Mode;
use penstock_testing::patience;
use tokio::time::{Instant, sleep, timeout};

use crate::common::etcd::Cluster;
use crate::world::{World, tenant, usage};

/// Time limit of a call to etcd in these tests.
const LIMIT: Duration = Duration::from_secs(15);
/// Settings with which the leader compacts the store's history in every interval, and keeps only
/// the changes since the previous interval.
const AT_ONCE: Settings = Settings { verify_every: 0, history: Duration::ZERO };

/// Returns the revision up to which etcd has compacted its history.
async fn forgotten(store: &dyn Store) -> Option<Revision> {
    let mut watch = store.watch("penstock/", Revision(1)).await.unwrap();
    match timeout(patience(), watch.recv()).await.unwrap() {
        Some(Err(StoreError::Compacted(revision))) => Some(revision),
        _ => None,
    }
}

#[tokio::test]
async fn a_leader_has_etcd_forget_and_who_waits_or_follows_goes_on() {
    let Some(cluster) = Cluster::start().await else { return };
    let store: Arc<dyn Store> = Arc::new(cluster.store(LIMIT));
    let world = World::new(Mode::PerPortMap);
    let (mut leader, lease) = world.leader_with(Arc::clone(&store), "one", AT_ONCE).await;
    for name in ["a", "b", "c", "d", "e"] {
        leader.add(tenant(name, 10, 10)).await.unwrap();
    }
    // The compaction does not disturb a candidate that was already waiting.
    let other = store.lease(Duration::from_secs(60)).await.unwrap();
    let waiting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.campaign(LEADER, "two", other).await })
    };
    assert_eq!(forgotten(&*store).await, None);
    for round in 0..8 {
        let rates = if round % 2 == 0 { [("a", 9), ("b", 9)] } else { [("d", 9), ("e", 9)] };
        let used = usage(leader.fabric(), &rates);
        leader.interval(&used).await.unwrap();
    }
    let now = store.list("penstock/").await.unwrap();
    let gone = forgotten(&*store).await.expect("a watch from the beginning comes too late");
    assert!(Revision(1) < gone && gone < now.revision, "{gone:?} of {:?}", now.revision);
    // A second compaction of a revision is no error. A compaction of a future revision is an error.
    store.compact(gone).await.unwrap();
    let future = Revision(now.revision.0 + 1_000);
    assert!(store.compact(future).await.is_err());

    let marks = world.marks();
    store.revoke(lease).await.unwrap();
    let led = timeout(patience(), waiting).await.unwrap().unwrap().unwrap();
    assert!(now.entries.iter().any(|e| e.key == led.key));
    store.revoke(other).await.unwrap();
    let (leader, _) = world.leader_with(Arc::clone(&store), "three", AT_ONCE).await;
    assert_eq!((world.marks(), leader.fabric().tenants().count()), (marks, 5));
}

/// Writes large values under one key until etcd refuses them. Only the last value is in use.
async fn fill(store: &dyn Store) {
    for _ in 0..64 {
        let write = Write::Put { key: "other".to_owned(), value: vec![7; 900_000], lease: None };
        let transaction = Transaction { compare: Vec::new(), writes: vec![write] };
        match store.commit(transaction).await {
            Ok(_) => {}
            Err(StoreError::Full { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("etcd accepts more than its quota");
}

#[tokio::test]
async fn a_leader_with_a_full_etcd_keeps_the_binding_until_etcd_has_space_again() {
    let Some(cluster) = Cluster::start_small(16 << 20).await else { return };
    let store: Arc<dyn Store> = Arc::new(cluster.store(LIMIT));
    let world = World::new(Mode::PerPortMap);
    let (mut leader, lease) = world.leader_with(Arc::clone(&store), "one", AT_ONCE).await;
    let beats = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            while store.keep_alive(lease).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        })
    };
    for name in ["a", "b", "c", "d", "e"] {
        leader.add(tenant(name, 10, 10)).await.unwrap();
    }
    let used = usage(leader.fabric(), &[("a", 9), ("b", 9)]);
    leader.interval(&used).await.unwrap();
    let marks = world.marks();
    fill(&*store).await;
    // The scores of the tenants rise over some intervals, until queues change.
    let used = usage(leader.fabric(), &[("d", 9), ("e", 9)]);
    let mut refused = None;
    for _ in 0..4 {
        refused = leader.interval(&used).await.err().or(refused);
    }
    let refused = refused.expect("queues change");
    assert!(matches!(refused, LeaderError::Store(StoreError::Full { .. })), "{refused:?}");
    assert_eq!(world.marks(), marks, "a decision that is not stored is not executed");
    let told = leader.events().iter().find(|event| event.kind == "store-full").unwrap();
    assert!(told.text.contains("etcdctl alarm disarm"), "{}", told.text);
    // The leader has compacted the history, so defragmentation frees the other program's space.
    // etcd executes a compaction in the background.
    let end = Instant::now() + patience();
    loop {
        cluster.defragment();
        match leader.interval(&used).await {
            Ok(_) => break,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
    assert_ne!(world.marks(), marks);
    assert!(leader.events().iter().any(|event| event.kind == "store-writable"));
    beats.abort();
}
