//! How the switch tells the scheduler that frames came for a VM: the layout of a file both share.
//!
//! **Problem.** An aperiodic VM has its deadline from an event on, and the switch is who knows of
//! it. A message a frame, or a system call, is more than the switch can pay. **Rule.** Each VM has
//! a bell: a counter in a cache line of its own. Who puts frames into a VM's ring adds one, once a
//! batch, and the scheduler looks at each poll whether the counter is another than the last time.
//! So events coalesce by themselves. The file outlives both: neither has to begin first, and a
//! bell keeps its number as long as its name stands in the file. Several may ring one bell (a VM
//! with ports on two workers), so ringing is an addition and not a store.
//!
//! **Trust.** A counter means nothing but "another than before": whatever is written there, the
//! worst it does is to say that something came, which is charged to that VM. Names are compared,
//! never followed; numbers come from a place in the file and are below [`BELLS`].
//!
//! **Summons.** A scheduling thread that sleeps, and would act on an event, writes 1 into its byte
//! beside the counter and looks at the counter once more. Who rings looks at these bytes after the
//! addition, takes them away, and wakes whose they were: once for each time that a thread went to
//! sleep. Either the thread sees the count or the one who rings sees the byte (both orders are
//! sequentially consistent; a file's write and read are, by the kernel's locks).
//!
//! | Bytes | What |
//! |---|---|
//! | 0 to 7 | [`MAGIC`], native byte order as all words |
//! | 64 (n + 1) | counter of bell n |
//! | 64 (n + 1) + 8 + i | not 0: scheduling thread i wants to be woken by bell n |
//! | [`NAMES_AT`] + 64 n | name of bell n, zeroes behind it; all zero: nobody's |
//!
//! Names are entered under a lock of the whole file (`flock`), counters need none.

use core::sync::atomic::{AtomicU64, Ordering};

/// Name of the file, in the scheduler's directory.
pub const BELLS_FILE: &str = "bells";
/// Name of the socket of scheduling thread i in that directory, before its number. A datagram is
/// the name of a VM that something came for.
pub const SOCKET_PREFIX: &str = "events-";
/// First word of the file.
pub const MAGIC: u64 = 0x7073_746b_6265_6c31;
/// How many bells there are.
pub const BELLS: u16 = 1_024;
/// Bytes of a line: one bell never shares a cache line with another.
pub const LINE: usize = 64;
/// Words of summons of a bell; a byte is one scheduling thread's.
pub const SUMMONS: usize = 7;
/// Most scheduling threads.
pub const THREADS_MAX: usize = SUMMONS * 8;
/// Longest name, in bytes.
pub const NAME_MAX: usize = LINE - 1;
/// Where the names begin.
pub const NAMES_AT: usize = (BELLS as usize + 1) * LINE;
/// Bytes of the file, whole pages.
pub const FILE_LEN: usize = (NAMES_AT + BELLS as usize * LINE).next_multiple_of(4_096);

/// One VM's bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bell(u16);

impl Bell {
    /// Number `at`; `None` if there is none.
    #[must_use]
    pub const fn new(at: u16) -> Option<Self> {
        if at < BELLS { Some(Self(at)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Where its counter is in the file.
    #[must_use]
    pub const fn counter_at(self) -> usize {
        (self.0 as usize + 1) * LINE
    }

    /// Where its words of summons begin.
    #[must_use]
    pub const fn summons_at(self) -> usize {
        self.counter_at() + 8
    }

    /// Where its name is in the file.
    #[must_use]
    pub const fn name_at(self) -> usize {
        NAMES_AT + self.0 as usize * LINE
    }
}

/// Something came. Whoever sees the counter sees the frames in the ring too.
#[inline]
pub fn ring(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

/// Takes away who wants to be woken, by this word of summons, after [`ring`]; mostly nobody. A byte
/// of the result that is not 0 is a scheduling thread's ([`summoned`]).
#[inline]
pub fn take_summons(word: &AtomicU64) -> u64 {
    if word.load(Ordering::SeqCst) == 0 { 0 } else { word.swap(0, Ordering::SeqCst) }
}

/// The numbers of the threads whose bytes are set in word `at` of the summons.
pub fn summoned(at: usize, word: u64) -> impl Iterator<Item = usize> {
    let bytes = word.to_ne_bytes().into_iter().enumerate();
    bytes.filter(|(_, byte)| *byte != 0).map(move |(byte, _)| at * 8 + byte)
}

/// Where a VM's bell is, or could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has this one.
    Has(Bell),
    /// It has none yet and can be given this one.
    Free(Bell),
    /// All are given away.
    Full,
}

/// A name as it stands in the file; `None` if it is empty, too long, or has a zero inside.
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

/// Looks for `name` in `names`, what the file holds from [`NAMES_AT`] on. What is missing at its
/// end is nobody's and cannot be given away.
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

/// What a listener heard of one bell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard(u64);

impl Heard {
    /// Whether the bell was rung since the last look; at the first, whether it ever was.
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
