//! Parameters of a simulated figure that were fitted to the figure's outcome.
//!
//! # Problem
//!
//! A simulation may need a number that the paper does not print. If a number is chosen so that the
//! simulated results match the paper, the match is no evidence.
//!
//! # Approach
//!
//! Each number that was fitted to the results is a [`Parameter`] of its figure. The entry
//! `calibrated` of the result's `platform` lists the fitted numbers. Tables, pictures, the report
//! and `docs/internals/figures.md` call a figure with fitted numbers "calibrated". A calibrated
//! figure also shows results for other interpretations of the paper, but no claim judges these
//! results.

use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, Record};

/// Name of the entry in `platform` that lists the fitted numbers.
const ENTRY: &str = "calibrated";

/// A number of the simulation that was fitted to an outcome of the paper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Number of the simulation that was fitted to a result of the paper, described with its value.
    pub parameter: String,
    /// Published result to which the number was fitted.
    pub fitted_to: String,
    /// Other interpretations of the paper whose results the figure also shows, for comparison.
    pub beside: String,
}

impl Parameter {
    /// Creates a parameter from an array of its fields `parameter`, `fitted_to` and `beside`.
    #[must_use]
    pub fn new([parameter, fitted_to, beside]: [&str; 3]) -> Self {
        let [parameter, fitted_to, beside] = [parameter, fitted_to, beside].map(str::to_owned);
        Self { parameter, fitted_to, beside }
    }

    #[must_use]
    pub fn told(&self) -> String {
        let Self { parameter, fitted_to, beside } = self;
        format!("calibrated: {parameter}; fitted to {fitted_to}; for comparison: {beside}")
    }
}

impl Outcome {
    /// Records that a number of the simulation was fitted to the outcome.
    pub fn calibrated(&mut self, parameter: [&str; 3]) {
        let mut all = of(&self.platform);
        all.push(Parameter::new(parameter));
        // Three strings are always valid JSON.
        self.note(ENTRY, serde_json::to_value(all).unwrap_or_default());
    }
}

impl Record {
    /// Returns the numbers of the simulation that were fitted to the outcome.
    #[must_use]
    pub fn calibrated(&self) -> Vec<Parameter> {
        of(&self.platform)
    }
}

fn of(platform: &serde_json::Map<String, serde_json::Value>) -> Vec<Parameter> {
    let entry = platform.get(ENTRY).cloned();
    entry.and_then(|entry| serde_json::from_value(entry).ok()).unwrap_or_default()
}
