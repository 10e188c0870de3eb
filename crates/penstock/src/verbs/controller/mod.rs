//! `penstock controller`: commands to a running controller, and offline plans.
//!
//! `plan` and `what-if` read a datacenter and its tenants (`docs/reference/fabric.md`) and place
//! the tenants in the order of their file. `plan` and `what-if` need no controller and change
//! nothing.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_control::config::ConfigErrors;
use penstock_controller::files::{FabricFile, TenantWish, load_tenants, load_topology};
use penstock_fabric::tenant_placement::{Datacenter, Policy, Refusal, Request, TenantSlot};
use penstock_fabric::topology::Topology;

use super::host::mistakes;
use crate::cli::{ControllerArgs, ControllerCommand, DEFAULT_CONTROLLER, FabricFiles};
use crate::client::{Whose, at_socket_of};

mod ask;
mod picture;
mod plan;
mod usage;
mod what_if;

/// Runs the command. Exit 1 if a file is wrong or a tenant has no place.
///
/// # Errors
/// Returns an error if an output cannot be written.
pub fn run(args: &ControllerArgs) -> Result<ExitCode> {
    let json = args.json;
    match &args.command {
        ControllerCommand::Plan(args) => plan::run(args, json),
        ControllerCommand::WhatIf(args) => what_if::run(args, json),
        ControllerCommand::Check { config } => crate::fabric::check(config, json),
        ControllerCommand::Run(args) => crate::fabric::run(args),
        ControllerCommand::Ask(command) => {
            let socket = args.socket.as_deref().unwrap_or(Path::new(DEFAULT_CONTROLLER));
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("runtime cannot start")?;
            let asked = ask::run(socket, command, json);
            runtime.block_on(at_socket_of(Whose::Controller, socket, asked))
        }
    }
}

/// Reads both files. Prints the mistakes and returns `None` if a file is wrong.
fn load(files: &FabricFiles) -> Option<(FabricFile, Vec<TenantWish>)> {
    let say = |errors: ConfigErrors| eprint!("{}", mistakes(&errors));
    let fabric = load_topology(&files.topology).map_err(say).ok()?;
    let tenants = load_tenants(&files.tenants, &fabric.topology).map_err(say).ok()?;
    Some((fabric, tenants))
}

/// A datacenter after the offline placement of its tenants, and the outcome for each tenant.
struct Placed {
    datacenter: Datacenter,
    /// One outcome per tenant, in the order of the tenants' file.
    outcomes: Vec<Result<TenantSlot, Refusal>>,
}

/// Places all tenants in the order of the file. A tenant may ask for a place near to or apart from
/// another tenant (`near`, `apart`). If the tenant that `near` or `apart` names was not placed, the
/// key has no effect.
fn place(
    topology: Topology,
    fabric: &FabricFile,
    policy: Policy,
    tenants: &[TenantWish],
) -> Result<Placed> {
    let datacenter = Datacenter::new(topology, fabric.headroom_permille, policy);
    let mut datacenter = datacenter.context("the settings of placement")?;
    for (node, service) in &fabric.out {
        datacenter.set_service(*node, *service);
    }
    let mut outcomes: Vec<Result<TenantSlot, Refusal>> = Vec::new();
    for tenant in tenants {
        let others = |list: &[(usize, usize)]| {
            let slot =
                |(at, layer): &(usize, usize)| Some((*outcomes.get(*at)?.as_ref().ok()?, *layer));
            list.iter().filter_map(slot).collect()
        };
        let mut request: Request = tenant.request.clone();
        request.affinity.near = others(&tenant.near);
        request.affinity.apart = others(&tenant.apart);
        outcomes.push(datacenter.place(&request));
    }
    Ok(Placed { datacenter, outcomes })
}
