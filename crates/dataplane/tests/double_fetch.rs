//! No decision of the switch may read a word of shared memory twice (datapath rule 3). A peer could
//! change the word in shared memory between two reads of the switch.
//!
//! # Approach
//! The test traps and counts each access of the compiled code to the peer's memory. The peer's
//! memory is protected against all access. An access to the protected memory causes a page fault,
//! which reports the address and whether the access is a write. The page fault does not report the
//! size of the access, so the test decodes the faulting instruction ([`width`]). While the faulting
//! instruction runs, the test permits access to the memory, and then forbids access again. Reads
//! are counted for each byte of memory, so a small read inside an earlier larger read counts as a
//! second read.
//!
//! # Exceptions
//! A ring first checks whether a chain's first descriptor (the head) describes a single plain
//! buffer. If the first read of a chain's head shows no plain buffer, the ring reads the head again
//! when it walks the chain. A ring may therefore read the head of a chain, or the head of an
//! indirect table, twice. If the switch gives several frames to a ring, the ring chooses the
//! buffers for each frame separately. If a receive buffer was too small for one frame, the ring may
//! read its descriptor again for the next frame.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "signal handlers and protections of memory")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::memfd::{MFdFlags, memfd_create};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::dirty_log::DirtyLog;
use penstock_dataplane::port::guest_memory::{GuestMemory, RegionSpec};
use penstock_dataplane::port::inflight::{InflightRegion, RingLayout};
use penstock_dataplane::port::packed_ring::PackedRing;
use penstock_dataplane::port::peer_memory::MemoryAccount;
use penstock_dataplane::port::split_ring::{RingAddresses, RingSpec, SplitRing};

const USER: u64 = 0x7000_0000_0000;
const LEN: u64 = 1 << 20;
/// Memory offset of the ring's driver area. Byte offsets of the other areas in the guest's memory
/// follow in the next constants.
const DRIVER: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
/// First byte of the available index, which a split ring's driver writes. Offset of the two bytes
/// of the available index, which the driver of a split ring writes.
const AVAILABLE_FROM: u64 = DRIVER + 2;
const AVAILABLE_TO: u64 = DRIVER + 4;
const TABLES: u64 = 0x4000;
const BUFFERS: u64 = 0x1_0000;
/// Number of bytes of the virtio-net header before each frame.
const HEADER: u64 = 12;
const SIZE: u16 = 64;
const ROUNDS: u64 = 120;

/// Start address and length of the protected memory. Only one thread at a time protects memory.
static START: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// The recorded accesses. Each access is one number: 256 times the offset, plus twice the number of
/// bytes, plus one if the access is a write.
static SEEN: [AtomicU64; 1 << 16] = [const { AtomicU64::new(0) }; 1 << 16];
static SEEN_LEN: AtomicUsize = AtomicUsize::new(0);
static ONE: Mutex<()> = Mutex::new(());

/// Code bytes of the first executed instruction that [`width`] does not know.
static UNKNOWN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Trap flag in the processor's flags register: if the flag is set, each instruction raises an
/// exception (`SIGTRAP`).
const TRAP_FLAG: i64 = 1 << 8;

fn protect(how: i32) -> bool {
    let (start, bytes) = (START.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    // SAFETY: a mapping of the code under test, which only this thread uses.
    // WHY: no safe form closes a mapping.
    unsafe { libc::mprotect(start as *mut libc::c_void, bytes, how) == 0 }
}

extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to a handler of this kind. WHY: a C interface.
    let (at, registers) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        ((*info).si_addr() as usize, &mut (*context).uc_mcontext.gregs)
    };
    let offset = at.wrapping_sub(START.load(Ordering::Relaxed));
    if offset >= BYTES.load(Ordering::Relaxed) || !protect(libc::PROT_READ | libc::PROT_WRITE) {
        // The fault is not in the protected memory, so it occurs again without a handler.
        // SAFETY: sets the default action. WHY: a C interface.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    let writes = registers[libc::REG_ERR as usize] >> 1 & 1;
    // SAFETY: the processor has just decoded these bytes, and more bytes of code follow them.
    // WHY: nothing else says how many bytes the instruction accesses.
    let code = unsafe { (registers[libc::REG_RIP as usize] as *const [u8; 16]).read_unaligned() };
    let bytes = width(&code);
    if bytes == 0 {
        for (place, half) in UNKNOWN.iter().zip(code.as_chunks::<8>().0) {
            place.store(u64::from_be_bytes(*half), Ordering::Relaxed);
        }
    }
    let n = SEEN_LEN.fetch_add(1, Ordering::Relaxed);
    let access = (offset << 8) as u64 | bytes << 1 | writes.unsigned_abs();
    SEEN[n % SEEN.len()].store(access, Ordering::Relaxed);
    registers[libc::REG_EFL as usize] |= TRAP_FLAG;
}

extern "C" fn on_step(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: as above. WHY: as above.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    protect(libc::PROT_NONE);
}

/// Returns the number of bytes of memory that an instruction reads or writes. Returns 0 if the
/// function does not know the instruction. The instruction encodings are from Intel's manual,
/// volume 2. A repeated instruction (`rep`) faults for each element.
fn width(code: &[u8; 16]) -> u64 {
    let (mut at, mut prefix, mut operand) = (0, 0, 4);
    loop {
        match code[at] {
            0x66 => (prefix, operand) = (if prefix == 0 { 1 } else { prefix }, 2),
            0xf2 => prefix = 3,
            0xf3 => prefix = 2,
            0xf0 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
            _ => break,
        }
        at += 1;
    }
    let mut wide = false;
    if code[at] & 0xf0 == 0x40 {
        wide = code[at] & 8 != 0;
        at += 1;
    }
    let operand = if wide { 8 } else { operand };
    match code[at..] {
        [0x0f, 0x38, op, ..] => vector(2, op, prefix, 16, operand),
        [0x0f, 0x3a, op, ..] => vector(3, op, prefix, 16, operand),
        [0x0f, op, ..] => match op {
            0x40..=0x4f | 0xa3 | 0xab | 0xaf | 0xb1 | 0xb3 | 0xb8 | 0xba..=0xbd | 0xc1 => operand,
            0xb0 | 0xb6 | 0xbe | 0xc0 | 0x90..=0x9f => 1,
            0xb7 | 0xbf => 2,
            0xc7 => 2 * operand,
            _ => vector(1, op, prefix, 16, operand),
        },
        [0xc5, b, op, ..] => vector(1, op, b & 3, 16 << (b >> 2 & 1), 4),
        [0xc4, a, b, op, ..] => {
            vector(a & 31, op, b & 3, 16 << (b >> 2 & 1), if b >> 7 == 1 { 8 } else { 4 })
        }
        [0x62, a, b, c, op, ..] => {
            vector(a & 7, op, b & 3, 16 << (c >> 5 & 3), if b >> 7 == 1 { 8 } else { 4 })
        }
        [op @ 0..=0x3f, ..] if op & 7 < 4 => {
            if op & 1 == 0 {
                1
            } else {
                operand
            }
        }
        [0x63, ..] => 4,
        [0x69 | 0x6b | 0x81 | 0x83 | 0x85 | 0x87 | 0x89 | 0x8b | 0xa5 | 0xab, ..] => operand,
        [0xc1 | 0xc7 | 0xd1 | 0xd3 | 0xf7 | 0xff, ..] => operand,
        [0x80 | 0x84 | 0x86 | 0x88 | 0x8a | 0xa4 | 0xaa | 0xc0 | 0xc6, ..] => 1,
        [0xd0 | 0xd2 | 0xf6 | 0xfe, ..] => 1,
        _ => 0,
    }
}

/// Returns the number of bytes of memory that a vector instruction reads or writes. [`width`] uses
/// this function. `prefix` is 1 to 3 for the prefixes 66, F3 and F2; `all` and `register` are the
/// sizes in bytes of a vector and a general register.
fn vector(map: u8, op: u8, prefix: u8, all: u64, register: u64) -> u64 {
    match (map, op) {
        (1, 0x10 | 0x11 | 0x51..=0x5f | 0xc2) => [all, all, 4, 8][usize::from(prefix)],
        (1, 0x12 | 0x13 | 0x16 | 0x17 | 0xd6) => 8,
        (1, 0x6e) => register,
        (1, 0x7e) => {
            if prefix == 2 {
                8
            } else {
                register
            }
        }
        (1, 0xc4) => 2,
        (1, 0x14 | 0x15 | 0x28 | 0x29 | 0x2b | 0x60..=0x6d | 0x6f | 0x70 | 0x74..=0x76) => all,
        (1, 0x7f | 0xc6 | 0xd1..=0xd5 | 0xd8..=0xff) => all,
        (2, 0x18 | 0x58) => 4,
        (2, 0x19 | 0x59) => 8,
        (2, 0x78) | (3, 0x14 | 0x20) => 1,
        (2, 0x79) | (3, 0x15) => 2,
        (2, 0x20 | 0x23 | 0x25 | 0x30 | 0x33 | 0x35) => all / 2,
        (2, 0x21 | 0x24 | 0x31 | 0x34) => all / 4,
        (2, 0x22 | 0x32) => all / 8,
        (2, 0x5a) | (3, 0x38 | 0x39) => 16,
        (2, 0xf0 | 0xf1 | 0xf5..=0xf7) | (3, 0x16 | 0x22 | 0xf0) => register,
        (2, 0x00..=0x0b | 0x1c..=0x1e | 0x28..=0x2b | 0x37..=0x40) => all,
        _ => 0,
    }
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

fn install(signal: i32, handler: Handler) {
    // SAFETY: all-zero is a valid action, and the handlers do what handlers may.
    // WHY: a C interface.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &raw const action, core::ptr::null_mut()), 0);
    }
}

/// Memory file of a simulated peer, which shares the file with the switch. Only the code under test
/// maps the file.
struct Shared {
    file: File,
    _one: MutexGuard<'static, ()>,
}

impl Shared {
    fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        install(libc::SIGSEGV, on_fault);
        install(libc::SIGTRAP, on_step);
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(LEN).unwrap();
        Self { file, _one: one }
    }

    fn guest(&self) -> Arc<GuestMemory> {
        let file = self.file.try_clone().unwrap();
        let spec = RegionSpec { guest: 0, user: USER, len: LEN, offset: 0, file };
        Arc::new(GuestMemory::map(&MemoryAccount::default(), vec![spec]).unwrap())
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    /// Returns the lowest address at which the process maps the file, and the file's length in
    /// bytes.
    fn place(&self) -> (usize, usize) {
        let inode = self.file.metadata().unwrap().ino().to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|l| l.split_whitespace().nth(4) == Some(&inode));
        let range = line.unwrap().split(' ').next().unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(from), number(to) - number(from))
    }

    /// Executes `call` while the memory file is protected, and fails the test if `call` reads any
    /// byte twice.
    fn once<T>(&self, what: &str, call: impl FnOnce() -> T) -> T {
        self.counted(what, &[], call)
    }

    /// Executes `call` with protected memory like [`Self::once`], but `call` may read the
    /// descriptors in `heads` twice.
    fn counted<T>(&self, what: &str, heads: &[u64], call: impl FnOnce() -> T) -> T {
        let (start, bytes) = self.place();
        START.store(start, Ordering::Relaxed);
        BYTES.store(bytes, Ordering::Relaxed);
        SEEN_LEN.store(0, Ordering::Relaxed);
        assert!(protect(libc::PROT_NONE));
        let answer = call();
        assert!(protect(libc::PROT_READ | libc::PROT_WRITE));
        let seen = SEEN_LEN.load(Ordering::Relaxed);
        assert!(seen <= SEEN.len(), "{what}: {seen} accesses are too many to keep");
        let (mut reads, mut last) = (BTreeMap::new(), BTreeMap::new());
        for access in SEEN[..seen].iter().map(|access| access.load(Ordering::Relaxed)) {
            let (at, bytes) = (access >> 8, access >> 1 & 0x7f);
            let code = UNKNOWN.each_ref().map(|half| half.load(Ordering::Relaxed));
            assert_ne!(bytes, 0, "{what}: teach `width` the instruction {code:016x?}");
            if access & 1 == 0 {
                READS.fetch_add(1, Ordering::Relaxed);
                for byte in at..at + bytes {
                    let before = last.insert(byte, (at, bytes));
                    *reads.entry(byte).or_insert(0) += u32::from(!moves(before, at, bytes));
                }
            }
        }
        let most = |at: &u64| match *at {
            // The driver makes more available over time, so a call that needs more reads the index
            // again.
            AVAILABLE_FROM..AVAILABLE_TO if what == "give" => u32::MAX,
            // Frames are copied by moves that may overlap. No decision depends on bytes after the
            // virtio header.
            BUFFERS.. if (at - BUFFERS) % 2048 >= HEADER => u32::MAX,
            _ if heads.contains(&(at / 16)) => 2,
            _ => 1,
        };
        let twice: Vec<_> = reads.iter().filter(|(at, times)| **times > most(at)).collect();
        let reads = SEEN[..seen].iter().map(|access| access.load(Ordering::Relaxed));
        let reads = reads.map(|access| (access >> 8, access >> 1 & 0x7f, access & 1));
        let of_first = reads.filter(|(at, bytes, _)| {
            twice.first().is_some_and(|(byte, _)| (*at..at + bytes).contains(byte))
        });
        let of_first: Vec<_> = of_first.collect();
        assert!(
            twice.is_empty(),
            "{what}: read more than once (byte, times): {twice:x?}; the first one by (byte, bytes, \
             whether written) {of_first:x?}"
        );
        answer
    }
}

/// Whether a second read of a byte of a frame belongs to the same memory move as the first read.
/// For example, a copy of 20 bytes is two overlapping moves of 16 bytes, so some bytes are read
/// twice. In a chain of buffers, only the first buffer contains a virtio-net header.
fn moves(before: Option<(u64, u64)>, at: u64, bytes: u64) -> bool {
    let same = |(before, width)| width == bytes && before != at;
    at >= BUFFERS && bytes >= 8 && before.is_some_and(same)
}

/// Number of counted reads of shared memory. If this number is zero, the test has checked nothing.
static READS: AtomicUsize = AtomicUsize::new(0);

/// A pseudo-random number generator with Knuth's constants, so that every run uses the same
/// numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % below
    }
}

fn spec(base: u32) -> RingSpec {
    let at = RingAddresses { descriptors: USER, available: USER + DRIVER, used: USER + DEVICE };
    RingSpec { base, event_idx: true, ..RingSpec::new(SIZE.into(), at) }
}

/// A driver that fills a ring with random descriptors for one test. The buffers of the driver do
/// not overlap. The driver's buffers do not overlap.
struct Driver<'a> {
    memory: &'a Shared,
    numbers: Numbers,
    /// Value of the descriptor flags: 2 (the device writes) if the test offers receive buffers, or
    /// 0 (the device reads) if it offers frames.
    write: u16,
    buffers: u64,
    /// Numbers of descriptors that are heads of chains or of indirect tables, or that name no
    /// existing memory.
    heads: Vec<u64>,
}

impl<'a> Driver<'a> {
    fn new(memory: &'a Shared, seed: u64) -> Self {
        let write = if seed % 2 == 1 { 2 } else { 0 };
        Self { memory, numbers: Numbers(seed), write, buffers: 0, heads: Vec::new() }
    }

    /// Returns the first twelve bytes of a descriptor, and whether the descriptor names existing
    /// memory. Most generated descriptors name existing memory.
    fn buffer(&mut self) -> ([u8; 12], bool) {
        let wrong = self.numbers.next(40) == 0;
        self.buffers = (self.buffers + 1) % 400;
        let right = BUFFERS + 2048 * self.buffers;
        let address = if wrong { (1 << 41) + self.numbers.next(1 << 40) } else { right };
        let len = u32::try_from(60 + self.numbers.next(1500)).unwrap();
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..].copy_from_slice(&len.to_le_bytes());
        (bytes, !wrong)
    }

    /// Writes an indirect table of up to four descriptors, and returns the descriptor that names
    /// the table.
    fn table(&mut self, n: u64) -> [u8; 12] {
        let entries = 1 + self.numbers.next(4);
        let at = TABLES + 128 * n;
        for entry in 0..entries {
            let mut bytes = [0; 16];
            bytes[..12].copy_from_slice(&self.buffer().0);
            let more = u16::from(entry + 1 < entries);
            bytes[12..14].copy_from_slice(&(self.write | more).to_le_bytes());
            bytes[14..].copy_from_slice(&u16::try_from(entry + 1).unwrap().to_le_bytes());
            self.memory.put(at + 16 * entry, &bytes);
        }
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&at.to_le_bytes());
        bytes[8..].copy_from_slice(&u32::try_from(16 * entries).unwrap().to_le_bytes());
        bytes
    }

    /// Returns the first twelve bytes of descriptor `n`, and the descriptor's flags. The test
    /// chooses at random whether descriptor `n` is a plain buffer, the first descriptor of a chain
    /// of two, or an indirect table. In a chain of two descriptors, descriptor `n + 1` follows
    /// descriptor `n`.
    fn head(&mut self, n: u64) -> ([u8; 12], u16) {
        let kind = self.numbers.next(4);
        if kind == 0 {
            self.heads.push(n);
            return (self.table(n), self.write | 4);
        }
        let (bytes, right) = self.buffer();
        let more = u16::from(kind == 1);
        if more != 0 || !right {
            self.heads.push(n);
        }
        (bytes, self.write | more)
    }

    /// Fills a split ring with random buffers. The descriptors with even numbers are heads of
    /// chains, in a random order.
    fn fill_split(&mut self, available: u16) {
        self.heads.clear();
        let turn = self.numbers.next(32);
        for n in 0..u64::from(SIZE) {
            let (first, flags) =
                if n % 2 == 0 { self.head(n) } else { (self.buffer().0, self.write) };
            let mut bytes = [0; 16];
            bytes[..12].copy_from_slice(&first);
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            bytes[14..].copy_from_slice(&u16::try_from((n + 1) % 64).unwrap().to_le_bytes());
            self.memory.put(16 * n, &bytes);
            let head = u16::try_from((n * 7 + turn) % 32 * 2).unwrap();
            self.memory.put(DRIVER + 4 + 2 * n, &head.to_le_bytes());
        }
        self.memory.put(AVAILABLE_FROM, &available.to_le_bytes());
    }

    /// Fills a packed ring in its first round, with nearly all descriptors available.
    fn fill_packed(&mut self) {
        let mut second = false;
        for n in 0..u64::from(SIZE) {
            let (first, flags) = if second { (self.buffer().0, self.write) } else { self.head(n) };
            second = !second && flags & 1 != 0;
            // At index 0 with both wrap counters 1, an available descriptor has the flag `AVAIL`
            // and not `USED`.
            let there = if self.numbers.next(50) == 0 { 0 } else { 1 << 7 };
            let mut bytes = [0; 16];
            bytes[..12].copy_from_slice(&first);
            bytes[12..14].copy_from_slice(&u16::try_from(n).unwrap().to_le_bytes());
            bytes[14..].copy_from_slice(&(flags | there).to_le_bytes());
            self.memory.put(16 * n, &bytes);
        }
    }
}

/// Returns a batch of frames for a receive ring.
fn batch(numbers: &mut Numbers) -> (Box<Batch>, Vec<u8>) {
    let mut batch = Batch::new();
    for _ in 0..1 + numbers.next(8) {
        let frame = vec![7; usize::try_from(60 + numbers.next(1400)).unwrap()];
        batch.push(&frame, Offload::NONE).unwrap();
    }
    let all = (0..).take(batch.len()).collect();
    (batch, all)
}

/// The numbers of all descriptors that can be the head of a chain. If a frame does not fit into the
/// head's plain buffer, the ring reads the head a second time, as the start of a chain.
const ANY: [u64; SIZE as usize] = {
    let mut all = [0; SIZE as usize];
    let mut n = 0;
    while n < all.len() {
        all[n] = n as u64;
        n += 1;
    }
    all
};

macro_rules! calls {
    ($memory:ident, $ring:ident, $driver:ident) => {
        let heads = &$driver.heads;
        let waiting = $memory.once("has_waiting", || $ring.has_waiting());
        if $driver.write != 0 {
            let (batch, all) = batch(&mut $driver.numbers);
            for frame in &all {
                let (frame, mut outcome) = ([*frame], TxOutcome::default());
                $memory.counted("give", &ANY, || $ring.give(&batch, &frame, &mut outcome));
            }
        } else if waiting {
            let mut batch = Batch::new();
            $memory.counted("take", heads, || $ring.take(&mut batch));
            $memory.once("complete_taken", || $ring.complete_taken());
        }
        $memory.once("publish", || $ring.publish());
        $memory.once("notify", || $ring.notify());
        $memory.once("ask_for_kicks", || $ring.ask_for_kicks());
        $memory.once("suppress_kicks", || $ring.suppress_kicks());
    };
}

#[test]
fn a_read_within_another_is_a_second_one() {
    let memory = Shared::new();
    let guest = memory.guest();
    let start = memory.place().0;
    /// A read of shared memory: the number of bytes, and the offset in bytes.
    type Read = (usize, usize);
    let reads = |all: &[Read]| {
        for &(bytes, at) in all {
            let at = start + at;
            // SAFETY: inside the mapping and aligned. WHY: each read must be a single instruction.
            let read = unsafe {
                match bytes {
                    8 => (at as *const u64).read_volatile(),
                    4 => (at as *const u32).read_volatile().into(),
                    2 => (at as *const u16).read_volatile().into(),
                    _ => (at as *const u8).read_volatile().into(),
                }
            };
            core::hint::black_box(read);
        }
    };
    let fails = |all: &[Read]| {
        let once = || memory.once("reads", || reads(all));
        std::panic::catch_unwind(core::panic::AssertUnwindSafe(once)).is_err()
    };
    for twice in [[(8, 0), (4, 4)], [(4, 4), (8, 0)], [(8, 8), (1, 15)], [(2, 2), (4, 0)]] {
        assert!(fails(&twice), "{twice:?}");
    }
    for once in [[(8, 0), (4, 8)], [(4, 4), (4, 0)], [(8, 8), (1, 7)], [(2, 2), (1, 1)]] {
        assert!(!fails(&once), "{once:?}");
    }
    drop(guest);
    READS.store(0, Ordering::Relaxed);
}

fn enough() {
    let reads = READS.swap(0, Ordering::Relaxed);
    assert!(reads > 10_000, "{reads} reads were counted");
}

#[test]
fn a_split_ring_reads_each_word_once() {
    let memory = Shared::new();
    for seed in 0..ROUNDS {
        let mut driver = Driver::new(&memory, seed);
        // The used index is cleared, because a ring continues there.
        memory.put(DEVICE, &[0; 8]);
        let mut ring = SplitRing::new(spec(0), memory.guest()).unwrap();
        let mut available = 0;
        for _ in 1..4 {
            available += driver.numbers.next(21);
            driver.fill_split(u16::try_from(available).unwrap());
            calls!(memory, ring, driver);
        }
    }
    enough();
}

#[test]
fn a_packed_ring_reads_each_word_once() {
    let memory = Shared::new();
    for seed in 0..ROUNDS {
        let mut driver = Driver::new(&memory, seed);
        // The used index is cleared, because a ring continues there.
        memory.put(DEVICE, &[0; 8]);
        let mut ring = PackedRing::new(spec(0x8000_8000), memory.guest()).unwrap();
        driver.fill_packed();
        for _ in 1..4 {
            calls!(memory, ring, driver);
        }
    }
    enough();
}

#[test]
fn an_inflight_region_and_a_dirty_log_are_read_once() {
    let memory = Shared::new();
    let account = MemoryAccount::default();
    for seed in 0..ROUNDS {
        let mut numbers = Numbers(seed);
        let noise: Vec<u8> = (0..4096).map(|_| u8::try_from(numbers.next(4)).unwrap()).collect();
        memory.put(0, &[0; 8192]);
        let file = &memory.file;
        let layout = if seed % 2 == 0 { RingLayout::Split } else { RingLayout::Packed };
        let region = InflightRegion::map(&account, layout, file, 0, 8192, (2, SIZE)).unwrap();
        let region = Arc::new(region);
        // Rewrites the memory after it was checked.
        memory.put(0, &noise);
        memory.put(4096, &noise);
        if layout == RingLayout::Split {
            if let Some(queue) = memory.once("split", || region.split(1, SIZE)) {
                memory.once("recover", || queue.recover(0, SIZE / 2));
            }
        } else if let Some(queue) = memory.once("packed", || region.packed(1, SIZE)) {
            memory.once("positions", || queue.positions());
        }
        drop(region);
        let log = DirtyLog::map(&account, file, 0, 4096).unwrap();
        memory.once("mark", || log.mark(numbers.next(1 << 26), numbers.next(65_536)));
    }
    assert!(READS.swap(0, Ordering::Relaxed) > 1_000);
}
