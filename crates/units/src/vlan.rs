//! IEEE 802.1Q VLAN identifiers.

use core::fmt;

/// A VLAN identifier, 0 to 4094; 0 is "no VLAN": frames of the untagged network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Vid(u16);

/// The number is no VLAN identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VidRangeError(pub u32);

impl fmt::Display for VidRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VLAN {} is out of range; 1 to 4094 tag a frame and 0 means untagged", self.0)
    }
}

impl core::error::Error for VidRangeError {}

impl Vid {
    /// The untagged network.
    pub const UNTAGGED: Self = Self(0);

    /// # Errors
    /// Above 4094 (4095 is reserved by the standard).
    pub fn new(vid: u32) -> Result<Self, VidRangeError> {
        match u16::try_from(vid) {
            Ok(vid) if vid <= 4094 => Ok(Self(vid)),
            _ => Err(VidRangeError(vid)),
        }
    }

    /// The identifier in the low 12 bits of a tag (TCI); 4095 becomes `None`.
    #[inline]
    #[must_use]
    pub const fn of_tci(tci: u16) -> Option<Self> {
        let vid = tci & 0xfff;
        if vid == 0xfff { None } else { Some(Self(vid)) }
    }

    /// The number.
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
