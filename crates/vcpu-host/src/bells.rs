//! The scheduler's end of the bells (`penstock_vcpu::bells`): a file that the switch makes and
//! writes, and this side reads.
//!
//! **Rule.** It is read with `pread` and never mapped: a file that somebody shortens gives a short
//! read, where a mapping would give SIGBUS in a real-time thread. One read of a line a poll costs
//! 0.3 us, and what is missing was not rung.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_vcpu::bells::{
    BELLS, BELLS_FILE, Bell, Heard, LINE, MAGIC, NAMES_AT, Place, THREADS_MAX, line_of, place,
};

use crate::run_dir;

/// The file of bells.
#[derive(Debug)]
pub struct Bells {
    path: PathBuf,
    file: File,
}

fn offset(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}

impl Bells {
    /// Opens the file in `dir`.
    ///
    /// # Errors
    /// It cannot be opened, or is something else; `NotFound`: no switch has made it yet.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(BELLS_FILE);
        let file = run_dir::open(File::options().read(true).write(true), &path)?;
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0)?;
        if u64::from_ne_bytes(magic) != MAGIC {
            let why = format!("{}: not a file of bells; remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { path, file })
    }

    /// Whether it is still the file that stands there.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let id = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|m| (m.dev(), m.ino()));
        id(self.file.metadata()) == id(std::fs::symlink_metadata(&self.path))
    }

    /// The bell of the VM `name`; `None` if the switch has given it none.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Bell> {
        let mut names = vec![0; usize::from(BELLS) * LINE];
        self.file.read_exact_at(&mut names, offset(NAMES_AT)).ok()?;
        match place(&names, &line_of(name)?) {
            Place::Has(bell) => Some(bell),
            Place::Free(_) | Place::Full => None,
        }
    }
}

/// What one scheduling thread hears of one VM's bell.
#[derive(Clone, Debug)]
pub struct Ear {
    bells: Arc<Bells>,
    bell: Bell,
    /// Number of the scheduling thread.
    thread: usize,
    heard: Heard,
    /// Its byte of summons was set at the last look.
    summons: bool,
}

impl Ear {
    /// If it was ever rung, the first look hears that: who was seated a moment ago may not have
    /// answered yet, and one slice too many is charged to that VM.
    #[must_use]
    pub fn new(bells: Arc<Bells>, bell: Bell, thread: usize) -> Self {
        Self { bells, bell, thread, heard: Heard::default(), summons: false }
    }

    /// Whether it is of that bell in that file.
    #[must_use]
    pub fn is_of(&self, bells: &Arc<Bells>, bell: Bell) -> bool {
        Arc::ptr_eq(&self.bells, bells) && self.bell == bell
    }

    /// Whether it was rung since the last look.
    pub fn hear(&mut self) -> bool {
        let mut line = [0; LINE];
        let at = offset(self.bell.counter_at());
        if self.bells.file.read_exact_at(&mut line, at).is_err() {
            return false;
        }
        let (count, summons) = line.split_at(8);
        self.summons = summons.get(self.thread).is_none_or(|byte| *byte != 0);
        let count = count.try_into().map_or(0, u64::from_ne_bytes);
        self.heard.look(count)
    }

    /// Wants to be woken when it is rung next. Whether it was rung meanwhile, and nobody may have
    /// seen that.
    pub fn summon(&mut self) -> bool {
        if self.summons || self.thread >= THREADS_MAX {
            return false;
        }
        let at = offset(self.bell.summons_at() + self.thread);
        // A file that cannot be written any more is looked at in each poll all the same.
        self.bells.file.write_all_at(&[1], at).is_ok() && self.hear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_vcpu::bells::FILE_LEN;

    fn dir(name: &str) -> PathBuf {
        let dir = format!("penstock-ear-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// The file as the switch makes it, with one VM.
    fn file(dir: &Path, vm: &str) -> File {
        let path = dir.join(BELLS_FILE);
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path);
        let file = file.unwrap();
        file.set_len(offset(FILE_LEN)).unwrap();
        file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
        let at = Bell::new(5).unwrap().name_at();
        file.write_all_at(&line_of(vm).unwrap(), offset(at)).unwrap();
        file
    }

    fn ring(file: &File, bell: Bell, count: u64) {
        file.write_all_at(&count.to_ne_bytes(), offset(bell.counter_at())).unwrap();
    }

    #[test]
    fn what_is_rung_is_heard_once() {
        let dir = dir("heard");
        assert_eq!(Bells::open(&dir).unwrap_err().kind(), io::ErrorKind::NotFound);
        let file = file(&dir, "web");
        let bells = Arc::new(Bells::open(&dir).unwrap());
        assert_eq!(bells.find("db"), None);
        let web = bells.find("web").unwrap();
        ring(&file, web, 7);
        let mut ear = Ear::new(Arc::clone(&bells), web, 3);
        assert!(ear.hear() && !ear.hear(), "what was before may not be answered");
        ring(&file, web, 9);
        assert!(ear.hear() && !ear.hear(), "two are one");
        assert!(bells.is_current());
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(!bells.is_current());
    }

    #[test]
    fn who_sleeps_leaves_word_and_looks_once_more() {
        let dir = dir("summons");
        let file = file(&dir, "web");
        let bells = Arc::new(Bells::open(&dir).unwrap());
        let web = bells.find("web").unwrap();
        let mut ear = Ear::new(bells, web, 3);
        let summons = || {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, offset(web.summons_at())).unwrap();
            bytes
        };
        assert!(!ear.hear(), "never rung");
        ring(&file, web, 1);
        assert!(ear.summon(), "rung since the last look");
        assert_eq!(summons(), [0, 0, 0, 1, 0, 0, 0, 0]);
        assert!(!ear.summon(), "still there");
        file.write_all_at(&[0; 8], offset(web.summons_at())).unwrap();
        ring(&file, web, 2);
        assert!(ear.hear() && !ear.summon() && summons()[3] == 1, "taken away and set again");
        // Cut off while it is in use: nothing is heard, and nobody dies of it.
        file.set_len(100).unwrap();
        assert!(!ear.hear());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn something_else_is_refused() {
        let dir = dir("foreign");
        std::fs::write(dir.join(BELLS_FILE), [1; 64]).unwrap();
        assert!(Bells::open(&dir).unwrap_err().to_string().contains("remove it"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
