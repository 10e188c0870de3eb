//! Parameters of a simulated figure that were fitted to its outcome.
//!
//! # Problem
//!
//! A paper may leave a number open. If the number is chosen so that the figure comes out as
//! printed, the match is no evidence.
//!
//! # Approach
//!
//! Each such number is a [`Parameter`] of its figure. The result's `platform` lists the numbers as
//! `calibrated`. Tables, pictures, the report and `docs/internals/figures.md` call the figure
//! "calibrated". The figure also shows the results of other readings of the paper, without a band.

use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, Record};

/// Name of the platform entry.
const ENTRY: &str = "calibrated";

/// A number that was fitted to an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Description of the number, with its value.
    pub parameter: String,
    /// Outcome to which the number was fitted.
    pub fitted_to: String,
    /// Other readings of the paper that the figure shows.
    pub beside: String,
}

impl Parameter {
    /// Creates a parameter from `[parameter, fitted_to, beside]`, in the order of the fields.
    #[must_use]
    pub fn new([parameter, fitted_to, beside]: [&str; 3]) -> Self {
        let [parameter, fitted_to, beside] = [parameter, fitted_to, beside].map(str::to_owned);
        Self { parameter, fitted_to, beside }
    }

    /// The parameter as one line of text.
    #[must_use]
    pub fn told(&self) -> String {
        let Self { parameter, fitted_to, beside } = self;
        format!("calibrated: {parameter}; fitted to {fitted_to}; beside it: {beside}")
    }
}

impl Outcome {
    /// Records that a number was fitted to this outcome.
    pub fn calibrated(&mut self, parameter: [&str; 3]) {
        let mut all = of(&self.platform);
        all.push(Parameter::new(parameter));
        // Three strings are always valid JSON.
        self.note(ENTRY, serde_json::to_value(all).unwrap_or_default());
    }
}

impl Record {
    /// The numbers that were fitted to this outcome.
    #[must_use]
    pub fn calibrated(&self) -> Vec<Parameter> {
        of(&self.platform)
    }
}

fn of(platform: &serde_json::Map<String, serde_json::Value>) -> Vec<Parameter> {
    let entry = platform.get(ENTRY).cloned();
    entry.and_then(|entry| serde_json::from_value(entry).ok()).unwrap_or_default()
}
