//! The table of thread policies (*leases*), which lists all temporary real-time policies in a file
//! that survives the scheduler. The scheduler gives a temporary real-time policy to a vCPU's
//! thread.
//!
//! # Problem
//! If the scheduler dies before it ends a temporary real-time policy, the vCPU's thread keeps this
//! policy.
//!
//! # Approach
//! Every managed thread has an entry with its original policy, which the scheduler writes before
//! the first change. The scheduler writes an entry into the table before it sets a temporary
//! real-time policy. The scheduler removes the entry after it has restored the original policy. The
//! watchdog or the next scheduler can thus read the table and restore the policies of all threads.
//! Each scheduling thread also writes the time of its next poll into the table of thread policies.
//!
//! # Format
//! The file of the table consists of words of 64 bits, in the following order:
//! 1. A header, which identifies the file format and the scheduler.
//! 2. For each scheduling thread, a heartbeat: the time of its next poll.
//! 3. For each scheduling thread, the number of times that another process ended the real-time
//!    policies that this thread had lent.
//! 4. Entries of eight 64-bit words, one for each managed thread. Each entry has a checksum, so
//!    that readers recognise a half-written entry.
//!
//! The file with the table of thread policies must be on a tmpfs, so that reads and writes of the
//! table are copies in memory. The table's file has room for all entries from the start, so that a
//! full file system cannot prevent a later temporary real-time policy.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::posix_fallocate;
use penstock_units::Nanos;

use crate::policy::Policy;
use crate::run_dir;

/// Real-time priority of a thread with a lent slice: above all fair threads, below the real-time
/// threads of QEMU and the kernel.
pub const LENT: u8 = 10;
/// Real-time priority of a blocked thread that keeps a real-time policy (a standing lease). The
/// priority is below the priority [`LENT`] of slices, so that a due vCPU never waits for a thread
/// with the priority [`STANDING`].
pub const STANDING: u8 = LENT - 1;
/// Value of [`Entry::until`] for a reservation. A reservation has no end time: the scheduler sets
/// the thread's policy, and later restores the original policy.
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

/// Identity of a process or thread. The start time distinguishes a process from a later process
/// with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub pid: u32,
    /// Id of the thread, or of the first thread of a process.
    pub tid: u32,
    /// Start time of the thread in clock ticks since boot.
    pub started: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub thread: Identity,
    /// Policy of the thread before the scheduler managed the thread.
    pub saved: Policy,
    /// Number of the scheduling thread that lends a real-time policy to the thread of this entry.
    pub by: u8,
    /// Latest end of the thread's temporary real-time policy. 0 means that the thread has no
    /// temporary policy. [`HELD`] means that the thread has a reservation.
    pub until: Nanos,
}

/// The open file of the table of thread policies.
#[derive(Debug)]
pub struct LeaseTable {
    file: File,
}

impl LeaseTable {
    /// Creates a table of thread policies without entries. The new table of thread policies
    /// replaces any file at `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created, or if the file system has no room for the
    /// file.
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

    /// Opens the table of thread policies that another process created at `path`.
    ///
    /// # Errors
    /// Returns an error if the file does not exist or is not a table of thread policies of this
    /// version.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A process that can write this file determines which threads' policies are changed.
        let file = run_dir::open(OpenOptions::new().read(true).write(true), path)?;
        let is_whole = file.metadata()?.len() == u64::try_from(FILE_LEN).unwrap_or(u64::MAX);
        let table = Self { file };
        if is_whole && table.read::<1>(0)? == [MAGIC] {
            return Ok(table);
        }
        let why = format!(
            "{}: the file is no lease table of this version; stop the scheduler of another \
             version, or remove the file if no scheduler runs",
            path.display()
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Whether `path` still leads to the open file, and not to a file that replaced it.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        let id = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|m| (m.dev(), m.ino()));
        let mine = id(self.file.metadata());
        mine.is_some() && mine == id(std::fs::symlink_metadata(path))
    }

    /// Returns the identity of the scheduler that created the table.
    ///
    /// # Errors
    /// Returns an error if the file of the table cannot be read.
    pub fn owner(&self) -> io::Result<Identity> {
        let [_, pid, tid, started] = self.read(0)?;
        Ok(Identity { pid: half(pid), tid: half(tid), started })
    }

    /// Records `next`, the time of the next poll of scheduling thread number `at`. 0 means that the
    /// scheduling thread has stopped.
    ///
    /// # Errors
    /// Returns an error if the file with the table of thread policies cannot be written, or if the
    /// thread number `at` is not below [`MAX_LOOPS`].
    pub fn beat(&self, at: usize, next: Nanos) -> io::Result<()> {
        if at >= MAX_LOOPS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.write((HEAD_WORDS + at) * 8, &[next.0])
    }

    /// Time of the next poll of each scheduling thread; 0 if the scheduling thread has stopped or
    /// does not exist.
    ///
    /// # Errors
    /// Returns an error if the file of the table cannot be read.
    pub fn beats(&self) -> io::Result<[Nanos; MAX_LOOPS]> {
        Ok(self.read::<MAX_LOOPS>(HEAD_WORDS * 8)?.map(Nanos))
    }

    /// Records that the calling process is about to end the temporary real-time policies of
    /// scheduling thread number `at`. The scheduling thread notices at its next poll that its
    /// temporary real-time policies were ended.
    ///
    /// # Errors
    /// Returns an error if the file with the table of thread policies cannot be read or written, or
    /// if the thread number `at` is not below [`MAX_LOOPS`].
    pub fn note_taking(&self, at: usize) -> io::Result<()> {
        let count = self.takings(at)?;
        self.write(TAKINGS_AT + at * 8, &[count + 1])
    }

    /// Number of times that other processes ended the temporary real-time policies of scheduling
    /// thread number `at`.
    ///
    /// # Errors
    /// Returns an error if the file with the table of thread policies cannot be read, or if the
    /// thread number `at` is not below [`MAX_LOOPS`].
    pub fn takings(&self, at: usize) -> io::Result<u64> {
        if at >= MAX_LOOPS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.read(TAKINGS_AT + at * 8).map(|[count]| count)
    }

    /// # Errors
    /// Returns an error if the file with the table of thread policies cannot be written, or if the
    /// entry number `slot` is not below [`MAX_ENTRIES`].
    pub fn put(&self, slot: usize, entry: &Entry) -> io::Result<()> {
        self.write(entry_at(slot)?, &encode(entry))
    }

    /// Reads entry number `slot` of the table of thread policies; `None` if the slot is free.
    ///
    /// # Errors
    /// Returns an error if the file with the table of thread policies cannot be read, or if the
    /// entry number `slot` is not below [`MAX_ENTRIES`].
    pub fn get(&self, slot: usize) -> io::Result<Option<Entry>> {
        Ok(decode(&self.read(entry_at(slot)?)?))
    }

    /// Removes entry number `slot` if the entry belongs to `thread`, which is no longer managed. If
    /// the entry belongs to another thread, the function does not remove the entry.
    ///
    /// # Errors
    /// Returns an error if the file with the table of thread policies cannot be read or written, or
    /// if the entry number `slot` is not below [`MAX_ENTRIES`].
    pub fn clear(&self, slot: usize, thread: Identity) -> io::Result<()> {
        let at = entry_at(slot)?;
        match decode(&self.read(at)?) {
            Some(entry) if entry.thread == thread => self.write(at, &[0; ENTRY_WORDS]),
            _ => Ok(()),
        }
    }

    /// Reads all entries of the table of thread policies with their numbers, except half-written
    /// entries. The thread of a half-written entry was not changed yet or was already restored.
    ///
    /// # Errors
    /// Returns an error if the file of the table cannot be read.
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
        // The default policy replaces a reservation, because the kernel's admission may refuse the
        // reservation later.
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

/// Computes an entry's checksum, which depends on every word and is never 0.
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
            assert!(LeaseTable::open(&path).unwrap_err().to_string().contains("remove the file"));
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
