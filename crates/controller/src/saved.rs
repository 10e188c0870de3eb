//! Stores the last plan of a host or switch in a file.
//!
//! # Problem
//!
//! If a new plan cannot be stored, the stored plan is out of date and must not be applied after a
//! restart. The stamp of a plan that cannot be stored must still survive a restart. Without the
//! stamp of its last plan, a host would follow a controller that no longer leads.
//!
//! # Approach
//!
//! The plan file is always complete or absent. The host writes a plan to a new file, syncs the new
//! file, and then replaces the old file. A plan file counts as absent if it is damaged, or if
//! another host or a later version of Penstock wrote it. An error contains the plan file's name.
//!
//! If a plan cannot be stored, the host overwrites the old file in place with only the new stamp.
//! The host can write the stamp even on a full disk, because the stamp is shorter than the plan
//! that it overwrites. If the stamp cannot be written, the host removes the file. [`Keeper`] later
//! tries again to store a plan that could not be stored.

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

/// Version of the format of a plan file.
const VERSION: u32 = 1;
/// Maximum size of a plan file in bytes, which is four times the maximum size of a message with a
/// plan.
const BYTES_MAX: u64 = 4 << 20;
/// First pause and longest pause between two attempts to store a plan.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A plan with a stamp, which can be stored in a file.
pub(crate) trait Stamped:
    Clone + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Returns the stamp of the decision from which the plan follows.
    fn stamp(&self) -> Stamp;
}

/// Contents of a plan file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SavedPlan<T> {
    /// No plan file exists.
    Nothing,
    /// The plan file contains the last plan.
    Whole(T),
    /// The plan file contains only the stamp of the last plan, because the plan could not be
    /// stored.
    Stamp(Stamp),
}

/// File with the last plan of a host or switch.
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
    /// Stamp of the last plan, if the last plan could not be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stamp: Option<Stamp>,
}

impl<T: Stamped> Saved<T> {
    pub(crate) fn new(host: &str, path: &Path) -> Self {
        Self { host: host.to_owned(), path: path.to_owned(), kind: PhantomData }
    }

    pub(crate) async fn load(&self) -> Result<SavedPlan<T>, String> {
        let this = self.clone();
        on_a_thread(move || this.read()).await
    }

    #[cfg(test)]
    async fn keep(&self, plan: T) -> Result<Option<String>, String> {
        let stamp = plan.stamp();
        let written = self.prepare(plan).await;
        self.publish(stamp, written).await
    }

    /// Writes a plan beside the plan file, without changing the plan file.
    async fn prepare(&self, plan: T) -> Result<(), String> {
        let this = self.clone();
        on_a_thread(move || this.write_new(Some(plan), None).map_err(|error| error.to_string()))
            .await
    }

    /// Moves the plan that [`Self::prepare`] has written to the plan file. If the plan cannot be
    /// stored, overwrites the file with the plan's stamp, or removes the file.
    ///
    /// | Result | File |
    /// |---|---|
    /// | `Ok(None)` | the plan file contains the plan |
    /// | `Ok(Some(problem))` | the plan file contains only the stamp, or is removed |
    /// | `Err(problem)` | the plan file is unchanged |
    async fn publish(
        &self,
        stamp: Stamp,
        written: Result<(), String>,
    ) -> Result<Option<String>, String> {
        let this = self.clone();
        on_a_thread(move || {
            let renamed = |()| this.rename().map_err(|error| error.to_string());
            let written = written.and_then(renamed);
            this.stored(stamp, written)
        })
        .await
    }

    /// Removes the plan that [`Self::prepare`] has written.
    async fn discard(&self) {
        let new = self.new_path();
        // The next plan replaces the file in any case.
        let _ = on_a_thread(move || fs::remove_file(new).map_err(|error| error.to_string())).await;
    }

    /// Returns the result of [`Self::publish`]. If the plan was not stored, overwrites the plan
    /// file with the stamp, or removes the file.
    fn stored(&self, stamp: Stamp, written: Result<(), String>) -> Result<Option<String>, String> {
        let Err(error) = written else { return Ok(None) };
        let text = format!(
            "{}: the plan cannot be stored: {error}; free disk space, and permit the agent to \
             write there",
            self.path.display()
        );
        match self.write_over(stamp).or_else(|_| self.remove()) {
            Ok(()) => Ok(Some(text)),
            Err(_) => Err(text),
        }
    }

    /// Stores a plan that could not be stored at an earlier attempt.
    async fn keep_now(&self, plan: T) -> Result<(), String> {
        let this = self.clone();
        on_a_thread(move || this.write(Some(plan), None).map_err(|error| error.to_string())).await
    }

    /// Reads the plan file, and may block.
    pub(crate) fn read(&self) -> Result<SavedPlan<T>, String> {
        let wrong = |problem: &str| {
            let path = self.path.display();
            Err(format!(
                "{path}: {problem}; the agent ignores the file, so all tenants share queue 0 until \
                 a plan arrives"
            ))
        };
        match fs::metadata(&self.path) {
            Ok(found) if found.len() > BYTES_MAX => return wrong("the file is too large"),
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
                wrong(&format!("the file has the plan of host {}", record.host))
            }
            Ok(Record { plan: Some(plan), .. }) => Ok(SavedPlan::Whole(plan)),
            Ok(Record { stamp: Some(stamp), .. }) => Ok(SavedPlan::Stamp(stamp)),
            Ok(_) => wrong("the file has neither plan nor stamp"),
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
        self.write_new(plan, stamp)?;
        self.rename()
    }

    fn new_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        PathBuf::from(name)
    }

    fn write_new(&self, plan: Option<T>, stamp: Option<Stamp>) -> io::Result<()> {
        let (text, new) = (self.text(plan, stamp)?, self.new_path());
        // This removes any file of this name, because a link could lead to another user's file.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        file.sync_all()
    }

    fn rename(&self) -> io::Result<()> {
        fs::rename(self.new_path(), &self.path)?;
        self.sync_folder()
    }

    /// Overwrites the plan file in place, which also works on a full disk. After a crash, a partly
    /// written file counts as absent.
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

    /// Syncs the directory of the plan file. Without the sync, a power loss could undo the renaming
    /// or removal of a file.
    fn sync_folder(&self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Stores plans in a file, and tries again after a failure.
#[derive(Clone, Debug)]
pub(crate) struct Keeper<T> {
    saved: Saved<T>,
    /// Lock that a task holds while it writes the plan file.
    writing: Arc<Mutex<()>>,
    /// The last plan if the plan is not stored yet, or `None` if the last plan is stored.
    owed: watch::Sender<Option<T>>,
}

impl<T: Stamped> Keeper<T> {
    pub(crate) fn new(saved: Saved<T>) -> Self {
        Self { saved, writing: Arc::default(), owed: watch::Sender::new(None) }
    }

    pub(crate) async fn load(&self) -> Result<SavedPlan<T>, String> {
        self.saved.load().await
    }

    #[cfg(test)]
    async fn keep(&self, plan: T) -> Result<Option<String>, String> {
        let applied = async { Ok::<(), std::convert::Infallible>(()) };
        self.keep_if(plan, applied).await.unwrap_or_else(|never| match never {})
    }

    /// Stores a plan if `work` succeeds, and returns the same results as [`Saved::publish`]. If the
    /// plan cannot be stored, [`Self::make_up`] tries again to store it. If `work` fails, the file
    /// is unchanged. The plan is written to the disk while `work` runs, so the caller does not wait
    /// for one after the other. A write of an earlier plan does not delay `work`.
    pub(crate) async fn keep_if<E>(
        &self,
        plan: T,
        work: impl Future<Output = Result<(), E>>,
    ) -> Result<Result<Option<String>, String>, E> {
        let prepare = async {
            let writing = self.writing.lock().await;
            (writing, self.saved.prepare(plan.clone()).await)
        };
        let (done, (_writing, written)) = tokio::join!(work, prepare);
        if let Err(error) = done {
            self.saved.discard().await;
            return Err(error);
        }
        let kept = self.saved.publish(plan.stamp(), written).await;
        self.owed.send_replace(Some(plan).filter(|_| kept != Ok(None)));
        Ok(kept)
    }

    /// Returns the stamp of the last plan, if the last plan is not stored yet.
    pub(crate) fn owed(&self) -> Option<Stamp> {
        self.owed.borrow().as_ref().map(T::stamp)
    }

    /// Waits for plans that could not be stored, and tries again at growing intervals. Calls `kept`
    /// after each plan that is stored. The returned future runs until the caller drops it.
    pub(crate) async fn make_up(self, mut kept: impl FnMut(Stamp)) {
        let mut owes = self.owed.subscribe();
        loop {
            // `self` has the sender, so the channel cannot be closed.
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

    #[tokio::test]
    async fn a_stored_plan_is_read_back_and_a_damaged_file_counts_as_absent() {
        let folder = penstock_testing::temp_dir();
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
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_cannot_be_stored_leaves_its_stamp_and_is_stored_later() {
        let folder = penstock_testing::temp_dir();
        let path = folder.join("plan");
        let keeper = Keeper::new(Saved::<HostPlan>::new("server-1", &path));
        keeper.keep(plan(1)).await.unwrap();
        // The first write must fail.
        fs::create_dir(folder.join("plan.new")).unwrap();
        let told = keeper.keep(plan(2)).await.unwrap().unwrap();
        assert!(told.contains("free disk space"), "{told}");
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
    }

    #[tokio::test]
    async fn a_plan_is_written_while_it_is_applied_and_stored_only_if_it_was_applied() {
        let folder = penstock_testing::temp_dir();
        let path = folder.join("plan");
        let keeper = Keeper::new(Saved::<HostPlan>::new("server-1", &path));
        let fine = async || Ok::<(), String>(());
        assert_eq!(keeper.keep_if(plan(1), fine()).await, Ok(Ok(None)));
        // The work ends only when the next plan is beside the file.
        let new = folder.join("plan.new");
        let waits = async {
            while fs::metadata(&new).is_err() {
                tokio::task::yield_now().await;
            }
            Err("the worker has ended".to_owned())
        };
        let failed = keeper.keep_if(plan(2), waits).await;
        assert_eq!(failed, Err("the worker has ended".to_owned()));
        assert_eq!((keeper.load().await, keeper.owed()), (Ok(SavedPlan::Whole(plan(1))), None));
        assert!(fs::metadata(&new).is_err(), "nothing is left of it");
        fs::create_dir(&new).unwrap();
        let told = keeper.keep_if(plan(3), fine()).await.unwrap().unwrap().unwrap();
        assert!(told.contains("free disk space"), "{told}");
        assert_eq!(keeper.load().await, Ok(SavedPlan::Stamp(plan(3).stamp)));
        assert_eq!(keeper.owed(), Some(plan(3).stamp));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_write_of_an_earlier_plan_does_not_delay_the_work() {
        let folder = penstock_testing::temp_dir();
        let keeper = Keeper::new(Saved::<HostPlan>::new("server-1", &folder.join("plan")));
        let slow = Arc::clone(&keeper.writing).lock_owned().await;
        // The earlier write ends only when the work runs.
        let work = async {
            drop(slow);
            Ok::<(), String>(())
        };
        let kept = tokio::time::timeout(PAUSES.1, keeper.keep_if(plan(1), work)).await;
        assert_eq!(kept, Ok(Ok(Ok(None))));
        assert_eq!(keeper.load().await, Ok(SavedPlan::Whole(plan(1))));
    }

    #[tokio::test]
    async fn a_link_in_the_way_has_nothing_written_to_what_it_names() {
        let folder = penstock_testing::temp_dir();
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
    }

    #[tokio::test]
    async fn a_plan_of_before_is_removed_where_not_even_the_stamp_can_be_written() {
        let folder = penstock_testing::temp_dir();
        let path = folder.join("plan");
        // This link leads to no file. It can be removed but not written.
        std::os::unix::fs::symlink(folder.join("no/such"), &path).unwrap();
        fs::create_dir(folder.join("plan.new")).unwrap();
        let keeper = Keeper::new(Saved::<HostPlan>::new("server-1", &path));
        assert!(keeper.keep(plan(2)).await.unwrap().is_some());
        assert_eq!(keeper.load().await, Ok(SavedPlan::Nothing));
        assert!(fs::symlink_metadata(&path).is_err(), "the name is gone");
        assert_eq!(keeper.owed(), Some(plan(2).stamp));
    }
}
