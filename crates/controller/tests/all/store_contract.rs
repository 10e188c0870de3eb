//! Tests that each implementation of [`Store`] keeps the contract of stores.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock_controller::store::limits::{
    KEY_BYTES_MAX, OPERATIONS_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX,
};
use penstock_controller::store::{
    Change, Compare, Embedded, Entry, LeaseId, Revision, Store, StoreError, Transaction, Write,
    leader,
};
use penstock_testing::{patience, temp_dir};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::common::etcd::Cluster;

type Watch = mpsc::Receiver<Result<Change, StoreError>>;

#[tokio::test]
async fn embedded_keeps_the_contract() {
    let dir = temp_dir();
    let store = Embedded::open(&dir.join("store.redb")).await.unwrap();
    contract(&store).await;
}

#[tokio::test]
async fn etcd_keeps_the_contract() {
    let Some(cluster) = Cluster::start().await else { return };
    contract(&cluster.store(Duration::from_secs(10))).await;
}

async fn contract<S: Store + Clone + 'static>(store: &S) {
    a_written_key_is_read_with_its_revisions(store).await;
    a_listing_is_what_begins_with_the_prefix(store).await;
    a_long_listing_is_whole(store).await;
    a_transaction_writes_all_or_nothing(store).await;
    a_transaction_without_effect_is_no_change(store).await;
    too_large_writes_are_refused_and_the_largest_accepted(store).await;
    of_writers_that_compare_none_is_lost(store).await;
    a_watch_tells_all_in_order_from_any_revision(store).await;
    large_changes_are_told_whole(store).await;
    a_lease_takes_its_keys_with_it(store).await;
    one_leads_then_the_next(store).await;
    a_candidate_that_gives_up_does_not_lead(store).await;
    a_candidate_without_a_lease_gets_an_error(store).await;
}

fn put(key: &str, value: impl Into<Vec<u8>>) -> Write {
    Write::Put { key: key.to_owned(), value: value.into(), lease: None }
}

fn leased(key: &str, lease: LeaseId) -> Transaction {
    let write = Write::Put { key: key.to_owned(), value: Vec::new(), lease: Some(lease) };
    Transaction { compare: Vec::new(), writes: vec![write] }
}

fn writes(writes: Vec<Write>) -> Transaction {
    Transaction { compare: Vec::new(), writes }
}

async fn next(watch: &mut Watch) -> Change {
    let change = timeout(patience(), watch.recv()).await.expect("a change in time");
    change.expect("a watch that goes on").unwrap()
}

async fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    store.list(prefix).await.unwrap().entries.into_iter().map(|entry| entry.key).collect()
}

async fn a_written_key_is_read_with_its_revisions(store: &dyn Store) {
    assert_eq!(store.get("a/x").await.unwrap(), None);
    let created = store.commit(writes(vec![put("a/x", "1")])).await.unwrap();
    let modified = store.commit(writes(vec![put("a/x", "2")])).await.unwrap();
    assert!(modified > created);
    let now = Entry { key: "a/x".to_owned(), value: b"2".to_vec(), created, modified };
    assert_eq!(store.get("a/x").await.unwrap(), Some(now));
    store.commit(writes(vec![Write::Delete("a/x".to_owned())])).await.unwrap();
    assert_eq!(store.get("a/x").await.unwrap(), None);
    let again = store.commit(writes(vec![put("a/x", "")])).await.unwrap();
    let entry = store.get("a/x").await.unwrap().unwrap();
    assert_eq!((entry.created, entry.modified, entry.value), (again, again, Vec::new()));
}

async fn a_listing_is_what_begins_with_the_prefix(store: &dyn Store) {
    let all = ["b", "b/", "b/2", "b/1", "b/\u{10ffff}", "b0", "ba"].map(|key| put(key, key));
    let revision = store.commit(writes(all.to_vec())).await.unwrap();
    let listing = store.list("b/").await.unwrap();
    assert_eq!(listing.revision, revision);
    let found: Vec<_> = listing.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(found, ["b/", "b/1", "b/2", "b/\u{10ffff}"]);
    assert!(keys(store, "").await.len() >= 7);
    assert_eq!(keys(store, "nothing has this").await, Vec::<String>::new());
}

async fn a_long_listing_is_whole(store: &dyn Store) {
    let all: Vec<_> = (0..600).map(|n| format!("long/{n:03}")).collect();
    for some in all.chunks(OPERATIONS_MAX) {
        let some = some.iter().map(|key| put(key, "")).collect();
        store.commit(writes(some)).await.unwrap();
    }
    assert_eq!(keys(store, "long/").await, all);
}

async fn a_transaction_writes_all_or_nothing(store: &dyn Store) {
    let key = |name: &str| format!("c/{name}");
    let first = store.commit(writes(vec![put("c/x", "1")])).await.unwrap();
    let second = store.commit(writes(vec![put("c/x", "2")])).await.unwrap();
    let cases = [
        (Compare::Absent(key("y")), true),
        (Compare::Absent(key("x")), false),
        (Compare::Created(key("x"), first), true),
        (Compare::Created(key("x"), second), false),
        (Compare::Modified(key("x"), second), true),
        (Compare::Modified(key("x"), first), false),
        (Compare::Created(key("y"), first), false),
        (Compare::Modified(key("y"), first), false),
    ];
    for (compare, holds) in cases {
        let before = store.list("c/").await.unwrap();
        let context = format!("{compare:?}");
        let (Compare::Absent(name) | Compare::Created(name, _) | Compare::Modified(name, _)) =
            compare.clone()
        else {
            unreachable!("no other comparison")
        };
        // The first condition holds. If `compare` fails, the condition after it fails too. The
        // error must then name the key of `compare`.
        let after = Compare::Absent(key("x"));
        let compare = vec![Compare::Absent(key("z")), compare];
        let compare = if holds { compare } else { [compare, vec![after]].concat() };
        let asked = Transaction { compare, writes: vec![put("c/a", "1"), put("c/b", "2")] };
        let done = store.commit(asked).await;
        if holds {
            assert_eq!(keys(store, "c/").await, ["c/a", "c/b", "c/x"], "{context}");
            let away = ["c/a", "c/b"].map(|key| Write::Delete(key.to_owned()));
            store.commit(writes(away.to_vec())).await.unwrap();
        } else {
            assert_eq!(done, Err(StoreError::Conflict(name)), "{context}");
            assert_eq!(store.list("c/").await.unwrap(), before, "{context}");
        }
    }
}

async fn a_transaction_without_effect_is_no_change(store: &dyn Store) {
    let before = store.list("").await.unwrap().revision;
    let absent = writes(vec![Write::Delete("d/absent".to_owned())]);
    assert_eq!(store.commit(absent).await.unwrap(), before);
    assert_eq!(store.commit(Transaction::default()).await.unwrap(), before);
    assert_eq!(store.list("").await.unwrap().revision, before);
}

async fn too_large_writes_are_refused_and_the_largest_accepted(store: &dyn Store) {
    let large = |length: usize| vec![7; length];
    let refused = store.commit(writes(vec![put("e/x", large(VALUE_BYTES_MAX + 1))])).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    let many = |count: usize| (0..count).map(|n| put(&format!("e/{n}"), "")).collect::<Vec<_>>();
    let refused = store.commit(writes(many(OPERATIONS_MAX + 1))).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    let twice = store.commit(writes(vec![put("e/x", ""), put("e/x", "")])).await;
    assert!(matches!(twice, Err(StoreError::Invalid(_))), "{twice:?}");
    assert_eq!(keys(store, "e/").await, Vec::<String>::new());
    store.commit(writes(vec![put("e/x", large(VALUE_BYTES_MAX))])).await.unwrap();

    // All limits at once: the most conditions and writes, with the longest keys.
    let name = |n: usize| format!("e/{n:0>width$}", width = KEY_BYTES_MAX - 2);
    let compare: Vec<_> = (0..OPERATIONS_MAX).map(|n| Compare::Absent(name(n))).collect();
    let left = TRANSACTION_BYTES_MAX - 3 * KEY_BYTES_MAX * OPERATIONS_MAX;
    let each = left / OPERATIONS_MAX;
    let full = (0..OPERATIONS_MAX).map(|n| put(&name(n), large(each))).collect();
    let full = Transaction { compare, writes: full };
    store.commit(full.clone()).await.unwrap();
    assert_eq!(store.commit(full).await, Err(StoreError::Conflict(name(0))));
}

async fn of_writers_that_compare_none_is_lost<S: Store + Clone + 'static>(store: &S) {
    const WRITERS: u64 = 4;
    const EACH: u64 = 10;
    store.commit(writes(vec![put("count", 0_u64.to_be_bytes())])).await.unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while done < EACH {
                    let now = store.get("count").await.unwrap().unwrap();
                    let count = u64::from_be_bytes(now.value.try_into().unwrap()) + 1;
                    let compare = vec![Compare::Modified("count".to_owned(), now.modified)];
                    let writes = vec![put("count", count.to_be_bytes())];
                    match store.commit(Transaction { compare, writes }).await {
                        Ok(_) => done += 1,
                        Err(error) => assert_eq!(error, StoreError::Conflict("count".to_owned())),
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let end = store.get("count").await.unwrap().unwrap();
    assert_eq!(end.value, (WRITERS * EACH).to_be_bytes());
}

async fn a_watch_tells_all_in_order_from_any_revision(store: &dyn Store) {
    let from = Revision(store.list("w/").await.unwrap().revision.0 + 1);
    let mut live = store.watch("w/", from).await.unwrap();
    let first = store.commit(writes(vec![put("w/a", "1"), put("w/b", "2")])).await.unwrap();
    store.commit(writes(vec![put("other", "")])).await.unwrap();
    let second = store.commit(writes(vec![put("w/a", "3")])).await.unwrap();
    let gone = writes(vec![put("w/c", "4"), Write::Delete("w/b".to_owned())]);
    let third = store.commit(gone).await.unwrap();
    let entry = |key: &str, value: &str, created, modified| {
        let value = value.as_bytes().to_vec();
        Change::Put(Entry { key: key.to_owned(), value, created, modified })
    };
    let expected = [
        entry("w/a", "1", first, first),
        entry("w/b", "2", first, first),
        entry("w/a", "3", first, second),
        entry("w/c", "4", third, third),
        Change::Deleted { key: "w/b".to_owned(), revision: third },
    ];
    for change in &expected {
        assert_eq!(&next(&mut live).await, change);
    }
    for (from, skipped) in [(first, 0), (Revision(first.0 + 1), 2), (second, 2), (third, 3)] {
        let mut past = store.watch("w/", from).await.unwrap();
        for change in &expected[skipped..] {
            assert_eq!(&next(&mut past).await, change, "from {from:?}");
        }
    }
    // A watch from a future revision skips earlier changes.
    let mut ahead = store.watch("w/", Revision(third.0 + 2)).await.unwrap();
    store.commit(writes(vec![put("w/early", "")])).await.unwrap();
    let due = store.commit(writes(vec![put("w/due", "")])).await.unwrap();
    assert_eq!(next(&mut ahead).await, entry("w/due", "", due, due));
}

async fn large_changes_are_told_whole(store: &dyn Store) {
    let from = Revision(store.list("l/").await.unwrap().revision.0 + 1);
    for n in 0..12_u8 {
        let half = vec![n; TRANSACTION_BYTES_MAX / 2 - 10];
        let both = vec![put("l/a", half.clone()), put("l/b", half)];
        store.commit(writes(both)).await.unwrap();
    }
    let mut watch = store.watch("l/", from).await.unwrap();
    for n in 0..12_u8 {
        for key in ["l/a", "l/b"] {
            let Change::Put(entry) = next(&mut watch).await else { panic!("not put") };
            assert!(entry.key == key && entry.value.iter().all(|byte| *byte == n), "{key} {n}");
        }
    }
}

async fn a_lease_takes_its_keys_with_it(store: &dyn Store) {
    let (short, long) = (Duration::from_secs(2), Duration::from_secs(600));
    let (ends, stays) = (store.lease(short).await.unwrap(), store.lease(long).await.unwrap());
    assert_ne!(ends, stays);
    for (key, lease) in [("t/a", ends), ("t/b", ends), ("t/c", stays)] {
        store.commit(leased(key, lease)).await.unwrap();
    }
    let freed = store.commit(writes(vec![put("t/b", "free")])).await.unwrap();
    store.keep_alive(ends).await.unwrap();
    let mut watch = store.watch("t/", Revision(freed.0 + 1)).await.unwrap();
    let Change::Deleted { key, .. } = next(&mut watch).await else { panic!("not deleted") };
    assert_eq!(key, "t/a");
    assert_eq!(store.keep_alive(ends).await, Err(StoreError::LeaseEnded(ends)));
    assert_eq!(store.commit(leased("t/a", ends)).await, Err(StoreError::LeaseEnded(ends)));
    assert_eq!(keys(store, "t/").await, ["t/b", "t/c"]);
    store.revoke(stays).await.unwrap();
    assert_eq!(keys(store, "t/").await, ["t/b"]);
    store.revoke(stays).await.unwrap();
}

async fn one_leads_then_the_next<S: Store + Clone + 'static>(store: &S) {
    let ttl = Duration::from_secs(600);
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(store.lease(ttl).await.unwrap());
    }
    let from = Revision(store.list("").await.unwrap().revision.0 + 1);
    let mut seen = store.watch("lead/", from).await.unwrap();
    let first = store.campaign("lead", "zero", leases[0]).await.unwrap();
    next(&mut seen).await;
    let mut waiting = Vec::new();
    for (n, lease) in [(1, leases[1]), (2, leases[2])] {
        let store = store.clone();
        waiting.push(tokio::spawn(async move {
            store.campaign("lead", &format!("number {n}"), lease).await
        }));
        // This candidate is queued before the next candidate arrives.
        next(&mut seen).await;
    }
    assert_eq!(leader(store, "lead").await.unwrap().unwrap().value, b"zero");
    let fenced =
        |fence: Compare| Transaction { compare: vec![fence], writes: vec![put("led", "")] };
    store.commit(fenced(first.fence())).await.unwrap();
    let mut before = first;
    for (n, candidate) in waiting.into_iter().enumerate() {
        assert!(!candidate.is_finished());
        store.revoke(before.lease).await.unwrap();
        let now = timeout(patience(), candidate).await.unwrap().unwrap().unwrap();
        assert!(now.created > before.created);
        let deposed = store.commit(fenced(before.fence())).await;
        assert_eq!(deposed, Err(StoreError::Conflict(before.key)));
        store.commit(fenced(now.fence())).await.unwrap();
        let name = format!("number {}", n + 1).into_bytes();
        assert_eq!(leader(store, "lead").await.unwrap().unwrap().value, name);
        before = now;
    }
    store.revoke(before.lease).await.unwrap();
    assert_eq!(leader(store, "lead").await.unwrap(), None);
}

async fn a_candidate_that_gives_up_does_not_lead<S: Store + Clone + 'static>(store: &S) {
    let ttl = Duration::from_secs(600);
    let (one, two) = (store.lease(ttl).await.unwrap(), store.lease(ttl).await.unwrap());
    let first = store.campaign("give", "one", one).await.unwrap();
    let mut seen = store.watch("give/", Revision(first.created.0 + 1)).await.unwrap();
    let candidate = tokio::spawn({
        let store = store.clone();
        async move { store.campaign("give", "two", two).await }
    });
    next(&mut seen).await;
    candidate.abort();
    let Change::Deleted { .. } = next(&mut seen).await else { panic!("not withdrawn") };
    assert_eq!(keys(store, "give/").await, [first.key.as_str()]);
    // The same lease may campaign again.
    store.revoke(one).await.unwrap();
    let again = store.campaign("give", "two", two).await.unwrap();
    assert!(again.created > first.created);
    store.revoke(two).await.unwrap();
}

async fn a_candidate_without_a_lease_gets_an_error<S: Store + Clone + 'static>(store: &S) {
    let ttl = Duration::from_secs(600);
    let (one, two) = (store.lease(ttl).await.unwrap(), store.lease(ttl).await.unwrap());
    let first = store.campaign("late", "one", one).await.unwrap();
    let mut seen = store.watch("late/", Revision(first.created.0 + 1)).await.unwrap();
    let candidate = tokio::spawn({
        let store = store.clone();
        async move { store.campaign("late", "two", two).await }
    });
    next(&mut seen).await;
    store.revoke(two).await.unwrap();
    let told = timeout(patience(), candidate).await.unwrap().unwrap();
    assert_eq!(told, Err(StoreError::LeaseEnded(two)));
    assert_eq!(store.campaign("late", "two", two).await, Err(StoreError::LeaseEnded(two)));
    let all: BTreeSet<_> = keys(store, "late/").await.into_iter().collect();
    assert_eq!(all, BTreeSet::from([first.key]));
    store.revoke(one).await.unwrap();
}
