//! Keeps the last events in memory, so that an operator can read them without the log.
//!
//! The log contains all events of the controller, and metrics count the events.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Stamp;

/// Maximum number of events that the controller keeps in memory.
pub const EVENTS_MAX: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The event is part of the controller's normal operation.
    Info,
    /// The event is a problem that an operator should examine.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event, counted from 1 since the controller's start.
    pub number: u64,
    /// Time of the event in milliseconds since 1970, by the clock of the controller's machine.
    pub at_ms: u64,
    /// Stamp (term and number) of the controller's latest decision when the event happened.
    pub stamp: Stamp,
    pub severity: Severity,
    /// Kind of event, such as `promoted`, `refused` or `drift`.
    pub kind: String,
    /// Name of the tenant, host or switch that the event concerns. The name is empty if the event
    /// concerns the controller itself.
    pub subject: String,
    pub text: String,
}

/// The last [`EVENTS_MAX`] events of the controller.
#[derive(Clone, Debug, Default)]
pub struct Events {
    list: VecDeque<Event>,
    next: u64,
}

impl Events {
    /// Adds an event to the list in memory and logs the event.
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

/// Returns the milliseconds since 1970, or 0 if the clock shows a time before 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "an event contains the time of day")]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
