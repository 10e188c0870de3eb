//! The sections `[host]`, `[worker]`, `[forwarding]`.

use penstock_dataplane::worker::WORKERS_MAX;
use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::machine::Machine;
use super::super::model::{HostSection, WorkerSection};
use super::world::{check_name, check_range, check_socket};

pub(super) fn check(draft: &Draft<'_>, machine: &Machine, report: &mut Report<'_>) {
    if let Some(host) = &draft.host.value {
        check_host(&draft.host, host, report);
    }
    if let Some(worker) = &draft.worker.value {
        check_worker(&draft.worker, worker, machine, report);
    }
    if let Some(forwarding) = &draft.forwarding.value {
        let object = &draft.forwarding;
        check_range(object, "fdb_ageing_s", forwarding.fdb_ageing_s, 10..=1_000_000, report);
        check_range(object, "fdb_entries", forwarding.fdb_entries, 64..=131_072, report);
        check_range(object, "subtables_per_port", forwarding.subtables_per_port, 1..=128, report);
    }
}

fn check_host(object: &Object<'_, HostSection>, host: &HostSection, report: &mut Report<'_>) {
    check_name(object, &host.name, report);
    check_socket(object, "socket", &host.socket, report);
    if !host.state_dir.is_absolute() {
        let problem = format!("directory {:?} is relative", host.state_dir);
        report.at(object, "state_dir", problem, "write an absolute path");
    }
    if let Some(address) = host.metrics
        && !host.metrics_any
        && !address.ip().is_loopback()
    {
        let problem = format!("metrics address {address} can be reached from other machines");
        let remedy = "use 127.0.0.1 or [::1], or set metrics_any = true";
        report.at(object, "metrics", problem, remedy);
    }
    for (key, gib) in
        [("memory_gib", host.memory_gib), ("memory_per_port_gib", host.memory_per_port_gib)]
    {
        if let Some(gib) = gib {
            check_range(object, key, gib, 1..=131_072, report);
        }
    }
    if let Some(wrong) = host.log.split(',').find(|directive| !is_directive(directive.trim())) {
        let problem = format!("log directive {wrong:?} is not valid");
        let remedy =
            "write error, warn, info, debug or trace, or module=level, with commas between";
        report.at(object, "log", problem, remedy);
    }
}

fn is_directive(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_target =
        |t: &str| !t.is_empty() && t.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
    match text.split_once('=') {
        Some((target, level)) => is_target(target) && LEVELS.contains(&level),
        None => LEVELS.contains(&text),
    }
}

fn check_worker(
    object: &Object<'_, WorkerSection>,
    worker: &WorkerSection,
    machine: &Machine,
    report: &mut Report<'_>,
) {
    if worker.cores.len() > WORKERS_MAX {
        let problem = format!(
            "{} worker cores are configured, the limit is {WORKERS_MAX}",
            worker.cores.len()
        );
        report.at(object, "cores", problem, "name fewer");
    }
    for (at, core) in worker.cores.iter().enumerate() {
        if worker.cores[..at].contains(core) {
            let problem = format!("core {core} is named twice, so two workers would share it");
            report.at(object, &format!("cores.{at}"), problem, "name each core once");
        }
    }
    check_range(object, "idle_backoff_us", worker.idle_backoff_us, 0..=1_000, report);
    check_range(object, "idle_turns", worker.idle_turns, 1..=1_000_000, report);
    check_range(object, "refill_us", worker.refill_us, 10..=1_000, report);
    let lists = [("cores", &worker.cores), ("control_cores", &worker.control_cores)];
    let Some(usable) = &machine.cores else { return };
    for (key, cores) in lists {
        for (at, core) in cores.iter().enumerate().filter(|(_, core)| !usable.contains(core)) {
            let problem = format!("core {core} is offline, or this process may not use it");
            let all: Vec<String> = usable.iter().map(u32::to_string).collect();
            let remedy = format!("choose one of {}", all.join(", "));
            report.at(object, &format!("{key}.{at}"), problem, remedy);
        }
    }
}
