//! Curves, and their text as CSV.

use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize};

/// Values over something, such as bandwidth over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name, unique within its experiment.
    pub name: String,
    /// Unit of `y`.
    pub unit: String,
    /// What over: seconds, bytes, number of VMs; the experiment's picture says it.
    #[serde(deserialize_with = "numbers")]
    pub x: Vec<f64>,
    /// The values; one that was not measured is NaN, in JSON `null`.
    #[serde(deserialize_with = "numbers")]
    pub y: Vec<f64>,
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Option<f64>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|n| n.unwrap_or(f64::NAN)).collect())
}

/// The series, a line for each value.
#[must_use]
pub fn csv(all: &[Series]) -> String {
    let mut text = String::from("series,unit,x,y\n");
    for series in all {
        let (name, unit) = (field(&series.name), field(&series.unit));
        for (x, y) in series.x.iter().zip(&series.y) {
            // Writing to a string does not fail.
            let _ = match y.is_finite() {
                true => writeln!(text, "{name},{unit},{x},{y}"),
                false => writeln!(text, "{name},{unit},{x},"),
            };
        }
    }
    text
}

/// RFC 4180, §2.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
