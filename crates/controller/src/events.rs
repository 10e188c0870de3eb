//! Keeps the last events in memory for operators.
//!
//! Metrics count events, and logs keep all events. This list is where an operator looks first.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Stamp;

/// Maximum number of events in memory.
pub const EVENTS_MAX: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The event is part of normal operation.
    Info,
    /// An operator should look at the event.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event, from 1 in ascending order.
    pub number: u64,
    /// Milliseconds since 1970 by this machine's clock.
    pub at_ms: u64,
    /// Stamp of the decision in force.
    pub stamp: Stamp,
    pub severity: Severity,
    /// Kind, such as `promoted`, `refused` or `drift`.
    pub kind: String,
    /// Name of a tenant, host or switch. Empty for the controller itself.
    pub subject: String,
    pub text: String,
}

/// The last [`EVENTS_MAX`] events.
#[derive(Clone, Debug, Default)]
pub struct Events {
    list: VecDeque<Event>,
    next: u64,
}

impl Events {
    /// Adds an event and logs it.
    pub fn push(
        &mut self,
        stamp: Stamp,
        severity: Severity,
        kind: &str,
        subject: &str,
        text: &str,
    ) {
        self.next += 1;
        match severity {
            Severity::Info => tracing::info!(%stamp, kind, subject, "{text}"),
            Severity::Warning => tracing::warn!(%stamp, kind, subject, "{text}"),
        }
        if self.list.len() == EVENTS_MAX {
            self.list.pop_front();
        }
        self.list.push_back(Event {
            number: self.next,
            at_ms: now_ms(),
            stamp,
            severity,
            kind: kind.to_owned(),
            subject: subject.to_owned(),
            text: text.to_owned(),
        });
    }

    /// Returns all events in memory, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        self.list.iter()
    }
}

/// Returns the milliseconds since 1970. Returns 0 if the clock is before 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "people want to know at what time of day it was")]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
