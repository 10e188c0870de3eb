//! Reads and writes the cost model's file. `penstock calibrate` measures the cost model and writes
//! its file. If a file has a mistake, the whole file is refused.
//!
//! Errors of a cost model have the same form as errors of the host configuration.
//! `docs/reference/cost-model.md` lists the file's keys and units.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::path::Path;

use penstock_qos::cost_model::{
    self as qos, About, Action, ActionTerm, BatchTerm, Cell, CellKey, Coefficient, CostModel,
    ModelError, Parts, Source, Spread, Verification, Verified,
};
use penstock_toml::ConfigErrors;
use penstock_toml::text::read as text;
use penstock_toml::{Object, Report, list, section, unknown_sections};
use penstock_units::TscRate;
use serde::Deserialize;

const SECTIONS: [&str; 9] =
    ["about", "batch", "numa_remote", "vms", "cores", "action", "cell", "verification", "verified"];

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpreadTable {
    median: f64,
    min: f64,
    max: f64,
}

impl From<SpreadTable> for Spread {
    fn from(SpreadTable { median, min, max }: SpreadTable) -> Self {
        Self { median, min, max }
    }
}

/// A value of type `T` that is written as text in the file of a cost model.
#[derive(Clone, Copy, Debug)]
struct Word<T>(T);

impl<'de, T: core::str::FromStr<Err: core::fmt::Display>> Deserialize<'de> for Word<T> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, "a word; see docs/reference/cost-model.md").map(Self)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AboutTable {
    version: u32,
    host: String,
    date: String,
    cpu: String,
    made_by: String,
    core_distance_ns: Option<u32>,
    tsc_hz: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchTable {
    per_batch: SpreadTable,
    frames: u32,
    source: Word<Source>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FactorTable {
    factor: SpreadTable,
    source: Word<Source>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CountTable {
    count: u32,
    factor: SpreadTable,
    source: Word<Source>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionTable {
    name: Word<Action>,
    per_frame: SpreadTable,
    per_byte: f64,
    source: Word<Source>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CellTable {
    size: u16,
    flows: Word<qos::Flows>,
    rules: u32,
    ring: Word<qos::RingKind>,
    ingress: SpreadTable,
    classification: SpreadTable,
    egress: SpreadTable,
    source: Word<Source>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VerificationTable {
    date: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VerifiedTable {
    name: String,
    bought: f64,
    delivered: f64,
    band: f64,
}

impl CellTable {
    fn key(&self) -> CellKey {
        CellKey { ring: self.ring.0, flows: self.flows.0, rules: self.rules, size: self.size }
    }
}

/// The tables of a cost model's file.
struct Draft<'a> {
    about: Option<Object<'a, AboutTable>>,
    batch: Option<Object<'a, BatchTable>>,
    numa_remote: Option<Object<'a, FactorTable>>,
    vms: Vec<Object<'a, CountTable>>,
    cores: Vec<Object<'a, CountTable>>,
    actions: Vec<Object<'a, ActionTable>>,
    cells: Vec<Object<'a, CellTable>>,
    verification: Option<Object<'a, VerificationTable>>,
    verified: Vec<Object<'a, VerifiedTable>>,
}

/// Reads the text of a cost model. The argument `file` is the file's name in error messages.
///
/// # Errors
/// Returns an error that lists all mistakes of the cost model's text, in the order of the text.
pub fn parse_model(text: &str, file: &str) -> Result<CostModel, ConfigErrors> {
    let read = penstock_toml::read(text, file, |root, report| {
        unknown_sections(root, &SECTIONS, report);
        let draft = Draft {
            about: section(root, "about", report),
            batch: section(root, "batch", report),
            numa_remote: section(root, "numa_remote", report),
            vms: list(root, "vms", report),
            cores: list(root, "cores", report),
            actions: list(root, "action", report),
            cells: list(root, "cell", report),
            verification: section(root, "verification", report),
            verified: list(root, "verified", report),
        };
        check(&draft, report);
        if !report.is_empty() {
            return None;
        }
        let Some(parts) = draft.parts() else {
            unreachable!("a part of the cost model is missing, but no mistake was reported")
        };
        let remedy = "measure again with `penstock calibrate`, or correct the value";
        CostModel::new(parts).map_err(|error| draft.tell(error, remedy, report)).ok()
    });
    read.map_err(|mut errors| {
        for error in errors.0.iter_mut().filter(|error| error.object == "syntax") {
            "write the file again with `penstock calibrate`, or correct the TOML syntax"
                .clone_into(&mut error.remedy);
        }
        errors
    })
}

/// Reads the file of a cost model.
///
/// # Errors
/// Returns all mistakes of the file, not only the first mistake. A file that cannot be read counts
/// as a mistake.
pub fn load_model(path: &Path) -> Result<CostModel, ConfigErrors> {
    parse_model(&penstock_toml::read_file(path)?, &path.display().to_string())
}

/// Reports missing sections, an unknown version, a `tsc_hz` out of range, and duplicates.
fn check(draft: &Draft<'_>, report: &mut Report<'_>) {
    let missing = [
        ("about", draft.about.is_none()),
        ("batch", draft.batch.is_none()),
        ("numa_remote", draft.numa_remote.is_none()),
    ];
    let remedy = "write the file again with `penstock calibrate`";
    for (name, _) in missing.iter().filter(|(_, missing)| *missing) {
        report.file(format!("the section [{name}] is missing"), remedy);
    }
    if let (None, Some(object)) = (&draft.verification, draft.verified.first()) {
        let problem = "the section [verification] is missing";
        report.at(object, "name", problem, "verify again with `penstock calibrate --verify`");
    }
    if let Some(object) = &draft.about
        && let Some(about) = &object.value
    {
        if about.version != qos::VERSION {
            let problem = format!("version {} is not {}", about.version, qos::VERSION);
            report.at(object, "version", problem, remedy);
        }
        if about.tsc_hz < 1_000_000 {
            let problem = format!("`tsc_hz` {} is out of range", about.tsc_hz);
            report.at(object, "tsc_hz", problem, remedy);
        }
    }
    twice(&draft.vms, "count", |table| table.count, report);
    twice(&draft.cores, "count", |table| table.count, report);
    twice(&draft.actions, "name", |table| table.name.0, report);
    twice(&draft.cells, "size", CellTable::key, report);
}

fn twice<T, K: Ord>(
    objects: &[Object<'_, T>],
    at: &str,
    key: impl Fn(&T) -> K,
    report: &mut Report<'_>,
) {
    let mut seen = std::collections::BTreeSet::new();
    for object in objects {
        let Some(value) = &object.value else { continue };
        if !seen.insert(key(value)) {
            report.at(object, at, "the entry exists twice", "remove the duplicate entry");
        }
    }
}

impl Draft<'_> {
    fn parts(&self) -> Option<Parts> {
        fn all<T, K: Ord, V>(
            objects: &[Object<'_, T>],
            pair: impl Fn(&T) -> (K, V),
        ) -> Option<BTreeMap<K, V>> {
            objects.iter().map(|object| object.value.as_ref().map(&pair)).collect()
        }
        let counted = |table: &CountTable| {
            let factor = table.factor.into();
            (table.count, Coefficient { factor, source: table.source.0 })
        };
        let about = self.about.as_ref()?.value.clone()?;
        let batch = self.batch.as_ref()?.value?;
        let numa = self.numa_remote.as_ref()?.value?;
        Some(Parts {
            about: About {
                host: about.host,
                date: about.date,
                cpu: about.cpu,
                made_by: about.made_by,
                core_distance_ns: about.core_distance_ns,
                tsc: TscRate::from_hz(about.tsc_hz),
            },
            cells: all(&self.cells, |table| {
                let cell = Cell {
                    ingress: table.ingress.into(),
                    classification: table.classification.into(),
                    egress: table.egress.into(),
                    source: table.source.0,
                };
                (table.key(), cell)
            })?,
            batch: BatchTerm {
                per_batch: batch.per_batch.into(),
                frames: batch.frames,
                source: batch.source.0,
            },
            actions: all(&self.actions, |table| {
                let (per_frame, per_byte) = (table.per_frame.into(), table.per_byte);
                (table.name.0, ActionTerm { per_frame, per_byte, source: table.source.0 })
            })?,
            vms: all(&self.vms, counted)?,
            cores: all(&self.cores, counted)?,
            numa_remote: Coefficient { factor: numa.factor.into(), source: numa.source.0 },
            verified: self.verified()?,
        })
    }

    /// Returns the result of the last verification, if there is one. The outer `None` means that an
    /// entry has a mistake.
    fn verified(&self) -> Option<Option<Verification>> {
        let Some(of) = &self.verification else { return Some(None) };
        let date = of.value.as_ref()?.date.clone();
        let case = |object: &Object<'_, VerifiedTable>| {
            let VerifiedTable { name, bought, delivered, band } = object.value.clone()?;
            Some(Verified { name, bought, delivered, band })
        };
        let cases = self.verified.iter().map(case).collect::<Option<_>>()?;
        Some(Some(Verification { date, cases }))
    }

    /// Reports an error of [`CostModel::new`] at the place of the mistake in the file.
    fn tell(&self, error: ModelError, remedy: &str, report: &mut Report<'_>) {
        let text = error.to_string();
        let (problem, why) = text.split_once("; ").unwrap_or((&text, remedy));
        let remedy = format!("{why}; {remedy}");
        fn find<'a, 'b, T>(
            objects: &'a [Object<'b, T>],
            is: impl Fn(&T) -> bool,
        ) -> Option<&'a Object<'b, T>> {
            objects.iter().find(|object| object.value.as_ref().is_some_and(&is))
        }
        match error {
            ModelError::Cell(key) => match find(&self.cells, |table| table.key() == key) {
                Some(object) => report.at(object, "ingress", problem, remedy),
                None => report.file(problem, remedy),
            },
            ModelError::Action(action) => {
                match find(&self.actions, |table| table.name.0 == action) {
                    Some(object) => report.at(object, "per_frame", problem, remedy),
                    None => report.file(problem, remedy),
                }
            }
            ModelError::Vms(n) | ModelError::Cores(n) => {
                let vms = matches!(error, ModelError::Vms(_));
                let objects = if vms { &self.vms } else { &self.cores };
                match find(objects, |table| table.count == n) {
                    Some(object) => report.at(object, "factor", problem, remedy),
                    None => report.file(problem, remedy),
                }
            }
            ModelError::Batch => match &self.batch {
                Some(object) => report.at(object, "per_batch", problem, remedy),
                None => report.file(problem, remedy),
            },
            ModelError::Numa => match &self.numa_remote {
                Some(object) => report.at(object, "factor", problem, remedy),
                None => report.file(problem, remedy),
            },
            ModelError::Verified(at) => match self.verified.get(at) {
                Some(object) => report.at(object, "bought", problem, remedy),
                None => report.file(problem, remedy),
            },
            _ => report.file(problem, remedy),
        }
    }
}

#[must_use]
pub fn model_text(model: &CostModel) -> String {
    let mut out = String::from(
        "# Cost of a frame on this host, in cycles of the time-stamp counter.\n\
         # Written by penstock calibrate; docs/reference/cost-model.md says how to read it.\n",
    );
    // Writing to a String cannot fail.
    let _ = write_model(&mut out, model.parts());
    out
}

fn spread(spread: &Spread) -> String {
    let Spread { median, min, max } = spread;
    format!("{{ median = {median:.3}, min = {min:.3}, max = {max:.3} }}")
}

/// Returns `text` as a quoted TOML string.
fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string().trim().to_owned()
}

fn write_model(out: &mut String, parts: &Parts) -> core::fmt::Result {
    let About { host, date, cpu, made_by, core_distance_ns, tsc } = &parts.about;
    writeln!(out, "\n[about]\nversion = {}", qos::VERSION)?;
    for (key, value) in [("host", host), ("date", date), ("cpu", cpu), ("made_by", made_by)] {
        writeln!(out, "{key} = {}", quoted(value))?;
    }
    if let Some(nanos) = core_distance_ns {
        writeln!(out, "core_distance_ns = {nanos}")?;
    }
    writeln!(out, "tsc_hz = {}", tsc.hz())?;
    let batch = &parts.batch;
    writeln!(out, "\n[batch]\nper_batch = {}", spread(&batch.per_batch))?;
    writeln!(out, "frames = {}\nsource = \"{}\"", batch.frames, batch.source)?;
    let numa = &parts.numa_remote;
    writeln!(out, "\n[numa_remote]\nfactor = {}", spread(&numa.factor))?;
    writeln!(out, "source = \"{}\"", numa.source)?;
    for (name, table) in [("vms", &parts.vms), ("cores", &parts.cores)] {
        for (count, coefficient) in table {
            writeln!(out, "\n[[{name}]]\ncount = {count}")?;
            writeln!(out, "factor = {}", spread(&coefficient.factor))?;
            writeln!(out, "source = \"{}\"", coefficient.source)?;
        }
    }
    for (action, term) in &parts.actions {
        writeln!(out, "\n[[action]]\nname = \"{action}\"")?;
        writeln!(out, "per_frame = {}", spread(&term.per_frame))?;
        writeln!(out, "per_byte = {:.5}\nsource = \"{}\"", term.per_byte, term.source)?;
    }
    for (key, cell) in &parts.cells {
        writeln!(out, "\n[[cell]]\nsize = {}\nflows = \"{}\"", key.size, key.flows)?;
        writeln!(out, "rules = {}\nring = \"{}\"", key.rules, key.ring)?;
        writeln!(out, "ingress = {}", spread(&cell.ingress))?;
        writeln!(out, "classification = {}", spread(&cell.classification))?;
        writeln!(out, "egress = {}", spread(&cell.egress))?;
        writeln!(out, "source = \"{}\"", cell.source)?;
    }
    if let Some(Verification { date, cases }) = &parts.verified {
        writeln!(out, "\n[verification]\ndate = {}", quoted(date))?;
        for Verified { name, bought, delivered, band } in cases {
            writeln!(out, "\n[[verified]]\nname = {}", quoted(name))?;
            writeln!(out, "bought = {bought:.1}\ndelivered = {delivered:.1}\nband = {band:.4}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::model_toml;

    /// The text of a small valid cost model, with a quoted name and a range of cycles.
    fn good() -> String {
        let text = model_toml().replace("c, Linux 6.1.0-9", r#"a \"cpu\""#);
        text.replace("min = 320, max = 320", "min = 290.5, max = 330")
    }

    fn refused(text: &str) -> String {
        parse_model(text, "model.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_model_is_read_and_written_and_read_again() {
        let model = parse_model(&good(), "model.toml").unwrap();
        assert_eq!(model.parts().about.cpu, "a \"cpu\"");
        assert_eq!(model.parts().cells.len(), 4);
        assert_eq!(parse_model(&model_text(&model), "again.toml").unwrap(), model);
    }

    #[test]
    fn the_result_of_a_verification_is_kept_with_the_model() {
        let case =
            "[[verified]]\nname = \"64 bytes\"\nbought = 1000\ndelivered = 860\nband = 0.03\n";
        let text = format!("{}\n[verification]\ndate = \"2026-11-28\"\n{case}", good());
        let model = parse_model(&text, "model.toml").unwrap();
        let verified = model.parts().verified.as_ref().unwrap();
        assert!(!verified.holds(), "{verified}");
        assert_eq!(parse_model(&model_text(&model), "again.toml").unwrap(), model);
        let error = refused(&text.replace("bought = 1000", "bought = 0"));
        assert!(error.contains("the verified contract number 1 has impossible numbers"), "{error}");
        let error = refused(&(good() + case));
        assert!(error.contains("the section [verification] is missing; verify again"), "{error}");
    }

    #[test]
    fn all_mistakes_are_told_with_their_lines() {
        let text = good()
            .replace("version = 1", "version = 9")
            .replace("frames = 32", "frames = 32\nfloor = 1")
            .replacen("flows = \"single\"", "flows = \"some\"", 1);
        let errors = parse_model(&text, "model.toml").unwrap_err();
        let lines: Vec<u32> = errors.0.iter().map(|error| error.line).collect();
        assert_eq!(lines, [3, 13, 38], "{errors}");
        assert!(errors.to_string().contains("flows are \"single\" or \"multiple\""), "{errors}");
    }

    #[test]
    fn what_makes_no_sense_as_a_whole_is_refused_where_it_stands() {
        let hole = good().replacen("size = 1064", "size = 1024", 1);
        let error = refused(&hole);
        assert!(
            error.contains("the cell for size 1064, single flows, 1 rules, split ring"),
            "{error}"
        );
        let bad = good().replace("median = 150, min = 150", "median = 150, min = 151");
        let error = refused(&bad);
        assert!(
            error.starts_with("model.toml:50:11: [[cell]] number 2: the cell for size 1064"),
            "{error}"
        );
        let double = good()
            + "\n[[vms]]\ncount = 1\nfactor = { median = 1, min = 1, max = 1 }\n\
               source = \"measured\"\n";
        assert!(refused(&double).contains("the entry exists twice"));
        let none = good().replace("[[vms]]\ncount = 1", "[[vms]]\ncount = 2");
        assert!(
            refused(&none).contains("the coefficient for 1 VMs is missing"),
            "{}",
            refused(&none)
        );
        assert!(refused("").contains("the section [about] is missing"));
        assert!(refused("x = ").contains("syntax"));
        assert!(refused(&(good() + "\n[abuot]\n")).contains("did you mean `about`?"));
    }
}
