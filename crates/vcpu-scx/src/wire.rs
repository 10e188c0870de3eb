//! Keys and values of the program's maps, as bytes in this machine's order. The layouts stand in
//! `src/bpf/state.h`.

use penstock_vcpu::Mode;

/// Seats for deadlines on one processor.
pub const SEATS: u32 = 8;
/// Processors that the program knows.
pub const MAX_CPUS: u32 = 256;
/// Width of a bucket of waits, in nanoseconds.
pub const WAIT_BUCKET_NS: u64 = 100_000;
const WAIT_BUCKETS: usize = 256;

/// A thread's contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// How soon it runs.
    pub mode: Mode,
    /// Of the processor, relative to others; 1 is a thread of nice 0.
    pub weight: u32,
    /// Percent of its credits kept for I/O.
    pub reserve_pct: u32,
    /// Where its deadline is kept: processor times [`SEATS`] and a number below.
    pub seat: u32,
    /// In nanoseconds.
    pub deadline: u64,
}

impl Term {
    /// As the program reads it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mode: u32 = match self.mode {
            Mode::None => 0,
            Mode::Periodic => 1,
            Mode::Aperiodic => 2,
            Mode::Driver => 3,
        };
        let mut bytes = words(&[mode, self.weight, self.reserve_pct, self.seat]);
        bytes.extend(self.deadline.to_ne_bytes());
        bytes
    }
}

/// A deadline's own slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose.
    pub tid: u32,
    /// It runs once in so many slots.
    pub window: u32,
    /// From one of its own slots to the next.
    pub period: u32,
    /// Below the period.
    pub phase: u32,
}

impl Place {
    /// Nobody's.
    pub const FREE: Self = Self { tid: 0, window: 0, period: 0, phase: 0 };

    /// As the program reads it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words(&[self.tid, self.window, self.period, self.phase])
    }
}

/// How the scheduler ended, in the kernel's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The kernel's number: 64 and above are its user's wish, 1024 and above are errors.
    pub kind: i32,
    /// Why.
    pub reason: String,
}

/// Switches of the program, and how it ended.
#[derive(Clone, Copy, Debug)]
pub struct Knobs;

impl Knobs {
    /// With nothing but the test's switch set.
    #[must_use]
    pub fn encode(stall: bool) -> Vec<u8> {
        let mut bytes = words(&[u32::from(stall), 0, 0, 0]);
        bytes.resize(16 + 64 + 128, 0);
        bytes
    }

    /// `None`: it runs, or what was read is no such value.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Ended> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if word(4)? == 0 {
            return None;
        }
        let (reason, message) = (text(bytes.get(16..80)?), text(bytes.get(80..208)?));
        let reason = if message.is_empty() { reason } else { format!("{reason}: {message}") };
        Some(Ended { kind: word(8)?.cast_signed(), reason })
    }
}

/// What a thread got since the scheduler began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Times it began to run.
    pub runs: u64,
    /// How long it ran, in nanoseconds.
    pub ran_ns: u64,
    /// Times of [`Report::runs`] because it was due.
    pub slices: u64,
    /// Times it began later than its deadline and a slice.
    pub missed: u64,
    /// Times it went before others because it was woken.
    pub boosts: u64,
    /// Its longest wait, in nanoseconds.
    pub wait_max_ns: u64,
    /// How often it waited for so many [`WAIT_BUCKET_NS`]; the last is open.
    pub waits: Vec<u64>,
}

impl Report {
    /// Bytes of one.
    pub const SIZE: usize = (6 + WAIT_BUCKETS) * 8;

    /// From the program's bytes; `None` if they are not so many.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::SIZE {
            return None;
        }
        let mut numbers =
            bytes.chunks_exact(8).filter_map(|c| Some(u64::from_ne_bytes(c.try_into().ok()?)));
        let mut next = || numbers.next();
        Some(Self {
            runs: next()?,
            ran_ns: next()?,
            slices: next()?,
            missed: next()?,
            boosts: next()?,
            wait_max_ns: next()?,
            waits: numbers.collect(),
        })
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_programs() {
        let term = Term { mode: Mode::Periodic, weight: 1, reserve_pct: 10, seat: 9, deadline: 7 };
        assert_eq!((term.encode().len(), Place::FREE.encode().len()), (24, 16));
        assert_eq!(term.encode()[12..16], 9_u32.to_ne_bytes());
        assert_eq!(Knobs::encode(true).len(), 208);
    }

    #[test]
    fn how_it_ended_is_read() {
        let mut bytes = Knobs::encode(false);
        assert_eq!(Knobs::decode(&bytes), None);
        bytes[4] = 1;
        bytes[8..12].copy_from_slice(&1026_i32.to_ne_bytes());
        bytes[16..21].copy_from_slice(b"stall");
        assert_eq!(Knobs::decode(&bytes), Some(Ended { kind: 1026, reason: "stall".to_owned() }));
        bytes[80..82].copy_from_slice(b"p\n");
        assert_eq!(Knobs::decode(&bytes).unwrap().reason, "stall: p");
    }

    #[test]
    fn a_report_is_read() {
        let mut bytes = vec![0; Report::SIZE];
        bytes[24..32].copy_from_slice(&3_u64.to_ne_bytes());
        bytes[Report::SIZE - 8..].copy_from_slice(&5_u64.to_ne_bytes());
        let report = Report::decode(&bytes).unwrap();
        assert_eq!((report.missed, report.waits.len(), report.waits[255]), (3, 256, 5));
        assert_eq!(Report::decode(&bytes[8..]), None);
    }
}
