//! The cost model computes how many cycles a VM's frames cost, and how many cycles per second the
//! VM needs.
//!
//! # Problem
//!
//! A tenant purchases bits or packets per second, but the switch meters cycles. A frame's cost
//! depends on the frame and on the VM's deployment.
//!
//! # Source
//!
//! The model is from C2QoS §III: eq. (1), Figs. 5 and 6, and "Modeling methodology". If a contract
//! states no frame sizes, the model assumes the simple Internet mix (RFC 6985).
//!
//! # Quantities
//!
//! The quantities of C2QoS correspond to these types and functions:
//!
//! - The quantities `C_ingress`, `C_classification` and `C_egress` of C2QoS are the fields of
//!   [`Stages`], in cycles per frame.
//! - The quantity `C_single` of C2QoS is [`CostModel::single`], in cycles per frame.
//! - The quantity `R_i` of C2QoS is a [`Coefficient`], a factor without unit.
//! - The quantity `∏ R_i · C_single` of C2QoS is [`CostModel::per_frame`], in cycles per frame.
//! - The quantity `C_alloc` of C2QoS is [`CostModel::entitlement`], in cycles per second.
//!
//! Sizes of frames include the FCS.
//!
//! # Approach
//!
//! 1. A table has the measured cost per frame for each combination of frame size, number of flows,
//!    number of rules and ring layout. All costs in the table were measured on full batches.
//!    Between the measured points, costs are linear in the size, and linear in the logarithm of the
//!    number of rules.
//! 2. The cost of a mix of sizes is the weighted sum of the costs of its sizes.
//! 3. Each action on a frame, such as a VLAN push, adds its own cost.
//! 4. The sum of a frame's costs is multiplied by coefficients for the number of VMs, the number of
//!    I/O cores and the NUMA node.
//!
//! Every cost and coefficient has a spread and a source, which is this host or a paper.
//!
//! In an example (C2QoS §III-C), a frame costs 1,000 cycles with one VM. With four VMs (factor
//! 1.14), a remote NUMA node (1.4) and two I/O cores (1.47), the frame of the example costs
//! 2,346.12 cycles.
//!
//! # Departures
//!
//! The measured costs in C2QoS are in cycles per second at 10⁵ packets per second. The measured
//! costs in Penstock's model are in cycles per frame. C2QoS has no cost per batch, but in Penstock
//! a frame costs more if its batch is not full ([`BatchTerm`]). Entitlements assume full batches,
//! because a VM at its limit has a backlog.
//!
//! # Cost
//!
//! The model uses floating-point numbers and allocates memory, so only the control plane uses it.
//! Workers compute the cost of a batch in integers ([`BatchPrice`]).

mod cell;
mod price;
mod profile;
mod published;
mod spread;
mod verification;

use core::fmt;
use std::collections::BTreeMap;

use penstock_units::{CyclesPerSecond, TscRate};

use cell::{Grid, GridError, place};

pub use cell::{Cell, CellKey, Stages};
pub use price::BatchPrice;
pub use profile::{
    Action, Contract, FCS, Flows, MIX_MAX, Profile, Rate, RingKind, SIZE_MAX, SIZE_MIN, SizeMix,
    SizeMixError, Work,
};
pub(crate) use profile::{to_f64, whole_up};
pub use published::{CORES_PUBLISHED, NUMA_PUBLISHED, VMS_PUBLISHED};
pub use spread::{Source, Spread};
pub use verification::{BAND_LEAST, BAND_MOST, Verification, Verified};

/// Frame sizes in bytes for which `penstock calibrate` measures costs (C2QoS §III-D).
pub const SIZES: [u16; 6] = [64, 128, 256, 512, 1024, 1500];
/// Numbers of rules for which `penstock calibrate` measures costs.
pub const RULES: [u32; 3] = [1, 1_000, 10_000];
/// Version of the format of a cost model's file. A cost model's file with another format version is
/// refused.
pub const VERSION: u32 = 1;
/// Maximum number of VMs or cores for which a coefficient may be given.
const COUNT_MAX: u32 = 65_536;

/// Factor by which a property of the deployment, such as the number of VMs, multiplies a frame's
/// cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficient {
    /// The factor by which a frame's cost is multiplied, from 0.1 to 100.
    pub factor: Spread,
    /// Whether the factor was measured on this host or published in a paper.
    pub source: Source,
}

impl Coefficient {
    /// Returns a coefficient without spread, which a paper published.
    #[must_use]
    pub const fn published(factor: f64) -> Self {
        Self { factor: Spread::exact(factor), source: Source::Published }
    }
}

/// Cost that an action, such as a VLAN push, adds to each frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActionTerm {
    /// Cycles that the action adds to each frame.
    pub per_frame: Spread,
    /// Cycles that the action adds for each byte of the frame.
    pub per_byte: f64,
    /// Whether the two costs of the action were measured or published.
    pub source: Source,
}

/// Fixed cost of a batch of frames, in addition to the cost of its frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchTerm {
    /// Cycles that each batch costs in addition to the cost of its frames.
    pub per_batch: Spread,
    /// Number of frames per batch in the measurements of frame costs; at least 1.
    pub frames: u32,
    /// Whether the fixed cost of a batch was measured on this host or published in a paper.
    pub source: Source,
}

/// Describes where, when and how a cost model was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Name of the host on which the cost model was made.
    pub host: String,
    /// Date and time of the calibration, in UTC.
    pub date: String,
    /// Model name of the host's CPU.
    pub cpu: String,
    /// Program that made the cost model: its version and its command line.
    pub made_by: String,
    /// Time in which a cache line went between the cores of the switch and of the load and back, in
    /// nanoseconds. Frames cost more if the cores share no cache. `None` if it was not measured.
    pub core_distance_ns: Option<u32>,
    /// Frequency of the host's time-stamp counter in hertz. All costs of the model count cycles of
    /// the time-stamp counter.
    pub tsc: TscRate,
}

/// All data from which a cost model is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// Where, when and how the cost model was made.
    pub about: About,
    /// Measured costs; every combination of ring layout, flows, rules and frame size must have a
    /// cost.
    pub cells: BTreeMap<CellKey, Cell>,
    /// Fixed cost of a batch of frames, in addition to the cost of its frames.
    pub batch: BatchTerm,
    /// Cost of actions. An action without an entry in the map `actions` costs nothing.
    pub actions: BTreeMap<Action, ActionTerm>,
    /// Factor for each known number of VMs on the host. The map must contain the factor for a host
    /// with 1 VM.
    pub vms: BTreeMap<u32, Coefficient>,
    /// Factor for each known number of I/O cores. The map must contain the factor for a host with 1
    /// I/O core.
    pub cores: BTreeMap<u32, Coefficient>,
    /// Factor for a VM whose memory is on another NUMA node than the I/O core.
    pub numa_remote: Coefficient,
    /// What contracts got that the model priced; `None` if the model was not verified.
    pub verified: Option<Verification>,
}

/// Mistake in the data of a cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelError {
    /// The model has no cost for frames with this combination of ring layout, flows, rules and
    /// size.
    Missing(CellKey),
    /// A measured cost in the model is negative or not finite, or its median is outside its range.
    Cell(CellKey),
    /// The measured costs cover fewer than two frame sizes.
    Sizes,
    /// The cost of a batch is not valid ([`Spread::is_sound`]), or its number of frames is 0.
    Batch,
    /// The cost of the given action is not valid ([`Spread::is_sound`]).
    Action(Action),
    /// The factor for this number of VMs is out of range, or the factor for 1 VM is missing.
    Vms(u32),
    /// The coefficient for this number of I/O cores is out of range, or the coefficient for 1 core
    /// is missing.
    Cores(u32),
    /// The coefficient for a remote NUMA node is out of range.
    Numa,
    /// The contract with this position in the verification has impossible numbers
    /// ([`Verified::is_sound`]).
    Verified(usize),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const COST: &str = "a cost must be finite and not negative, with min <= median <= max";
        const FACTOR: &str = "a factor must be 0.1 to 100, with min <= median <= max";
        match self {
            Self::Missing(key) => write!(
                f,
                "the cell for {key} is missing; each combination of sizes, flows, rules and rings \
                 that occurs needs a cell"
            ),
            Self::Cell(key) if key.rules == 0 => {
                write!(f, "the cell for {key} is not valid; write `rules` = 1 or more")
            }
            Self::Cell(key) => write!(f, "the cell for {key} is not valid; {COST}"),
            Self::Sizes => f.write_str("cells exist for fewer than two frame sizes; measure again"),
            Self::Batch => write!(f, "the cost of a batch is not valid; {COST}"),
            Self::Action(action) => write!(f, "the cost of action {action} is not valid; {COST}"),
            Self::Vms(n) => write!(f, "the coefficient for {n} VMs is missing or wrong; {FACTOR}"),
            Self::Cores(n) => {
                write!(f, "the coefficient for {n} I/O cores is missing or wrong; {FACTOR}")
            }
            Self::Numa => write!(f, "the coefficient of a remote NUMA node is wrong; {FACTOR}"),
            Self::Verified(at) => write!(
                f,
                "the verified contract number {} has impossible numbers; write a `bought` above 0, \
                 a `delivered` of 0 or more and a `band` of 0 to 1",
                at + 1
            ),
        }
    }
}

impl core::error::Error for ModelError {}

/// Properties of a VM's deployment that change the cost of the VM's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Number of VMs on the host.
    pub vms: u32,
    /// Number of I/O cores of the host.
    pub cores: u32,
    /// Whether the VM's memory is on another NUMA node than the core.
    pub numa_remote: bool,
}

impl Deployment {
    /// Deployment with one VM, one I/O core and local memory.
    pub const SINGLE: Self = Self { vms: 1, cores: 1, numa_remote: false };
}

/// A cost model whose data are valid.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    parts: Parts,
    grid: Grid,
}

impl CostModel {
    /// Checks the parts of a cost model and makes the model.
    ///
    /// # Errors
    /// Returns an error for the first mistake in the data of the model.
    pub fn new(parts: Parts) -> Result<Self, ModelError> {
        let grid = Grid::new(parts.cells.clone()).map_err(|error| match error {
            GridError::Missing(key) => ModelError::Missing(key),
            GridError::Unsound(key) => ModelError::Cell(key),
            GridError::Sizes => ModelError::Sizes,
        })?;
        if !parts.batch.per_batch.is_sound() || parts.batch.frames == 0 {
            return Err(ModelError::Batch);
        }
        for (action, term) in &parts.actions {
            if !term.per_frame.is_sound() || !term.per_byte.is_finite() || term.per_byte < 0.0 {
                return Err(ModelError::Action(*action));
            }
        }
        check_factors(&parts.vms).map_err(ModelError::Vms)?;
        check_factors(&parts.cores).map_err(ModelError::Cores)?;
        if !is_factor(&parts.numa_remote) {
            return Err(ModelError::Numa);
        }
        let cases = parts.verified.iter().flat_map(|verified| &verified.cases);
        if let Some(at) = cases.into_iter().position(|case| !case.is_sound()) {
            return Err(ModelError::Verified(at));
        }
        Ok(Self { parts, grid })
    }

    /// Returns the measured costs and coefficients from which the model was made.
    #[must_use]
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns the frame sizes and the numbers of rules for which costs were measured, both in
    /// ascending order.
    #[must_use]
    pub fn axes(&self) -> (&[u16], &[u32]) {
        (self.grid.sizes(), self.grid.rules())
    }

    /// Returns the model with the result of a verification.
    ///
    /// # Errors
    /// Returns an error if a contract of the verification has impossible numbers.
    pub fn with_verification(mut self, verified: Verification) -> Result<Self, ModelError> {
        self.parts.verified = Some(verified);
        Self::new(self.parts)
    }

    /// Returns the cost of a frame of this size in each stage, in cycles (`C_single` in C2QoS). The
    /// stages' costs exclude actions on frames, such as a VLAN push. The cost of a frame applies to
    /// full batches on a host with one VM.
    #[must_use]
    pub fn at(&self, ring: RingKind, flows: Flows, rules: u32, size: f64) -> Stages {
        self.grid.at(ring, flows, rules, size)
    }

    /// Returns the mean cost of a profile's frames in each stage, in cycles (`C_single` in C2QoS).
    /// The costs of checksums, of segmentation and of ways out of the host count as egress, and the
    /// costs of rewrites count as classification.
    #[must_use]
    pub fn single(&self, profile: &Profile) -> Stages {
        let Profile { sizes, flows, rules, ring, actions } = profile;
        let of_size = |size: f64| {
            let mut stages = self.grid.at(*ring, *flows, *rules, size);
            for work in actions {
                let cost = self.work(*work, size);
                match work.action {
                    Action::Checksum | Action::Segmentation => stages.egress += cost,
                    Action::ToTap | Action::ToPacket | Action::ToXdp | Action::ToInterrupt => {
                        stages.egress += cost;
                    }
                    Action::FromTap | Action::FromPacket | Action::FromXdp => {
                        stages.ingress += cost;
                    }
                    Action::VlanPush | Action::VlanPop | Action::Dscp => {
                        stages.classification += cost;
                    }
                }
            }
            stages
        };
        sizes
            .parts()
            .map(|(size, part)| of_size(size).scaled(part))
            .fold(Stages::default(), Stages::plus)
    }

    /// Returns the product of the coefficients for a deployment (`∏ R_i` in C2QoS).
    #[must_use]
    pub fn factor(&self, at: Deployment) -> f64 {
        let numa = if at.numa_remote { self.parts.numa_remote.factor.median } else { 1.0 };
        between(&self.parts.vms, at.vms) * between(&self.parts.cores, at.cores) * numa
    }

    /// Returns the cycles per frame of a profile in a deployment (`∏ R_i · C_single` in C2QoS).
    #[must_use]
    pub fn per_frame(&self, profile: &Profile, at: Deployment) -> f64 {
        self.single(profile).total() * self.factor(at)
    }

    /// Returns the cycles per second that a VM needs for its purchased rate, rounded up (`C_alloc`
    /// in C2QoS).
    #[must_use]
    pub fn entitlement(
        &self,
        contract: &Contract,
        profile: &Profile,
        at: Deployment,
    ) -> CyclesPerSecond {
        let cost = self.per_frame(profile, at);
        CyclesPerSecond(whole_up(contract.frames_per_second() * cost))
    }

    /// Returns the relative uncertainty of the measurements from which a profile's cost is
    /// computed: 0.05 means ± 5 %.
    #[must_use]
    pub fn uncertainty(&self, profile: &Profile) -> f64 {
        let of = |size| self.grid.uncertainty(profile.ring, profile.flows, profile.rules, size);
        profile.sizes.parts().map(|(size, part)| of(size) * part).sum()
    }

    /// Returns the expected cost in cycles of a batch of `frames` frames with `bytes` bytes in
    /// total (without FCS).
    #[must_use]
    pub fn batch(&self, profile: &Profile, at: Deployment, frames: u32, bytes: u64) -> f64 {
        if frames == 0 {
            return 0.0;
        }
        let n = f64::from(frames);
        let mean = to_f64(bytes) / n + to_f64(FCS);
        let (batch, cells) =
            (self.parts.batch.per_batch.median, f64::from(self.parts.batch.frames));
        let full = self.grid.at(profile.ring, profile.flows, profile.rules, mean).total();
        let actions: f64 = profile.actions.iter().map(|work| self.work(*work, mean)).sum();
        (batch + n * (full - batch / cells + actions).max(0.0)) * self.factor(at)
    }

    /// Returns what an action on a part of the frames adds to the mean cost of a frame of this
    /// size, in cycles. An action without a measured cost adds nothing ([`Self::lacks`]).
    fn work(&self, work: Work, size: f64) -> f64 {
        let term = self.parts.actions.get(&work.action);
        term.map_or(0.0, |term| work.part() * (term.per_frame.median + term.per_byte * size))
    }

    /// Returns the first action of the profile for which the model has no cost.
    #[must_use]
    pub fn lacks(&self, profile: &Profile) -> Option<Action> {
        let works = profile.actions.iter().filter(|work| work.permille > 0);
        works.map(|work| work.action).find(|action| !self.parts.actions.contains_key(action))
    }

    /// Returns the expected cost of a batch as a linear function of its frames and bytes, in
    /// integers. The coefficients of the linear function are fitted to the costs of the profile's
    /// cells.
    #[must_use]
    pub fn price(&self, profile: &Profile, at: Deployment) -> BatchPrice {
        let points: Vec<(f64, f64)> = (self.grid.sizes().iter().map(|size| f64::from(*size)))
            .map(|size| {
                let actions: f64 = profile.actions.iter().map(|work| self.work(*work, size)).sum();
                let cell = self.grid.at(profile.ring, profile.flows, profile.rules, size);
                (size, cell.total() + actions)
            })
            .collect();
        let (frame, byte) = line(&points);
        let (batch, cells) =
            (self.parts.batch.per_batch.median, f64::from(self.parts.batch.frames));
        let factor = self.factor(at);
        let frame = frame + byte * to_f64(FCS) - batch / cells;
        BatchPrice::new(batch * factor, frame * factor, byte * factor)
    }
}

/// Fits a straight line to `points` by the method of least squares. Returns the fitted line's value
/// at 0, and its slope, which is at least 0.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = f64::from(u32::try_from(points.len()).unwrap_or(u32::MAX)).max(1.0);
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let above: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let below: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = if below > 0.0 { (above / below).max(0.0) } else { 0.0 };
    (mean_y - slope * mean_x, slope)
}

fn is_factor(coefficient: &Coefficient) -> bool {
    let factor = coefficient.factor;
    factor.is_sound() && (0.1..=100.0).contains(&factor.median)
}

fn check_factors(factors: &BTreeMap<u32, Coefficient>) -> Result<(), u32> {
    if !factors.contains_key(&1) {
        return Err(1);
    }
    let wrong = factors.iter().find(|(n, c)| !(1..=COUNT_MAX).contains(*n) || !is_factor(c));
    wrong.map_or(Ok(()), |(n, _)| Err(*n))
}

/// Returns the factor for `count` VMs or I/O cores, by linear interpolation. Outside of the range
/// of `factors`, the factor is constant.
fn between(factors: &BTreeMap<u32, Coefficient>, count: u32) -> f64 {
    let counts: Vec<f64> = factors.keys().map(|n| f64::from(*n)).collect();
    let values: Vec<f64> = factors.values().map(|c| c.factor.median).collect();
    if let [only] = values.as_slice() {
        return *only;
    }
    let (low, part) = place(&counts, f64::from(count.max(1)));
    let part = part.clamp(0.0, 1.0);
    values[low] * (1.0 - part) + values[low + 1] * part
}

#[cfg(test)]
mod tests;
