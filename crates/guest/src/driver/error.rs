//! Errors between a driver and the switch.

use std::io;
use std::path::PathBuf;

use super::features::Features;

/// Reason for which a device was not attached or a frame was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The ring size is not allowed by virtio or by this driver.
    #[error("ring size {size} is not a power of two between 2 and {max}")]
    RingSize {
        size: u16,
        /// Maximum allowed size, in descriptors.
        max: u16,
    },
    /// A configuration value is out of range.
    #[error("{what} is {value}, the range is {low}..={high}")]
    Range {
        /// Name of the setting.
        what: &'static str,
        value: usize,
        /// Minimum allowed value.
        low: usize,
        /// Maximum allowed value.
        high: usize,
    },
    /// The switch's socket did not appear in time.
    #[error("no peer on {socket} within {waited_ms} ms")]
    NoPeer {
        /// Path of the vhost-user socket.
        socket: PathBuf,
        /// Milliseconds of waiting.
        waited_ms: u128,
    },
    #[error("{what}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// The switch refused or aborted a vhost-user message.
    #[error("vhost-user message {message} failed")]
    Protocol {
        /// Name of the message.
        message: &'static str,
        #[source]
        source: vhost::Error,
    },
    /// The switch does not offer required features.
    #[error("the switch does not offer {missing}")]
    Missing {
        /// The required features that were not offered.
        missing: Features,
    },
    /// The switch has fewer queue pairs than wanted.
    #[error("the switch has {offered} queue pairs, and the guest wants {wanted}")]
    QueuePairs { offered: u64, wanted: u16 },
    /// A frame does not fit its slot.
    #[error("a frame of {frame} bytes does not fit a slot of {slot} bytes")]
    FrameTooLong {
        /// Bytes of frame and header.
        frame: usize,
        slot: usize,
    },
    /// The ring has too few free descriptors.
    #[error("the ring has {free} free descriptors, {needed} are needed")]
    RingFull {
        free: usize,
        /// Descriptors that the frame needs.
        needed: usize,
    },
    /// The operation needs a session, and there is none.
    #[error("not connected to the switch")]
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
