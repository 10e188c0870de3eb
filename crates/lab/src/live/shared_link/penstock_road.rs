//! A Penstock switch between four tenants and a shared link, with a network namespace behind each
//! of its ports.

use std::fs::File;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::stage::Stage;
use super::traffic::{LINK, Road, TENANTS, WEIGHTS};
use crate::rig::plan::{Plan, Vm};
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::ask;

/// Name of the port with the shared link.
const NET: &str = "net";
const NET_PLACE: usize = TENANTS;

/// Returns the name of a tenant's VM.
pub(super) fn vm(tenant: usize) -> String {
    format!("vm{tenant}")
}

/// Four VMs of four tenants, and the port of the shared link with `fair-share`. `more` is further
/// configuration of the link's port.
fn plan(more: &str) -> Plan {
    let sender = |(tenant, weight): (usize, u32)| Vm {
        name: vm(tenant),
        tenant: Some((format!("tenant{tenant}"), weight)),
        to: Some(NET.to_owned()),
        ..Vm::default()
    };
    let mut vms: Vec<Vm> = WEIGHTS.into_iter().enumerate().map(sender).collect();
    let more = format!("egress = \"fair-share\"\nlink = {LINK}\n{more}");
    // `answers` makes the way back for acknowledgements.
    vms.push(Vm { more, answers: true, ..Vm::sink(NET) });
    Plan { offloads: true, ..Plan::new("", vms) }
}

#[derive(Debug)]
pub(super) struct PenstockRoad<'a> {
    bed: &'a Bed,
    pub stage: Stage,
}

impl<'a> PenstockRoad<'a> {
    /// Starts the switch. `more` is further configuration of the link's port.
    pub fn start(bed: &'a Bed, name: &str, more: &str) -> anyhow::Result<Self> {
        Ok(Self { bed, stage: Stage::start(bed, name, &plan(more))? })
    }
}

impl Road for PenstockRoad<'_> {
    fn source(&self, tenant: usize) -> anyhow::Result<File> {
        self.stage.namespace(&vm(tenant))
    }

    fn target(&self) -> anyhow::Result<File> {
        self.stage.namespace(NET)
    }

    fn address(&self, _: usize) -> Ipv4Addr {
        Plan::ip(NET_PLACE)
    }

    fn send(&mut self, tenant: usize, program: &str, words: &[&str]) -> anyhow::Result<usize> {
        self.stage.start_program(self.bed, &vm(tenant), program, words)
    }

    fn serve(&mut self, program: &str, words: &[&str]) -> anyhow::Result<()> {
        self.stage.start_program(self.bed, NET, program, words).map(drop)
    }

    fn ask(&self, program: &str, words: &[&str]) -> anyhow::Result<String> {
        ask(&mut self.stage.inside(NET, program, words)?)
    }

    fn await_program(&mut self, program: usize, limit: Duration) -> anyhow::Result<String> {
        self.stage.await_program(program, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_plan_has_four_tenants_with_weights_and_one_link() {
        let text = plan("").configuration(Path::new("/d"), (1, 0));
        for (tenant, weight) in WEIGHTS.into_iter().enumerate() {
            let part = format!("name = \"tenant{tenant}\"\nuplink_weight = {weight}\n");
            assert!(text.contains(&part), "{part} is missing in\n{text}");
        }
        let link = format!("egress = \"fair-share\"\nlink = {LINK}\n");
        assert_eq!(text.matches(&link).count(), 1);
    }
}
