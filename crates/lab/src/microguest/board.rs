//! The memory of a guest. Three sides read and write it: the guest, its process, and the program
//! that measures.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context as _, ensure};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};

use super::program;

/// Ports of the I/O instructions by which the guest leaves the processor: to sleep, and to stop.
pub(super) const SLEEP_PORT: u16 = 0x10;
pub(super) const STOP_PORT: u16 = 0x11;

/// Offsets of values on the board. Each is a word of 64 bits.
pub(super) mod offset {
    pub const ROUNDS: u16 = 0;
    pub const EVENT: u16 = 8;
    pub const ANSWERED_AT: u16 = 16;
    pub const ANSWERED: u16 = 24;
    pub const PACKETS: u16 = 32;
    pub const SENT: u16 = 40;
    pub const WORK: u16 = 48;
    pub const PERIOD: u16 = 56;
    pub const IDLE_UNTIL: u16 = 64;
    /// Words that the guest does not read. `PAUSE` is the length of a sleep that replaces the time
    /// which the guest requested. `AHEAD` is the guest's time stamp counter minus the host's.
    pub const PAUSE: u16 = 72;
    pub const AHEAD: u16 = 80;
}

/// The whole memory: one page of 2 MiB.
pub(super) const BYTES: usize = 2 << 20;
/// Three pages of page tables.
pub(super) const TABLES: u64 = 0x1000;
pub(super) const CODE: u64 = 0x4000;
/// The words of [`offset`].
pub(super) const BOARD: u64 = 0x8000;
/// Packets: the time at which each is due, and the time at which it was sent.
pub(super) const PACKETS: u64 = 0x1_0000;
const PACKET_BYTES: u64 = 16;
/// Largest number of packets in a stream.
pub const PACKETS_MAX: usize = 120_000;
/// The event that ends the guest.
const LAST_EVENT: u64 = u64::MAX;

/// A guest's memory.
#[derive(Debug)]
pub struct Board {
    memory: GuestMemoryMmap,
    path: PathBuf,
}

/// A stream that a guest sends by itself. Times are of the host's time stamp counter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    /// Times at which packets are due, in order.
    pub due: Vec<u64>,
    /// Rounds of the loop to compute in every period.
    pub work: u64,
    pub period: u64,
    /// Length of a sleep when the guest has nothing to do, in nanoseconds. 0: until there is
    /// something to do.
    pub pause_ns: u64,
}

impl Board {
    /// New memory, for a guest that computes.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn new() -> anyhow::Result<Self> {
        let fd = memfd_create("penstock-microguest", MFdFlags::MFD_CLOEXEC);
        let file = File::from(fd.context("making a guest's memory")?);
        file.set_len(u64::try_from(BYTES)?).context("making a guest's memory")?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let board = Self::map(file, path.into())?;
        let code = program::code();
        ensure!(u64::try_from(code.len())? <= BOARD - CODE, "the program is too long");
        board.memory.write_slice(code, GuestAddress(CODE)).context("writing the program")?;
        Ok(board)
    }

    /// Opens memory that another process has made.
    ///
    /// # Errors
    ///
    /// Fails if the memory cannot be opened, or is not a guest's.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("{}: opening", path.display()))?;
        let bytes = file.metadata().context("its size")?.len();
        ensure!(
            bytes == u64::try_from(BYTES)?,
            "{}: {bytes} bytes are not a micro-guest's memory, which has {BYTES}; name what \
             `Board::path` says",
            path.display()
        );
        Self::map(file, path.to_owned())
    }

    fn map(file: File, path: PathBuf) -> anyhow::Result<Self> {
        let range = (GuestAddress(0), BYTES, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]);
        Ok(Self { memory: memory.context("mapping a guest's memory")?, path })
    }

    /// The path by which another process can open the memory while this process has it open.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Address of the memory in this process.
    pub(super) fn host_address(&self) -> anyhow::Result<u64> {
        let start = self.memory.get_host_address(GuestAddress(0)).context("its address")?;
        Ok(u64::try_from(start.addr())?)
    }

    fn load(&self, at: u64) -> u64 {
        // Every address here is aligned and inside the memory.
        self.memory.load(GuestAddress(at), Ordering::Acquire).unwrap_or(0)
    }

    fn store(&self, at: u64, value: u64) {
        let stored = self.memory.store(value, GuestAddress(at), Ordering::Release);
        debug_assert!(stored.is_ok(), "{at:#x} is outside");
    }

    fn word(&self, offset: u16) -> u64 {
        self.load(BOARD + u64::from(offset))
    }

    fn set(&self, offset: u16, value: u64) {
        self.store(BOARD + u64::from(offset), value);
    }

    /// Rounds of the guest's loop so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.word(offset::ROUNDS)
    }

    /// Sends the guest event number `number`, which is at least 1 and differs from the last one.
    pub fn tell(&self, number: u64) {
        self.set(offset::EVENT, number);
    }

    /// The last event that the guest answered, and when, by the host's time stamp counter.
    #[must_use]
    pub fn answered(&self) -> (u64, u64) {
        let number = self.word(offset::ANSWERED);
        (number, self.word(offset::ANSWERED_AT).wrapping_sub(self.ahead()))
    }

    pub fn stop(&self) {
        self.tell(LAST_EVENT);
    }

    /// The guest's time stamp counter minus the host's, modulo 2^64.
    fn ahead(&self) -> u64 {
        self.word(offset::AHEAD)
    }

    pub(super) fn set_ahead(&self, ahead: u64) {
        self.set(offset::AHEAD, ahead);
    }

    /// The time until which the guest has nothing to do, by the host's counter, and the length of
    /// the sleep that replaces it.
    pub(super) fn idle(&self) -> (u64, u64) {
        let until = self.word(offset::IDLE_UNTIL).wrapping_sub(self.ahead());
        (until, self.word(offset::PAUSE))
    }

    /// Makes the guest send a stream. It may be called once, while the guest runs.
    ///
    /// # Errors
    ///
    /// Fails if the stream is too long.
    pub fn stream(&self, stream: &Stream) -> anyhow::Result<()> {
        let packets = stream.due.len();
        ensure!(packets <= PACKETS_MAX, "{packets} packets; at most {PACKETS_MAX}");
        let places = (PACKETS..).step_by(16);
        for (place, due) in places.zip(&stream.due) {
            self.store(place, due.wrapping_add(self.ahead()));
        }
        self.set(offset::WORK, stream.work);
        self.set(offset::PERIOD, stream.period);
        self.set(offset::PAUSE, stream.pause_ns);
        // The guest reads the rest once it sees this word.
        self.set(offset::PACKETS, u64::try_from(packets)?);
        Ok(())
    }

    /// Times at which packets were sent so far, by the host's counter.
    #[must_use]
    pub fn sent(&self) -> Vec<u64> {
        let sent = (0..self.word(offset::SENT)).map(|nth| PACKETS + nth * PACKET_BYTES + 8);
        sent.map(|at| self.load(at).wrapping_sub(self.ahead())).collect()
    }
}
