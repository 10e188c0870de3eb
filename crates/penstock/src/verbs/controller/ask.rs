//! `penstock controller topology|tenants|bindings|explain|events|...` sends a request to a running
//! controller.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_controller::wire::OPERATOR_BYTES_MAX;
use penstock_controller::wire::v1::operator_service_client::OperatorServiceClient;
use penstock_controller::wire::v1::{
    GetViewRequest, GrowTenantRequest, RaiseEpochRequest, RevertRequest, SetModeRequest,
    SetServiceRequest, TenantName, TomlText,
};
use penstock_fabric::tenant_placement::Moved;
use serde_json::Value;
use tonic::Status;
use tonic::transport::Channel;

use crate::cli::{AskCommand, TenantAskCommand as TenantCommand};
use crate::client::{channel, refused, timed};
use crate::table::{Table, bits_per_second, bytes, count, counted, printable, to_f64};
use crate::verbs::{print, print_json, printable_lines};

type Client = OperatorServiceClient<Channel>;

/// Sends the request and prints the answer.
///
/// # Errors
/// Returns an error if no controller listens on the socket, or if the controller refuses the
/// request.
pub async fn run(socket: &Path, command: &AskCommand, json: bool) -> Result<ExitCode> {
    let absent = "the controller is not running; start it with `penstock controller run --config \
                  FILE`, or name its socket with --socket";
    let mut client = OperatorServiceClient::new(channel(socket, absent).await?)
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

/// Returns the answer, and whether the controller carried out the whole request.
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
            let added = client.add_tenants(timed(TomlText { text })).await;
            added.map_err(|status| named(&status, file))
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
    let unread = matches!(command, AskCommand::SwitchCounters) && has_unread(&value);
    Ok((value, !refused && !unread))
}

/// Whether the counters of a switch could not be read.
fn has_unread(counters: &Value) -> bool {
    counters.as_object().into_iter().flatten().any(|(_, read)| read["error"].is_string())
}

/// Returns a refusal in which each mistake names `file`. The controller receives only the text of
/// the file, so its error texts do not contain the file's name.
fn named(status: &Status, file: &Path) -> Status {
    let line = |line: &str| match line.strip_prefix("tenants:") {
        Some(rest) => format!("{}:{rest}\n", file.display()),
        None => format!("{line}\n"),
    };
    let text: String = status.message().lines().map(line).collect();
    Status::new(status.code(), text.trim_end())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn rate(value: &Value) -> String {
    bits_per_second(to_f64(number(value)))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
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
        AskCommand::SwitchCounters => switch_counters(value),
        AskCommand::Tenant(TenantCommand::Add { .. }) => added(value),
        AskCommand::Tenant(TenantCommand::Remove { name }) => {
            format!("tenant {} removed\n", printable(name))
        }
        AskCommand::Tenant(TenantCommand::Grow { .. }) => {
            let (name, vms) = (text(&value["name"]), counted(number(&value["vms"]), "VM"));
            printable_lines(&format!("tenant {name} has {vms}; {}", moved(&value["how"])))
        }
        AskCommand::Service { service, .. } => served(value, service),
        AskCommand::Mode { mode } => format!("mode is {mode}\n"),
        AskCommand::Revert => format!(
            "the previous binding is in force, and the mode is hold\n{} promoted to a queue, {} \
             demoted, {}\n",
            counted(number(&value["promoted"]), "tenant"),
            count(number(&value["demoted"])),
            counted(number(&value["steps"]), "step"),
        ),
        AskCommand::Epoch { .. } => {
            format!("epoch is {} (before: {})\n", value["epoch"], value["before"])
        }
    }
}

/// Returns the effect of a change on a tenant's VMs as text. The argument `how` is the name of a
/// [`Moved`] variant, from the controller's answer.
fn moved(how: &Value) -> String {
    let known = [Moved::InPlace, Moved::Rerouted, Moved::Anew];
    let moved = known.iter().find(|moved| *how == format!("{moved:?}"));
    moved.map_or_else(|| "its placement changed".to_owned(), ToString::to_string)
}

fn served(value: &Value, service: &str) -> String {
    let state = if service == "in" { "in service" } else { service };
    let mut told = format!("{} is {state}\n", text(&value["node"]));
    for tenant in rows(&value["moves"]) {
        let name = text(&tenant["name"]);
        match tenant["stays"].as_str() {
            Some(why) => told += &format!("tenant {name} stays: {why}\n"),
            None => told += &format!("tenant {name} left the node; {}\n", moved(&tenant["how"])),
        }
    }
    printable_lines(&told)
}

fn switch_counters(value: &Value) -> String {
    let mut table = Table::new("SWITCH|PORT|>QUEUE|>FRAMES|>BYTES|>DROPS");
    let mut errors = String::new();
    for (switch, read) in value.as_object().into_iter().flatten() {
        if let Some(error) = read["error"].as_str() {
            // The errors of drivers name the switch.
            let named = format!("switch {switch}: ");
            errors += &format!("{named}{}\n", error.strip_prefix(&named).unwrap_or(error));
        }
        for queue in rows(read) {
            table.row([
                switch.clone(),
                text(&queue["port"]),
                text(&queue["queue"]),
                count(number(&queue["packets"])),
                bytes(number(&queue["bytes"])),
                count(number(&queue["dropped"])),
            ]);
        }
    }
    format!("{}{}", table.render(), printable_lines(&errors))
}

fn status(value: &Value) -> String {
    if value["leads"] != Value::Bool(true) {
        let leader = match value["leader"].as_str() {
            None | Some("") => "the leader is not known".to_owned(),
            Some(leader) => format!("the leader is {leader}"),
        };
        return printable_lines(&format!(
            "controller {} does not lead; {leader}",
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
            "\n{} later decisions than this controller ({} has {}.{}). If no other controller \
             leads, the store is an old copy; then run:\n  penstock controller epoch --at-least {}",
            if hosts == 1 { "1 host has".to_owned() } else { format!("{hosts} hosts have") },
            text(&later["host"]),
            later["has"]["epoch"],
            later["has"]["generation"],
            later["at_least"],
        ),
    };
    let queued = match value["mode"].as_str() {
        Some("observe") => "would have a queue",
        _ => "with a queue",
    };
    printable_lines(&format!(
        "controller {} leads, mode {}, decision {}.{} (epoch.generation)\n\
         {}, {} {queued}\n\
         {} of {} hosts connected, {}, out of date: {out}\n\
         interval {}: {} hosts reported, {} tenants promoted, {} demoted, {}, took {} us\n\
         largest shortfall of a queue's share: {} ppm of the link{later}",
        text(&value["name"]),
        text(&value["mode"]),
        value["stamp"]["epoch"],
        value["stamp"]["generation"],
        counted(number(&value["tenants"]), "tenant"),
        count(number(&value["with_queues"])),
        value["hosts_connected"],
        value["servers"],
        counted(number(&value["switches"]), "switch"),
        last["number"],
        last["hosts_heard"],
        last["promoted"],
        last["demoted"],
        counted(number(&last["steps"]), "step"),
        count(number(&last["took_us"])),
        count(number(&value["worst_weight_error_ppm"])),
    ))
}

fn topology(value: &Value) -> String {
    let mut nodes = Table::new("NODE|KIND|SERVICE|STATE|>FREE SLOTS");
    for node in rows(&value["nodes"]) {
        let kind = match node["driver"].as_str() {
            Some(driver) => format!("switch ({driver})"),
            None => text(&node["kind"]),
        };
        let state = match (node["connected"].as_bool(), node["up_to_date"].as_bool()) {
            (Some(true), Some(true)) => "up to date",
            (Some(true), _) => "out of date",
            _ => "not connected",
        };
        let free = if node["kind"] == "server" {
            format!("{} of {}", node["free_slots"], node["slots"])
        } else {
            "-".to_owned()
        };
        let name = text(&node["name"]);
        nodes.row([name, kind, text(&node["service"]), state.to_owned(), free]);
    }
    let mut links = Table::new("LINK|>RATE|>RESERVED UP|>RESERVED DOWN|>TENANTS");
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
    let mut table = Table::new("TENANT|>VMS|>GUARANTEE|ROOT|QUEUE|>SENT|>RECEIVED|>USED|>SCORE");
    for tenant in rows(value) {
        let queue = match (tenant["network"].as_bool(), tenant["dscp"].as_u64()) {
            (Some(false), _) => "none needed".to_owned(),
            (_, Some(0) | None) => "shared".to_owned(),
            (_, Some(dscp)) => format!("own (DSCP {dscp})"),
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
    let mut table = Table::new("PORT|>QUEUE|TENANT|>DSCP|>WEIGHT|>SHARE");
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
    let mut table = Table::new(">NUMBER|DECISION|KIND|SUBJECT|EVENT");
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
        told += &format!(
            "tenant {} placed, root of its tree: {}\n",
            printable(&name),
            printable(&root)
        );
    }
    for refused in rows(&value["refused"]) {
        told += &format!("refused: {}\n", printable(&text(&refused["why"])));
    }
    if told.is_empty() { "nothing added: the file has no [[tenant]]\n".to_owned() } else { told }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tonic::Code;

    use super::*;

    #[test]
    fn mistakes_of_a_file_of_tenants_name_it() {
        let text = "tenants:3:1: tenant \"a\": `rate` is missing; add it\npenstock: 1 mistake";
        let status = named(&Status::invalid_argument(text), Path::new("t.toml"));
        assert_eq!(
            (status.code(), status.message()),
            (
                Code::InvalidArgument,
                "t.toml:3:1: tenant \"a\": `rate` is missing; add it\npenstock: 1 mistake"
            )
        );
    }

    #[test]
    fn a_file_without_tenants_is_told() {
        let none = added(&json!({ "placed": [], "refused": [] }));
        assert!(none.contains("has no [[tenant]]"), "{none}");
        let one = added(&json!({ "placed": [{ "name": "a", "root": "r" }], "refused": [] }));
        assert_eq!(one, "tenant a placed, root of its tree: r\n");
    }

    #[test]
    fn changes_are_told_in_words() {
        let grow = TenantCommand::Grow { name: "web".into(), more: 1, class: 0, may_move: false };
        let grown = json!({ "name": "web", "vms": 11, "how": "InPlace" });
        let said = told(&AskCommand::Tenant(grow), &grown);
        assert_eq!(said, "tenant web has 11 VMs; no other VM moved\n");
        let service = AskCommand::Service { node: "s1".into(), service: "drained".into() };
        let moves = json!([
            { "name": "web", "how": "Anew", "stays": null },
            { "name": "db", "how": null, "stays": "no server has a free slot" },
        ]);
        assert_eq!(
            told(&service, &json!({ "node": "s1", "moves": moves })),
            "s1 is drained\n\
             tenant web left the node; the tenant's VMs were placed again and may have moved\n\
             tenant db stays: no server has a free slot\n"
        );
        let mode = AskCommand::Mode { mode: "hold".into() };
        assert_eq!(told(&mode, &json!({ "mode": "hold" })), "mode is hold\n");
    }

    #[test]
    fn counters_and_rates_have_units() {
        let queue = json!({
            "port": "eth1", "queue": 2, "packets": 1_234_567, "bytes": 79_012_288, "dropped": 3,
        });
        let read = json!({
            "leaf-0": [queue],
            "leaf-1": { "error": "no answer" },
            "leaf-2": { "error": "switch leaf-2: cannot be reached" },
        });
        assert!(has_unread(&read) && !has_unread(&json!({ "leaf-0": [] })));
        assert_eq!(
            told(&AskCommand::SwitchCounters, &read),
            "SWITCH  PORT  QUEUE     FRAMES    BYTES  DROPS\n\
             leaf-0  eth1      2  1,234,567  79.0 MB      3\n\
             switch leaf-1: no answer\n\
             switch leaf-2: cannot be reached\n"
        );
        assert_eq!(rate(&json!(1_384_615_384_u64)), "1.38 Gbit/s");
    }
}
