//! The list of claims that are known as missed, and the comparison of a run with this list.
//!
//! # Problem
//!
//! A missed claim must stay visible, possibly for years. A missed claim must not hide other claims
//! that are missed later, and must not become worse unnoticed. If a missed claim holds again,
//! somebody must remove the claim from the list.
//!
//! # Format
//!
//! The list of missed claims is a table in a Markdown file, so that people read the reasons. The
//! table is under a heading that contains "missed". The table of missed claims has these columns:
//!
//! - Columns 1 to 3 name the experiment, the mode and one claim. The table has at most one row for
//!   each claim.
//! - Column 4 lists the seeds for which the claim is missed, either `all` or a list such as `3,
//!   7-9`.
//! - Columns 5 and 6 have the worst value found and a tolerance, in the claim's unit. If the value
//!   of a claim could not be measured, columns 5 and 6 contain `not measured` and `-`.
//! - The last column has the reason why the claim is missed.
//!
//! The parser ignores the rest of the Markdown file.
//!
//! # Rules
//!
//! A run fails if one of these conditions is true for a claim:
//!
//! - The claim is missed, but the list of missed claims does not name the claim for the run's seed.
//! - The claim is listed, but its measured value is worse than the listed value by more than the
//!   tolerance.
//! - Either the list of missed claims or the run has a value for the claim, but not both.
//! - The list of missed claims names the claim, but the claim holds in a simulated run of full
//!   length.
//! - The list of missed claims names a claim that has no band, does not exist, or would hold with
//!   the listed value.
//!
//! A live claim may be missed on a busy machine and hold on an idle machine. If a live claim in the
//! list of missed claims holds, the run reports the claim and does not fail.
//!
//! # Example
//!
//! ```text
//! ## Claims known as missed
//!
//! | Experiment | Mode | Claim | Seeds | Found | Tolerance | Why |
//! |---|---|---|---|---|---|---|
//! | `c2qos-fig12` | sim | `added_latency_left_pct_hbs` | 7 | 21 % | 1 % | one wave more |
//! ```

use std::fmt;
use std::path::Path;

use anyhow::Context as _;

use super::registry::find;
use crate::evidence::{Claim, Mode, Record};

/// Word that the Markdown heading above the list of missed claims must contain.
const HEADING: &str = "missed";
/// Number of cells in a row: experiment, mode, claim, seeds, found, tolerance, why.
const CELLS: usize = 7;
/// Text in the table column `Found` if the claim's value could not be measured.
const NOT_MEASURED: &str = "not measured";
/// Highest permitted tolerance of a missed claim, as a share of the claim's listed value.
const TOLERANCE_MAX: f64 = 0.5;

/// A row of the list of missed claims.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    experiment: String,
    mode: Mode,
    claim: String,
    seeds: Seeds,
    found: Option<Figure>,
}

/// The worst value found for a claim, and the tolerance by which a new value may be worse.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figure {
    value: f64,
    tolerance: f64,
}

impl Figure {
    fn parse(value: &str, tolerance: &str) -> anyhow::Result<Option<Self>> {
        if value == NOT_MEASURED {
            anyhow::ensure!(
                matches!(tolerance, "" | "-"),
                "a value that was not measured has no tolerance; write `-`"
            );
            return Ok(None);
        }
        let number = |cell: &str| {
            let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
            let has_digits = unit.contains(|c: char| c.is_ascii_digit());
            let number: Option<f64> = number.parse().ok();
            let number = number.filter(|number| number.is_finite() && !has_digits);
            number.with_context(|| format!("`{cell}` is not a number such as `69.5 %`"))
        };
        let (value, tolerance) = (number(value)?, number(tolerance)?);
        anyhow::ensure!(
            (0.0..=TOLERANCE_MAX * value.abs()).contains(&tolerance),
            "tolerance {tolerance} is not between 0 and {TOLERANCE_MAX} times {value}"
        );
        Ok(Some(Self { value, tolerance }))
    }

    /// Returns whether `measured` is worse than the listed value by more than the tolerance.
    fn is_exceeded(self, claim: &Claim, measured: f64) -> bool {
        let Self { value, tolerance } = self;
        match (claim.low, claim.high) {
            (Some(low), _) if measured <= low => measured < value - tolerance,
            _ => measured > value + tolerance,
        }
    }
}

/// Seeds for which the list names a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seeds {
    All,
    Ranges(Vec<(u64, u64)>),
}

impl Seeds {
    fn parse(text: &str) -> Option<Self> {
        if text == "all" {
            return Some(Self::All);
        }
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last).then_some((first, last))
        };
        text.split(',').map(range).collect::<Option<_>>().map(Self::Ranges)
    }

    fn has(&self, seed: u64) -> bool {
        match self {
            Self::All => true,
            Self::Ranges(all) => all.iter().any(|&(first, last)| (first..=last).contains(&seed)),
        }
    }
}

/// All rows of the list of missed claims.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Missed(Vec<Entry>);

/// Result of comparing a claim with the list of missed claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The claim is missed and is in the list of missed claims.
    Expected,
    /// The claim is missed and is not in the list of missed claims.
    Unlisted,
    /// The claim is listed, but its measured value is worse than the listed value by more than the
    /// tolerance.
    Worse,
    /// Either the list of missed claims or the run has a value for the claim, but not both.
    OtherwiseMeasured,
    /// The claim is missed, but the value in the list of missed claims is in the claim's band.
    FigureHolds,
    /// The claim is in the list of missed claims, but holds in a simulated run.
    Holds,
    /// The claim is in the list of missed claims, but holds in a live run.
    HoldsHere,
    /// The claim is in the list of missed claims, but has no band.
    Shown,
    /// The list of missed claims names a claim that does not exist.
    Unknown,
}

/// A verdict on one claim with one seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    experiment: String,
    claim: String,
    seed: u64,
    verdict: Verdict,
}

impl Remark {
    /// Returns whether the verdict on the claim makes the run fail.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(self.verdict, Verdict::Expected | Verdict::HoldsHere)
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { experiment, claim, seed, verdict } = self;
        let what = match verdict {
            Verdict::Expected => "missed, as listed",
            Verdict::Unlisted => "missed, but not on the list",
            Verdict::Worse => "missed by more than the list permits: find the cause",
            Verdict::OtherwiseMeasured => {
                "measured but listed as not measured, or the reverse: correct the list"
            }
            Verdict::FigureHolds => "on the list with a value that would hold: correct the list",
            Verdict::Holds => "on the list, but holds: remove it from the list",
            Verdict::HoldsHere => "on the list, but holds in this run",
            Verdict::Shown => "on the list, but has no band: remove it from the list",
            Verdict::Unknown => "on the list, but no claim has this name: correct the list",
        };
        write!(f, "{experiment} {claim} (seed {seed}): {what}")
    }
}

impl Missed {
    /// Reads the list of missed claims from a Markdown file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has no list, or has a wrong row.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("reading {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    /// Parses the list of missed claims from a Markdown text.
    ///
    /// # Errors
    /// Returns an error if the text has no list, or an error with the number of the line that has a
    /// wrong row.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let (mut inside, mut found, mut entries) = (false, false, Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            if line.starts_with('#') {
                inside = line.to_lowercase().contains(HEADING);
                found |= inside;
            }
            if inside && let Some(row) = cells(line) {
                let entry = Entry::parse(&row).with_context(|| format!("line {number}"))?;
                let is_new = entries.iter().all(|other: &Entry| !other.is_of_claim_of(&entry));
                anyhow::ensure!(
                    is_new,
                    "line {number}: the claim is listed a second time; keep one row"
                );
                entries.push(entry);
            }
        }
        anyhow::ensure!(found, "no heading contains `{HEADING}`, so there is no list");
        Ok(Self(entries))
    }

    /// Compares `records` with the list of missed claims. If `short` is true, the runs had
    /// shortened phases. A claim in the list of missed claims that holds in a short run is not
    /// reported.
    #[must_use]
    pub fn judge(&self, records: &[Record], short: bool) -> Vec<Remark> {
        let mut remarks = Vec::new();
        for record in records {
            let mut remark = |claim: &str, verdict| {
                let (experiment, claim) = (record.experiment.clone(), claim.to_owned());
                remarks.push(Remark { experiment, claim, seed: record.seed, verdict });
            };
            for claim in &record.claims {
                match (claim.holds, self.entry(record, &claim.id)) {
                    (Some(false), Some(entry)) => remark(&claim.id, entry.judge(claim)),
                    (Some(false), None) => remark(&claim.id, Verdict::Unlisted),
                    (Some(true), Some(_)) if short => {}
                    (Some(true), Some(_)) if record.mode == Mode::Live => {
                        remark(&claim.id, Verdict::HoldsHere);
                    }
                    (Some(true), Some(_)) => remark(&claim.id, Verdict::Holds),
                    (None, Some(_)) => remark(&claim.id, Verdict::Shown),
                    (Some(true) | None, None) => {}
                }
            }
            for entry in self.of(record).filter(|e| record.claim(&e.claim).is_none()) {
                remark(&entry.claim, Verdict::Unknown);
            }
        }
        remarks
    }

    fn of<'a>(&'a self, record: &'a Record) -> impl Iterator<Item = &'a Entry> {
        let here = |e: &&Entry| e.experiment == record.experiment && e.mode == record.mode;
        self.0.iter().filter(here)
    }

    fn entry<'a>(&'a self, record: &'a Record, claim: &str) -> Option<&'a Entry> {
        self.of(record).find(|e| e.claim == claim && e.seeds.has(record.seed))
    }
}

impl Entry {
    fn parse(row: &[&str]) -> anyhow::Result<Self> {
        let &[experiment, mode, claim, seeds, found, tolerance, why] = row else {
            anyhow::bail!("the row has {} cells instead of {CELLS}", row.len());
        };
        let mode = match mode {
            "sim" => Mode::Sim,
            "live" => Mode::Live,
            other => anyhow::bail!("`{other}` is not a mode; use sim or live"),
        };
        let seeds = Seeds::parse(seeds)
            .with_context(|| format!("`{seeds}` are not seeds such as `all` or `3, 7-9`"))?;
        anyhow::ensure!(!why.is_empty(), "the last cell is empty; write the reason");
        let experiment = find(experiment.trim_matches('`'))?.name.to_owned();
        let claim = claim.trim_matches('`');
        let in_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        anyhow::ensure!(
            !claim.is_empty() && claim.chars().all(in_a_name),
            "`{claim}` is not the name of one claim; give each claim its row"
        );
        let found = Figure::parse(found, tolerance)?;
        Ok(Self { experiment, mode, claim: claim.to_owned(), seeds, found })
    }

    fn is_of_claim_of(&self, other: &Self) -> bool {
        let claim = |e: &Self| (e.experiment.clone(), e.mode, e.claim.clone());
        claim(self) == claim(other)
    }

    /// Returns the verdict on `claim`, which is missed and is in the list of missed claims.
    fn judge(&self, claim: &Claim) -> Verdict {
        match (self.found, claim.measured) {
            (Some(found), _) if claim.covers(found.value) => Verdict::FigureHolds,
            (Some(found), Some(measured)) if found.is_exceeded(claim, measured) => Verdict::Worse,
            (Some(_), Some(_)) | (None, None) => Verdict::Expected,
            (Some(_), None) | (None, Some(_)) => Verdict::OtherwiseMeasured,
        }
    }
}

/// Returns the cells of a table row. Returns `None` for the table's head, for the line below the
/// head, and for text outside tables.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let rule = |cell: &&str| cell.chars().all(|c| matches!(c, '-' | ':'));
    let is_head = cells.first() == Some(&"Experiment");
    (!is_head && !cells.iter().all(rule)).then_some(cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    const HEAD: &str = "# Figures\n\n| a | table |\n|---|---|\n| of | others |\n\n\
        ## Claims known as missed\n\n| Experiment | Mode | Claim | Seeds | Found | Tolerance | Why \
        |\n|---|---|---|---|---|---|---|\n";

    fn list(rows: &str) -> anyhow::Result<Missed> {
        Missed::parse(&format!("{HEAD}{rows}\n## After\n\n| x |\n"))
    }

    /// Creates a record with the claim `a`, which holds if its value is at most 1.
    fn record(seed: u64, a: f64) -> Record {
        Record {
            experiment: "c2qos-fig12".to_owned(),
            source: "C2QoS".to_owned(),
            mode: Mode::Sim,
            seed,
            platform: Map::new(),
            series: Vec::new(),
            claims: vec![Claim::new("a", "A.", "%").at_most(1.0).measured(a)],
        }
    }

    fn verdicts(rows: &str, records: &[Record], short: bool) -> Vec<Verdict> {
        let remarks = list(rows).unwrap().judge(records, short);
        remarks.into_iter().map(|remark| remark.verdict).collect()
    }

    const ROW: &str = "| `c2qos-fig12` | sim | `a` | 3, 7-9 | 2 % | 0.5 % | because |";

    #[test]
    fn a_listed_miss_is_expected_with_its_seeds_and_no_others() {
        let records = [record(3, 2.0), record(4, 1.0), record(8, 2.0)];
        assert_eq!(verdicts(ROW, &records, false), [Verdict::Expected, Verdict::Expected]);
        assert_eq!(verdicts(ROW, &[record(4, 2.0)], false), [Verdict::Unlisted]);
        assert_eq!(verdicts("", &[record(4, 2.0)], false), [Verdict::Unlisted]);
        let all = ROW.replace("3, 7-9", "all");
        assert_eq!(verdicts(&all, &[record(4, 2.0)], false), [Verdict::Expected]);
        let live = ROW.replace("| sim |", "| live |");
        assert_eq!(verdicts(&live, &[record(3, 2.0)], false), [Verdict::Unlisted]);
    }

    #[test]
    fn a_miss_may_not_grow_unseen() {
        assert_eq!(verdicts(ROW, &[record(3, 2.5)], false), [Verdict::Expected]);
        for short in [false, true] {
            assert_eq!(verdicts(ROW, &[record(3, 2.51)], short), [Verdict::Worse]);
        }
        // A claim with a lower limit is worse if its value is smaller.
        let mut low = record(3, 1.0);
        low.claims = vec![Claim::new("a", "A.", "%").at_least(3.0).measured(1.51)];
        assert_eq!(verdicts(ROW, &[low.clone()], false), [Verdict::Expected]);
        low.claims[0] = low.claims[0].clone().measured(1.49);
        assert_eq!(verdicts(ROW, &[low.clone()], false), [Verdict::Worse]);
        // This checks the lower end of a band, and a listed value that would hold.
        low.claims = vec![Claim::new("a", "A.", "%").within(-1.0, 1.0).measured(-1.1)];
        assert_eq!(verdicts(&ROW.replace("2 %", "-2"), &[low.clone()], false), [Verdict::Expected]);
        low.claims = vec![Claim::new("a", "A.", "%").at_most(2.0).measured(2.1)];
        assert_eq!(verdicts(ROW, &[low], false), [Verdict::FigureHolds]);
    }

    #[test]
    fn a_miss_that_was_not_measured_is_another_one_than_one_with_a_figure() {
        let none = ROW.replace("2 % | 0.5 %", "not measured | -");
        assert_eq!(verdicts(&none, &[record(3, f64::NAN)], false), [Verdict::Expected]);
        assert_eq!(verdicts(&none, &[record(3, 2.0)], false), [Verdict::OtherwiseMeasured]);
        assert_eq!(verdicts(ROW, &[record(3, f64::NAN)], false), [Verdict::OtherwiseMeasured]);
    }

    #[test]
    fn a_live_claim_may_hold_on_a_calm_machine() {
        let row = ROW.replace("| sim |", "| live |");
        let live = |value| vec![Record { mode: Mode::Live, ..record(3, value) }];
        assert_eq!(verdicts(&row, &live(1.0), false), [Verdict::HoldsHere]);
        assert!(!list(&row).unwrap().judge(&live(1.0), false)[0].is_failure());
        assert!(list(&row).unwrap().judge(&live(2.6), false)[0].is_failure());
    }

    #[test]
    fn a_listed_claim_that_holds_is_a_failure_but_in_a_short_run() {
        assert_eq!(verdicts(ROW, &[record(3, 1.0)], false), [Verdict::Holds]);
        assert_eq!(verdicts(ROW, &[record(3, 1.0)], true), []);
        assert_eq!(verdicts(ROW, &[record(4, 2.0)], true), [Verdict::Unlisted]);
    }

    #[test]
    fn a_listed_claim_that_does_not_exist_is_a_failure() {
        let rows = ROW.replace("`a`", "`b`");
        assert_eq!(verdicts(&rows, &[record(4, 1.0)], false), [Verdict::Unknown]);
    }

    #[test]
    fn a_listed_claim_that_is_only_shown_is_a_failure() {
        let mut shown = record(3, 2.0);
        shown.claims = vec![Claim::new("a", "A.", "%").measured(2.0)];
        assert_eq!(verdicts(ROW, &[shown.clone()], false), [Verdict::Shown]);
        assert_eq!(verdicts("", &[shown], false), []);
    }

    /// Checks that the README states the number of claims in the repository's list of missed
    /// claims.
    #[test]
    fn the_readme_counts_the_claims_that_are_listed() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let list = Missed::read(&root.join("docs/internals/figures.md")).unwrap();
        let count = list.0.len();
        let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
        let words = readme.split_whitespace().collect::<Vec<_>>().join(" ");
        let told = format!(
            "{count} claims are [known as missed](docs/internals/figures.md#claims-known-as"
        );
        assert!(words.contains(&told), "README.md does not say: {told}-missed)");
    }

    #[test]
    fn a_wrong_row_is_refused_with_its_line_and_reason() {
        let error = |rows: &str| format!("{:#}", list(rows).unwrap_err());
        for (from, to, says) in [
            ("c2qos-fig12", "c2qos-fig99", "no experiment is called"),
            ("sim", "dream", "`dream` is not a mode"),
            ("3, 7-9", "9-7", "`9-7` are not seeds"),
            ("`a`", "`a`, `b`", "not the name of one claim"),
            ("`a`", "", "not the name of one claim"),
            ("because", "", "write the reason"),
            ("| 2 % ", "", "6 cells"),
            ("2 %", "2 to 3 %", "not a number such as"),
            ("2 %", "some", "not a number such as"),
            ("0.5 %", "", "not a number such as"),
            ("0.5 %", "1.1 %", "not between 0 and 0.5 times 2"),
            ("0.5 %", "-0.1 %", "not between 0 and 0.5 times 2"),
            ("2 % |", "not measured |", "has no tolerance"),
        ] {
            let error = error(&ROW.replace(from, to));
            assert!(error.contains(says) && error.contains("line 11"), "{error}");
        }
        let other_seeds = ROW.replace("3, 7-9", "5");
        for second in [ROW, &other_seeds] {
            let error = error(&format!("{ROW}\n{second}"));
            assert!(error.contains("line 12: the claim is listed a second time"), "{error}");
        }
        assert!(Missed::parse("# Figures\n").is_err());
    }
}
