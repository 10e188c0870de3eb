//! The table of leases: a list of all loans, in a file that survives the lender.
//!
//! # Problem
//! A thread that got a real-time policy keeps it when the scheduler dies.
//!
//! # Approach
//! Every managed thread has an entry with its original policy, which is written before the first
//! change. A loan is entered before it is made, and removed after it was taken back. The watchdog
//! or the next scheduler can thus read the table and restore everything. Each scheduling thread
//! also records in the table when it will poll next.
//!
//! # Format
//! The file consists of words of 64 bits: a head, a heartbeat and a count of takings for each
//! scheduling thread, then entries of eight words. Each entry has a check sum, so that a
//! half-written entry is recognised. The file must be on a tmpfs, so that reads and writes are
//! copies in memory. It is created with room for every entry, so that a later loan cannot fail
//! because the file system is full.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::posix_fallocate;
use penstock_units::Nanos;

use crate::policy::Policy;
use crate::run_dir;

/// Priority of a thread with a lent slice: above all fair threads, below the real-time threads of
/// QEMU and the kernel.
pub const LENT: u8 = 10;
/// Priority of a blocked thread that runs at once when it is woken. It is below the priority of a
/// slice, so that a due vCPU never waits for such a thread.
pub const STANDING: u8 = LENT - 1;
/// Value of `until` for a policy that lasts as long as the scheduler runs.
pub const HELD: Nanos = Nanos(u64::MAX - 1);
/// Maximum number of scheduling threads in a table.
pub const MAX_LOOPS: usize = penstock_vcpu::terms::CPUS_MAX;
/// Maximum number of managed threads in a table.
pub const MAX_ENTRIES: usize = 1_024;

const MAGIC: u64 = 0x7073_746b_6c65_6132;
const HEAD_WORDS: usize = 8;
const TAKINGS_AT: usize = (HEAD_WORDS + MAX_LOOPS) * 8;
const ENTRY_WORDS: usize = 8;
const ENTRIES_AT: usize = TAKINGS_AT + MAX_LOOPS * 8;
const FILE_LEN: usize = ENTRIES_AT + MAX_ENTRIES * ENTRY_WORDS * 8;

/// A process or thread. The start time distinguishes it from a later process or thread with the
/// same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub pid: u32,
    /// Id of the thread. A process has the id of its first thread.
    pub tid: u32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub thread: Identity,
    /// Policy of the thread before it was managed.
    pub saved: Policy,
    /// Number of the scheduling thread that lends to this thread.
    pub by: u8,
    /// Latest time until which the thread has a real-time policy of the scheduler. 0 means that the
    /// thread has no such policy. [`HELD`] means that the thread has the policy until it is
    /// released.
    pub until: Nanos,
}

/// The open file of leases.
#[derive(Debug)]
pub struct LeaseTable {
    file: File,
}

impl LeaseTable {
    /// Creates a table without entries, and replaces any file at `path`.
    ///
    /// # Errors
    /// The file cannot be created, or the file system has no room for it.
    pub fn create(path: &Path, owner: Identity) -> io::Result<Self> {
        let fresh = path.with_extension("new");
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&fresh)?;
        let length = i64::try_from(FILE_LEN).map_err(io::Error::other)?;
        posix_fallocate(&file, 0, length)?;
        let table = Self { file };
        table.write(0, &[MAGIC, u64::from(owner.pid), u64::from(owner.tid), owner.started])?;
        std::fs::rename(fresh, path)?;
        Ok(table)
    }

    /// Opens the table that another process created.
    ///
    /// # Errors
    /// The file does not exist or is of another kind.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A process that can write this file decides whose policies are changed.
        let file = run_dir::open(OpenOptions::new().read(true).write(true), path)?;
        let is_whole = file.metadata()?.len() == u64::try_from(FILE_LEN).unwrap_or(u64::MAX);
        let table = Self { file };
        if is_whole && table.read::<1>(0)? == [MAGIC] {
            return Ok(table);
        }
        let why = format!(
            "{}: not a table of leases of this version; stop the scheduler of another version that \
             uses it, or, if there is none, remove it",
            path.display()
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Whether `path` leads to this file, and not to a later file.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        let id = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|m| (m.dev(), m.ino()));
        let mine = id(self.file.metadata());
        mine.is_some() && mine == id(std::fs::symlink_metadata(path))
    }

    /// The scheduler that created the table.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn owner(&self) -> io::Result<Identity> {
        let [_, pid, tid, started] = self.read(0)?;
        Ok(Identity { pid: half(pid), tid: half(tid), started })
    }

    /// Records that scheduling thread `at` will poll next at `next`; 0 means that it has stopped.
    ///
    /// # Errors
    /// The file cannot be written, or `at` is not below [`MAX_LOOPS`].
    pub fn beat(&self, at: usize, next: Nanos) -> io::Result<()> {
        if at >= MAX_LOOPS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.write((HEAD_WORDS + at) * 8, &[next.0])
    }

    /// Next poll of each scheduling thread; 0 if it has stopped or does not exist.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn beats(&self) -> io::Result<[Nanos; MAX_LOOPS]> {
        Ok(self.read::<MAX_LOOPS>(HEAD_WORDS * 8)?.map(Nanos))
    }

    /// Records that another process is about to take back the loans of scheduling thread `at`. The
    /// thread notices at its next poll.
    ///
    /// # Errors
    /// As for [`LeaseTable::beat`].
    pub fn note_taking(&self, at: usize) -> io::Result<()> {
        let count = self.takings(at)?;
        self.write(TAKINGS_AT + at * 8, &[count + 1])
    }

    /// How often other processes took back the loans of scheduling thread `at`.
    ///
    /// # Errors
    /// The file cannot be read, or `at` is not below [`MAX_LOOPS`].
    pub fn takings(&self, at: usize) -> io::Result<u64> {
        if at >= MAX_LOOPS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.read(TAKINGS_AT + at * 8).map(|[count]| count)
    }

    /// # Errors
    /// The file cannot be written, or `slot` is not below [`MAX_ENTRIES`].
    pub fn put(&self, slot: usize, entry: &Entry) -> io::Result<()> {
        self.write(entry_at(slot)?, &encode(entry))
    }

    /// Entry `slot`, if there is one.
    ///
    /// # Errors
    /// As for [`LeaseTable::put`].
    pub fn get(&self, slot: usize) -> io::Result<Option<Entry>> {
        Ok(decode(&self.read(entry_at(slot)?)?))
    }

    /// Removes entry `slot` if it belongs to `thread`, which is no longer managed. An entry of
    /// another thread stays.
    ///
    /// # Errors
    /// As for [`LeaseTable::put`].
    pub fn clear(&self, slot: usize, thread: Identity) -> io::Result<()> {
        let at = entry_at(slot)?;
        match decode(&self.read(at)?) {
            Some(entry) if entry.thread == thread => self.write(at, &[0; ENTRY_WORDS]),
            _ => Ok(()),
        }
    }

    /// All entries with their numbers. A half-written entry is left out, because its thread was not
    /// changed yet or was already restored.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn entries(&self) -> io::Result<Vec<(usize, Entry)>> {
        let mut bytes = vec![0; FILE_LEN - ENTRIES_AT];
        self.file.read_exact_at(&mut bytes, u64::try_from(ENTRIES_AT).unwrap_or(u64::MAX))?;
        let all = bytes.chunks_exact(ENTRY_WORDS * 8).map(words::<ENTRY_WORDS>).enumerate();
        Ok(all.filter_map(|(slot, words)| Some((slot, decode(&words)?))).collect())
    }

    fn write<const N: usize>(&self, at: usize, words: &[u64; N]) -> io::Result<()> {
        let mut bytes = [0; MAX_LOOPS * 8];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.file.write_all_at(&bytes[..N * 8], u64::try_from(at).unwrap_or(u64::MAX))
    }

    fn read<const N: usize>(&self, at: usize) -> io::Result<[u64; N]> {
        let mut bytes = [0; MAX_LOOPS * 8];
        self.file.read_exact_at(&mut bytes[..N * 8], u64::try_from(at).unwrap_or(u64::MAX))?;
        Ok(words(&bytes))
    }
}

fn entry_at(slot: usize) -> io::Result<usize> {
    if slot >= MAX_ENTRIES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(ENTRIES_AT + slot * ENTRY_WORDS * 8)
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut raw = [0; 8];
        raw.copy_from_slice(from);
        *word = u64::from_ne_bytes(raw);
    }
    words
}

fn half(word: u64) -> u32 {
    u32::try_from(word).unwrap_or(0)
}

fn encode(entry: &Entry) -> [u64; ENTRY_WORDS] {
    let (number, nice, priority, slice) = match entry.saved {
        Policy::Fair { nice, slice } => (0, nice, 0, slice.0),
        Policy::Fifo { priority } => (1, 0, priority, 0),
        // A reservation is replaced by the default policy, because the kernel's admission may
        // refuse it later.
        Policy::Deadline { .. } => (0, 0, 0, 0),
        Policy::Other { number, nice, priority } => (u64::from(number), nice, priority, 0),
    };
    let parameters = u64::from(nice.cast_unsigned()) | u64::from(priority) << 8;
    let Identity { pid, tid, started } = entry.thread;
    let ids = u64::from(pid) << 32 | u64::from(tid);
    let words = [ids, started, entry.until.0, number, parameters, slice, u64::from(entry.by), 0];
    let mut sealed = words;
    sealed[7] = seal(&words);
    sealed
}

/// A check sum that changes with every word and is never 0.
fn seal(words: &[u64; ENTRY_WORDS]) -> u64 {
    let mix =
        |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words[..7].iter().fold(MAGIC, mix) | 1
}

fn decode(words: &[u64; ENTRY_WORDS]) -> Option<Entry> {
    if words[7] != seal(words) {
        return None;
    }
    let [ids, started, until, number, parameters, slice, by, _] = *words;
    let [nice, priority, ..] = parameters.to_le_bytes();
    let nice = nice.cast_signed();
    let saved = match u32::try_from(number).ok()? {
        0 => Policy::Fair { nice, slice: Nanos(slice) },
        1 => Policy::Fifo { priority },
        number => Policy::Other { number, nice, priority },
    };
    let by = u8::try_from(by).ok().filter(|by| usize::from(*by) < MAX_LOOPS)?;
    let thread = Identity { pid: half(ids >> 32), tid: half(ids & 0xffff_ffff), started };
    Some(Entry { thread, saved, by, until: Nanos(until) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Identity = Identity { pid: 7, tid: 7, started: 99 };

    fn entry(tid: u32, saved: Policy) -> Entry {
        Entry {
            thread: Identity { pid: 5, tid, started: u64::from(tid) * 3 },
            saved,
            by: 55,
            until: Nanos(4),
        }
    }

    #[test]
    fn an_opened_table_has_what_was_written() {
        let path = std::env::temp_dir().join(format!("penstock-leases-{}", std::process::id()));
        let table = LeaseTable::create(&path, OWNER).unwrap();
        let policies = [
            Policy::Fair { nice: -20, slice: Nanos(100_000) },
            Policy::Fifo { priority: 3 },
            Policy::Other { number: 3, nice: 19, priority: 0 },
        ];
        let entries: Vec<_> = (1..).zip(policies).map(|(tid, saved)| entry(tid, saved)).collect();
        for (slot, entry) in entries.iter().enumerate() {
            table.put(slot + 1, entry).unwrap();
        }
        table.beat(2, Nanos(55)).unwrap();

        let read = LeaseTable::open(&path).unwrap();
        assert_eq!(read.owner().unwrap(), OWNER);
        let found: Vec<_> = read.entries().unwrap().into_iter().map(|(_, entry)| entry).collect();
        assert_eq!(found, entries, "a free slot before them hides none");
        assert_eq!(read.beats().unwrap()[..4], [0, 0, 55, 0].map(Nanos));
        table.clear(2, entries[0].thread).unwrap();
        assert_eq!(read.entries().unwrap().len(), 3, "another one's stays");
        table.clear(2, entries[1].thread).unwrap();
        assert_eq!(read.entries().unwrap().len(), 2);
        assert!(table.put(MAX_ENTRIES, &entries[0]).is_err());
        assert!(table.beat(MAX_LOOPS, Nanos(1)).is_err());
        read.note_taking(55).unwrap();
        assert_eq!((table.takings(55).unwrap(), table.takings(54).unwrap()), (1, 0));
        assert!(table.note_taking(MAX_LOOPS).is_err());

        assert!(table.is_at(&path) && read.is_at(&path));
        let next = LeaseTable::create(&path, OWNER).unwrap();
        assert!(next.is_at(&path) && !table.is_at(&path), "another one stands there");
        for foreign in [&[1; 64][..], &[], &[0; FILE_LEN]] {
            std::fs::write(&path, foreign).unwrap();
            assert!(LeaseTable::open(&path).unwrap_err().to_string().contains("remove it"));
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(LeaseTable::open(&path).is_err(), "a link");
        std::fs::remove_file(&path).unwrap();
        assert!(!next.is_at(&path));
    }

    #[test]
    fn an_entry_half_written_is_none() {
        let words = encode(&entry(9, Policy::DEFAULT));
        assert!(decode(&words).is_some());
        for at in 0..ENTRY_WORDS {
            let mut torn = words;
            torn[at] ^= 1;
            assert_eq!(decode(&torn), None, "word {at}");
        }
        assert_eq!(decode(&[0; ENTRY_WORDS]), None);
    }
}
