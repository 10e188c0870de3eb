//! Returns the controller's state as JSON, for the command line and the web page.
//!
//! Rates in the JSON are in bit/s. The names of other JSON members end with their unit, which is
//! `_permille` (thousandths), `_ppm` (millionths), `_ms` (milliseconds) or `_us` (microseconds).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_fabric::queue_binding::Port;
use penstock_fabric::tenant_placement::{Tenant, TenantSlot};
use penstock_fabric::topology::{LinkId, NodeId};
use serde_json::{Value, json};

use crate::agents::Registry;
use crate::carry_out::{PlanTimes, StageKind};
use crate::events::now_ms;
use crate::intent::Mode;
use crate::leader::Leader;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns how long each stage of a plan took.
pub(crate) fn stages(plan: &PlanTimes) -> Value {
    let stage = |(kind, took): &(StageKind, Duration)| {
        let (stage, took_us) = (kind.to_string(), micros(*took));
        json!({ "stage": stage, "took_us": took_us })
    };
    plan.0.iter().map(stage).collect()
}

/// Returns the controller's own state: stamp, counters and the last interval.
#[must_use]
pub fn status(leader: &Leader, hosts: &Registry, name: &str, interval_ms: u64) -> Value {
    let (last, all, counts) = (leader.last(), leader.totals(), hosts.counts());
    let topology = leader.fabric().topology();
    let out_of_date: Vec<String> =
        leader.crew().out_of_date().iter().map(|n| topology.name(*n).to_string()).collect();
    let later = hosts.later();
    let latest = later.iter().max_by_key(|(_, has)| **has);
    json!({
        "name": name,
        "leads": true,
        "mode": leader.mode(),
        "stamp": leader.stamp(),
        "store_full": leader.is_store_full(),
        "interval_ms": interval_ms,
        "now_ms": now_ms(),
        "tenants": leader.fabric().tenants().count(),
        "with_queues": leader.fabric().binding().bound().count(),
        "servers": topology.servers(),
        "hosts_connected": hosts.connected_count(),
        "later": latest.map(|(host, has)| json!({
            "hosts": later.len(),
            "host": host,
            "has": has,
            "at_least": has.next_epoch(),
        })),
        "switches": leader.crew().switches().len(),
        "out_of_date": out_of_date,
        "worst_weight_error_ppm": leader.fabric().binding().worst_error_ppm(),
        "last_interval": {
            "number": last.interval,
            "hosts_heard": last.hosts_heard,
            "promoted": last.promoted,
            "demoted": last.demoted,
            "without_code_point": last.without_code_point,
            "steps": last.steps,
            "taken_back": last.taken_back,
            "failed": last.failed,
            "drifted": last.drifted,
            "decided_in_us": micros(last.decided_in),
            "took_us": micros(last.took),
            "plan_us": micros(last.plan.took()),
            "plan_stages": stages(&last.plan),
        },
        "this_term": {
            "intervals": all.intervals,
            "promoted": all.promoted,
            "demoted": all.demoted,
            "taken_back": all.taken_back,
            "failed": all.failed,
            "drifted": all.drifted,
            "decided_in_us": micros(all.decided_in),
            "took_us": micros(all.took),
            "last_plan_us": micros(all.last_plan),
            "longest_plan_us": micros(all.longest_plan),
        },
        "agents": {
            "sessions": counts.sessions,
            "refused": counts.refused,
            "crowded": counts.crowded,
            "reports": counts.reports,
            "applied": counts.applied,
            "failed": counts.failed,
        },
    })
}

/// Returns servers, switches and links, with their reservations and measured rates.
#[must_use]
pub fn topology(leader: &Leader, hosts: &Registry) -> Value {
    let fabric = leader.fabric();
    let (topology, ledger) = (fabric.topology(), fabric.datacenter().ledger());
    let nodes = (0..topology.layers()).flat_map(|layer| topology.layer(layer)).map(|node| {
        let name = topology.name(node).to_string();
        let server = topology.is_server(node);
        let service = ledger.service(node).to_string();
        let up_to_date = !leader.crew().out_of_date().contains(&node);
        let switch = leader.crew().switches().get(&node);
        json!({
            "name": name,
            "layer": topology.layer_of(node),
            "kind": if server { "server" } else { "switch" },
            "driver": switch.map(|switch| switch.driver.kind()),
            "service": service,
            "connected": if server { hosts.has(&name).is_some() } else { up_to_date },
            "up_to_date": up_to_date,
            "slots": if server { topology.slots(node) } else { 0 },
            "free_slots": if server { ledger.free_slots(node) } else { 0 },
            "stamp": hosts.has(&name),
        })
    });
    let used = used_by_link(leader);
    let links = (0..topology.links()).filter_map(|at| u32::try_from(at).ok()).map(|at| {
        let link = LinkId(at);
        let reserved = ledger.reserved(link);
        let (up, down) = used.get(&link).copied().unwrap_or_default();
        json!({
            "below": topology.name(topology.child(link)).to_string(),
            "above": topology.name(topology.parent(link)).to_string(),
            "rate": topology.rate(link).0,
            "reserved_up": reserved.up.0,
            "reserved_down": reserved.down.0,
            "tenants": ledger.tenants(link),
            "used_up": up,
            "used_down": down,
        })
    });
    json!({ "nodes": nodes.collect::<Vec<_>>(), "links": links.collect::<Vec<_>>() })
}

/// Returns the rates at which each server sent and received on its uplink, in bit/s. The result
/// omits links between switches, because only servers measure rates.
fn used_by_link(leader: &Leader) -> BTreeMap<LinkId, (u64, u64)> {
    let topology = leader.fabric().topology();
    let of_server = |(server, (sent, received)): (&NodeId, &(u64, u64))| {
        let link = topology.up(*server).next()?;
        Some((link, (*sent, *received)))
    };
    leader.used().iter().filter_map(of_server).collect()
}

fn tenant_json(leader: &Leader, name: &str, slot: TenantSlot, tenant: &Tenant) -> Value {
    let fabric = leader.fabric();
    let (bound, measured) = (fabric.binding().of(slot), fabric.measured(slot));
    let total = tenant.request.hose.total();
    let topology = fabric.topology();
    let servers: BTreeMap<String, u32> = (tenant.placement.entry.slots.iter())
        .map(|(server, vms)| (topology.name(*server).to_string(), *vms))
        .collect();
    let dscp = leader.crew().told().marks.get(slot).copied().unwrap_or(0);
    let away: Vec<&String> = servers
        .keys()
        .filter(|name| {
            topology.find(name).is_some_and(|node| !leader.crew().reachable(fabric, node))
        })
        .collect();
    json!({
        "name": name,
        "vms": tenant.request.hose.vms(),
        "guarantee_send": total.up.0,
        "guarantee_recv": total.down.0,
        "root": topology.name(tenant.placement.root).to_string(),
        "network": tenant.placement.has_network(),
        "servers": servers,
        "hosts_away": away,
        "queue": bound.is_some(),
        "dscp": dscp,
        "since_interval": bound.map(|bound| bound.since),
        "score": fabric.score(slot),
        "payment": penstock_fabric::score::payment(&tenant.request.hose),
        "sent": measured.sent,
        "received": measured.received,
        "used_permille": measured.used_permille,
    })
}

/// Returns all tenants as JSON, ordered by name.
#[must_use]
pub fn tenants(leader: &Leader) -> Value {
    let tenants = leader.fabric().tenants();
    tenants.map(|(name, slot, tenant)| tenant_json(leader, name, slot, tenant)).collect()
}

/// Returns the share of `weight` in `sum` in thousandths, rounded to the nearest.
fn share_permille(weight: u32, sum: u32) -> u64 {
    let sum = u64::from(sum.max(1));
    (u64::from(weight) * 1000 + sum / 2) / sum
}

/// Returns the queues of every port that carries a tenant, with each queue's weight and tenant.
#[must_use]
pub fn bindings(leader: &Leader) -> Value {
    let fabric = leader.fabric();
    let topology = fabric.topology();
    let nodes = (0..topology.layers()).flat_map(|layer| topology.layer(layer));
    let port = |node: NodeId, port: Port| {
        let weights = fabric.binding().weights(port)?;
        let sum: u32 = weights.weights.iter().sum();
        let queue = |(queue, weight): (u8, &u32)| {
            let holder = if queue == 0 { None } else { fabric.binding().holder(port, queue) };
            json!({
                "queue": queue,
                "weight": weight,
                "share_permille": share_permille(*weight, sum),
                "tenant": holder.map(|slot| fabric.name(slot)),
                "dscp": holder.map(|slot| fabric.dscp(slot)),
            })
        };
        let far = if port.up { topology.parent(port.link) } else { topology.child(port.link) };
        Some(json!({
            "node": topology.name(node).to_string(),
            "to": topology.name(far).to_string(),
            "weight_error_ppm": weights.error_ppm,
            "queues": (0..=u8::MAX).zip(&weights.weights).map(queue).collect::<Vec<_>>(),
        }))
    };
    let ports = nodes.flat_map(|node| fabric.ports_of(node).into_iter().map(move |p| (node, p)));
    ports.filter_map(|(node, p)| port(node, p)).collect()
}

/// Returns the usage of a tenant in the last intervals, or of all tenants if the name is empty.
/// `None` if no tenant has this name.
#[must_use]
pub fn history(leader: &Leader, name: &str, interval_ms: u64) -> Option<Value> {
    leader.samples().view(name, interval_ms)
}

/// Returns the last events of the controller, oldest first.
#[must_use]
pub fn events(leader: &Leader) -> Value {
    leader.events().iter().map(|event| json!(event)).collect()
}

/// Returns a JSON document that says why a tenant has queues of its own or shares queue 0. `None`
/// if no tenant has this name.
#[must_use]
pub fn explain(leader: &Leader, name: &str) -> Option<Value> {
    let fabric = leader.fabric();
    let slot = fabric.slot(name)?;
    let tenant = fabric.datacenter().tenant(slot)?;
    let shown = tenant_json(leader, name, slot, tenant);
    let mut why = Vec::new();
    let measured = fabric.measured(slot);
    let used = measured.used_permille;
    if !tenant.placement.has_network() {
        why.push("all VMs of the tenant are on one server, so the tenant needs no queue".into());
    } else if let Some(bound) = fabric.binding().of(slot) {
        let (dscp, since) = (bound.dscp, bound.since);
        why.push(format!(
            "the tenant has a queue on each port of its tree since interval {since} (DSCP {dscp}); \
             above its guarantee, the tenant gets a weighted share of spare bandwidth"
        ));
    } else {
        why.push(
            "the tenant shares queue 0; the weight of queue 0 keeps the tenant's guarantee"
                .to_owned(),
        );
        let obstacles = obstacles(leader, tenant);
        why.extend(if obstacles.is_empty() { above(leader, slot) } else { obstacles });
    }
    why.push(format!(
        "the tenant used {}.{} % of its guarantee in the last interval; its smoothed score is \
         {} Mbit/s",
        used / 10,
        used % 10,
        fabric.score(slot) / 1_000_000
    ));
    let away: Vec<&str> =
        shown["hosts_away"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(first) = away.first() {
        let others = match away.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        why.push(format!(
            "host {first}{others} cannot be reached; the tenant's queues change only when all \
             hosts of its tree can be reached"
        ));
    }
    let recent: Vec<Value> =
        leader.events().iter().filter(|e| e.subject == name).map(|e| json!(e)).collect();
    Some(json!({ "tenant": shown, "why": why, "events": recent }))
}

/// Explains which switches and ports of a tenant's tree keep the tenant from queues, whatever its
/// score is.
fn obstacles(leader: &Leader, tenant: &Tenant) -> Vec<String> {
    let (fabric, crew) = (leader.fabric(), leader.crew());
    let (topology, left_out) = (fabric.topology(), crew.left_out_links());
    let (mut all, mut switches) = (Vec::new(), BTreeSet::new());
    for (link, _) in &tenant.placement.entry.links {
        let [below, over] = [topology.child(*link), topology.parent(*link)];
        if left_out.contains(link) {
            all.push(format!(
                "a switch has a port between {} and {} that the controller does not use; see the \
                 event `left-out` for the reason and the remedy",
                topology.name(below),
                topology.name(over)
            ));
        }
        switches.extend([below, over].into_iter().filter(|node| !topology.is_server(*node)));
    }
    // An observing controller changes no switch, and decides as if it could change all.
    let observes = leader.mode() == Mode::Observe;
    let refuses = |switch: &NodeId| !observes && !crew.reachable(fabric, *switch);
    for switch in switches.into_iter().filter(refuses) {
        all.push(format!(
            "switch {} cannot be reached, or refused a plan; until the controller can change it \
             again, its tenants get no queues",
            topology.name(switch)
        ));
    }
    all.truncate(4);
    all
}

/// Explains why a tenant has no queue. The text names the ports without a free queue, and the
/// tenants that have the queues of these ports.
fn above(leader: &Leader, slot: TenantSlot) -> Vec<String> {
    let fabric = leader.fabric();
    let Some(tenant) = fabric.datacenter().tenant(slot) else { return Vec::new() };
    let mut full = Vec::new();
    for (link, _) in &tenant.placement.entry.links {
        for up in [false, true] {
            let port = Port { link: *link, up };
            let queues = fabric.binding().queues(port);
            let holders: Vec<TenantSlot> =
                (1..queues).filter_map(|queue| fabric.binding().holder(port, queue)).collect();
            if holders.len() + 1 == usize::from(queues) {
                let topology = fabric.topology();
                let (below, over) = (topology.child(*link), topology.parent(*link));
                let names: Vec<String> = holders
                    .iter()
                    .map(|h| {
                        let score = fabric.score(*h) / 1_000_000;
                        format!("{} (score {score} Mbit/s)", fabric.name(*h))
                    })
                    .collect();
                let (from, to) = if up { (below, over) } else { (over, below) };
                let (from, to) = (topology.name(from), topology.name(to));
                full.push(if names.is_empty() {
                    format!("{from} has only the shared queue to {to}; see the event `few-queues`")
                } else {
                    format!("all queues from {from} to {to} are taken: {}", names.join(", "))
                });
            }
        }
    }
    if full.is_empty() {
        let text = "every port of the tenant's tree has a free queue; the tenant also needs a \
                    free DSCP and reachable hosts and switches";
        full.push(text.to_owned());
    }
    full.truncate(4);
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded() {
        assert_eq!(share_permille(2, 3), 667);
        assert_eq!(share_permille(1, 3), 333);
        assert_eq!((share_permille(7, 7), share_permille(0, 0)), (1000, 0));
    }
}
