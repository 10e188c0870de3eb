//! Hands the ports over to the next process of the switch.
//!
//! # Problem
//! While ports are handed over, no frame flows. A driver can be in the middle of a message, or read
//! no answers, so that its session does not end. One such driver must neither delay the others for
//! long nor end their sessions. The time until the end of the daemon is limited too.
//!
//! # Approach
//! All sessions begin to end at the same time, and have one deadline together. The caller gets each
//! session as soon as it has ended, so a session is safe even if another one hangs later. At the
//! deadline, the host hangs up all remaining sessions. [`Host::shutdown`] waits for their threads.

use std::sync::Arc;

use penstock_dataplane::port::kept::Kept;
use penstock_dataplane::tsc::raw_clock;
use penstock_units::Nanos;

use super::apply::{lock, worker_failed};
use super::data_path::Link;
use super::error::ApiError;
use super::running::Host;

/// Longest wait for the end of all sessions together.
const KEEP_LIMIT: Nanos = Nanos::from_millis(200);
/// Milliseconds between two looks at the sessions.
const PAUSE_MS: u8 = 1;

impl Host {
    /// Ends the ports, and passes to `store` what the next process needs to continue them: the
    /// sessions of vhost-user ports, the interfaces of TAP ports, and the learned addresses. The
    /// caller then calls [`Self::shutdown`]. Does nothing after [`Self::shutdown`].
    ///
    /// # Errors
    /// Returns an error if a worker has ended.
    pub fn hand_over(&self, store: &mut dyn FnMut(Kept)) -> Result<(), ApiError> {
        // No change may attach or detach a port meanwhile.
        let changing = lock(&self.changing);
        if changing.stopped {
            return Ok(());
        }
        // The list of addresses may be long, so it is made while frames still flow.
        let addresses = self.kept_addresses();
        // Every port that goes would otherwise drop the frames of the ports that go later.
        self.core.switch.pause().map_err(worker_failed)?;
        let tsc = self.core.switch.kept_tsc();
        let mut store = |kept: Kept| store(kept.with_tsc(tsc));
        if let Some(addresses) = addresses {
            store(addresses);
        }
        let links = lock(&self.core.shared).attached();
        keep_all(links, raw_clock, &mut store);
        Ok(())
    }

    fn kept_addresses(&self) -> Option<Kept> {
        let failed = |error: &dyn core::fmt::Display| {
            tracing::warn!("addresses will be learned again: {error}");
        };
        let addresses = self.core.learned().inspect_err(|error| failed(error)).ok()?;
        if addresses.is_empty() {
            return None;
        }
        Kept::of_addresses(&addresses).inspect_err(|error| failed(error)).ok()
    }
}

/// Ends the ports at the same time, and passes the state of each one to `store` as soon as the port
/// has ended. Gives up the ports that have not ended after [`KEEP_LIMIT`].
fn keep_all(
    mut left: Vec<(String, Arc<dyn Link>)>,
    clock: impl Fn() -> Nanos,
    store: &mut dyn FnMut(Kept),
) {
    left.iter().for_each(|(_, link)| link.begin_to_keep());
    let deadline = clock() + KEEP_LIMIT;
    let mut keep_ended = |left: &mut Vec<(String, Arc<dyn Link>)>, wait_ms| {
        left.retain(|(name, link)| {
            let has_ended = link.has_ended(wait_ms);
            if has_ended && let Some(kept) = link.keep(name) {
                store(kept);
            }
            !has_ended
        });
    };
    loop {
        keep_ended(&mut left, 0);
        let Some((_, first)) = left.first() else { return };
        if clock() >= deadline {
            break;
        }
        let _ = first.has_ended(PAUSE_MS);
    }
    for (name, link) in &left {
        let what = "its driver neither ended its message nor read its answers in time";
        tracing::warn!(port = name, "the session may end: {what}");
        link.give_up();
    }
    // A session may have ended at the last moment.
    keep_ended(&mut left, PAUSE_MS);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    use penstock_dataplane::port::{AttachState, AttachStatus};

    use super::*;

    /// Calls of all links in order.
    type Calls = Arc<Mutex<Vec<String>>>;

    struct Stuck {
        name: &'static str,
        calls: Calls,
        /// Time at which the link ends by itself.
        ends: Nanos,
        clock: Arc<AtomicU64>,
        is_given_up: AtomicBool,
    }

    impl Stuck {
        fn call(&self, call: &str) {
            lock(&self.calls).push(format!("{call} {}", self.name));
        }
    }

    impl Link for Stuck {
        fn status(&self) -> AttachStatus {
            AttachStatus {
                state: AttachState::Up,
                error: None,
                features: Vec::new(),
                ring_sizes: Vec::new(),
                queues_up: 1,
            }
        }

        fn begin_to_keep(&self) {
            self.call("begin");
        }

        fn has_ended(&self, wait_ms: u8) -> bool {
            self.clock.fetch_add(Nanos::from_millis(wait_ms.into()).0, Relaxed);
            self.clock.load(Relaxed) >= self.ends.0 || self.is_given_up.load(Relaxed)
        }

        fn give_up(&self) {
            self.call("give up");
            self.is_given_up.store(true, Relaxed);
        }

        fn keep(&self, _: &str) -> Option<Kept> {
            self.call("keep");
            (!self.is_given_up.load(Relaxed)).then(|| Kept::of_addresses(&[]).unwrap())
        }
    }

    #[test]
    fn stuck_ports_have_one_deadline_and_lose_only_their_own_sessions() {
        let (calls, clock) = (Calls::default(), Arc::new(AtomicU64::new(0)));
        let never = Nanos::from_secs(1_000);
        let ends = [("a", never), ("b", Nanos::ZERO), ("c", never), ("d", Nanos::from_millis(90))];
        let link = |(name, ends): (&'static str, Nanos)| {
            let (calls, clock) = (Arc::clone(&calls), Arc::clone(&clock));
            let is_given_up = AtomicBool::new(false);
            let link: Arc<dyn Link> = Arc::new(Stuck { name, calls, ends, clock, is_given_up });
            (name.to_owned(), link)
        };
        let mut stored = 0;
        let now = || Nanos(clock.load(Relaxed));
        keep_all(ends.map(link).into(), now, &mut |_| {
            lock(&calls).push("store".to_owned());
            stored += 1;
        });
        let expected = [
            ["begin a", "begin b", "begin c", "begin d"].as_slice(),
            &["keep b", "store", "keep d", "store"],
            &["give up a", "give up c", "keep a", "keep c"],
        ];
        assert_eq!(*lock(&calls), expected.concat());
        assert_eq!(stored, 2);
        assert!(now() < KEEP_LIMIT + Nanos::from_millis(10), "{:?}", now());
    }
}
