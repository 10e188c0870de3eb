//! Makes requests that a hypervisor sends to a switch while a guest runs: to log written pages, and
//! to add or remove memory.
//!
//! The requests are defined in the vhost-user specification, in the chapters "Migration" and
//! "Memory slots".

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo};

use super::device::VirtioNet;
use super::error::DriverError;
use super::memory::{GuestMemory, RegionInfo, Window};

/// Amount of guest memory that one bit of the log represents, in bytes.
const PAGE: u64 = 4096;

/// Log of the guest memory pages that the switch wrote.
#[derive(Debug)]
pub struct DirtyPages {
    bits: Window,
}

impl DirtyPages {
    /// Returns the guest addresses of the pages that were marked since the last call, and clears
    /// the marks. Each mark in the log is cleared atomically: if the switch writes the page later,
    /// the page is marked again.
    pub fn take(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for at in (0..self.bits.len()).step_by(8) {
            let word = self.bits.u64_at(at);
            let mut bits = match word.load(Ordering::Relaxed) {
                0 => continue,
                _ => word.swap(0, Ordering::AcqRel),
            };
            while bits != 0 {
                pages.push((8 * at as u64 + u64::from(bits.trailing_zeros())) * PAGE);
                bits &= bits - 1;
            }
        }
        pages
    }
}

pub(super) fn region_info(r: &RegionInfo<'_>) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: r.guest,
        memory_size: r.len as u64,
        userspace_addr: r.host,
        mmap_offset: 0,
        mmap_handle: r.fd.as_raw_fd(),
    }
}

impl VirtioNet {
    /// Makes the switch log its writes, as a hypervisor does at the start of a migration.
    ///
    /// # Errors
    /// Returns an error if the device has no session, or if the switch cannot log or refuses the
    /// log.
    pub fn log_writes(&mut self) -> Result<DirtyPages, DriverError> {
        let end = self.memory().ranges().iter().map(|r| r.0 + r.1 as u64).max().unwrap_or(0);
        let bytes = usize::try_from((end / PAGE).div_ceil(64) * 8).unwrap_or(usize::MAX);
        let (memory, bits) = GuestMemory::spare(u16::MAX, bytes)?;
        for r in memory.regions() {
            let log = VhostUserDirtyLogRegion {
                mmap_size: r.len as u64,
                mmap_offset: 0,
                mmap_handle: r.fd.as_raw_fd(),
            };
            self.frontend()?
                .set_log_base(0, Some(log))
                .map_err(DriverError::protocol("SET_LOG_BASE"))?;
        }
        self.set_logging(true)?;
        Ok(DirtyPages { bits })
    }

    /// Makes the switch stop logging. The pages that the switch has marked so far stay marked in
    /// the log.
    ///
    /// # Errors
    /// Returns an error if the device has no session, or if the switch refuses the request.
    pub fn stop_logging(&mut self) -> Result<(), DriverError> {
        self.set_logging(false)
    }

    /// Returns the ranges of guest memory that the switch may write: used rings, packed rings and
    /// receive buffers. A range has its first guest address and its length in bytes.
    #[must_use]
    pub fn written_by_switch(&mut self) -> Vec<(u64, usize)> {
        let range = |window: &Window| (window.guest(0), window.len());
        let parts = self.pairs_mut().iter_mut().flat_map(|pair| {
            let mut written = vec![range(pair.rx.buffers())];
            for ring in [&mut pair.rx.ring, &mut pair.tx.ring] {
                written.push(range(ring.used_window()));
                // In a packed ring, the switch overwrites available descriptors with used ones.
                written.extend(ring.is_packed().then(|| range(ring.desc_window())));
            }
            written
        });
        parts.collect()
    }

    /// Maximum number of memory regions that the switch supports.
    ///
    /// # Errors
    /// Returns an error if the device has no session, or if the switch does not report the number.
    pub fn memory_slots(&mut self) -> Result<u64, DriverError> {
        self.frontend()?.get_max_mem_slots().map_err(DriverError::protocol("GET_MAX_MEM_SLOTS"))
    }

    /// Announces additional memory to the switch.
    ///
    /// # Errors
    /// Returns an error if the device has no session, or if the switch refuses the region.
    pub fn add_memory(&mut self, memory: &GuestMemory) -> Result<(), DriverError> {
        for r in memory.regions() {
            self.frontend()?
                .add_mem_region(&region_info(&r))
                .map_err(DriverError::protocol("ADD_MEM_REG"))?;
        }
        Ok(())
    }

    /// Makes the switch unmap additional memory.
    ///
    /// # Errors
    /// Returns an error if the device has no session, or if the switch refuses. The switch refuses
    /// to remove a memory region that it does not have or that contains a ring.
    pub fn remove_memory(&mut self, memory: &GuestMemory) -> Result<(), DriverError> {
        for r in memory.regions() {
            self.frontend()?
                .remove_mem_region(&region_info(&r))
                .map_err(DriverError::protocol("REM_MEM_REG"))?;
        }
        Ok(())
    }
}
