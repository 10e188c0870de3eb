//! The frame sizes and flows that a tenant declares for a VM, and the VM's purchased rate.
//!
//! Sizes of frames include the FCS (RFC 2544), so a frame of size 64 has 60 bytes in a ring. Bit
//! rates count frame sizes with FCS, without preamble and inter-frame gap.

use core::fmt;
use core::str::FromStr;

use penstock_units::{BitsPerSecond, PacketsPerSecond};

use crate::bottleneck::FRAME_OVERHEAD;

/// Smallest size of a frame in bytes, FCS included.
pub const SIZE_MIN: u16 = 64;
/// Largest size of a frame in bytes, FCS included. A segmentation request counts as the frames into
/// which it is cut.
pub const SIZE_MAX: u16 = 9018;
/// Maximum number of sizes in a mix.
pub const MIX_MAX: usize = 32;
/// Size of the FCS in bytes; byte counters exclude the FCS.
pub const FCS: u64 = 4;

/// Mix of frame sizes with weights, which are relative numbers of frames. A mix has at least one
/// size, and no weight is 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SizeMix(Vec<(u16, u32)>);

/// Mistake in a mix of frame sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeMixError {
    /// The mix has no size, or more than [`MIX_MAX`] sizes.
    Entries(usize),
    /// A size is not in the range from [`SIZE_MIN`] to [`SIZE_MAX`].
    Size(u32),
    /// The weight of a frame size is 0 or above 65535.
    Weight(u32),
    /// The text of a mix is neither `imix` nor a list of sizes with weights.
    Text,
}

impl fmt::Display for SizeMixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries(n) => write!(f, "a mix of {n} sizes is not valid; write 1 to {MIX_MAX}"),
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
                "not a size; write a number, \"imix\" or sizes with weights as in \
                 \"64:7+1518:1\"",
            ),
        }
    }
}

impl core::error::Error for SizeMixError {}

impl SizeMix {
    /// Makes a mix from pairs of a size and its weight.
    ///
    /// # Errors
    /// Returns an error if there are no pairs or too many, or if a size or weight is out of range.
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

    /// Returns a mix of frame sizes with a single size.
    ///
    /// # Errors
    /// Returns an error if the frame size is not from [`SIZE_MIN`] to [`SIZE_MAX`].
    pub fn fixed(size: u16) -> Result<Self, SizeMixError> {
        Self::new(vec![(size, 1)])
    }

    /// Returns the simple Internet mix: 7 frames of 64 bytes, 4 of 594 bytes and 1 of 1518 bytes.
    /// RFC 6985 calls such a mix of frame sizes an IMIX genome with custom sizes. The simple
    /// Internet mix applies if a contract states no size (C2QoS §III-D).
    #[must_use]
    pub fn imix() -> Self {
        Self(vec![(64, 7), (594, 4), (1518, 1)])
    }

    /// Returns pairs of a frame size in bytes and its weight.
    #[must_use]
    pub fn entries(&self) -> &[(u16, u32)] {
        &self.0
    }

    /// Returns each frame size of the mix in bytes, with the fraction of all frames that have this
    /// size.
    pub fn parts(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let total: f64 = self.0.iter().map(|(_, weight)| f64::from(*weight)).sum();
        self.0.iter().map(move |(size, weight)| (f64::from(*size), f64::from(*weight) / total))
    }

    /// Returns the mean frame size in bytes.
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

    /// Parses a text such as `1024`, `imix` or `64:7+1518:1` (sizes and weights).
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

/// Number of flows to which a VM's frames belong. The number of flows determines how often frames
/// hit the exact-match cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flows {
    /// The frames have so few flows that the exact-match cache has an entry for each flow.
    #[default]
    Single,
    /// The frames have more flows than the exact-match cache has entries.
    Multiple,
}

impl Flows {
    /// All variants of `Flows`, in the order of declaration.
    pub const ALL: [Self; 2] = [Self::Single, Self::Multiple];

    /// Returns the name of the variant in configuration files: `single` or `multiple`.
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
    /// Split ring: a descriptor table, an available ring and a used ring.
    #[default]
    Split,
    /// Packed ring: a single ring of descriptors.
    Packed,
}

impl RingKind {
    /// Returns the name of the ring layout in cost model files, `split` or `packed`.
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

/// Action on a frame in addition to forwarding, which costs extra cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Inserts a VLAN tag into the frame.
    VlanPush,
    /// Removes a VLAN tag from the frame.
    VlanPop,
    /// Rewrites the DSCP code point of the frame.
    Dscp,
    /// Completes a checksum for a sender that uses checksum offload.
    Checksum,
    /// Splits a segmentation request (TSO) into frames. Each frame into which a segmentation
    /// request is split counts as a segmentation action.
    Segmentation,
    /// Takes the frame from a TAP interface instead of a VM's ring.
    FromTap,
    /// Takes the frame from a packet socket instead of a VM's ring.
    FromPacket,
    /// Takes the frame from an AF_XDP socket instead of a VM's ring.
    FromXdp,
    /// Sends the frame to a TAP interface instead of a VM's ring.
    ToTap,
    /// Sends the frame to a packet socket instead of a VM's ring.
    ToPacket,
    /// Sends the frame to an AF_XDP socket instead of a VM's ring.
    ToXdp,
    /// Sends the frame to a VM that waits for interrupts, instead of a VM that polls its ring.
    ToInterrupt,
}

/// Part of an operation in the cost of a frame, in thousandths, that means "every frame".
const EVERY: u16 = 1_000;

/// An action, and the part of a VM's frames to which the switch applies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// What the switch does with the frames.
    pub action: Action,
    /// Part of the frames in thousandths.
    pub permille: u16,
}

impl Work {
    /// Returns the part of the frames as a fraction.
    #[must_use]
    pub fn part(self) -> f64 {
        f64::from(self.permille) / f64::from(EVERY)
    }
}

impl From<Action> for Work {
    /// Returns the action for every frame.
    fn from(action: Action) -> Self {
        Self { action, permille: EVERY }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        if self.permille == EVERY { Ok(()) } else { write!(f, " of {} %", self.permille / 10) }
    }
}

impl Action {
    /// All actions, in the order of declaration.
    pub const ALL: [Self; 12] = [
        Self::VlanPush,
        Self::VlanPop,
        Self::Dscp,
        Self::Checksum,
        Self::Segmentation,
        Self::FromTap,
        Self::FromPacket,
        Self::FromXdp,
        Self::ToTap,
        Self::ToPacket,
        Self::ToXdp,
        Self::ToInterrupt,
    ];

    /// Returns the name of the action in files, such as `vlan-push`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VlanPush => "vlan-push",
            Self::VlanPop => "vlan-pop",
            Self::Dscp => "dscp",
            Self::Checksum => "checksum",
            Self::Segmentation => "segmentation",
            Self::FromTap => "from-tap",
            Self::FromPacket => "from-packet",
            Self::FromXdp => "from-xdp",
            Self::ToTap => "to-tap",
            Self::ToPacket => "to-packet",
            Self::ToXdp => "to-xdp",
            Self::ToInterrupt => "to-interrupt",
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
            "an action is \"vlan-push\", \"vlan-pop\", \"dscp\", \"checksum\" or \
             \"segmentation\", or a way such as \"from-tap\" or \"to-xdp\"",
        )
    }
}

/// Properties of a VM's frames, rules and rings that determine the cost of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Profile {
    /// Sizes of the VM's frames and their weights.
    pub sizes: SizeMix,
    /// Whether the frames that the VM sends have few flows or many flows.
    pub flows: Flows,
    /// Number of rules in the table that classifies the VM's frames.
    pub rules: u32,
    /// Layout of the VM's rings (split or packed).
    pub ring: RingKind,
    /// Actions, such as a VLAN push, that the switch applies to the VM's frames.
    pub actions: Vec<Work>,
}

/// A purchased rate, in bits or frames per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rate {
    /// Purchased rate in bits per second, including FCS.
    Bits(BitsPerSecond),
    /// Purchased rate in frames per second.
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

/// A VM's purchased rate, and the frames for which the rate is guaranteed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contract {
    /// Purchased rate, in bits or frames per second.
    pub rate: Rate,
    /// Frame sizes that the tenant declared.
    pub sizes: SizeMix,
    /// Whether the tenant declared few or many flows.
    pub flows: Flows,
}

impl Contract {
    /// Returns the purchased rate in frames per second, at the declared mean size.
    #[must_use]
    pub fn frames_per_second(&self) -> f64 {
        match self.rate {
            Rate::Bits(BitsPerSecond(bits)) => to_f64(bits) / 8.0 / self.sizes.mean(),
            Rate::Packets(PacketsPerSecond(frames)) => to_f64(frames),
        }
    }

    /// Returns the purchased rate in bits per second, at the declared mean size, rounded up.
    #[must_use]
    pub fn bandwidth(&self) -> BitsPerSecond {
        match self.rate {
            Rate::Bits(rate) => rate,
            Rate::Packets(_) => {
                BitsPerSecond(whole_up(self.frames_per_second() * 8.0 * self.sizes.mean()))
            }
        }
    }

    /// Returns the bits per second that the purchased rate occupies on a link: the frames with the
    /// preamble, the start delimiter and the gap (RFC 1242 §3.4), rounded up.
    #[must_use]
    pub fn on_link(&self) -> BitsPerSecond {
        let bytes = self.sizes.mean() + to_f64(u64::from(FRAME_OVERHEAD)) - to_f64(FCS);
        BitsPerSecond(whole_up(self.frames_per_second() * 8.0 * bytes))
    }

    /// Returns the profile of the VM's frames: the tenant's declaration, and the host's rules and
    /// ring.
    #[must_use]
    pub fn profile(&self, rules: u32, ring: RingKind) -> Profile {
        Profile { sizes: self.sizes.clone(), flows: self.flows, rules, ring, actions: Vec::new() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates and counts are far below 2^52")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// Rounds a floating-point number up to an integer; numbers above the range become the largest
/// integer. A negative number becomes 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
pub(crate) fn whole_up(value: f64) -> u64 {
    // An excess over a whole number that is only a rounding error must not count.
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
        assert_eq!(frames.on_link(), BitsPerSecond(488_281 * 8 * 1044));
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
