//! `penstock fdb` lists and deletes MAC addresses.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use penstock_control::api::{self, FdbEntry};

use super::{print, print_json};
use crate::cli::{FdbCommand, FdbFilter};
use crate::client::{Client, connect, refused, timed};
use crate::table::{Table, counted, or_dash, seconds};

/// # Errors
/// Returns an error if the daemon cannot be reached or refuses the request.
pub async fn run(socket: &Path, command: FdbCommand) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    match command {
        FdbCommand::List { filter, json } => {
            let filter = with_names(&mut client, filter).await?;
            let reply = client.list_fdb(timed(api::ListFdbRequest {})).await.map_err(refused)?;
            let mut entries = reply.into_inner().entries;
            entries.retain(|entry| admits(&filter, entry));
            if json.json { print_json(&entries)? } else { print(&table(&entries))? }
        }
        FdbCommand::Flush { filter, json } => {
            let filter = with_names(&mut client, filter).await?;
            let request = api::FlushFdbRequest {
                port: filter.port,
                tenant: filter.tenant,
                vlan: filter.vlan.map(Into::into),
            };
            let flushed =
                client.flush_fdb(timed(request)).await.map_err(refused)?.into_inner().flushed;
            if json.json {
                print_json(&serde_json::json!({ "flushed": flushed }))?;
            } else {
                print(&format!("{} deleted\n", counted(flushed, "address")))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the filter with the names of its port and its tenant, which may be given as labels.
async fn with_names(client: &mut Client, filter: FdbFilter) -> Result<FdbFilter> {
    let port = match filter.port {
        Some(text) => Some(super::port::name_of(client, text).await?),
        None => None,
    };
    let tenant = match filter.tenant {
        Some(text) => Some(super::tenant::name_of(client, &text).await?),
        None => None,
    };
    Ok(FdbFilter { port, tenant, ..filter })
}

/// Whether the entry of a MAC address matches every given option.
fn admits(filter: &FdbFilter, entry: &FdbEntry) -> bool {
    filter.port.as_ref().is_none_or(|port| *port == entry.port)
        && filter.tenant.as_ref().is_none_or(|tenant| *tenant == entry.tenant)
        && filter.vlan.is_none_or(|vlan| u32::from(vlan) == entry.vlan)
}

fn table(entries: &[FdbEntry]) -> String {
    let mut table = Table::new("TENANT|>VLAN|MAC|PORT|>LAST SEEN");
    for entry in entries {
        let vlan = if entry.vlan == 0 { "-".to_owned() } else { entry.vlan.to_string() };
        let age = if entry.is_static { "static".to_owned() } else { seconds(entry.age_s.into()) };
        table.row([or_dash(&entry.tenant), vlan, entry.mac.clone(), entry.port.clone(), age]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(port: &str, vlan: u32, is_static: bool) -> FdbEntry {
        FdbEntry {
            tenant: "red".into(),
            vlan,
            mac: "52:54:00:00:00:01".into(),
            port: port.into(),
            age_s: 75,
            is_static,
        }
    }

    #[test]
    fn entries_are_listed_with_their_age() {
        assert_eq!(
            table(&[entry("vm1", 100, false), entry("up", 0, true)]),
            "\
TENANT  VLAN  MAC                PORT  LAST SEEN
red      100  52:54:00:00:00:01  vm1      1m 15s
red        -  52:54:00:00:00:01  up       static
"
        );
    }

    #[test]
    fn a_filter_wants_every_option() {
        let filter = FdbFilter { port: Some("vm1".into()), tenant: None, vlan: Some(100) };
        assert!(admits(&filter, &entry("vm1", 100, false)));
        assert!(!admits(&filter, &entry("vm1", 101, false)));
        assert!(!admits(&filter, &entry("vm2", 100, false)));
    }
}
