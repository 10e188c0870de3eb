//! Explains to the operator why a vhost-user session ended.
//!
//! # Problem
//! A driver that does not accept the offered features hangs up, and the vhost-user protocol has no
//! message for the reason. QEMU hangs up if its guest has more queue pairs than the port, or uses
//! features that the port no longer offers.
//!
//! # Approach
//! If a driver reads the features and hangs up at once without acknowledging any feature, the
//! driver did not accept the features. If the driver did not accept the features, the log message
//! names possible causes: missing queue pairs and missing features.

use vhost::vhost_user::{Error, Result};

use super::super::halt::Halted;
use super::{
    F_CSUM, F_GUEST_CSUM, F_GUEST_TSO4, F_GUEST_TSO6, F_GUEST_USO4, F_GUEST_USO6, F_HOST_TSO4,
    F_HOST_TSO6, F_HOST_USO, Session, feature_names, refuse,
};
use crate::port::ring::{RING_SIZE_MAX, RingError};
use crate::wake::Cause as SleepCause;

/// All virtio features that a port offers only if its configuration has the offload.
const OFFLOADS: u64 = F_CSUM
    | F_GUEST_CSUM
    | F_GUEST_TSO4
    | F_GUEST_TSO6
    | F_HOST_TSO4
    | F_HOST_TSO6
    | F_GUEST_USO4
    | F_GUEST_USO6
    | F_HOST_USO;

/// Reason why the session refuses a driver's request, or why the session ends.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum SessionError {
    #[error(
        "the driver names ring {index}, the port has {} ({}); give the port more `queues` or the \
         guest fewer",
        2 * pairs, queue_pairs(*pairs)
    )]
    Ring { index: u32, pairs: u16 },
    #[error(
        "the driver acknowledges {}, which the port does not offer; set `offloads` and `queues` \
         back or restart the VM",
        words(*.0)
    )]
    NotOffered(u64),
    #[error(
        "ring {index}: the driver gives the ring {size} descriptors, the limit is {RING_SIZE_MAX}; \
         use 1 to {RING_SIZE_MAX}"
    )]
    RingSize { index: u32, size: u32 },
    #[error(
        "the driver announces {regions} memory regions and sends {files} descriptors; send one \
         descriptor for each region"
    )]
    Descriptors { regions: usize, files: usize },
    #[error(
        "inflight region: the driver wants {queues} queues of {size} descriptors, the port has \
         {rings} of at most {RING_SIZE_MAX}; give the port more `queues` or the guest fewer"
    )]
    Inflight { queues: u16, size: u16, rings: usize },
    #[error("the driver's {0} descriptor is not an eventfd")]
    NotEvent(&'static str),
    #[error(
        "the driver removes {len} bytes of memory at {guest:#x}, which is not one of the driver's \
         memory regions"
    )]
    NoRegion { guest: u64, len: u64 },
    #[error("the driver shortened the file of its memory, dirty log or inflight region")]
    Shortened,
    #[error(
        "the driver made the worker wait for {} ms {}; the switch stops the driver's \
         port for a while",
        .0.slept.0 / 1_000_000,
        match .0.cause {
            SleepCause::Memory | SleepCause::Gone =>
                "for a page of the guest's memory: the driver punched holes into the memory, or \
                 the host swaps the memory out",
            SleepCause::Call => "because the driver's call descriptor is full and blocks",
        }
    )]
    Halted(Halted),
    #[error("ring {ring}: {source}")]
    Start { ring: usize, source: RingError },
    #[error("the driver's new memory table lacks the memory of the running ring {ring}: {source}")]
    Memory { ring: usize, source: RingError },
}

fn queue_pairs(pairs: u16) -> String {
    format!("{pairs} queue pair{}", if pairs == 1 { "" } else { "s" })
}

/// Text for a set of virtio features: the features' names, and the set as a hexadecimal number.
fn words(features: u64) -> String {
    let names = feature_names(features).join(", ");
    if names.is_empty() { format!("{features:#x}") } else { format!("{names} ({features:#x})") }
}

impl Session {
    /// Returns an error if the driver shortened a mapped file, or if the worker stopped the port.
    pub(in super::super) fn check_alarm(&self) -> Result<()> {
        if self.alarm().read().is_err() {
            return Ok(());
        }
        self.halted.set(self.halt.take());
        Err(refuse(self.halted.get().map_or(SessionError::Shortened, SessionError::Halted)))
    }

    /// Whether the session ended because the worker stopped the port.
    pub(in super::super) const fn was_halted(&self) -> bool {
        self.halted.get().is_some()
    }

    /// Returns the reason why the session failed, or `None` if the session did not fail. `at_once`
    /// says that this session and the previous session ended at once, because the driver refused
    /// the features.
    pub(in super::super) fn failure(&self, end: &Error, at_once: bool) -> Option<String> {
        match end {
            Error::Disconnected | Error::SocketBroken(_) => {}
            Error::ReqHandlerError(error) => return Some(error.to_string()),
            error => return Some(format!("the driver broke the protocol: {error}")),
        }
        (at_once && self.was_refused()).then(|| self.refusal())
    }

    /// Whether the driver read the offered features and acknowledged no feature.
    pub(in super::super) const fn was_refused(&self) -> bool {
        self.has_offered && self.features == 0
    }

    fn refusal(&self) -> String {
        let pairs = queue_pairs(self.queue_pairs);
        let missing = OFFLOADS & !self.offered;
        let (features, remedy) = match missing {
            0 => (String::new(), String::new()),
            _ => (
                format!(" without {}", words(missing)),
                ", and if the guest uses the missing features, set `offloads` back or restart the \
                 VM"
                .to_owned(),
            ),
        };
        format!(
            "the driver disconnects when it reads the port's offer of {pairs}{features}; \
             if the guest has more queue pairs, give the port more `queues`{remedy}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_told_in_words() {
        assert_eq!(
            words(0x1980),
            "guest-tso4, guest-tso6, host-tso4, host-tso6 (0x1980)",
            "what QEMU misses when `tso` is switched off under its guest"
        );
        assert_eq!(words(1 << 60), "0x1000000000000000");
        let error = SessionError::Ring { index: 2, pairs: 1 }.to_string();
        assert_eq!(
            error,
            "the driver names ring 2, the port has 2 (1 queue pair); give the port more \
             `queues` or the guest fewer"
        );
    }
}
