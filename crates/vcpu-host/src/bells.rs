//! Reads the counters (*bells*) that the switch increments when frames arrive for VMs
//! (`penstock_vcpu::bells`). A *bell* is a counter in a file that the switch writes. The switch
//! increments a VM's bell when frames arrive for the VM.
//!
//! The vCPU scheduler reads the switch's file of frame-arrival counters (bells) with `pread`, and
//! never maps the file. If another process shortens the file, a read returns fewer bytes, but a
//! mapping would raise SIGBUS in a real-time thread. Reading the 64-byte entry of one VM in the
//! file of frame-arrival counters costs 0.3 us per poll. If a VM's frame-arrival counter (bell)
//! cannot be read, the reader reports that no frames arrived.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_vcpu::bells::{
    BELLS, BELLS_FILE, Bell, Heard, LINE, MAGIC, NAMES_AT, Place, THREADS_MAX, line_of, place,
};

use crate::run_dir;

#[derive(Debug)]
pub struct Bells {
    path: PathBuf,
    file: File,
}

fn offset(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}

impl Bells {
    ///
    /// # Errors
    /// Returns an error if the file of frame-arrival counters (bells) cannot be opened or has
    /// another format. The error is `NotFound` if no switch has created the file of frame-arrival
    /// counters yet.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(BELLS_FILE);
        let file = run_dir::open(File::options().read(true).write(true), &path)?;
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0)?;
        if u64::from_ne_bytes(magic) != MAGIC {
            let why = format!("{}: not a file of vCPU doorbells; remove the file", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { path, file })
    }

    /// Whether the open file of frame-arrival counters (bells) is still the file in the run
    /// directory. Another program may have replaced the file of frame-arrival counters.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let id = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|m| (m.dev(), m.ino()));
        id(self.file.metadata()) == id(std::fs::symlink_metadata(&self.path))
    }

    /// Returns the number of the frame-arrival counter (bell) of the VM `name`; `None` if the
    /// switch has not assigned a counter to the VM.
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

/// Reader of one VM's frame-arrival counter (bell) for one scheduling thread.
#[derive(Clone, Debug)]
pub struct Ear {
    bells: Arc<Bells>,
    bell: Bell,
    thread: usize,
    heard: Heard,
    /// Whether the scheduling thread's wake-up request was still set when the thread last read the
    /// VM's frame-arrival counter.
    summons: bool,
}

impl Ear {
    /// Creates a reader of one VM's frame-arrival counter (bell). If the switch ever counted frames
    /// for the VM before, the first read reports new frames, because the vCPU may not have answered
    /// yet. If the vCPU has already answered, the VM is charged for an unnecessary real-time slice.
    #[must_use]
    pub fn new(bells: Arc<Bells>, bell: Bell, thread: usize) -> Self {
        Self { bells, bell, thread, heard: Heard::default(), summons: false }
    }

    /// Whether this reader reads the frame-arrival counter `bell` in the file `bells`.
    #[must_use]
    pub fn is_of(&self, bells: &Arc<Bells>, bell: Bell) -> bool {
        Arc::ptr_eq(&self.bells, bells) && self.bell == bell
    }

    /// Whether the switch has counted frames for the VM since the last call.
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

    /// Requests that the switch wakes the scheduling thread when the next frame arrives for the VM.
    /// Returns true if frames have arrived since the last read, because the switch's worker may
    /// have missed the wake-up request.
    pub fn summon(&mut self) -> bool {
        if self.summons || self.thread >= THREADS_MAX {
            return false;
        }
        let at = offset(self.bell.summons_at() + self.thread);
        // If the write fails, each poll still reads the file.
        self.bells.file.write_all_at(&[1], at).is_ok() && self.hear()
    }
}

#[cfg(test)]
mod tests {
    use penstock_vcpu::bells::FILE_LEN;

    use super::*;

    /// Makes a file of frame-arrival counters (bells) in the switch's format, with one VM.
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
    fn a_ring_is_seen_once() {
        let dir = penstock_testing::temp_dir();
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
    fn before_sleeping_a_thread_asks_to_be_woken_and_looks_again() {
        let dir = penstock_testing::temp_dir();
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
        // If another process shortens the file, the reader reports no frames and the thread
        // survives.
        file.set_len(100).unwrap();
        assert!(!ear.hear());
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        let dir = penstock_testing::temp_dir();
        std::fs::write(dir.join(BELLS_FILE), [1; 64]).unwrap();
        assert!(Bells::open(&dir).unwrap_err().to_string().contains("remove the file"));
    }
}
