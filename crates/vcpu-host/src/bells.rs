//! The scheduler's end of the bells (`penstock_vcpu::bells`): a file that the switch writes and
//! this side reads.
//!
//! **Rule.** It is read with `pread` and never mapped: a file that somebody shortens gives a short
//! read, where a mapping would give SIGBUS in a real-time thread. One read of a few lines a poll
//! costs 0.3 us, and what is missing was not rung.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use penstock_vcpu::bells::{BELLS, Bell, FILE_LEN, LINE, MAGIC, NAME_MAX, NAMES_AT, Place};
use penstock_vcpu::bells::{line_of, place};

/// The file of bells.
#[derive(Debug)]
pub struct Bells {
    file: File,
}

fn offset(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}

impl Bells {
    /// Opens the file at `path`, or makes it. Bells that are in it keep their numbers.
    ///
    /// # Errors
    /// It cannot be opened, or is something else.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        file.lock()?;
        let mut magic = [0; 8];
        let length = file.metadata()?.len();
        if length >= 8 {
            file.read_exact_at(&mut magic, 0)?;
        }
        // Zeroes: whoever made it has not come to write, or died before.
        if length > 0 && ![0, MAGIC].contains(&u64::from_ne_bytes(magic)) {
            let why = format!("{}: not a file of bells; remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if length < offset(FILE_LEN) {
            file.set_len(offset(FILE_LEN))?;
        }
        file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
        file.unlock()?;
        Ok(Self { file })
    }

    /// The bell of the VM `name`, which is given one if it has none.
    ///
    /// # Errors
    /// All are given away, the name is no name, or the file cannot be read or written.
    pub fn claim(&self, name: &str) -> io::Result<Bell> {
        let Some(line) = line_of(name) else {
            let why = format!("{name:?} names no bell; use 1 to {NAME_MAX} bytes without a zero");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        self.file.lock()?;
        let claimed = self.enter(&line);
        self.file.unlock()?;
        match claimed? {
            Some(bell) => Ok(bell),
            None => {
                let why = format!(
                    "all {BELLS} bells are given away, none is left for {name:?}; stop switch and \
                     scheduler and remove the file"
                );
                Err(io::Error::new(io::ErrorKind::StorageFull, why))
            }
        }
    }

    fn enter(&self, line: &[u8; LINE]) -> io::Result<Option<Bell>> {
        let mut names = vec![0; usize::from(BELLS) * LINE];
        self.file.read_exact_at(&mut names, offset(NAMES_AT))?;
        Ok(match place(&names, line) {
            Place::Has(bell) => Some(bell),
            Place::Full => None,
            Place::Free(bell) => {
                self.file.write_all_at(line, offset(bell.name_at()))?;
                Some(bell)
            }
        })
    }

    /// The counter of `bell`; `None` if the file does not reach so far.
    #[must_use]
    pub fn count(&self, bell: Bell) -> Option<u64> {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, offset(bell.counter_at())).ok()?;
        Some(u64::from_ne_bytes(word))
    }

    /// Adds one to the counter of `bell`, for those without a mapping. Of two that do so at once
    /// one may be lost, and the other is heard.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn ring(&self, bell: Bell) -> io::Result<()> {
        let count = self.count(bell).ok_or(io::ErrorKind::UnexpectedEof)?;
        let next = count.wrapping_add(1).to_ne_bytes();
        self.file.write_all_at(&next, offset(bell.counter_at()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_vcpu::bells::Heard;
    use std::path::PathBuf;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("penstock-bells-{name}-{}", std::process::id()))
    }

    #[test]
    fn either_side_may_begin_and_begin_again() {
        let path = path("restart");
        let (switch, mut heard) = (Bells::open(&path).unwrap(), Heard::default());
        let (web, db) = (switch.claim("web").unwrap(), switch.claim("db").unwrap());
        assert_ne!(web, db);
        let scheduler = Bells::open(&path).unwrap();
        assert_eq!(scheduler.claim("web").unwrap(), web);
        let mut look = |bells: &Bells| bells.count(web).is_some_and(|count| heard.look(count));
        assert!(!look(&scheduler));
        switch.ring(db).unwrap();
        assert!(!look(&scheduler), "another one's");
        switch.ring(web).unwrap();
        assert!(look(&scheduler) && !look(&scheduler));
        drop(switch);
        Bells::open(&path).unwrap().ring(web).unwrap();
        drop(scheduler);
        assert!(look(&Bells::open(&path).unwrap()), "what was rung meanwhile is heard");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_stands_in_the_file_is_not_trusted() {
        let path = path("hostile");
        std::fs::write(&path, [1; 64]).unwrap();
        assert!(Bells::open(&path).unwrap_err().to_string().contains("remove it"));
        std::fs::write(&path, MAGIC.to_ne_bytes()).unwrap();
        let bells = Bells::open(&path).unwrap();
        let last = Bell::new(BELLS - 1).unwrap();
        assert_eq!(bells.count(last), Some(0), "it is made as long as it has to be");
        let mut noise = vec![0xff; FILE_LEN];
        noise[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        std::fs::write(&path, &noise).unwrap();
        assert_eq!(bells.count(last), Some(u64::MAX));
        assert!(bells.claim("web").unwrap_err().to_string().contains("remove the file"));
        assert!(bells.claim("").unwrap_err().to_string().contains("1 to 63 bytes"));
        bells.ring(last).unwrap();
        assert_eq!(bells.count(last), Some(0));
        // Cut off while it is in use: nothing is heard, and nobody dies of it.
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert_eq!(bells.count(last), None);
        assert!(bells.ring(last).is_err() && bells.claim("web").is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
