//! Hose guarantees, and what a link must carry of them.
//!
//! **Problem.** A tenant buys a rate for each VM and not for each pair: any VM may talk to any.
//! **Source.** QShare §II-A, Fig. 1(b) and §IV-B; Duffield et al., SIGCOMM 1999, also for separate
//! rates to send and to receive.
//!
//! **Rule.** A link splits a tenant's VMs into those below it and the others. Upwards it carries
//! no more than those below may send and the others may receive, whichever is less; downwards the
//! reverse. With equal rates B: `B * min(m, N - m)` for m of N VMs below.
//!
//! **Worked example** (a test): Fig. 1(b), VMs of rates 1, 2 | 3 | 4: the links need min(1 + 2, 3
//! + 4) = 3, min(3, 7) = 3 and min(4, 6) = 4.

use penstock_units::BitsPerSecond;
use thiserror::Error;

/// Most VMs of a tenant.
pub const VMS_MAX: u32 = 1 << 20;

/// VMs of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmClass {
    /// How many; at least 1.
    pub vms: u32,
    /// Guaranteed to each, to send; above 0.
    pub send: BitsPerSecond,
    /// Guaranteed to each, to receive; above 0.
    pub recv: BitsPerSecond,
}

/// A tenant's VMs and what is guaranteed to each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hose {
    classes: Vec<VmClass>,
}

/// A hose that guarantees nothing or too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HoseError {
    /// No VMs, or a kind of none.
    #[error("a tenant has at least one VM of each kind; write 1 or more")]
    NoVms,
    /// Too many VMs.
    #[error("{0} VMs are too many; a tenant has at most {VMS_MAX}")]
    TooMany(u64),
    /// A rate of 0.
    #[error("a guarantee of 0 bit/s; write a rate above 0 to send and to receive")]
    ZeroRate,
    /// All guarantees together do not fit into 64 bits.
    #[error("all guarantees together exceed 2^63 bit/s; guarantee less")]
    Overflow,
}

/// What a link must carry in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// From the child to the parent.
    pub up: BitsPerSecond,
    /// From the parent to the child.
    pub down: BitsPerSecond,
}

impl Need {
    /// Nothing.
    pub const ZERO: Self = Self { up: BitsPerSecond(0), down: BitsPerSecond(0) };

    /// The larger direction.
    #[must_use]
    pub fn larger(self) -> BitsPerSecond {
        self.up.max(self.down)
    }

    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

impl Hose {
    /// `vms` VMs with `rate` each, to send and to receive.
    ///
    /// # Errors
    /// See [`HoseError`].
    pub fn homogeneous(vms: u32, rate: BitsPerSecond) -> Result<Self, HoseError> {
        Self::new(vec![VmClass { vms, send: rate, recv: rate }])
    }

    /// VMs of several kinds.
    ///
    /// # Errors
    /// See [`HoseError`].
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

    /// The kinds of VMs.
    #[must_use]
    pub fn classes(&self) -> &[VmClass] {
        &self.classes
    }

    /// How many VMs there are.
    #[must_use]
    pub fn vms(&self) -> u32 {
        self.classes.iter().map(|class| class.vms).sum()
    }

    /// The one rate of all VMs in both directions, if there is one.
    #[must_use]
    pub fn uniform(&self) -> Option<BitsPerSecond> {
        let first = self.classes[0].send;
        self.classes.iter().all(|c| c.send == first && c.recv == first).then_some(first)
    }

    /// What all VMs may send, and what all may receive.
    #[must_use]
    pub fn total(&self) -> Need {
        let all: Vec<u32> = self.classes.iter().map(|class| class.vms).collect();
        self.sum(&all)
    }

    /// What `vms` of each kind may send (`up`) and receive (`down`) together.
    fn sum(&self, vms: &[u32]) -> Need {
        let sum = |rate: fn(&VmClass) -> u64| {
            self.classes.iter().zip(vms).map(|(class, n)| rate(class) * u64::from(*n)).sum()
        };
        let (up, down) = (sum(|class| class.send.0), sum(|class| class.recv.0));
        Need { up: BitsPerSecond(up), down: BitsPerSecond(down) }
    }

    /// What a link needs with `below` VMs of each kind below it.
    #[must_use]
    pub fn need(&self, below: &[u32]) -> Need {
        let (inside, all) = (self.sum(below), self.total());
        let up = inside.up.0.min(all.down.0 - inside.down.0);
        let down = inside.down.0.min(all.up.0 - inside.up.0);
        Need { up: BitsPerSecond(up), down: BitsPerSecond(down) }
    }

    /// The same hose with the VMs of kind `class` changed to `vms`.
    ///
    /// # Errors
    /// See [`HoseError`].
    ///
    /// # Panics
    /// When there is no such kind.
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
    fn a_link_carries_no_more_than_is_sent_and_no_more_than_is_received() {
        // One server that sends 10 and receives 1; three clients the other way round.
        let hose = Hose::new(vec![class(1, 10, 1), class(3, 1, 2)]).unwrap();
        let need = hose.need(&[1, 0]);
        assert_eq!((need.up.0, need.down.0), (6, 1));
        assert_eq!(hose.need(&[0, 3]), Need { up: need.down, down: need.up });
    }

    #[test]
    fn what_guarantees_nothing_or_too_much_is_refused() {
        assert_eq!(Hose::homogeneous(0, BitsPerSecond(1)), Err(HoseError::NoVms));
        assert_eq!(Hose::homogeneous(1, BitsPerSecond(0)), Err(HoseError::ZeroRate));
        assert_eq!(Hose::homogeneous(2, BitsPerSecond(1 << 62)), Err(HoseError::Overflow));
        let many = Hose::homogeneous(VMS_MAX + 1, BitsPerSecond(1));
        assert_eq!(many, Err(HoseError::TooMany(u64::from(VMS_MAX) + 1)));
        assert_eq!(Hose::new(vec![class(1, 1, 0)]), Err(HoseError::ZeroRate));
    }
}
