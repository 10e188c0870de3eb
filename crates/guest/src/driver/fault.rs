//! Memory that a driver announces and takes away: what no guest does and every front end can.
//!
//! **Rule.** The driver itself does not map it, so what it does to the file hurts only who does.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::VhostUserMemoryRegionInfo;

use super::error::DriverError;

/// A file behind one region.
#[derive(Debug)]
pub struct FaultyMemory {
    file: File,
    len: u64,
}

impl FaultyMemory {
    /// A memory file of `len` bytes.
    ///
    /// # Errors
    /// When the kernel has no memory or no descriptor.
    pub fn new(len: u64) -> Result<Self, DriverError> {
        let file = memfd_create(c"faulty", MFdFlags::MFD_CLOEXEC)
            .map_err(DriverError::errno("making a memory file"))?;
        Self::of(File::from(file), len)
    }

    /// The same with a file that is there, which gets `len` bytes.
    ///
    /// # Errors
    /// When it takes no other length.
    pub fn of(file: File, len: u64) -> Result<Self, DriverError> {
        file.set_len(len).map_err(DriverError::os("setting the length of a memory file"))?;
        Ok(Self { file, len })
    }

    /// The region of all bytes from `offset` on, at guest address `guest` and as much higher in the
    /// driver's addresses.
    #[must_use]
    pub fn region(&self, guest: u64, offset: u64) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: guest,
            memory_size: self.len - offset,
            userspace_addr: guest << 1,
            mmap_offset: offset,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// Its descriptor, for a log or an inflight region.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Cuts it off behind `len` bytes; what is mapped beyond is gone.
    ///
    /// # Errors
    /// When the file refuses.
    pub fn shrink(&self, len: u64) -> Result<(), DriverError> {
        self.file.set_len(len).map_err(DriverError::os("shortening a memory file"))
    }

    /// Takes `len` bytes out from `from` on; they read as zeroes.
    ///
    /// # Errors
    /// When the file refuses.
    pub fn punch(&self, from: u64, len: u64) -> Result<(), DriverError> {
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        fallocate(&self.file, how, number(from), number(len))
            .map_err(DriverError::errno("punching a hole into a memory file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn bytes_are_taken_out_and_cut_off() {
        let memory = FaultyMemory::new(0x4000).unwrap();
        memory.file.write_all_at(&[7; 0x4000], 0).unwrap();
        memory.punch(0x1000, 0x1000).unwrap();
        let mut byte = [9];
        memory.file.read_exact_at(&mut byte, 0x1fff).unwrap();
        assert_eq!(byte, [0]);
        memory.file.read_exact_at(&mut byte, 0x2000).unwrap();
        assert_eq!(byte, [7]);
        memory.shrink(0x1000).unwrap();
        assert!(memory.file.read_exact_at(&mut byte, 0x1000).is_err());
        assert_eq!(memory.region(1 << 40, 0x10).memory_size, 0x3ff0);
    }
}
