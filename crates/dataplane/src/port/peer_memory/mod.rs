//! Memory that a peer shares with us: the one place where files of a peer's are mapped.
//!
//! **Problem.** A guest's memory, a dirty log and an inflight region are files that another process
//! made, can shorten, punch and replace, and can announce with any offset and length. **Rule.**
//! `Mapping` is the only way to map one, so each question has one answer:
//!
//! | Question | Answer |
//! |---|---|
//! | which files | memory only: a fault in one waits for no disk, no network and no process |
//! | size | inside the file; at most the limits of a port and of the daemon (`limits`) |
//! | what is mapped | the pages of the stretch, not the file before it |
//! | page | huge only on hugetlbfs (`fstatfs`), else 4,096 bytes |
//! | populate | only hugetlbfs, in the control thread |
//! | fault | guarded before anybody sees it, with an alarm for its session (`sigbus`) |
//! | dump | none of it is in a core file, before and after a replacement |
//! | end | off the list, unmapped, given back to the limits, in this order |
//!
//! What lies in a mapping is read by [`super::guest_memory`] (guest addresses) and
//! `shared_file` (words). **Cost.** Nothing for frames: both keep plain addresses.

mod limits;
mod mapping;
pub(super) mod shared_file;
mod sigbus;

pub use limits::{MemoryAccount, MemoryLimits, mapped_bytes, set_memory_limits};
pub use mapping::MappingError;
pub(super) use mapping::{Mapping, is_memory_file};
pub use shared_file::SharedFileError;
pub use sigbus::{guarded_mappings, pages_replaced};
