//! `penstock controller topology|tenants|bindings|explain|events|...`: asks a running controller.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_controller::wire::OPERATOR_BYTES_MAX;
use penstock_controller::wire::v1::operator_service_client::OperatorServiceClient;
use penstock_controller::wire::v1::{
    GetViewRequest, GrowTenantRequest, RaiseEpochRequest, RevertRequest, SetModeRequest,
    SetServiceRequest, TenantName, TomlText,
};
use penstock_units::BitsPerSecond;
use serde_json::Value;
use tonic::transport::Channel;

use crate::cli::{AskCommand, TenantAskCommand as TenantCommand};
use crate::client::{channel, refused, timed};
use crate::table::{Align, Table, printable};
use crate::verbs::{print, print_json, printable_lines};

type Client = OperatorServiceClient<Channel>;

/// Asks, and prints the answer.
///
/// # Errors
/// No controller listens there, or it says no.
pub async fn run(socket: &Path, command: &AskCommand, json: bool) -> Result<ExitCode> {
    let what = "the controller is not running there; start it with `penstock controller run \
                --config FILE`, or name its socket with --socket";
    let mut client = OperatorServiceClient::new(channel(socket, what).await?)
        .max_decoding_message_size(OPERATOR_BYTES_MAX)
        .max_encoding_message_size(OPERATOR_BYTES_MAX);
    let (value, fine) = answer(&mut client, command).await?;
    if json {
        print_json(&value)?;
    } else {
        print(&told(command, &value))?;
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The answer, and whether all that was asked was done.
async fn answer(client: &mut Client, command: &AskCommand) -> Result<(Value, bool)> {
    let view = |what: &str, name: &str| {
        timed(GetViewRequest { what: what.to_owned(), name: name.to_owned() })
    };
    let reply = match command {
        AskCommand::Status => client.get_view(view("status", "")).await,
        AskCommand::Topology => client.get_view(view("topology", "")).await,
        AskCommand::Tenants => client.get_view(view("tenants", "")).await,
        AskCommand::Bindings => client.get_view(view("bindings", "")).await,
        AskCommand::Events => client.get_view(view("events", "")).await,
        AskCommand::SwitchCounters => client.get_view(view("switch-counters", "")).await,
        AskCommand::Explain { tenant } => client.get_view(view("explain", tenant)).await,
        AskCommand::Tenant(TenantCommand::Add { file }) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("file {}", file.display()))?;
            client.add_tenants(timed(TomlText { text })).await
        }
        AskCommand::Tenant(TenantCommand::Remove { name }) => {
            client.remove_tenant(timed(TenantName { name: name.clone() })).await
        }
        AskCommand::Tenant(TenantCommand::Grow { name, class, more, may_move }) => {
            let (name, may_move) = (name.clone(), *may_move);
            let grow = GrowTenantRequest { name, class: *class, more: *more, may_move };
            client.grow_tenant(timed(grow)).await
        }
        AskCommand::Service { node, service } => {
            let (node, service) = (node.clone(), service.clone());
            client.set_service(timed(SetServiceRequest { node, service })).await
        }
        AskCommand::Mode { mode } => {
            client.set_mode(timed(SetModeRequest { mode: mode.clone() })).await
        }
        AskCommand::Revert => client.revert(timed(RevertRequest {})).await,
        AskCommand::Epoch { at_least } => {
            client.raise_epoch(timed(RaiseEpochRequest { at_least: *at_least })).await
        }
    };
    let text = reply.map_err(refused)?.into_inner().text;
    let value: Value = serde_json::from_str(&text).context("the controller's answer")?;
    let refused = value["refused"].as_array().is_some_and(|list| !list.is_empty());
    Ok((value, !refused))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn rate(value: &Value) -> String {
    BitsPerSecond(value.as_u64().unwrap_or(0)).to_string()
}

fn permille(value: &Value) -> String {
    let value = value.as_u64().unwrap_or(0);
    format!("{}.{} %", value / 10, value % 10)
}

fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn told(command: &AskCommand, value: &Value) -> String {
    match command {
        AskCommand::Status => status(value),
        AskCommand::Topology => topology(value),
        AskCommand::Tenants => tenants(value),
        AskCommand::Bindings => bindings(value),
        AskCommand::Events => events(value),
        AskCommand::Explain { .. } => explained(value),
        AskCommand::Tenant(TenantCommand::Add { .. }) => added(value),
        _ => {
            let lines = value.as_object().into_iter().flatten();
            let line = |(key, value): (&String, &Value)| format!("{key}: {}\n", text(value));
            printable_lines(&lines.map(line).collect::<String>())
        }
    }
}

fn status(value: &Value) -> String {
    if value["leads"] != Value::Bool(true) {
        let leader = match value["leader"].as_str() {
            None | Some("") => "nobody known",
            Some(leader) => leader,
        };
        return printable_lines(&format!(
            "controller {} does not lead; {leader} does",
            text(&value["name"])
        ));
    }
    let last = &value["last_interval"];
    let out: Vec<String> = rows(&value["out_of_date"]).map(text).collect();
    let out = if out.is_empty() { "none".to_owned() } else { out.join(", ") };
    let later = &value["later"];
    let later = match later["hosts"].as_u64() {
        None => String::new(),
        Some(hosts) => format!(
            "\nhosts with later decisions: {hosts} ({} has {}.{}). If no other controller leads, \
             the store is an older copy:\n  penstock controller epoch --at-least {}",
            text(&later["host"]),
            later["has"]["epoch"],
            later["has"]["generation"],
            later["at_least"],
        ),
    };
    printable_lines(&format!(
        "controller {} leads, mode {}, decision {}.{}\n\
         tenants {}, with queues {}\n\
         hosts {} of {} connected, switches {}, out of date: {out}\n\
         interval {}: {} hosts heard, {} promoted, {} demoted, {} steps, {} us\n\
         worst weight error {} ppm{later}",
        text(&value["name"]),
        text(&value["mode"]),
        value["stamp"]["epoch"],
        value["stamp"]["generation"],
        value["tenants"],
        value["with_queues"],
        value["hosts_connected"],
        value["servers"],
        value["switches"],
        last["number"],
        last["hosts_heard"],
        last["promoted"],
        last["demoted"],
        last["steps"],
        last["took_us"],
        value["worst_weight_error_ppm"],
    ))
}

fn topology(value: &Value) -> String {
    let mut nodes = Table::new(&[
        ("NODE", Align::Left),
        ("KIND", Align::Left),
        ("SERVICE", Align::Left),
        ("STATE", Align::Left),
        ("FREE SLOTS", Align::Right),
    ]);
    for node in rows(&value["nodes"]) {
        let kind = match node["driver"].as_str() {
            Some(driver) => format!("switch ({driver})"),
            None => text(&node["kind"]),
        };
        let state = match (node["connected"].as_bool(), node["up_to_date"].as_bool()) {
            (Some(true), Some(true)) => "up to date",
            (Some(true), _) => "out of date",
            _ => "away",
        };
        let free = if node["kind"] == "server" {
            format!("{} of {}", node["free_slots"], node["slots"])
        } else {
            String::new()
        };
        let name = text(&node["name"]);
        nodes.row([name, kind, text(&node["service"]), state.to_owned(), free]);
    }
    let mut links = Table::new(&[
        ("LINK", Align::Left),
        ("RATE", Align::Right),
        ("RESERVED UP", Align::Right),
        ("RESERVED DOWN", Align::Right),
        ("TENANTS", Align::Right),
    ]);
    for link in rows(&value["links"]) {
        links.row([
            format!("{} - {}", text(&link["below"]), text(&link["above"])),
            rate(&link["rate"]),
            rate(&link["reserved_up"]),
            rate(&link["reserved_down"]),
            text(&link["tenants"]),
        ]);
    }
    format!("{}\n{}", nodes.render(), links.render())
}

fn tenants(value: &Value) -> String {
    let mut table = Table::new(&[
        ("TENANT", Align::Left),
        ("VMS", Align::Right),
        ("GUARANTEE", Align::Right),
        ("ROOT", Align::Left),
        ("QUEUE", Align::Left),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("USED", Align::Right),
        ("SCORE", Align::Right),
    ]);
    for tenant in rows(value) {
        let queue = match (tenant["network"].as_bool(), tenant["dscp"].as_u64()) {
            (Some(false), _) => "none needed".to_owned(),
            (_, Some(0) | None) => "shared".to_owned(),
            (_, Some(dscp)) => format!("own, dscp {dscp}"),
        };
        table.row([
            text(&tenant["name"]),
            text(&tenant["vms"]),
            rate(&tenant["guarantee_send"]),
            text(&tenant["root"]),
            queue,
            rate(&tenant["sent"]),
            rate(&tenant["received"]),
            permille(&tenant["used_permille"]),
            rate(&tenant["score"]),
        ]);
    }
    table.render()
}

fn bindings(value: &Value) -> String {
    let mut table = Table::new(&[
        ("PORT", Align::Left),
        ("QUEUE", Align::Right),
        ("TENANT", Align::Left),
        ("DSCP", Align::Right),
        ("WEIGHT", Align::Right),
        ("SHARE", Align::Right),
    ]);
    for port in rows(value) {
        for queue in rows(&port["queues"]) {
            let shared = queue["queue"] == 0;
            if queue["tenant"].is_null() && !shared {
                continue;
            }
            let tenant = if shared { "(shared)".to_owned() } else { text(&queue["tenant"]) };
            table.row([
                format!("{} to {}", text(&port["node"]), text(&port["to"])),
                text(&queue["queue"]),
                tenant,
                text(&queue["dscp"]),
                text(&queue["weight"]),
                permille(&queue["share_permille"]),
            ]);
        }
    }
    table.render()
}

fn events(value: &Value) -> String {
    let mut table = Table::new(&[
        ("NUMBER", Align::Right),
        ("DECISION", Align::Left),
        ("KIND", Align::Left),
        ("SUBJECT", Align::Left),
        ("WHAT", Align::Left),
    ]);
    for event in rows(value) {
        let stamp = &event["stamp"];
        table.row([
            text(&event["number"]),
            format!("{}.{}", stamp["epoch"], stamp["generation"]),
            text(&event["kind"]),
            text(&event["subject"]),
            text(&event["text"]),
        ]);
    }
    table.render()
}

fn explained(value: &Value) -> String {
    let tenant = Value::Array(vec![value["tenant"].clone()]);
    let mut told = tenants(&tenant);
    told.push('\n');
    for why in rows(&value["why"]) {
        told += &format!("- {}\n", printable(&text(why)));
    }
    if rows(&value["events"]).next().is_some() {
        told.push('\n');
        told += &events(&value["events"]);
    }
    told
}

fn added(value: &Value) -> String {
    let mut told = String::new();
    for placed in rows(&value["placed"]) {
        let (name, root) = (text(&placed["name"]), text(&placed["root"]));
        told += &format!("{} placed below {}\n", printable(&name), printable(&root));
    }
    for refused in rows(&value["refused"]) {
        told += &format!("refused: {}\n", printable(&text(&refused["why"])));
    }
    told
}
