//! The contract of a VM: what its operator requested.
//!
//! # Source
//! VM jitter §III-A (periodic and aperiodic domains, deadlines, credit reservation) and §III-B (the
//! driver domain).
//!
//! # Quantities
//! - Weight: the VM's proportional share of the processors, for each of its active vCPUs.
//! - Deadline: the longest time that a vCPU waits. The deadline of a periodic VM counts from when
//!   the vCPU was last descheduled. The deadline of an aperiodic VM counts from an external event.
//! - I/O reserve: the part of the VM's credits that is kept for events that wake it.

use penstock_units::{Nanos, Weight};

/// How soon a VM's vCPUs must run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The vCPUs run by credits alone, without a deadline.
    #[default]
    None,
    /// The VM starts I/O by itself. Its vCPUs run again within the deadline after they were
    /// descheduled.
    Periodic,
    /// The VM answers requests. Its vCPUs run within the deadline after an external event.
    Aperiodic,
    /// The driver domain, which carries the I/O of the other VMs. It preempts all of them and is
    /// never preempted.
    Driver,
}

impl Mode {
    /// Whether the mode has a deadline.
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        matches!(self, Self::Periodic | Self::Aperiodic)
    }
}

/// Scheduling parameters of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// How soon the VM's vCPUs must run.
    pub mode: Mode,
    /// Deadline of periodic and aperiodic VMs. [`crate::admission`] decides whether it fits.
    pub deadline: Nanos,
    /// Proportional share of the processors, for each active vCPU.
    pub weight: Weight,
    /// Maximum use in percent of one processor; 0 means no limit.
    pub cap_pct: u16,
    /// Percent of the credits that is kept for I/O, 0 to [`Contract::IO_RESERVE_MAX`].
    pub io_reserve_pct: u8,
    /// Whether the vCPUs stay on the processors where they start. vCPUs with deadlines always do.
    pub pinned: bool,
}

impl Contract {
    /// Maximum of [`Contract::io_reserve_pct`].
    pub const IO_RESERVE_MAX: u8 = 50;
    /// Default I/O reserve of VMs with a deadline, in percent of the fair share. The paper states
    /// no value.
    pub const IO_RESERVE: u8 = 10;

    /// A contract without a deadline.
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

    /// A contract with a deadline and the default I/O reserve.
    #[must_use]
    pub const fn real_time(mode: Mode, deadline: Nanos, weight: Weight) -> Self {
        Self { mode, deadline, io_reserve_pct: Self::IO_RESERVE, ..Self::by_credit(weight) }
    }

    /// The same contract with vCPUs that stay on the processors where they start.
    #[must_use]
    pub const fn pinned(self) -> Self {
        Self { pinned: true, ..self }
    }

    /// The contract of the driver domain.
    #[must_use]
    pub const fn driver(weight: Weight) -> Self {
        Self { mode: Mode::Driver, ..Self::by_credit(weight) }
    }
}
