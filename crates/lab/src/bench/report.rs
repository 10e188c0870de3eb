//! The results of a benchmark, as JSON and as text.
//!
//! # Format
//!
//! `rows` and `ratios` have the same keys in every benchmark, so that one program can read them
//! all. A value that a benchmark does not have is `null`. `min`, `max` and `median` are values of
//! `metric`. If that metric has a key of its own in the row, the median is there as well. The
//! `detail` of a row has the values that explain it (busy shares, stages, waits, the generator's
//! part).

use std::fmt::{self, Write as _};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::rig::stats::Spread;

/// One case of one switch.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the case, such as its configuration.
    pub case: String,
    /// Frame size in bytes, FCS included, or `imix`. `null` if frames have no single size.
    pub size: Value,
    pub flows: u32,
    /// The switch that was measured.
    pub subject: String,
    /// Frames that arrived, in millions per second.
    pub mpps: Option<f64>,
    /// Bits of the frames that arrived, FCS included, in thousand millions per second.
    pub gbps: Option<f64>,
    /// Cycles of the worker's turns that moved frames, divided by the frames.
    pub cycles_per_packet: Option<f64>,
    pub runs: usize,
    /// The smallest run.
    pub min: f64,
    /// The largest run.
    pub max: f64,
    /// The quantity of `min`, `max` and `median`.
    pub metric: &'static str,
    /// The median run.
    pub median: f64,
    /// Medians of the values that explain the row.
    pub detail: Map<String, Value>,
}

impl Row {
    /// A row about `metric` without details.
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

    /// Adds a number to the detail.
    pub(crate) fn note(&mut self, name: &str, value: f64) {
        self.detail.insert(name.to_owned(), round(value).into());
    }
}

/// A comparison of two switches, and whether it keeps its bar. `case`, `size` and `flows` are those
/// of the [`Row`].
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    pub case: String,
    pub size: Value,
    pub flows: u32,
    /// Name of the switch or variant with which Penstock is compared.
    pub peer: String,
    /// The compared quantity, and the direction of the ratio.
    pub metric: &'static str,
    /// The ratio, or the value itself if the bar is absolute.
    pub ratio: f64,
    /// The promised value. `null` if there is none.
    pub bar: Option<f64>,
    /// Whether the bar holds. `null` without a bar.
    pub holds: Option<bool>,
}

/// The limit of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bar {
    /// The ratio must be at least this.
    AtLeast(f64),
    /// The ratio must be at most this.
    AtMost(f64),
    /// Nothing was promised.
    None,
}

impl Ratio {
    /// The comparison for the case of `row`, judged by `bar`.
    pub(crate) fn of(row: &Row, peer: &str, metric: &'static str, ratio: f64, bar: Bar) -> Self {
        // The unrounded ratio is judged.
        let (bar, holds) = match bar {
            Bar::AtLeast(bar) => (Some(bar), Some(ratio >= bar)),
            Bar::AtMost(bar) => (Some(bar), Some(ratio <= bar)),
            Bar::None => (None, None),
        };
        let (case, size, flows) = (row.case.clone(), row.size.clone(), row.flows);
        Self { case, size, flows, peer: peer.to_owned(), metric, ratio: round(ratio), bar, holds }
    }
}

/// The whole report of a benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// The machine, the programs and the settings.
    pub platform: Map<String, Value>,
    /// Measurements of the cases.
    pub rows: Vec<Row>,
    /// The comparisons of the rows.
    pub ratios: Vec<Ratio>,
}

impl Report {
    /// Whether every bar holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.ratios.iter().all(|ratio| ratio.holds != Some(false))
    }
}

/// Rounds to four digits after the point. More is noise.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn plain(value: &Value) -> String {
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
        for r in &self.ratios {
            let verdict = match (r.bar, r.holds) {
                (Some(bar), Some(true)) => format!("bar {bar}: holds"),
                (Some(bar), Some(false)) => format!("bar {bar}: MISSED"),
                _ => "no bar".to_owned(),
            };
            let (size, flows) = (plain(&r.size), r.flows);
            writeln!(
                f,
                "ratio {} {size} B {flows} flows, {} against {}: {:.2} ({verdict})",
                r.case, r.metric, r.peer, r.ratio
            )?;
        }
        Ok(())
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
