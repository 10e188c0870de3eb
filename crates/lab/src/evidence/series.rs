//! A [`Series`] is a measured curve, which the lab also writes as CSV.

use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize};

/// A curve. A curve has values `y` that depend on another quantity `x`, such as bandwidth over
/// time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the series, unique within its experiment.
    pub name: String,
    /// Unit of `y`.
    pub unit: String,
    /// Values of the quantity on the x-axis, such as seconds, bytes or number of VMs. The
    /// experiment's picture names the quantity on the x-axis.
    #[serde(deserialize_with = "numbers")]
    pub x: Vec<f64>,
    /// The values. A value that was not measured is NaN in a series and `null` in JSON.
    #[serde(deserialize_with = "numbers")]
    pub y: Vec<f64>,
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Option<f64>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|n| n.unwrap_or(f64::NAN)).collect())
}

/// Returns all series as CSV, with one line for each value.
#[must_use]
pub fn csv(all: &[Series]) -> String {
    let mut text = String::from("series,unit,x,y\n");
    for series in all {
        let (name, unit) = (field(&series.name), field(&series.unit));
        for (x, y) in series.x.iter().zip(&series.y) {
            // Writing to a string cannot fail.
            let _ = match y.is_finite() {
                true => writeln!(text, "{name},{unit},{x},{y}"),
                false => writeln!(text, "{name},{unit},{x},"),
            };
        }
    }
    text
}

/// Quotes a field of the CSV text as RFC 4180, §2, requires.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
