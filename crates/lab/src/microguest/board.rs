//! The memory of a micro-guest. The guest, its process and the measuring program read and write the
//! memory.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context as _, ensure};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};

use super::program;

/// I/O port to which the guest writes when it wants to sleep.
pub(super) const SLEEP_PORT: u16 = 0x10;
pub(super) const STOP_PORT: u16 = 0x11;

/// Offsets in bytes of the values in a guest's memory, from [`BOARD`]. Each value in a guest's
/// memory is a 64-bit word.
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
    /// Fixed length of each sleep of the guest in nanoseconds. The value 0 means that the guest
    /// sleeps until the time in `IDLE_UNTIL`. The process that runs the guest reads the length of
    /// the sleep from the guest's memory.
    pub const PAUSE: u16 = 72;
    /// The guest's time stamp counter minus the host's counter, modulo 2^64.
    pub const AHEAD: u16 = 80;
}

/// Size of a guest's whole memory in bytes: one page of 2 MiB.
pub(super) const BYTES: usize = 2 << 20;
/// Guest address of the three pages that hold the guest's page tables.
pub(super) const TABLES: u64 = 0x1000;
pub(super) const CODE: u64 = 0x4000;
/// Guest address of the words in [`offset`].
pub(super) const BOARD: u64 = 0x8000;
/// Guest address of the stream's packets. Each packet has two words: its due time, and the time at
/// which the guest sent the packet.
pub(super) const PACKETS: u64 = 0x1_0000;
const PACKET_BYTES: u64 = 16;
/// Maximum number of packets in a guest's stream.
pub const PACKETS_MAX: usize = 120_000;
/// Number of the event that ends the guest.
const LAST_EVENT: u64 = u64::MAX;

#[derive(Debug)]
pub struct Board {
    memory: GuestMemoryMmap,
    path: PathBuf,
}

/// A stream of packets that a guest sends. Times are values of the host's time stamp counter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    /// Times at which the packets are due, in ascending order.
    pub due: Vec<u64>,
    /// Number of rounds of its loop that the guest computes in every period.
    pub work: u64,
    pub period: u64,
    /// Length of each sleep of the guest in nanoseconds. The value 0 means that the guest sleeps
    /// until its next packet or period.
    pub pause_ns: u64,
}

impl Board {
    /// Creates a guest's memory, with a program that computes.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory is not available.
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

    /// Opens a guest's memory that another process created.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened, or does not have the size of a guest's
    /// memory.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("{}: opening", path.display()))?;
        let bytes = file.metadata().context("its size")?.len();
        ensure!(
            bytes == u64::try_from(BYTES)?,
            "{}: {bytes} bytes are not a micro-guest's memory, which has {BYTES}; name the \
             path that `Board::path` returns",
            path.display()
        );
        Self::map(file, path.to_owned())
    }

    fn map(file: File, path: PathBuf) -> anyhow::Result<Self> {
        let range = (GuestAddress(0), BYTES, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]);
        Ok(Self { memory: memory.context("mapping a guest's memory")?, path })
    }

    /// Returns the path with which other processes can open the guest's memory. The path of the
    /// guest's memory is valid as long as this `Board` exists.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Returns the address of the guest's memory in this process.
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

    /// Returns the number of rounds that the guest's loop has made so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.word(offset::ROUNDS)
    }

    /// Sends event `number` to the guest. `number` is at least 1 and differs from the number of the
    /// previous event.
    pub fn tell(&self, number: u64) {
        self.set(offset::EVENT, number);
    }

    /// Returns the number of the last event that the guest answered, and the host's time stamp
    /// counter at the time of the answer.
    #[must_use]
    pub fn answered(&self) -> (u64, u64) {
        let number = self.word(offset::ANSWERED);
        (number, self.word(offset::ANSWERED_AT).wrapping_sub(self.ahead()))
    }

    pub fn stop(&self) {
        self.tell(LAST_EVENT);
    }

    /// Returns the guest's time stamp counter minus the host's counter, modulo 2^64.
    fn ahead(&self) -> u64 {
        self.word(offset::AHEAD)
    }

    pub(super) fn set_ahead(&self, ahead: u64) {
        self.set(offset::AHEAD, ahead);
    }

    /// Returns two values that determine how long the guest sleeps. The first value is the host's
    /// time stamp counter when the guest's next packet or period is due. The second value is the
    /// fixed length of a sleep in nanoseconds, or 0 if sleeps have no fixed length.
    pub(super) fn idle(&self) -> (u64, u64) {
        let until = self.word(offset::IDLE_UNTIL).wrapping_sub(self.ahead());
        (until, self.word(offset::PAUSE))
    }

    /// Makes a running guest send a stream of packets. Call this function at most once.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has more than [`PACKETS_MAX`] packets.
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
        // The guest reads the other words when it sees this word, so this word is written last.
        self.set(offset::PACKETS, u64::try_from(packets)?);
        Ok(())
    }

    /// Returns the times at which the guest has sent packets so far, as values of the host's time
    /// stamp counter.
    #[must_use]
    pub fn sent(&self) -> Vec<u64> {
        let sent = (0..self.word(offset::SENT)).map(|nth| PACKETS + nth * PACKET_BYTES + 8);
        sent.map(|at| self.load(at).wrapping_sub(self.ahead())).collect()
    }
}
