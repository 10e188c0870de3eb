//! Cells of a live experiment that are repeated if other work took the machine's processors.
//!
//! A *cell* is one combination of settings, measured once. If other programs, the hypervisor or the
//! CPU limit took more than [`TAKEN_MAX`] per cent of the processors' time, the cell is measured
//! again, at most [`TRIES`] times. The cell that was disturbed least counts, even if its result is
//! worse.

use super::super::machine::Reading;
use crate::evidence::Outcome;
use penstock_guest::bed::Bed;

const TRIES: u32 = 3;
const TAKEN_MAX: f64 = 2.0;

/// Repeats disturbed cells, and counts the repetitions.
#[derive(Debug)]
pub(super) struct Calm<'a> {
    pub bed: &'a Bed,
    repeated: u32,
    /// Largest percentage of the processors' time that was taken in a cell that counts.
    taken_max: f64,
}

impl<'a> Calm<'a> {
    pub fn new(bed: &'a Bed) -> Self {
        Self { bed, repeated: 0, taken_max: 0.0 }
    }

    /// Measures a cell, and measures it again if the machine was disturbed.
    pub fn cell<T>(&mut self, mut cell: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let cores = [self.bed.worker_core(), self.bed.generator_core()];
        let (taken, found, tries) = least_disturbed(|| {
            let before = Reading::take(&cores);
            let found = cell()?;
            Ok((before.until(&Reading::take(&cores)).taken_pct(), found))
        })?;
        self.repeated += tries - 1;
        self.taken_max = self.taken_max.max(taken);
        Ok(found)
    }

    /// Adds the number of repetitions and the largest disturbance to the outcome.
    pub fn describe(&self, outcome: &mut Outcome) {
        outcome.note("cells_repeated", self.repeated);
        outcome.note("cells_taken_pct_max", self.taken_max);
    }
}

/// Returns the percentage of time that was taken in the cell that counts, the cell's result, and
/// the number of measurements.
fn least_disturbed<T>(
    mut measure: impl FnMut() -> anyhow::Result<(f64, T)>,
) -> anyhow::Result<(f64, T, u32)> {
    let (mut least, mut best) = measure()?;
    let mut tries = 1;
    while least > TAKEN_MAX && tries < TRIES {
        let (taken, found) = measure()?;
        if taken < least {
            (least, best) = (taken, found);
        }
        tries += 1;
    }
    Ok((least, best, tries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_cell_is_repeated_and_the_least_disturbed_counts() {
        let run = |cells: &[(f64, u32)]| {
            let mut left = cells.iter().copied();
            let (_, best, tries) = least_disturbed(|| Ok(left.next().unwrap())).unwrap();
            (best, tries)
        };
        assert_eq!(run(&[(2.0, 1), (0.0, 2)]), (1, 1));
        assert_eq!(run(&[(9.0, 1), (0.5, 2), (0.0, 3)]), (2, 2));
        assert_eq!(run(&[(9.0, 1), (5.0, 2), (7.0, 3), (0.0, 4)]), (2, 3));
        let none = || -> anyhow::Result<(f64, u32)> { anyhow::bail!("no cell") };
        assert!(least_disturbed(none).is_err());
    }
}
