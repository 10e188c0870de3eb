//! Draws random flow sizes from a published table.
//!
//! Each line of the table has a size in bytes, and the probability that a flow has at most this
//! size. Lines that begin with `#` are comments. A draw takes a number u uniformly from [0, 1) and
//! interpolates the size linearly in the segment that contains u. If the random number u is below
//! the probability in the table's first line, the draw gives the size in the first line. The
//! published traffic generators, from which the tables come, draw sizes in the same way.

use thiserror::Error;

use crate::Rng;

/// A probability distribution of flow sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeTable {
    points: Vec<(f64, f64)>,
}

/// Reason for which a text is not a valid table of flow sizes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeTableError {
    /// A line of the table of flow sizes does not have two numbers, or a number is out of range.
    #[error("line {0}: not a size in bytes and a probability from 0 to 1")]
    Line(usize),
    /// A size or probability in the table of flow sizes is below the value of the previous line.
    #[error("line {0}: a value is smaller than in the line before; no column may decrease")]
    Order(usize),
    /// The table is empty, or its last probability is not 1.
    #[error("flow sizes: the last probability must be 1")]
    End,
}

impl SizeTable {
    /// Parses a table that has a flow size and a probability on each line.
    ///
    /// # Errors
    /// Returns an error if a line is invalid, if a column decreases, or if the last probability is
    /// not 1.
    pub fn parse(text: &str) -> Result<Self, SizeTableError> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let empty = |line: &str| line.trim().is_empty() || line.starts_with('#');
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !empty(line)) {
            let mut columns = line.split_whitespace().map(str::parse::<f64>);
            let (Some(Ok(size)), Some(Ok(part)), None) =
                (columns.next(), columns.next(), columns.next())
            else {
                return Err(SizeTableError::Line(number));
            };
            if !(size.is_finite() && size >= 0.0 && (0.0..=1.0).contains(&part)) {
                return Err(SizeTableError::Line(number));
            }
            if points.last().is_some_and(|last| size < last.0 || part < last.1) {
                return Err(SizeTableError::Order(number));
            }
            points.push((size, part));
        }
        match points.last() {
            Some((_, part)) if (part - 1.0).abs() < 1e-9 => Ok(Self { points }),
            _ => Err(SizeTableError::End),
        }
    }

    /// Creates a distribution in which all flows have `bytes` bytes.
    #[must_use]
    pub fn fixed(bytes: u32) -> Self {
        Self { points: vec![(f64::from(bytes), 1.0)] }
    }

    /// Returns the mean flow size in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let first = self.points[0];
        let segments = self.points.windows(2);
        let rest = segments.map(|s| (s[1].1 - s[0].1) * f64::midpoint(s[0].0, s[1].0));
        first.0 * first.1 + rest.sum::<f64>()
    }

    /// Draws a random flow size in bytes, at least 1.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let at = self.points.partition_point(|(_, part)| *part <= u);
        let size = match (at.checked_sub(1).map(|i| self.points[i]), self.points.get(at)) {
            (Some(from), Some(to)) => from.0 + (to.0 - from.0) * (u - from.1) / (to.1 - from.1),
            (None, Some(first)) => first.0,
            // This point exists, because u is below 1, the last point's probability.
            (_, None) => self.points[self.points.len() - 1].0,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, >= 0")]
        let size = size.round() as u64;
        size.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_tables_mean_and_points() {
        let table = SizeTable::parse("# source\n100 0.5\n100 0.6\n1100 1\n").unwrap();
        assert!((table.mean() - (60.0 + 0.4 * 600.0)).abs() < 1e-9);
        let mut rng = Rng::new(1);
        let sizes: Vec<u64> = (0..100_000).map(|_| table.draw(&mut rng)).collect();
        let mean = sizes.iter().sum::<u64>() / 100_000;
        assert!((297..=303).contains(&mean), "{mean}");
        assert!(sizes.iter().all(|size| (100..=1100).contains(size)));
        let small = sizes.iter().filter(|size| **size == 100).count();
        assert!((59_000..=61_000).contains(&small), "{small}");
    }

    #[test]
    fn an_invalid_distribution_is_refused_with_its_line() {
        let error = |text: &str| SizeTable::parse(text).unwrap_err().to_string();
        assert!(error("1 0.5\n2 x").starts_with("line 2"));
        assert!(error("1 0.5 7").starts_with("line 1"));
        assert!(error("1 NaN").starts_with("line 1"));
        assert!(error("1 0.5\n0 1").contains("smaller"));
        assert!(error("1 0.5").contains("must be 1") && error("").contains("must be 1"));
    }
}
