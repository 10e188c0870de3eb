//! The input is a sequence of vhost-user messages with descriptors. The driver shortens and
//! replaces its memory files, and punches holes into them, between messages, in the middle of
//! messages and while the switch polls the rings.
//!
//! **Rule.** The process does not end. If a session ends, its reason names the faulty object. The
//! switch changes only bytes that the driver announced, and no mapping or byte of a neighbour.
//! After the session, the switch has no mapping or open descriptor of the driver.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use penstock_dataplane::port::guest_memory::{GuestMemory, RegionSpec};
use penstock_dataplane::port::peer_memory::MemoryAccount;
use penstock_dataplane::port::vhost_user::VhostUserConfig;
use penstock_dataplane::port::vhost_user::stepped::SteppedPort;

use crate::input::Input;
use crate::session_driver::{
    Body, FILE, FILES, Fault, Files, Line, Memory, duplicate, request as to,
};

const USER: u64 = 0x7000_0000_0000;
/// Number of descriptors in each ring of a well-behaved driver.
const SIZE: u16 = 16;
const PAIRS: u16 = 2;
/// Size of a neighbour's memory in bytes.
const NEIGHBOUR: u64 = 0x4000;
const CANARY: u8 = 0xc5;
/// Maximum number of replaced files, and also of sessions, per input.
const REPLACED_MAX: usize = 8;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let name = format!("fuzz-session-{}-", RUNS.fetch_add(1, Ordering::Relaxed));
    let mut input = Input::new(data);
    let above = Neighbour::new(&format!("above-{name}"));
    let mut game = Game::new(&name, &mut input);
    // The kernel maps memory from the top down, so this neighbour is beside the driver's first
    // mappings.
    let below = Neighbour::new(&format!("below-{name}"));
    while !input.is_empty() {
        game.step(&mut input);
    }
    game.end();
    let own = format!("memfd:{name}");
    assert_eq!(open_files(&own), 0, "the driver's descriptors are still open");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    assert!(!maps.contains(&own), "the driver's memory is still mapped");
    above.check(&maps);
    below.check(&maps);
}

/// Counts the descriptors of this process whose link in `/proc/self/fd` contains a name.
fn open_files(name: &str) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("the descriptors");
    let target = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok()
    };
    all.filter_map(target).filter(|target| target.contains(name)).count()
}

/// Another guest's memory.
struct Neighbour {
    name: String,
    file: File,
    _memory: GuestMemory,
}

impl Neighbour {
    fn new(name: &str) -> Self {
        let fill = Memory::new(&c_name(name), CANARY);
        let file = fill.file;
        let spec = RegionSpec {
            guest: 0,
            user: 0,
            len: NEIGHBOUR,
            offset: 0,
            file: file.try_clone().expect("a descriptor"),
        };
        let memory = GuestMemory::map(&MemoryAccount::default(), vec![spec]).expect("a map");
        Self { name: name.to_owned(), file, _memory: memory }
    }

    fn check(&self, maps: &str) {
        let mut bytes = vec![0; usize::try_from(NEIGHBOUR).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, 0).expect("the file");
        assert!(bytes == vec![CANARY; bytes.len()], "the switch wrote a neighbour's memory");
        let mapped = maps.lines().filter(|line| line.contains(&self.name)).fold(0, |sum, line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            sum + range.map_or(0, |(from, to)| number(to) - number(from))
        });
        assert_eq!(mapped, NEIGHBOUR, "a neighbour's mapping was replaced");
    }
}

fn c_name(name: &str) -> CString {
    CString::new(name).expect("a name without a NUL byte")
}

/// Whether the reason for a session's end names the faulty object.
fn names_its_object(reason: &str) -> bool {
    ["memory region", "dirty log", "inflight region", "ring ", "the driver"]
        .iter()
        .any(|object| reason.contains(object))
}

struct Game {
    name: String,
    files: Files,
    /// Memory files that the driver replaced.
    replaced: Vec<Memory>,
    line: Line,
    port: SteppedPort,
    sessions: usize,
    packed: bool,
    /// True if the driver has sent no message in the session yet.
    is_new: bool,
    /// Heads made available, by ring.
    offered: [u16; 2 * PAIRS as usize],
}

impl Game {
    fn new(name: &str, input: &mut Input<'_>) -> Self {
        let fills = [0, 0x5a, 0];
        let files = fills.map(|fill| Memory::new(&c_name(name), fill));
        let (line, port) = connect();
        let mut game = Self {
            name: name.to_owned(),
            files: Arc::new(Mutex::new(files.into())),
            replaced: Vec::new(),
            line,
            port,
            sessions: 1,
            packed: false,
            is_new: true,
            offered: [0; 2 * PAIRS as usize],
        };
        game.step(input);
        game
    }

    fn with_file<T>(&self, at: usize, act: impl FnOnce(&mut Memory) -> T) -> T {
        act(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner)[at])
    }

    fn descriptor(&self, at: usize) -> OwnedFd {
        self.with_file(at, |memory| duplicate(&memory.file))
    }

    /// Sends a message and lets the switch process the message. If the session ends, the driver
    /// starts another session.
    fn say(&mut self, request: u32, body: &Body, descriptors: &[OwnedFd]) {
        if self.line.send(request, body, descriptors) {
            self.serve();
        }
    }

    fn serve(&mut self) {
        if let Err(reason) = self.port.serve() {
            assert!(
                reason.is_empty() || names_its_object(&reason),
                "the reason names no object: {reason}"
            );
            self.reconnect();
        }
        self.line.drain();
        self.port.set_meanwhile(None);
    }

    fn reconnect(&mut self) {
        assert_eq!(self.port.mapped(), 0, "an ended session still maps memory");
        self.sessions += 1;
        self.is_new = true;
        (self.line, self.port) = connect();
        self.offered = [0; 2 * PAIRS as usize];
    }

    fn step(&mut self, input: &mut Input<'_>) {
        if core::mem::take(&mut self.is_new) && input.below(8) != 0 {
            return self.begin(input);
        }
        match input.below(24) {
            0 => self.begin(input),
            1 => self.features(input),
            2 => self.table(input),
            3 => {
                let (at, region) = self.region(input);
                let body = Body::u64s(&[0]).and(Body::u64s(&region));
                self.say(to::ADD_MEM_REG, &body, &[self.descriptor(at)]);
            }
            4 => {
                let (_, region) = self.region(input);
                self.say(to::REM_MEM_REG, &Body::u64s(&[0]).and(Body::u64s(&region)), &[]);
            }
            5 => self.ring(input),
            6 => self.log(input),
            7 => {
                let queues = u32::from(input.u8() % 6) | u32::from(SIZE) << 16;
                let body = Body::u64s(&[0, 0]).and(Body::u32s(&[queues, 0]));
                self.say(to::GET_INFLIGHT_FD, &body, &[]);
            }
            8 => self.inflight(input),
            9 | 10 => {
                let (at, fault) = fault(input);
                self.with_file(at, |memory| memory.suffer(fault));
                self.port.turn();
            }
            11 | 12 => {
                let (at, fault) = fault(input);
                let files = Arc::clone(&self.files);
                self.port.set_meanwhile(Some(Box::new(move || {
                    let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                    files[at].suffer(fault);
                })));
            }
            13 => self.replace(input),
            14..=16 => {
                self.offer(input);
                self.port.turn();
            }
            17..=20 => {
                self.port.turn();
            }
            21 => self.say(to::RESET_DEVICE, &Body::default(), &[]),
            22 => {
                let request = u32::from(input.u8() % 48);
                let len = input.below(80);
                let body = Body(input.slice(len).to_vec());
                let some = (0..input.below(3)).map(|at| self.descriptor(at)).collect::<Vec<_>>();
                self.say(request, &body, &some);
            }
            _ => self.half(input),
        }
    }

    /// Sends an incomplete message and closes the connection.
    fn half(&mut self, input: &mut Input<'_>) {
        if self.sessions > REPLACED_MAX {
            return;
        }
        let len = input.below(64);
        let some = [self.descriptor(0)];
        self.line.send_bytes(input.slice(len), &some[..len.min(1)]);
        let _ = self.line.0.shutdown(std::net::Shutdown::Write);
        while self.port.serve().is_ok() {}
        self.reconnect();
    }

    /// Sends all messages of a driver up to the start of its rings.
    fn begin(&mut self, input: &mut Input<'_>) {
        self.say(to::GET_FEATURES, &Body::default(), &[]);
        self.features(input);
        self.say(to::GET_PROTOCOL_FEATURES, &Body::default(), &[]);
        self.say(to::SET_PROTOCOL_FEATURES, &Body::u64s(&[0xb00b]), &[]);
        let shift = [0, 0x10, 0x1000, 0x7ff0][input.below(4)];
        let regions = [[0, 0x8000, USER, 0], [0x10_0000, 0x4000, USER + 0x10_0000, shift]];
        for (at, [_, len, _, offset]) in regions.iter().enumerate() {
            self.with_file(at, |memory| {
                memory.mend();
                memory.announce(*offset, *len);
            });
        }
        let table = Body::u32s(&[2, 0]).and(Body::u64s(regions.as_flattened()));
        self.say(to::SET_MEM_TABLE, &table, &[self.descriptor(0), self.descriptor(1)]);
        // A driver uses either all queue pairs of its port or only the first pair.
        let rings = if input.below(4) == 0 { 2 * u32::from(PAIRS) } else { 2 };
        (0..rings).for_each(|index| self.start(index));
    }

    fn start(&mut self, index: u32) {
        let at = 0x1000 * u64::from(index);
        let fresh = if self.packed { 0x8000_8000 } else { 0 };
        let event = || duplicate(&EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an event"));
        self.say(to::SET_VRING_NUM, &Body::u32s(&[index, SIZE.into()]), &[]);
        self.say(to::SET_VRING_BASE, &Body::u32s(&[index, fresh]), &[]);
        let parts = [USER + at, USER + at + 0x600, USER + at + 0x400, at + 0x600];
        let logged = Body::u32s(&[index, 1]).and(Body::u64s(&parts));
        self.say(to::SET_VRING_ADDR, &logged, &[]);
        self.say(to::SET_VRING_CALL, &Body::u64s(&[index.into()]), &[event()]);
        self.say(to::SET_VRING_KICK, &Body::u64s(&[index.into()]), &[event()]);
        self.say(to::SET_VRING_ENABLE, &Body::u32s(&[index, 1]), &[]);
    }

    fn features(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        let bit = |n: u8, feature: u64| u64::from(choice >> n & 1) << feature;
        self.packed = choice & 1 == 1;
        // Version 1 and protocol features; packed, event index, merged buffers, log, in order.
        let some = bit(0, 34) | bit(1, 29) | bit(2, 15) | bit(3, 26) | bit(4, 35);
        let foreign = u64::from(choice % 64 == 32) << 63;
        let features = 1 << 32 | 1 << 30 | some | foreign;
        self.say(to::SET_FEATURES, &Body::u64s(&[features]), &[]);
    }

    /// Reads a memory region from the input: guest address, size, driver's address and file offset.
    fn region(&self, input: &mut Input<'_>) -> (usize, [u64; 4]) {
        let at = input.below(FILES);
        let guest = pick(input, &[0, 0x10_0000, 0x20_0000], &[0x4000, u64::MAX - 0xfff]);
        let len = pick(input, &[0x8000, 0x4000, 0x1001], &[0x10, 0, FILE, 1 << 50]);
        let offset = pick(input, &[0, 0x4, 0x1ff0, 0x4000], &[FILE - 0x1000, 1 << 62, u64::MAX]);
        let user = if input.below(32) == 0 { input.u64() } else { USER.wrapping_add(guest) };
        self.with_file(at, |memory| memory.announce(offset, len));
        (at, [guest, len, user, offset])
    }

    fn table(&mut self, input: &mut Input<'_>) {
        let count = 1 + input.below(4);
        let regions: Vec<_> = (0..count).map(|_| self.region(input)).collect();
        let numbers: Vec<u64> = regions.iter().flat_map(|(_, region)| *region).collect();
        let some: Vec<_> = regions.iter().map(|(at, _)| self.descriptor(*at)).collect();
        let count = u32::try_from(count).unwrap_or(0);
        self.say(to::SET_MEM_TABLE, &Body::u32s(&[count, 0]).and(Body::u64s(&numbers)), &some);
    }

    fn ring(&mut self, input: &mut Input<'_>) {
        let index = u32::from(input.u8() % 5);
        let body = |value| Body::u32s(&[index, value]);
        match input.below(7) {
            0 => self.say(to::SET_VRING_NUM, &body(u32::from(input.u16())), &[]),
            1 => self.say(to::SET_VRING_BASE, &body(input.u32()), &[]),
            2 => self.say(to::GET_VRING_BASE, &body(0), &[]),
            3 => self.say(to::SET_VRING_ENABLE, &body(u32::from(input.u8() % 3)), &[]),
            4 => {
                let at = USER + 0x800 * u64::from(input.u8() % 32);
                let parts = [at, at + 0x600, at + 0x400, input.u64()];
                let body = Body::u32s(&[index, 0]).and(Body::u64s(&parts));
                self.say(to::SET_VRING_ADDR, &body, &[]);
            }
            // The descriptor is a memory file instead of an eventfd.
            5 => self.say(to::SET_VRING_CALL, &Body::u64s(&[index.into()]), &[self.descriptor(0)]),
            _ => self.start(index % (2 * u32::from(PAIRS))),
        }
    }

    fn log(&mut self, input: &mut Input<'_>) {
        let at = input.below(FILES);
        let (len, offset) = stretch(input);
        self.with_file(at, |memory| memory.announce(offset, len));
        self.say(to::SET_LOG_BASE, &Body::u64s(&[len, offset]), &[self.descriptor(at)]);
    }

    fn inflight(&mut self, input: &mut Input<'_>) {
        let at = input.below(FILES);
        let (len, offset) = stretch(input);
        let queues = u32::from(input.u8() % 6) | u32::from(SIZE) << 16;
        self.with_file(at, |memory| {
            // Writes arbitrary marks and positions, as an earlier back end could have left in the
            // region.
            let version = [input.u8() % 3, 0, SIZE.to_le_bytes()[0], 0];
            memory.write(offset.saturating_add(8), &version);
            let bytes = input.slice(16);
            memory.write(offset.saturating_add(12), bytes);
            memory.announce(offset, len);
        });
        let body = Body::u64s(&[len, offset]).and(Body::u32s(&[queues, 0]));
        self.say(to::SET_INFLIGHT_FD, &body, &[self.descriptor(at)]);
    }

    /// Replaces a memory file by a new file, and announces the new file to the switch.
    fn replace(&mut self, input: &mut Input<'_>) {
        if self.replaced.len() >= REPLACED_MAX {
            return;
        }
        let at = input.below(FILES);
        let new = Memory::new(&c_name(&self.name), input.u8());
        let old = self.with_file(at, |memory| core::mem::replace(memory, new));
        self.replaced.push(old);
        self.table(input);
    }

    /// Makes buffers available like a driver, in the memory file that contains the rings.
    fn offer(&mut self, input: &mut Input<'_>) {
        let index = input.below(self.offered.len());
        let count = 1 + u16::from(input.u8() % 16);
        let ring = 0x1000 * index as u64;
        let write = if index.is_multiple_of(2) { 2_u16 } else { 0 };
        let first = self.offered[index];
        self.offered[index] = first.wrapping_add(count);
        let packed = self.packed;
        self.with_file(0, |memory| {
            for n in (0..count).map(|n| first.wrapping_add(n)) {
                let slot = n % SIZE;
                let at = ring + 16 * u64::from(slot);
                let buffer = [0x4000, 0x10_0000][input.below(2)] + 0x200 * u64::from(slot);
                let wrap = if (n / SIZE).is_multiple_of(2) { 1 << 7 } else { 1 << 15 };
                let (third, fourth) = if packed { (slot, write | wrap) } else { (write, 0) };
                let words = [buffer, 0x40 | u64::from(third) << 32 | u64::from(fourth) << 48];
                memory.write(at, &words.map(u64::to_le_bytes).concat());
                if !packed {
                    memory.write(ring + 0x404 + 2 * u64::from(slot), &slot.to_le_bytes());
                }
            }
            if !packed {
                let index = first.wrapping_add(count);
                memory.write(ring + 0x402, &index.to_le_bytes());
            }
        });
    }

    fn end(mut self) {
        self.port.turn();
        let _ = self.line.0.shutdown(std::net::Shutdown::Write);
        while self.port.serve().is_ok() {}
        assert_eq!(self.port.mapped(), 0, "an ended session still maps memory");
        drop(self.port);
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().chain(&self.replaced).for_each(Memory::check);
    }
}

fn connect() -> (Line, SteppedPort) {
    let (ours, theirs) = UnixStream::pair().expect("two ends");
    let one = VhostUserConfig::new("fuzz", PathBuf::from("/fuzz"));
    let config = VhostUserConfig { queue_pairs: PAIRS, ..one };
    (Line(ours), SteppedPort::new(&config, theirs).expect("a port"))
}

/// Reads size and offset of a dirty log or an inflight region from the input.
fn stretch(input: &mut Input<'_>) -> (u64, u64) {
    let len = pick(input, &[0x2000, 0x1001], &[0x20, 0, FILE, u64::MAX]);
    (len, pick(input, &[0, 0x1000, 0xe000, 0x8000], &[0x8, FILE, u64::MAX - 0xfff]))
}

/// Returns a value of `good` in most cases, and otherwise a value of `odd`.
fn pick(input: &mut Input<'_>, good: &[u64], odd: &[u64]) -> u64 {
    let choice = usize::from(input.u8());
    let from = if choice % 16 == 0 { odd } else { good };
    from[choice / 16 % from.len()]
}

fn fault(input: &mut Input<'_>) -> (usize, Fault) {
    // Most faults hit the file that contains the rings.
    let choice = input.u8();
    let at = usize::from(choice % 8).saturating_sub(5).min(FILES - 1);
    let place = 0x200 * u64::from(choice / 8) + u64::from(input.u8() % 2);
    let fault = match input.below(4) {
        0 | 1 => Fault::Shrink(place),
        2 => Fault::Punch(place & !0xfff, 0x1000 * u64::from(input.u8() % 16)),
        _ => Fault::Grow(2 * FILE),
    };
    (at, fault)
}
