//! Hands the ports' sessions over to the next process through the service manager's descriptor
//! store.
//!
//! # Source
//!
//! sd_pid_notify_with_fds(3): a message with `FDSTORE=1` and descriptors lets the service manager
//! keep the descriptors under the name `FDNAME`. The service manager passes the stored descriptors
//! to the next start of the service (sd_listen_fds(3)), and closes them if the service stays
//! stopped. `FileDescriptorStoreMax=` of the unit limits their number.
//!
//! # Approach
//!
//! The daemon stores one descriptor for each port ([`Kept::seal`]). The store keeps the descriptors
//! and their state until the next daemon is ready ([`penstock_dataplane::port::kept`]). A daemon
//! that crashes or is killed before this moment leaves the sessions to the start after it. If the
//! daemon has no service manager, or if the store refuses a descriptor, the sessions end, and the
//! guests connect again.

use std::time::Duration;

use penstock_control::host::{ApiError, Host};
use penstock_dataplane::port::kept::Kept;
use penstock_dataplane::port::passing;

use super::notify::Notifier;

/// Name of the stored descriptors.
const NAME: &str = "penstock-port";
/// Longest wait for a service manager that reads slowly, for all descriptors together. The wait is
/// a part of the daemon's time to stop.
const STORE_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for room in the queue of the service manager, while the daemon starts.
const CLEAR_LIMIT: Duration = Duration::from_millis(200);

/// Reads the ports' sessions that the former process stored. They stay in the store. If the start
/// ends before the daemon is ready, the next start finds the sessions again.
pub(super) fn take() -> Vec<Kept> {
    let stored = passing::from_service_manager().into_iter().filter(|(name, _)| name == NAME);
    let opened = stored.filter_map(|(_, carrier)| match Kept::open(carrier) {
        Ok(kept) => Some(kept),
        Err(error) => {
            tracing::warn!("a stored session does not continue: {error}");
            None
        }
    });
    opened.collect()
}

/// Removes the sessions of the former process from the store, after the ports took them.
pub(super) fn clear(notifier: &Notifier) {
    let state = format!("FDSTOREREMOVE=1\nFDNAME={NAME}");
    // A lost message would leave the carriers in the store for ever.
    let told = notifier.passage(CLEAR_LIMIT).and_then(|passage| passage.tell(&state));
    if told.is_err() {
        notifier.send(&state);
    }
}

/// Ends the ports after a step of the start failed, so that the sessions in the store stay alive. A
/// service manager that starts the daemon again keeps its store meanwhile
/// (`FileDescriptorStorePreserve=` in systemd.service(5)).
pub(super) fn hand_back(host: &Host, notifier: &Notifier) {
    if !notifier.has_manager() {
        return;
    }
    // The store has the addresses from before the start.
    let is_new = |kept: &Kept| !kept.is_stored() && !kept.port().is_empty();
    if let Err(error) = store(host, notifier, is_new) {
        tracing::warn!("the sessions are not kept: {error}");
    }
}

/// Ends the ports and stores their sessions for the next process. The caller then shuts the host
/// down.
///
/// # Errors
/// Returns an error if a worker has ended.
pub(super) fn hand_over(host: &Host, notifier: &Notifier) -> Result<(), ApiError> {
    store(host, notifier, |_| true)
}

/// Ends the ports and stores those of their states that `is_new` says the store lacks. If the
/// service manager cannot be reached, only ends the ports, so that sessions in the store stay
/// alive.
fn store(host: &Host, notifier: &Notifier, is_new: impl Fn(&Kept) -> bool) -> Result<(), ApiError> {
    let unreached = |error: &std::io::Error| {
        tracing::warn!("no session is stored: the service manager cannot be reached: {error}");
    };
    let passage = notifier.passage(STORE_LIMIT).inspect_err(unreached).ok();
    let mut stored = 0;
    host.hand_over(&mut |kept| {
        let Some(passage) = passage.as_ref().filter(|_| is_new(&kept)) else { return };
        let port = kept.port().to_owned();
        // A hang-up of the carrier's other end is no reason to close the carrier (`FDPOLL=0`).
        let state = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={NAME}");
        let passed = kept.seal().and_then(|carrier| passage.pass(&state, &carrier));
        match passed {
            Ok(()) => stored += 1,
            Err(error) => tracing::warn!(port, "the session is not kept: {error}"),
        }
    })?;
    if let Some(passage) = passage.filter(|_| stored > 0) {
        // The manager knows the sender of a message only while the sender exists.
        passage.wait_until_read();
        tracing::info!(ports = stored, "sessions stored for the next process");
    }
    Ok(())
}
