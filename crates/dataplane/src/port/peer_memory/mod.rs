//! Memory that a peer shares with the switch. Only this module maps files of a peer.
//!
//! # Problem
//! A guest's memory, a dirty log and an inflight region are files that another process made. That
//! process can shorten them, punch holes into them and replace them, and announce any offset and
//! length.
//!
//! # Approach
//! `Mapping` is the only way to map such a file, so each question has one answer:
//!
//! | Question | Answer |
//! |---|---|
//! | which files | memory only: a page fault waits for no disk, no network and no process |
//! | size | inside the file; at most the limits of a port and of the daemon (`limits`) |
//! | what is mapped | the pages of the range, not the file before it |
//! | page size | huge only on hugetlbfs (`fstatfs`), else 4,096 bytes |
//! | populated | only hugetlbfs, in the control thread |
//! | faults | guarded before first use, with an alarm for the session (`sigbus`) |
//! | core dumps | excluded, before and after a replacement |
//! | end | removed from the list, unmapped, returned to the limits, in this order |
//!
//! [`super::guest_memory`] (guest addresses) and `shared_file` (words) read the content of a
//! mapping.
//!
//! # Cost
//! Frames cost nothing extra, because both modules keep plain addresses.

mod limits;
mod mapping;
pub(super) mod shared_file;
mod sigbus;

pub use limits::{MemoryAccount, MemoryLimits, mapped_bytes, set_memory_limits};
pub use mapping::MappingError;
pub(super) use mapping::{Mapping, is_memory_file};
pub use shared_file::SharedFileError;
pub use sigbus::{guarded_mappings, pages_replaced};
