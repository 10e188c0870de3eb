//! `penstock vcpu`: scheduling of vCPU threads.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use penstock_vcpu_host::boost;
use penstock_vcpu_host::config::Config;
use penstock_vcpu_host::restore::{Swept, sweep};
use penstock_vcpu_host::service;
use penstock_vcpu_host::state::{State, VcpuState, VmState};
use penstock_vcpu_host::watchdog::{self, Sight};

use super::{print, print_json};
use crate::cli::{LogFormat, VcpuCommand};
use crate::daemon::logs;
use crate::table::{Align, Table, printable};

/// `vcpu`: needs no daemon of the switch.
///
/// # Errors
/// The configuration is wrong, or the system refuses something.
pub fn run(command: &VcpuCommand) -> Result<ExitCode> {
    match command {
        VcpuCommand::Run { config, log_format } => schedule(config, *log_format)?,
        VcpuCommand::Show { run_dir, json } => show(run_dir, json.json)?,
        VcpuCommand::Event { vm, run_dir } => event(run_dir, vm)?,
        VcpuCommand::Sweep { run_dir } => match sweep(run_dir)? {
            Swept::Nothing => print("nothing was left behind\n")?,
            Swept::After { taken } => {
                print(&format!("put back; {taken} threads had been lent a processor\n"))?;
            }
        },
        VcpuCommand::Watchdog { run_dir } => watch(run_dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn schedule(file: &Path, format: LogFormat) -> Result<()> {
    let config = Config::load(file)?;
    logs::install(format, "info")?;
    let program = std::env::current_exe().context("penstock does not find itself")?;
    let watchdog = || {
        let mut command = Command::new(&program);
        command.args(["vcpu", "watchdog", "--run-dir"]).arg(&config.run_dir);
        command
    };
    Ok(service::run(&config, &watchdog)?)
}

fn watch(dir: &Path) -> Result<()> {
    logs::install(LogFormat::Text, "info")?;
    let tell = |sight| match sight {
        Sight::Stalled { at, taken } => {
            tracing::warn!(thread = at, taken, "scheduling stands still; what was lent is back");
        }
        Sight::Moves => tracing::warn!("scheduling goes on"),
        Sight::Dead { taken: 0 } => tracing::info!("the scheduler has ended"),
        Sight::Dead { taken } => {
            tracing::warn!(taken, "the scheduler died; what was lent is back");
        }
    };
    watchdog::watch(dir, tell).context("watchdog")
}

fn load(dir: &Path) -> Result<State> {
    State::load(dir).with_context(|| {
        format!(
            "no scheduler runs with {}; start one with `penstock vcpu run`, or name its directory \
             with --run-dir",
            dir.display()
        )
    })
}

fn event(dir: &Path, vm: &str) -> Result<()> {
    let state = load(dir)?;
    if !state.vms.iter().any(|known| known.name == vm) {
        let known: Vec<_> = state.vms.iter().map(|vm| printable(&vm.name)).collect();
        bail!("VM \"{}\" is not scheduled here; name one of: {}", printable(vm), known.join(", "));
    }
    boost::event(dir, vm)
        .with_context(|| format!("the scheduler of {} does not listen", dir.display()))
}

fn show(dir: &Path, as_json: bool) -> Result<()> {
    let state = load(dir)?;
    if as_json { print_json(&serde_json::to_value(&state)?) } else { print(&told(&state)) }
}

fn told(state: &State) -> String {
    let mut text = match state.watchdog {
        0 => "no watchdog: nothing is lent\n".to_owned(),
        _ => String::new(),
    };
    let mut vcpus = Table::new(&[
        ("VM", Align::Left),
        ("MODE", Align::Left),
        ("DEADLINE", Align::Right),
        ("CPU", Align::Right),
        ("SHARE", Align::Right),
        ("DUE", Align::Right),
        ("WAIT P50", Align::Right),
        ("P99", Align::Right),
        ("P99.9", Align::Right),
        ("MAX", Align::Right),
        ("BOOSTS", Align::Right),
        ("MISSED", Align::Right),
    ]);
    for vm in &state.vms {
        for vcpu in &vm.vcpus {
            vcpus.row(cells(vm, vcpu));
        }
    }
    text.push_str(&vcpus.render());
    let mut cpus = Table::new(&[
        ("CPU", Align::Right),
        ("SCHEDULER", Align::Right),
        ("POLLS", Align::Right),
        ("SKIPPED", Align::Right),
    ]);
    for cpu in &state.cpus {
        let own = format!("{:.2} %", cpu.own_percent);
        cpus.row([cpu.cpu.to_string(), own, cpu.polls.to_string(), cpu.skipped.to_string()]);
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

fn cells(vm: &VmState, vcpu: &VcpuState) -> [String; 12] {
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
        assert!(text.starts_with("no watchdog"), "{text}");
        assert_eq!(text.matches("voice  periodic    3.5 ms").count(), 2, "{text}");
        assert!(text.contains("1.25 %") && text.contains("voice: slow"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
