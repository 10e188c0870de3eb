//! Table of measured costs per frame, with interpolation between the measured frame sizes and
//! numbers of rules.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use super::profile::{Flows, RingKind};
use super::spread::{Source, Spread};

/// Conditions under which a cost was measured: the frames, the rules and the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey {
    /// Layout of the port's rings (split or packed).
    pub ring: RingKind,
    /// Whether the frames had few or many flows.
    pub flows: Flows,
    /// Number of rules in the rule table, at least 1.
    pub rules: u32,
    /// Size of the frames in bytes, including FCS.
    pub size: u16,
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ring, flows, rules, size } = self;
        write!(f, "size {size}, {flows} flows, {rules} rules, {ring} ring")
    }
}

/// Measured cost of a frame in the three stages of forwarding, in cycles (C2QoS eq. (1)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Cycles to take a frame from the ring.
    pub ingress: Spread,
    /// Cycles to classify a frame.
    pub classification: Spread,
    /// Cycles to deliver a frame to its receiver.
    pub egress: Spread,
    /// Whether the costs of the cell were measured on this host or published in a paper.
    pub source: Source,
}

impl Cell {
    /// Returns the medians of the three stages, in cycles per frame.
    #[must_use]
    pub fn stages(&self) -> Stages {
        Stages {
            ingress: self.ingress.median,
            classification: self.classification.median,
            egress: self.egress.median,
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        [self.ingress, self.classification, self.egress].iter().all(Spread::is_sound)
            && self.stages().total() > 0.0
    }
}

/// Cost of a frame in the three stages of forwarding, in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stages {
    /// Cycles to take a frame from the ring (`C_ingress` in C2QoS).
    pub ingress: f64,
    /// Cycles to classify a frame (`C_classification` in C2QoS).
    pub classification: f64,
    /// Cycles to deliver a frame (`C_egress` in C2QoS).
    pub egress: f64,
}

impl Stages {
    /// Returns the sum of the three stages in cycles per frame (`C` in C2QoS).
    #[must_use]
    pub fn total(&self) -> f64 {
        self.ingress + self.classification + self.egress
    }

    /// Multiplies the cost of each stage by `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            ingress: self.ingress * factor,
            classification: self.classification * factor,
            egress: self.egress * factor,
        }
    }

    /// Returns the sum of two costs, separately for each stage of forwarding.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            ingress: self.ingress + other.ingress,
            classification: self.classification + other.classification,
            egress: self.egress + other.egress,
        }
    }

    /// Interpolates linearly between the costs `self` and `other`. The argument `part` is the
    /// position between the costs: 0 gives `self` and 1 gives `other`.
    fn towards(self, other: Self, part: f64) -> Self {
        self.scaled(1.0 - part).plus(other.scaled(part))
    }

    fn floor_zero(self) -> Self {
        Self {
            ingress: self.ingress.max(0.0),
            classification: self.classification.max(0.0),
            egress: self.egress.max(0.0),
        }
    }
}

/// Table of measured costs, with a cell for every combination of ring layout, flows, rules and
/// frame size.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grid {
    pub(super) cells: BTreeMap<CellKey, Cell>,
    sizes: Vec<u16>,
    rules: Vec<u32>,
}

/// Reason why the measured costs do not form a complete table, for example a combination without a
/// cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GridError {
    Missing(CellKey),
    Unsound(CellKey),
    Sizes,
}

impl Grid {
    pub(super) fn new(cells: BTreeMap<CellKey, Cell>) -> Result<Self, GridError> {
        let sizes: BTreeSet<u16> = cells.keys().map(|key| key.size).collect();
        let rules: BTreeSet<u32> = cells.keys().map(|key| key.rules).collect();
        let rings: BTreeSet<RingKind> = cells.keys().map(|key| key.ring).collect();
        if sizes.len() < 2 {
            return Err(GridError::Sizes);
        }
        for &ring in &rings {
            for flows in Flows::ALL {
                for &rules in &rules {
                    for &size in &sizes {
                        let key = CellKey { ring, flows, rules, size };
                        match cells.get(&key) {
                            None => return Err(GridError::Missing(key)),
                            Some(cell) if !cell.is_sound() || rules == 0 => {
                                return Err(GridError::Unsound(key));
                            }
                            Some(_) => {}
                        }
                    }
                }
            }
        }
        Ok(Self { cells, sizes: sizes.into_iter().collect(), rules: rules.into_iter().collect() })
    }

    pub(super) fn sizes(&self) -> &[u16] {
        &self.sizes
    }

    pub(super) fn rules(&self) -> &[u32] {
        &self.rules
    }

    /// Returns the ring layout `wanted` if it was measured, otherwise the layout that was measured.
    fn ring(&self, wanted: RingKind) -> RingKind {
        let mut rings = self.cells.keys().map(|key| key.ring);
        if rings.clone().any(|ring| ring == wanted) {
            wanted
        } else {
            rings.next().unwrap_or(wanted)
        }
    }

    fn stages(&self, ring: RingKind, flows: Flows, rules: u32, size: u16) -> Stages {
        let cell = self.cells.get(&CellKey { ring, flows, rules, size });
        cell.map(Cell::stages).unwrap_or_default()
    }

    /// Returns the cost of a frame for any size and number of rules. The cost is linear in the
    /// frame's size, also beyond the measured sizes. The cost is linear in the logarithm of the
    /// number of rules, and constant beyond the measured numbers of rules.
    pub(super) fn at(&self, ring: RingKind, flows: Flows, rules: u32, size: f64) -> Stages {
        let ring = self.ring(ring);
        let by_size = |rules: u32| {
            let sizes: Vec<f64> = self.sizes.iter().map(|size| f64::from(*size)).collect();
            let (low, part) = place(&sizes, size);
            let (from, to) = (self.sizes[low], self.sizes[low + 1]);
            let of = |size| self.stages(ring, flows, rules, size);
            of(from).towards(of(to), part).floor_zero()
        };
        let [only] = self.rules.as_slice() else {
            let logs: Vec<f64> = self.rules.iter().map(|n| f64::from(*n).ln()).collect();
            let (low, part) = place(&logs, f64::from(rules.max(1)).ln());
            let part = part.clamp(0.0, 1.0);
            return by_size(self.rules[low]).towards(by_size(self.rules[low + 1]), part);
        };
        by_size(*only)
    }

    /// Returns the larger of the relative uncertainties of the costs at the two measured sizes
    /// nearest to `size`.
    pub(super) fn uncertainty(&self, ring: RingKind, flows: Flows, rules: u32, size: f64) -> f64 {
        let ring = self.ring(ring);
        let nearest = self.rules.iter().copied().min_by_key(|n| n.abs_diff(rules)).unwrap_or(1);
        let sizes: Vec<f64> = self.sizes.iter().map(|size| f64::from(*size)).collect();
        let (low, _) = place(&sizes, size);
        let around = [self.sizes[low], self.sizes[low + 1]];
        let of = |size: u16| {
            let cell = self.cells.get(&CellKey { ring, flows, rules: nearest, size });
            cell.map_or(0.0, |cell| {
                let range = |s: Spread| s.max - s.min;
                let ranges = range(cell.ingress) + range(cell.classification) + range(cell.egress);
                ranges / 2.0 / cell.stages().total().max(f64::MIN_POSITIVE)
            })
        };
        around.into_iter().map(of).fold(0.0, f64::max)
    }
}

/// Finds the interval between two neighbouring `points` that contains `x`, or else the interval
/// nearest to `x`. Returns the index of the interval, and the position of `x` in the interval: 0 at
/// its lower end and 1 at its upper end. If `x` is outside of all intervals, the returned position
/// is negative or above 1.
pub(super) fn place(points: &[f64], x: f64) -> (usize, f64) {
    let last = points.len().saturating_sub(2);
    let low = points.partition_point(|point| *point <= x).saturating_sub(1).min(last);
    let (from, to) = (points[low], points[low + 1]);
    (low, (x - from) / (to - from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_inside_or_beyond() {
        let points = [64.0, 128.0, 512.0];
        assert_eq!(place(&points, 64.0), (0, 0.0));
        assert_eq!(place(&points, 96.0), (0, 0.5));
        assert_eq!(place(&points, 512.0), (1, 1.0));
        assert_eq!(place(&points, 896.0), (1, 2.0));
        assert_eq!(place(&points, 0.0), (0, -1.0));
    }
}
