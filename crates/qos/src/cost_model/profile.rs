//! A VM's declared frame sizes and flows, and its purchased rate.
//!
//! A size is that of the frame on the wire, including FCS (RFC 2544). A size of 64 is 60 bytes in a
//! ring. Bit rates count sizes, without preamble and inter-frame gap.

use core::fmt;
use core::str::FromStr;

use penstock_units::{BitsPerSecond, PacketsPerSecond};

/// Smallest size of a frame in bytes.
pub const SIZE_MIN: u16 = 64;
/// Largest size of a frame in bytes. A segmentation request counts as the frames that it becomes.
pub const SIZE_MAX: u16 = 9018;
/// Maximum number of entries in a mix.
pub const MIX_MAX: usize = 32;
/// Bytes of the FCS, which byte counters leave out.
pub const FCS: u64 = 4;

/// Frame sizes and their weights. A mix has at least one entry, and no weight is 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SizeMix(Vec<(u16, u32)>);

/// Error in a mix of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeMixError {
    /// The mix has no entry, or more than [`MIX_MAX`].
    Entries(usize),
    /// The size is outside the range of frames.
    Size(u32),
    /// The weight is 0 or above 65535.
    Weight(u32),
    /// The text is not a mix.
    Text,
}

impl fmt::Display for SizeMixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries(n) => write!(f, "{n} sizes make no mix; write 1 to {MIX_MAX}"),
            Self::Size(size) => {
                write!(
                    f,
                    "size {size} is out of range; write {SIZE_MIN} to {SIZE_MAX}, FCS included"
                )
            }
            Self::Weight(weight) => {
                write!(f, "weight {weight} is out of range; write 1 to 65535")
            }
            Self::Text => f.write_str(
                "not a size; a number, \"imix\" or sizes with weights as in \"64:7+1518:1\" are \
                 wanted",
            ),
        }
    }
}

impl core::error::Error for SizeMixError {}

impl SizeMix {
    /// Makes a mix from pairs of size and weight.
    ///
    /// # Errors
    /// There are no entries or too many, or a size or weight is out of range.
    pub fn new(entries: Vec<(u16, u32)>) -> Result<Self, SizeMixError> {
        if entries.is_empty() || entries.len() > MIX_MAX {
            return Err(SizeMixError::Entries(entries.len()));
        }
        for (size, weight) in &entries {
            if !(SIZE_MIN..=SIZE_MAX).contains(size) {
                return Err(SizeMixError::Size((*size).into()));
            }
            if *weight == 0 || *weight > 65_535 {
                return Err(SizeMixError::Weight(*weight));
            }
        }
        Ok(Self(entries))
    }

    /// A mix of one size.
    ///
    /// # Errors
    /// The size is out of range.
    pub fn fixed(size: u16) -> Result<Self, SizeMixError> {
        Self::new(vec![(size, 1)])
    }

    /// The simple Internet mix: 7 frames of 64 bytes, 4 of 594, 1 of 1518. It is an RFC 6985 genome
    /// with custom sizes. It applies if a contract names no size (C2QoS §III-D).
    #[must_use]
    pub fn imix() -> Self {
        Self(vec![(64, 7), (594, 4), (1518, 1)])
    }

    /// The pairs of size and weight.
    #[must_use]
    pub fn entries(&self) -> &[(u16, u32)] {
        &self.0
    }

    /// Pairs of size and fraction of all frames.
    pub fn parts(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let total: f64 = self.0.iter().map(|(_, weight)| f64::from(*weight)).sum();
        self.0.iter().map(move |(size, weight)| (f64::from(*size), f64::from(*weight) / total))
    }

    /// The mean size in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.parts().map(|(size, part)| size * part).sum()
    }
}

impl Default for SizeMix {
    fn default() -> Self {
        Self::imix()
    }
}

impl fmt::Display for SizeMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::imix() {
            return f.write_str("imix");
        }
        if let [(size, _)] = self.0.as_slice() {
            return write!(f, "{size}");
        }
        for (at, (size, weight)) in self.0.iter().enumerate() {
            write!(f, "{}{size}:{weight}", if at > 0 { "+" } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for SizeMix {
    type Err = SizeMixError;

    /// Reads texts such as `1024`, `imix` and `64:7+1518:1`.
    fn from_str(text: &str) -> Result<Self, SizeMixError> {
        if text == "imix" {
            return Ok(Self::imix());
        }
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| SizeMixError::Text);
        let entry = |part: &str| {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            let (size, weight) = (number(size)?, number(weight)?);
            Ok((u16::try_from(size).map_err(|_| SizeMixError::Size(size))?, weight))
        };
        Self::new(text.split('+').map(entry).collect::<Result<_, _>>()?)
    }
}

/// How a VM's frames spread over flows. The spread decides how often frames hit the exact-match
/// cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flows {
    /// The frames have few flows, and the cache holds all of them.
    #[default]
    Single,
    /// The frames have more flows than the cache holds.
    Multiple,
}

impl Flows {
    /// Both variants, in the order of declaration.
    pub const ALL: [Self; 2] = [Self::Single, Self::Multiple];

    /// The name of the variant in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Multiple => "multiple",
        }
    }
}

impl fmt::Display for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Flows {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "single" => Ok(Self::Single),
            "multiple" => Ok(Self::Multiple),
            _ => Err("flows are \"single\" or \"multiple\""),
        }
    }
}

/// Layout of a port's rings (virtio).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RingKind {
    /// A descriptor table, an available ring and a used ring.
    #[default]
    Split,
    /// A single ring of descriptors.
    Packed,
}

impl RingKind {
    /// The name of the variant in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Packed => "packed",
        }
    }
}

impl fmt::Display for RingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RingKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "split" => Ok(Self::Split),
            "packed" => Ok(Self::Packed),
            _ => Err("a ring is \"split\" or \"packed\""),
        }
    }
}

/// Work on a frame beyond moving it. It costs extra cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Inserts a VLAN tag.
    VlanPush,
    /// Removes a VLAN tag.
    VlanPop,
    /// Rewrites the DSCP code point.
    Dscp,
    /// Completes a checksum that the sender left to the device.
    Checksum,
    /// Splits a segmentation request. The action is counted once for each resulting frame.
    Segmentation,
}

impl Action {
    /// All variants, in the order of declaration.
    pub const ALL: [Self; 5] =
        [Self::VlanPush, Self::VlanPop, Self::Dscp, Self::Checksum, Self::Segmentation];

    /// The name of the variant in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VlanPush => "vlan-push",
            Self::VlanPop => "vlan-pop",
            Self::Dscp => "dscp",
            Self::Checksum => "checksum",
            Self::Segmentation => "segmentation",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Action {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|action| action.name() == text).ok_or(
            "an action is \"vlan-push\", \"vlan-pop\", \"dscp\", \"checksum\" or \"segmentation\"",
        )
    }
}

/// All that determines the cost of a VM's frames, except the VM's deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Profile {
    /// Sizes of the VM's frames and their weights.
    pub sizes: SizeMix,
    /// How the VM's frames spread over flows.
    pub flows: Flows,
    /// Number of rules in the table in which the VM's frames are looked up.
    pub rules: u32,
    /// Layout of the VM's rings.
    pub ring: RingKind,
    /// Actions that every frame undergoes.
    pub actions: Vec<Action>,
}

/// A purchased rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rate {
    /// Bits of frames per second, including FCS.
    Bits(BitsPerSecond),
    /// Rate in frames per second.
    Packets(PacketsPerSecond),
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits(rate) => write!(f, "{rate}"),
            Self::Packets(rate) => write!(f, "{rate}pps"),
        }
    }
}

/// A VM's purchase: a rate, and the frames for which the rate holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contract {
    /// Purchased rate, in bits or frames per second.
    pub rate: Rate,
    /// Frame sizes that the tenant declared.
    pub sizes: SizeMix,
    /// Declared spread over flows.
    pub flows: Flows,
}

impl Contract {
    /// The rate in frames per second, at the declared mean size.
    #[must_use]
    pub fn frames_per_second(&self) -> f64 {
        match self.rate {
            Rate::Bits(BitsPerSecond(bits)) => to_f64(bits) / 8.0 / self.sizes.mean(),
            Rate::Packets(PacketsPerSecond(frames)) => to_f64(frames),
        }
    }

    /// The rate in bits per second, at the declared mean size, rounded up.
    #[must_use]
    pub fn bandwidth(&self) -> BitsPerSecond {
        match self.rate {
            Rate::Bits(rate) => rate,
            Rate::Packets(_) => {
                BitsPerSecond(whole_up(self.frames_per_second() * 8.0 * self.sizes.mean()))
            }
        }
    }

    /// The profile of the VM's frames: the tenant's declaration plus the host's rules and ring.
    #[must_use]
    pub fn profile(&self, rules: u32, ring: RingKind) -> Profile {
        Profile { sizes: self.sizes.clone(), flows: self.flows, rules, ring, actions: Vec::new() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates and counts are far below 2^52")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// Rounds up and saturates. Negative numbers become 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
pub(crate) fn whole_up(value: f64) -> u64 {
    // Ignore an excess over a whole number that only rounding errors produced.
    (value - value.abs() * 1e-12).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_and_written_the_same() {
        for text in ["imix", "1024", "64:7+1518:1"] {
            assert_eq!(text.parse::<SizeMix>().unwrap().to_string(), text);
        }
        let imix = SizeMix::imix();
        assert!((imix.mean() - (7.0 * 64.0 + 4.0 * 594.0 + 1518.0) / 12.0).abs() < 1e-9);
        assert!((imix.parts().map(|(_, part)| part).sum::<f64>() - 1.0).abs() < 1e-12);
        for (bad, why) in [
            ("", SizeMixError::Text),
            ("63", SizeMixError::Size(63)),
            ("70000", SizeMixError::Size(70_000)),
            ("64:0", SizeMixError::Weight(0)),
            ("64+", SizeMixError::Text),
        ] {
            assert_eq!(bad.parse::<SizeMix>(), Err(why), "{bad:?}");
        }
        assert_eq!(SizeMix::new(vec![]), Err(SizeMixError::Entries(0)));
    }

    #[test]
    fn a_contract_is_a_rate_of_frames_and_of_bits() {
        let sizes = SizeMix::fixed(1024).unwrap();
        let bits = Contract {
            rate: Rate::Bits(BitsPerSecond(4_000_000_000)),
            sizes: sizes.clone(),
            flows: Flows::Single,
        };
        assert!((bits.frames_per_second() - 488_281.25).abs() < 1e-6);
        let frames = Contract { rate: Rate::Packets(PacketsPerSecond(488_281)), ..bits.clone() };
        assert_eq!(frames.bandwidth(), BitsPerSecond(488_281 * 8 * 1024));
        assert_eq!(
            (bits.rate.to_string(), frames.rate.to_string().as_str()),
            ("4G".into(), "488281pps")
        );
    }

    #[test]
    fn names_round_trip() {
        for action in Action::ALL {
            assert_eq!(action.name().parse(), Ok(action));
        }
        for flows in Flows::ALL {
            assert_eq!(flows.name().parse(), Ok(flows));
        }
        for ring in [RingKind::Split, RingKind::Packed] {
            assert_eq!(ring.name().parse(), Ok(ring));
        }
    }
}
