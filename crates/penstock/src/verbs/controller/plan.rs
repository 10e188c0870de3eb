//! `penstock controller plan` places tenants offline and prints cost and refusals.

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_controller::files::TenantWish;
use penstock_fabric::hose::Hose;
use penstock_fabric::tenant_placement::{Placement, Refusal};
use serde_json::{Value, json};

use super::{Placed, load, picture, place};
use crate::cli::PlanArgs;
use crate::table::{Table, bits_per_second, count, counted, printable, to_f64};
use crate::verbs::{print, print_json};

/// Runs the command. Exit 1 if a file is wrong or a tenant is refused.
///
/// # Errors
/// Returns an error if an output cannot be written.
pub(super) fn run(args: &PlanArgs, json: bool) -> Result<ExitCode> {
    let Some((fabric, tenants)) = load(&args.files) else { return Ok(ExitCode::FAILURE) };
    let placed = place(fabric.topology.clone(), &fabric, fabric.policy, &tenants)?;
    if let Some(file) = &args.picture {
        let svg = picture::svg(&placed.datacenter, &fabric.name);
        fs::write(file, svg).with_context(|| format!("writing {}", file.display()))?;
    }
    if json {
        print_json(&as_json(&fabric.name, &placed, &tenants))?;
    } else {
        print(&told(&placed, &tenants))?;
    }
    let all = placed.outcomes.iter().all(Result::is_ok);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a request as text, such as `12 x 100M`. The text lists all VM classes of the tenant.
fn wanted(hose: &Hose) -> String {
    let class = |c: &penstock_fabric::hose::VmClass| match c.send == c.recv {
        true => format!("{} x {}", c.vms, c.send),
        false => format!("{} x {}/{}", c.vms, c.send, c.recv),
    };
    hose.classes().iter().map(class).collect::<Vec<_>>().join(" + ")
}

/// Returns a placement as text, such as `rack-0: server-0 17, server-1 3`, with at most eight
/// servers.
fn servers(placed: &Placed, placement: &Placement) -> String {
    const SHOWN: usize = 8;
    let topology = placed.datacenter.topology();
    let slots = &placement.entry.slots;
    let one = |(server, vms): &(_, u32)| format!("{} {vms}", topology.name(*server));
    let mut text = slots.iter().take(SHOWN).map(one).collect::<Vec<_>>().join(", ");
    if slots.len() > SHOWN {
        let _ = write!(text, ", and {} more", slots.len() - SHOWN);
    }
    text
}

fn told(placed: &Placed, tenants: &[TenantWish]) -> String {
    let topology = placed.datacenter.topology();
    let mut table = Table::new("TENANT|WANTS|ROOT|>RESERVED|>TENANTS/PORT|>COST|SERVERS");
    let mut refusals = String::new();
    for (tenant, outcome) in tenants.iter().zip(&placed.outcomes) {
        match outcome.as_ref().map(|slot| placed.datacenter.tenant(*slot)) {
            Ok(Some(found)) => {
                let (placement, cost) = (&found.placement, &found.placement.cost);
                let reserved = u64::try_from(cost.bandwidth).unwrap_or(u64::MAX);
                table.row([
                    tenant.name.clone(),
                    wanted(&tenant.request.hose),
                    topology.name(placement.root).to_string(),
                    bits_per_second(to_f64(reserved)),
                    cost.queue.to_string(),
                    format!("{:.3}", cost.weighed),
                    servers(placed, placement),
                ]);
            }
            Ok(None) => {}
            Err(refusal) => {
                let (name, wants) = (printable(&tenant.name), wanted(&tenant.request.hose));
                let _ = writeln!(refusals, "{name} ({wants}): {}", printable(&refusal.to_string()));
            }
        }
    }
    let mut text = table.render();
    if !refusals.is_empty() {
        let _ = write!(text, "\nrefused:\n{refusals}");
    }
    let _ = write!(text, "\n{}", totals(placed));
    text
}

/// Returns, as text, the number of used slots, and the reserved bandwidth of the links of each
/// layer.
fn totals(placed: &Placed) -> String {
    let (topology, ledger) = (placed.datacenter.topology(), placed.datacenter.ledger());
    let free: u64 = topology.layer(0).map(|s| u64::from(ledger.free_slots(s))).sum();
    let all = topology.slots_all();
    let mut text = format!("slots: {} of {} taken\n", count(all - free), count(all));
    for layer in 1..topology.layers() {
        let links = topology.layer(layer).flat_map(|node| topology.down(node));
        let most = links.map(|link| ledger.tenants(link)).max().unwrap_or(0);
        let reserved = 100.0 * ledger.reserved_share(layer);
        let over = topology.layer(layer).next().and_then(|node| topology.oversubscription(node));
        let tenants = counted(most.into(), "tenant");
        let over = over.map_or(String::new(), |ratio| format!(", oversubscription {ratio:.1}:1"));
        let _ = writeln!(
            text,
            "links into layer {layer}: {reserved:.1} % reserved, at most {tenants} on a link{over}"
        );
    }
    text
}

fn as_json(name: &str, placed: &Placed, tenants: &[TenantWish]) -> Value {
    let (topology, ledger) = (placed.datacenter.topology(), placed.datacenter.ledger());
    let layers: Vec<Value> = (1..topology.layers())
        .map(|layer| json!({ "layer": layer, "reserved_share": ledger.reserved_share(layer) }))
        .collect();
    let outcomes = tenants.iter().zip(&placed.outcomes);
    let tenants: Vec<Value> = outcomes
        .map(|(tenant, outcome)| {
            let mut value = json!({ "tenant": tenant.name, "vms": tenant.request.hose.vms() });
            match outcome {
                Ok(slot) => {
                    let found = placed.datacenter.tenant(*slot);
                    value["placement"] =
                        found.map_or(Value::Null, |t| placement_json(placed, &t.placement));
                }
                Err(refusal) => value["refusal"] = refusal_json(refusal),
            }
            value
        })
        .collect();
    json!({ "fabric": name, "tenants": tenants, "layers": layers })
}

fn placement_json(placed: &Placed, placement: &Placement) -> Value {
    let topology = placed.datacenter.topology();
    let name = |node| topology.name(node).to_string();
    let servers: Vec<Value> = placement
        .shares
        .iter()
        .map(|s| json!({ "server": name(s.server), "class": s.class, "vms": s.vms }))
        .collect();
    let links: Vec<Value> = placement
        .entry
        .links
        .iter()
        .map(|(link, need)| {
            let (child, parent) = (name(topology.child(*link)), name(topology.parent(*link)));
            json!({ "from": child, "to": parent, "up_bps": need.up.0, "down_bps": need.down.0 })
        })
        .collect();
    let cost = &placement.cost;
    json!({
        "root": name(placement.root),
        "servers": servers,
        "links": links,
        "cost": {
            "reserved_bps": u64::try_from(cost.bandwidth).unwrap_or(u64::MAX),
            "most_tenants_on_a_port": cost.queue,
            "links_past_their_queues": cost.overfull,
            "weighed": cost.weighed,
        },
    })
}

fn refusal_json(refusal: &Refusal) -> Value {
    use penstock_fabric::tenant_placement::Offer;
    let offer = |offer: &Offer| match offer {
        Offer::Vms(vms) => json!({ "vms": vms }),
        Offer::Rate(rate) => json!({ "rate_bps": rate.0 }),
        Offer::RatesPermille(part) => json!({ "rates_permille": part }),
        _ => Value::Null,
    };
    let fits: Vec<Value> = refusal.fits.iter().map(offer).collect();
    json!({ "reason": refusal.reason.to_string(), "fits": fits })
}
