//! `penstock vcpu` schedules vCPU threads, and prints the state of the scheduler.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use nix::poll::poll;
use penstock_control::config::Machine;
use penstock_control::host::selected;
use penstock_vcpu_host::boost;
use penstock_vcpu_host::config::{self, Config, ConfigErrors};
use penstock_vcpu_host::restore::{Swept, sweep};
use penstock_vcpu_host::service;
use penstock_vcpu_host::state::{State, VcpuState, VmState};
use penstock_vcpu_host::watchdog::{self, Sight};

use serde_json::json;

use super::{planned_vcpus, print, print_json, printable_lines};
use crate::cli::{LogFormat, VcpuCommand};
use crate::daemon::logs;
use crate::table::{Table, count, counted_items, printable};

/// Interval in milliseconds between two checks of the scheduler's state after a reload.
const LOOK_MS: u16 = 20;
/// Maximum number of checks of the scheduler's state after a reload.
const RELOAD_LOOKS: usize = 250;

/// Runs `penstock vcpu`, which needs no daemon of the switch.
///
/// # Errors
/// Returns an error if the configuration is wrong, or if the system refuses a call.
pub fn run(command: &VcpuCommand) -> Result<ExitCode> {
    match command {
        VcpuCommand::Run { config, log_format } => schedule(config, *log_format)?,
        VcpuCommand::Check { config, json } => return check(config, json.json),
        VcpuCommand::Show { labels, run_dir, json } => show(run_dir, &labels.labels, json.json)?,
        VcpuCommand::Reload { run_dir } => reload(run_dir)?,
        VcpuCommand::Event { vm, run_dir } => event(run_dir, vm)?,
        VcpuCommand::Sweep { run_dir } => match sweep(run_dir)? {
            Swept::Nothing => print("nothing to restore\n")?,
            Swept::After { taken } => {
                let threads = counted_items(taken, "thread");
                print(&format!("former settings restored; {threads} had a real-time slice\n"))?;
            }
        },
        VcpuCommand::Watchdog { run_dir } => watch(run_dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks a file. Exit 1 if there is a mistake, or if a deadline does not fit.
fn check(file: &Path, as_json: bool) -> Result<ExitCode> {
    let (tables, ConfigErrors(errors)) = config::check(file);
    let named = tables.as_ref().map_or(&[][..], |(section, _)| section.cpus.as_slice());
    let warnings = unusable(named, &Machine::here());
    if as_json {
        let planned = tables.as_ref().map(|(section, vms)| planned_vcpus::json(vms, section));
        let ok = errors.is_empty();
        let told = json!({ "ok": ok, "errors": errors, "vcpus": planned, "warnings": warnings });
        print_json(&told)?;
    } else if let Some((section, vms)) = &tables {
        let (file, cpus) = (file.display(), counted_items(section.cpus.len(), "CPU"));
        let verdict = if errors.is_empty() { "valid" } else { "invalid" };
        let vm_count = counted_items(vms.len(), "VM");
        let head = format!("{file}: {verdict} ({vm_count}, {cpus})\n\n");
        let warnings: String = warnings.iter().map(|text| format!("warning: {text}\n")).collect();
        print(&(head + &planned_vcpus::text(vms, section) + &warnings))?;
    }
    match errors.len() {
        0 => return Ok(ExitCode::SUCCESS),
        _ if as_json => {}
        number => {
            let lines = printable_lines(&errors.join("\n"));
            let number = counted_items(number, "mistake");
            eprint!("{}\npenstock: {number} in the configuration\n", lines.trim_end());
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Returns a warning about each of `cpus` on which the scheduler could not run here. The file may
/// be for another machine.
fn unusable(cpus: &[u32], machine: &Machine) -> Vec<String> {
    let here = |cpu: &&u32| machine.cores.as_ref().is_none_or(|cores| cores.contains(*cpu));
    let warn = |cpu: &u32| {
        format!(
            "[vcpu] `cpus`: CPU {cpu} is offline on this machine, or this process may not use it; \
             choose another CPU"
        )
    };
    cpus.iter().filter(|cpu| !here(cpu)).map(warn).collect()
}

fn schedule(file: &Path, format: LogFormat) -> Result<()> {
    logs::install(format, "info")?;
    let program =
        std::env::current_exe().context("the path of the penstock program cannot be read")?;
    let watchdog = |run_dir: &Path| {
        let mut command = Command::new(&program);
        command.args(["vcpu", "watchdog", "--run-dir"]).arg(run_dir);
        command
    };
    let load = || Config::load(file).map_err(|wrong| wrong.to_string());
    Ok(service::run(&load, &watchdog)?)
}

/// Makes the scheduler read its file again, and waits until its state shows the result. If the
/// scheduler keeps the former configuration, the error has the reason.
fn reload(dir: &Path) -> Result<()> {
    let before = load(dir)?.loads;
    service::hang_up(dir).with_context(|| format!("the scheduler of {}", dir.display()))?;
    for _ in 0..RELOAD_LOOKS {
        let state = load(dir)?;
        if state.loads > before {
            if let Some(why) = state.refused {
                bail!("the scheduler keeps its former configuration: {why}");
            }
            let vms = counted_items(state.vms.len(), "VM");
            return print(&format!("configuration in force: {vms}\n"));
        }
        // The scheduler sends no event for a new state, so this waits and looks again.
        let _ = poll(&mut [], LOOK_MS);
    }
    bail!(
        "the scheduler of {} did not read the configuration in 5 s; see the scheduler's log",
        dir.display()
    )
}

fn watch(dir: &Path) -> Result<()> {
    logs::install(LogFormat::Text, "info")?;
    let tell = |sight| match sight {
        Sight::Stalled { at, taken } => {
            tracing::warn!(
                thread = at,
                taken,
                "the scheduler is stalled; its real-time slices were taken back"
            );
        }
        Sight::Moves => tracing::warn!("the scheduler runs again"),
        Sight::Dead { taken: 0 } => tracing::info!("the scheduler has ended"),
        Sight::Dead { taken } => {
            tracing::warn!(taken, "the scheduler died; its real-time slices were taken back");
        }
    };
    watchdog::watch(dir, tell).context("watchdog")
}

/// Returns the state of the vCPU scheduler that runs in `dir`, a directory that a host names.
/// Returns `None` if `dir` is empty, or if no scheduler runs in `dir`.
#[must_use]
pub fn of_host(dir: &str) -> Option<State> {
    if dir.is_empty() { None } else { State::fresh(Path::new(dir)).ok() }
}

fn load(dir: &Path) -> Result<State> {
    State::fresh(dir).with_context(|| {
        format!(
            "no scheduler runs in {}, or it is stalled; start one with `penstock vcpu run`, or \
             name its directory with --run-dir",
            dir.display()
        )
    })
}

fn event(dir: &Path, vm: &str) -> Result<()> {
    let state = load(dir)?;
    if !state.vms.iter().any(|known| known.name == vm) {
        let known: Vec<_> = state.vms.iter().map(|vm| printable(&vm.name)).collect();
        bail!(
            "VM \"{}\": the scheduler does not know this VM; the scheduler's VMs are {}",
            printable(vm),
            known.join(", ")
        );
    }
    boost::event(dir, vm).with_context(|| {
        format!("the scheduler of {} accepts no events; see its log", dir.display())
    })
}

fn show(dir: &Path, selectors: &[String], as_json: bool) -> Result<()> {
    let mut state = load(dir)?;
    state.vms.retain(|vm| selected(selectors, &vm.labels));
    if as_json { print_json(&serde_json::to_value(&state)?) } else { print(&told(&state)) }
}

fn told(state: &State) -> String {
    let mut text = match state.watchdog {
        0 => "no watchdog: no vCPU gets a real-time slice\n".to_owned(),
        _ => String::new(),
    };
    text.push_str(&table(&state.vms));
    let mut cpus = Table::new(">CPU|>SCHEDULER|>POLLS|>SKIPPED");
    for cpu in &state.cpus {
        let own = format!("{:.2} %", cpu.own_percent);
        cpus.row([cpu.cpu.to_string(), own, count(cpu.polls), count(cpu.skipped)]);
    }
    text.push('\n');
    text.push_str(&cpus.render());
    for vm in &state.vms {
        if let Some(problem) = &vm.problem {
            text.push_str(&format!("{}: {}\n", printable(&vm.name), printable(problem)));
        }
    }
    text
}

pub const HEADING: [&str; 13] = [
    "VM", "MODE", "DEADLINE", "CPU", "SHARE", "ENTITLED", "WAIT P50", "P99", "P99.9", "MAX",
    "BOOSTS", "EVENTS", "MISSED",
];

#[must_use]
pub fn table(vms: &[VmState]) -> String {
    let [first, others @ ..] = HEADING;
    let mut vcpus = Table::new(&format!("{first}|{}", others.join("|>")));
    for vm in vms {
        for vcpu in &vm.vcpus {
            vcpus.row(cells(vm, vcpu));
        }
    }
    vcpus.render()
}

/// Returns the state of the VM `name`, and the limit of its vCPUs as text.
///
/// # Errors
/// Returns an error if no scheduler writes to `dir`, or if the scheduler does not know the VM.
pub fn of_vm(dir: &Path, name: &str) -> Result<(VmState, String), String> {
    let state = State::fresh(dir).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("{}: permission denied; use sudo", dir.display())
        }
        _ => {
            let (dir, error) = (dir.display(), printable(&error.to_string()));
            format!("no scheduler writes to {dir} ({error}); start `penstock vcpu run`")
        }
    })?;
    let vm = state.vms.iter().find(|vm| vm.name == name).ok_or_else(|| {
        format!(
            "the scheduler of {} does not know this VM; run `penstock vcpu reload`",
            dir.display()
        )
    })?;
    Ok((vm.clone(), verdict(vm, &state)))
}

/// Ratio of a vCPU's share to its entitlement. If a vCPU gets 0.97 to 1.05 times its entitlement
/// while other vCPUs have work on the CPU, the vCPU's share limits the vCPU. If a vCPU gets at
/// least 1.05 times its entitlement, the vCPU also uses spare time.
const ITS_SHARE: std::ops::Range<f64> = 0.97..1.05;

fn verdict(vm: &VmState, state: &State) -> String {
    if let Some(problem) = &vm.problem {
        return problem.clone();
    }
    if vm.mode == "reserved" {
        return "the kernel keeps the VM's reservation; waiting times are not measured".to_owned();
    }
    let missed: u64 = vm.vcpus.iter().map(|vcpu| vcpu.missed).sum();
    let all: u64 = vm.vcpus.iter().map(|vcpu| vcpu.waits).sum();
    if missed > 0 {
        return format!("{missed} of {all} waits were over 1 ms longer than the VM's deadline");
    }
    if !vm.vcpus.is_empty() && vm.vcpus.iter().all(|vcpu| is_held_to_share(vcpu, state)) {
        let sooner =
            if vm.deadline_ms > 0.0 { "" } else { ", and a `deadline` so that the VM runs sooner" };
        return format!(
            "the VM uses its whole share, and other VMs use the rest of the CPU; give the VM \
             more `vcpu_weight`{sooner}"
        );
    }
    let waits = vm.vcpus.iter().map(|vcpu| vcpu.wait_p99_us).fold(0.0, f64::max);
    if vm.deadline_ms == 0.0 && waits > 1_000.0 {
        return format!(
            "1 % of the VM's CPU waits are longer than {:.1} ms; a `deadline` bounds the waits",
            waits / 1e3
        );
    }
    "not limited: the VM gets a CPU when it needs one".to_owned()
}

fn is_held_to_share(vcpu: &VcpuState, state: &State) -> bool {
    let beside = state.vms.iter().flat_map(|vm| &vm.vcpus);
    let wanted = beside
        .filter(|other| other.cpu == vcpu.cpu && other.tid != vcpu.tid)
        .any(|other| !other.blocked);
    let part = vcpu.share_percent / vcpu.entitled_percent.max(f64::MIN_POSITIVE);
    wanted && !vcpu.blocked && ITS_SHARE.contains(&part)
}

#[must_use]
pub fn cells(vm: &VmState, vcpu: &VcpuState) -> [String; 13] {
    let ms = |us: f64| format!("{:.2} ms", us / 1e3);
    let deadline =
        if vm.deadline_ms > 0.0 { format!("{} ms", vm.deadline_ms) } else { "-".to_owned() };
    [
        vm.name.clone(),
        vm.mode.clone(),
        deadline,
        vcpu.cpu.to_string(),
        format!("{:.2} %", vcpu.share_percent),
        format!("{:.2} %", vcpu.entitled_percent),
        ms(vcpu.wait_p50_us),
        ms(vcpu.wait_p99_us),
        ms(vcpu.wait_p999_us),
        ms(vcpu.wait_max_us),
        vcpu.boosts.to_string(),
        vcpu.events.to_string(),
        vcpu.missed.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_vcpu_host::state::CpuState;

    #[test]
    fn a_table_has_a_row_for_each_vcpu_and_tells_of_problems() {
        let vcpu = VcpuState { cpu: 1, share_percent: 16.5, missed: 7, ..VcpuState::default() };
        let vm = VmState {
            name: "voice".to_owned(),
            mode: "periodic".to_owned(),
            deadline_ms: 3.5,
            problem: Some("slow\u{1b}".to_owned()),
            vcpus: vec![vcpu.clone(), vcpu],
            ..VmState::default()
        };
        let cpu = CpuState { cpu: 1, own_percent: 1.25, ..CpuState::default() };
        let state = State { vms: vec![vm], cpus: vec![cpu], ..State::default() };
        let text = told(&state);
        assert!(text.starts_with("no watchdog: no vCPU"), "{text}");
        assert_eq!(text.matches("voice  periodic    3.5 ms").count(), 2, "{text}");
        assert!(text.contains("1.25 %") && text.contains("voice: slow"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_cpu_that_the_machine_lacks_is_warned_of() {
        let machine = Machine { cores: Some([0, 1].into()) };
        let said = unusable(&[1, 99], &machine);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("[vcpu] `cpus`: CPU 99 is offline"), "{said:?}");
        assert!(unusable(&[99], &Machine::default()).is_empty(), "the CPUs are unknown");
    }

    #[test]
    fn what_holds_a_vm_back_is_said() {
        let vcpu = VcpuState { tid: 1, entitled_percent: 20.0, waits: 100, ..VcpuState::default() };
        let beside = |blocked| VcpuState { tid: 2, blocked, ..VcpuState::default() };
        let of = |deadline_ms, vcpu: VcpuState, other: VcpuState| {
            let vm = VmState { deadline_ms, vcpus: vec![vcpu], ..VmState::default() };
            let other = VmState { vcpus: vec![other], ..VmState::default() };
            verdict(&vm, &State { vms: vec![vm.clone(), other], ..State::default() })
        };
        let fine = "not limited: the VM gets a CPU when it needs one";
        let busy = VcpuState { share_percent: 19.9, ..vcpu.clone() };
        assert!(of(3.0, busy.clone(), beside(false)).ends_with("more `vcpu_weight`"));
        assert!(of(0.0, busy.clone(), beside(false)).contains("and a `deadline`"));
        assert_eq!(of(3.0, busy.clone(), beside(true)), fine, "nobody wants more");
        let rich = VcpuState { share_percent: 60.0, ..vcpu.clone() };
        assert_eq!(of(3.0, rich, beside(false)), fine, "it has more than its share");
        let alone = VcpuState { share_percent: 100.0, entitled_percent: 100.0, ..vcpu.clone() };
        assert_eq!(of(3.0, alone, VcpuState { cpu: 1, ..beside(false) }), fine);
        let idle = VcpuState { blocked: true, ..busy.clone() };
        assert_eq!(of(0.0, idle, beside(false)), fine);
        let waits = VcpuState { share_percent: 3.0, wait_p99_us: 12_000.0, ..vcpu };
        assert!(of(0.0, waits, beside(false)).contains("longer than 12.0 ms"));
        let late = VcpuState { missed: 7, ..busy };
        assert!(of(3.0, late.clone(), beside(false)).starts_with("7 of 100 waits"));
        let mut vm = VmState { vcpus: vec![late], ..VmState::default() };
        vm.mode = "reserved".to_owned();
        assert!(verdict(&vm, &State::default()).contains("not measured"));
        vm.problem = Some("deadline refused".to_owned());
        assert_eq!(verdict(&vm, &State::default()), "deadline refused");
    }

    #[test]
    fn a_scheduler_that_is_not_there_is_no_error_but_said() {
        let dir = penstock_testing::temp_dir();
        assert!(of_vm(&dir, "web").unwrap_err().contains("start `penstock vcpu run`"));
        let vm = VmState { name: "web".to_owned(), ..VmState::default() };
        State { vms: vec![vm], ..State::default() }.save(&dir).unwrap();
        assert!(of_vm(&dir, "db").unwrap_err().contains("does not know this VM"));
        assert_eq!(of_vm(&dir, "web").unwrap().0.name, "web");
        let file = std::fs::File::options().write(true).open(dir.join("state.json")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(of_vm(&dir, "web").unwrap_err().contains("no scheduler wrote the state file for"));
    }
}
