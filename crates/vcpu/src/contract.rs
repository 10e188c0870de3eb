//! What a VM asked for.
//!
//! **Source.** VM jitter §III-A (periodic and aperiodic domains, deadlines, credit reservation),
//! §III-B (the driver domain). **Quantities.** Weight: a VM's part of the processors, by
//! proportion, for each of its active vCPUs. Deadline: how long a vCPU waits at most, from when it
//! was last descheduled (periodic) or from an external event (aperiodic). I/O reserve: the part of
//! its credits that is kept for what wakes it.

use penstock_units::{Nanos, Weight};

/// How soon a VM's vCPUs have to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By credit alone.
    #[default]
    None,
    /// It begins I/O by itself, so it has to run again within its deadline whatever happens.
    Periodic,
    /// It answers: within its deadline after an external event.
    Aperiodic,
    /// It carries the others' I/O: preempts all, is preempted by none.
    Driver,
}

impl Mode {
    /// Whether it has a deadline.
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        matches!(self, Self::Periodic | Self::Aperiodic)
    }
}

/// A VM's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// How soon.
    pub mode: Mode,
    /// Only of periodic and aperiodic VMs; see [`crate::admission`] for what fits.
    pub deadline: Nanos,
    /// Its part of the processors.
    pub weight: Weight,
    /// The most that it may use, in percent of one processor; 0: no such limit.
    pub cap_pct: u16,
    /// Percent of its credits that are kept for I/O, 0 to [`Contract::IO_RESERVE_MAX`].
    pub io_reserve_pct: u8,
    /// Its vCPUs stay where they start; those with deadlines always do.
    pub pinned: bool,
}

impl Contract {
    /// Most that can be reserved for I/O, in percent.
    pub const IO_RESERVE_MAX: u8 = 50;
    /// What is reserved where nothing else is said, in percent of the fair share. The paper leaves
    /// it open.
    pub const IO_RESERVE: u8 = 10;

    /// By credit alone.
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

    /// With a deadline, and the usual reserve for I/O.
    #[must_use]
    pub const fn real_time(mode: Mode, deadline: Nanos, weight: Weight) -> Self {
        Self { mode, deadline, io_reserve_pct: Self::IO_RESERVE, ..Self::by_credit(weight) }
    }

    /// The same on the processors where it starts.
    #[must_use]
    pub const fn pinned(self) -> Self {
        Self { pinned: true, ..self }
    }

    /// The driver domain.
    #[must_use]
    pub const fn driver(weight: Weight) -> Self {
        Self { mode: Mode::Driver, ..Self::by_credit(weight) }
    }
}
