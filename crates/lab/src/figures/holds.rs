//! Test helper that checks the claims of a simulated figure.

use std::path::Path;

use clap::Parser as _;

use super::missed::Missed;
use super::run::RunArgs;
use crate::evidence::{Context, Experiment, Mode, Record, Run};

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: RunArgs,
}

/// Asserts that every claim with a band holds with each seed in `seeds`.
pub(super) fn assert_holds(name: &'static str, sim: Run, seeds: &[u64]) {
    let args = Cli::parse_from(["run", name]).args;
    for seed in seeds {
        let context = Context::new(name, (Mode::Sim, *seed), &args.live, None, None);
        let outcome = sim(&context).unwrap();
        let failed: Vec<_> = outcome.claims.iter().filter(|c| c.is_missed()).collect();
        assert!(failed.is_empty(), "{name}, seed {seed}: {failed:?}");
        assert!(outcome.claims.iter().any(|c| c.low.is_some() || c.high.is_some()));
    }
}

/// Asserts that a simulated figure with phases of the fraction `part` of their length misses no
/// claims except those in the list of missed claims, with each seed in `seeds`.
pub(super) fn assert_as_listed(experiment: &Experiment, part: f64, seeds: &[u64]) {
    let args = Cli::parse_from(["run", experiment.name]).args;
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let list = Missed::read(&root.join("docs/internals/figures.md")).unwrap();
    let sim = experiment.sim.unwrap();
    for seed in seeds {
        let context = Context::new(experiment.name, (Mode::Sim, *seed), &args.live, None, None);
        let outcome = sim(&context.with_part(part)).unwrap();
        let record = Record::new(experiment, Mode::Sim, *seed, outcome);
        let claims = record.claims.clone();
        let remarks = list.judge(&[record], part < 1.0);
        let failures: Vec<_> = remarks.iter().filter(|remark| remark.is_failure()).collect();
        assert!(failures.is_empty(), "{failures:#?} of {claims:#?}");
    }
}
