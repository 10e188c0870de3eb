//! Bells: how the switch tells the vCPU scheduler that frames arrived for a VM. This module defines
//! the layout of the file that both share.
//!
//! # Problem
//! The deadline of an aperiodic VM starts at an event, and only the switch sees this event. A
//! message or a system call per frame would cost the switch too much.
//!
//! # Approach
//! Each VM has a bell: a counter in its own cache line. A worker that puts frames into a VM's ring
//! increments the counter, once per batch. The scheduler only checks at each poll whether the
//! counter has changed, so several events between two polls count as one.
//!
//! The file survives both processes, so either process may start first. A bell keeps its number as
//! long as its name is in the file. If a VM has ports on two workers, two threads ring its bell.
//! Ringing is therefore an atomic addition and not a store.
//!
//! # Trust
//! A counter only means \"changed\" or \"unchanged\". At worst, a wrong value reports an event that
//! did not happen. The VM is charged for the slice that follows. Names are compared and never used
//! as paths. The number of a bell is its position in the file and is below [`BELLS`].
//!
//! # Summons
//! A scheduling thread may want to be woken by events while it sleeps. It then writes 1 into its
//! byte beside the counter and reads the counter once more. After the worker has incremented the
//! counter, it reads these bytes, clears them, and wakes the threads whose bytes were set. A thread
//! is thus woken at most once for each time that it went to sleep.
//!
//! Either the thread sees the new count or the worker sees the byte. Both sides use sequentially
//! consistent accesses. If a side uses file reads and writes, the kernel's locks order them.
//!
//! # Layout
//!
//! | Bytes | Content |
//! |---|---|
//! | 0 to 7 | [`MAGIC`], native byte order as all words |
//! | 64 (n + 1) | counter of bell n |
//! | 64 (n + 1) + 8 + i | if not 0, scheduling thread i wants to be woken by bell n |
//! | [`NAMES_AT`] + 64 n | name of bell n, followed by zeros; all zero if the bell is free |
//!
//! A lock of the whole file (`flock`) protects the names. The counters need no lock.

use core::sync::atomic::{AtomicU64, Ordering};

/// Name of the file, in the scheduler's run directory.
pub const BELLS_FILE: &str = "bells";
/// Prefix of the socket name of scheduling thread i, in the scheduler's run directory. The number i
/// follows the prefix. Each datagram holds the name of a VM for which frames arrived.
pub const SOCKET_PREFIX: &str = "events-";
/// First word of the file.
pub const MAGIC: u64 = 0x7073_746b_6265_6c31;
/// Number of bells in the file.
pub const BELLS: u16 = 1_024;
/// Bytes per bell, so that two bells never share a cache line.
pub const LINE: usize = 64;
/// Number of summons words of a bell; each byte belongs to one scheduling thread.
pub const SUMMONS: usize = 7;
/// Maximum number of scheduling threads.
pub const THREADS_MAX: usize = SUMMONS * 8;
/// Maximum length of a name in bytes.
pub const NAME_MAX: usize = LINE - 1;
/// Offset of the names in the file, in bytes.
pub const NAMES_AT: usize = (BELLS as usize + 1) * LINE;
/// Length of the file in bytes, a multiple of the page size.
pub const FILE_LEN: usize = (NAMES_AT + BELLS as usize * LINE).next_multiple_of(4_096);

/// Number of the bell of one VM, below [`BELLS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bell(u16);

impl Bell {
    /// The bell with number `at`; `None` if the file has no such bell.
    #[must_use]
    pub const fn new(at: u16) -> Option<Self> {
        if at < BELLS { Some(Self(at)) } else { None }
    }

    /// Number of the bell.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Offset of the bell's counter in the file, in bytes.
    #[must_use]
    pub const fn counter_at(self) -> usize {
        (self.0 as usize + 1) * LINE
    }

    /// Offset of the bell's summons words in the file, in bytes.
    #[must_use]
    pub const fn summons_at(self) -> usize {
        self.counter_at() + 8
    }

    /// Offset of the bell's name in the file, in bytes.
    #[must_use]
    pub const fn name_at(self) -> usize {
        NAMES_AT + self.0 as usize * LINE
    }
}

/// Rings a bell. A thread that sees the new count also sees the frames in the ring.
#[inline]
pub fn ring(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

/// Reads and clears this summons word after [`ring`]. The result is mostly 0. Each non-zero byte
/// means that a scheduling thread must be woken ([`summoned`]).
#[inline]
pub fn take_summons(word: &AtomicU64) -> u64 {
    if word.load(Ordering::SeqCst) == 0 { 0 } else { word.swap(0, Ordering::SeqCst) }
}

/// Numbers of the threads that have a non-zero byte in summons word `at`.
pub fn summoned(at: usize, word: u64) -> impl Iterator<Item = usize> {
    let bytes = word.to_ne_bytes().into_iter().enumerate();
    bytes.filter(|(_, byte)| *byte != 0).map(move |(byte, _)| at * 8 + byte)
}

/// Result of looking up a VM's bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The VM has this bell.
    Has(Bell),
    /// The VM has no bell yet and can get this one.
    Free(Bell),
    /// All bells are assigned.
    Full,
}

/// The name as stored in the file. `None` if the name is empty, too long, or contains a zero byte.
#[must_use]
pub fn line_of(name: &str) -> Option<[u8; LINE]> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > NAME_MAX || bytes.contains(&0) {
        return None;
    }
    let mut line = [0; LINE];
    line[..bytes.len()].copy_from_slice(bytes);
    Some(line)
}

/// Looks for `name` in `names`, the content of the file from [`NAMES_AT`] on. Bells beyond the end
/// of `names` cannot be assigned.
#[must_use]
pub fn place(names: &[u8], name: &[u8; LINE]) -> Place {
    let mut free = None;
    for (at, line) in (0..BELLS).zip(names.chunks_exact(LINE)) {
        if line == name {
            return Place::Has(Bell(at));
        }
        if free.is_none() && line.iter().all(|byte| *byte == 0) {
            free = Some(Bell(at));
        }
    }
    free.map_or(Place::Full, Place::Free)
}

/// The last count that a listener read from one bell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard(u64);

impl Heard {
    /// Whether the bell was rung since the last call. On the first call: whether it was ever rung.
    pub const fn look(&mut self, count: u64) -> bool {
        core::mem::replace(&mut self.0, count) != count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bell_and_name_lies_in_the_file_and_in_a_line_of_its_own() {
        assert_eq!((Bell::new(BELLS), FILE_LEN % 4_096), (None, 0));
        let mut lines: Vec<usize> = (0..BELLS)
            .filter_map(Bell::new)
            .flat_map(|bell| [bell.counter_at(), bell.name_at()])
            .collect();
        lines.push(0);
        lines.sort_unstable();
        assert!(lines.windows(2).all(|pair| pair[0] + LINE == pair[1]), "no gap, no overlap");
        assert!(lines.iter().all(|at| at + LINE <= FILE_LEN));
    }

    #[test]
    fn a_name_keeps_its_bell_and_a_full_file_has_no_more() {
        let mut names = vec![0; usize::from(BELLS) * LINE];
        let web = line_of("web").unwrap();
        assert_eq!(place(&names, &web), Place::Free(Bell(0)));
        names[..LINE].copy_from_slice(&line_of("webb").unwrap());
        assert_eq!(place(&names, &web), Place::Free(Bell(1)));
        names[5 * LINE..6 * LINE].copy_from_slice(&web);
        assert_eq!(place(&names, &web), Place::Has(Bell(5)), "although others are free");
        names.fill(0xff);
        assert_eq!(place(&names, &web), Place::Full);
        assert_eq!(place(&names[..70], &web), Place::Full, "a file that is too short");
        assert_eq!(place(&[], &web), Place::Full);
    }

    #[test]
    fn names_that_do_not_fit_are_none() {
        assert_eq!(line_of(""), None);
        assert_eq!(line_of("a\0b"), None);
        assert!(line_of(&"a".repeat(NAME_MAX)).is_some());
        assert_eq!(line_of(&"a".repeat(NAME_MAX + 1)), None);
    }

    #[test]
    fn rings_coalesce_and_any_other_value_is_one_event() {
        let counter = AtomicU64::new(u64::MAX - 1);
        let mut heard = Heard::default();
        let mut look = || heard.look(counter.load(Ordering::Acquire));
        assert!(look() && !look(), "what was before may not have been answered");
        (0..5).for_each(|_| ring(&counter));
        assert!(look() && !look(), "five are one, and it goes round at the end of the range");
        counter.store(7, Ordering::Relaxed);
        assert!(look());
    }

    #[test]
    fn summons_are_taken_once_and_by_name() {
        let mut bytes = [0; 8];
        (bytes[0], bytes[5]) = (1, 255);
        let word = AtomicU64::new(u64::from_ne_bytes(bytes));
        let taken = take_summons(&word);
        assert_eq!(summoned(2, taken).collect::<Vec<_>>(), [16, 21]);
        assert_eq!((take_summons(&word), summoned(0, 0).count()), (0, 0));
        let last = Bell::new(BELLS - 1).unwrap();
        assert_eq!(last.summons_at() + SUMMONS * 8, last.counter_at() + LINE, "within the line");
    }

    #[test]
    fn of_two_that_ring_at_once_none_is_lost() {
        let counter = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|_| ring(&counter)));
            }
        });
        assert_eq!(counter.load(Ordering::Acquire), 20_000);
    }
}
