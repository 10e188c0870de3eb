//! Explains to the operator why a session ended.
//!
//! # Problem
//! A driver that does not accept the offered features hangs up, and the protocol gives it no way to
//! say why. QEMU hangs up if its guest has more queue pairs than the port, or uses features that
//! the port no longer offers.
//!
//! # Approach
//! If a driver read the features and hung up at once without acknowledging any, it did not accept
//! them. The message then names what may be missing: queue pairs and features.

use vhost::vhost_user::{Error, Result};

use super::super::halt::Halted;
use super::{
    F_CSUM, F_GUEST_CSUM, F_GUEST_TSO4, F_GUEST_TSO6, F_HOST_TSO4, F_HOST_TSO6, Session,
    feature_names, refuse,
};
use crate::port::ring::{RING_SIZE_MAX, RingError};
use crate::worker::SleepCause;

/// All features that depend on the configuration.
const OFFLOADS: u64 =
    F_CSUM | F_GUEST_CSUM | F_GUEST_TSO4 | F_GUEST_TSO6 | F_HOST_TSO4 | F_HOST_TSO6;

/// A request of the driver that is refused.
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
        "ring {index}: the driver gives it {size} descriptors, the limit is {RING_SIZE_MAX}; use 1 \
         to {RING_SIZE_MAX}"
    )]
    RingSize { index: u32, size: u32 },
    #[error(
        "the driver announces {regions} memory regions and sends {files} descriptors; send one for \
         each"
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
        "the driver removes {len} bytes of memory at {guest:#x}, which is not one of its regions"
    )]
    NoRegion { guest: u64, len: u64 },
    #[error("the driver shortened a file behind its memory, its log or its inflight region")]
    Shortened,
    #[error(
        "the driver made the worker wait for {} ms {}; its port is stopped for a while",
        .0.slept.0 / 1_000_000,
        match .0.cause {
            SleepCause::Memory | SleepCause::Gone =>
                "by its memory: it punched holes into it, or the host swaps it out",
            SleepCause::Call => "by a call descriptor that is full and blocks",
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

/// Features by name and as a number.
fn words(features: u64) -> String {
    let names = feature_names(features).join(", ");
    if names.is_empty() { format!("{features:#x}") } else { format!("{names} ({features:#x})") }
}

impl Session {
    /// An error if the driver shortened a mapped file, or the worker stopped the port.
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

    /// Why the session failed; `None` if it did not fail. `at_once` says that this session and the
    /// one before it ended at once, because the driver refused the features.
    pub(in super::super) fn failure(&self, end: &Error, at_once: bool) -> Option<String> {
        match end {
            Error::Disconnected | Error::SocketBroken(_) => {}
            Error::ReqHandlerError(error) => return Some(error.to_string()),
            error => return Some(format!("the driver broke the protocol: {error}")),
        }
        (at_once && self.was_refused()).then(|| self.refusal())
    }

    /// Whether the driver read the offered features and acknowledged none.
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
                ", or it uses these features: set `offloads` back or restart the VM".to_owned(),
            ),
        };
        format!(
            "the driver hangs up when it sees what the port offers: {pairs}{features}; \
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
