//! A VM has a weight and a latency class.

use core::fmt;

/// Error: a weight or a latency class is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRangeError {
    value: u64,
    low: u16,
    high: u16,
}

impl fmt::Display for ShareRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is out of range; write {} to {}", self.value, self.low, self.high)
    }
}

impl core::error::Error for ShareRangeError {}

/// Weight of a VM, from 1 to 10000. VMs that compete for capacity get capacity in proportion to
/// their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u16);

impl Weight {
    /// The smallest valid weight, which is the default.
    pub const ONE: Self = Self(1);
    /// The largest valid weight.
    pub const MAX: u16 = 10_000;

    /// Creates a weight if `value` is in range.
    ///
    /// # Errors
    /// Returns an error if `value` is zero or above [`Self::MAX`].
    pub const fn new(value: u64) -> Result<Self, ShareRangeError> {
        if value == 0 || value > Self::MAX as u64 {
            return Err(ShareRangeError { value, low: 1, high: Self::MAX });
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX")]
        let value = value as u16;
        Ok(Self(value))
    }

    /// Returns the weight as a number, from 1 to [`Self::MAX`].
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

/// Latency class of a VM, from 1 to 8. Class 1 is served first (C2QoS §IV-B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// Number of latency classes.
    pub const CLASSES: usize = 8;
    /// The latency class that is served before all other classes.
    pub const FIRST: Self = Self(1);
    /// The latency class that is served after all other classes, which is the default.
    pub const LAST: Self = Self(8);

    /// Creates a latency class if `value` is in range.
    ///
    /// # Errors
    /// Returns an error if `value` is zero or above 8.
    pub const fn new(value: u64) -> Result<Self, ShareRangeError> {
        if value == 0 || value > Self::CLASSES as u64 {
            return Err(ShareRangeError { value, low: 1, high: 8 });
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 8")]
        let value = value as u8;
        Ok(Self(value))
    }

    /// Returns the latency class as a number, from 1 to 8.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the latency class as an index from 0, for tables of [`Self::CLASSES`] entries.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::LAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_range_is_refused_with_the_range() {
        assert_eq!(Weight::new(10_000).map(Weight::get), Ok(10_000));
        let error = Weight::new(10_001).unwrap_err().to_string();
        assert_eq!(error, "10001 is out of range; write 1 to 10000");
        assert_eq!(Priority::new(8).map(Priority::index), Ok(7));
        assert_eq!(Priority::new(0).unwrap_err().to_string(), "0 is out of range; write 1 to 8");
        assert!(Priority::FIRST < Priority::LAST && Weight::default() == Weight::ONE);
    }
}
