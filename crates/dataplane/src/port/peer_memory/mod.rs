//! Memory that a peer shares with the switch. Only this module maps files of a peer.
//!
//! # Problem
//! A guest's memory, a dirty log and an inflight region are files that a peer process made. The
//! peer can shorten its shared files, punch holes into the files and replace the files. The peer
//! can also announce any offset and length in a file.
//!
//! # Approach
//! Only `Mapping` maps files of a peer, so all mappings have the same properties:
//!
//! | Property of a mapped file | Value |
//! |---|---|
//! | accepted files | memory only: a page fault waits for no disk, no network and no process |
//! | size | inside the file, and within the memory limits of port and daemon (`limits`) |
//! | mapped pages | only the pages of the range, not the earlier pages of the file |
//! | page size | huge only on hugetlbfs (`fstatfs`), else 4,096 bytes |
//! | populated at once | only hugetlbfs, in the control thread |
//! | faults | guarded before first use, with an alarm for the session (`sigbus`) |
//! | core dumps | exclude the mapping, before and after the SIGBUS handler replaces its pages |
//! | end | first removed from the list of guarded ranges, then unmapped, then no longer counted |
//!
//! [`super::guest_memory`] (guest addresses) and `shared_file` (words) read the content of a
//! mapping.
//!
//! # Cost
//! A mapping costs nothing per frame, because the modules that use the mapping keep plain
//! addresses.

mod limits;
mod mapping;
pub(super) mod shared_file;
mod sigbus;

pub use limits::{MemoryAccount, MemoryLimits, mapped_bytes, set_memory_limits};
pub use mapping::MappingError;
pub(super) use mapping::{Mapping, is_memory_file};
pub use shared_file::SharedFileError;
pub use sigbus::{guarded_mappings, pages_replaced};
