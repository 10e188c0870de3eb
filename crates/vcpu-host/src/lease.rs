//! The table of what is lent, in a file that outlives who lent it.
//!
//! **Problem.** A thread that was given a real-time policy keeps it when the giver dies.
//! **Rule.** Every thread that is managed has an entry with the policy it came with, written before
//! it is changed the first time; what is lent is entered before it is lent, and struck out after it
//! was taken back. So whoever finds the table can put everything right: the watchdog, or the next
//! scheduler. Each scheduling thread leaves there too when it will poll next.
//!
//! **Form.** Words of 64 bits: a head, 64 heartbeats, entries of eight words with a check sum, so
//! that an entry which was half written is known as such. The file belongs on a tmpfs: then reads
//! and writes are copies in memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use penstock_units::Nanos;

use crate::policy::Policy;

/// Priority of a thread that was lent a slice: above all that is fair, below QEMU's and the
/// kernel's real-time threads.
pub const LENT: u8 = 10;
/// `until` of a thread whose policy stands for as long as the scheduler lives.
pub const HELD: Nanos = Nanos(u64::MAX - 1);
/// Scheduling threads in a table.
pub const MAX_LOOPS: usize = penstock_vcpu::terms::CPUS_MAX;
/// Managed threads in a table.
pub const MAX_ENTRIES: usize = 1_024;

const MAGIC: u64 = 0x7073_746b_6c65_6131;
const HEAD_WORDS: usize = 8;
const ENTRY_WORDS: usize = 8;
const ENTRIES_AT: usize = (HEAD_WORDS + MAX_LOOPS) * 8;

/// A process or thread that is not mistaken for a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Of the process.
    pub pid: u32,
    /// Of the thread; of a process, that of its first thread.
    pub tid: u32,
    /// When it began, in clock ticks since boot.
    pub started: u64,
}

/// What is known of a managed thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub thread: Identity,
    /// How it was scheduled before it was managed.
    pub saved: Policy,
    /// It has a real-time policy of ours until then at the latest; 0: it has none, [`HELD`]: until
    /// it is given back.
    pub until: Nanos,
}

/// See the module's text.
#[derive(Debug)]
pub struct LeaseTable {
    file: File,
}

impl LeaseTable {
    /// A new table, without entries. Whatever was at `path` is gone.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path, owner: Identity) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.set_len(u64::try_from(ENTRIES_AT + MAX_ENTRIES * ENTRY_WORDS * 8).unwrap_or(0))?;
        let table = Self { file };
        let head = [MAGIC, u64::from(owner.pid), u64::from(owner.tid), owner.started];
        table.write(0, &head)?;
        Ok(table)
    }

    /// The table somebody else made.
    ///
    /// # Errors
    /// There is none, or the file is something else.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let table = Self { file };
        let [magic] = table.read::<1>(0)?;
        if magic == MAGIC {
            return Ok(table);
        }
        let why = format!("{}: not a table of leases; remove it", path.display());
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// The scheduler that made it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn owner(&self) -> io::Result<Identity> {
        let [_, pid, tid, started] = self.read(0)?;
        Ok(Identity { pid: half(pid), tid: half(tid), started })
    }

    /// Scheduling thread number `at` will poll at `next` again; 0: it has stopped.
    ///
    /// # Errors
    /// The file cannot be written, or `at` is not below [`MAX_LOOPS`].
    pub fn beat(&self, at: usize, next: Nanos) -> io::Result<()> {
        if at >= MAX_LOOPS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.write((HEAD_WORDS + at) * 8, &[next.0])
    }

    /// When each scheduling thread is to poll next; 0: it has stopped, or there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn beats(&self) -> io::Result<[Nanos; MAX_LOOPS]> {
        Ok(self.read::<MAX_LOOPS>(HEAD_WORDS * 8)?.map(Nanos))
    }

    /// Writes entry number `slot`.
    ///
    /// # Errors
    /// The file cannot be written, or `slot` is not below [`MAX_ENTRIES`].
    pub fn put(&self, slot: usize, entry: &Entry) -> io::Result<()> {
        if slot >= MAX_ENTRIES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.write(ENTRIES_AT + slot * ENTRY_WORDS * 8, &encode(entry))
    }

    /// Strikes entry number `slot` out: its thread is not managed any more.
    ///
    /// # Errors
    /// As [`LeaseTable::put`].
    pub fn clear(&self, slot: usize) -> io::Result<()> {
        if slot >= MAX_ENTRIES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.write(ENTRIES_AT + slot * ENTRY_WORDS * 8, &[0; ENTRY_WORDS])
    }

    /// All entries, with their numbers. One that is half written is left out: its thread was not
    /// changed yet, or was changed back already.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn entries(&self) -> io::Result<Vec<(usize, Entry)>> {
        let mut found = Vec::new();
        for slot in 0..MAX_ENTRIES {
            let words = self.read(ENTRIES_AT + slot * ENTRY_WORDS * 8)?;
            // Slots are taken from the first on, and there is a mark behind the last.
            if words == [0; ENTRY_WORDS] && self.is_end(slot)? {
                break;
            }
            found.extend(decode(&words).map(|entry| (slot, entry)));
        }
        Ok(found)
    }

    /// Slots from `slots` on are never used: readers stop there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_end(&self, slots: usize) -> io::Result<()> {
        self.write(4 * 8, &[u64::try_from(slots).unwrap_or(u64::MAX)])
    }

    fn is_end(&self, slot: usize) -> io::Result<bool> {
        let [end] = self.read(4 * 8)?;
        Ok(u64::try_from(slot).is_ok_and(|slot| slot >= end))
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
        let mut words = [0; N];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut raw = [0; 8];
            raw.copy_from_slice(from);
            *word = u64::from_ne_bytes(raw);
        }
        Ok(words)
    }
}

fn half(word: u64) -> u32 {
    u32::try_from(word).unwrap_or(0)
}

fn encode(entry: &Entry) -> [u64; ENTRY_WORDS] {
    let (number, nice, priority, slice) = match entry.saved {
        Policy::Fair { nice, slice } => (0, nice, 0, slice.0),
        Policy::Fifo { priority } => (1, 0, priority, 0),
        // What is reserved is given back as the default: admission may refuse it by then.
        Policy::Deadline { .. } => (0, 0, 0, 0),
        Policy::Other { number, nice, priority } => (u64::from(number), nice, priority, 0),
    };
    let parameters = u64::from(nice.cast_unsigned()) | u64::from(priority) << 8;
    let Identity { pid, tid, started } = entry.thread;
    let ids = u64::from(pid) << 32 | u64::from(tid);
    let words = [ids, started, entry.until.0, number, parameters, slice, 0, 0];
    let mut sealed = words;
    sealed[7] = seal(&words);
    sealed
}

/// Differs when any word does, and is not 0.
fn seal(words: &[u64; ENTRY_WORDS]) -> u64 {
    let mix =
        |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words[..7].iter().fold(MAGIC, mix) | 1
}

fn decode(words: &[u64; ENTRY_WORDS]) -> Option<Entry> {
    if words[7] != seal(words) {
        return None;
    }
    let [ids, started, until, number, parameters, slice, ..] = *words;
    let [nice, priority, ..] = parameters.to_le_bytes();
    let nice = nice.cast_signed();
    let saved = match u32::try_from(number).ok()? {
        0 => Policy::Fair { nice, slice: Nanos(slice) },
        1 => Policy::Fifo { priority },
        number => Policy::Other { number, nice, priority },
    };
    let thread = Identity { pid: half(ids >> 32), tid: half(ids & 0xffff_ffff), started };
    Some(Entry { thread, saved, until: Nanos(until) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Identity = Identity { pid: 7, tid: 7, started: 99 };

    fn entry(tid: u32, saved: Policy) -> Entry {
        Entry {
            thread: Identity { pid: 5, tid, started: u64::from(tid) * 3 },
            saved,
            until: Nanos(4),
        }
    }

    #[test]
    fn who_opens_it_finds_what_was_written() {
        let path = std::env::temp_dir().join(format!("penstock-leases-{}", std::process::id()));
        let table = LeaseTable::create(&path, OWNER).unwrap();
        table.set_end(4).unwrap();
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
        table.clear(2).unwrap();
        assert_eq!(read.entries().unwrap().len(), 2);
        assert!(table.put(MAX_ENTRIES, &entries[0]).is_err());
        assert!(table.beat(MAX_LOOPS, Nanos(1)).is_err());
        std::fs::write(&path, [1; 64]).unwrap();
        assert!(LeaseTable::open(&path).unwrap_err().to_string().contains("remove it"));
        std::fs::remove_file(&path).unwrap();
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
