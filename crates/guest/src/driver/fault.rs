//! Provides memory files that a driver announces to the switch and then shortens or punches holes
//! into, as a hostile front end can. No honest guest damages its memory, but every front end can.
//!
//! The driver does not map the memory itself, so its changes to the memory file affect only the
//! switch.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::VhostUserMemoryRegionInfo;

use super::error::DriverError;

/// A memory file that the driver announces to the switch as a memory region, and can then shorten
/// or punch holes into.
#[derive(Debug)]
pub struct FaultyMemory {
    file: File,
    len: u64,
}

impl FaultyMemory {
    /// Creates a memory file of `len` bytes.
    ///
    /// # Errors
    /// Returns an error if the kernel has no free memory or descriptor.
    pub fn new(len: u64) -> Result<Self, DriverError> {
        let file = memfd_create(c"faulty", MFdFlags::MFD_CLOEXEC)
            .map_err(DriverError::errno("making a memory file"))?;
        Self::of(File::from(file), len)
    }

    /// Uses an existing file as memory, and sets the file's length to `len` bytes.
    ///
    /// # Errors
    /// Returns an error if the length of the file cannot be changed.
    pub fn of(file: File, len: u64) -> Result<Self, DriverError> {
        file.set_len(len).map_err(DriverError::os("setting the length of a memory file"))?;
        Ok(Self { file, len })
    }

    /// Describes the memory region from `offset` to the end of the file. The region has the guest
    /// address `guest`. Its user address (vhost-user) is twice the guest address.
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

    /// Returns the descriptor of the memory file, for a log or an inflight region.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Shortens the file to `len` bytes. After the call, an access to mapped pages beyond `len`
    /// fails.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to shorten the file.
    pub fn shrink(&self, len: u64) -> Result<(), DriverError> {
        self.file.set_len(len).map_err(DriverError::os("shortening a memory file"))
    }

    /// Punches a hole of `len` bytes into the file at offset `from`. After the call, the bytes of
    /// the hole read as zeros.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to punch the hole.
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
