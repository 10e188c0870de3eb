//! `penstock-lab report` writes one HTML page with all results in a directory.
//!
//! # Approach
//!
//! The report is one HTML file. The report contains the pictures, drawn from the records, and loads
//! no scripts, fonts or other files. Each figure in the report has one table. The columns of the
//! table are the published value, the simulated value, the live value, the band, and whether the
//! claim holds. A further column has the live value of OVS-DPDK if OVS-DPDK was measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::files::Results;
use super::registry::{EXPERIMENTS, find};
use super::run::SHORT;
use super::seeds::{ClaimSummary, Summary};
use crate::evidence::claim::{number, number_or_dash};
use crate::evidence::picture::{self, escaped};
use crate::evidence::stats;
use crate::evidence::{Mode, OVS_DPDK, Record};

/// Arguments of `penstock-lab report`.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportArgs {
    /// Directory with the results of `penstock-lab run --out`
    #[arg(default_value = ".", value_name = "RESULTS")]
    pub results: PathBuf,
    /// Directory for report.html. Default: the directory of the results
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Records of runs, by experiment and mode.
type Found = BTreeMap<(String, Mode), Vec<Record>>;

/// Writes the HTML report and returns its path.
///
/// # Errors
/// Returns an error if the directory has no results, or if a file cannot be read or written.
pub fn run(args: &ReportArgs) -> anyhow::Result<PathBuf> {
    let found = read(&args.results)?;
    anyhow::ensure!(
        !found.is_empty(),
        "{}: no results; create them with `penstock-lab run all --out {}`",
        args.results.display(),
        args.results.display()
    );
    let dir = args.out.as_ref().unwrap_or(&args.results);
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let file = dir.join("report.html");
    std::fs::write(&file, page(&found)).with_context(|| format!("writing {}", file.display()))?;
    Ok(file)
}

/// Reads all result files in `dir`. If a JSON file is not a result or is from a short run, the
/// function skips the file with a message on standard error.
fn read(dir: &Path) -> anyhow::Result<Found> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut files: Vec<_> = entries.filter_map(Result::ok).map(|e| e.path()).collect();
    files.sort();
    let mut found = Found::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "json")) {
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("reading {}", file.display()))?;
        let Ok(results) = serde_json::from_str::<Results>(&text) else {
            eprintln!("penstock-lab: {}: skipped, not a result of an experiment", file.display());
            continue;
        };
        for record in results.into_records() {
            if record.platform.contains_key(SHORT) {
                eprintln!("penstock-lab: {}: skipped, a short run", file.display());
                continue;
            }
            found.entry((record.experiment.clone(), record.mode)).or_default().push(record);
        }
    }
    Ok(found)
}

/// Returns the names of the experiments in the order of the registry. Names that are not in the
/// registry are at the end of the list.
fn names(found: &Found) -> Vec<String> {
    let known = EXPERIMENTS.iter().map(|e| e.name);
    let has = |name: &str| found.keys().any(|key| key.0 == name);
    let mut names: Vec<String> = known.filter(|n| has(n)).map(str::to_owned).collect();
    for (name, _) in found.keys() {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn page(found: &Found) -> String {
    let names = names(found);
    let sections: String = names.iter().map(|name| section(name, found)).collect();
    let rows: String = names.iter().map(|name| overview_row(name, found)).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Penstock: figures</title>\n<style>{PAGE_STYLE}{}</style></head><body>\n\
         <h1>Penstock: published figures, simulated and live</h1>\n\
         <p>Simulated: the production worker in virtual time at the paper's scale. Live: real \
         ports on the machine named below each figure. A claim holds if the measured value lies \
         in its band for every seed. A claim without a band is only shown. A figure is \
         calibrated if one of its numbers was fitted to its outcome. Published values are dashed \
         lines and hollow diamonds.</p>\n\
         <table><thead><tr><th>Figure</th><th>What it shows</th><th>Simulated</th>\
         <th>Live</th></tr></thead><tbody>\n{rows}</tbody></table>\n{sections}</body></html>\n",
        picture::style()
    )
}

fn overview_row(name: &str, found: &Found) -> String {
    let about = find(name).map(|e| e.about).unwrap_or_default();
    let cell = |mode| match found.get(&(name.to_owned(), mode)) {
        None => "<td class=\"none\">not run</td>".to_owned(),
        Some(records) => {
            let summary = Summary::of(records);
            let calibrated = summary.as_ref().is_some_and(|s| !s.calibrated.is_empty());
            let claims = summary.map(|s| s.claims).unwrap_or_default();
            let judged: Vec<bool> = claims.iter().filter_map(|c| c.holds).collect();
            let held = judged.iter().filter(|holds| **holds).count();
            let mut parts = Vec::new();
            if !judged.is_empty() {
                parts.push(format!("{held} of {} hold", judged.len()));
            }
            if claims.len() > judged.len() {
                parts.push(format!("{} shown", claims.len() - judged.len()));
            }
            if calibrated {
                parts.push("calibrated".to_owned());
            }
            format!("<td class=\"{}\">{}</td>", class(&judged), parts.join(", "))
        }
    };
    format!(
        "<tr><td><a href=\"#{name}\">{name}</a></td><td>{}</td>{}{}</tr>\n",
        escaped(about),
        cell(Mode::Sim),
        cell(Mode::Live),
        name = escaped(name),
    )
}

fn section(name: &str, found: &Found) -> String {
    let records = |mode| found.get(&(name.to_owned(), mode)).map_or(&[][..], Vec::as_slice);
    let (sim, live) = (records(Mode::Sim), records(Mode::Live));
    let experiment = find(name).ok();
    let any = sim.first().or(live.first());
    let source = any.map(|r| r.source.as_str()).unwrap_or_default();
    let about = experiment.map(|e| e.about).unwrap_or_default();
    let mut html = format!(
        "<section id=\"{0}\"><h2>{0}</h2><p>{1}: {2}</p>\n",
        escaped(name),
        escaped(source),
        escaped(about)
    );
    for parameter in sim.first().map(Record::calibrated).into_iter().flatten() {
        html += &format!("<p>Simulated, {}.</p>\n", escaped(&parameter.told()));
    }
    html += &table(sim, live);
    for (mode, records) in [(Mode::Sim, sim), (Mode::Live, live)] {
        let Some(first) = records.first() else { continue };
        if let Some(experiment) = experiment {
            let id = format!("{name}-{mode}");
            let picture = experiment.drawn(first).inline_svg(&id);
            let caption = caption(first, records.len());
            html += &format!("<figure>{picture}<figcaption>{caption}</figcaption></figure>\n");
        }
    }
    html + "</section>\n"
}

fn caption(record: &Record, runs: usize) -> String {
    let seeds = match runs {
        1 => format!("seed {}", record.seed),
        n => format!("seed {} of {n} seeds", record.seed),
    };
    let plain = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(n) => n.as_f64().map(number),
        serde_json::Value::Bool(b) => Some(b.to_string()),
        _ => None,
    };
    let notes: Vec<_> = record
        .platform
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}: {}", plain(value)?)))
        .collect();
    escaped(&format!("{}, {seeds}. {}", record.mode, notes.join("; ")))
}

fn table(sim: &[Record], live: &[Record]) -> String {
    let summaries = [sim, live].map(|r| Summary::of(r).map(|s| s.claims).unwrap_or_default());
    let mut ids: Vec<&ClaimSummary> = Vec::new();
    for claim in summaries.iter().flatten() {
        if ids.iter().all(|known| known.id != claim.id) {
            ids.push(claim);
        }
    }
    let mut html = "<table><thead><tr><th>Claim</th><th>Published</th><th>Simulated</th>\
                    <th>Live</th><th>OVS-DPDK, live</th><th>Band</th><th>Holds</th></tr></thead>\
                    <tbody>\n"
        .to_owned();
    for claim in ids {
        let of = |claims: &[ClaimSummary]| claims.iter().find(|c| c.id == claim.id).cloned();
        let (in_sim, in_live) = (of(&summaries[0]), of(&summaries[1]));
        let text = |c: &Option<ClaimSummary>| {
            c.as_ref().map_or_else(|| "-".to_owned(), ClaimSummary::measured)
        };
        let beside: Vec<f64> = live.iter().filter_map(|r| r.beside(OVS_DPDK, &claim.id)).collect();
        let beside = Some(stats::percentile(&beside, 50.0)).filter(|v| v.is_finite());
        html += &format!(
            "<tr><td><code>{}</code><br><span class=\"dim\">{}</span></td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{} <span class=\"dim\">{}</span></td>{}</tr>\n",
            escaped(&claim.id),
            escaped(&claim.statement),
            number_or_dash(claim.published),
            escaped(&text(&in_sim)),
            escaped(&text(&in_live)),
            number_or_dash(beside),
            escaped(&bands(in_sim.as_ref(), in_live.as_ref())),
            escaped(&claim.unit),
            verdict(in_sim.as_ref(), in_live.as_ref()),
        );
    }
    html + "</tbody></table>\n"
}

/// Returns a claim's band as text, or both bands if simulation and live run have different bands.
fn bands(sim: Option<&ClaimSummary>, live: Option<&ClaimSummary>) -> String {
    let band = |c: &ClaimSummary| c.band.clone();
    match (sim.map(band), live.map(band)) {
        (Some(a), Some(b)) if a == b => a,
        (Some(a), Some(b)) => format!("sim {a}, live {b}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => String::new(),
    }
}

fn verdict(sim: Option<&ClaimSummary>, live: Option<&ClaimSummary>) -> String {
    let parts: Vec<String> = [("sim", sim), ("live", live)]
        .into_iter()
        .filter_map(|(mode, claim)| {
            let claim = claim?;
            Some(match (claim.holds, claim.of) {
                (None, _) => format!("{mode} shown"),
                (Some(true), _) => format!("{mode} yes"),
                (Some(false), 1) => format!("{mode} NO"),
                (Some(false), of) => format!("{mode} {} of {of}", claim.held),
            })
        })
        .collect();
    let judged: Vec<bool> = [sim, live].into_iter().flatten().filter_map(|c| c.holds).collect();
    format!("<td class=\"{}\">{}</td>", class(&judged), parts.join(", "))
}

/// Returns the CSS class of a cell. `judged` says for each claim with a band whether the claim
/// holds.
fn class(judged: &[bool]) -> &'static str {
    match judged {
        [] => "none",
        all if all.iter().all(|holds| *holds) => "yes",
        _ => "no",
    }
}

const PAGE_STYLE: &str = "
:root{color-scheme:light dark}
body{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;line-height:1.45;
max-width:1120px;margin:2rem auto;padding:0 1rem;background:#ffffff;color:#1f2328}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem;border-bottom:1px solid #d0d7de}
table{border-collapse:collapse;width:100%;font-size:.88rem;margin:1rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #d0d7de}
code{font-size:.95em}.dim{color:#57606a;font-size:.92em}.none{color:#57606a}
.yes{color:#116329;font-weight:600}.no{color:#b3261e;font-weight:600}
figure{margin:1rem 0;overflow-x:auto}figure svg{max-width:100%;height:auto}
figcaption{color:#57606a;font-size:.8rem}a{color:#0550ae}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}
h2,th,td{border-color:#30363d}.dim,.none,figcaption{color:#9aa4ae}
.yes{color:#56d364}.no{color:#ff7b72}a{color:#79c0ff}}
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Claim, Experiment, Outcome};

    fn record(mode: Mode, value: f64) -> Record {
        let experiment: &Experiment = &EXPERIMENTS[0];
        let mut outcome = Outcome::new();
        let claim = Claim::new("a<b", "A & B.", "%");
        outcome.claim(claim.published(-20.0).within(-1.0, 1.0).measured(value));
        outcome.claim(Claim::new("beside", "Shown.", "%").measured(7.0));
        outcome.note("cpu", "x");
        if mode == Mode::Live {
            outcome.beside(OVS_DPDK, "a<b", -8.5);
        }
        Record::new(experiment, mode, 1, outcome)
    }

    #[test]
    fn the_page_has_paper_sim_live_and_peer_side_by_side_and_fetches_nothing() {
        let name = EXPERIMENTS[0].name.to_owned();
        let found = Found::from([
            ((name.clone(), Mode::Sim), vec![record(Mode::Sim, 0.5), record(Mode::Sim, 0.7)]),
            ((name, Mode::Live), vec![record(Mode::Live, 3.0)]),
        ]);
        let page = page(&found);
        for text in [
            "-20",
            "0.6 [0.5..0.7]",
            ">3<",
            "-8.5",
            "-1 to 1",
            "live NO",
            "a&lt;b",
            "1 of 1 hold, 1 shown",
            "0 of 1 hold, 1 shown",
            "sim shown, live shown",
        ] {
            assert!(page.contains(text), "{text} is missing");
        }
        assert!(page.contains("prefers-color-scheme:dark"));
        let fetches = ["src=", "url(http", "@import", "<script", "<link"];
        assert!(fetches.iter().all(|f| !page.contains(f)));
        assert_eq!(
            page.matches("http").count(),
            page.matches("http://www.w3.org/2000/svg").count()
        );
    }

    #[test]
    fn a_figure_that_is_only_shown_does_not_look_as_if_it_held() {
        let experiment = &EXPERIMENTS[0];
        let mut outcome = Outcome::new();
        outcome.claim(Claim::new("beside", "Shown.", "%").measured(7.0));
        outcome.calibrated(["a size", "a loss", "another size"]);
        let record = Record::new(experiment, Mode::Sim, 1, outcome);
        let page = page(&Found::from([((experiment.name.to_owned(), Mode::Sim), vec![record])]));
        assert!(page.contains("<td class=\"none\">1 shown, calibrated</td>"), "{page}");
        assert!(!page.contains("class=\"yes\"") && !page.contains(" hold,"), "{page}");
        assert!(page.contains("Simulated, calibrated: a size; fitted to a loss"), "{page}");
    }

    #[test]
    fn an_empty_directory_is_no_report() {
        let dir = penstock_testing::temp_dir();
        let args = ReportArgs { results: dir.to_path_buf(), out: None };
        assert!(run(&args).unwrap_err().to_string().contains("lab run all"));
        std::fs::write(dir.join("other.json"), "[1]").unwrap();
        assert!(run(&args).is_err());
        let results = Results::of(&[vec![record(Mode::Sim, 0.0)]]);
        std::fs::write(dir.join("x.json"), results.json().unwrap()).unwrap();
        assert!(run(&args).unwrap().ends_with("report.html"));
    }
}
