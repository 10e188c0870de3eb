//! `penstock host`, except `run`, which is in [`crate::daemon`].

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_control::api::{self, FabricStatus, HostStatus, MachineChange, SwitchStatus};
use penstock_control::config::{self, ConfigErrors, FileSchema};
use penstock_controller::files;

use super::{print, print_json, printable_lines, report};
use crate::client::{connect, refused, timed};
use crate::table::{bits_per_second, count, counted_items, percent, printable, seconds, to_f64};

/// Returns all mistakes, one per line, and their number.
pub(crate) fn mistakes(errors: &ConfigErrors) -> String {
    let number = counted_items(errors.0.len(), "mistake");
    let mut text = String::new();
    for error in &errors.0 {
        text.push_str(&printable_lines(&error.to_string()));
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "penstock: {number} in the configuration");
    text
}

/// The kinds of files that have a schema.
pub const SCHEMAS: [FileSchema; 5] = {
    let [host, vcpu] = config::SCHEMAS;
    let [controller, fabric, tenants] = files::SCHEMAS;
    [host, controller, fabric, tenants, vcpu]
};

/// Runs `penstock host schema`.
///
/// # Errors
/// Returns an error if `kind` is not a kind of file, or if standard output cannot be written.
pub fn schema(kind: &str) -> Result<ExitCode> {
    let found = SCHEMAS.iter().find(|(name, _)| *name == kind);
    let (_, schema) = found.with_context(|| {
        format!("schema: there is no kind of file {kind:?}; see `penstock host schema --help`")
    })?;
    print(&format!("{}\n", schema().trim_end()))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `penstock host show`.
///
/// # Errors
/// Returns an error if the daemon cannot be reached.
pub async fn show(socket: &Path, as_json: bool) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    let reply = client.get_status(timed(api::GetStatusRequest {})).await.map_err(refused)?;
    let status = reply.into_inner();
    if as_json {
        print_json(&status)?
    } else {
        print(&shown(&status))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `penstock host config --migrate`.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn migrate(file: &Path) -> Result<ExitCode> {
    match config::migrate(file) {
        Ok(old) if old.is_empty() => {
            print(&format!("{}: up to date, nothing to migrate\n", file.display()))?;
        }
        Ok(old) => {
            let mut text = format!("{}: migrated\n", file.display());
            for line in old {
                let _ = writeln!(text, "  {}", printable(line.split("; ").next().unwrap_or(&line)));
            }
            print(&text)?;
        }
        Err(errors) => {
            eprint!("{}", mistakes(&errors));
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `penstock host config`.
///
/// # Errors
/// Returns an error if the daemon cannot be reached.
pub async fn config(socket: &Path) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    let reply = client.get_config(timed(api::GetConfigRequest {})).await.map_err(refused)?;
    print(&reply.into_inner().toml)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `penstock host reload`.
///
/// # Errors
/// Returns an error if the daemon cannot be reached, or the file is wrong.
pub async fn reload(socket: &Path, json: bool) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    report(client.reload(timed(api::ReloadRequest {})).await, json)
}

/// Returns how the cost of frames differs from the calibration.
fn changed(machine: &MachineChange) -> String {
    let (percent, word) = match machine.cost_permille {
        permille if permille < 0 => (-permille, "less"),
        permille => (permille, "more"),
    };
    format!(
        "{:.0} % {word} than at the calibration, for {}",
        f64::from(percent) / 10.0,
        seconds(machine.since_ms / 1_000)
    )
}

fn shown(status: &HostStatus) -> String {
    let config = if status.config.is_empty() { "none" } else { &status.config };
    let lines = [
        ("host", status.name.clone()),
        ("version", status.version.clone()),
        ("configuration", config.to_owned()),
        ("generation", status.generation.to_string()),
        ("uptime", seconds(status.uptime_s)),
        ("TSC", format!("{:.3} GHz", to_f64(status.tsc_hz) / 1e9)),
    ];
    let mut text = String::new();
    let machine = status.machine.as_ref().map(|machine| ("frames cost", changed(machine)));
    for (key, value) in lines.into_iter().chain(machine) {
        let _ = writeln!(text, "{key:<15}{}", printable(&value));
    }
    for worker in &status.workers {
        let state = if worker.stalled { "STALLED" } else { "running" };
        let _ = writeln!(
            text,
            "worker {:<8}{state} on core {}, {}, busy {} since start, heartbeat {} ms ago",
            worker.id,
            worker.core,
            worker.schedule,
            percent(f64::from(worker.busy_share_e4) / 1e4),
            count(worker.heartbeat_age_ms),
        );
    }
    if let Some(fabric) = &status.fabric {
        text.push_str(&part_in(fabric));
    }
    if let Some(switch) = &status.switch {
        text.push_str(&as_switch(switch));
    }
    text
}

/// Returns the plan in force. A plan of which not even the stamp can be saved is in force too, but
/// the agent reports it as failed.
fn plan_of(fabric: &FabricStatus) -> String {
    let failed = fabric.counters.iter().any(|it| it.name == "failed" && it.value > 0);
    match (fabric.applied.as_str(), fabric.unkept.as_str()) {
        ("", "") if failed => {
            format!("{} failed, so the host keeps what it had: see the last error", fabric.told)
        }
        ("", "") => "no plan: all tenants share queue 0".to_owned(),
        ("", unkept) => format!("{unkept}, which the controller counts as failed"),
        (applied, _) => applied.to_owned(),
    }
}

/// Returns a host's role in a fabric, as lines.
fn part_in(fabric: &FabricStatus) -> String {
    let or = |text: &str, none: &str| if text.is_empty() { none.to_owned() } else { text.into() };
    let controller = or(&fabric.controller, "none");
    let state = match fabric.stale_ms {
        Some(millis) => format!("{controller}, STALE for {}", seconds(millis / 1_000)),
        None => controller,
    };
    let mut lines = vec![
        ("fabric", format!("server {}", fabric.name)),
        ("controller", state),
        ("plan", plan_of(fabric)),
    ];
    if let Some(pairs) = &fabric.pairs {
        let bits = |bps| bits_per_second(to_f64(bps));
        let (rate, guaranteed) = (bits(pairs.rate_bps), bits(pairs.guaranteed_bps));
        let (sending, receiving) = (pairs.sending, pairs.receiving);
        let pairs = format!("{sending} sending, {receiving} receiving");
        lines.push(("pairs", format!("{pairs}; may send {rate}, {guaranteed} guaranteed")));
    }
    if !fabric.unkept.is_empty() {
        let what = "a restart loses the plan, which is not on disk; the daemon tries again";
        lines.push(("not saved", format!("plan {}: {what}", fabric.unkept)));
    }
    if !fabric.absent.is_empty() {
        lines.push(("unknown here", fabric.absent.join(", ")));
    }
    if !fabric.last_error.is_empty() {
        lines.push(("last error", fabric.last_error.clone()));
    }
    let each = lines.iter().map(|(key, value)| format!("{key:<15}{}\n", printable(value)));
    each.collect()
}

/// Returns a host's role as a switch of a fabric, as lines.
fn as_switch(switch: &SwitchStatus) -> String {
    let mut lines = vec![("switch", switch.name.clone()), ("decision", switch.told.clone())];
    if switch.unkept {
        let what = "the decision is not on disk, so a restart loses it; the daemon tries again";
        lines.push(("not saved", what.to_owned()));
    }
    if !switch.last_error.is_empty() {
        lines.push(("last error", switch.last_error.clone()));
    }
    lines.iter().map(|(key, value)| format!("{key:<15}{}\n", printable(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_control::api::{NamedCount, WorkerStatus};
    use penstock_control::config::ConfigError;

    #[test]
    fn a_plan_that_is_not_saved_is_told_as_in_force() {
        let failed = vec![NamedCount::new("failed", 1)];
        let of = |applied: &str, unkept: &str, counters: &[NamedCount]| {
            plan_of(&FabricStatus {
                told: "9.2".into(),
                applied: applied.into(),
                unkept: unkept.into(),
                counters: counters.to_vec(),
                ..FabricStatus::default()
            })
        };
        assert_eq!(of("9.1", "", &failed), "9.1");
        assert_eq!(of("9.1", "9.1", &[]), "9.1");
        assert!(of("", "9.2", &failed).starts_with("9.2, which the controller counts as failed"));
        assert!(of("", "", &failed).starts_with("9.2 failed, so the host keeps what it had"));
        assert!(of("", "", &[]).starts_with("no plan"));
    }

    #[test]
    fn the_status_is_told_with_units() {
        let status = HostStatus {
            name: "node7".into(),
            version: "0.1.0".into(),
            config: "/etc/penstock/host.toml".into(),
            generation: 3,
            vcpu_dir: String::new(),
            uptime_s: 4_000,
            tsc_hz: 2_200_000_000,
            workers: vec![WorkerStatus {
                core: 3,
                busy_share_e4: 1_234,
                heartbeat_age_ms: 2,
                schedule: "round-robin".into(),
                ..WorkerStatus::default()
            }],
            fabric: None,
            switch: None,
            machine: Some(MachineChange { cost_permille: 305, since_ms: 62_000 }),
            state_dir: "/var/lib/penstock".into(),
        };
        assert_eq!(
            shown(&status),
            "\
host           node7
version        0.1.0
configuration  /etc/penstock/host.toml
generation     3
uptime         1h 6m
TSC            2.200 GHz
frames cost    30 % more than at the calibration, for 1m 2s
worker 0       running on core 3, round-robin, busy 12.3 % since start, heartbeat 2 ms ago
"
        );
    }

    #[test]
    fn every_mistake_is_a_line() {
        let error = |object: &str| ConfigError {
            file: "h.toml".into(),
            line: 3,
            column: 1,
            object: object.into(),
            problem: "wrong".into(),
            remedy: "right it".into(),
        };
        assert_eq!(
            mistakes(&ConfigErrors(vec![error("port \"a\""), error("[worker]")])),
            "h.toml:3:1: port \"a\": wrong; right it\nh.toml:3:1: [worker]: wrong; right it\n\
             penstock: 2 mistakes in the configuration\n"
        );
    }
}
