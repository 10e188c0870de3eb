//! Specification of a network simulation: links, tenants with their VMs, and connections.

use std::sync::Arc;

use penstock_units::{BitsPerSecond, Nanos};
use thiserror::Error;

use super::rates::LinkId;
use super::sizes::SizeTable;

/// Index of a tenant in [`Spec::tenants`].
pub type TenantNo = usize;
/// Index of a VM in [`TenantSpec::vms`].
pub type VmNo = usize;
/// Number of a host, from 0.
pub type HostNo = usize;

/// Links of a network, and the paths between hosts.
#[derive(Clone, Debug)]
pub struct Network {
    /// Capacities of the network's links, each of which has one direction.
    pub links: Vec<BitsPerSecond>,
    /// `paths[from][to]` lists the links from host `from` to host `to`.
    pub paths: Vec<Vec<Vec<LinkId>>>,
}

impl Network {
    /// Creates two racks of `hosts` servers each, connected by one core link (the testbed of QShare
    /// §VII-A). The first two links are the core link from rack 0 to rack 1, and the core link
    /// back. The links after the core links are an uplink and a downlink for each host.
    #[must_use]
    pub fn two_racks(hosts: usize, host: BitsPerSecond, core: BitsPerSecond) -> Self {
        let all = 2 * hosts;
        let mut links = vec![core; 2];
        links.extend(vec![host; 2 * all]);
        let link = |number: usize| LinkId(u32::try_from(number).unwrap_or(u32::MAX));
        let path = |from: HostNo, to: HostNo| {
            let (up, down) = (link(2 + 2 * from), link(3 + 2 * to));
            match (from / hosts, to / hosts) {
                _ if from == to => Vec::new(),
                (a, b) if a == b => vec![up, down],
                (a, _) => vec![up, link(a), down],
            }
        };
        let paths = (0..all).map(|from| (0..all).map(|to| path(from, to)).collect()).collect();
        Self { links, paths }
    }

    /// Returns the core link that leaves rack `rack` (0 or 1) of [`Self::two_racks`].
    #[must_use]
    pub fn core(rack: u32) -> LinkId {
        LinkId(rack.min(1))
    }
}

/// A tenant. All VMs of a tenant have the same hose guarantee.
#[derive(Clone, Debug)]
pub struct TenantSpec {
    /// Host number of each VM of the tenant.
    pub vms: Vec<HostNo>,
    /// Guaranteed sending rate of each VM, which is also its guaranteed receiving rate.
    pub hose: BitsPerSecond,
}

impl TenantSpec {
    /// Returns the tenant's reservation on each link: the guarantee multiplied by the number of VMs
    /// on the side with fewer VMs (QShare §IV-B).
    #[must_use]
    pub fn reserved(&self, network: &Network) -> Vec<BitsPerSecond> {
        let mut below = vec![(Vec::new(), Vec::new()); network.links.len()];
        for (from_vm, from) in self.vms.iter().enumerate() {
            for (to_vm, to) in self.vms.iter().enumerate() {
                for link in &network.paths[*from][*to] {
                    let (sources, sinks) = &mut below[link.index()];
                    if !sources.contains(&from_vm) {
                        sources.push(from_vm);
                    }
                    if !sinks.contains(&to_vm) {
                        sinks.push(to_vm);
                    }
                }
            }
        }
        let need = |(sources, sinks): (Vec<VmNo>, Vec<VmNo>)| {
            let fewer = u64::try_from(sources.len().min(sinks.len())).unwrap_or(u64::MAX);
            BitsPerSecond(self.hose.0.saturating_mul(fewer))
        };
        below.into_iter().map(need).collect()
    }
}

/// Order in which a client uses its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The client picks a random server for each request.
    Random,
    /// The client uses each server once per round, in a random order.
    Rounds,
}

/// A client's connection: the client requests a flow from a server, waits until the flow is
/// complete, and repeats.
#[derive(Clone, Debug)]
pub struct Connection {
    pub tenant: TenantNo,
    pub client: VmNo,
    /// Numbers of the VMs that serve the client.
    pub servers: Vec<VmNo>,
    pub order: Order,
    /// Distribution of the flow sizes, or `None` for a single endless flow.
    pub sizes: Option<Arc<SizeTable>>,
    /// Limit of the server's sending rate, or `None` for no limit.
    pub paced: Option<BitsPerSecond>,
    /// Probability that the client pauses after a flow, in parts per million. A pause of the client
    /// lasts 0 to `pause_max`.
    pub pause_ppm: u32,
    pub pause_max: Nanos,
    /// Time from a request to the first bit of the flow.
    pub latency: Nanos,
    /// Time of the client's first request.
    pub from: Nanos,
    /// Time from which the client makes no more requests.
    pub until: Nanos,
    /// Number of flows after which the client makes no more requests.
    pub flows_max: u64,
}

impl Connection {
    /// Creates a connection that requests one endless flow at the beginning.
    #[must_use]
    pub const fn endless(tenant: TenantNo, client: VmNo, servers: Vec<VmNo>) -> Self {
        Self {
            tenant,
            client,
            servers,
            order: Order::Random,
            sizes: None,
            paced: None,
            pause_ppm: 0,
            pause_max: Nanos(0),
            latency: Nanos(0),
            from: Nanos(0),
            until: Nanos(u64::MAX),
            flows_max: u64::MAX,
        }
    }
}

/// A complete specification of a network simulation.
#[derive(Clone, Debug)]
pub struct Spec {
    pub network: Network,
    pub tenants: Vec<TenantSpec>,
    pub connections: Vec<Connection>,
    /// Time between two samples of the traffic, at least 1 ms.
    pub sample: Nanos,
    /// Links on which the simulation samples each tenant's traffic.
    pub watched: Vec<LinkId>,
    /// Seed of all random numbers of the simulation.
    pub seed: u64,
}

/// Reason for which a network simulation's specification is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A VM is on a host that does not exist.
    #[error("tenant {tenant}: VM {vm} is on host {host}; choose a host below {hosts}")]
    Host {
        tenant: TenantNo,
        vm: VmNo,
        /// Number of the VM's host, which does not exist.
        host: HostNo,
        /// Number of hosts in the network.
        hosts: usize,
    },
    /// A connection's tenant, client or server does not exist, the connection has no server, or a
    /// server is on the client's host.
    #[error("connection {0}: needs a tenant, a client, and servers that are all on other hosts")]
    Connection(usize),
    /// The time between samples of the tenants' traffic is below 1 ms.
    #[error("the time between samples is too short; set at least 1 ms")]
    Sample,
    /// A link has no capacity.
    #[error("link {0} has no capacity; set at least 1 bit/s")]
    Capacity(usize),
}

impl Spec {
    pub(super) fn check(&self) -> Result<(), SpecError> {
        let hosts = self.network.paths.len();
        if let Some(link) = self.network.links.iter().position(|c| c.0 == 0) {
            return Err(SpecError::Capacity(link));
        }
        if self.sample < Nanos::from_millis(1) {
            return Err(SpecError::Sample);
        }
        for (tenant, spec) in self.tenants.iter().enumerate() {
            if let Some((vm, host)) = spec.vms.iter().enumerate().find(|(_, host)| **host >= hosts)
            {
                return Err(SpecError::Host { tenant, vm, host: *host, hosts });
            }
        }
        for (number, connection) in self.connections.iter().enumerate() {
            let reaches = |vms: &[HostNo]| {
                let client = vms.get(connection.client)?;
                let far = |vm: &VmNo| vms.get(*vm).is_some_and(|host| host != client);
                Some(!connection.servers.is_empty() && connection.servers.iter().all(far))
            };
            let tenant = self.tenants.get(connection.tenant);
            if tenant.and_then(|t| reaches(&t.vms)) != Some(true) {
                return Err(SpecError::Connection(number));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: BitsPerSecond = BitsPerSecond(1_000_000_000);

    #[test]
    fn a_tenant_reserves_what_the_fewer_vms_on_one_side_of_a_link_may_send() {
        let network = Network::two_racks(5, GBIT, GBIT);
        // Three VMs in rack 0, two of them on one host, and two VMs in rack 1.
        let tenant = TenantSpec { vms: vec![0, 0, 1, 5, 6], hose: BitsPerSecond(47) };
        let reserved = tenant.reserved(&network);
        assert_eq!((reserved[0].0, reserved[1].0), (94, 94));
        assert_eq!((reserved[2].0, reserved[3].0, reserved[4].0), (94, 94, 47));
        assert_eq!(network.paths[0][7].len(), 3);
        assert_eq!(network.paths[0][4].len(), 2);
    }

    #[test]
    fn an_invalid_specification_is_refused_by_name() {
        let good = Spec {
            network: Network::two_racks(2, GBIT, GBIT),
            tenants: vec![TenantSpec { vms: vec![0, 0, 3], hose: GBIT }],
            connections: vec![Connection::endless(0, 0, vec![2])],
            sample: Nanos::from_millis(100),
            watched: Vec::new(),
            seed: 1,
        };
        assert_eq!(good.check(), Ok(()));
        for servers in [vec![], vec![0], vec![1], vec![9]] {
            let connections = vec![Connection::endless(0, 0, servers)];
            let spec = Spec { connections, ..good.clone() };
            assert_eq!(spec.check(), Err(SpecError::Connection(0)));
        }
        let mut spec = good.clone();
        spec.tenants[0].vms[1] = 4;
        assert!(spec.check().unwrap_err().to_string().contains("VM 1 is on host 4"));
        let mut spec = good;
        spec.network.links[1] = BitsPerSecond(0);
        assert_eq!(spec.check(), Err(SpecError::Capacity(1)));
    }
}
