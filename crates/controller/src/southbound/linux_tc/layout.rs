//! Handles of the driver's objects.
//!
//! | Handle | Object |
//! |---|---|
//! | `9e50:` | HTB, the root of a port |
//! | `9e50:1` | class of the port's rate |
//! | `9e50:10` + queue | class of a queue; `9e50:10` is HTB's default |
//! | `9e60:` + queue | qdisc of a queue |
//! | preference 1, handle 1 at `9e50:` | the map |

/// HTB's major number.
pub(super) const ROOT: u32 = 0x9e50;
/// Minor number of the class for the port's rate.
pub(super) const TOP_MINOR: u32 = 1;
/// Preference of the map. No filter comes before it.
pub(super) const MAP_PREF: u32 = 1;
/// Handle of the map.
pub(super) const MAP_HANDLE: u32 = 1;
/// Maximum number of queues of a port.
pub(super) const QUEUES_MAX: u8 = 16;

const FIRST_MINOR: u32 = 0x10;
const FIRST_LEAF: u32 = 0x9e60;

/// Minor number of a queue's class.
pub(super) fn class_of(queue: u8) -> u32 {
    FIRST_MINOR + u32::from(queue)
}

/// Queue of the class with this minor number, if it is the class of a queue.
pub(super) fn queue_of(minor: u32) -> Option<u8> {
    let queue = u8::try_from(minor.checked_sub(FIRST_MINOR)?).ok()?;
    (queue < QUEUES_MAX).then_some(queue)
}

/// Major number of a queue's qdisc.
pub(super) fn leaf_of(queue: u8) -> u32 {
    FIRST_LEAF + u32::from(queue)
}
