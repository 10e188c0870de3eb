//! Tests of `penstock-lab bench` as a process: its output, and that it leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use penstock_guest::bed::process::await_some;

/// Time limit for the removal of a benchmark's processes and files.
const PATIENCE: Duration = Duration::from_secs(20);
/// Arguments that keep a benchmark short and its priority normal, with JSON on standard output.
const SHORT: [&str; 3] = ["--no-nice", "--json", "-"];

fn bench(name: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock-lab"));
    command
        .args(["bench", name])
        .args(SHORT)
        .args(more)
        .env_remove("PENSTOCK_SOCKET")
        .stdin(Stdio::null());
    command
}

/// Directory of a running benchmark.
fn directory(child: &Child) -> PathBuf {
    std::env::temp_dir().join(format!("penstock-bench-{}", child.id()))
}

/// Waits for a benchmark that must succeed and returns its report.
#[track_caller]
fn report(command: &mut Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Processes whose command line names `directory`.
fn processes_of(directory: &std::path::Path) -> usize {
    let name = directory.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(name)).count()
}

#[test]
fn frames_pass_and_the_report_has_a_row_a_case() {
    let options = ["--cases", "l3", "--secs", "0.1", "--flows", "1,1000", "--runs", "2"];
    let child = bench("v2v", &options)
        .args(["--sizes", "64,imix"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let directory = directory(&child);
    let output = child.wait_with_output().unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "v2v");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!((&row["subject"], &row["runs"]), (&"penstock".into(), &2.into()), "{row}");
        assert!(row["mpps"].as_f64().unwrap() > 0.0, "{row}");
        let cycles = row["cycles_per_packet"].as_f64().unwrap();
        assert!(row["min"].as_f64().unwrap() <= cycles, "{row}");
        assert!(row["max"].as_f64().unwrap() >= cycles && cycles > 1.0, "{row}");
    }
    assert_eq!((&rows[0]["size"], &rows[2]["size"]), (&64.into(), &"imix".into()));
    assert!(!directory.exists() && processes_of(&directory) == 0);
}

#[test]
fn nothing_stays_when_it_is_killed_or_told_to_end() {
    for signal in ["KILL", "TERM", "INT"] {
        let mut child = bench("v2v", &["--sizes", "64", "--secs", "0.1", "--runs", "1000"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let directory = directory(&child);
        // When the first run has ended, switch and generator are running.
        let mut progress = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("run 1/") {
            line.clear();
            assert!(progress.read_line(&mut line).unwrap() > 0, "it ended by itself");
        }
        assert!(directory.exists() && processes_of(&directory) > 0);
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        let status = child.wait().unwrap();
        assert!(!status.success());
        if signal != "KILL" {
            // The benchmark waited for its guard, so it has removed everything when it ends.
            assert!(!directory.exists() && processes_of(&directory) == 0, "{signal}");
        }
        await_some("the guard's work", PATIENCE, || {
            Ok((!directory.exists() && processes_of(&directory) == 0).then_some(()))
        })
        .unwrap();
    }
}

#[test]
fn an_error_is_status_2_and_says_what_to_do() {
    let output = bench("v2v", &["--worker-core", "4095"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("core 4095 is not allowed"), "{said}");
}

#[test]
fn a_frame_at_a_time_has_a_latency() {
    let report = report(&mut bench("rr", &["--runs", "2", "--secs", "0.1"]));
    let rows = report["rows"].as_array().unwrap();
    let medians: Vec<_> = rows.iter().map(|row| row["median"].as_f64().unwrap()).collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0]["metric"], "latency_p50_ns");
    assert!(medians.is_sorted() && medians[0] > 0.0, "{medians:?}");
}

#[test]
fn rates_are_searched_below_the_maximum() {
    let options = ["--trial", "0.02", "--confirm", "0.04"];
    let report = report(&mut bench("loss", &options));
    let rows = report["rows"].as_array().unwrap();
    let cases: Vec<_> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["max", "ndr", "pdr-0.5%"]);
    let mpps: Vec<_> = rows.iter().map(|row| row["mpps"].as_f64().unwrap()).collect();
    // On a machine shared with other tests, a rate without any loss may be 0 and is never above the
    // first.
    assert!(mpps[0] > 0.0 && mpps[1] <= mpps[0] && mpps[2] <= mpps[0], "{mpps:?}");
}
