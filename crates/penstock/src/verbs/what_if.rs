//! `penstock host check --what-if` says whether a port could buy a contract, and changes nothing.

use std::fmt::Write as _;

use penstock_control::config::ConfigErrors;
use penstock_control::plan::{Checked, PortPlan};
use penstock_control::what_if::{Supposed, WhatIf};
use serde_json::{Value, json};

use super::check::{bits, frames};
use super::host::mistakes;
use crate::table::{cycles_per_second, percent, printable};

/// Answer to a question: text for standard output, text for standard error, JSON, and whether the
/// contract fits.
pub(super) struct Answer {
    pub text: String,
    pub error: String,
    pub json: Value,
    pub fits: bool,
}

/// Plans the host as if `what` were its configuration.
pub(super) fn ask(checked: &Checked, what: &WhatIf) -> Answer {
    match checked.suppose(what) {
        Ok(supposed) => told(what, &supposed),
        Err(errors) => Answer {
            text: String::new(),
            error: mistakes(&errors),
            json: json!({ "ok": false, "what_if": what.to_string(), "errors": errors }),
            fits: false,
        },
    }
}

fn told(what: &WhatIf, supposed: &Supposed) -> Answer {
    let plan = &supposed.plan;
    let fits = plan.refusals.is_empty();
    let mut text = String::new();
    let new = if supposed.added { "the new port " } else { "" };
    // Writing to a String cannot fail.
    let verdict = if fits { "can buy" } else { "cannot buy" };
    let _ = writeln!(text, "{new}{} {verdict} {}", printable(&what.port), what.contract);
    let port = plan.port(&what.port);
    if let Some(port) = port {
        text.push_str(&price(port));
    }
    if fits {
        text.push_str(&left(supposed));
    }
    let mut error = String::new();
    for refusal in &plan.refusals {
        let _ = writeln!(error, "{}", printable(&refusal.to_string()));
    }
    match &supposed.nearest {
        Some(nearest) => {
            let _ = writeln!(error, "nearest contract that fits: --what-if {nearest}");
        }
        None if !fits => error.push_str("no smaller rate of this contract fits either\n"),
        None => {}
    }
    for warning in plan.warnings_of(&what.port) {
        let _ = writeln!(text, "warning: {}", printable(&warning.text));
    }
    text.push_str("nothing was changed\n");
    let json = json!({
        "ok": fits,
        "what_if": what.to_string(),
        "new_port": supposed.added,
        "cycles_per_frame": port.and_then(|port| port.cost),
        "cycles_per_second": port.map(|port| port.cycles.0),
        "core_share": port.map(|port| port.share),
        "bits_per_second_on_link": port.map(|port| port.bandwidth.0),
        "workers": port.map(|port| port.workers.iter().collect::<Vec<_>>()),
        "room": plan.admission.room.iter().map(|room| room.0).collect::<Vec<_>>(),
        "errors": ConfigErrors(plan.refusals.clone()),
        "nearest": supposed.nearest.as_ref().map(ToString::to_string),
        "warnings": plan.warnings_of(&what.port).collect::<Vec<_>>(),
    });
    Answer { text, error, json, fits }
}

/// Returns a line with the cycles of a port's contract.
fn price(port: &PortPlan) -> String {
    let Some(cost) = port.cost else { return String::new() };
    let workers: Vec<String> = port.workers.iter().map(|worker| worker.to_string()).collect();
    format!(
        "cycles: {} cycles/s, {} of a core, on worker {} (frames {}: {cost:.0} cycles ±{:.0} %)\n",
        cycles_per_second(port.cycles.0),
        percent(port.share),
        workers.join(","),
        frames(port),
        100.0 * port.uncertainty
    )
}

/// Returns lines with the cycles and the bandwidth that remain unsold.
fn left(supposed: &Supposed) -> String {
    let plan = &supposed.plan;
    let mut text = String::new();
    for (worker, room) in plan.admission.room.iter().enumerate() {
        let _ = writeln!(text, "worker {worker}: {} cycles/s unsold", cycles_per_second(room.0));
    }
    if let Some(link) = plan.link {
        let sold: u64 = plan.sold_bandwidth().0;
        let left = bits(link.0.saturating_sub(sold));
        let _ = writeln!(text, "uplink: {left} of {} unsold", bits(link.0));
    }
    text
}
