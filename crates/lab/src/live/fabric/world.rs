//! A fabric with several racks on one machine: namespaces, bridges, controllers, and hosts with
//! tenants' VMs.
//!
//! # Approach
//!
//! Each rack switch and the core switch is a Linux bridge in its own namespace. The controller
//! configures the rates and queues of the bridges' ports with the driver `linux-tc`. A host is a
//! `penstock` daemon with an agent. The host's uplink is a packet socket, and each VM is a TAP in a
//! namespace. Loopback replaces the management network between controller and agents. The
//! controller starts first and places the tenants. After the placement, each host starts with the
//! VMs that the controller placed on the host.
//!
//! # Departures
//!
//! The configured rate of a host's link limits only traffic towards the host. In the direction from
//! the host to the rack, the link is as fast as `veth`. A worker that paced the traffic towards the
//! rack would spin on a core that it shares with other workers.
//!
//! # Cost
//!
//! A run uses about 120 network namespaces. A guard removes the network namespaces after the run.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::core_switch::{CorePlace, CoreSwitch};
use super::counters::{Counted, Counters, Reading};
use super::operator::Operator;
use super::parts::Parts;
use super::plan::{Control, ControllerPlaces, Plan, tenant_name};
use super::process::{Process, lock};
use super::programs::Place;
use super::relay::Relays;
use super::transport::{BridgePort, Transport, Watched};
use crate::penstock::penstock;
use crate::rig::etcd::EtcdServer;
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Ward;
use penstock_guest::bed::process::{Daemon, ask, await_ok, await_some};

/// VLAN id of the first tenant. Each further tenant has the next VLAN id.
const VLAN: usize = 100;
/// Maximum time until a daemon has started, and until all hosts are connected to the controller.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Limit on the size of etcd's file in bytes. The limit is small, so that an experiment can fill
/// etcd in a second.
const ETCD_QUOTA: u64 = 32 << 20;

/// A VM with its tenant, its host, the host's rack, and its address.
#[derive(Debug, Clone)]
pub(super) struct Vm {
    pub tenant: usize,
    pub host: usize,
    pub rack: usize,
    pub place: Place,
    port: String,
}

impl Vm {
    /// Creates a VM of a tenant on a host in a rack. `slot` is the number of the VM's port.
    pub fn new((tenant, host, rack): (usize, usize, usize), place: Place, slot: usize) -> Self {
        Self { tenant, host, rack, place, port: format!("vm{slot}") }
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub vms: Vec<Vm>,
    /// URL of the controller's web page. `None` if the controller serves no page.
    pub page: Option<String>,
    hosts: Vec<Daemon>,
    parts: Arc<Parts>,
    dir: PathBuf,
    tag: String,
    plan: Plan,
    counters: Counters,
}

impl World {
    /// Starts the bridges, the controllers and the hosts, and waits until all hosts are connected
    /// to the controller that leads.
    pub fn start(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        let dir = bed.dir().join(name);
        std::fs::create_dir(&dir).context("making a directory")?;
        let tag = format!("pf{}-{name}", std::process::id());
        underlay(bed, &tag, plan)?;
        let (parts, page) = start_parts(bed, (&dir, &tag), plan)?;
        let mut world = Self {
            vms: Vec::new(),
            page: plan.page.then(|| format!("http://127.0.0.1:{page}/")),
            hosts: Vec::new(),
            parts: Arc::new(parts),
            dir,
            tag,
            plan: plan.clone(),
            counters: Counters::default(),
        };
        if plan.hold {
            world.mode("hold")?;
        }
        world.place()?;
        for host in 0..plan.hosts() {
            world.start_host(bed, host)?;
        }
        world.configure_vms()?;
        world.counters = world.open_counters()?;
        await_some("agents of all hosts", START_LIMIT, || {
            world.check()?;
            let status = world.ask(&["status"])?;
            Ok((status["hosts_connected"] == plan.hosts()).then_some(()))
        })?;
        Ok(world)
    }

    /// Returns the parts of the fabric that an experiment may break, also from another thread.
    pub fn parts(&self) -> Arc<Parts> {
        Arc::clone(&self.parts)
    }

    /// Sends a command to the controller and returns its answer.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<Value> {
        self.parts.operator.ask(words)
    }

    /// Returns an operator of the controller, for use in another thread.
    pub fn operator(&self) -> Operator {
        self.parts.operator.clone()
    }

    /// Sets the controller's mode, which is `active` to assign queues, or `hold` to change nothing.
    pub fn mode(&self, mode: &str) -> anyhow::Result<()> {
        self.ask(&["mode", mode]).map(drop)
    }

    /// If `on`, hosts shape the traffic of each VM, in both directions, to the rate that the VM
    /// bought. If `on` is false, hosts stop shaping.
    pub fn reserve(&self, on: bool) -> anyhow::Result<()> {
        for vm in &self.vms {
            let bought = self.plan.tenants[vm.tenant].1;
            let shape = format!("shape={{ send = \"{bought}\", receive = \"{bought}\" }}");
            let shape = if on { shape.as_str() } else { "shape=" };
            let mut command = penstock()?;
            command.arg("--socket").arg(self.dir.join(format!("host{}/host.sock", vm.host)));
            ask(command.args(["port", "set", &vm.port, shape, "--no-save"]))?;
        }
        Ok(())
    }

    /// If `on`, hosts limit the tenants that the controller names. If `on` is false, hosts limit no
    /// tenant.
    pub fn hold(&self, on: bool) -> anyhow::Result<()> {
        let keys = if on {
            ["send=", "receive="]
        } else {
            ["send={ rate = \"400G\" }", "receive={ rate = \"400G\" }"]
        };
        for host in 0..self.hosts.len() {
            for tenant in 0..self.plan.tenants.len() {
                let mut command = penstock()?;
                command.arg("--socket").arg(self.dir.join(format!("host{host}/host.sock")));
                command.args(["tenant", "set", &tenant_name(tenant)]).args(keys);
                ask(command.arg("--no-save"))?;
            }
        }
        Ok(())
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns an error if a controller, a host or the core switch has stopped by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.parts.check()?;
        for (host, daemon) in self.hosts.iter_mut().enumerate() {
            daemon.check().with_context(|| format!("host {host}"))?;
        }
        Ok(())
    }

    /// Asks the controller to place the tenants, and records the host of each VM.
    fn place(&mut self) -> anyhow::Result<()> {
        let file = self.dir.join("tenants.toml");
        std::fs::write(&file, self.plan.tenants())?;
        let file = file.to_string_lossy().into_owned();
        self.ask(&["tenant", "add", &file])?;
        let mut used = vec![0; self.plan.hosts()];
        let placed = self.ask(&["tenants"])?;
        for tenant in 0..self.plan.tenants.len() {
            let name = tenant_name(tenant);
            let all = placed.as_array().into_iter().flatten();
            let of = all
                .into_iter()
                .find(|of| of["name"] == name)
                .context("the controller does not list a tenant")?;
            for (server, vms) in of["servers"].as_object().into_iter().flatten() {
                let host = server.strip_prefix("server-").and_then(|n| n.parse::<usize>().ok());
                let host = host.with_context(|| format!("a server called {server}"))?;
                for _ in 0..vms.as_u64().unwrap_or(0) {
                    let nth = self.vms.iter().filter(|vm| vm.tenant == tenant).count();
                    let address = [10, u8::try_from(tenant + 1)?, 0, u8::try_from(nth + 1)?];
                    let (ip, slot) = (Ipv4Addr::from(address), used[host]);
                    let netns = format!("{}-v{host}.{slot}", self.tag);
                    let at = (tenant, host, self.plan.rack_of(host));
                    self.vms.push(Vm::new(at, Place { netns, ip }, slot));
                    used[host] += 1;
                }
            }
        }
        Ok(())
    }

    fn start_host(&mut self, bed: &Bed, host: usize) -> anyhow::Result<()> {
        let dir = self.dir.join(format!("host{host}"));
        std::fs::create_dir(&dir).context("making a directory")?;
        for vm in self.vms.iter().filter(|vm| vm.host == host) {
            netns(bed, &vm.place.netns)?;
        }
        let file = dir.join("host.toml");
        std::fs::write(&file, self.host_file(bed, host)?)?;
        let mut command = penstock()?;
        command.args(["host", "run", "--config"]).arg(&file);
        let mut daemon = Daemon::start(&mut command, dir.join("host.log"), bed.guard())?;
        daemon.await_file(&dir.join("host.sock"), START_LIMIT)?;
        self.hosts.push(daemon);
        Ok(())
    }

    fn host_file(&self, bed: &Bed, host: usize) -> anyhow::Result<String> {
        let at = self.dir.join(format!("host{host}"));
        let controllers = self.parts.agents_of(host);
        let controllers: Vec<_> = controllers.iter().map(|at| format!("\"{at}\"")).collect();
        let controllers = controllers.join(", ");
        // The kernel processes a frame on the sender's core. So each core gets half of the hosts.
        let cores = [bed.worker_core(), bed.generator_core()];
        let (at, worker) = (at.display(), cores[host % 2]);
        let rates = if self.plan.spare { "spare" } else { "guarantee" };
        let mut text = format!(
            "[host]\nname = \"server-{host}\"\nsocket = \"{at}/host.sock\"\n\
             state_dir = \"{at}/state\"\n\n[worker]\ncores = [{worker}]\nidle_backoff_us = 1000\n\
             idle_turns = 1\n\n\
             [fabric]\ncontrollers = [{controllers}]\nuplink = \"up\"\n\
             rate_allocation = \"{rates}\"\n\n"
        );
        for tenant in 0..self.plan.tenants.len() {
            let (name, vlan) = (tenant_name(tenant), VLAN + tenant);
            write!(text, "[[tenant]]\nname = \"{name}\"\nvlans = [{vlan}]\n\n")?;
        }
        let last = VLAN + self.plan.tenants.len() - 1;
        write!(
            text,
            "[[port]]\nname = \"up\"\npacket.interface = \"uplink\"\n\
             packet.netns = \"{}-h{host}\"\ntrunk = [\"{VLAN}-{last}\"]\npacket.offloads = false\n\
             egress = \"wfq\"\nwfq = {{ queues = {} }}\n\n",
            self.tag, self.plan.queues
        )?;
        for vm in self.vms.iter().filter(|vm| vm.host == host) {
            let (port, netns) = (&vm.port, &vm.place.netns);
            let (name, vlan) = (tenant_name(vm.tenant), VLAN + vm.tenant);
            write!(
                text,
                "[[port]]\nname = \"{port}\"\ntap.interface = \"eth0\"\n\
                 tap.netns = \"{netns}\"\ntenant = \"{name}\"\nvlan = {vlan}\n\
                 tap.offloads = {{ csum = true, tso = false }}\n\n"
            )?;
        }
        Ok(text)
    }

    fn configure_vms(&self) -> anyhow::Result<()> {
        for vm in &self.vms {
            let Place { netns, ip } = &vm.place;
            await_ok(&format!("the NIC of {netns}"), START_LIMIT, || {
                let mut command = Command::new("ip");
                command.args(["-n", netns, "link", "set", "eth0", "addrgenmode", "none", "up"]);
                Ok(ask(&mut command))
            })?;
            let address = format!("{ip}/24");
            ask(Command::new("ip").args(["-n", netns, "addr", "add", &address, "dev", "eth0"]))?;
        }
        Ok(())
    }

    fn open_counters(&self) -> anyhow::Result<Counters> {
        let counted = |vm: &Vm| {
            let netns = vm.place.netns.clone();
            Counted { tenant: vm.tenant, rack: vm.rack, netns }
        };
        let vms = self.vms.iter().map(counted).collect();
        let racks = (0..self.plan.racks.len()).map(|rack| format!("{}-r{rack}", self.tag));
        Counters::open(self.plan.tenants.len(), vms, racks.collect())
    }

    /// Opens what reads the TCP connections of all VMs and the queues of the Linux bridges.
    pub fn transport(&self) -> anyhow::Result<Transport> {
        let watched = |vm: &Vm| {
            let Place { netns, ip } = vm.place.clone();
            Watched { tenant: vm.tenant, rack: vm.rack, netns, ip }
        };
        let racks = self.plan.racks.len();
        let core = format!("{}-core", self.tag);
        let mut ports = Vec::new();
        for rack in 0..racks {
            let (name, core_name) = (format!("rack-{rack}"), "core-0".to_owned());
            ports.push(BridgePort {
                from: name.clone(),
                to: core_name.clone(),
                netns: format!("{}-r{rack}", self.tag),
                interface: "uplink".to_owned(),
            });
            if self.plan.control == Control::One {
                let (netns, interface) = (core.clone(), format!("r{rack}"));
                ports.push(BridgePort { from: core_name, to: name, netns, interface });
            }
        }
        let vms = self.vms.iter().map(watched).collect();
        Transport::open((self.plan.tenants.len(), racks), vms, ports)
    }

    /// Reads the byte counters of all VMs and racks.
    pub fn read(&self) -> anyhow::Result<Reading> {
        self.counters.read()
    }
}

/// Returns `count` free addresses on loopback.
fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    // All listeners exist at the same time, so that the ports differ.
    let bound = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let bound = bound.collect::<std::io::Result<Vec<TcpListener>>>()?;
    let addresses = bound.iter().map(TcpListener::local_addr);
    Ok(addresses.collect::<std::io::Result<Vec<SocketAddr>>>()?)
}

/// Starts the controllers and what they need, and waits until a controller leads. Returns the TCP
/// port of the web page, too.
fn start_parts(bed: &Bed, (dir, tag): (&Path, &str), plan: &Plan) -> anyhow::Result<(Parts, u16)> {
    let names = plan.control.names();
    let mut agents = free_addresses(names.len() + 1)?;
    let page = agents.pop().context("a free port")?.port();
    let (mut core, mut relays, mut etcd) = (None, None, None);
    if plan.control == Control::Two {
        core = Some(start_core(bed, (dir, tag), plan)?);
        relays = Some(Relays::start(plan.hosts(), &agents)?);
        etcd = Some(EtcdServer::with_quota(bed.guard(), dir, ETCD_QUOTA)?);
    }
    let url = etcd.as_ref().map(EtcdServer::endpoint);
    std::fs::write(dir.join("fabric.toml"), plan.topology())?;
    let sockets = names.iter().map(|name| dir.join(format!("{name}.sock")));
    let mut parts = Parts {
        controllers: Vec::new(),
        operator: Operator::new(sockets.collect()),
        agents,
        core,
        relays,
        etcd,
        dir: dir.to_owned(),
        tag: tag.to_owned(),
        plan: plan.clone(),
    };
    for (nth, &name) in names.iter().enumerate() {
        let agents = parts.agents[nth].port();
        let places = ControllerPlaces { name, etcd: url.as_deref(), dir, tag, agents, page };
        let file = dir.join(format!("{name}.toml"));
        std::fs::write(&file, plan.controller(places))?;
        let file = file.to_string_lossy().into_owned();
        let arguments = ["controller", "run", "--config", &file].map(str::to_owned).to_vec();
        let process = Process::start(&format!("controller {name}"), dir, arguments, bed.guard())?;
        parts.controllers.push(Mutex::new(process));
        // The first controller leads before the next one starts.
        await_ok("a controller that leads", START_LIMIT, || {
            parts.check()?;
            Ok(parts.operator.find_leader().map(drop).context("no controller leads yet"))
        })?;
    }
    let all = names.iter().zip(&parts.controllers);
    for (name, controller) in all {
        lock(controller).await_file(&dir.join(format!("{name}.sock")), START_LIMIT)?;
    }
    Ok((parts, page))
}

fn start_core(bed: &Bed, (dir, tag): (&Path, &str), plan: &Plan) -> anyhow::Result<CoreSwitch> {
    let (dir, netns) = (dir.join("core"), format!("{tag}-core"));
    std::fs::create_dir(&dir).context("making a directory")?;
    let vlans = [VLAN, VLAN + plan.tenants.len() - 1];
    let place = CorePlace { dir: &dir, netns: &netns, worker: bed.worker_core(), vlans };
    CoreSwitch::start(plan, place, bed.guard())
}

fn netns(bed: &Bed, name: &str) -> anyhow::Result<()> {
    bed.guard().take(&Ward::Netns(name.to_owned()))?;
    ask(Command::new("ip").args(["netns", "add", name]))?;
    Ok(())
}

/// Creates the namespaces and Linux bridges of the racks and the core, and the links between them.
/// A core switch that is a Penstock process has no bridge.
fn underlay(bed: &Bed, tag: &str, plan: &Plan) -> anyhow::Result<()> {
    let racks = plan.racks.len();
    let core = format!("{tag}-core");
    netns(bed, &core)?;
    let mut bridges: Vec<String> = (0..racks).map(|rack| format!("{tag}-r{rack}")).collect();
    bridges.iter().try_for_each(|rack| netns(bed, rack))?;
    if plan.control == Control::One {
        bridges.push(core.clone());
    }
    for switch in &bridges {
        ip(switch, "link add bridge0 type bridge")?;
        ip(switch, "link set bridge0 type bridge mcast_snooping 0")?;
        ip(switch, "link set bridge0 addrgenmode none mtu 1600 up")?;
    }
    for rack in 0..racks {
        let switch = format!("{tag}-r{rack}");
        cable(&switch, "uplink", &core, &format!("r{rack}"))?;
        join(&switch, "uplink")?;
        match plan.control {
            Control::One => join(&core, &format!("r{rack}"))?,
            Control::Two => {
                ip(&core, &format!("link set r{rack} addrgenmode none mtu 1600 up"))?;
            }
        }
        for (nth, host) in plan.hosts_of(rack).enumerate() {
            let host = format!("{tag}-h{host}");
            netns(bed, &host)?;
            cable(&host, "uplink", &switch, &format!("h{nth}"))?;
            ip(&host, "link set uplink addrgenmode none mtu 1600 up")?;
            join(&switch, &format!("h{nth}"))?;
        }
    }
    Ok(())
}

fn cable(here: &str, name: &str, there: &str, other: &str) -> anyhow::Result<()> {
    ip(here, &format!("link add {name} type veth peer name {other} netns {there}"))
}

fn join(switch: &str, port: &str) -> anyhow::Result<()> {
    ip(switch, &format!("link set {port} master bridge0 addrgenmode none mtu 1600 up"))
}

fn ip(netns: &str, words: &str) -> anyhow::Result<()> {
    ask(Command::new("ip").args(["-n", netns]).args(words.split(' '))).map(drop)
}
