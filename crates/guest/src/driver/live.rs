//! Requests of a hypervisor to a switch while its guest runs: a log of written pages, and memory
//! that is added and removed.
//!
//! Source: the vhost-user specification, "Migration" and "Memory slots".

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo};

use super::device::VirtioNet;
use super::error::DriverError;
use super::memory::{GuestMemory, RegionInfo, Window};

/// Bytes of guest memory that one bit of the log represents.
const PAGE: u64 = 4096;

/// The log of pages that the switch wrote.
#[derive(Debug)]
pub struct DirtyPages {
    bits: Window,
}

impl DirtyPages {
    /// Guest addresses of the pages marked since the last call. Each mark is taken atomically, as
    /// in a migration, so that later writes mark the page again.
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
    /// Makes the switch log its writes, as a hypervisor does when a migration begins.
    ///
    /// # Errors
    /// There is no session, the switch cannot log, or the switch refuses the log.
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

    /// Ends the logging. Earlier marks stay.
    ///
    /// # Errors
    /// There is no session, or the switch refuses.
    pub fn stop_logging(&mut self) -> Result<(), DriverError> {
        self.set_logging(false)
    }

    /// The guest address ranges (first address, bytes) that the switch may write: used rings,
    /// packed rings and receive buffers.
    #[must_use]
    pub fn written_by_switch(&mut self) -> Vec<(u64, usize)> {
        let range = |window: &Window| (window.guest(0), window.len());
        let parts = self.pairs_mut().iter_mut().flat_map(|pair| {
            let mut written = vec![range(pair.rx.buffers())];
            for ring in [&mut pair.rx.ring, &mut pair.tx.ring] {
                written.push(range(ring.used_window()));
                // In a packed ring, used descriptors replace available ones.
                written.extend(ring.is_packed().then(|| range(ring.desc_window())));
            }
            written
        });
        parts.collect()
    }

    /// Maximum number of memory regions of the switch.
    ///
    /// # Errors
    /// There is no session, or the switch does not report the number.
    pub fn memory_slots(&mut self) -> Result<u64, DriverError> {
        self.frontend()?.get_max_mem_slots().map_err(DriverError::protocol("GET_MAX_MEM_SLOTS"))
    }

    /// Adds a region for the switch.
    ///
    /// # Errors
    /// There is no session, or the switch refuses the region.
    pub fn add_memory(&mut self, memory: &GuestMemory) -> Result<(), DriverError> {
        for r in memory.regions() {
            self.frontend()?
                .add_mem_region(&region_info(&r))
                .map_err(DriverError::protocol("ADD_MEM_REG"))?;
        }
        Ok(())
    }

    /// Removes a region from the switch.
    ///
    /// # Errors
    /// There is no session, or the switch refuses: it has no such region, or a ring is in it.
    pub fn remove_memory(&mut self, memory: &GuestMemory) -> Result<(), DriverError> {
        for r in memory.regions() {
            self.frontend()?
                .remove_mem_region(&region_info(&r))
                .map_err(DriverError::protocol("REM_MEM_REG"))?;
        }
        Ok(())
    }
}
