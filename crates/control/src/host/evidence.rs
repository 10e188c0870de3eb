//! Records once a minute what each port with a contract bought and got ([`crate::report`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use penstock_qos::cost_model::Rate;
use penstock_units::Nanos;

use super::apply::{Core, lock};
use crate::api::LinkStatus;
use crate::explain::history::Moment;
use crate::explain::{Growth, explain};
use crate::report::{Cause, Minute, Store, Unit, Written};

/// Time between two records of a port.
const EVERY: Nanos = Nanos::from_secs(60);

/// The state between two records.
#[derive(Debug, Default)]
pub(super) struct Evidence(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The counters at the last record.
    before: Option<Moment>,
    /// Longest wait of a batch in each port's ring since then, in nanoseconds.
    waits: BTreeMap<String, u64>,
    /// Whether the last record could not be written.
    failed: bool,
    /// Labels in the present file of the minutes.
    written: Written,
    /// Number of records of each port since the daemon's start, by cause.
    counts: BTreeMap<(String, Cause), u64>,
}

impl Evidence {
    /// Notes a reading of the counters. If the last record is a minute old, writes a record that
    /// ends at `unix_s`, in seconds of Unix time.
    pub(super) fn note(
        &self,
        core: &Core,
        now: &Moment,
        links: impl FnOnce() -> Vec<LinkStatus>,
        unix_s: u64,
    ) {
        let mut state = lock(&self.0);
        for (name, port) in &now.ports {
            let wait = state.waits.entry(name.clone()).or_default();
            *wait = (*wait).max(port.reading.delay_max);
        }
        let Some(before) = &state.before else {
            state.before = Some(now.clone());
            return;
        };
        if now.at.saturating_sub(before.at) < EVERY {
            return;
        }
        let growth = core.growth(before, now, links());
        let waits = std::mem::take(&mut state.waits);
        let minutes = core.minutes(&growth, &waits, unix_s);
        for minute in &minutes {
            *state.counts.entry((minute.port.clone(), minute.cause)).or_default() += 1;
        }
        state.before = Some(now.clone());
        let dir = lock(&core.shared).config.host.state_dir.clone();
        match Store::new(&dir).add(&minutes, &mut state.written) {
            Ok(()) => state.failed = false,
            Err(error) if !state.failed => {
                state.failed = true;
                tracing::warn!(
                    "the minutes of contracts cannot be written to {}: {error}; check the \
                     directory's permissions and space",
                    dir.display()
                );
            }
            Err(_) => {}
        }
    }

    /// Returns the seconds of each port's contract since the daemon's start, by cause.
    pub(super) fn seconds(&self) -> Vec<(String, Cause, u64)> {
        let each = EVERY.0 / 1_000_000_000;
        let counts = &lock(&self.0).counts;
        counts.iter().map(|((port, cause), n)| (port.clone(), *cause, n * each)).collect()
    }
}

impl Core {
    /// Returns the minute of each port with a contract.
    fn minutes(&self, growth: &Growth, waits: &BTreeMap<String, u64>, at: u64) -> Vec<Minute> {
        let bought = |name: &str| {
            let shared = lock(&self.shared);
            let plan = shared.pricing.plan.port(name)?;
            Some(match plan.contract.as_ref()?.rate {
                Rate::Bits(rate) => (Unit::Bits, rate.0),
                Rate::Packets(rate) => (Unit::Packets, rate.0),
            })
        };
        let minute = |status: crate::api::PortStatus| {
            let (unit, bought) = bought(&status.name)?;
            let mut answer = explain(growth, &status)?;
            self.profile(&mut answer);
            self.bound(&mut answer, growth);
            let got = u128::from(bought) * u128::from(answer.got_permille?) / 1_000;
            Some(Minute {
                at,
                unit,
                bought,
                got: u64::try_from(got).unwrap_or(u64::MAX),
                cause: Cause::of(&answer),
                class: u8::try_from(answer.priority).unwrap_or(u8::MAX),
                wait_max_us: waits.get(&status.name).map_or(0, |wait| wait / 1_000),
                bound_us: answer.bound_us,
                labels: Arc::new(status.labels),
                port: status.name,
            })
        };
        self.port_states().into_iter().filter_map(minute).collect()
    }
}
