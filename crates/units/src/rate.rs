//! This module defines rates per second, and [`TscRate`], which converts between cycles and time.

use core::fmt;
use core::str::FromStr;

use crate::{Cycles, Nanos};

/// Rate in bits per second. The type `BitsPerSecond` does not specify which bytes of a frame count
/// for the rate. For example, the rate of an RFC 2697 policer refers to the bytes of IP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitsPerSecond(pub u64);

/// Rate in frames per second. Each segment of a TSO request counts as one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketsPerSecond(pub u64);

/// Rate in cycles of the time-stamp counter per second. For example, a VM's entitlement is a rate
/// in cycles per second (C2QoS §IV-A).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CyclesPerSecond(pub u64);

/// Error: the text is not a number with an optional decimal suffix `k`, `M`, `G` or `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseRateError;

impl fmt::Display for ParseRateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a rate; write a number with an optional suffix k, M, G or T, as in 2.5G")
    }
}

impl core::error::Error for ParseRateError {}

/// Parses a decimal number with a suffix without rounding. The text `2.5G` is 2 500 000 000. The
/// text `1.5` is an error, because the result is not whole.
fn parse_scaled(text: &str) -> Result<u64, ParseRateError> {
    let text = text.trim();
    let (digits, scale) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'M')) => (&text[..at], 1_000_000),
        Some((at, 'G')) => (&text[..at], 1_000_000_000),
        Some((at, 'T')) => (&text[..at], 1_000_000_000_000),
        _ => (text, 1_u64),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let numeric = |s: &str| s.bytes().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !numeric(whole) || !numeric(fraction) || fraction.len() > 12 {
        return Err(ParseRateError);
    }
    let mut value =
        whole.parse::<u64>().ok().and_then(|w| w.checked_mul(scale)).ok_or(ParseRateError)?;
    let mut unit = scale;
    for digit in fraction.bytes().map(|c| u64::from(c - b'0')) {
        if unit % 10 != 0 {
            return if digit == 0 { continue } else { Err(ParseRateError) };
        }
        unit /= 10;
        value = value.checked_add(digit * unit).ok_or(ParseRateError)?;
    }
    Ok(value)
}

impl FromStr for BitsPerSecond {
    type Err = ParseRateError;
    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        parse_scaled(text).map(Self)
    }
}

impl FromStr for PacketsPerSecond {
    type Err = ParseRateError;
    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        parse_scaled(text).map(Self)
    }
}

impl FromStr for CyclesPerSecond {
    type Err = ParseRateError;
    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        parse_scaled(text).map(Self)
    }
}

/// Writes a number with the largest suffix that represents the number exactly: 2 500 000 000 is
/// `2500M`.
fn write_scaled(value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let scales = [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    match scales.iter().find(|(scale, _)| value != 0 && value.is_multiple_of(*scale)) {
        Some((scale, suffix)) => write!(f, "{}{suffix}", value / scale),
        None => write!(f, "{value}"),
    }
}

impl fmt::Display for BitsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(self.0, f)
    }
}

impl fmt::Display for PacketsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(self.0, f)
    }
}

impl fmt::Display for CyclesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(self.0, f)
    }
}

/// Frequency of the time-stamp counter, calibrated once at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscRate {
    hz: u64,
}

impl TscRate {
    /// Creates a rate of `hz` cycles per second. If `hz` is 0, the function creates a rate of 1 Hz,
    /// so that later conversions never divide by zero.
    #[must_use]
    pub const fn from_hz(hz: u64) -> Self {
        Self { hz: if hz == 0 { 1 } else { hz } }
    }

    /// Returns the frequency in cycles per second, at least 1.
    #[must_use]
    pub const fn hz(self) -> u64 {
        self.hz
    }

    /// Converts a number of cycles to time, rounded down. The time saturates at `u64::MAX`
    /// nanoseconds (584 years).
    #[must_use]
    pub fn to_nanos(self, cycles: Cycles) -> Nanos {
        let wide = u128::from(cycles.0) * 1_000_000_000 / u128::from(self.hz);
        Nanos(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// Converts time to a number of cycles, rounded down. The number of cycles saturates at
    /// `u64::MAX`.
    #[must_use]
    pub fn to_cycles(self, time: Nanos) -> Cycles {
        let wide = u128::from(time.0) * u128::from(self.hz) / 1_000_000_000;
        Cycles(u64::try_from(wide).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_exactly() {
        for (text, want) in
            [("0", 0), ("94M", 94_000_000), ("2.5G", 2_500_000_000), ("1.000k", 1000)]
        {
            assert_eq!(text.parse(), Ok(BitsPerSecond(want)), "{text}");
        }
        for bad in ["", "G", ".5G", "1.5", "1.2345k", "-1", "1e9", "99999999999T"] {
            assert_eq!(bad.parse::<BitsPerSecond>(), Err(ParseRateError), "{bad}");
        }
    }

    #[test]
    fn rates_are_written_as_they_may_be_read() {
        for value in [0, 7, 1_000, 1_500, 200_000_000, 2_500_000_000, 3_000_000_000_000, u64::MAX] {
            let text = CyclesPerSecond(value).to_string();
            assert_eq!(text.parse(), Ok(CyclesPerSecond(value)), "{text}");
        }
        assert_eq!(BitsPerSecond(2_500_000_000).to_string(), "2500M");
    }

    #[test]
    fn cycles_and_time_convert_both_ways() {
        let rate = TscRate::from_hz(2_450_000_000);
        assert_eq!(rate.to_nanos(Cycles(2_450)), Nanos(1_000));
        assert_eq!(rate.to_cycles(Nanos::from_secs(3600)), Cycles(8_820_000_000_000));
        assert_eq!(rate.to_nanos(Cycles(u64::MAX)).0, 7529283295391653720);
    }
}
