//! Tests that a leader compacts etcd's history but keeps the values that a successor or a waiting
//! candidate needs. If etcd is not installed, the test is skipped.

use std::sync::Arc;
use std::time::Duration;

use penstock_controller::intent::LEADER;
use penstock_controller::leader::Settings;
use penstock_controller::store::{Revision, Store, StoreError};
use penstock_fabric::queue_binding::Mode;
use penstock_testing::patience;
use tokio::time::timeout;

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
