//! Memory of a guest for the tests of rings, and the parts of these tests that do not depend on the
//! kind of ring.
#![allow(unsafe_code, reason = "the test plays the guest, which writes rings into shared memory")]
#![expect(clippy::cast_possible_truncation, reason = "small test values")]

use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::dirty_log::{DirtyLog, LOG_PAGE, RingLog};
use penstock_dataplane::port::guest_memory::{GuestMemory, RegionSpec};
use penstock_dataplane::port::inflight::{InflightRegion, RingLayout};
use penstock_dataplane::port::peer_memory::MemoryAccount;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;
pub const MEMORY: u64 = 1 << 20;
pub const HALF: u64 = MEMORY / 2;
/// Guest address of the second memory region. Each of the two memory regions has half of the
/// guest's memory, and a hole separates the regions.
pub const SECOND: u64 = 1 << 30;
pub const USER: u64 = 0x7000_0000_0000;
pub const BUFFERS: u64 = 0x1_0000;

/// Memory region of a guest: guest address, offset in the file, and number of bytes.
pub type Region = (u64, u64, u64);

pub fn memory_file(len: u64) -> File {
    let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(len).unwrap();
    file
}

pub fn map(file: &File, regions: &[Region]) -> Arc<GuestMemory> {
    let region = |&(guest, offset, len): &Region| {
        let file = file.try_clone().unwrap();
        RegionSpec { guest, user: USER + guest, len, offset, file }
    };
    let regions = regions.iter().map(region).collect();
    Arc::new(GuestMemory::map(&MemoryAccount::default(), regions).unwrap())
}

/// Memory of a guest.
pub struct Memory {
    base: *mut u8,
    file: File,
    /// The switch's map of the memory.
    pub map: Arc<GuestMemory>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let base = std::ptr::NonNull::new(self.base.cast()).unwrap();
        // SAFETY: mapped in `with` with this length, and nothing else has the address.
        // WHY: munmap has no safe form.
        unsafe { munmap(base, MEMORY as usize) }.unwrap();
    }
}

impl Memory {
    pub fn new() -> Self {
        Self::with(&[(0, 0, HALF), (SECOND, HALF, HALF)])
    }

    pub fn with(regions: &[Region]) -> Self {
        let file = memory_file(MEMORY);
        let map = map(&file, regions);
        let len = NonZeroUsize::new(MEMORY as usize).unwrap();
        let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping of the test's own file. WHY: the guest's view of its memory.
        let base = unsafe { mmap(None, len, rw, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
        Self { base: base.as_ptr().cast(), file, map }
    }

    /// Maps the memory once more, but only the first `len` bytes of the first region.
    pub fn remapped(&self, len: u64) -> Arc<GuestMemory> {
        map(&self.file, &[(0, 0, len), (SECOND, HALF, HALF)])
    }

    pub fn at(&self, guest: u64, len: usize) -> *mut u8 {
        let at = if guest >= SECOND { guest - SECOND + HALF } else { guest };
        assert!(at + len as u64 <= MEMORY);
        self.base.wrapping_add(at as usize)
    }

    pub fn write<T: Copy>(&self, guest: u64, value: T) {
        // SAFETY: inside the mapping. WHY: plays the guest.
        unsafe { self.at(guest, size_of::<T>()).cast::<T>().write_unaligned(value) }
    }

    pub fn read<T: Copy>(&self, guest: u64) -> T {
        // SAFETY: inside the mapping. WHY: plays the guest.
        unsafe { self.at(guest, size_of::<T>()).cast::<T>().read_unaligned() }
    }

    pub fn fill(&self, guest: u64, bytes: &[u8]) {
        for (at, byte) in (guest..).zip(bytes) {
            self.write(at, *byte);
        }
    }

    pub fn bytes(&self, guest: u64, len: usize) -> Vec<u8> {
        (guest..).take(len).map(|at| self.read(at)).collect()
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (1..=250_u8).cycle().take(len).collect()
}

pub fn frames_of(batch: &Batch) -> Vec<Vec<u8>> {
    (0..batch.len())
        .map(|i| {
            let mut out = Vec::new();
            batch.copy_out(i, &mut out);
            out
        })
        .collect()
}

/// Returns a batch with the frames, and their order for a ring.
pub fn batch_of(frames: &[Vec<u8>]) -> (Box<Batch>, Vec<u8>) {
    let mut batch = Batch::new();
    for frame in frames {
        batch.push(frame, Offload::NONE).unwrap();
    }
    (batch, (0..frames.len() as u8).collect())
}

pub fn eventfd() -> File {
    File::from(OwnedFd::from(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()))
}

pub fn rung(call: &File) -> bool {
    let mut count = [0; 8];
    (&*call).read(&mut count).is_ok()
}

/// Makes an inflight region for one ring, with its file.
pub fn inflight(layout: RingLayout, size: u16) -> (File, Arc<InflightRegion>) {
    let account = MemoryAccount::default();
    let (file, len) = InflightRegion::make(&account, layout, 1, size).unwrap();
    let region = InflightRegion::map(&account, layout, &file, 0, len, (1, size)).unwrap();
    (file, Arc::new(region))
}

/// Creates a log of all pages. If the ring's own address `used` is given, the log also marks the
/// page of the ring whenever the ring is written.
pub fn log(used: Option<u64>) -> (File, RingLog) {
    let file = File::from(memfd_create(c"log", MFdFlags::MFD_CLOEXEC).unwrap());
    let bytes = (SECOND + MEMORY) / LOG_PAGE / 8;
    file.set_len(bytes).unwrap();
    let log = Arc::new(DirtyLog::map(&MemoryAccount::default(), &file, 0, bytes).unwrap());
    (file, RingLog { log, used })
}

/// Returns the numbers of the guest memory pages that the switch has marked in the dirty log since
/// the last call. The function clears the log's marks, as the front end of a hypervisor does.
pub fn taken_pages(file: &File) -> Vec<u64> {
    let mut bytes = vec![0; ((SECOND + MEMORY) / LOG_PAGE / 8) as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    file.write_all_at(&vec![0; bytes.len()], 0).unwrap();
    (0..8 * bytes.len() as u64).filter(|n| bytes[(n / 8) as usize] & 1 << (n % 8) != 0).collect()
}
