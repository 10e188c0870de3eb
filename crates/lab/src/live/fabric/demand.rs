//! Connections of the tenants' VMs across racks, and the rates that are due to the tenants.
//!
//! # Problem
//!
//! A tenant is due the smaller of its guarantee and its demand. If a VM opens its connections to
//! random servers, some servers have many clients and others have none. Under the VMs' guarantees
//! (hose model), such connections cannot use the whole guarantee on the core link, even if the
//! tenant is alone.
//!
//! # Source
//!
//! The simulated figure defines the due rate in the same way (`figures/qshare_fig4.rs`): the rate
//! of the tenant's flows if only the guarantees of its VMs limit the flows.
//!
//! # Approach
//!
//! The servers of all connections are drawn before the run, so the connections are known. Each VM
//! limits what it sends and what it receives to its guarantee. Within these limits, the connections
//! get max-min fair rates.

use std::time::Duration;

use penstock_sim::Rng;
use penstock_sim::fabric::rates::{LinkId, Rates};

use super::programs::{Client, Wants};
use super::samples::others;
use super::world::Vm;
use crate::rig::stats::to_f64;

/// Rate of a flow of datagrams over the rate that is due to it, so that its tenant always demands
/// more than its guarantee.
const FLOOD: f64 = 1.5;

/// An endless flow from a server to a client, which are the indices of two VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub server: usize,
    pub client: usize,
}

/// Draws `copies` flows to each VM. Each flow comes from a random VM of the same tenant in another
/// rack. A VM without such servers gets no flows.
pub(super) fn across(vms: &[Vm], copies: usize, seed: u64) -> Vec<Flow> {
    let mut rng = Rng::new(seed).fork(5);
    let mut flows = Vec::new();
    for (client, vm) in vms.iter().enumerate() {
        let servers = others(vms, client, |of| of.rack != vm.rack);
        if servers.is_empty() {
            continue;
        }
        let many = u64::try_from(servers.len()).unwrap_or(u64::MAX);
        for _ in 0..copies {
            let nth = usize::try_from(rng.below(many)).unwrap_or(0);
            flows.push(Flow { server: servers[nth], client });
        }
    }
    flows
}

/// Returns a client for each flow. The clients of a tenant begin at the tenant's time in `from`,
/// counted from the start of the programs.
pub(super) fn clients(vms: &[Vm], flows: &[Flow], from: &[Duration]) -> Vec<Client> {
    let client = |flow: &Flow| Client {
        vm: flow.client,
        servers: vec![flow.server],
        wants: Wants::All,
        from: from[vms[flow.client].tenant],
    };
    flows.iter().map(client).collect()
}

/// Returns a sender of datagrams for each flow. Each sends [`FLOOD`] times the rate that is due to
/// its flow. The senders of a tenant begin at the tenant's time in `from`, counted from the start
/// of the programs.
pub(super) fn floods(vms: &[Vm], flows: &[Flow], from: &[Duration], hoses: &[u64]) -> Vec<Client> {
    let flood = |(flow, rate): (&Flow, f64)| Client {
        vm: flow.server,
        servers: vec![flow.client],
        wants: Wants::Datagrams(FLOOD * rate),
        from: from[vms[flow.server].tenant],
    };
    flows.iter().zip(flow_rates(vms, flows, hoses)).map(flood).collect()
}

/// Returns the rate in bits per second that is due to each tenant, for the traffic that its VMs in
/// each rack receive from other racks. `hoses` has the guarantee of each VM of each tenant, in
/// bits per second in each direction.
pub(super) fn due(vms: &[Vm], flows: &[Flow], hoses: &[u64], racks: usize) -> Vec<Vec<f64>> {
    let mut due = vec![vec![0.0; racks]; hoses.len()];
    for (flow, rate) in flows.iter().zip(flow_rates(vms, flows, hoses)) {
        let (server, client) = (&vms[flow.server], &vms[flow.client]);
        if server.rack != client.rack {
            due[client.tenant][client.rack] += rate;
        }
    }
    due
}

/// Returns the rate of each flow, in bits per second, if only the guarantees of VMs limit the
/// flows.
fn flow_rates(vms: &[Vm], flows: &[Flow], hoses: &[u64]) -> Vec<f64> {
    // Each VM has two limits: one for what it sends, and one for what it receives.
    let hose = |vm: &Vm| [to_f64(hoses[vm.tenant]); 2];
    let mut rates = Rates::new(&vms.iter().flat_map(hose).collect::<Vec<f64>>());
    let limit =
        |vm: usize, receives: usize| LinkId(u32::try_from(2 * vm + receives).unwrap_or(u32::MAX));
    let mut streams = Vec::new();
    for flow in flows {
        let stream = rates.add(0, &[limit(flow.server, 0), limit(flow.client, 1)]);
        rates.set(stream, 1.0, f64::INFINITY);
        streams.push(stream);
    }
    rates.settle();
    streams.into_iter().map(|stream| rates.rate(stream)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::programs::Place;
    use super::*;

    fn vm(tenant: usize, host: usize, rack: usize) -> Vm {
        let place = Place { netns: format!("v{host}"), ip: Ipv4Addr::new(10, 1, 0, 1) };
        Vm::new((tenant, host, rack), place, 0)
    }

    /// A tenant with two VMs in each of two racks.
    fn two_and_two() -> Vec<Vm> {
        vec![vm(0, 0, 0), vm(0, 1, 0), vm(0, 2, 1), vm(0, 3, 1)]
    }

    /// Returns whether the only tenant is due these rates in the two racks.
    fn near(due: &[Vec<f64>], wanted: [f64; 2]) -> bool {
        due.len() == 1 && due[0].iter().zip(wanted).all(|(has, wants)| (has - wants).abs() < 1e-3)
    }

    #[test]
    fn a_server_without_clients_is_missing_from_what_is_due() {
        let flow = |server, client| Flow { server, client };
        let vms = two_and_two();
        let even = [flow(2, 0), flow(3, 1), flow(0, 2), flow(1, 3)];
        assert!(near(&due(&vms, &even, &[1_000], 2), [2_000.0, 2_000.0]));
        // VM 3 sends nothing, and both clients of VM 2 share its guarantee.
        let uneven = [flow(2, 0), flow(2, 1), flow(0, 2), flow(1, 3)];
        assert!(near(&due(&vms, &uneven, &[1_000], 2), [1_000.0, 2_000.0]));
    }

    #[test]
    fn datagrams_of_a_flow_are_more_than_its_due() {
        let vms = two_and_two();
        let flows = [Flow { server: 2, client: 0 }, Flow { server: 2, client: 1 }];
        let begins = Duration::from_secs(3);
        let floods = floods(&vms, &flows, &[begins], &[1_000]);
        let sends = |flood: &Client, to: usize| {
            let rate = match flood.wants {
                Wants::Datagrams(rate) => rate,
                _ => 0.0,
            };
            flood.vm == 2
                && flood.servers == [to]
                && flood.from == begins
                && (rate - 750.0).abs() < 1e-3
        };
        assert!(sends(&floods[0], 0) && sends(&floods[1], 1), "{floods:?}");
    }

    #[test]
    fn flows_come_from_other_racks_and_depend_on_the_seed() {
        let vms = two_and_two();
        let flows = across(&vms, 4, 1);
        assert_eq!(flows.len(), 16);
        assert!(flows.iter().all(|flow| vms[flow.server].rack != vms[flow.client].rack));
        assert_eq!(flows, across(&vms, 4, 1));
        assert_ne!(flows, across(&vms, 4, 2));
        let alone = [vm(0, 0, 0), vm(0, 1, 0)];
        assert!(across(&alone, 4, 1).is_empty());
        let clients = clients(&vms, &flows, &[Duration::from_secs(3)]);
        assert!(clients.iter().zip(&flows).all(|(c, f)| c.vm == f.client && c.from.as_secs() == 3));
    }

    #[test]
    fn no_tenant_is_due_more_than_its_guarantee() {
        let vms = two_and_two();
        for seed in 1..50 {
            let rates = due(&vms, &across(&vms, 4, seed), &[1_000], 2);
            let most = rates[0].iter().copied().fold(0.0, f64::max);
            assert!((1_000.0 - 1e-6..=2_000.0 + 1e-6).contains(&most), "seed {seed}: {rates:?}");
        }
    }
}
