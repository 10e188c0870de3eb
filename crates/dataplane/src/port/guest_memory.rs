//! A guest's memory: a few mapped regions. Only this module translates guest addresses to host
//! addresses in the guest's memory regions.
//!
//! # Problem
//! A hostile guest may pass any address and any length to the switch.
//!
//! # Approach
//! The numbered datapath rules 8 to 10 (`docs/internals/datapath-rules.md`) apply to guest
//! addresses. The *whole* range that a guest passes must lie in one memory region. CVE-2018-1059
//! was possible because only the start of a guest's address range was checked. A memory region
//! never extends beyond its file. A [`GuestMemory`] map is immutable, and the map is dropped only
//! after the worker has released it.
//!
//! # Cost
//! The translation of an address in the same region as the previous address costs one subtraction
//! and one comparison.
#![allow(unsafe_code, reason = "access to mapped guest memory needs raw pointers")]

use std::fs::File;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use nix::sys::stat::fstat;

use super::peer_memory::{Mapping, MappingError, MemoryAccount, is_memory_file};

/// Maximum number of memory regions that a driver may set. The vhost-user protocol also limits the
/// number of memory regions to 32.
pub const REGIONS_MAX: usize = 32;

/// A memory region that the driver announced in a vhost-user message.
#[derive(Debug)]
pub struct RegionSpec {
    /// Guest physical address of the region's first byte.
    pub guest: u64,
    /// Virtual address of the region's first byte in the driver's process. The driver also gives
    /// the addresses of rings as virtual addresses of its process.
    pub user: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in bytes of the region in its file.
    pub offset: u64,
    pub file: File,
}

/// Reason why a driver's memory table is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The driver's memory table has more than [`REGIONS_MAX`] regions.
    #[error("{0} memory regions; at most {REGIONS_MAX} are supported")]
    TooMany(usize),
    /// A memory region is empty, wraps around, or overlaps another region.
    #[error("memory region at guest address {0:#x} is empty, wraps or overlaps another")]
    Shape(u64),
    /// The switch cannot map the file of a memory region.
    #[error("memory region at guest address {guest:#x}: {source}")]
    Map {
        /// Guest address of the memory region.
        guest: u64,
        source: MappingError,
    },
}

#[derive(Clone, Debug)]
struct Region {
    guest: u64,
    user: u64,
    len: u64,
    host: *mut u8,
    /// Origin of the region: the offset in the region's file, and the file's device and inode.
    origin: (u64, u64, u64),
    /// The region's file, for a process that continues the session.
    file: Arc<File>,
    /// Keeps the region's memory mapped at the address `host`. Successive maps of the guest share
    /// the mappings of unchanged regions.
    mapping: Arc<Mapping>,
}

/// An immutable map of a guest's memory.
#[derive(Debug)]
pub struct GuestMemory {
    regions: Box<[Region]>,
}

// SAFETY: the map is immutable, and it points to shared memory that is accessed only by raw copies.
// WHY: control threads build maps, and workers use the maps.
unsafe impl Send for GuestMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps the regions and counts their bytes in `account`. The control thread also populates
    /// regions on huge pages, so that the worker has no page faults in these regions.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if a region is refused. If a region is refused, no region stays
    /// mapped.
    pub fn map(account: &MemoryAccount, specs: Vec<RegionSpec>) -> Result<Self, MemoryError> {
        // The number of regions is checked before the first one is mapped, because each region
        // could be as large as the limits allow.
        if specs.len() > REGIONS_MAX {
            return Err(MemoryError::TooMany(specs.len()));
        }
        let regions = specs.into_iter().map(|spec| map_region(account, spec));
        Self::of(regions.collect::<Result<Vec<_>, _>>()?)
    }

    /// Whether the map already has the region `spec`, with the same addresses and the same bytes of
    /// the same file. QEMU announces each region once for each queue pair.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if the map has a region with the addresses of `spec`, but the file
    /// of `spec` cannot be examined.
    pub fn has(&self, spec: &RegionSpec) -> Result<bool, MemoryError> {
        let same = |r: &&Region| (r.guest, r.user, r.len) == (spec.guest, spec.user, spec.len);
        let Some(region) = self.regions.iter().find(same) else { return Ok(false) };
        Ok(region.origin == origin(spec)?)
    }

    /// Returns a copy of this memory map with the additional region `spec`.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if the region is refused. The original memory map stays unchanged.
    pub fn with(&self, account: &MemoryAccount, spec: RegionSpec) -> Result<Self, MemoryError> {
        let mut regions = self.regions.to_vec();
        regions.push(map_region(account, spec)?);
        Self::of(regions)
    }

    /// Returns a copy of this memory map without the region of `len` bytes at guest address `guest`
    /// and driver address `user`. Returns `None` if the memory map has no region with the three
    /// given values.
    #[must_use]
    pub fn without(&self, guest: u64, user: u64, len: u64) -> Option<Self> {
        let mut regions = self.regions.to_vec();
        regions.retain(|r| (r.guest, r.user, r.len) != (guest, user, len));
        (regions.len() < self.regions.len()).then(|| Self { regions: regions.into_boxed_slice() })
    }

    /// Copies of the regions' specifications, with descriptors of their own.
    ///
    /// # Errors
    /// Returns an error if no file descriptor is free.
    pub(super) fn specs(&self) -> std::io::Result<Vec<RegionSpec>> {
        let spec = |r: &Region| {
            let (guest, user, len, offset) = (r.guest, r.user, r.len, r.origin.0);
            Ok(RegionSpec { guest, user, len, offset, file: r.file.try_clone()? })
        };
        self.regions.iter().map(spec).collect()
    }

    fn of(mut regions: Vec<Region>) -> Result<Self, MemoryError> {
        if regions.len() > REGIONS_MAX {
            return Err(MemoryError::TooMany(regions.len()));
        }
        regions.sort_by_key(|r| r.guest);
        if let Some(pair) = regions.windows(2).find(|p| p[1].guest - p[0].guest < p[0].len) {
            return Err(MemoryError::Shape(pair[1].guest));
        }
        Ok(Self { regions: regions.into_boxed_slice() })
    }

    /// Sets the eventfd that the switch signals if the file behind a region turns out to be shorter
    /// than the region.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        self.regions.iter().for_each(|region| region.mapping.set_alarm(alarm));
    }

    /// First guest address after the last memory region. A dirty log must cover all guest addresses
    /// below this address.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, |r| r.guest + r.len)
    }

    /// Host address of `len` bytes at guest address `guest`, if all `len` bytes lie in one region.
    /// `hint` is the index of the region that contained the previous address.
    #[inline]
    pub(crate) fn translate(&self, guest: u64, len: u32, hint: &mut usize) -> Option<*mut u8> {
        if let Some(region) = self.regions.get(*hint)
            && let Some(at) = region.at(guest, u64::from(len))
        {
            return Some(at);
        }
        self.translate_cold(guest, u64::from(len), hint)
    }

    /// Addresses of region number `hint`, for a loop that keeps these addresses in registers.
    #[inline(always)]
    pub(crate) fn window(&self, hint: usize) -> Window {
        let empty = Window { guest: 0, len: 0, host: core::ptr::null_mut() };
        self.regions.get(hint).map_or(empty, |r| Window {
            guest: r.guest,
            len: r.len,
            host: r.host,
        })
    }

    /// Like [`Self::translate`], for a loop that keeps the addresses of region number `hint` in
    /// registers.
    #[inline(always)]
    pub(crate) fn translate_in(
        &self,
        window: &mut Window,
        guest: u64,
        len: u32,
        hint: &mut usize,
    ) -> Option<*mut u8> {
        if let Some(at) = window.at(guest, u64::from(len)) {
            return Some(at);
        }
        let at = self.translate_cold(guest, u64::from(len), hint);
        *window = self.window(*hint);
        at
    }

    #[cold]
    fn translate_cold(&self, guest: u64, len: u64, hint: &mut usize) -> Option<*mut u8> {
        for (i, region) in self.regions.iter().enumerate() {
            if let Some(at) = region.at(guest, len) {
                *hint = i;
                return Some(at);
            }
        }
        None
    }

    /// Host address of guest address `guest`, and the number of the following `len` bytes that lie
    /// in the same region. Returns `None` if no memory region contains the guest address `guest`.
    pub(crate) fn translate_part(&self, guest: u64, len: u32) -> Option<(*mut u8, u32)> {
        let region = self.regions.iter().find(|r| guest.wrapping_sub(r.guest) < r.len)?;
        let offset = guest - region.guest;
        let here = u32::try_from(region.len - offset).unwrap_or(u32::MAX).min(len);
        Some((region.at(guest, u64::from(here))?, here))
    }

    /// Returns the guest address of the host address `host`, for the dirty log.
    pub(crate) fn guest_address(&self, host: *const u8) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = (host as u64).wrapping_sub(r.host as u64);
            (offset < r.len).then(|| r.guest + offset)
        })
    }

    /// Host address of the `len` bytes of a ring at the driver's virtual address `user`. The host
    /// address must be a multiple of `align`.
    pub(crate) fn translate_user(&self, user: u64, len: u64, align: u64) -> Option<*mut u8> {
        let region = self.regions.iter().find(|r| user.wrapping_sub(r.user) < r.len)?;
        let at = region.at(region.guest + (user - region.user), len)?;
        (at as u64).is_multiple_of(align).then_some(at)
    }
}

/// Addresses of one memory region of a guest, which translate guest addresses to host addresses.
/// The addresses in a `Window` are valid as long as the region's [`GuestMemory`] exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    guest: u64,
    len: u64,
    host: *mut u8,
}

impl Region {
    #[inline(always)]
    fn at(&self, guest: u64, len: u64) -> Option<*mut u8> {
        Window { guest: self.guest, len: self.len, host: self.host }.at(guest, len)
    }
}

impl Window {
    #[inline(always)]
    fn at(&self, guest: u64, len: u64) -> Option<*mut u8> {
        let offset = guest.wrapping_sub(self.guest);
        if offset >= self.len || self.len - offset < len {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "64-bit hosts only")]
        // SAFETY: offset < len, and `host` is mapped for `len` bytes.
        // WHY: a wrapping_add would keep the optimiser from folding the address.
        Some(unsafe { self.host.add(offset as usize) })
    }
}

/// Origin of a region: the offset in the region's file, and the file's device and inode.
fn origin(spec: &RegionSpec) -> Result<(u64, u64, u64), MemoryError> {
    let failed = |source| MemoryError::Map { guest: spec.guest, source };
    // The file's type is checked first, because any other call could wait for a file system that
    // the front end serves.
    if !is_memory_file(&spec.file) {
        return Err(failed(MappingError::Foreign));
    }
    let stat = fstat(&spec.file)
        .map_err(|source| failed(MappingError::Kernel { call: "fstat", source }))?;
    Ok((spec.offset, stat.st_dev, stat.st_ino))
}

fn map_region(account: &MemoryAccount, spec: RegionSpec) -> Result<Region, MemoryError> {
    let RegionSpec { guest, user, len, .. } = spec;
    let wraps = guest.checked_add(len).is_none() || user.checked_add(len).is_none();
    if len == 0 || wraps {
        return Err(MemoryError::Shape(guest));
    }
    let origin = origin(&spec)?;
    let mapping = Mapping::new(account, &spec.file, spec.offset, len)
        .map_err(|source| MemoryError::Map { guest, source })?;
    let host = mapping.at().as_ptr();
    let (file, mapping) = (Arc::new(spec.file), Arc::new(mapping));
    Ok(Region { guest, user, len, host, origin, file, mapping })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EfdFlags;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn file(len: u64) -> File {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    fn spec(guest: u64, len: u64, offset: u64, file: File) -> RegionSpec {
        RegionSpec { guest, user: guest + 0x7000_0000_0000, len, offset, file }
    }

    #[test]
    fn only_whole_ranges_inside_one_region_translate() {
        let map = GuestMemory::map(
            &MemoryAccount::default(),
            vec![
                spec(0x1_0000, 0x2000, 0, file(0x2000)),
                spec(0x1_2000, 0x1000, 0x1000, file(0x2000)),
            ],
        )
        .unwrap();
        let mut hint = 0;
        assert!(map.translate(0x1_0000, 0x2000, &mut hint).is_some());
        assert!(map.translate(0x1_1fff, 1, &mut hint).is_some());
        assert!(map.translate(0x1_1fff, 2, &mut hint).is_none(), "crosses the edge");
        assert!(map.translate(0xffff, 1, &mut hint).is_none());
        assert!(map.translate(0x1_3000, 1, &mut hint).is_none());
        assert!(map.translate(u64::MAX, 2, &mut hint).is_none(), "wraps");
        assert!(map.translate(0x1_2000, 0x1000, &mut hint).is_some());
        assert_eq!(hint, 1);
        assert_eq!(map.translate_part(0x1_1ff0, 64).map(|p| p.1), Some(16));
        assert!(map.translate_user(0x7000_0001_0000, 16, 16).is_some());
        assert!(map.translate_user(0x7000_0001_0008, 16, 16).is_none(), "misaligned");
        assert!(map.translate_user(0x7000_0001_1ff8, 16, 2).is_none());
    }

    #[test]
    fn a_region_comes_and_goes_and_the_others_stay_where_they_are() {
        let user = |guest: u64| guest + 0x7000_0000_0000;
        let first = GuestMemory::map(
            &MemoryAccount::default(),
            vec![spec(0x1_0000, 0x2000, 0, file(0x2000))],
        )
        .unwrap();
        let at = first.translate(0x1_0000, 1, &mut 0).unwrap();
        let both =
            first.with(&MemoryAccount::default(), spec(0x8000, 0x1000, 0, file(0x1000))).unwrap();
        assert_eq!(both.translate(0x1_0000, 1, &mut 0), Some(at), "mapped once");
        assert_eq!(both.guest_address(at), Some(0x1_0000));
        assert_eq!(both.guest_address(at.wrapping_add(0x2000)), None);
        assert_eq!(both.end(), 0x1_2000);
        drop(first);
        // SAFETY: `both` still maps it. WHY: a fault would show that it does not.
        unsafe { at.write_volatile(1) };
        let clash = both.with(&MemoryAccount::default(), spec(0x8800, 0x1000, 0, file(0x1000)));
        assert!(matches!(clash, Err(MemoryError::Shape(0x8800))));
        assert!(matches!(
            both.with(&MemoryAccount::default(), spec(0x9000, 0x2000, 0, file(0x1000))),
            Err(MemoryError::Map { source: MappingError::Short { .. }, .. })
        ));
        for (guest, user, len) in [
            (0x9000, user(0x9000), 0x1000),
            (0x8000, user(0x9000), 0x1000),
            (0x8000, user(0x8000), 0x800),
        ] {
            assert!(both.without(guest, user, len).is_none());
        }
        let rest = both.without(0x1_0000, user(0x1_0000), 0x2000).unwrap();
        assert!(rest.translate(0x1_0000, 1, &mut 0).is_none());
        assert!(rest.translate(0x8000, 0x1000, &mut 5).is_some(), "a hint beyond the map");
        let none = rest.without(0x8000, user(0x8000), 0x1000).unwrap();
        assert_eq!(none.end(), 0);
        let mut full = none;
        for i in 0..REGIONS_MAX as u64 {
            full = full
                .with(&MemoryAccount::default(), spec(i << 20, 0x1000, 0, file(0x1000)))
                .unwrap();
        }
        let more = full.with(&MemoryAccount::default(), spec(1 << 40, 0x1000, 0, file(0x1000)));
        assert!(matches!(more, Err(MemoryError::TooMany(n)) if n == REGIONS_MAX + 1));
    }

    #[test]
    fn a_region_is_known_again_by_its_addresses_and_its_file() {
        let memory = file(0x3000);
        let again = || memory.try_clone().unwrap();
        let map = GuestMemory::map(
            &MemoryAccount::default(),
            vec![spec(0x1000, 0x1000, 0x1000, again())],
        )
        .unwrap();
        assert!(map.has(&spec(0x1000, 0x1000, 0x1000, again())).unwrap());
        let others = [
            spec(0x1000, 0x1000, 0x1000, file(0x3000)),
            spec(0x1000, 0x1000, 0, again()),
            spec(0x1000, 0x800, 0x1000, again()),
            spec(0x2000, 0x1000, 0x1000, again()),
            RegionSpec { user: 0, ..spec(0x1000, 0x1000, 0x1000, again()) },
        ];
        for other in others {
            assert!(!map.has(&other).unwrap(), "{other:?}");
        }
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let foreign = map.has(&spec(0x1000, 0x1000, 0x1000, zero));
        assert!(matches!(
            foreign,
            Err(MemoryError::Map { guest: 0x1000, source: MappingError::Foreign })
        ));
    }

    #[test]
    fn only_files_whose_pages_are_memory_are_taken() {
        let path = std::env::temp_dir().join(format!("penstock-memory-{}", std::process::id()));
        std::fs::write(&path, [0; 8192]).unwrap();
        let open = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let on_tmpfs = is_memory_file(&open);
        let answer =
            GuestMemory::map(&MemoryAccount::default(), vec![spec(0x5000, 0x1000, 0, open)]);
        std::fs::remove_file(&path).unwrap();
        // If the temporary directory is on a tmpfs, the file is as good as a memfd.
        assert_eq!(answer.is_ok(), on_tmpfs);
        let zero = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
        let foreign =
            GuestMemory::map(&MemoryAccount::default(), vec![spec(0x5000, 0x1000, 0, zero)])
                .unwrap_err();
        assert!(foreign.to_string().contains("0x5000: not in a memfd"), "{foreign}");
        let (pipe, _) = nix::unistd::pipe().unwrap();
        let pipe =
            GuestMemory::map(&MemoryAccount::default(), vec![spec(0, 0x1000, 0, File::from(pipe))]);
        assert!(matches!(pipe, Err(MemoryError::Map { guest: 0, source: MappingError::Foreign })));
        if std::path::Path::new("/dev/shm").is_dir() {
            let path = format!("/dev/shm/penstock-memory-{}", std::process::id());
            std::fs::write(&path, [0; 8192]).unwrap();
            let open = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            let shared =
                GuestMemory::map(&MemoryAccount::default(), vec![spec(0, 0x1000, 0, open)]);
            std::fs::remove_file(&path).unwrap();
            assert!(shared.is_ok(), "{shared:?}");
        }
    }

    #[test]
    fn a_peer_that_has_page_after_page_replaced_uses_up_no_mappings() {
        const PAGES: u64 = 4_000;
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let up: Vec<u64> = (0..PAGES).step_by(2).collect();
        let down: Vec<u64> = up.iter().rev().copied().collect();
        for order in [up, down] {
            let short = file(PAGES * 4096);
            let map = GuestMemory::map(
                &MemoryAccount::default(),
                vec![spec(0, PAGES * 4096, 0, short.try_clone().unwrap())],
            );
            let map = map.unwrap();
            let alarm = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
            map.set_alarm(&alarm);
            let at = |page| map.translate(page * 4096, 8, &mut 0).unwrap();
            // SAFETY: the address was translated and its map is alive. WHY: guest memory is never
            // borrowed.
            unsafe { at(1).write_volatile(7) };
            assert!(alarm.read().is_err(), "nothing is gone yet");
            short.set_len(0).unwrap();
            let before = mappings();
            for page in &order {
                // SAFETY: as above. WHY: as above.
                assert_eq!(unsafe { at(*page).read_volatile() }, 0);
                // SAFETY: as above. WHY: as above.
                unsafe { at(*page).write_volatile(1) };
            }
            let more = mappings().saturating_sub(before);
            assert!(more < 100, "{more} mappings more");
            assert!(alarm.read().is_ok(), "the session is told");
        }
    }

    #[test]
    fn tables_that_cannot_hold_are_refused() {
        let short = GuestMemory::map(
            &MemoryAccount::default(),
            vec![spec(0, 0x2000, 0x1000, file(0x2000))],
        );
        let source = "0x0: the range ends at byte 12288, but the file has 8192 bytes";
        assert!(short.unwrap_err().to_string().ends_with(source));
        let empty = GuestMemory::map(&MemoryAccount::default(), vec![spec(0, 0, 0, file(0x1000))]);
        assert!(matches!(empty, Err(MemoryError::Shape(0))));
        let wraps = GuestMemory::map(
            &MemoryAccount::default(),
            vec![spec(0, u64::MAX - 0x7000_0000_0000, u64::MAX, file(0x1000))],
        );
        assert!(wraps.unwrap_err().to_string().ends_with("are empty or exceed the address space"));
        let overlap = GuestMemory::map(
            &MemoryAccount::default(),
            vec![spec(0, 0x2000, 0, file(0x2000)), spec(0x1000, 0x1000, 0, file(0x1000))],
        );
        assert!(matches!(overlap, Err(MemoryError::Shape(0x1000))));
    }
}
