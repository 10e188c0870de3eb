//! `penstock flow` lists and changes rules.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_control::api::{self, FlowStatus};

use super::{print, print_json, report};
use crate::cli::FlowCommand;
use crate::client::{connect, refused, timed};
use crate::pairs::Pairs;
use crate::table::{Table, count};

/// # Errors
/// Returns an error if the daemon cannot be reached or refuses the request, or the arguments are
/// wrong.
pub async fn run(socket: &Path, command: FlowCommand) -> Result<ExitCode> {
    match command {
        FlowCommand::List(json) => {
            let mut client = connect(socket).await?;
            let reply =
                client.list_flows(timed(api::ListFlowsRequest {})).await.map_err(refused)?;
            let flows = reply.into_inner().flows;
            if json.json {
                print_json(&flows)?
            } else {
                print(&table(&flows))?
            }
            Ok(ExitCode::SUCCESS)
        }
        FlowCommand::Add(args) => {
            let table = Pairs::parse_new(&args.name, &args.pairs)
                .with_context(|| format!("rule {}", args.name))?;
            let request =
                api::AddObjectRequest { toml: table.to_string(), save: !args.save.no_save };
            report(connect(socket).await?.add_flow(timed(request)).await, args.save.json)
        }
        FlowCommand::Del(args) => {
            let request = api::DeleteObjectRequest { name: args.name, save: !args.save.no_save };
            report(connect(socket).await?.delete_flow(timed(request)).await, args.save.json)
        }
    }
}

fn table(flows: &[FlowStatus]) -> String {
    let mut table = Table::new("NAME|>PRIORITY|SCOPE|MATCH|ACTIONS|>LOOKUPS");
    for flow in flows {
        table.row([
            flow.name.clone(),
            flow.priority.to_string(),
            flow.scope.clone(),
            flow.matching.clone(),
            flow.actions.clone(),
            count(flow.lookups),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_listed_with_what_they_matched() {
        let flow = FlowStatus {
            name: "web".into(),
            priority: 200,
            scope: "tenant red".into(),
            matching: "proto=tcp dst_port=80".into(),
            actions: "drop".into(),
            lookups: 12_345,
        };
        assert_eq!(
            table(&[flow]),
            "\
NAME  PRIORITY  SCOPE       MATCH                  ACTIONS  LOOKUPS
web        200  tenant red  proto=tcp dst_port=80  drop      12,345
"
        );
    }
}
