//! Implements guest memory with sealed memfds that the driver maps and passes to the switch.
//!
//! # Problem
//! Rings and buffers are in memory that another process may read and write at any time. The other
//! modules of the driver should not need raw pointers to use guest memory.
//!
//! # Approach
//! A [`Window`] is a part of guest memory. The windows that a device needs are known before the
//! device attaches. Windows are page-aligned and distributed round-robin over the memory regions.
//! Each [`Window`] checks every access against its bounds.  Descriptors and indices are read and
//! written as atomics. Buffers are slices, because the driver accesses a buffer only while the
//! device does not own it.
//!
//! # Departures
//! A switch that breaks virtio's ownership rule may change the bytes of a buffer that the driver
//! accesses as a slice. The bytes of guest memory are plain `u8`, and the driver never reads a
//! length or an index twice. The driver is for tests and benchmarks: its peers are programs under
//! test on the same machine, not other tenants.
#![allow(unsafe_code, reason = "maps memory that is shared with the switch")]

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::error::DriverError;

const PAGE: usize = 4096;
/// Number of the first additional memory region. A device's initial regions have smaller numbers.
const SPARE_FROM: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// A memory region: a mapped memfd that is a contiguous range of guest addresses.
#[derive(Debug)]
struct Region {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
    guest: u64,
}

#[derive(Debug)]
pub struct GuestMemory {
    regions: Vec<Region>,
}

// SAFETY: the mapping belongs to no thread. Every access uses `Window` or `read`/`write`, whose
// pointers stay valid until `GuestMemory` is dropped.
// WHY: tests drive the queues of one device from different threads, and a lock would be too slow.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; shared access is only by atomics and bounded byte copies.
// WHY: as above.
unsafe impl Sync for GuestMemory {}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        for region in &self.regions {
            // SAFETY: base and len are what mmap returned. Windows hold an Arc to this, so no
            // pointer into the mapping outlives it.
            // WHY: there is no safe way to unmap.
            let _ = unsafe { munmap(region.base.cast(), region.len) };
        }
    }
}

/// Description of a memory region for the switch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionInfo<'a> {
    pub fd: BorrowedFd<'a>,
    pub guest: u64,
    pub len: usize,
    pub host: u64,
}

impl GuestMemory {
    /// Maps `regions` memfds, and creates a window for each size in `sizes` (in bytes). The windows
    /// are distributed round-robin over the regions. With `hugepages`, this function tries 2 MiB
    /// pages first, and then 4 KiB pages.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn with_windows(
        sizes: &[usize],
        regions: usize,
        hugepages: bool,
    ) -> Result<(Arc<Self>, Vec<Window>), DriverError> {
        let regions = regions.max(1);
        let mut lens = vec![0_usize; regions];
        let mut places = Vec::with_capacity(sizes.len());
        for (i, size) in sizes.iter().enumerate() {
            let region = i % regions;
            places.push((region, lens[region], *size));
            lens[region] += size.next_multiple_of(PAGE);
        }
        let mapped = lens
            .iter()
            .enumerate()
            .map(|(i, len)| Region::map(i, (*len).max(PAGE), hugepages))
            .collect::<Result<Vec<_>, _>>()?;
        let memory = Arc::new(Self { regions: mapped });
        let windows = places
            .into_iter()
            .map(|(region, offset, len)| Window::new(&memory, region, offset, len))
            .collect();
        Ok((memory, windows))
    }

    /// Creates an additional memory region of `bytes` bytes, for a guest that gets more memory.
    /// `nth` counts the additional regions of a guest, and determines the region's guest address.
    /// Returns the new guest memory and a window that covers the whole memory region.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn spare(nth: u16, bytes: usize) -> Result<(Arc<Self>, Window), DriverError> {
        let region = Region::map_as(SPARE_FROM + usize::from(nth), bytes, false)?;
        let memory = Arc::new(Self { regions: vec![region] });
        let window = Window::new(&memory, 0, 0, bytes);
        Ok((memory, window))
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = RegionInfo<'_>> {
        self.regions.iter().map(|r| RegionInfo {
            fd: r.fd.as_fd(),
            guest: r.guest,
            len: r.len,
            host: r.base.as_ptr() as u64,
        })
    }

    /// Returns the files of the memory regions, for tests that damage the files.
    pub fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.regions.iter().map(|region| region.fd.as_fd())
    }

    /// Returns the inode number of the first memory region's file, by which a test finds the
    /// mapping.
    ///
    /// # Errors
    /// Returns an error if the guest has no memory region, or if the first region's file cannot be
    /// examined.
    pub fn inode(&self) -> Result<u64, DriverError> {
        let region = self.regions.first().ok_or(DriverError::NotConnected)?;
        let stat = nix::sys::stat::fstat(&region.fd)
            .map_err(DriverError::errno("reading the inode number of guest memory"))?;
        Ok(stat.st_ino)
    }

    /// Returns the guest address range of each memory region. A range has its first address and its
    /// length in bytes.
    #[must_use]
    pub fn ranges(&self) -> Vec<(u64, usize)> {
        self.regions.iter().map(|r| (r.guest, r.len)).collect()
    }

    fn find(&self, guest: u64, len: usize) -> Option<*mut u8> {
        self.regions.iter().find_map(|r| {
            let offset = usize::try_from(guest.checked_sub(r.guest)?).ok()?;
            let end = offset.checked_add(len)?;
            // SAFETY: offset <= end <= r.len, so the pointer stays inside the mapping.
            // WHY: guest addresses have no safe form.
            (end <= r.len).then(|| unsafe { r.base.as_ptr().add(offset) })
        })
    }

    /// Copies `bytes` to a guest address. Returns false, and writes nothing, if the address range
    /// is not in guest memory.
    #[must_use]
    pub fn write(&self, guest: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.find(guest, bytes.len()) else { return false };
        // SAFETY: `find` checked the whole range. `bytes` belongs to the caller and cannot overlap
        // a mapping of which no Rust slice other than a window's exists. WHY: the hostile tests
        // write to addresses outside of all windows.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Copies from a guest address to `bytes`. Returns false, and reads nothing, if the address
    /// range is not in guest memory.
    #[must_use]
    pub fn read(&self, guest: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.find(guest, bytes.len()) else { return false };
        // SAFETY: as in `write`.
        // WHY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        true
    }
}

impl Region {
    fn map(index: usize, len: usize, hugepages: bool) -> Result<Self, DriverError> {
        if hugepages && let Ok(region) = Self::map_as(index, len.next_multiple_of(HUGE_PAGE), true)
        {
            return Ok(region);
        }
        Self::map_as(index, len, false)
    }

    fn map_as(index: usize, len: usize, huge: bool) -> Result<Self, DriverError> {
        let mut flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        if huge {
            flags |= MFdFlags::MFD_HUGETLB;
        }
        let fd = memfd_create(c"penstock-lab-guest", flags)
            .map_err(DriverError::errno("memfd_create for guest memory"))?;
        let size = libc::off_t::try_from(len).map_err(|_| DriverError::Range {
            what: "guest memory",
            value: len,
            low: 1,
            high: 1 << 40,
        })?;
        nix::unistd::ftruncate(&fd, size).map_err(DriverError::errno("sizing guest memory"))?;
        // If the file cannot shrink, an access by the switch cannot fault.
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))
            .map_err(DriverError::errno("sealing guest memory"))?;
        let bytes = NonZeroUsize::new(len).ok_or(DriverError::Range {
            what: "guest memory",
            value: 0,
            low: 1,
            high: 1 << 40,
        })?;
        // SAFETY: a new shared mapping of a new file, at an address that the kernel chooses.
        // WHY: the switch must see the same pages, and there is no safe shared memory.
        let base = unsafe {
            mmap(
                None,
                bytes,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE,
                &fd,
                0,
            )
        }
        .map_err(DriverError::errno("mapping guest memory"))?;
        // Guest addresses differ from host addresses, and there are gaps between regions.
        let guest = (index as u64 + 1) << 32;
        Ok(Self { fd, base: base.cast(), len, guest })
    }
}

/// A bounded, page-aligned part of guest memory.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    guest: u64,
    host: u64,
    memory: Arc<GuestMemory>,
}

// SAFETY: a window is a pointer into memory that `memory` keeps mapped; see `GuestMemory`.
// WHY: queues move to the thread that drives them.
unsafe impl Send for Window {}

impl Window {
    fn new(memory: &Arc<GuestMemory>, region: usize, offset: usize, len: usize) -> Self {
        let r = &memory.regions[region];
        assert!(offset + len <= r.len, "a window must be inside its memory region");
        // SAFETY: the assertion ensures that offset is inside the mapping.
        // WHY: the window keeps a pointer, so that an access costs one comparison.
        let base = unsafe { r.base.add(offset) };
        Self {
            base,
            len,
            guest: r.guest + offset as u64,
            host: base.as_ptr() as u64,
            memory: Arc::clone(memory),
        }
    }

    /// Guest address of byte `offset`.
    #[must_use]
    pub fn guest(&self, offset: usize) -> u64 {
        self.guest + offset as u64
    }

    /// Address of the window in this process. Vhost-user calls an address in this process the user
    /// address.
    #[must_use]
    pub fn host(&self) -> u64 {
        self.host
    }

    /// Length of the window in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the guest memory to which the window belongs.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    #[inline]
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the address is inside the window and, because windows are page-aligned, aligned
        // for T. WHY: an access costs one comparison; a slice of atomics would need the same unsafe
        // code elsewhere.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }

    /// Returns the 16-bit word at `offset` in the window.
    #[inline]
    #[must_use]
    pub fn u16_at(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: `at` checked bounds and alignment; the mapping lives as long as `self`.
        // WHY: ring words are shared with another process.
        unsafe { AtomicU16::from_ptr(self.at(offset)) }
    }

    /// Returns the 32-bit word at `offset` in the window.
    #[inline]
    #[must_use]
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u16_at`.
        // WHY: as in `u16_at`.
        unsafe { AtomicU32::from_ptr(self.at(offset)) }
    }

    /// Returns the 64-bit word at `offset` in the window.
    #[inline]
    #[must_use]
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `u16_at`.
        // WHY: as in `u16_at`.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }
    }

    /// Returns the `len` bytes at `offset` in the window. The device must not own the returned
    /// bytes at the moment of the call.
    #[inline]
    #[must_use]
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset, "inside the window");
        // SAFETY: the range is in bounds, and the caller owns these bytes by virtio's ownership
        // rule (module documentation). WHY: frames are read in place, without a copy.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// Like [`Self::bytes`], but returns a mutable slice.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.len && len <= self.len - offset, "inside the window");
        // SAFETY: the range is in bounds, `&mut self` makes it the only slice, and the caller owns
        // the bytes as in `bytes`. WHY: frames are built in place, without a copy.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), len) }
    }

    /// Prefetches the cache line at `offset` in the window. This function does nothing if `offset`
    /// is outside of the window.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if offset < self.len {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch of a mapped address has no architectural effect. WHY: the prefetch
            // hides the line transfer from the switch's core.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch(self.base.as_ptr().add(offset).cast(), _MM_HINT_T0);
            }
        }
    }

    /// Like [`prefetch`](Self::prefetch), but requests the cache line in exclusive state, for
    /// writing.
    #[inline]
    pub fn prefetch_write(&self, offset: usize) {
        if offset < self.len {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch of a mapped address has no architectural effect.
            // WHY: stores to lines of the other core would wait for each line. The intrinsic
            // compiles to a read prefetch on the baseline target.
            unsafe {
                std::arch::asm!(
                    "prefetchw [{}]",
                    in(reg) self.base.as_ptr().add(offset),
                    options(nostack, preserves_flags, readonly)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_dealt_to_regions_and_do_not_overlap() {
        let (memory, mut windows) =
            GuestMemory::with_windows(&[100, 5000, 8192], 2, false).unwrap();
        assert_eq!(memory.ranges().len(), 2);
        assert_eq!(windows[0].guest(0), 1 << 32);
        assert_eq!(windows[1].guest(0), 2 << 32);
        assert_eq!(windows[2].guest(0), (1 << 32) + 4096);
        windows[2].bytes_mut(0, 4).copy_from_slice(&[1, 2, 3, 4]);
        let mut seen = [0; 4];
        assert!(memory.read(windows[2].guest(0), &mut seen));
        assert_eq!(seen, [1, 2, 3, 4]);
    }

    #[test]
    fn raw_access_checks_the_whole_range() {
        let (memory, _windows) = GuestMemory::with_windows(&[4096], 1, false).unwrap();
        assert!(memory.write((1 << 32) + 4092, &[0; 4]));
        assert!(!memory.write((1 << 32) + 4093, &[0; 4]));
        assert!(!memory.write(u64::MAX, &[0; 4]));
        assert!(!memory.write(0, &[0]));
    }

    #[test]
    #[should_panic(expected = "inside the window")]
    fn a_window_does_not_reach_its_neighbour() {
        let (_memory, windows) = GuestMemory::with_windows(&[64, 64], 1, false).unwrap();
        let _ = windows[0].bytes(60, 8);
    }
}
