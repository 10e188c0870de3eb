//! Defines the handles of the `tc` objects that the driver creates.
//!
//! | Handle | Object |
//! |---|---|
//! | `9e50:` | HTB, the root qdisc of a port |
//! | `9e50:1` | HTB class of the port's rate |
//! | `9e50:10` + queue number | HTB class of a queue; `9e50:10` is HTB's default class |
//! | `9e60:` + queue number | qdisc of a queue |
//! | preference 1, handle 1 at `9e50:` | filter that maps code points to queues |

/// Major number of the handle of HTB, which is the root qdisc of a port.
pub(super) const ROOT: u32 = 0x9e50;
/// Minor number of the HTB class for the port's rate.
pub(super) const TOP_MINOR: u32 = 1;
/// Preference of the filter that maps code points to queues, which the kernel runs before all other
/// filters.
pub(super) const MAP_PREF: u32 = 1;
/// Handle of the filter that maps code points to queues.
pub(super) const MAP_HANDLE: u32 = 1;
/// Maximum number of queues that a port may have.
pub(super) const QUEUES_MAX: u8 = 16;

const FIRST_MINOR: u32 = 0x10;
const FIRST_LEAF: u32 = 0x9e60;

/// Returns the minor number of the HTB class of a queue.
pub(super) fn class_of(queue: u8) -> u32 {
    FIRST_MINOR + u32::from(queue)
}

/// Returns the queue of the HTB class with the minor number `minor`, or `None` for a class without
/// a queue.
pub(super) fn queue_of(minor: u32) -> Option<u8> {
    let queue = u8::try_from(minor.checked_sub(FIRST_MINOR)?).ok()?;
    (queue < QUEUES_MAX).then_some(queue)
}

/// Returns the major number of the qdisc of a queue.
pub(super) fn leaf_of(queue: u8) -> u32 {
    FIRST_LEAF + u32::from(queue)
}
