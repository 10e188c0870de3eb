//! The results of a benchmark, as JSON and as text.
//!
//! # Format
//!
//! `rows` and `ratios` have the same keys in every benchmark. One program can read the reports of
//! all benchmarks, because all reports have the same keys. A value that a benchmark does not
//! measure is `null`. `min`, `max` and `median` are values of the quantity that `metric` names. If
//! a row has a key with the metric's name, the value of this key is also the median. `detail` has
//! values that explain the row: busy shares, cycles by stage, waits for a core, and the generator's
//! share.

use std::fmt::{self, Write as _};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::rig::stats::Spread;

/// Result of one benchmark case with one switch.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the benchmark case, such as `l3`.
    pub case: String,
    /// Frame size in bytes, FCS included, or `imix`. The field is `null` if the benchmark sends
    /// frames of several sizes.
    pub size: Value,
    pub flows: u32,
    /// Name of the measured switch.
    pub subject: String,
    /// Received frames, in millions per second.
    pub mpps: Option<f64>,
    /// Received bits, FCS included, in Gbit/s.
    pub gbps: Option<f64>,
    /// Cycles of the worker's turns that moved frames, divided by the number of frames.
    pub cycles_per_packet: Option<f64>,
    pub runs: usize,
    pub min: f64,
    pub max: f64,
    /// Name of the measured quantity. `min`, `max` and `median` are values of the quantity that
    /// `metric` names.
    pub metric: &'static str,
    /// Median of the metric's values in all runs.
    pub median: f64,
    /// Medians of values that explain the result, by name, such as waits for a core.
    pub detail: Map<String, Value>,
}

impl Row {
    /// Creates a report row for `metric`, with an empty `detail`.
    pub(crate) fn new(
        case: &str,
        size: Value,
        flows: u32,
        subject: &str,
        metric: &'static str,
        spread: Spread,
    ) -> Self {
        Self {
            case: case.to_owned(),
            size,
            flows,
            subject: subject.to_owned(),
            mpps: None,
            gbps: None,
            cycles_per_packet: None,
            runs: spread.runs,
            min: round(spread.min),
            max: round(spread.max),
            metric,
            median: round(spread.median),
            detail: Map::new(),
        }
    }

    /// Adds a named number to the row's `detail`.
    pub(crate) fn note(&mut self, name: &str, value: f64) {
        self.detail.insert(name.to_owned(), round(value).into());
    }
}

/// A comparison of two switches, or of one switch with a fixed value. `case`, `size` and `flows`
/// have the same meaning as in [`Row`].
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    pub case: String,
    pub size: Value,
    pub flows: u32,
    /// Name of the switch or variant with which Penstock is compared, or `absolute` for a fixed
    /// value.
    pub peer: String,
    /// Name of the compared quantity. Each benchmark defines which switch's value is the numerator
    /// of the ratio.
    pub metric: &'static str,
    /// Ratio of the two switches' values. If `peer` is `absolute`, the value is Penstock's own
    /// value instead of a ratio.
    pub ratio: f64,
    /// Required value of the ratio. `null` if the ratio has no required value.
    pub bar: Option<f64>,
    /// Whether the ratio meets its required value. `null` if the ratio has no required value.
    pub holds: Option<bool>,
}

/// The value that a ratio of two switches must reach or must not exceed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bar {
    /// The ratio of the two switches' values must be at least this value.
    AtLeast(f64),
    /// The ratio of two switches must be at most this value.
    AtMost(f64),
    /// The report shows the ratio of the two switches, but the ratio has no required value.
    None,
}

impl Ratio {
    /// Creates a comparison of two switches, with the case, frame size and flows of `row`. The
    /// comparison holds if the ratio of the switches' values meets the requirement `bar`.
    pub(crate) fn of(row: &Row, peer: &str, metric: &'static str, ratio: f64, bar: Bar) -> Self {
        // The bar applies to the unrounded ratio.
        let (bar, holds) = match bar {
            Bar::AtLeast(bar) => (Some(bar), Some(ratio >= bar)),
            Bar::AtMost(bar) => (Some(bar), Some(ratio <= bar)),
            Bar::None => (None, None),
        };
        let (case, size, flows) = (row.case.clone(), row.size.clone(), row.flows);
        Self { case, size, flows, peer: peer.to_owned(), metric, ratio: round(ratio), bar, holds }
    }
}

/// The report of a benchmark, which is printed as JSON or text.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the benchmark, such as `v2v`.
    pub bench: &'static str,
    /// Description of the machine, the programs and the settings.
    pub platform: Map<String, Value>,
    /// Measurements, one row for each case, switch and metric.
    pub rows: Vec<Row>,
    /// Comparisons of two switches' rows, or of one row with a fixed value.
    pub ratios: Vec<Ratio>,
}

impl Report {
    /// Whether every ratio meets its required value.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.ratios.iter().all(|ratio| ratio.holds != Some(false))
    }
}

/// Rounds `value` to four decimal places, because further digits are noise.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.platform {
            writeln!(f, "{name}: {}", plain(value))?;
        }
        writeln!(
            f,
            "\n{:<14} {:>6} {:>7}  {:<14} {:>8} {:>8} {:>9}  {:<32} detail",
            "case",
            "size",
            "flows",
            "subject",
            "Mpps",
            "Gbit/s",
            "cycles/f",
            "median [min-max] metric"
        )?;
        for row in &self.rows {
            let mut detail = String::new();
            for (name, value) in &row.detail {
                write!(detail, " {name}={}", plain(value))?;
            }
            let spread = format!("{} [{}-{}] {}", row.median, row.min, row.max, row.metric);
            writeln!(
                f,
                "{:<14} {:>6} {:>7}  {:<14} {:>8} {:>8} {:>9}  {spread:<32}{detail}",
                row.case,
                plain(&row.size),
                row.flows,
                row.subject,
                number(row.mpps, 3),
                number(row.gbps, 2),
                number(row.cycles_per_packet, 1),
            )?;
        }
        self.ratios.iter().try_for_each(|ratio| writeln!(f, "{ratio}"))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match (self.bar, self.holds) {
            (Some(bar), Some(true)) => format!("bar {bar}: holds"),
            (Some(bar), Some(false)) => format!("bar {bar}: MISSED"),
            _ => "no bar".to_owned(),
        };
        let (case, size, flows) = (&self.case, plain(&self.size), self.flows);
        let (metric, peer, ratio) = (self.metric, &self.peer, self.ratio);
        write!(
            f,
            "ratio {case} {size} B {flows} flows, {metric} against {peer}: {ratio:.2} ({verdict})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let spread = Spread { median: 150.0, min: 149.0, max: 151.123_456, runs: 3 };
        let mut row = Row::new("l3", 64.into(), 1, "penstock", "cycles_per_packet", spread);
        row.note("worker_busy_percent", 99.0);
        row
    }

    #[test]
    fn the_json_has_the_keys_that_readers_rely_on() {
        let row = row();
        let ratio = Ratio::of(&row, "ovs-dpdk", "cycles", 2.5, Bar::AtLeast(2.0));
        let platform = Map::from_iter([("cpu".to_owned(), "x".into())]);
        let report = Report { bench: "v2v", platform, rows: vec![row], ratios: vec![ratio] };
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &Value| {
            value.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        let has = |value: &Value, wanted: &str| {
            let known = keys(value);
            wanted.split(' ').all(|key| known.split(' ').any(|k| k == key))
        };
        assert!(has(&json, "bench platform rows ratios"));
        assert!(has(
            &json["rows"][0],
            "case size flows subject mpps gbps cycles_per_packet runs min max"
        ));
        assert!(has(&json["ratios"][0], "case size flows peer metric ratio bar holds"));
        assert_eq!(json["rows"][0]["max"], 151.1235);
        assert_eq!(json["rows"][0]["mpps"], Value::Null);
    }

    #[test]
    fn a_bar_is_judged_on_its_side_and_before_rounding() {
        let row = row();
        let holds = |ratio, bar| Ratio::of(&row, "p", "m", ratio, bar).holds;
        assert_eq!(holds(1.999_99, Bar::AtLeast(2.0)), Some(false));
        assert_eq!(holds(2.0, Bar::AtLeast(2.0)), Some(true));
        assert_eq!(holds(1.01, Bar::AtMost(1.0)), Some(false));
        assert_eq!(holds(0.1, Bar::None), None);
    }
}
