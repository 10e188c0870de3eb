//! The cost model: how many cycles a VM's frames take, and therefore how many the VM needs.
//!
//! # Problem
//!
//! A tenant buys bits or packets per second, but the switch meters cycles. The cost of a frame
//! depends on the frame and on where its VM runs.
//!
//! # Source
//!
//! C2QoS §III: eq. (1), Figs. 5 and 6, "Modeling methodology". If a contract names no mix of sizes,
//! the model assumes the simple Internet mix (RFC 6985).
//!
//! # Quantities
//!
//! | Paper | Here | Unit |
//! |---|---|---|
//! | `C_ingress`, `C_classification`, `C_egress` | [`Stages`] | cycles per frame |
//! | `C_single` | [`CostModel::single`] | cycles per frame |
//! | `R_i` | [`Coefficient`] | factor |
//! | `∏ R_i · C_single` | [`CostModel::per_frame`] | cycles per frame |
//! | `C_alloc` | [`CostModel::entitlement`] | cycles per second |
//!
//! Sizes are those on the wire, including FCS.
//!
//! # Approach
//!
//! A table holds cells measured on full batches. Its axes are the size (64 to 1500), flows (single,
//! multiple), rules (1, 1k, 10k) and ring (split, packed). Costs are linear between sizes and
//! linear in the logarithm of the rules. A mix costs the weighted sum of its parts. Each action
//! adds a term. The sum is multiplied by the coefficients for the number of VMs, the number of I/O
//! cores and the NUMA node. Every figure has its spread and its source, which is this host or a
//! paper.
//!
//! For example (C2QoS §III-C), with four VMs on NUMA node 1 and two I/O cores, a frame that costs
//! 1,000 cycles for one VM costs 1.4 × 1.14 × 1.47 × 1,000 = 2,346.12 cycles.
//!
//! # Departures
//!
//! The paper's cell is in cycles per second at 10⁵ packets per second. Here a cell is in cycles per
//! frame. The paper has no term for a batch, but a batch that is not full costs more per frame
//! ([`BatchTerm`]). Entitlements assume full batches: a VM at its limit has a backlog, so its
//! batches are full.
//!
//! # Cost
//!
//! The model uses floats and allocates, so only the control plane uses it. A worker gets integers
//! ([`BatchPrice`]).

mod cell;
mod price;
mod profile;
mod published;
mod spread;

use core::fmt;
use std::collections::BTreeMap;

use penstock_units::{CyclesPerSecond, TscRate};

use cell::{Grid, GridError, place};

pub use cell::{Cell, CellKey, Stages};
pub use price::BatchPrice;
pub use profile::{
    Action, Contract, FCS, Flows, MIX_MAX, Profile, Rate, RingKind, SIZE_MAX, SIZE_MIN, SizeMix,
    SizeMixError,
};
pub(crate) use profile::{to_f64, whole_up};
pub use published::{CORES_PUBLISHED, NUMA_PUBLISHED, VMS_PUBLISHED};
pub use spread::{Source, Spread};

/// Frame sizes of the grid (C2QoS §III-D), in bytes.
pub const SIZES: [u16; 6] = [64, 128, 256, 512, 1024, 1500];
/// Numbers of rules of the grid.
pub const RULES: [u32; 3] = [1, 1_000, 10_000];
/// Version of the model's file format. Files of other versions are refused.
pub const VERSION: u32 = 1;
/// Maximum number of VMs or cores that a coefficient may have.
const COUNT_MAX: u32 = 65_536;

/// Factor by which a frame's cost grows under one condition, such as a number of VMs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficient {
    /// The factor, from 0.1 to 100.
    pub factor: Spread,
    /// Whether the factor was measured or published.
    pub source: Source,
}

impl Coefficient {
    /// A coefficient that a paper states.
    #[must_use]
    pub const fn published(factor: f64) -> Self {
        Self { factor: Spread::exact(factor), source: Source::Published }
    }
}

/// Cost that an action adds to a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActionTerm {
    /// Cycles that the action adds to each frame.
    pub per_frame: Spread,
    /// Cycles per byte of the frame.
    pub per_byte: f64,
    /// Whether both costs were measured or published.
    pub source: Source,
}

/// Fixed cost of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchTerm {
    /// Cycles that each batch takes in addition to its frames.
    pub per_batch: Spread,
    /// Number of frames in the batches from which the cells were measured; at least 1.
    pub frames: u32,
    /// Whether the cost was measured or published.
    pub source: Source,
}

/// Where, when and how a model was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Name of the host on which the model was made.
    pub host: String,
    /// Date and time in UTC.
    pub date: String,
    /// Model name of the CPU.
    pub cpu: String,
    /// Version and command line of the program that made the model.
    pub made_by: String,
    /// Frequency of the time-stamp counter. All figures count its cycles.
    pub tsc: TscRate,
}

/// All data of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// Where, when and how the model was made.
    pub about: About,
    /// The measured cells, which form a full grid.
    pub cells: BTreeMap<CellKey, Cell>,
    /// Fixed cost of a batch.
    pub batch: BatchTerm,
    /// Cost of actions. An action without an entry costs nothing.
    pub actions: BTreeMap<Action, ActionTerm>,
    /// Factor by number of VMs. It has an entry for 1.
    pub vms: BTreeMap<u32, Coefficient>,
    /// Factor by number of I/O cores. It has an entry for 1.
    pub cores: BTreeMap<u32, Coefficient>,
    /// Factor for a VM with memory on another NUMA node than the core.
    pub numa_remote: Coefficient,
}

/// Error in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelError {
    /// The grid lacks the cell for this combination.
    Missing(CellKey),
    /// A cost of the cell is negative or not finite, or its median is outside its range.
    Cell(CellKey),
    /// The cells have fewer than two sizes.
    Sizes,
    /// The batch's cost is not a sound cost, or its number of frames is 0.
    Batch,
    /// The cost of this action is not a sound cost.
    Action(Action),
    /// The coefficient for this number of VMs is out of range, or the one for 1 is missing.
    Vms(u32),
    /// The coefficient for this number of cores is out of range, or the one for 1 is missing.
    Cores(u32),
    /// The coefficient for a remote NUMA node is out of range.
    Numa,
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const COST: &str = "a cost is finite, not negative, and its median within its range";
        const FACTOR: &str = "a factor is from 0.1 to 100, and its median within its range";
        match self {
            Self::Missing(key) => write!(
                f,
                "the cell for {key} is missing; every combination of sizes, flows, rules and rings \
                 that occurs needs one"
            ),
            Self::Cell(key) => write!(f, "the cell for {key} makes no sense; {COST}"),
            Self::Sizes => f.write_str("there are cells of fewer than two sizes; measure again"),
            Self::Batch => write!(f, "the batch's term makes no sense; {COST}"),
            Self::Action(action) => write!(f, "the action {action} makes no sense; {COST}"),
            Self::Vms(n) => write!(f, "the coefficient for {n} VMs is missing or wrong; {FACTOR}"),
            Self::Cores(n) => {
                write!(f, "the coefficient for {n} cores is missing or wrong; {FACTOR}")
            }
            Self::Numa => write!(f, "the coefficient of a remote NUMA node is wrong; {FACTOR}"),
        }
    }
}

impl core::error::Error for ModelError {}

/// Deployment of a VM, as far as it changes the cost of the VM's frames.
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
    /// One VM, one I/O core, local memory. The factor is 1.
    pub const SINGLE: Self = Self { vms: 1, cores: 1, numa_remote: false };
}

/// A validated cost model.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    parts: Parts,
    grid: Grid,
}

impl CostModel {
    /// Validates the parts and makes a model.
    ///
    /// # Errors
    /// The first error found.
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
        Ok(Self { parts, grid })
    }

    /// The contents of the model.
    #[must_use]
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The sizes and the numbers of rules of the cells, both ascending.
    #[must_use]
    pub fn axes(&self) -> (&[u16], &[u32]) {
        (self.grid.sizes(), self.grid.rules())
    }

    /// A copy of the model in which `change` has replaced each cell. Simulations add errors this
    /// way.
    ///
    /// # Errors
    /// A changed cell is not a sound cost.
    pub fn with_cells(
        &self,
        mut change: impl FnMut(CellKey, Cell) -> Cell,
    ) -> Result<Self, ModelError> {
        let mut parts = self.parts.clone();
        for (key, cell) in &mut parts.cells {
            *cell = change(*key, *cell);
        }
        Self::new(parts)
    }

    /// `C_single` of one size: cycles per frame by stage, without actions, for full batches and one
    /// VM on the host.
    #[must_use]
    pub fn at(&self, ring: RingKind, flows: Flows, rules: u32, size: f64) -> Stages {
        self.grid.at(ring, flows, rules, size)
    }

    /// `C_single` of a profile: cycles per frame by stage. Checksums and segmentation count as
    /// egress, because egress does them. Rewrites count as classification.
    #[must_use]
    pub fn single(&self, profile: &Profile) -> Stages {
        let Profile { sizes, flows, rules, ring, actions } = profile;
        let of_size = |size: f64| {
            let mut stages = self.grid.at(*ring, *flows, *rules, size);
            for action in actions {
                let Some(term) = self.parts.actions.get(action) else { continue };
                let cost = term.per_frame.median + term.per_byte * size;
                match action {
                    Action::Checksum | Action::Segmentation => stages.egress += cost,
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

    /// `∏ R_i`: the product of the coefficients for a deployment.
    #[must_use]
    pub fn factor(&self, at: Deployment) -> f64 {
        let numa = if at.numa_remote { self.parts.numa_remote.factor.median } else { 1.0 };
        between(&self.parts.vms, at.vms) * between(&self.parts.cores, at.cores) * numa
    }

    /// `∏ R_i · C_single`: cycles per frame.
    #[must_use]
    pub fn per_frame(&self, profile: &Profile, at: Deployment) -> f64 {
        self.single(profile).total() * self.factor(at)
    }

    /// `C_alloc`: cycles per second that a VM needs for its purchased rate, rounded up.
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

    /// Relative uncertainty of the measurements behind a profile's cost: 0.05 means ± 5 %.
    #[must_use]
    pub fn uncertainty(&self, profile: &Profile) -> f64 {
        let of = |size| self.grid.uncertainty(profile.ring, profile.flows, profile.rules, size);
        profile.sizes.parts().map(|(size, part)| of(size) * part).sum()
    }

    /// Expected cycles of a batch of `frames` with `bytes` in total (without FCS).
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
        let actions: f64 = profile.actions.iter().map(|action| self.action(*action, mean)).sum();
        (batch + n * (full - batch / cells + actions).max(0.0)) * self.factor(at)
    }

    fn action(&self, action: Action, size: f64) -> f64 {
        let term = self.parts.actions.get(&action);
        term.map_or(0.0, |term| term.per_frame.median + term.per_byte * size)
    }

    /// As [`Self::batch`], in integers: a straight line fitted through the profile's cells.
    #[must_use]
    pub fn price(&self, profile: &Profile, at: Deployment) -> BatchPrice {
        let points: Vec<(f64, f64)> = (self.grid.sizes().iter().map(|size| f64::from(*size)))
            .map(|size| {
                let actions: f64 = profile.actions.iter().map(|a| self.action(*a, size)).sum();
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

/// Fits a line by least squares. Returns its value at 0 and its slope, which is at least 0.
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

/// Interpolates the factor linearly between counts. The factor is constant beyond the first and
/// last count.
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
