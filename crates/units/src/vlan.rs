//! This module defines the type of IEEE 802.1Q VLAN identifiers.

use core::fmt;

/// VLAN identifier, from 0 to 4094. Identifier 0 means untagged frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Vid(u16);

/// Error: the number is not a VLAN identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VidRangeError(pub u32);

impl fmt::Display for VidRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VLAN {} is out of range; write 1 to 4094, or 0 for untagged frames", self.0)
    }
}

impl core::error::Error for VidRangeError {}

impl Vid {
    /// VLAN identifier 0, which means untagged frames.
    pub const UNTAGGED: Self = Self(0);

    /// Creates a VLAN identifier if `vid` is in range.
    ///
    /// # Errors
    /// Returns an error if `vid` is above 4094. IEEE 802.1Q reserves 4095.
    pub fn new(vid: u32) -> Result<Self, VidRangeError> {
        match u16::try_from(vid) {
            Ok(vid) if vid <= 4094 => Ok(Self(vid)),
            _ => Err(VidRangeError(vid)),
        }
    }

    /// Returns the VLAN identifier as a number, from 0 to 4094.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
