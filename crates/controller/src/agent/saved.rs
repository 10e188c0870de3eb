//! The last plan, in a file.
//!
//! **Rule.** A file is whole or not there: a new one is written beside it, brought to the disk and
//! renamed. One that is damaged, of another host or of a later program counts as none, and its name
//! is told.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fnv::fnv1a;
use crate::hosts::HostPlan;

/// The form that this program writes.
const VERSION: u32 = 1;
/// Largest file that is read, bytes: four times the largest message.
const BYTES_MAX: u64 = 4 << 20;

/// Where a host's plan is kept.
#[derive(Clone, Debug)]
pub(super) struct SavedPlan {
    host: String,
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    host: String,
    plan: HostPlan,
}

impl SavedPlan {
    pub(super) fn new(host: &str, path: &Path) -> Self {
        Self { host: host.to_owned(), path: path.to_owned() }
    }

    /// The plan, if one is kept.
    pub(super) async fn load(&self) -> Result<Option<HostPlan>, String> {
        let this = self.clone();
        on_a_thread(move || this.read()).await
    }

    /// Keeps a plan. If that fails there is none any more; if that fails too, why.
    ///
    /// `Ok` has what went wrong, if the plan is not kept.
    pub(super) async fn keep(&self, plan: HostPlan) -> Result<Option<String>, String> {
        let this = self.clone();
        on_a_thread(move || {
            let Err(error) = this.write(plan) else { return Ok(None) };
            let text = format!(
                "{}: the plan cannot be kept: {error}; make room, and let the agent write there",
                this.path.display()
            );
            match this.remove() {
                Ok(()) => Ok(Some(text)),
                Err(_) => Err(text),
            }
        })
        .await
    }

    fn read(&self) -> Result<Option<HostPlan>, String> {
        let wrong = |problem: &str| {
            let path = self.path.display();
            Err(format!(
                "{path}: {problem}; not used, all tenants share queue 0 until a plan comes"
            ))
        };
        match fs::metadata(&self.path) {
            Ok(found) if found.len() > BYTES_MAX => return wrong("too large for a plan"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
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
        match serde_json::from_slice::<Record>(json) {
            Ok(record) if record.version != VERSION => wrong("written by another version"),
            Ok(record) if record.host != self.host => {
                wrong(&format!("the plan of host {}", record.host))
            }
            Ok(record) => Ok(Some(record.plan)),
            Err(error) => wrong(&error.to_string()),
        }
    }

    fn write(&self, plan: HostPlan) -> io::Result<()> {
        let record = Record { version: VERSION, host: self.host.clone(), plan };
        let json = serde_json::to_vec(&record)?;
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let new = PathBuf::from(name);
        let mut options = OpenOptions::new();
        let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        writeln!(file, "{:016x}", fnv1a(&json))?;
        file.write_all(&json)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.sync_folder()
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync_folder(),
        }
    }

    /// A name is on the disk when its folder is.
    fn sync_folder(&self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stamp;

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
    async fn what_is_kept_comes_back_and_what_is_damaged_counts_as_none() {
        let folder = folder("saved");
        let path = folder.join("plan");
        let saved = SavedPlan::new("server-1", &path);
        assert_eq!(saved.load().await, Ok(None));
        assert_eq!(saved.keep(plan(1)).await, Ok(None));
        assert_eq!(saved.keep(plan(2)).await, Ok(None));
        assert_eq!(saved.load().await, Ok(Some(plan(2))));
        let other = SavedPlan::new("server-2", &path).load().await.unwrap_err();
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

    #[tokio::test]
    async fn a_plan_that_cannot_be_kept_leaves_no_older_one() {
        let folder = folder("unsaved");
        let path = folder.join("plan");
        let saved = SavedPlan::new("server-1", &path);
        saved.keep(plan(1)).await.unwrap();
        // What is written first cannot be.
        fs::create_dir(folder.join("plan.new")).unwrap();
        let told = saved.keep(plan(2)).await.unwrap().unwrap();
        assert!(told.contains("make room"), "{told}");
        assert_eq!(saved.load().await, Ok(None), "the first would be wrong by now");
        fs::remove_dir_all(folder).unwrap();
    }
}
