//! Stores the last plan in a file.
//!
//! # Problem
//!
//! If a new plan cannot be stored, the old plan is out of date and must not be applied after a
//! restart. The new plan's stamp must survive nevertheless, or a host would follow a deposed
//! controller.
//!
//! # Approach
//!
//! A file is complete or absent. A new file is written beside the old one, synced and renamed. If a
//! file is damaged, or belongs to another host or a later program, it counts as absent. The caller
//! gets the file's name in an error.
//!
//! If a plan cannot be stored, the file is overwritten in place with the stamp alone. The stamp is
//! shorter and needs no space on the disk. If the overwriting fails too, the file is removed.
//! [`Keeper`] retries to store the plan.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;

use crate::Stamp;
use crate::fnv::fnv1a;

/// Version of the file format.
const VERSION: u32 = 1;
/// Maximum size of a file that is read, in bytes. The size is four times that of the largest
/// message.
const BYTES_MAX: u64 = 4 << 20;
/// First and longest pause between attempts to store a plan.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A plan that can be stored.
pub(crate) trait Stamped:
    Clone + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Stamp of the decision from which the plan follows.
    fn stamp(&self) -> Stamp;
}

/// Contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SavedPlan<T> {
    /// There is no file.
    Nothing,
    /// The file has the last plan.
    Whole(T),
    /// The file has only the stamp of the last plan, because the plan could not be stored.
    Stamp(Stamp),
}

/// The file of a host's plan.
#[derive(Clone, Debug)]
pub(crate) struct Saved<T> {
    host: String,
    path: PathBuf,
    kind: PhantomData<fn() -> T>,
}

#[derive(Serialize, Deserialize)]
struct Record<T> {
    version: u32,
    host: String,
    plan: Option<T>,
    /// Stamp of a plan that is not in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stamp: Option<Stamp>,
}

impl<T: Stamped> Saved<T> {
    pub(crate) fn new(host: &str, path: &Path) -> Self {
        Self { host: host.to_owned(), path: path.to_owned(), kind: PhantomData }
    }

    /// Reads the file.
    pub(crate) async fn load(&self) -> Result<SavedPlan<T>, String> {
        let this = self.clone();
        on_a_thread(move || this.read()).await
    }

    /// Stores a plan. If that fails, stores the plan's stamp or removes the file.
    ///
    /// `Ok` has a message if the plan is not stored. `Err` means that the old file is still there.
    async fn keep(&self, plan: T) -> Result<Option<String>, String> {
        let this = self.clone();
        on_a_thread(move || {
            let stamp = plan.stamp();
            let Err(error) = this.write(Some(plan), None) else { return Ok(None) };
            let text = format!(
                "{}: the plan cannot be stored: {error}; make room, and let the agent write there",
                this.path.display()
            );
            match this.write_over(stamp).or_else(|_| this.remove()) {
                Ok(()) => Ok(Some(text)),
                Err(_) => Err(text),
            }
        })
        .await
    }

    /// Stores a plan that could not be stored before.
    async fn keep_now(&self, plan: T) -> Result<(), String> {
        let this = self.clone();
        on_a_thread(move || this.write(Some(plan), None).map_err(|error| error.to_string())).await
    }

    fn read(&self) -> Result<SavedPlan<T>, String> {
        let wrong = |problem: &str| {
            let path = self.path.display();
            Err(format!(
                "{path}: {problem}; not used, all tenants share queue 0 until a plan arrives"
            ))
        };
        match fs::metadata(&self.path) {
            Ok(found) if found.len() > BYTES_MAX => return wrong("too large for a plan"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(SavedPlan::Nothing);
            }
            _ => {}
        }
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) => return wrong(&error.to_string()),
        };
        let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
            return wrong("damaged");
        };
        let (first, json) = (&text[..end], &text[end + 1..]);
        if first != format!("{:016x}", fnv1a(json)).as_bytes() {
            return wrong("damaged");
        }
        match serde_json::from_slice::<Record<T>>(json) {
            Ok(record) if record.version != VERSION => wrong("written by another version"),
            Ok(record) if record.host != self.host => {
                wrong(&format!("the plan of host {}", record.host))
            }
            Ok(Record { plan: Some(plan), .. }) => Ok(SavedPlan::Whole(plan)),
            Ok(Record { stamp: Some(stamp), .. }) => Ok(SavedPlan::Stamp(stamp)),
            Ok(_) => wrong("it says nothing"),
            Err(error) => wrong(&error.to_string()),
        }
    }

    fn text(&self, plan: Option<T>, stamp: Option<Stamp>) -> io::Result<Vec<u8>> {
        let record = Record { version: VERSION, host: self.host.clone(), plan, stamp };
        let json = serde_json::to_vec(&record)?;
        let mut text = format!("{:016x}\n", fnv1a(&json)).into_bytes();
        text.extend(json);
        Ok(text)
    }

    fn write(&self, plan: Option<T>, stamp: Option<Stamp>) -> io::Result<()> {
        let text = self.text(plan, stamp)?;
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let new = PathBuf::from(name);
        // This removes any file of this name, because a link could lead to another user's file.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.sync_folder()
    }

    /// Overwrites the file in place. This works on a full disk. A partly written file counts as
    /// absent.
    fn write_over(&self, stamp: Stamp) -> io::Result<()> {
        let text = self.text(None, Some(stamp))?;
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(false).mode(0o600);
        let mut file = options.custom_flags(nix::libc::O_NOFOLLOW).open(&self.path)?;
        file.write_all(&text)?;
        file.set_len(u64::try_from(text.len()).unwrap_or(u64::MAX))?;
        file.sync_all()?;
        self.sync_folder()
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync_folder(),
        }
    }

    /// Syncs the directory. Without a sync, a new name may not be on the disk.
    fn sync_folder(&self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Stores plans and retries failed attempts.
#[derive(Clone, Debug)]
pub(crate) struct Keeper<T> {
    saved: Saved<T>,
    /// This lock is held while the file is written.
    writing: Arc<Mutex<()>>,
    /// The plan in force, if it is not in the file.
    owed: watch::Sender<Option<T>>,
}

impl<T: Stamped> Keeper<T> {
    pub(crate) fn new(saved: Saved<T>) -> Self {
        Self { saved, writing: Arc::default(), owed: watch::Sender::new(None) }
    }

    /// Reads the file.
    pub(crate) async fn load(&self) -> Result<SavedPlan<T>, String> {
        self.saved.load().await
    }

    /// Stores a plan like [`Saved::keep`]. If this fails, [`Self::make_up`] retries.
    pub(crate) async fn keep(&self, plan: T) -> Result<Option<String>, String> {
        let _writing = self.writing.lock().await;
        let kept = self.saved.keep(plan.clone()).await;
        self.owed.send_replace(Some(plan).filter(|_| kept != Ok(None)));
        kept
    }

    /// Stamp of the plan in force, if it is not in the file.
    pub(crate) fn owed(&self) -> Option<Stamp> {
        self.owed.borrow().as_ref().map(T::stamp)
    }

    /// Retries at growing intervals and reports when the plan is stored. This future never ends.
    pub(crate) async fn make_up(self, mut kept: impl FnMut(Stamp)) {
        let mut owes = self.owed.subscribe();
        loop {
            // `self` holds the sender, so the channel cannot be closed.
            let _ = owes.wait_for(Option::is_some).await;
            let mut pause = PAUSES.0;
            loop {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
                let _writing = self.writing.lock().await;
                // A later plan may have been stored meanwhile.
                let Some(plan) = self.owed.borrow().clone() else { break };
                let stamp = plan.stamp();
                if self.saved.keep_now(plan).await.is_ok() {
                    self.owed.send_replace(None);
                    kept(stamp);
                    break;
                }
            }
        }
    }
}

async fn on_a_thread<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, String> + Send + 'static,
) -> Result<R, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::HostPlan;

    fn plan(generation: u64) -> HostPlan {
        HostPlan { stamp: Stamp { epoch: 1, generation }, ..HostPlan::default() }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[tokio::test]
    async fn a_stored_plan_is_read_back_and_a_damaged_file_counts_as_absent() {
        let folder = folder("saved");
        let path = folder.join("plan");
        let saved = Saved::<HostPlan>::new("server-1", &path);
        assert_eq!(saved.load().await, Ok(SavedPlan::Nothing));
        assert_eq!(saved.keep(plan(1)).await, Ok(None));
        assert_eq!(saved.keep(plan(2)).await, Ok(None));
        assert_eq!(saved.load().await, Ok(SavedPlan::Whole(plan(2))));
        let other = Saved::<HostPlan>::new("server-2", &path).load().await.unwrap_err();
        assert!(other.contains("the plan of host server-1"), "{other}");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert!(saved.load().await.is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(saved.load().await.is_err(), "the first {at} bytes");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_cannot_be_stored_leaves_its_stamp_and_is_stored_later() {
        let folder = folder("unsaved");
        let path = folder.join("plan");
        let keeper = Keeper::new(Saved::<HostPlan>::new("server-1", &path));
        keeper.keep(plan(1)).await.unwrap();
        // The first write must fail.
        fs::create_dir(folder.join("plan.new")).unwrap();
        let told = keeper.keep(plan(2)).await.unwrap().unwrap();
        assert!(told.contains("make room"), "{told}");
        assert_eq!(
            keeper.load().await,
            Ok(SavedPlan::Stamp(plan(2).stamp)),
            "a deposed one is known"
        );
        assert_eq!(keeper.owed(), Some(plan(2).stamp));
        let (tell, mut kept) = tokio::sync::mpsc::unbounded_channel();
        let again = tokio::spawn(keeper.clone().make_up(move |stamp| tell.send(stamp).unwrap()));
        sleep(PAUSES.1).await;
        assert_eq!(keeper.load().await, Ok(SavedPlan::Stamp(plan(2).stamp)), "still no room");
        fs::remove_dir(folder.join("plan.new")).unwrap();
        assert_eq!(kept.recv().await, Some(plan(2).stamp));
        assert_eq!((keeper.load().await, keeper.owed()), (Ok(SavedPlan::Whole(plan(2))), None));
        again.abort();
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_link_in_the_way_has_nothing_written_to_what_it_names() {
        let folder = folder("links");
        let (path, precious) = (folder.join("plan"), folder.join("precious"));
        fs::write(&precious, "precious").unwrap();
        let saved = Saved::<HostPlan>::new("server-1", &path);
        let named = || fs::read_to_string(&precious).unwrap();
        std::os::unix::fs::symlink(&precious, folder.join("plan.new")).unwrap();
        assert_eq!(saved.keep(plan(1)).await, Ok(None));
        assert_eq!(
            (saved.load().await, named().as_str()),
            (Ok(SavedPlan::Whole(plan(1))), "precious")
        );
        // If there is no room for a new file, the old file is overwritten too.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        fs::create_dir(folder.join("plan.new")).unwrap();
        assert!(saved.keep(plan(2)).await.unwrap().is_some());
        assert_eq!((saved.load().await, named().as_str()), (Ok(SavedPlan::Nothing), "precious"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_plan_of_before_is_removed_where_not_even_the_stamp_can_be_written() {
        let folder = folder("unwritten");
        let path = folder.join("plan");
        // This link leads to no file. It can be removed but not written.
        std::os::unix::fs::symlink(folder.join("no/such"), &path).unwrap();
        fs::create_dir(folder.join("plan.new")).unwrap();
        let keeper = Keeper::new(Saved::<HostPlan>::new("server-1", &path));
        assert!(keeper.keep(plan(2)).await.unwrap().is_some());
        assert_eq!(keeper.load().await, Ok(SavedPlan::Nothing));
        assert!(fs::symlink_metadata(&path).is_err(), "the name is gone");
        assert_eq!(keeper.owed(), Some(plan(2).stamp));
        fs::remove_dir_all(folder).unwrap();
    }
}
