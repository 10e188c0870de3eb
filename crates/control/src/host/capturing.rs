//! Captures of frames at a port.
//!
//! # Approach
//!
//! Each worker has a part of the capture. The caller of [`Host::capture_next`] takes what the
//! workers captured, several times per second, and the frames of all workers are then put in the
//! order of their times. The rule that a frame matched is found here, so that the workers need not
//! remember it.
//!
//! A port number may belong to another port after the captured port was removed. A capture
//! therefore ends as soon as its port has another number, and does not return the frames that it
//! took last.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;

use penstock_dataplane::capture::{
    BUFFER_BYTES, CAPTURES_MAX, CaptureTerms, Direction, Fate, Filter, Record, records,
};
use penstock_dataplane::headers::{FlowKey, FlowMask};
use penstock_dataplane::tsc::{CycleCounter as _, Tsc};
use penstock_units::{Cycles, PortId};

use super::apply::{lock, worker_failed};
use super::error::{ApiError, ErrorKind};
use super::running::Host;
use crate::api::{CaptureDirection, CaptureRequest, CapturedFrame, CapturedFrames, Verdict};
use crate::config;
use crate::snapshot::seen::{RuleFinder, compiled, untagged_vlan};

/// Bytes of frames in one message of a capture.
const MESSAGE_BYTES: usize = 512 << 10;
/// Bytes of a frame in a message besides the frame itself, about.
const FRAME_MORE_BYTES: usize = 256;
/// First bytes of a frame that the rules may examine.
const HEADERS_BYTES: usize = 128;
/// Limits on the number of a capture's filters, and on the length of their texts.
const FILTERS_MAX: usize = 16;
const FILTER_BYTES_MAX: usize = 4096;
/// Bytes that a capture copies of a frame if the caller gives no limit.
const WHOLE_FRAME: u32 = 1 << 18;

/// A capture that runs. [`Host::capture_end`] must be called at its end.
pub struct Capture {
    id: u64,
    port: String,
    port_id: PortId,
    spare: Vec<Vec<u8>>,
}

impl Capture {
    /// Name of the captured port.
    #[must_use]
    pub fn port(&self) -> &str {
        &self.port
    }
}

impl core::fmt::Debug for Capture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Capture").field("id", &self.id).field("port", &self.port).finish()
    }
}

impl Host {
    /// Starts a capture at a port.
    ///
    /// # Errors
    /// Returns an error if the port does not exist, if a filter is wrong, or if too many captures
    /// run.
    pub fn capture(&self, request: &CaptureRequest) -> Result<Capture, ApiError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let port = self.port_named(&request.port)?;
        let Some(port_id) = self.number_of(&port) else {
            let object = format!("port {port:?}");
            let (problem, remedy) = ("the port does not exist", "see `penstock port list`");
            return Err(ApiError::new(ErrorKind::NotFound, object, problem, remedy));
        };
        let matches = filters(&request.filters)?;
        let config = self.config();
        let untagged = config.ports.iter().find(|of| of.name == port).map_or(0, untagged_vlan);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let direction = request.direction();
        let snap_len = if request.snap_len == 0 { WHOLE_FRAME } else { request.snap_len };
        let terms = || {
            Box::new(CaptureTerms {
                id,
                port: port_id,
                received: direction != CaptureDirection::Out,
                sent: direction != CaptureDirection::In,
                drops: request.drops,
                filter: matches.clone().map(|matches| Filter::new(matches, untagged)),
                snap_len,
                clock: || Tsc.now(),
            })
        };
        if self.core.switch.capture(id, &terms).map_err(worker_failed)? {
            return Ok(Capture { id, port, port_id, spare: Vec::new() });
        }
        let problem = format!("{CAPTURES_MAX} captures run, which is the limit");
        Err(ApiError::new(ErrorKind::Conflict, "capture", problem, "end one of them first"))
    }

    /// Returns the frames that a capture took since the last call. `unix_ns` is the time of day.
    ///
    /// # Errors
    /// Returns an error if the port was removed, or if a worker has ended.
    pub fn capture_next(
        &self,
        capture: &mut Capture,
        unix_ns: u64,
    ) -> Result<Vec<CapturedFrames>, ApiError> {
        let taken = self.core.switch.capture_next(capture.id, &mut capture.spare);
        let mut buffers = taken.map_err(worker_failed)?;
        let now = Tsc.now();
        if self.number_of(&capture.port) != Some(capture.port_id) {
            let object = format!("port {:?}", capture.port);
            let (problem, remedy) = ("the port was removed", "capture at another port");
            return Err(ApiError::new(ErrorKind::NotFound, object, problem, remedy));
        }
        let mut report = CapturedFrames::default();
        for (_, tally) in &buffers {
            report.left_out += tally.left_out;
            report.lost += tally.lost;
        }
        let mut found: Vec<Record<'_>> =
            buffers.iter().flat_map(|(buffer, _)| records(buffer)).collect();
        found.sort_by_key(|record| record.at);
        let hz = self.core.switch.tsc().hz().max(1);
        let time_of = |at: Cycles| {
            let ago = u128::from(now.saturating_sub(at).0) * 1_000_000_000 / u128::from(hz);
            unix_ns.saturating_sub(u64::try_from(ago).unwrap_or(0))
        };
        let mut names = None;
        let mut messages = Vec::new();
        let mut bytes = 0;
        for record in found {
            bytes += record.bytes.len() + FRAME_MORE_BYTES;
            let names = names.get_or_insert_with(|| self.names_and_rules(capture));
            report.frames.push(names.frame(&record, time_of(record.at)));
            if bytes >= MESSAGE_BYTES {
                bytes = 0;
                messages.push(core::mem::take(&mut report));
            }
        }
        if report != CapturedFrames::default() {
            messages.push(report);
        }
        for (buffer, _) in &mut buffers {
            buffer.clear();
        }
        let whole = buffers.into_iter().filter(|(buffer, _)| buffer.capacity() >= BUFFER_BYTES);
        capture.spare.extend(whole.map(|(buffer, _)| buffer));
        Ok(messages)
    }

    /// Ends a capture.
    pub fn capture_end(&self, capture: &Capture) {
        self.core.switch.capture_end(capture.id);
    }

    fn number_of(&self, port: &str) -> Option<PortId> {
        lock(&self.core.shared).ports.get(port).map(|port| port.id)
    }

    fn names_and_rules(&self, capture: &Capture) -> Names {
        let shared = lock(&self.core.shared);
        let config = shared.config.ports.iter().find(|port| port.name == capture.port);
        let rules = config.map(|port| shared.compiler.rule_finder(port, capture.port_id));
        let ports = shared.ports.iter().map(|(name, port)| (port.id, name.clone())).collect();
        Names { ports, rules }
    }
}

/// Names for the numbers in records.
struct Names {
    ports: HashMap<PortId, String>,
    rules: Option<RuleFinder>,
}

impl Names {
    fn frame(&mut self, record: &Record<'_>, unix_ns: u64) -> CapturedFrame {
        let direction = match record.direction {
            Direction::Received => CaptureDirection::In,
            Direction::Sent => CaptureDirection::Out,
        };
        let (verdict, reason) = match record.fate {
            Fate::Forwarded => (Verdict::Forwarded, ""),
            Fate::Queued => (Verdict::Queued, ""),
            Fate::HandedOver => (Verdict::HandedOver, ""),
            Fate::Dropped(reason) => (Verdict::Dropped, reason.name()),
            Fate::Undecided | Fate::Void => (Verdict::Unknown, ""),
        };
        let received = record.direction == Direction::Received;
        let decided = !matches!(record.fate, Fate::Dropped(reason) if reason.precedes_rules());
        let whole = record.bytes.len() >= HEADERS_BYTES.min(record.len as usize);
        let rules = self.rules.as_mut().filter(|_| received && decided && whole);
        let rule = rules.and_then(|rules| rules.rule(record.bytes, record.len, record.tci));
        CapturedFrame {
            unix_ns,
            direction: direction.into(),
            queue: record.queue.0.into(),
            verdict: verdict.into(),
            reason: reason.to_owned(),
            rule: rule.unwrap_or_default().to_owned(),
            other_port: record
                .other
                .and_then(|other| self.ports.get(&other).cloned())
                .unwrap_or_default(),
            len: record.len,
            missed: record.missed,
            data: record.bytes.to_vec(),
        }
    }
}

/// Returns the keys and masks of filters, each the text of a rule's `match`. Returns `None` if
/// there is no filter.
fn filters(texts: &[String]) -> Result<Option<Vec<(FlowKey, FlowMask)>>, ApiError> {
    let invalid = |problem: String, remedy: &str| {
        Err(ApiError::new(ErrorKind::Invalid, "capture filter", problem, remedy))
    };
    if texts.is_empty() {
        return Ok(None);
    }
    if texts.len() > FILTERS_MAX {
        let problem = format!("it has {} alternatives, the limit is {FILTERS_MAX}", texts.len());
        return invalid(problem, "capture more and filter the file");
    }
    let mut keys = Vec::new();
    for text in texts {
        if text.len() > FILTER_BYTES_MAX {
            let problem = format!("it has over {FILTER_BYTES_MAX} characters");
            return invalid(problem, "shorten it");
        }
        // The checks of rules are also those of filters.
        let rule = "[host]\nname = \"filter\"\n[[rule]]\nname = \"filter\"\nactions = \
                    [\"normal\"]\n[rule.match]\n";
        let checked = config::parse(&format!("{rule}{text}"), "");
        let checked = checked.map_err(|errors| as_filter(ApiError::from(errors)))?;
        for rule in &checked.rules {
            match compiled(&rule.matching) {
                Ok(more) => keys.extend(more),
                Err(error) => return invalid(error.to_string(), "correct the filter"),
            }
        }
    }
    Ok(Some(keys))
}

/// Gives a mistake of the rule that stands for a filter the name that the caller knows.
fn as_filter(error: ApiError) -> ApiError {
    ApiError { object: error.object.replace("rule \"filter\"", "capture filter"), ..error }
}
