//! Runs all simulated figures with one seed and shortened phases. Every claim about a figure must
//! hold, except the claims on the list of missed claims. Two runs with the same seed must produce
//! the same bytes. `scripts/checks.sh figures` runs the tests of simulated figures. To produce the
//! figures over many seeds, use `penstock-lab run` (docs/internals/figures.md).

use std::path::Path;

use clap::Parser as _;
use penstock_lab::evidence::{Context, Mode, Record};
use penstock_lab::figures::files::Results;
use penstock_lab::figures::missed::Missed;
use penstock_lab::figures::{EXPERIMENTS, RunArgs, find};

/// Name of the figure that measures time on this machine. The tests omit the figure that measures
/// time, because its results are not reproducible.
const TIMED: &str = "c2qos-overhead";
/// Fraction of a figure's full length that the tests simulate.
const PART: f64 = 0.1;
/// Figures that simulate many frames or flows, each with the fraction of its full length that the
/// tests simulate: the least that its claims need. [`PART`] of the full length of most of them
/// would take over ten seconds. `make nightly` runs all figures at full length.
const LONG: [(&str, f64); 8] = [
    ("c2qos-fig1", 0.02),
    ("c2qos-fig10", 0.025),
    ("c2qos-fig11", 0.025),
    ("c2qos-fig12", 0.04),
    ("contracts", 0.1),
    ("qshare-fig4", 0.04),
    ("qshare-fig5", 0.04),
    ("uplink-shares", 0.04),
];
/// Length of the runs that compare bytes, as a fraction of a judged run's length. To test that
/// equal seeds yield equal bytes, the test runs each figure twice.
const COMPARED: f64 = 0.1;

fn part(name: &str) -> f64 {
    long(name).unwrap_or(PART)
}

fn long(name: &str) -> Option<f64> {
    LONG.into_iter().find(|(long, _)| *long == name).map(|(_, part)| part)
}

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: RunArgs,
}

fn run(name: &str, seed: u64, part: f64) -> Record {
    let args = Cli::parse_from(["run", name]).args;
    let experiment = find(name).unwrap();
    let context = Context::new(experiment.name, (Mode::Sim, seed), &args.live, None, None);
    let outcome = experiment.sim.unwrap()(&context.with_part(part)).unwrap();
    Record::new(experiment, Mode::Sim, seed, outcome)
}

fn bytes(record: &Record) -> String {
    Results::of(&[vec![record.clone()]]).json().unwrap()
}

fn list() -> Missed {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Missed::read(&root.join("docs/internals/figures.md")).unwrap()
}

/// Checks the documentation's list of figures. The list must mark a figure as calibrated exactly if
/// the figure has a parameter that was fitted to the paper's results. For each calibrated figure,
/// the list must also show the result of another interpretation of the paper.
fn says_what_is_calibrated(record: &Record) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/figures.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let (name, calibrated) = (&record.experiment, record.calibrated());
    let mut rows = docs.lines().skip_while(|line| *line != "## The figures");
    let row = rows.find(|line| line.starts_with(&format!("| `{name}` | "))).unwrap();
    assert_eq!(
        row.ends_with("; calibrated |"),
        !calibrated.is_empty(),
        "docs/internals/figures.md: {row}"
    );
    let others = record.claims.iter().filter(|c| c.statement.contains("another reading"));
    let others: Vec<_> = others.collect();
    assert_eq!(others.is_empty(), calibrated.is_empty(), "{name}: {others:?}");
    assert!(others.iter().all(|c| c.holds.is_none() && c.measured.is_some()), "{others:?}");
}

/// `scripts/checks.sh` selects the tests of short figures by the name of this module.
mod short_figures {
    use super::*;

    fn check(name: &str) {
        let record = run(name, 1, part(name));
        assert!(!record.claims.is_empty(), "{name} claims nothing");
        if long(name).is_none() {
            replays(name);
        }
        says_what_is_calibrated(&record);
        let remarks = list().judge(&[record], true);
        let failures: Vec<_> = remarks.iter().filter(|remark| remark.is_failure()).collect();
        assert!(failures.is_empty(), "{failures:#?}");
    }

    fn replays(name: &str) {
        let [one, two] = [1, 1].map(|seed| bytes(&run(name, seed, part(name) * COMPARED)));
        assert!(one == two, "{name}: seed 1 twice, other bytes");
    }

    #[test]
    #[ignore = "takes two minutes; other figures compare the same simulators"]
    fn long_ones_replay() {
        for (name, _) in LONG {
            replays(name);
        }
    }

    macro_rules! figures {
        ($($test:ident: $name:literal;)*) => {
            $(#[test] fn $test() { check($name); })*

            #[test]
            fn all_that_are_simulated_are_here() {
                let here = [$($name),*];
                let simulated = EXPERIMENTS.iter().filter(|e| e.sim.is_some());
                let names = simulated.map(|e| e.name).filter(|name| *name != TIMED);
                let missing: Vec<_> = names.filter(|name| !here.contains(name)).collect();
                assert!(missing.is_empty(), "{missing:?}");
            }
        };
    }

    figures! {
        fig1: "c2qos-fig1";
        fig3: "c2qos-fig3";
        fig5: "c2qos-fig5";
        fig6: "c2qos-fig6";
        fig7: "c2qos-fig7";
        fig10: "c2qos-fig10";
        fig11: "c2qos-fig11";
        fig12: "c2qos-fig12";
        fig13: "c2qos-fig13";
        bill: "c2qos-bill";
        limits: "limits";
        contracts: "contracts";
        fsvde_fig4: "fsvde-fig4";
        fsvde_table2: "fsvde-table2";
        uplink_shares: "uplink-shares";
        qshare_table1: "qshare-table1";
        qshare_fig6: "qshare-fig6";
        jitter_fig2: "jitter-fig2";
        jitter_fig6: "jitter-fig6";
        jitter_fig7: "jitter-fig7";
        jitter_fig8: "jitter-fig8";
        jitter_fig9: "jitter-fig9";
        jitter_fig10: "jitter-fig10";
        jitter_fig11: "jitter-fig11";
        jitter_fig12: "jitter-fig12";
        qshare_fig4: "qshare-fig4";
        qshare_fig5: "qshare-fig5";
        qshare_faults: "qshare-faults";
    }

    #[test]
    fn another_seed_gives_other_numbers() {
        let series = |seed| run("c2qos-fig7", seed, PART * COMPARED).series;
        assert!(series(1) != series(2), "nothing depends on the seed");
    }
}
