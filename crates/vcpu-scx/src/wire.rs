//! Keys and values of the BPF program's maps, as bytes in the machine's byte order. The file
//! `src/bpf/state.h` defines the same layouts of keys and values for the BPF program.

use penstock_vcpu::Mode;

/// Maximum number of threads with deadlines on one processor.
pub const SEATS: u32 = 8;
/// Maximum number of processors that the BPF program supports.
pub const MAX_CPUS: u32 = 256;
/// Width in nanoseconds of a bucket in the histogram of waits.
pub const WAIT_BUCKET_NS: u64 = 100_000;
const WAIT_BUCKETS: usize = 256;

/// Contract of a thread, as the BPF program reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Mode of the thread: none, periodic, aperiodic or driver.
    pub mode: Mode,
    /// Weight of the thread for dividing processor time, from 1. Weight 1 is equivalent to the
    /// kernel's nice value 0.
    pub weight: u32,
    /// Percent of the thread's credits that are reserved for I/O.
    pub reserve_pct: u32,
    /// Index of the thread's time slots in the BPF map `places`: processor number times [`SEATS`]
    /// plus a number below [`SEATS`]. The index is 0 if the thread has no deadline.
    pub seat: u32,
    /// Deadline in nanoseconds, 0 for no deadline.
    pub deadline: u64,
}

impl Term {
    /// Encodes the contract for the BPF map `terms`.
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

/// A seat of a processor: the time slots of one thread with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Id of the thread that owns the time slots, 0 if no thread owns the time slots.
    pub tid: u32,
    /// Number of slots within which the thread must run once.
    pub window: u32,
    /// Number of slots from one slot that the thread owns to the next.
    pub period: u32,
    /// Number of the first slot that the thread owns, below `period`.
    pub phase: u32,
}

impl Place {
    /// Entry of the BPF map `places` that belongs to no thread.
    pub const FREE: Self = Self { tid: 0, window: 0, period: 0, phase: 0 };

    /// Encodes the time slots as an entry of the BPF map `places`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words(&[self.tid, self.window, self.period, self.phase])
    }
}

/// The kernel's report of the end of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit kind that sched_ext reports: 64 to 1023 mean a normal end, and values from 1024 mean an
    /// error.
    pub kind: i32,
    /// The kernel's message about the end of the scheduler.
    pub reason: String,
}

/// Encodes the settings of the BPF program, and decodes the kernel's report of the program's end.
#[derive(Clone, Copy, Debug)]
pub struct Knobs;

impl Knobs {
    /// Encodes a value for the BPF map `knobs`. If `stall` is true, the scheduler stops
    /// dispatching, for tests.
    #[must_use]
    pub fn encode(stall: bool) -> Vec<u8> {
        let mut bytes = words(&[u32::from(stall), 0, 0, 0]);
        bytes.resize(16 + 64 + 128, 0);
        bytes
    }

    /// Decodes the value of the BPF map `knobs`. `None` if the scheduler still runs, or if the
    /// bytes are invalid.
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

/// Run time and waits of a thread since the scheduler started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of times that the thread began to run.
    pub runs: u64,
    /// Time for which the thread ran, in nanoseconds.
    pub ran_ns: u64,
    /// Number of `runs` that began because a deadline was due.
    pub slices: u64,
    /// Number of times that the thread began to run later than its deadline plus one slice.
    pub missed: u64,
    /// Number of times that the thread got a priority boost when it woke.
    pub boosts: u64,
    /// Longest wait of the thread, in nanoseconds.
    pub wait_max_ns: u64,
    /// Number of the thread's waits by length, in buckets of [`WAIT_BUCKET_NS`]. The last bucket of
    /// the histogram has no upper end.
    pub waits: Vec<u64>,
}

impl Report {
    /// Number of bytes of an encoded report.
    pub const SIZE: usize = (6 + WAIT_BUCKETS) * 8;

    /// Decodes a report of the BPF program. Returns `None` if the number of bytes is not
    /// [`Self::SIZE`].
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
