use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use penstock_testing::{TempDir, temp_dir};
use redb::StorageBackend;
use redb::backends::FileBackend;

use super::super::{Compare, Write, leader};
use super::*;

/// Directory of a store.
struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(temp_dir())
    }

    fn file(&self) -> PathBuf {
        self.0.join("controller.redb")
    }
}

fn put(key: &str, value: &[u8]) -> Write {
    Write::Put { key: key.to_owned(), value: value.to_vec(), lease: None }
}

fn write(write: Write) -> Transaction {
    Transaction { compare: Vec::new(), writes: vec![write] }
}

#[tokio::test]
async fn written_keys_survive_a_restart_with_their_revisions() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    let first = store.commit(write(put("t/a", b"1"))).await.unwrap();
    let second = store.commit(write(put("t/a", b"2"))).await.unwrap();
    let third = store.commit(write(put("t/b", b"3"))).await.unwrap();
    let before = store.list("").await.unwrap();
    drop(store);
    let store = Embedded::open(&dir.file()).await.unwrap();
    let after = store.list("").await.unwrap();
    assert_eq!(before, after);
    assert_eq!(
        (after.revision, after.entries[0].created, after.entries[0].modified),
        (third, first, second)
    );
    let next = store.commit(write(put("t/c", b"4"))).await.unwrap();
    assert_eq!(next, Revision(third.0 + 1));
}

#[tokio::test]
async fn a_second_opener_is_told_which_file_and_what_to_do() {
    let dir = Dir::new();
    let first = Embedded::open(&dir.file()).await.unwrap();
    let error = Embedded::open(&dir.file()).await.unwrap_err().to_string();
    assert!(error.contains("controller.redb: another program has the file open; stop"), "{error}");
    drop(first);
    Embedded::open(&dir.file()).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_is_missing_is_named() {
    let error = Embedded::open(Path::new("/nowhere/at/all")).await.unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all") && error.contains("create its directory"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_at_its_time_and_not_before() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    let lease = store.lease(Duration::from_secs(10)).await.unwrap();
    let leased = |value: &[u8]| {
        write(Write::Put { key: "host/1".to_owned(), value: value.to_vec(), lease: Some(lease) })
    };
    store.commit(leased(b"here")).await.unwrap();
    tokio::time::advance(Duration::from_secs(9)).await;
    store.keep_alive(lease).await.unwrap();
    tokio::time::advance(Duration::from_millis(9_999)).await;
    assert!(store.get("host/1").await.unwrap().is_some());
    let from = Revision(store.list("").await.unwrap().revision.0 + 1);
    let mut changes = store.watch("host/", from).await.unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;
    let change = changes.recv().await.unwrap().unwrap();
    assert_eq!(change, Change::Deleted { key: "host/1".to_owned(), revision: from });
    assert_eq!(store.get("host/1").await.unwrap(), None);
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseEnded(lease)));
    assert_eq!(store.commit(leased(b"late")).await, Err(StoreError::LeaseEnded(lease)));
}

#[tokio::test(start_paused = true)]
async fn a_key_put_again_without_a_lease_stays() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    let lease = store.lease(Duration::from_secs(10)).await.unwrap();
    for key in ["a", "b"] {
        let leased = Write::Put { key: key.to_owned(), value: Vec::new(), lease: Some(lease) };
        store.commit(write(leased)).await.unwrap();
    }
    store.commit(write(put("a", b"for good"))).await.unwrap();
    let mut changes = store.watch("b", Revision(4)).await.unwrap();
    changes.recv().await.unwrap().unwrap();
    let left = store.list("").await.unwrap().entries;
    assert_eq!(left.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn leased_keys_do_not_outlive_the_program() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    let lease = store.lease(Duration::from_secs(3_600)).await.unwrap();
    let leadership = store.campaign("leader", "one", lease).await.unwrap();
    store.commit(write(put("stays", b""))).await.unwrap();
    drop(store);
    let store = Embedded::open(&dir.file()).await.unwrap();
    assert_eq!(leader(&store, "leader").await.unwrap(), None);
    let left = store.list("").await.unwrap();
    assert_eq!((left.entries.len(), left.revision), (1, Revision(3)));
    let late = Transaction { compare: vec![leadership.fence()], writes: vec![put("x", b"")] };
    assert_eq!(store.commit(late).await, Err(StoreError::Conflict(leadership.key)));
}

#[tokio::test]
async fn a_watch_of_what_is_no_longer_kept_ends_with_compacted() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    let mut slow = store.watch("", Revision(1)).await.unwrap();
    // The slow watch has read one change when the history overflows.
    store.commit(write(put("first", b""))).await.unwrap();
    slow.recv().await.unwrap().unwrap();
    let each = limits::OPERATIONS_MAX;
    for round in 0..=2 * state::HISTORY_CHANGES_MAX / each {
        let writes = (0..each).map(|n| put(&format!("k/{n}"), &[u8::try_from(round).unwrap()]));
        let all = Transaction { compare: Vec::new(), writes: writes.collect() };
        store.commit(all).await.unwrap();
    }
    let mut ended = None;
    while let Some(change) = slow.recv().await {
        ended = Some(change);
    }
    assert!(matches!(ended, Some(Err(StoreError::Compacted(_)))), "{ended:?}");
    let mut late = store.watch("", Revision(1)).await.unwrap();
    let Some(Err(StoreError::Compacted(kept))) = late.recv().await else { panic!("not compacted") };
    assert_eq!(late.recv().await, None);
    // The history in memory begins at the error's revision and is complete.
    let mut kept = store.watch("", kept).await.unwrap();
    for n in 0..state::HISTORY_CHANGES_MAX {
        let Some(Ok(Change::Put(entry))) = kept.recv().await else { panic!("change {n}") };
        assert_eq!(entry.key, format!("k/{}", n % each));
    }
}

#[tokio::test]
async fn a_watch_ends_when_the_store_is_closed() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    let mut changes = store.watch("", Revision(1)).await.unwrap();
    drop(store);
    let end = changes.recv().await;
    assert!(matches!(end, Some(Err(StoreError::Unavailable { .. }))), "{end:?}");
    assert_eq!(changes.recv().await, None);
}

/// Simulated disk that becomes full on request. On a full disk, writes fail, but reads work.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    full: Arc<AtomicBool>,
    /// Number of further writes until the disk is full.
    room: Arc<AtomicU64>,
}

impl Disk {
    fn refuse(&self) -> Result<(), std::io::Error> {
        let full = self.full.load(Ordering::SeqCst);
        let left = |room: u64| room.checked_sub(1);
        let room = || self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
        if full && room().is_err() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.refuse()?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.refuse()?;
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.refuse()?;
        self.file.write(offset, data)
    }
    fn close(&self) -> Result<(), std::io::Error> {
        self.file.close()
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_keeps_all_else_and_goes_on_when_there_is_room() {
    let dir = Dir::new();
    // The fault happens after `room_left` writes. This is before, between or after the parts of a
    // commit.
    for room_left in 0..12 {
        let path = dir.0.join(format!("{room_left}.redb"));
        let (full, room) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (flag, count) = (Arc::clone(&full), Arc::clone(&room));
        let opener = move |path: &Path| {
            let mut options = fs::OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
            let file = FileBackend::new(file)?;
            let disk = Disk { file, full: Arc::clone(&flag), room: Arc::clone(&count) };
            file::builder().create_with_backend(disk)
        };
        let store = Embedded::open_with(&path, Box::new(opener)).await.unwrap();
        store.commit(write(put("kept", b"1"))).await.unwrap();
        let before = store.list("").await.unwrap();

        room.store(room_left, Ordering::SeqCst);
        full.store(true, Ordering::SeqCst);
        let large = || write(put("large", &[7; 100_000]));
        let refused = store.commit(large()).await;
        if let Err(error) = &refused {
            assert!(error.to_string().contains("free disk space"), "{room_left}: {error}");
            assert_eq!(store.list("").await.unwrap(), before, "{room_left}");
            store.commit(large()).await.unwrap_err();
        }
        full.store(false, Ordering::SeqCst);
        let next = store.commit(large()).await.unwrap();
        assert_eq!(next.0, before.revision.0 + 1 + u64::from(refused.is_ok()), "{room_left}");
        let now = store.list("").await.unwrap();
        drop(store);
        let store = Embedded::open(&path).await.unwrap();
        assert_eq!(store.list("").await.unwrap(), now, "{room_left}");
        assert_eq!(now.entries.len(), 2);
    }
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_as_it_was() {
    let dir = Dir::new();
    fs::write(dir.file(), b"a letter to a friend, not a store".repeat(300)).unwrap();
    let before = fs::read(dir.file()).unwrap();
    let error = Embedded::open(&dir.file()).await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    assert_eq!(fs::read(dir.file()).unwrap(), before);
}

#[tokio::test]
async fn a_damaged_file_is_refused_or_read_right_never_read_wrong() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    for n in 0..40 {
        store.commit(write(put(&format!("tenant/{n}"), &[n; 300]))).await.unwrap();
    }
    let right = store.list("").await.unwrap();
    drop(store);
    let whole = fs::read(dir.file()).unwrap();
    let (damaged, mut refused) = (dir.0.join("damaged.redb"), 0);
    // The test damages every 1,009th byte of the file and the first bytes of the header. It also
    // truncates the file in three places.
    let places = (0..64).chain((64..whole.len()).step_by(1_009));
    for place in places {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x55;
        fs::write(&damaged, &bytes).unwrap();
        match Embedded::open(&damaged).await {
            Ok(store) => assert!(store.list("").await.unwrap() == right, "byte {place}"),
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                let told = error.contains("damaged.redb") && !error.contains("panic");
                assert!(told, "byte {place}: {error}");
            }
        }
    }
    for length in [whole.len() / 2, 4_096, 100] {
        fs::write(&damaged, &whole[..length]).unwrap();
        match Embedded::open(&damaged).await {
            Ok(store) => assert!(store.list("").await.unwrap() == right, "{length} bytes"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused >= 3, "{refused}");
}

#[tokio::test]
async fn of_two_candidates_the_second_leads_when_the_first_ends() {
    let dir = Dir::new();
    let store = Embedded::open(&dir.file()).await.unwrap();
    let ttl = Duration::from_secs(60);
    let (one, two) = (store.lease(ttl).await.unwrap(), store.lease(ttl).await.unwrap());
    let first = store.campaign("leader", "one", one).await.unwrap();
    let waits = tokio::spawn({
        let store = store.clone();
        async move { store.campaign("leader", "two", two).await }
    });
    let mut changes = store.watch("leader/", Revision(2)).await.unwrap();
    changes.recv().await.unwrap().unwrap();
    assert_eq!(leader(&store, "leader").await.unwrap().unwrap().value, b"one");
    store.revoke(one).await.unwrap();
    let second = waits.await.unwrap().unwrap();
    assert!(second.created > first.created);
    let late = Transaction { compare: vec![first.fence()], writes: vec![put("x", b"")] };
    assert_eq!(store.commit(late).await, Err(StoreError::Conflict(first.key)));
    let now = Transaction { compare: vec![second.fence()], writes: vec![put("x", b"")] };
    store.commit(now).await.unwrap();
    let compare = vec![Compare::Absent("x".to_owned())];
    let again = Transaction { compare, writes: vec![put("x", b"")] };
    assert_eq!(store.commit(again).await, Err(StoreError::Conflict("x".to_owned())));
}
