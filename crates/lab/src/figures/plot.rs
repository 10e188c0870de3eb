//! `penstock-lab plot`: draws runs of `penstock-lab load --json` over time and compares them.
//!
//! # Approach
//!
//! A VM's bandwidth is the rate of the frames that the VM received. The command can also draw the
//! results of an experiment, if the names of the series have the form "run: vm". Events divide a
//! run into phases. The command prints a table with each VM's mean bandwidth in each phase, and the
//! change from the first to the last phase.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, ensure};

use super::files::Results;
use crate::evidence::stats::count;
use crate::evidence::{Axis, Panel, Picture, points};
use penstock_guest::load::IntervalReport;

/// Arguments of `penstock-lab plot`.
#[derive(Debug, Clone, clap::Args)]
pub struct PlotArgs {
    /// Title of a run, and a file with the run's results. The file comes from `penstock-lab load
    /// --json` or from an experiment
    #[arg(required = true, value_name = "TITLE=FILE")]
    pub runs: Vec<Named<PathBuf>>,
    /// Mark an event of every run, such as `10=flood begins`
    #[arg(long = "event", value_name = "SECONDS=WHAT")]
    pub events: Vec<Event>,
    /// VMs to draw, in the given order. Default: all VMs that received frames
    #[arg(long, value_delimiter = ',', value_name = "VM")]
    pub vms: Vec<String>,
    /// Draw the rate that a VM purchased, in Gbit/s, as a horizontal line
    #[arg(long, value_name = "VM=GBITS")]
    pub bought: Vec<Named<f64>>,
    /// Title of the picture
    #[arg(long, default_value = "Bandwidth over time")]
    pub title: String,
    /// Write the picture to an SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub out: Option<PathBuf>,
}

/// A named value: `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<T> {
    name: String,
    value: T,
}

impl<T: FromStr> FromStr for Named<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not NAME=VALUE");
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let value = value.parse().map_err(|_| wrong())?;
        Ok(Self { name: name.to_owned(), value })
    }
}

/// An event of a run, such as the start of a flood. The field `at` is the event's time in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    at: f64,
    what: String,
}

impl FromStr for Event {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not SECONDS=WHAT");
        let (at, what) = text.split_once('=').ok_or_else(wrong)?;
        let at = at.parse::<f64>().ok().filter(|at| at.is_finite()).ok_or_else(wrong)?;
        Ok(Self { at, what: what.to_owned() })
    }
}

/// Bandwidth of one VM over a run, as pairs of seconds and Gbit/s.
type Curve = Vec<(f64, f64)>;

/// The bandwidth curves of one run, one curve for each VM.
#[derive(Debug)]
struct Run {
    title: String,
    curves: Vec<(String, Curve)>,
    events: Vec<Event>,
}

/// Draws the picture and returns the table of mean bandwidths.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or contains no interval.
pub fn run(args: &PlotArgs) -> anyhow::Result<String> {
    let mut runs = Vec::new();
    for Named { name, value: file } in &args.runs {
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("reading {}", file.display()))?;
        if let Ok(results) = serde_json::from_str::<Results>(&text) {
            runs.extend(of_results(results));
            continue;
        }
        let curves = curves(&text, &args.vms);
        ensure!(
            !curves.is_empty(),
            "{}: no VM received frames; write the file with `penstock-lab load --json --interval`",
            file.display()
        );
        runs.push(Run { title: name.clone(), curves, events: Vec::new() });
    }
    for run in runs.iter_mut().filter(|run| run.events.is_empty()) {
        run.events.clone_from(&args.events);
    }
    if let Some(out) = &args.out {
        let picture = picture(args, &runs).svg();
        std::fs::write(out, picture).with_context(|| format!("writing {}", out.display()))?;
    }
    Ok(table(&runs))
}

/// Returns the runs in an experiment's results. The names of the experiment's series must have the
/// form "run: vm".
fn of_results(results: Results) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for record in results.into_records() {
        for series in &record.series {
            let Some((title, vm)) = series.name.split_once(": ") else { continue };
            let curve = (vm.to_owned(), points(series).collect());
            if let Some(run) = runs.iter_mut().find(|run| run.title == title) {
                run.curves.push(curve);
                continue;
            }
            let events = record.events(title).into_iter();
            let events = events.map(|(at, what)| Event { at, what }).collect();
            runs.push(Run { title: title.to_owned(), curves: vec![curve], events });
        }
    }
    runs
}

fn curves(text: &str, wanted: &[String]) -> Vec<(String, Curve)> {
    // The last line reports the whole run and has no time.
    let intervals: Vec<IntervalReport> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut names: Vec<String> = wanted.to_vec();
    if names.is_empty() {
        for vm in intervals.iter().flat_map(|i| &i.vms) {
            if vm.rx_frames > 0 && !names.contains(&vm.name) {
                names.push(vm.name.clone());
            }
        }
    }
    let of = |name: &String| {
        let at = |i: &IntervalReport| {
            let vm = i.vms.iter().find(|vm| vm.name == *name)?;
            Some((i.at_secs, vm.rx_bits_per_sec / 1e9))
        };
        (name.clone(), intervals.iter().filter_map(at).collect::<Curve>())
    };
    names.iter().map(of).filter(|(_, curve)| !curve.is_empty()).collect()
}

fn picture(args: &PlotArgs, runs: &[Run]) -> Picture {
    let all = || runs.iter().flat_map(|r| r.curves.iter().flat_map(|c| c.1.iter()));
    let highest = all().map(|p| p.1).fold(0.0, f64::max);
    let mut picture = Picture::new(args.title.clone());
    for run in runs {
        // All panels have the same y axis, so that they are easy to compare.
        let y = Axis::linear("bandwidth, Gbit/s").to(highest * 1.1);
        let mut panel = Panel::new(run.title.clone(), Axis::linear("time, s"), y);
        for (vm, curve) in &run.curves {
            panel = panel.line(vm.clone(), curve.iter().copied());
        }
        for Named { name, value } in &args.bought {
            panel = panel.published(format!("{name} bought"), *value);
        }
        for event in &run.events {
            panel = panel.event(event.what.clone(), event.at);
        }
        picture = picture.panel(panel);
    }
    picture
}

/// Returns the phases between events, as pairs of start and end in seconds.
fn phases(events: &[Event]) -> Vec<(f64, f64)> {
    let mut cuts: Vec<f64> = events.iter().map(|e| e.at).collect();
    cuts.sort_by(f64::total_cmp);
    let starts = std::iter::once(0.0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(f64::INFINITY));
    starts.zip(ends).collect()
}

/// Returns the mean of the reports that are entirely within a phase. Returns `None` if no report is
/// entirely within the phase.
fn mean(curve: &Curve, (from, to): (f64, f64)) -> Option<f64> {
    let step = curve.get(1).map_or(0.0, |second| second.0 - curve[0].0);
    // A report covers the time before it. The first report after an event may belong to both
    // phases.
    let within = |at: f64| at > from + step * 1.5 && at <= to + step * 0.1;
    let of_phase = curve.iter().filter(|p| within(p.0) && p.1.is_finite());
    let values: Vec<f64> = of_phase.map(|p| p.1).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / count(values.len()))
}

fn table(runs: &[Run]) -> String {
    let wide = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let title = wide(&mut runs.iter().map(|r| r.title.chars().count()));
    let vm = wide(&mut runs.iter().flat_map(|r| r.curves.iter().map(|c| c.0.chars().count())));
    let highest = runs.iter().flat_map(|r| r.curves.iter().flat_map(|c| c.1.iter()));
    let highest = highest.map(|p| p.1).fold(0.0, f64::max);
    let mut text = String::new();
    for run in runs {
        let phases = phases(&run.events);
        for (name, curve) in &run.curves {
            let means: Vec<Option<f64>> = phases.iter().map(|phase| mean(curve, *phase)).collect();
            let shown = |mean: &Option<f64>| match mean {
                Some(mean) => format!("{mean:6.2}"),
                None => format!("{:>6}", "-"),
            };
            let shown: Vec<_> = means.iter().map(shown).collect();
            let change = match (means.first(), means.last()) {
                (Some(Some(first)), Some(Some(last))) if phases.len() > 1 && *first > 0.0 => {
                    format!("  {:+6.1} %", 100.0 * (last / first - 1.0))
                }
                _ => String::new(),
            };
            text += &format!(
                "{:<title$}  {name:<vm$}  {}  {} Gbit/s{change}\n",
                run.title,
                sparkline(curve, highest, 40),
                shown.join(" -> "),
            );
        }
    }
    text
}

/// Draws the curve as text of at most `columns` characters, on a scale from 0 to `highest`.
fn sparkline(curve: &Curve, highest: f64, columns: usize) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let stride = curve.len().div_ceil(columns).max(1);
    let mean =
        |points: &[(f64, f64)]| points.iter().map(|p| p.1).sum::<f64>() / count(points.len());
    let step = |value: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
        let step = (value / highest.max(f64::MIN_POSITIVE) * 7.99).clamp(0.0, 7.0) as usize;
        STEPS[step]
    };
    curve.chunks(stride).map(|points| step(mean(points))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Mode, Outcome, Record};
    use crate::figures::EXPERIMENTS;
    use penstock_guest::load::VmReport;

    fn lines(after: f64) -> String {
        let report = |n: u32| IntervalReport {
            at_secs: f64::from(n) * 0.5,
            vms: vec![
                VmReport { name: "sender".to_owned(), ..VmReport::default() },
                VmReport {
                    name: "victim".to_owned(),
                    rx_frames: 1,
                    rx_bits_per_sec: if n <= 10 { 8e9 } else { after },
                    ..VmReport::default()
                },
            ],
            ..IntervalReport::default()
        };
        let lines: Vec<_> = (1..=20).map(|n| serde_json::to_string(&report(n)).unwrap()).collect();
        lines.join("\n") + "\n{\"secs\":10.0,\"vms\":[]}\n"
    }

    fn args(files: &[(&str, PathBuf)], out: Option<PathBuf>) -> PlotArgs {
        let named = |(name, value): &(&str, PathBuf)| Named {
            name: (*name).to_owned(),
            value: value.clone(),
        };
        PlotArgs {
            runs: files.iter().map(named).collect(),
            events: vec!["5=flood".parse().unwrap()],
            vms: Vec::new(),
            bought: vec!["victim=8".parse().unwrap()],
            title: "t".to_owned(),
            out,
        }
    }

    #[test]
    fn two_runs_become_a_table_of_phases_and_a_picture() {
        let dir = penstock_testing::temp_dir();
        let (bps, c2qos) = (dir.join("bps"), dir.join("c2qos"));
        std::fs::write(&bps, lines(4e9)).unwrap();
        std::fs::write(&c2qos, lines(8e9)).unwrap();
        let svg = dir.join("x.svg");
        let text = run(&args(&[("bps", bps), ("C2QoS", c2qos)], Some(svg.clone()))).unwrap();
        assert!(text.contains("8.00 ->   4.00 Gbit/s   -50.0 %"), "{text}");
        assert!(text.contains("+0.0 %") && text.contains('█') && !text.contains("sender"));
        assert!(std::fs::read_to_string(svg).unwrap().contains("flood"));
    }

    #[test]
    fn a_phase_of_which_nothing_was_reported_has_no_mean() {
        let before: Curve = (1..=10).map(|n| (f64::from(n) * 0.5, 8.0)).collect();
        let curves = vec![("victim".to_owned(), before), ("noisy".to_owned(), Curve::new())];
        let events = vec!["5=flood".parse().unwrap()];
        let text = table(&[Run { title: "bps".to_owned(), curves, events }]);
        assert!(text.contains("  8.00 ->      - Gbit/s\n"), "{text}");
        assert!(text.contains("     - ->      - Gbit/s\n") && !text.contains("NaN"), "{text}");
    }

    #[test]
    fn results_bring_their_own_events_and_what_is_no_number_is_left_out() {
        let mut outcome = Outcome::new();
        let at = |n: u32| f64::from(n) * 0.5;
        let value = |n: u32| match n {
            3 => f64::NAN,
            n if n <= 10 => 8.0,
            _ => 4.0,
        };
        outcome.series("calm: vm", "Gbit/s", (1..=20).map(|n| (at(n), value(n))));
        outcome.series("calm: nothing", "Gbit/s", [(0.5, f64::NAN), (9.0, f64::INFINITY)]);
        outcome.event("calm", 5.0, "flood");
        let record = Record::new(&EXPERIMENTS[0], Mode::Live, 1, outcome);
        let file = std::env::temp_dir().join(format!("penstock-plot-own-{}", std::process::id()));
        std::fs::write(&file, Results::of(&[vec![record]]).json().unwrap()).unwrap();
        let text = run(&args(&[("x", file.clone())], None)).unwrap();
        std::fs::remove_file(file).unwrap();
        assert!(text.contains("8.00 ->   4.00 Gbit/s   -50.0 %"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn a_run_without_intervals_is_refused_by_name() {
        let file = std::env::temp_dir().join(format!("penstock-plot-empty-{}", std::process::id()));
        std::fs::write(&file, "{}\n").unwrap();
        let error = run(&args(&[("x", file.clone())], None)).unwrap_err().to_string();
        assert!(error.contains("--interval"), "{error}");
        std::fs::remove_file(file).unwrap();
        assert!("x".parse::<Event>().is_err());
        assert!("x".parse::<Named<f64>>().is_err());
    }
}
