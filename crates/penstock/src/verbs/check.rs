//! `penstock host check` prints every mistake of a configuration, and whether the host has the
//! cycles and bandwidth that its ports purchased.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use penstock_control::config::{ConfigErrors, HostConfig};
use penstock_control::plan::{Basis, CapacityPlan, Checked, PortPlan};
use penstock_control::what_if::WhatIf;
use serde_json::{Value, json};

use super::host::mistakes;
use super::{planned_vcpus, print, print_json, what_if};
use crate::table::{Table, counted, counted_items, cycles_per_second, or_dash, percent, printable};

/// Runs `host check`, which needs no daemon. Exit 1 if there is a mistake, or if the host
/// cannot promise what the ports purchased. With `what`, the exit status is about this contract.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn run(file: &Path, what: Option<&WhatIf>, as_json: bool) -> Result<ExitCode> {
    let (checked, errors) = match Checked::load(file) {
        Ok(checked) => {
            let refusals = ConfigErrors(checked.plan.refusals.clone());
            (Some(checked), refusals)
        }
        Err(errors) => (None, errors),
    };
    let fits = errors.0.is_empty();
    if let (Some(what), Some(checked)) = (what, &checked) {
        let answer = what_if::ask(checked, what);
        if as_json {
            print_json(&answer.json)?;
        } else {
            print(&answer.text)?;
            eprint!("{}", answer.error);
        }
        return Ok(if answer.fits { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if as_json {
        print_json(&answer(checked.as_ref(), &errors))?;
    } else {
        if let Some(checked) = &checked {
            print(&told(file, checked))?;
        }
        if let (false, Some(_)) = (fits, &checked) {
            eprint!("{}", unfit(&errors));
        } else if !fits {
            eprint!("{}", mistakes(&errors));
        }
    }
    Ok(if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn told(file: &Path, checked: &Checked) -> String {
    let Checked { config, model, plan, .. } = checked;
    let mut text = format!(
        "{}: valid ({}, {}, {})\n",
        file.display(),
        counted_items(config.ports.len(), "port"),
        counted_items(config.tenants.len(), "tenant"),
        counted_items(config.rules.len(), "rule"),
    );
    // Writing to a String cannot fail.
    if let Some(model) = model {
        let about = &model.parts().about;
        let (host, date) = (printable(&about.host), printable(&about.date));
        let verified = model.parts().verified.as_ref().map_or_else(
            || "not verified (penstock calibrate --verify)".to_owned(),
            |verified| printable(&verified.to_string()).to_string(),
        );
        let _ = writeln!(text, "cost model: measured on {host}, {date}; {verified}");
    }
    if plan.ports.iter().any(|port| port.basis != Basis::None || port.contract.is_some()) {
        text.push('\n');
        text.push_str(&ports(config, plan));
        text.push('\n');
        text.push_str(&workers(plan));
    }
    if let Some(section) = &config.vcpu {
        text.push('\n');
        text.push_str(&planned_vcpus::text(&config.vms, section));
    }
    for warning in &plan.warnings {
        let _ = writeln!(text, "warning: {}", printable(&warning.text));
    }
    text
}

fn ports(config: &HostConfig, plan: &CapacityPlan) -> String {
    let mut table = Table::new(
        "PORT|POLICY|CONTRACT|FRAMES|>CYCLES/FRAME|>CYCLES/S|FROM|>CORE|>CLASS|>WEIGHT|WORKERS",
    );
    for (port, of) in config.ports.iter().zip(&plan.ports) {
        let sold = of.basis != Basis::None;
        let dash = |text: String| if sold { text } else { "-".to_owned() };
        let floor = format!(">={}", cycles_per_second(of.floor.0));
        table.row([
            port.name.clone(),
            port.ingress_policy.to_string(),
            or_dash(&port.contract.as_ref().map(ToString::to_string).unwrap_or_default()),
            if of.contract.is_some() { frames(of) } else { "-".to_owned() },
            match of.cost.filter(|_| of.contract.is_some()) {
                Some(cost) => format!("{cost:.0} ±{:.0} %", 100.0 * of.uncertainty),
                None => "-".to_owned(),
            },
            if of.floor.0 > 0 { floor } else { dash(cycles_per_second(of.cycles.0)) },
            if of.floor.0 > 0 && !sold { "rest" } else { of.basis.name() }.to_owned(),
            dash(percent(of.share)),
            port.priority.0.get().to_string(),
            port.cycle_weight.0.get().to_string(),
            of.workers.iter().map(|w| w.to_string()).collect::<Vec<_>>().join(","),
        ]);
    }
    table.render()
}

/// Returns the frame profile of a port as text, such as `1024 single, 3 rules, +vlan-push`.
pub(super) fn frames(port: &PortPlan) -> String {
    let profile = &port.profile;
    let mut text = format!("{} {}", profile.sizes, profile.flows);
    if profile.rules > 0 {
        let _ = write!(text, ", {}", counted(profile.rules.into(), "rule"));
    }
    for action in &profile.actions {
        let _ = write!(text, ", +{action}");
    }
    text
}

fn workers(plan: &CapacityPlan) -> String {
    let mut text = String::new();
    let of_workers = plan.capacity.iter().zip(&plan.sellable).zip(&plan.admission.room);
    for (worker, ((there, sellable), room)) in of_workers.enumerate() {
        let _ = writeln!(
            text,
            "worker {worker}: {} cycles/s, {} kept for the host, {} unsold",
            cycles_per_second(there.0),
            cycles_per_second(there.0.saturating_sub(sellable.0)),
            cycles_per_second(room.0)
        );
    }
    match plan.link {
        Some(link) => {
            let (link, sold) = (bits(link.0), bits(plan.sold_bandwidth().0));
            let _ = writeln!(text, "uplink: {link}, {sold} sold with Ethernet's overhead");
        }
        None => text.push_str("uplink: not checked, as no port has a `link`\n"),
    }
    text
}

pub(super) fn bits(rate: u64) -> String {
    crate::table::bits_per_second(crate::table::to_f64(rate))
}

/// Returns the reasons why the host cannot promise the purchases, one per line.
fn unfit(errors: &ConfigErrors) -> String {
    let mut text = String::new();
    for error in &errors.0 {
        let _ = writeln!(text, "{}", printable(&error.to_string()));
    }
    let reasons = counted_items(errors.0.len(), "reason");
    let _ = writeln!(text, "penstock: the host cannot promise these purchases, for {reasons}");
    text
}

fn answer(checked: Option<&Checked>, errors: &ConfigErrors) -> Value {
    let mut answer = json!({ "ok": errors.0.is_empty(), "errors": errors });
    let Some(Checked { config, model, plan, .. }) = checked else { return answer };
    let ports = config.ports.iter().zip(&plan.ports).map(|(port, of)| {
        json!({
            "port": port.name,
            "policy": port.ingress_policy.to_string(),
            "contract": of.contract.as_ref().map(|c| json!({
                "rate": c.rate.to_string(),
                "size": c.sizes.to_string(),
                "flows": c.flows.name(),
                "frames_per_second": c.frames_per_second(),
                "bits_per_second": c.bandwidth().0,
            })),
            "rules": of.profile.rules,
            "actions": of.profile.actions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "cycles_per_frame": of.cost,
            "uncertainty": of.uncertainty,
            "cycles_per_second": of.cycles.0,
            "floor_cycles_per_second": of.floor.0,
            "from": of.basis.name(),
            "core_share": of.share,
            "priority": port.priority.0.get(),
            "weight": port.cycle_weight.0.get(),
            "workers": of.workers.iter().collect::<Vec<_>>(),
        })
    });
    let workers = plan.capacity.iter().zip(&plan.sellable).zip(&plan.admission.room).enumerate();
    let workers = workers.map(|(id, ((there, sellable), room))| {
        json!({
            "worker": id,
            "capacity": there.0,
            "sellable": sellable.0,
            "room": room.0,
        })
    });
    answer["ports"] = ports.collect();
    answer["vcpus"] = config.vcpu.as_ref().map(|it| planned_vcpus::json(&config.vms, it)).into();
    answer["workers"] = workers.collect();
    answer["link_bits_per_second"] = json!(plan.link.map(|link| link.0));
    answer["warnings"] = json!(plan.warnings);
    answer["model"] = json!(model.as_ref().map(|model| {
        let about = &model.parts().about;
        json!({ "host": about.host, "date": about.date, "tsc_hz": about.tsc.hz() })
    }));
    answer
}
