//! Defines the handles of the `tc` objects that the driver creates.
//!
//! | Handle | Object |
//! |---|---|
//! | `9e50:` | HTB, the root qdisc of a port |
//! | `9e50:1` | HTB class of the port's rate |
//! | `9e50:10` + queue number | HTB class of a queue; `9e50:10` is HTB's default class |
//! | `9e60:` + queue number | qdisc of a queue, or of its frames that do not pass data |
//! | `9e70:` + queue number | HTB below the class of a queue with two FIFOs |
//! | `9e71:1` and `9e71:2` | in queue 1: the classes of acknowledgements and of all other frames |
//! | `9e80:` + queue number | qdisc of a queue's acknowledgements |
//! | preference 1, handle 1 at `9e50:` | filter that maps code points to queues |
//! | preference 1, handle 1 at `9e70:` + queue number | filter that finds acknowledgements |
//!
//! The class and qdisc of acknowledgements also have the hosts' questions and answers about pairs
//! of VMs.

/// Handle of HTB, which is the root qdisc of a port.
pub(super) const ROOT: u32 = 0x9e50_0000;
/// Handle of the HTB class for the port's rate.
pub(super) const TOP: u32 = ROOT + 1;
/// Preference of the filter that maps code points to queues, which the kernel runs before all other
/// filters.
pub(super) const MAP_PREF: u32 = 1;
/// Handle of the filter that maps code points to queues.
pub(super) const MAP_HANDLE: u32 = 1;
/// Maximum number of queues that a port may have.
pub(super) const QUEUES_MAX: u8 = 16;

const FIRST_CLASS: u32 = ROOT + 0x10;
const FIRST_LEAF: u32 = 0x9e60_0000;
const FIRST_INNER: u32 = 0x9e70_0000;
const FIRST_ACKS: u32 = 0x9e80_0000;

/// Minor numbers of the two classes of [`inner_of`].
const ACKS: u32 = 1;
pub(super) const OTHERS: u32 = 2;

/// Returns the handle of the HTB class of a queue.
pub(super) fn class_of(queue: u8) -> u32 {
    FIRST_CLASS + u32::from(queue)
}

/// Returns the queue of the HTB class with the handle `class`, or `None` for a class without a
/// queue.
pub(super) fn queue_of(class: u32) -> Option<u8> {
    let queue = u8::try_from(class.checked_sub(FIRST_CLASS)?).ok()?;
    (queue < QUEUES_MAX).then_some(queue)
}

/// Returns the handle of the qdisc of a queue.
pub(super) fn leaf_of(queue: u8) -> u32 {
    FIRST_LEAF + (u32::from(queue) << 16)
}

/// Returns the handle of the HTB below the class of a queue with two FIFOs.
pub(super) fn inner_of(queue: u8) -> u32 {
    FIRST_INNER + (u32::from(queue) << 16)
}

/// Returns the handle of the class of a queue's acknowledgements, below [`inner_of`].
pub(super) fn acks_class_of(queue: u8) -> u32 {
    inner_of(queue) + ACKS
}

/// Returns the handle of the class of a queue's other frames, below [`inner_of`].
pub(super) fn others_class_of(queue: u8) -> u32 {
    inner_of(queue) + OTHERS
}

/// Returns the handle of the qdisc of a queue's acknowledgements.
pub(super) fn acks_of(queue: u8) -> u32 {
    FIRST_ACKS + (u32::from(queue) << 16)
}

/// Returns a handle in the syntax of `tc`, such as `9e50:11`, or `9e50:` for a qdisc.
pub(super) fn name(handle: u32) -> String {
    let (major, minor) = (handle >> 16, handle & 0xffff);
    match minor {
        0 => format!("{major:x}:"),
        _ => format!("{major:x}:{minor:x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_the_names_of_tc() {
        let names = [ROOT, TOP, class_of(0), class_of(15), leaf_of(1), 0].map(name);
        assert_eq!(names, ["9e50:", "9e50:1", "9e50:10", "9e50:1f", "9e61:", "0:"]);
        let names = [inner_of(1), acks_class_of(1), others_class_of(15), acks_of(2)].map(name);
        assert_eq!(names, ["9e71:", "9e71:1", "9e7f:2", "9e82:"]);
        assert_eq!(queue_of(class_of(15)), Some(15));
        assert_eq!([ROOT, TOP, class_of(16), leaf_of(1), 0].map(queue_of), [None; 5]);
    }
}
