//! Test helper that checks the claims of a simulated figure.

use clap::Parser as _;

use super::run::RunArgs;
use crate::evidence::{Context, Mode, Run};

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
