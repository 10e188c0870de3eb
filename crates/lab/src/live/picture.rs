//! Pictures of live runs: one panel for each unit, with all series of that unit as lines.

use crate::evidence::{Axis, Panel, Picture, Record};

/// The picture of a live record. `over` names the x axis of its series.
pub(crate) fn by_unit(record: &Record, over: &str) -> Picture {
    let mut units: Vec<&str> = Vec::new();
    for series in &record.series {
        if !units.contains(&series.unit.as_str()) {
            units.push(&series.unit);
        }
    }
    let mut picture = Picture::new(format!("{}, live", record.source));
    for unit in units {
        // Latencies of two policies differ by powers of ten.
        let y = if unit == "us" { Axis::log(unit) } else { Axis::linear(unit) };
        let mut panel = Panel::new(unit, Axis::linear(over), y);
        for series in record.series.iter().filter(|series| series.unit == unit) {
            panel = panel.series(&series.name, series);
        }
        picture = picture.panel(panel);
    }
    picture
}
