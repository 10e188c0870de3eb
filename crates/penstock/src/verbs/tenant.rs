//! `penstock tenant` lists and changes tenants.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use penstock_control::{api, config};
use serde::Serialize;

use super::port::set_request;
use super::{print, print_json, report};
use crate::cli::TenantCommand;
use crate::client::{Client, connect, refused, timed};
use crate::pairs::Pairs;
use crate::table::{Table, count, or_dash, printable};

#[derive(Clone, Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    tenant: config::Tenant,
    ports: Vec<String>,
}

/// # Errors
/// Returns an error if the daemon cannot be reached or refuses the request, or the arguments are
/// wrong.
pub async fn run(socket: &Path, command: TenantCommand) -> Result<ExitCode> {
    match command {
        TenantCommand::List { labels, json } => {
            let tenants = list(socket, labels.labels).await?;
            if json.json {
                print_json(&tenants)?
            } else {
                print(&table(&tenants))?
            }
            Ok(ExitCode::SUCCESS)
        }
        TenantCommand::Add(args) => {
            let table = Pairs::parse_new(&args.name, &args.pairs)
                .with_context(|| format!("tenant {}", args.name))?;
            let request =
                api::AddObjectRequest { toml: table.to_string(), save: !args.save.no_save };
            report(connect(socket).await?.add_tenant(timed(request)).await, args.save.json)
        }
        TenantCommand::Set(args) => {
            let request = set_request("tenant", &args)?;
            report(connect(socket).await?.set_tenant(timed(request)).await, args.save.json)
        }
        TenantCommand::Del(args) => {
            let request = api::DeleteObjectRequest { name: args.name, save: !args.save.no_save };
            report(connect(socket).await?.delete_tenant(timed(request)).await, args.save.json)
        }
    }
}

async fn list(socket: &Path, selectors: Vec<String>) -> Result<Vec<Listed>> {
    let mut client = connect(socket).await?;
    let request = timed(api::ListTenantsRequest { selectors });
    let reply = client.list_tenants(request).await.map_err(refused)?;
    let listed = |tenant: api::Tenant| -> Result<Listed> {
        let parsed = toml::from_str(&tenant.toml)
            .with_context(|| format!("tenant {}: the daemon's reply is wrong", tenant.name))?;
        Ok(Listed { tenant: parsed, ports: tenant.ports })
    };
    reply.into_inner().tenants.into_iter().map(listed).collect()
}

/// Returns the name of the tenant that `text` names: the tenant's name, or a label of only one
/// tenant.
///
/// # Errors
/// Returns an error if the daemon does not answer, or no tenant or several tenants have the label.
pub(super) async fn name_of(client: &mut Client, text: &str) -> Result<String> {
    let is_label = text.contains('=');
    let selectors = if is_label { vec![text.to_owned()] } else { Vec::new() };
    let request = timed(api::ListTenantsRequest { selectors });
    let tenants = client.list_tenants(request).await.map_err(refused)?.into_inner().tenants;
    let mut names =
        tenants.into_iter().map(|tenant| tenant.name).filter(|name| is_label || name == text);
    match (names.next(), names.count()) {
        (Some(name), 0) => Ok(name),
        (Some(name), others) => bail!(
            "tenant {}: {} tenants have this label, such as {name}; write the name",
            printable(text),
            others + 1
        ),
        (None, _) => {
            bail!("tenant {}: there is no such tenant; see `penstock tenant list`", printable(text))
        }
    }
}

fn table(tenants: &[Listed]) -> String {
    let mut table = Table::new("NAME|VLANS|>FDB LIMIT|PORTS");
    for Listed { tenant, ports } in tenants {
        let vlans =
            if tenant.vlans.is_empty() { "untagged".to_owned() } else { tenant.vlans.to_string() };
        table.row([
            tenant.name.clone(),
            vlans,
            count(tenant.fdb_limit.into()),
            or_dash(&ports.join(" ")),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_show_their_networks_and_ports() {
        let red =
            toml::from_str("name = \"red\"\nvlans = [1, \"5-9\"]\nfdb_limit = 4096\n").unwrap();
        let listed = [
            Listed { tenant: red, ports: vec!["vm1".into(), "vm2".into()] },
            Listed { tenant: config::Tenant::new("blue"), ports: Vec::new() },
        ];
        assert_eq!(
            table(&listed),
            "\
NAME  VLANS     FDB LIMIT  PORTS
red   1,5-9         4,096  vm1 vm2
blue  untagged      1,024  -
"
        );
    }
}
