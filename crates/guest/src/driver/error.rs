//! Defines the errors of the virtio-net driver.

use std::io;
use std::path::PathBuf;

use super::features::Features;

/// Reason for which a device was not connected to the switch, or a frame was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The ring size is not allowed by virtio or by this driver.
    #[error("ring size {size} is not a power of two between 2 and {max}")]
    RingSize {
        size: u16,
        /// Maximum allowed ring size, in descriptors.
        max: u16,
    },
    /// A configuration value is out of range.
    #[error("{what} is {value}, the range is {low}..={high}")]
    Range {
        what: &'static str,
        value: usize,
        /// Smallest value that the setting `what` may have.
        low: usize,
        /// Largest value that the setting `what` may have.
        high: usize,
    },
    /// The switch did not connect or accept a connection in time.
    #[error("no peer on {socket} within {waited_ms} ms")]
    NoPeer {
        /// Path of the vhost-user socket.
        socket: PathBuf,
        /// Time that the driver waited, in milliseconds.
        waited_ms: u128,
    },
    #[error("{what}")]
    Os {
        /// Operation of the driver that failed.
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// The switch refused or aborted a vhost-user message.
    #[error("vhost-user message {message} failed")]
    Protocol {
        /// Name of the vhost-user message.
        message: &'static str,
        #[source]
        source: vhost::Error,
    },
    /// The switch does not offer required features.
    #[error("the switch does not offer {missing}")]
    Missing {
        /// Required features that the switch did not offer.
        missing: Features,
    },
    /// The switch supports fewer queue pairs than the configuration wants.
    #[error("the switch has {offered} queue pairs, and the guest wants {wanted}")]
    QueuePairs { offered: u64, wanted: u16 },
    /// A frame is larger than a transmit slot.
    #[error("a frame of {frame} bytes does not fit a slot of {slot} bytes")]
    FrameTooLong {
        /// Size of the frame in bytes, including the header.
        frame: usize,
        slot: usize,
    },
    /// The ring has too few free descriptors.
    #[error("the ring has {free} free descriptors, {needed} are needed")]
    RingFull {
        free: usize,
        /// Number of descriptors that the frame needs.
        needed: usize,
    },
    /// The operation needs a connection to the switch, but the device has none.
    #[error("the driver is not connected to the switch")]
    NotConnected,
}

impl DriverError {
    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { what, source }
    }

    pub(crate) fn errno(what: &'static str) -> impl FnOnce(nix::errno::Errno) -> Self {
        move |source| Self::Os { what, source: source.into() }
    }

    pub(crate) fn protocol(message: &'static str) -> impl FnOnce(vhost::Error) -> Self {
        move |source| Self::Protocol { message, source }
    }
}
