//! Tests of the program `penstock-lab bench`. The tests check the program's output, and the removal
//! of its processes and files.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use penstock_guest::bed::process::await_some;

/// Time limit for the removal of a benchmark's processes and files.
const PATIENCE: Duration = Duration::from_secs(20);
/// Arguments with which a benchmark runs at normal priority and prints JSON.
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

/// Returns the temporary directory of a running benchmark.
fn directory(child: &Child) -> PathBuf {
    std::env::temp_dir().join(format!("penstock-bench-{}", child.id()))
}

/// Runs a benchmark that must succeed, and returns the benchmark's JSON report.
#[track_caller]
fn report(command: &mut Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the number of processes with `directory` in their command lines.
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
        end_after_a_run(
            bench("v2v", &["--sizes", "64", "--secs", "0.1", "--runs", "1000"]),
            signal,
        );
    }
}

/// Sends `signal` to a benchmark after its first run, and checks that no process, file or namespace
/// of the benchmark stays.
#[track_caller]
fn end_after_a_run(mut command: Command, signal: &str) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let directory = directory(&child);
    let namespaces = format!("pb{}-", child.id());
    let gone =
        || !directory.exists() && processes_of(&directory) == 0 && !has_namespace(&namespaces);
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
        assert!(gone(), "{signal}");
    }
    await_some("the guard's work", PATIENCE, || Ok(gone().then_some(()))).unwrap();
}

/// Returns true if the name of a network namespace begins with `prefix`.
fn has_namespace(prefix: &str) -> bool {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with(prefix))
}

#[test]
fn every_pair_of_a_mesh_passes_frames_with_one_worker_and_with_two() {
    // The second worker shares the load's core if there is no third one.
    let two = std::thread::available_parallelism().unwrap().get() > 1;
    let workers = if two { "1,2" } else { "1" };
    let options = ["--ports", "2,5", "--workers", workers, "--secs", "0.1", "--runs", "2"];
    let report = report(&mut bench("mesh", &options));
    assert_eq!(report["bench"], "mesh");
    let rows = report["rows"].as_array().unwrap();
    let about = rows.iter().map(|row| format!("{} {}", row["case"], row["flows"]));
    let one = ["\"mesh-1-worker\" 2", "\"mesh-1-worker\" 20"];
    let more = ["\"mesh-2-workers\" 2", "\"mesh-2-workers\" 20"];
    let both = [one, more].concat();
    assert_eq!(about.collect::<Vec<_>>(), both[..if two { 4 } else { 2 }]);
    for row in rows {
        assert_eq!((&row["subject"], &row["runs"]), (&"penstock".into(), &2.into()), "{row}");
        assert!(row["mpps"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["cycles_per_packet"].as_f64().unwrap() > 1.0, "{row}");
        assert!(row["detail"]["frames_of_the_least_pair"].as_f64().unwrap() > 0.0, "{row}");
        let limit = row["detail"]["limited_by"].as_str().unwrap();
        assert!(["worker", "load", "shared core"].contains(&limit), "{row}");
    }
}

#[test]
fn an_uplink_takes_the_frames_of_all_ports_and_its_namespace_goes() {
    let options = ["--uplink", "--ports", "1,3", "--workers", "1", "--secs", "0.1", "--runs", "2"];
    let output = bench("mesh", &options).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if !nix::unistd::geteuid().is_root() {
        assert_eq!(output.status.code(), Some(2));
        assert!(
            said.contains("uplink: needs root") && said.contains("leave --uplink out"),
            "{said}"
        );
        return;
    }
    if said.contains("ip netns add") {
        penstock_testing::skip(format_args!("`ip netns add` needs root and iproute2: {said}"));
        return;
    }
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let flows: Vec<_> = rows.iter().map(|row| row["flows"].as_u64().unwrap()).collect();
    assert_eq!((&rows[0]["case"], flows), (&"uplink-1-worker".into(), vec![1, 3]));
    assert!(rows.iter().all(|row| row["mpps"].as_f64().unwrap() > 0.0), "{rows:?}");
    for signal in ["KILL", "TERM", "INT"] {
        let options = ["--uplink", "--ports", "1", "--workers", "1", "--secs", "0.1"];
        let mut command = bench("mesh", &options);
        command.args(["--runs", "1000"]);
        end_after_a_run(command, signal);
    }
}

#[test]
fn a_mesh_that_cannot_be_is_refused_at_once() {
    for (options, expected) in [
        (&["--ports", "1"][..], "--ports 1: a single port has no other port to send to"),
        (&["--ports", "8,8"], "--ports: 8 is given twice"),
        (&["--ports", "0"], "a whole number of ports from 1 to 1024 is wanted"),
        (&["--workers", "16", "--ports", "2"], "16 workers: each worker has a core of its own"),
    ] {
        if options[0] == "--workers" && std::thread::available_parallelism().unwrap().get() > 15 {
            continue;
        }
        let output = bench("mesh", options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
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
    // If other tests use the machine, the rate without loss may be 0. It is never above the
    // maximum.
    assert!(mpps[0] > 0.0 && mpps[1] <= mpps[0] && mpps[2] <= mpps[0], "{mpps:?}");
}
