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
//! until the next daemon is ready. [`penstock_dataplane::port::kept`] says what remains of them if
//! that start fails. If the daemon has no service manager, or if the store refuses a descriptor,
//! the sessions end, and the guests connect again.

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
/// fails before a session continues, the next start finds the session again.
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

/// Stores the sessions again after the ports took them and a later step of the start failed. A
/// service manager that starts the daemon again keeps its store meanwhile
/// (`FileDescriptorStorePreserve=` in systemd.service(5)).
pub(super) fn hand_back(host: &Host, notifier: &Notifier) {
    if !notifier.has_manager() {
        return;
    }
    // The carriers of the sessions are empty now, and those of TAP interfaces are stored again.
    clear(notifier);
    if let Err(error) = hand_over(host, notifier) {
        tracing::warn!("the sessions are not kept: {error}");
    }
}

/// Ends the ports and stores their sessions for the next process. The caller then shuts the host
/// down.
///
/// # Errors
/// Returns an error if a worker has ended.
pub(super) fn hand_over(host: &Host, notifier: &Notifier) -> Result<(), ApiError> {
    let passage = match notifier.passage(STORE_LIMIT) {
        Ok(passage) => passage,
        Err(error) => {
            tracing::warn!("no session is kept: the service manager cannot be reached: {error}");
            return Ok(());
        }
    };
    let mut stored = 0;
    host.hand_over(&mut |kept| {
        let port = kept.port().to_owned();
        // A hang-up of the carrier's other end is no reason to close the carrier (`FDPOLL=0`).
        let state = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={NAME}");
        let passed = kept.seal().and_then(|carrier| passage.pass(&state, &carrier));
        match passed {
            Ok(()) => stored += 1,
            Err(error) => tracing::warn!(port, "the session is not kept: {error}"),
        }
    })?;
    if stored > 0 {
        // The manager knows the sender of a message only while the sender exists.
        passage.wait_until_read();
        tracing::info!(ports = stored, "sessions stored for the next process");
    }
    Ok(())
}
