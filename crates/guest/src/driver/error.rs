//! What can go wrong between a driver and the switch.

use std::io;
use std::path::PathBuf;

use super::features::Features;

/// Why a device could not be attached or a frame not be queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// A ring size that virtio or this driver does not allow.
    #[error("ring size {size} is not a power of two between 2 and {max}")]
    RingSize {
        /// The size asked for.
        size: u16,
        /// The largest size allowed.
        max: u16,
    },
    /// A configuration value out of its range.
    #[error("{what} is {value}, the range is {low}..={high}")]
    Range {
        /// The setting.
        what: &'static str,
        /// The value asked for.
        value: usize,
        /// Least allowed.
        low: usize,
        /// Most allowed.
        high: usize,
    },
    /// The switch's socket was not there in time.
    #[error("no peer on {socket} within {waited_ms} ms")]
    NoPeer {
        /// The vhost-user socket.
        socket: PathBuf,
        /// How long was waited.
        waited_ms: u128,
    },
    /// A system call failed.
    #[error("{what}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The switch refused or broke off a vhost-user message.
    #[error("vhost-user message {message} failed")]
    Protocol {
        /// The message.
        message: &'static str,
        /// The protocol crate's error.
        #[source]
        source: vhost::Error,
    },
    /// The switch does not offer what the caller cannot do without.
    #[error("the switch does not offer {missing}")]
    Missing {
        /// The features that are required and were not offered.
        missing: Features,
    },
    /// The switch has fewer queue pairs than asked for.
    #[error("the switch has {offered} queue pairs, {wanted} were asked for")]
    QueuePairs {
        /// What the switch offers.
        offered: u64,
        /// What was asked for.
        wanted: u16,
    },
    /// A frame does not fit its slot.
    #[error("a frame of {frame} bytes does not fit a slot of {slot} bytes")]
    FrameTooLong {
        /// Bytes of frame and header.
        frame: usize,
        /// Bytes of the slot.
        slot: usize,
    },
    /// There are not enough free descriptors.
    #[error("the ring has {free} free descriptors, {needed} are needed")]
    RingFull {
        /// Free descriptors.
        free: usize,
        /// Descriptors the frame needs.
        needed: usize,
    },
    /// The operation needs a session and there is none.
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
