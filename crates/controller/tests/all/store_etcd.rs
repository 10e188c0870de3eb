//! Tests an etcd cluster in which members are killed, suspended and restarted, and revisions are
//! compacted.

use std::time::Duration;

use penstock_controller::store::{Change, Etcd, Revision, Store, StoreError, Transaction, Write};
use penstock_testing::{patience, scaled};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::common::etcd::{Cluster, MEMBERS, answers};

/// Returns the time limit of a call to etcd in these tests.
fn limit() -> Duration {
    scaled(Duration::from_secs(2))
}

fn put(key: &str) -> Transaction {
    let write = Write::Put { key: key.to_owned(), value: Vec::new(), lease: None };
    Transaction { compare: Vec::new(), writes: vec![write] }
}

/// Writes a key repeatedly while the store is unreachable. Returns the number of writes that
/// failed.
async fn insist(store: &Etcd, key: &str) -> usize {
    let end = Instant::now() + patience();
    let mut failed = 0;
    loop {
        match store.commit(put(key)).await {
            Ok(_) => return failed,
            Err(StoreError::Unavailable { .. }) if Instant::now() < end => failed += 1,
            Err(error) => panic!("{key}: {error}"),
        }
    }
}

/// Waits until a watch reports a key. Returns all earlier changes that the watch reported, by
/// revision.
async fn told_until(
    watch: &mut mpsc::Receiver<Result<Change, StoreError>>,
    last: &str,
) -> Vec<(String, Revision)> {
    let mut told = Vec::new();
    loop {
        let change = timeout(patience(), watch.recv()).await.expect("a change in time");
        let Some(Ok(Change::Put(entry))) = change else { panic!("{change:?}") };
        let done = entry.key == last;
        told.push((entry.key, entry.modified));
        if done {
            return told;
        }
    }
}

#[tokio::test]
async fn with_its_leader_killed_the_store_goes_on_and_a_watch_misses_nothing() {
    let Some(mut cluster) = Cluster::start().await else { return };
    let store = cluster.store(limit());
    let mut watch = store.watch("k/", Revision(1)).await.unwrap();
    let mut failed = 0;
    for n in 0..60 {
        // The leader fails twice and returns later.
        if n % 30 == 10 {
            let leader = cluster.leads().await.unwrap();
            cluster.kill(leader);
            failed += insist(&store, &format!("k/{n:02}/without")).await;
            cluster.restart(leader);
        }
        failed += insist(&store, &format!("k/{n:02}")).await;
    }
    insist(&store, "k/last").await;
    // A write with unknown outcome may have succeeded. The watch then reports it too.
    let told = told_until(&mut watch, "k/last").await;
    assert!(told.is_sorted_by_key(|(_, revision)| *revision), "{told:?}");
    let mut stored: Vec<_> = store.list("k/").await.unwrap().entries;
    stored.sort_by_key(|entry| entry.modified);
    assert_eq!(stored.len(), 63);
    for entry in &stored {
        let times = told.iter().filter(|(_, revision)| *revision == entry.modified).count();
        assert_eq!(times, 1, "{}", entry.key);
    }
    assert!(told.len() <= stored.len() + failed, "{} told, {failed} failed", told.len());
}

#[tokio::test]
async fn one_member_cut_off_costs_a_call_and_two_cost_all_until_one_is_back() {
    let Some(cluster) = Cluster::start().await else { return };
    let store = cluster.store(limit());
    insist(&store, "before").await;
    let mut watch = store.watch("", Revision(1)).await.unwrap();
    told_until(&mut watch, "before").await;

    // The member that this client uses is the first of the list.
    cluster.stop(0);
    let slow = Instant::now();
    assert!(store.get("before").await.unwrap().is_some(), "a read is asked elsewhere");
    assert!(slow.elapsed() < limit(), "{:?}", slow.elapsed());
    let failed = insist(&store, "one").await;
    assert!(failed <= 3, "{failed}: of another leader's election, at most");
    for n in 0..20 {
        let key = format!("one/{n}");
        insist(&store, &key).await;
    }
    assert_eq!(told_until(&mut watch, "one/19").await.last().unwrap().0, "one/19");

    cluster.stop(1);
    let asked = Instant::now();
    let refused = store.commit(put("two")).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    let refused = store.get("before").await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    let (two, limit) = (asked.elapsed(), limit());
    assert!(two < 2 * limit + patience(), "{two:?} for two calls of {limit:?}");

    cluster.resume(0);
    cluster.resume(1);
    insist(&store, "after").await;
    assert_eq!(told_until(&mut watch, "after").await.last().unwrap().0, "after");
}

#[tokio::test]
async fn written_keys_survive_the_end_of_all_members() {
    let Some(mut cluster) = Cluster::start().await else { return };
    let store = cluster.store(limit());
    let mut last = Revision(0);
    for n in 0..20 {
        last = store.commit(put(&format!("kept/{n}"))).await.unwrap();
    }
    let before = store.list("kept/").await.unwrap();
    (0..MEMBERS).for_each(|number| cluster.kill(number));
    let asked = Instant::now();
    let error = store.get("kept/1").await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1") && error.contains("refused"), "{error}");
    assert!(asked.elapsed() < limit() + patience());
    (0..MEMBERS).for_each(|number| cluster.restart(number));
    answers(&store).await;
    assert_eq!(store.list("kept/").await.unwrap(), before);
    assert!(store.commit(put("more")).await.unwrap() > last);
}

#[tokio::test]
async fn a_watch_of_what_was_compacted_ends_and_says_from_where_to_go_on() {
    let Some(cluster) = Cluster::start().await else { return };
    let store = cluster.store(limit());
    let first = store.commit(put("c/a")).await.unwrap();
    let gone = Write::Delete("c/a".to_owned());
    let gone = Transaction { compare: Vec::new(), writes: vec![gone] };
    let gone = store.commit(gone).await.unwrap();
    let last = store.commit(put("c/b")).await.unwrap();
    cluster.compact(gone.0);
    // etcd also removes the deletion at the revision of the compaction.
    for from in [Revision(1), first, gone] {
        let mut watch = store.watch("c/", from).await.unwrap();
        let told = timeout(patience(), watch.recv()).await.unwrap();
        assert_eq!(told, Some(Err(StoreError::Compacted(gone))), "{from:?}");
        assert_eq!(watch.recv().await, None);
    }
    let mut watch = store.watch("c/", last).await.unwrap();
    assert_eq!(told_until(&mut watch, "c/b").await, [("c/b".to_owned(), last)]);
}
