//! Pictures of live runs. A picture has a panel for each unit, with all series of the unit as
//! lines.

use crate::evidence::{Axis, Panel, Picture, Record};

/// Draws the record of a live run. `over` is the label of the x axis.
pub(crate) fn by_unit(record: &Record, over: &str) -> Picture {
    let mut units: Vec<&str> = Vec::new();
    for series in &record.series {
        if !units.contains(&series.unit.as_str()) {
            units.push(&series.unit);
        }
    }
    let mut picture = Picture::new(format!("{}, live", record.source));
    for unit in units {
        // Two policies' latencies may differ by powers of ten.
        let y = if unit == "us" { Axis::log(unit) } else { Axis::linear(unit) };
        let mut panel = Panel::new(unit, Axis::linear(over), y);
        for series in record.series.iter().filter(|series| series.unit == unit) {
            panel = panel.series(&series.name, series);
        }
        picture = picture.panel(panel);
    }
    picture
}
