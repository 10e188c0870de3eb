//! Sums up the latency classes and the purchased cycles of a worker's ports.
//!
//! # Problem
//! The worker's highest class, and the floor of ports without purchased cycles, depend on all its
//! ports. Almost every second, the control plane corrects the entitlements of some ports. If the
//! worker looked at all its ports then, frames would wait for thousands of cache misses.
//!
//! # Approach
//! The sums contain the last known rank of each port. A changed port is subtracted with its former
//! rank, and added with its new rank.
//!
//! # Cost
//! A change of a port takes constant time. The highest class takes a look at eight counts.

use penstock_units::{CyclesPerSecond, PortId, Priority};

/// Class and purchase of a port on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    pub class: Priority,
    /// Cycles per second that the port purchased on this worker. `None` if the port's cycles are
    /// not metered.
    pub sold: Option<u64>,
}

/// Sums over the ports of a worker.
#[derive(Debug)]
pub(super) struct Ranks {
    /// Rank of each port with queue pairs on this worker, indexed by port number.
    ports: Box<[Option<Rank>]>,
    /// Number of ports in each class, indexed by [`Priority::index`].
    classes: [usize; Priority::CLASSES],
    /// Purchased cycles per second. The sum of all ports' purchases may exceed 64 bits.
    sold: u128,
    metered: usize,
    free: usize,
}

impl Ranks {
    pub fn new(ports: usize) -> Self {
        let classes = [0; Priority::CLASSES];
        Self { ports: vec![None; ports].into_boxed_slice(), classes, sold: 0, metered: 0, free: 0 }
    }

    /// Sets the rank of a port. `None` removes the port.
    pub fn set(&mut self, port: PortId, rank: Option<Rank>) {
        let Some(slot) = self.ports.get_mut(port.index()) else { return };
        let before = core::mem::replace(slot, rank);
        if let Some(Rank { class, sold }) = before {
            self.classes[class.index()] -= 1;
            match sold {
                Some(cycles) => {
                    (self.sold, self.metered) = (self.sold - u128::from(cycles), self.metered - 1)
                }
                None => self.free -= 1,
            }
        }
        if let Some(Rank { class, sold }) = rank {
            self.classes[class.index()] += 1;
            match sold {
                Some(cycles) => {
                    (self.sold, self.metered) = (self.sold + u128::from(cycles), self.metered + 1)
                }
                None => self.free += 1,
            }
        }
    }

    /// Returns the highest class of the ports, or `None` without ports.
    pub fn first(&self) -> Option<Priority> {
        let at = self.classes.iter().position(|ports| *ports > 0)?;
        Priority::new(at as u64 + 1).ok()
    }

    /// Returns the purchased cycles per second of all ports, at most `u64::MAX`. Returns `None` if
    /// the cycles of no port are metered.
    pub fn sold(&self) -> Option<CyclesPerSecond> {
        let sold = u64::try_from(self.sold).unwrap_or(u64::MAX);
        (self.metered > 0).then_some(CyclesPerSecond(sold))
    }

    /// Returns the number of ports without purchased cycles.
    pub const fn free(&self) -> usize {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(class: u64, sold: Option<u64>) -> Option<Rank> {
        Some(Rank { class: Priority::new(class).unwrap(), sold })
    }

    fn sums(ranks: &Ranks) -> (Option<u8>, Option<u64>, usize) {
        (ranks.first().map(Priority::get), ranks.sold().map(|sold| sold.0), ranks.free())
    }

    #[test]
    fn a_changed_port_replaces_its_former_rank() {
        let mut ranks = Ranks::new(3);
        assert_eq!(sums(&ranks), (None, None, 0));
        ranks.set(PortId(0), rank(8, None));
        ranks.set(PortId(1), rank(3, Some(10)));
        ranks.set(PortId(2), rank(3, Some(u64::MAX)));
        assert_eq!(sums(&ranks), (Some(3), Some(u64::MAX), 1));
        ranks.set(PortId(2), rank(8, None));
        ranks.set(PortId(1), rank(4, Some(7)));
        assert_eq!(sums(&ranks), (Some(4), Some(7), 2));
        ranks.set(PortId(1), None);
        ranks.set(PortId(1), None);
        ranks.set(PortId(3), rank(1, Some(5)));
        assert_eq!(sums(&ranks), (Some(8), None, 2), "port 3 is out of range");
    }
}
