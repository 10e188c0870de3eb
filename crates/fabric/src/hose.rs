//! Defines hose guarantees, and computes the bandwidth that a link needs for a tenant's hose.
//!
//! # Problem
//!
//! A tenant purchases a rate for each VM, not for each pair of VMs. Any VM may send to any other VM
//! of the tenant.
//!
//! # Source
//!
//! QShare §II-A, Fig. 1(b) and §IV-B describe the hose model. Duffield et al., SIGCOMM 1999, also
//! describe separate sending and receiving rates.
//!
//! # Approach
//!
//! A link separates a tenant's VMs into the VMs below the link and the VMs beyond the link.
//! Upwards, the VMs below the link send and the VMs beyond the link receive. The link carries at
//! most the smaller of two sums: the sending rates below the link, and the receiving rates beyond
//! it. Downwards, the VMs beyond the link send and the VMs below the link receive. If all rates are
//! B and m of a tenant's N VMs are below a link, the link needs `B * min(m, N - m)`.
//!
//! # Example
//!
//! A test covers the example of QShare Fig. 1(b), in which three servers have four VMs. The rates
//! of the VMs are 1, 2, 3 and 4 in any unit:
//!
//! | Server | Rates of the server's VMs | Bandwidth that the server's link needs |
//! |---|---|---|
//! | first server | VMs of rates 1 and 2 | its link needs min(1 + 2, 3 + 4) = 3 |
//! | second server | one VM of rate 3 | its link needs min(3, 1 + 2 + 4) = 3 |
//! | third server | one VM of rate 4 | its link needs min(4, 1 + 2 + 3) = 4 |

use penstock_units::BitsPerSecond;
use thiserror::Error;

/// Maximum number of VMs of a tenant.
pub const VMS_MAX: u32 = 1 << 20;

/// Class of VMs: VMs of a tenant that have the same guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmClass {
    /// Number of VMs in the class, at least 1.
    pub vms: u32,
    /// Guaranteed sending rate of each VM of the class, above 0.
    pub send: BitsPerSecond,
    /// Guaranteed receiving rate of each VM of the class, above 0.
    pub recv: BitsPerSecond,
}

/// A hose: the VMs of a tenant, and the rates at which each VM may always send and receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hose {
    classes: Vec<VmClass>,
}

/// Why a hose is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HoseError {
    /// The hose has no VMs, or a class of the hose has no VMs.
    #[error("a class of VMs has 0 VMs; write 1 or more")]
    NoVms,
    /// The hose has more than [`VMS_MAX`] VMs.
    #[error("{0} VMs are too many; a tenant has at most {VMS_MAX}")]
    TooMany(u64),
    /// A guaranteed rate of the hose is 0.
    #[error("a guarantee of 0 bit/s is not allowed; write rates above 0 for both directions")]
    ZeroRate,
    /// The sum of all guaranteed rates of the hose reaches 2^63 bit/s.
    #[error("the sum of all guarantees reaches 2^63 bit/s; lower the guarantees")]
    Overflow,
}

/// Bandwidth that a tenant needs on a link, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Rate from the lower end of the link (child) to the upper end (parent).
    pub up: BitsPerSecond,
    /// Rate from the upper end of the link (parent) to the lower end (child).
    pub down: BitsPerSecond,
}

impl Need {
    /// Need of a tenant that uses no bandwidth on a link, in either direction.
    pub const ZERO: Self = Self { up: BitsPerSecond(0), down: BitsPerSecond(0) };

    /// Returns the larger of the rates of the two directions.
    #[must_use]
    pub fn larger(self) -> BitsPerSecond {
        self.up.max(self.down)
    }

    /// Whether the tenant needs no bandwidth on the link in either direction.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

impl Hose {
    /// Creates a hose of `vms` VMs that may each send and receive at `rate`.
    ///
    /// # Errors
    /// Returns a [`HoseError`] if the hose is invalid.
    pub fn homogeneous(vms: u32, rate: BitsPerSecond) -> Result<Self, HoseError> {
        Self::new(vec![VmClass { vms, send: rate, recv: rate }])
    }

    /// Creates a hose with the given classes of VMs.
    ///
    /// # Errors
    /// Returns a [`HoseError`] if the hose is invalid.
    pub fn new(classes: Vec<VmClass>) -> Result<Self, HoseError> {
        if classes.is_empty() || classes.iter().any(|class| class.vms == 0) {
            return Err(HoseError::NoVms);
        }
        let vms: u64 = classes.iter().map(|class| u64::from(class.vms)).sum();
        if vms > u64::from(VMS_MAX) {
            return Err(HoseError::TooMany(vms));
        }
        if classes.iter().any(|class| class.send.0 == 0 || class.recv.0 == 0) {
            return Err(HoseError::ZeroRate);
        }
        let sum = |rate: fn(&VmClass) -> u64| {
            let each = classes.iter().map(|class| rate(class).checked_mul(u64::from(class.vms)));
            each.sum::<Option<u64>>().filter(|sum| *sum < 1 << 63)
        };
        let fits = sum(|class| class.send.0).and(sum(|class| class.recv.0));
        fits.map(|_| Self { classes }).ok_or(HoseError::Overflow)
    }

    /// Returns the classes of VMs that form the hose.
    #[must_use]
    pub fn classes(&self) -> &[VmClass] {
        &self.classes
    }

    /// Returns the number of VMs of all classes together.
    #[must_use]
    pub fn vms(&self) -> u32 {
        self.classes.iter().map(|class| class.vms).sum()
    }

    /// Returns the rate of each VM in both directions. `None` if the VMs or the directions have
    /// different rates.
    #[must_use]
    pub fn uniform(&self) -> Option<BitsPerSecond> {
        let first = self.classes[0].send;
        self.classes.iter().all(|c| c.send == first && c.recv == first).then_some(first)
    }

    /// Returns the sums of the rates at which all VMs may send (`up`) and receive (`down`).
    #[must_use]
    pub fn total(&self) -> Need {
        let all: Vec<u32> = self.classes.iter().map(|class| class.vms).collect();
        self.sum(&all)
    }

    /// Returns the sums of the rates at which `vms` VMs of each class may send (`up`) and receive
    /// (`down`).
    fn sum(&self, vms: &[u32]) -> Need {
        let sum = |rate: fn(&VmClass) -> u64| {
            self.classes.iter().zip(vms).map(|(class, n)| rate(class) * u64::from(*n)).sum()
        };
        let (up, down) = (sum(|class| class.send.0), sum(|class| class.recv.0));
        Need { up: BitsPerSecond(up), down: BitsPerSecond(down) }
    }

    /// Returns the bandwidth that a link needs if `below` VMs of each class are below the link.
    #[must_use]
    pub fn need(&self, below: &[u32]) -> Need {
        let (inside, all) = (self.sum(below), self.total());
        let up = inside.up.0.min(all.down.0 - inside.down.0);
        let down = inside.down.0.min(all.up.0 - inside.up.0);
        Need { up: BitsPerSecond(up), down: BitsPerSecond(down) }
    }

    /// Returns a copy of the hose that has `vms` VMs in class `class`.
    ///
    /// # Errors
    /// Returns an error if the new hose is invalid. [`HoseError`] states the reason.
    ///
    /// # Panics
    /// Panics if the hose has no class with the index `class`.
    pub fn with_vms(&self, class: usize, vms: u32) -> Result<Self, HoseError> {
        let mut classes = self.classes.clone();
        classes[class].vms = vms;
        Self::new(classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(vms: u32, send: u64, recv: u64) -> VmClass {
        VmClass { vms, send: BitsPerSecond(send), recv: BitsPerSecond(recv) }
    }

    fn both(rate: u64) -> Need {
        Need { up: BitsPerSecond(rate), down: BitsPerSecond(rate) }
    }

    #[test]
    fn the_papers_figure_1b_comes_out() {
        let hose = Hose::new((1..=4).map(|rate| class(1, rate, rate)).collect()).unwrap();
        assert_eq!(hose.need(&[1, 1, 0, 0]), both(3));
        assert_eq!(hose.need(&[0, 0, 1, 0]), both(3));
        assert_eq!(hose.need(&[0, 0, 0, 1]), both(4));
        assert_eq!(hose.uniform(), None);
    }

    #[test]
    fn equal_rates_need_the_smaller_side() {
        let hose = Hose::homogeneous(6, BitsPerSecond(100)).unwrap();
        for (below, want) in [(0, 0), (1, 100), (3, 300), (5, 100), (6, 0)] {
            assert_eq!(hose.need(&[below]), both(want));
        }
        assert_eq!(hose.uniform(), Some(BitsPerSecond(100)));
    }

    #[test]
    fn a_link_carries_at_most_what_is_sent_and_what_is_received() {
        // One server sends 10 and receives 1. Three clients send 1 and receive 2.
        let hose = Hose::new(vec![class(1, 10, 1), class(3, 1, 2)]).unwrap();
        let need = hose.need(&[1, 0]);
        assert_eq!((need.up.0, need.down.0), (6, 1));
        assert_eq!(hose.need(&[0, 3]), Need { up: need.down, down: need.up });
    }

    #[test]
    fn an_invalid_hose_is_refused() {
        assert_eq!(Hose::homogeneous(0, BitsPerSecond(1)), Err(HoseError::NoVms));
        assert_eq!(Hose::homogeneous(1, BitsPerSecond(0)), Err(HoseError::ZeroRate));
        assert_eq!(Hose::homogeneous(2, BitsPerSecond(1 << 62)), Err(HoseError::Overflow));
        let many = Hose::homogeneous(VMS_MAX + 1, BitsPerSecond(1));
        assert_eq!(many, Err(HoseError::TooMany(u64::from(VMS_MAX) + 1)));
        assert_eq!(Hose::new(vec![class(1, 1, 0)]), Err(HoseError::ZeroRate));
    }
}
