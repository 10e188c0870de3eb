//! Layout of a file in which the switch counts, for each VM, how often frames arrived. A bell is a
//! counter with which the switch notifies the vCPU scheduler that frames arrived for a VM.
//!
//! # Problem
//! The deadline of an aperiodic VM starts at an external event, and only the switch sees the event.
//! A message or a system call for each frame would cost the switch too much.
//!
//! # Approach
//! Each VM has a bell, which is a counter in its own cache line. A worker of the switch that puts
//! frames into a VM's ring increments the VM's counter, once per batch. The vCPU scheduler only
//! checks at each poll whether the counter has changed, so several events between two polls count
//! as one event.
//!
//! The file of frame-arrival counters outlives the switch and the vCPU scheduler, so these programs
//! may start in any order. A VM keeps its bell (frame-arrival counter) while the VM's name is in
//! the file. If a VM has ports on two workers, two threads increment the VM's counter. A thread
//! therefore increments a counter by an atomic addition and not by a store.
//!
//! # Trust
//! The vCPU scheduler only checks whether a counter changed. A wrong counter value can at worst
//! report an event that did not happen. The scheduler charges the VM for the slice that follows an
//! event, even if the event was false. The scheduler compares names in the file and never uses them
//! as paths. The number of a VM's frame-arrival counter (bell) is its position in the file, which
//! is below [`BELLS`].
//!
//! # Summons
//! Before a scheduling thread sleeps, it may ask the switch for a wake-up when frames arrive for a
//! VM. In the file, the 64-byte entry of each VM has one byte per scheduling thread for wake-up
//! requests. A scheduling thread that wants to sleep writes 1 into its byte and reads the counter
//! once more. A worker of the switch first increments a VM's counter, and then reads and clears the
//! bytes of all scheduling threads in the VM's entry. The worker wakes each scheduling thread that
//! had requested a wake-up. The switch therefore wakes a sleeping scheduling thread only once.
//!
//! No wake-up is lost, because either the scheduling thread sees the new count, or the worker sees
//! the thread's byte. Accesses to the mapped file are sequentially consistent. If a process
//! accesses the file of frame-arrival counters by file reads and writes, the kernel's locks order
//! these accesses.
//!
//! # Layout
//!
//! | Bytes | Content |
//! |---|---|
//! | bytes 0 to 7 | the word [`MAGIC`]; all words of the file are in native byte order |
//! | from byte 64 (n + 1) | 8-byte frame-arrival counter of VM number n |
//! | byte 64 (n + 1) + 8 + i | not 0 if scheduling thread i wants a wake-up for VM number n |
//! | from byte [`NAMES_AT`] + 64 n | name of VM number n, zero-padded; zero if n is free |
//!
//! A lock of the whole file (`flock`) protects the VM names in the file of frame-arrival counters.
//! Reads and writes of the counters need no lock.

use core::sync::atomic::{AtomicU64, Ordering};

/// Name of the file of frame-arrival counters (bells) in the vCPU scheduler's run directory.
pub const BELLS_FILE: &str = "bells";
/// Prefix of the names of sockets in the vCPU scheduler's run directory. A socket's name consists
/// of the prefix and the number of a scheduling thread. Each datagram to a scheduling thread's
/// socket contains the name of a VM for which frames arrived.
pub const SOCKET_PREFIX: &str = "events-";
/// First word of the file of frame-arrival counters (bells), which identifies the file format.
pub const MAGIC: u64 = 0x7073_746b_6265_6c31;
/// Number of VM entries (bells) in the file of frame-arrival counters.
pub const BELLS: u16 = 1_024;
/// Number of bytes of a VM's entry (bell) in the file, so that two VMs' frame-arrival counters
/// never share a cache line.
pub const LINE: usize = 64;
/// Number of 8-byte words for wake-up requests in a VM's entry of the file of frame-arrival
/// counters. Each byte of the words for wake-up requests belongs to one scheduling thread.
pub const SUMMONS: usize = 7;
/// Maximum number of scheduling threads that can request wake-ups.
pub const THREADS_MAX: usize = SUMMONS * 8;
/// Maximum length of a VM's name in the file of frame-arrival counters, in bytes.
pub const NAME_MAX: usize = LINE - 1;
/// Offset in bytes of the VM names in the file of frame-arrival counters.
pub const NAMES_AT: usize = (BELLS as usize + 1) * LINE;
/// Length in bytes of the file of frame-arrival counters, a multiple of the page size.
pub const FILE_LEN: usize = (NAMES_AT + BELLS as usize * LINE).next_multiple_of(4_096);

/// Number of a VM's frame-arrival counter (bell) in the file, below [`BELLS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bell(u16);

impl Bell {
    /// Returns the frame-arrival counter with number `at`; `None` if `at` is not below [`BELLS`].
    #[must_use]
    pub const fn new(at: u16) -> Option<Self> {
        if at < BELLS { Some(Self(at)) } else { None }
    }

    /// Returns the number of the frame-arrival counter, below [`BELLS`].
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Offset in bytes of the VM's frame-arrival counter in the file.
    #[must_use]
    pub const fn counter_at(self) -> usize {
        (self.0 as usize + 1) * LINE
    }

    /// Offset in bytes of the wake-up requests for the VM in the file of frame-arrival counters.
    #[must_use]
    pub const fn summons_at(self) -> usize {
        self.counter_at() + 8
    }

    /// Offset in bytes of the VM's name in the file of frame-arrival counters.
    #[must_use]
    pub const fn name_at(self) -> usize {
        NAMES_AT + self.0 as usize * LINE
    }
}

/// Increments a VM's frame-arrival counter (bell). The caller must have put frames into the VM's
/// ring before the call. A thread that reads the new count also sees the frames that the caller put
/// into the VM's ring.
#[inline]
pub fn ring(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

/// Reads and clears a word of wake-up requests. The caller must increment the VM's counter with
/// [`ring`] before it calls [`take_summons`]. Each non-zero byte of the returned word is the
/// wake-up request of one scheduling thread ([`summoned`]).
#[inline]
pub fn take_summons(word: &AtomicU64) -> u64 {
    if word.load(Ordering::SeqCst) == 0 { 0 } else { word.swap(0, Ordering::SeqCst) }
}

/// Returns the numbers of the scheduling threads that requested a wake-up in `word`. `at` is the
/// index of `word` among the words for wake-up requests in the VM's entry of the file.
pub fn summoned(at: usize, word: u64) -> impl Iterator<Item = usize> {
    let bytes = word.to_ne_bytes().into_iter().enumerate();
    bytes.filter(|(_, byte)| *byte != 0).map(move |(byte, _)| at * 8 + byte)
}

/// Result of [`place`], which looks up a VM's entry in the file of frame-arrival counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The VM already has the frame-arrival counter with this number.
    Has(Bell),
    /// The VM has no frame-arrival counter yet, and the counter with this number is free.
    Free(Bell),
    /// All frame-arrival counters are assigned to other VMs.
    Full,
}

/// Encodes a VM's name for the file of frame-arrival counters, padded with zero bytes. Returns
/// `None` if the name is empty, too long, or contains a zero byte.
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

/// Searches for the VM `name` in `names`, the part of the file of frame-arrival counters that
/// starts at [`NAMES_AT`]. The function assigns a counter only if the counter's name field lies
/// within `names`.
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

/// The last value that a scheduling thread read from a VM's frame-arrival counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard(u64);

impl Heard {
    /// Returns whether `count` differs from the count of the last call, or from 0 at the first
    /// call.
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
