//! Names the feature bits of virtio-net (virtio 1.2 §5.1.3 and §6).

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

/// A set of virtio feature bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, serde::Serialize, serde::Deserialize)]
pub struct Features(
    /// Bits of the set, with the bit numbers of virtio.
    pub u64,
);

impl Features {
    pub const NONE: Self = Self(0);
    /// The device accepts frames with a partial checksum.
    pub const CSUM: Self = Self(1 << 0);
    /// The driver accepts frames with a partial checksum.
    pub const GUEST_CSUM: Self = Self(1 << 1);
    /// The driver accepts TCP/IPv4 segments larger than the MTU.
    pub const GUEST_TSO4: Self = Self(1 << 7);
    /// The driver accepts TCP/IPv6 segments larger than the MTU.
    pub const GUEST_TSO6: Self = Self(1 << 8);
    /// The device accepts TCP/IPv4 segments larger than the MTU.
    pub const HOST_TSO4: Self = Self(1 << 11);
    /// The device accepts TCP/IPv6 segments larger than the MTU.
    pub const HOST_TSO6: Self = Self(1 << 12);
    /// A received frame may span several buffers.
    pub const MRG_RXBUF: Self = Self(1 << 15);
    /// The driver can announce its guest to the network after a migration.
    pub const GUEST_ANNOUNCE: Self = Self(1 << 21);
    /// The device may have more than one queue pair.
    pub const MQ: Self = Self(1 << 22);
    /// A feature of vhost: the device logs its writes.
    pub const LOG_ALL: Self = Self(1 << 26);
    /// A frame may have any descriptor layout (legacy devices).
    pub const ANY_LAYOUT: Self = Self(1 << 27);
    /// Descriptors may refer to indirect tables.
    pub const INDIRECT_DESC: Self = Self(1 << 28);
    /// Notifications use event indices instead of flags.
    pub const EVENT_IDX: Self = Self(1 << 29);
    /// A feature of vhost-user: protocol features can be negotiated.
    pub const PROTOCOL: Self = Self(1 << 30);
    /// The device conforms to virtio 1.0 or later.
    pub const VERSION_1: Self = Self(1 << 32);
    /// The device has packed rings.
    pub const RING_PACKED: Self = Self(1 << 34);
    /// The device uses buffers in the order in which they were made available.
    pub const IN_ORDER: Self = Self(1 << 35);

    /// The driver accepts UDP/IPv4 segments larger than the MTU.
    pub const GUEST_USO4: Self = Self(1 << 54);
    /// The driver accepts UDP/IPv6 segments larger than the MTU.
    pub const GUEST_USO6: Self = Self(1 << 55);
    /// The device accepts UDP segments larger than the MTU.
    pub const HOST_USO: Self = Self(1 << 56);

    /// Offloads of UDP segmentation in both directions (virtio 1.3).
    pub const USO: Self = Self(Self::GUEST_USO4.0 | Self::GUEST_USO6.0 | Self::HOST_USO.0);
    /// Offloads of checksums and of TCP segmentation in both directions.
    pub const OFFLOADS: Self = Self(
        Self::CSUM.0
            | Self::GUEST_CSUM.0
            | Self::GUEST_TSO4.0
            | Self::GUEST_TSO6.0
            | Self::HOST_TSO4.0
            | Self::HOST_TSO6.0,
    );
    /// Features that a polling guest without offloads uses.
    pub const BASIC: Self = Self(
        Self::VERSION_1.0
            | Self::MRG_RXBUF.0
            | Self::ANY_LAYOUT.0
            | Self::INDIRECT_DESC.0
            | Self::IN_ORDER.0,
    );

    /// Whether this set contains every feature of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the features of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the feature with the given name of the virtio specification. The case of letters in
    /// `name` does not matter, and `-` means `_`; `None` if the name is unknown.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase().replace('-', "_");
        if name == "offloads" {
            return Some(Self::OFFLOADS);
        }
        NAMES.iter().find(|(_, known)| *known == name).map(|(bit, _)| *bit)
    }
}

const NAMES: &[(Features, &str)] = &[
    (Features::CSUM, "csum"),
    (Features::GUEST_CSUM, "guest_csum"),
    (Features::GUEST_TSO4, "guest_tso4"),
    (Features::GUEST_TSO6, "guest_tso6"),
    (Features::HOST_TSO4, "host_tso4"),
    (Features::HOST_TSO6, "host_tso6"),
    (Features::MRG_RXBUF, "mrg_rxbuf"),
    (Features::GUEST_ANNOUNCE, "guest_announce"),
    (Features::MQ, "mq"),
    (Features::LOG_ALL, "log_all"),
    (Features::ANY_LAYOUT, "any_layout"),
    (Features::INDIRECT_DESC, "indirect_desc"),
    (Features::EVENT_IDX, "event_idx"),
    (Features::PROTOCOL, "protocol"),
    (Features::VERSION_1, "version_1"),
    (Features::RING_PACKED, "ring_packed"),
    (Features::IN_ORDER, "in_order"),
    (Features::GUEST_USO4, "guest_uso4"),
    (Features::GUEST_USO6, "guest_uso6"),
    (Features::HOST_USO, "host_uso"),
];

impl BitOr for Features {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Features {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Features {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut between = "";
        for (bit, name) in NAMES {
            if rest & bit.0 != 0 {
                write!(f, "{between}{name}")?;
                rest &= !bit.0;
                between = "+";
            }
        }
        if rest != 0 || self.0 == 0 {
            write!(f, "{between}{rest:#x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_bits_show_as_numbers() {
        for (bit, name) in NAMES {
            assert_eq!(Features::by_name(name), Some(*bit));
            assert_eq!(bit.to_string(), *name);
        }
        assert_eq!((Features::MQ | Features(1 << 60)).to_string(), "mq+0x1000000000000000");
        assert_eq!(Features::by_name("EVENT-IDX"), Some(Features::EVENT_IDX));
        assert_eq!(Features::by_name("nonsense"), None);
    }
}
