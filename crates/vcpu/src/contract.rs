//! The contract of a VM, which consists of the scheduling parameters that the operator requested.
//!
//! # Source
//! The sources are VM jitter §III-A (periodic and aperiodic domains, deadlines, credit reservation)
//! and §III-B (the driver domain).
//!
//! # Quantities
//! - Weight: each active vCPU gets processor time in proportion to its VM's weight.
//! - Deadline: the longest time that a vCPU waits. For a periodic VM, the wait starts when the vCPU
//!   is descheduled. For an aperiodic VM, the wait starts at an external event.
//! - I/O reserve: the part of the VM's credits that only external events may use.

use penstock_units::{Nanos, Weight};

/// The kind of deadline that a VM has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The VM has no deadline. The VM's vCPUs get time only by their credits.
    #[default]
    None,
    /// Mode for VMs that start I/O by themselves. A descheduled vCPU of the VM runs again within
    /// the deadline.
    Periodic,
    /// Mode for VMs that answer requests. The vCPUs of the VM run within the deadline after an
    /// external event.
    Aperiodic,
    /// Mode of the driver domain, which carries the I/O of the other VMs. The driver domain
    /// preempts all other VMs and is never preempted.
    Driver,
}

impl Mode {
    /// Whether VMs of this mode have a deadline (periodic and aperiodic VMs).
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        matches!(self, Self::Periodic | Self::Aperiodic)
    }
}

/// Deadline, weight and I/O reserve with which a scheduler runs all vCPUs of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// The kind of the VM's deadline.
    pub mode: Mode,
    /// Deadline of periodic and aperiodic VMs; unused in other modes. [`crate::admission`] checks
    /// whether the deadline fits.
    pub deadline: Nanos,
    /// Weight of each active vCPU of the VM for dividing processor time.
    pub weight: Weight,
    /// Maximum processor time of the VM, in percent of one processor; 0 means no limit.
    pub cap_pct: u16,
    /// Percent of the VM's credits that is reserved for I/O, 0 to [`Contract::IO_RESERVE_MAX`].
    pub io_reserve_pct: u8,
    /// Whether each vCPU of the VM stays on its first processor. vCPUs with deadlines always stay
    /// on their first processor.
    pub pinned: bool,
}

impl Contract {
    /// Maximum of [`Contract::io_reserve_pct`].
    pub const IO_RESERVE_MAX: u8 = 50;
    /// Default I/O reserve of VMs with a deadline, in percent of the VM's credits. The paper on VM
    /// jitter states no value for the I/O reserve.
    pub const IO_RESERVE: u8 = 10;

    /// Makes a contract without a deadline. The vCPUs get processor time by their credits.
    #[must_use]
    pub const fn by_credit(weight: Weight) -> Self {
        Self {
            mode: Mode::None,
            deadline: Nanos(0),
            weight,
            cap_pct: 0,
            io_reserve_pct: 0,
            pinned: false,
        }
    }

    /// Makes a contract with a deadline and the default I/O reserve.
    #[must_use]
    pub const fn real_time(mode: Mode, deadline: Nanos, weight: Weight) -> Self {
        Self { mode, deadline, io_reserve_pct: Self::IO_RESERVE, ..Self::by_credit(weight) }
    }

    /// Returns a copy of this contract in which each vCPU stays on its first processor.
    #[must_use]
    pub const fn pinned(self) -> Self {
        Self { pinned: true, ..self }
    }

    /// Makes the contract of a driver domain with weight `weight`.
    #[must_use]
    pub const fn driver(weight: Weight) -> Self {
        Self { mode: Mode::Driver, ..Self::by_credit(weight) }
    }
}
