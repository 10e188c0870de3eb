//! Number, waiting times and claims of the HTTP requests in the simulated and live Fig. 9 of VM
//! jitter.

use super::shaper::Kind;
use crate::evidence::stats::{count, distribution, percentile};
use crate::evidence::{Claim, Outcome};

/// Number of HTTP requests in a run.
pub(crate) const REQUESTS: usize = 2_000;

/// Waiting time of each request in milliseconds, and duration of the run in seconds.
pub(crate) struct Waited {
    pub waiting: Vec<f64>,
    pub secs: f64,
}

pub(crate) fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / count(values.len());
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count(values.len())).sqrt()
}

/// Adds the series and claims for the requests of both shapers, in the order of [`Kind::BOTH`].
/// `deviations` has the standard deviations of the waiting times. Only the claim about the ratio of
/// the two standard deviations has a required range.
pub(crate) fn conclude(outcome: &mut Outcome, both: &[Waited; 2], deviations: [f64; 2]) {
    for ((kind, waited), std) in Kind::BOTH.into_iter().zip(both).zip(deviations) {
        let name = kind.name();
        let numbered = (1_u32..).map(f64::from).zip(waited.waiting.iter().copied());
        outcome.series(&format!("{name} waiting"), "ms", numbered);
        outcome.series(&format!("{name} distribution"), "%", distribution(&waited.waiting));
        let id = name.replace('-', "_");
        let shown = [
            ("waiting_ms_std", "standard deviation of the waiting time", std),
            ("waiting_ms_p50", "median of the waiting time", percentile(&waited.waiting, 50.0)),
            ("waiting_ms_max", "longest waiting time", percentile(&waited.waiting, 100.0)),
        ];
        for (what, text, value) in shown {
            let claim = Claim::new(&format!("{id}_{what}"), format!("{name}: {text}"), "ms");
            outcome.claim(claim.measured(value));
        }
        let what = format!("{name}: duration of all requests");
        let secs = Claim::new(&format!("{id}_secs"), what, "s").published(70.0);
        outcome.claim(secs.measured(waited.secs));
    }
    let what = "standard deviation of the waiting time, token bucket divided by smooth";
    let claim = Claim::new("std_token_bucket_over_smooth", what, "");
    outcome.claim(claim.at_least(5.0).measured(deviations[0] / deviations[1]));
}
