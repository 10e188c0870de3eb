//! Converts a checked configuration to a snapshot for the workers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use core::net::IpAddr;

use penstock_dataplane::port::vcpu_bells::VcpuBell;
use penstock_dataplane::queue::ShareTerms;
use penstock_dataplane::snapshot as data_path;
use penstock_dataplane::snapshot::PortQos;
use penstock_dataplane::snapshot::{
    Binding, Domain, DomainMap, PortPolicy, RuleTableError, RuleTables, SlowPathLimit, Snapshot,
    VidSet,
};
use penstock_qos::cost_model::BatchPrice;
use penstock_qos::pair_table::{PairLimits, PairTable};
use penstock_units::{Cycles, CyclesPerSecond, MacAddr, Vid};

use super::egress_policers::{ReceivePolicers, SendPolicers};
use super::ids::IdTable;
use super::inbound::InboundTable;
use super::ingress_policers::{IngressPolicers, WatchedLink};
use super::queues::QueueTable;
use super::rules::{Built, Scope, Targets, place_of, tables};
use super::streams::StreamTable;
use crate::api::{QueueStatus, RtpStatus};
use crate::config::{
    HostConfig, IngressPolicy, Network, Networks, PORTS_MAX, Port, RateAllocation, Tenant,
    port_vlans,
};

/// A MAC address from the configuration, with the data path's numbers of its network and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaticAddress {
    /// Number of the address's network, which is also the number of its forwarding domain.
    pub domain: u16,
    pub mac: MacAddr,
    /// Number of the port behind which the MAC address is.
    pub port: u16,
}

/// Compiles configurations to snapshots, and keeps the state that consecutive snapshots share. A
/// caller that must not change the compiler's state compiles with a clone of the `Compiler`.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    ids: IdTable,
    pub(super) tables: BTreeMap<Scope, Built>,
    /// All sets of output ports, by the number of the set. No set of output ports is ever removed
    /// from the list, because older rule tables refer to the sets.
    sets: Vec<Box<[u16]>>,
    statics: Vec<StaticAddress>,
    ingress_policers: IngressPolicers,
    queues: QueueTable,
    inbound: InboundTable,
    /// Pairs of the fabric's uplink; `None` if the host is in no fabric.
    pairs: Option<Arc<PairTable>>,
    receive_policers: ReceivePolicers,
    send_policers: SendPolicers,
    streams: StreamTable,
    /// Entitlement of each port to cycles, by port number.
    bought: Vec<PortQos>,
    /// Number of workers, which each count the hits of rules; 0 means 1.
    workers: usize,
    /// Entitlement of each port in cycles per second, by port name.
    sold: BTreeMap<String, Sold>,
    /// Bells that notify the vCPU scheduler of frames for a port, by the port's name.
    bells: BTreeMap<String, VcpuBell>,
}

/// Entitlement of a port in the capacity plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sold {
    /// Cycles per second to which the port is entitled.
    pub cycles: CyclesPerSecond,
    /// Expected cost of the port's batches.
    pub price: BatchPrice,
}

impl Compiler {
    /// Returns the snapshot of `config`, which [`crate::config::parse`] must have checked.
    ///
    /// # Errors
    /// Returns the index of a rule in the configuration, and the reason why the rule's table cannot
    /// be built. After an error, the state of the compiler is unchanged.
    pub fn compile(
        &mut self,
        config: &HostConfig,
        generation: u64,
    ) -> Result<Arc<Snapshot>, (usize, RuleTableError)> {
        let ids = self.ids.next(config);
        let mut sets = self.sets.clone();
        let port = |name: &str| ids.port(name);
        let mut targets = Targets { port: &port, sets: &mut sets };
        let tables = tables(config, &mut targets, &self.tables, self.workers.max(1))?;
        let networks = Networks::new(config.tenants.iter().map(Some));
        let ingress_policers = self.ingress_policers.next(config);
        let queues = self.queues.next(config);
        let inbound = self.inbound.next(config, &ids);
        let pairs = self.next_pairs(config);
        let receive_policers = self.receive_policers.next(config);
        let send_policers = self.send_policers.next(config);
        let streams = self.streams.next(config);
        let (sold, bells) = (&self.sold, &self.bells);
        let world = World {
            config,
            ids: &ids,
            tables: &tables,
            networks: &networks,
            ingress_policers: &ingress_policers,
            queues: &queues,
            inbound: &inbound,
            pairs: pairs.as_ref(),
            receive_policers: &receive_policers,
            send_policers: &send_policers,
            streams: &streams,
            sold,
            bells,
            marks: config.tenants.iter().any(|tenant| tenant.dscp.is_some()),
        };
        let snapshot = world.snapshot(generation, &sets);
        self.statics = world.statics();
        self.ids = ids;
        self.tables = tables;
        self.ingress_policers = ingress_policers;
        self.queues = queues;
        self.inbound = inbound;
        self.pairs = pairs;
        self.receive_policers = receive_policers;
        self.send_policers = send_policers;
        self.streams = streams;
        let of = |policy: &Option<Arc<PortPolicy>>| policy.as_ref().map(|policy| policy.qos);
        self.bought = snapshot.ports.iter().map(|policy| of(policy).unwrap_or_default()).collect();
        self.sets = sets;
        Ok(Arc::new(snapshot))
    }

    /// Returns the pairs of the fabric's uplink for `config`. The pairs stay from one snapshot to
    /// the next.
    fn next_pairs(&self, config: &HostConfig) -> Option<Arc<PairTable>> {
        config.fabric.as_ref()?;
        let limits = match config.rate_allocation() {
            RateAllocation::Guarantee => PairLimits::Guarantees,
            RateAllocation::Spare => PairLimits::Rates,
        };
        // VMs choose the addresses of pairs, so the table's hash needs a random seed.
        let seed = || RandomState::new().build_hasher().finish();
        let old = self.pairs.clone().filter(|old| old.limits() == limits);
        let new = || Arc::new(PairTable::with_limits(PORTS_MAX, seed(), limits));
        Some(old.unwrap_or_else(new))
    }

    /// Returns the pairs of the fabric's uplink in the configuration that was compiled last; `None`
    /// if the host is in no fabric.
    pub(crate) fn pairs(&self) -> Option<Arc<PairTable>> {
        self.pairs.clone()
    }

    /// Sets the rates, limits, weights, code points and pairs of `config` on the queues. The
    /// argument `config` must be the configuration that the compiler compiled last.
    pub(crate) fn pace(&self, config: &HostConfig) {
        self.queues.pace(config, &self.ids, &self.receive_policers, self.pairs.as_ref());
    }

    /// Returns a compiler for a host with `workers` workers. Each worker counts the hits of rules
    /// separately.
    #[must_use]
    pub fn for_workers(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }

    /// Sets the entitlements by port name for the next snapshot. A port that the map `sold` does
    /// not contain is entitled to its configured `cycles`.
    pub fn sell(&mut self, sold: BTreeMap<String, Sold>) {
        self.sold = sold;
    }

    /// Sets the bells of the next snapshot, which notify vCPU schedulers of frames, by port name.
    pub fn ring(&mut self, bells: BTreeMap<String, VcpuBell>) {
        self.bells = bells;
    }

    /// Returns the table of numbers from the last compilation: one number for each port, tenant and
    /// network.
    #[must_use]
    pub fn ids(&self) -> &IdTable {
        &self.ids
    }

    /// Returns the static MAC addresses of the configuration that was compiled last, in ascending
    /// order.
    #[must_use]
    pub fn statics(&self) -> &[StaticAddress] {
        &self.statics
    }

    /// Returns the port's entitlement and latency class in the configuration that was compiled
    /// last.
    #[must_use]
    pub fn bought(&self, port: &str) -> PortQos {
        let id = self.ids.port(port).map(usize::from);
        id.and_then(|id| self.bought.get(id)).copied().unwrap_or_default()
    }

    /// Returns the measurements of the port's RTP streams in the configuration that was compiled
    /// last.
    #[must_use]
    pub(crate) fn rtp(&self, port: &str) -> Vec<RtpStatus> {
        self.streams.read(port)
    }

    /// Returns the counters of the port's `wfq` queues in the configuration that was compiled last.
    #[must_use]
    pub(crate) fn queues(&self, port: &str) -> Vec<QueueStatus> {
        self.queues.read(port)
    }

    /// Returns the watched links of the last compiled configuration, by the name of the link's
    /// port.
    #[must_use]
    pub fn links(&self) -> &BTreeMap<String, WatchedLink> {
        &self.ingress_policers.links
    }

    /// Returns the hits of each rule since its rule table was built, by the rule's name.
    #[must_use]
    pub fn hits(&self) -> HashMap<String, u64> {
        let mut hits = HashMap::new();
        for built in self.tables.values() {
            add_hits(built, &mut hits);
        }
        hits
    }

    /// Returns each rule's hits in the rule tables that the compiler `next` replaced.
    #[must_use]
    pub fn hits_left_behind(&self, next: &Self) -> HashMap<String, u64> {
        let mut hits = HashMap::new();
        for (scope, built) in &self.tables {
            let kept = next.tables.get(scope).is_some_and(|n| Arc::ptr_eq(&n.table, &built.table));
            if !kept {
                add_hits(built, &mut hits);
            }
        }
        hits
    }
}

fn add_hits(built: &Built, hits: &mut HashMap<String, u64>) {
    for (rule, count) in built.table.rules() {
        if let Some(name) = built.names.get(place_of(rule.id)) {
            *hits.entry(name.clone()).or_default() += count;
        }
    }
}

/// Configuration, numbers and tables from which a snapshot is built.
struct World<'a> {
    config: &'a HostConfig,
    ids: &'a IdTable,
    tables: &'a BTreeMap<Scope, Built>,
    networks: &'a Networks,
    ingress_policers: &'a IngressPolicers,
    queues: &'a QueueTable,
    inbound: &'a InboundTable,
    pairs: Option<&'a Arc<PairTable>>,
    receive_policers: &'a ReceivePolicers,
    send_policers: &'a SendPolicers,
    streams: &'a StreamTable,
    sold: &'a BTreeMap<String, Sold>,
    bells: &'a BTreeMap<String, VcpuBell>,
    marks: bool,
}

impl World<'_> {
    fn snapshot(&self, generation: u64, sets: &[Box<[u16]>]) -> Snapshot {
        let mut ports: Vec<Option<Arc<PortPolicy>>> = Vec::new();
        let mut members: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for port in &self.config.ports {
            let Some(id) = self.ids.port(&port.name) else { continue };
            for network in self.networks.of_port(port) {
                members.entry(self.domain(network)).or_default().push(id);
            }
            let slot = usize::from(id);
            if ports.len() <= slot {
                ports.resize(slot + 1, None);
            }
            ports[slot] = Some(Arc::new(self.policy(id, port)));
        }
        let ageing = self.config.forwarding.fdb_ageing_s;
        Snapshot::new(generation, ports, self.domains(members), sets.to_vec(), ageing)
    }

    fn domain(&self, network: Network) -> u16 {
        let tenant = self.config.tenants.get(network.tenant);
        let id = tenant.and_then(|tenant| self.ids.network(&tenant.name, network.vlan));
        id.unwrap_or(penstock_dataplane::snapshot::NO_DOMAIN)
    }

    fn domains(&self, mut members: BTreeMap<u16, Vec<u16>>) -> Vec<Domain> {
        let mut domains: Vec<Domain> = Vec::new();
        for network in self.networks.iter() {
            let Some(tenant) = self.config.tenants.get(network.tenant) else { continue };
            let slot = self.domain(network);
            let at = usize::from(slot);
            if domains.len() <= at {
                domains.resize(at + 1, Domain::default());
            }
            domains[at] = Domain {
                tenant: self.ids.tenant(&tenant.name),
                vid: network.vlan,
                members: members.remove(&slot).unwrap_or_default().into_boxed_slice(),
                fdb_limit: tenant.fdb_limit,
            };
        }
        domains
    }

    fn policy(&self, id: u16, port: &Port) -> PortPolicy {
        let tenant = port.tenant.as_deref().and_then(|name| self.ids.tenant(name));
        let carried = self.networks.of_port(port);
        let mut policy = match &port.trunk {
            Some(_) => {
                let vids = port_vlans(port).into_iter().filter_map(vid);
                let pairs = carried.iter().filter_map(|n| Some((vid(n.vlan)?, self.domain(*n))));
                let native = port.native.map(crate::config::Vlan::vid);
                let allowed: VidSet = vids.collect();
                PortPolicy::trunk(id, tenant, native, allowed, DomainMap::trunk(pairs))
            }
            None => {
                let domain = carried.first().map(|network| self.domain(*network));
                let own = port.vlan.map_or(Vid::UNTAGGED, crate::config::Vlan::vid);
                let domain = domain.unwrap_or(penstock_dataplane::snapshot::NO_DOMAIN);
                PortPolicy::access(id, tenant, own, domain)
            }
        };
        policy.qinq = port.qinq;
        policy.binding = binding(port);
        policy.rules = self.rules(port);
        policy.slow_path = match (port.slow_path, &port.tenant) {
            (None, None) => SlowPathLimit::UNLIMITED,
            (limit, _) => {
                let limit = limit.unwrap_or_default();
                SlowPathLimit { per_second: limit.per_second, burst: limit.burst }
            }
        };
        policy.qos = PortQos {
            ingress: match port.ingress_policy {
                IngressPolicy::None => data_path::IngressPolicy::None,
                IngressPolicy::Bps => data_path::IngressPolicy::Bps,
                IngressPolicy::Pps => data_path::IngressPolicy::Pps,
                IngressPolicy::CyclesStrict => data_path::IngressPolicy::CyclesStrict,
                IngressPolicy::CyclesMinmax => data_path::IngressPolicy::CyclesMinmax,
            },
            entitlement: self.entitlement(port),
            weight: port.cycle_weight.0,
            priority: port.priority.0,
            depth: port.depth.map(Cycles),
            price: self.sold.get(&port.name).map(|sold| sold.price).unwrap_or_default(),
        };
        policy.ingress_policer = self.ingress_policers.of(&port.name);
        policy.egress_policer = self.receive_policers.of(&port.name);
        policy.tenant_policer = self.send_policers.of(&port.name);
        policy.inbound = self.inbound.of(&port.name);
        let fabric = self.config.fabric.as_ref();
        let is_uplink = fabric.is_some_and(|fabric| fabric.uplink == port.name);
        policy.pairs = self.pairs.filter(|_| is_uplink).cloned();
        policy.rtp = self.streams.of(&port.name);
        policy.watched = port.link.is_some();
        policy.queue = self.queues.of(&port.name);
        policy.shape = port.shaped();
        let owner = |tenant: &&Tenant| Some(&tenant.name) == port.tenant.as_ref();
        let owner = self.config.tenants.iter().find(owner);
        let weight = owner.map(|tenant| tenant.uplink_weight.0).unwrap_or_default();
        policy.share = ShareTerms { tenant: weight, vm: port.uplink_share.0 };
        policy.dscp = owner.and_then(|tenant| tenant.dscp);
        policy.bell = self.bells.get(&port.name).cloned();
        if let Some(mirror) = &port.mirror {
            let to = self.ids.port(&mirror.to);
            policy.mirror.received = to.filter(|_| mirror.has_received());
            policy.mirror.sent = to.filter(|_| mirror.has_sent());
        }
        policy.marks = port.tenant.is_none() && self.marks;
        policy.finish()
    }

    fn entitlement(&self, port: &Port) -> CyclesPerSecond {
        let planned = self.sold.get(&port.name).map(|sold| sold.cycles);
        planned.or(port.cycles.map(|cycles| cycles.0)).unwrap_or_default()
    }

    fn rules(&self, port: &Port) -> RuleTables {
        let table = |scope: &Scope| self.tables.get(scope).map(|b| Arc::clone(&b.table));
        RuleTables {
            own: table(&Scope::Port(port.name.clone())),
            tenant: port.tenant.clone().and_then(|name| table(&Scope::Tenant(name))),
            global: table(&Scope::All),
        }
    }

    fn statics(&self) -> Vec<StaticAddress> {
        let ports: HashMap<&str, &Port> =
            self.config.ports.iter().map(|port| (port.name.as_str(), port)).collect();
        let resolve = |entry: &crate::config::FdbStatic| {
            let port = ports.get(entry.port.as_str())?;
            let tenant = entry.tenant.as_deref().map(|name| self.networks.tenant(name));
            let network = entry.network(&self.networks.of_port(port), tenant)?;
            let port = self.ids.port(&port.name)?;
            Some(StaticAddress { domain: self.domain(network), mac: entry.mac.0, port })
        };
        let mut all: Vec<StaticAddress> = self.config.fdb.iter().filter_map(resolve).collect();
        let configured: std::collections::BTreeSet<(u16, MacAddr)> =
            all.iter().map(|address| (address.domain, address.mac)).collect();
        let mut bound = self.bound();
        bound.retain(|address| !configured.contains(&(address.domain, address.mac)));
        all.append(&mut bound);
        all.sort_unstable();
        all
    }

    /// Returns the MAC addresses that are bound to ports. Only the port to which an address is
    /// bound may use the address. Frames to a bound address need no flood, even before the owner of
    /// the address has sent a frame.
    fn bound(&self) -> Vec<StaticAddress> {
        let mut all = Vec::new();
        for port in self.config.ports.iter().filter(|port| !port.mac.is_empty()) {
            let Some(id) = self.ids.port(&port.name) else { continue };
            for network in self.networks.of_port(port) {
                let domain = self.domain(network);
                let addresses = port.mac.iter().map(|mac| mac.0);
                all.extend(addresses.map(|mac| StaticAddress { domain, mac, port: id }));
            }
        }
        all
    }
}

fn vid(vlan: u16) -> Option<Vid> {
    Vid::new(u32::from(vlan)).ok()
}

/// Returns the source addresses that a port may use. A list of IP addresses binds both families: a
/// port with only IPv4 addresses in its list may not use IPv6.
fn binding(port: &Port) -> Option<Binding> {
    let macs: Vec<MacAddr> = port.mac.iter().map(|mac| mac.0).collect();
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for ip in &port.ip {
        match ip {
            IpAddr::V4(ip) => v4.push(*ip),
            IpAddr::V6(ip) => v6.push(*ip),
        }
    }
    let bound = !port.ip.is_empty();
    (bound || !macs.is_empty()).then(|| {
        let macs = (!macs.is_empty()).then_some(macs.as_slice());
        let v4 = bound.then_some(v4.as_slice());
        let v6 = bound.then_some(v6.as_slice());
        Binding::new(macs, v4, v6)
    })
}
