//! `penstock port` lists, shows and changes ports.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_control::api::{self, PortStatus};
use penstock_units::Labels;
use serde::Serialize;

use super::{print, print_json, printable_lines, report};
use crate::cli::PortCommand;
use crate::client::{Client, connect, refused, timed};
use crate::pairs::Pairs;
use crate::table::{Table, cycle_rate, or_dash, printable, to_f64};

/// # Errors
/// Returns an error if the daemon cannot be reached or refuses the request, or the arguments are
/// wrong.
pub async fn run(socket: &Path, command: PortCommand) -> Result<ExitCode> {
    match command {
        PortCommand::List { labels, json } => {
            let ports = list(socket, labels.labels).await?;
            if json.json {
                print_json(&ports)?
            } else {
                print(&table(&ports))?
            }
            Ok(ExitCode::SUCCESS)
        }
        PortCommand::Show { name, json } => show(socket, name, json.json).await,
        PortCommand::Add(args) => {
            let table = Pairs::parse_new(&args.name, &args.pairs)
                .with_context(|| format!("port {}", args.name))?;
            let request =
                api::AddObjectRequest { toml: table.to_string(), save: !args.save.no_save };
            report(connect(socket).await?.add_port(timed(request)).await, args.save.json)
        }
        PortCommand::Set(args) => {
            let request = set_request("port", &args)?;
            report(connect(socket).await?.set_port(timed(request)).await, args.save.json)
        }
        PortCommand::Del(args) => {
            let request = api::DeleteObjectRequest { name: args.name, save: !args.save.no_save };
            report(connect(socket).await?.delete_port(timed(request)).await, args.save.json)
        }
    }
}

/// Returns the request that changes some keys of an object.
pub(super) fn set_request(
    what: &str,
    args: &crate::cli::ObjectArgs,
) -> Result<api::SetObjectRequest> {
    let object = format!("{what} {}", args.name);
    anyhow::ensure!(!args.pairs.is_empty(), "{object}: nothing to set; write KEY=VALUE");
    let pairs = Pairs::parse(&args.pairs).with_context(|| object.clone())?;
    Ok(api::SetObjectRequest {
        name: args.name.clone(),
        changes: pairs
            .changes
            .into_iter()
            .map(|(key, value)| api::KeyValue { key, value })
            .collect(),
        save: !args.save.no_save,
    })
}

/// Returns the name of the port that `text` names: the port's name, or a label of only one port.
///
/// # Errors
/// Returns an error if the daemon does not answer, or no port or several ports have the label.
pub(super) async fn name_of(client: &mut Client, text: String) -> Result<String> {
    let request = timed(api::GetPortRequest { name: text.clone() });
    let reply = client.get_port(request).await.map_err(refused)?.into_inner();
    Ok(reply.port.map_or(text, |port| port.name))
}

/// Returns all ports to which all selectors apply.
///
/// # Errors
/// Returns an error if the daemon cannot be reached or refuses the request.
pub async fn list(socket: &Path, selectors: Vec<String>) -> Result<Vec<PortStatus>> {
    let mut client = connect(socket).await?;
    let reply =
        client.list_ports(timed(api::ListPortsRequest { selectors })).await.map_err(refused)?;
    Ok(reply.into_inner().ports)
}

#[must_use]
pub fn table(ports: &[PortStatus]) -> String {
    let mut table = Table::new("NAME|>ID|TYPE|TENANT|VLAN|STATE|>QUEUES|TARGET|ERROR");
    for port in ports {
        table.row([
            port.name.clone(),
            port.id.to_string(),
            port.kind.clone(),
            or_dash(&port.tenant),
            or_dash(&port.vlan),
            port.state.clone(),
            format!("{}/{}", port.queues_up, port.queues),
            port.target.clone(),
            port.error.clone(),
        ]);
    }
    table.render()
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    status: PortStatus,
    config: toml::Table,
}

async fn show(socket: &Path, name: String, json: bool) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    let reply = client.get_port(timed(api::GetPortRequest { name: name.clone() })).await;
    let reply = reply.map_err(refused)?.into_inner();
    let status = reply
        .port
        .with_context(|| format!("port {name}: the daemon sent an empty reply; see its log"))?;
    if json {
        let config = reply.toml.parse().with_context(|| format!("port {name}: configuration"))?;
        print_json(&Shown { status, config })?;
    } else {
        print(&shown(&status, &reply.toml))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Labels as text.
pub(super) fn labels(labels: &BTreeMap<String, String>) -> String {
    Labels::of(labels.clone()).to_string()
}

fn shown(port: &PortStatus, config: &str) -> String {
    let list = |items: &[String]| or_dash(&items.join(" "));
    let workers: Vec<String> = port.workers.iter().map(u32::to_string).collect();
    let rings: Vec<String> = port.ring_sizes.iter().map(u32::to_string).collect();
    let lines = [
        ("name", port.name.clone()),
        ("id", port.id.to_string()),
        ("type", port.kind.clone()),
        ("labels", or_dash(&labels(&port.labels))),
        ("target", or_dash(&port.target)),
        ("tenant", or_dash(&port.tenant)),
        ("vlan", or_dash(&port.vlan)),
        ("state", port.state.clone()),
        ("error", or_dash(&port.error)),
        ("queues", format!("{} of {} queue pairs can pass frames", port.queues_up, port.queues)),
        ("features", list(&port.features)),
        ("ring sizes", list(&rings)),
        ("workers", list(&workers)),
        ("policy", or_dash(&port.policy)),
        (
            "entitled",
            match port.entitled {
                0 => "-".to_owned(),
                cycles => cycle_rate(to_f64(cycles)),
            },
        ),
        ("weight", port.weight.to_string()),
        ("class", port.priority.to_string()),
    ];
    let mut text = String::new();
    for (key, value) in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{key:<12}{}", printable(&value));
    }
    text.push_str("\nconfiguration:\n");
    for line in printable_lines(config).lines().filter(|line| !line.is_empty()) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> PortStatus {
        PortStatus {
            name: "vm1".into(),
            id: 3,
            kind: "vhost-user".into(),
            tenant: "red".into(),
            vlan: "access 100".into(),
            target: "/run/p/vm1.sock".into(),
            state: "up".into(),
            queues: 2,
            queues_up: 1,
            features: vec!["csum".into(), "tso4".into()],
            ring_sizes: vec![256, 256],
            entitled: 200_000_000,
            ..PortStatus::default()
        }
    }

    #[test]
    fn the_listing_is_aligned() {
        let down = PortStatus {
            name: "uplink0".into(),
            kind: "tap".into(),
            state: "error".into(),
            target: "tap0".into(),
            error: "interface tap0: busy".into(),
            queues: 1,
            ..PortStatus::default()
        };
        assert_eq!(
            table(&[port(), down]),
            "\
NAME     ID  TYPE        TENANT  VLAN        STATE  QUEUES  TARGET           ERROR
vm1       3  vhost-user  red     access 100  up        1/2  /run/p/vm1.sock
uplink0   0  tap         -       -           error     0/1  tap0             interface tap0: busy
"
        );
    }

    #[test]
    fn one_port_shows_state_and_configuration() {
        let text = shown(&port(), "name = \"vm1\"\nvlan = 100\n");
        assert!(text.contains("queues      1 of 2 queue pairs can pass frames\n"), "{text}");
        assert!(text.contains("ring sizes  256 256\n"), "{text}");
        assert!(text.contains("entitled    200 Mcycles/s\n"), "{text}");
        assert!(text.ends_with("\nconfiguration:\n  name = \"vm1\"\n  vlan = 100\n"), "{text}");
    }
}
