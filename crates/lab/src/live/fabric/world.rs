//! A fabric with two racks on one machine: namespaces, bridges, a controller, and ten hosts with
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

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use super::programs::Place;
use crate::penstock::penstock;
use crate::rig::stats::to_f64;
use crate::rig::switch::count;
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Ward;
use penstock_guest::bed::process::{Daemon, ask, await_ok, await_some};
use penstock_guest::clock;

pub(super) const RACKS: usize = 2;
pub(super) const HOSTS: usize = 5;
/// Maximum number of VMs on a host: one more than in the paper's testbed. If the tenants' numbers
/// of VMs are odd, the same rack gets the larger half of every tenant's VMs and needs the extra
/// slot.
const SLOTS: usize = 11;
/// Number of queues of each bridge port.
pub(super) const QUEUES: usize = 8;
/// VLAN id of the first tenant. Each further tenant has the next VLAN id.
const VLAN: usize = 100;
/// Maximum time until a daemon has started, and until all hosts are connected to the controller.
const START_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Rate of every link, in bits per second.
    pub link: u64,
    /// Time between two decisions of the controller.
    pub interval: Duration,
    /// Each tenant's number of VMs, and the guarantee of each VM in each direction, in bits per
    /// second.
    pub tenants: Vec<(usize, u64)>,
    /// Whether the controller serves its web page.
    pub page: bool,
}

/// A VM with its tenant, its host and its address.
#[derive(Debug, Clone)]
pub(super) struct Vm {
    pub tenant: usize,
    pub host: usize,
    pub place: Place,
    port: String,
}

/// Returns the name of the tenant with index `tenant`, such as `t1` for 0.
pub(super) fn tenant_name(tenant: usize) -> String {
    format!("t{}", tenant + 1)
}

/// Byte counters of all hosts and racks at one moment.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// For each host: the time of its counters in nanoseconds, and the bytes that each tenant's VMs
    /// on the host received over the network.
    hosts: Vec<(u64, BTreeMap<String, u64>)>,
    /// For each rack: the time of the reading, and the bytes that the rack sent to the core switch.
    core: [(Instant, u64); RACKS],
}

/// Rates between two readings of the counters, in bits per second.
#[derive(Debug, Clone)]
pub(super) struct Rates {
    /// For each tenant: the rate at which its VMs in each rack received, in bits per second.
    pub tenants: Vec<[f64; RACKS]>,
    /// Rate at which each rack sent to the core switch, in bits per second.
    pub core: [f64; RACKS],
}

impl Rates {
    pub fn between(before: &Reading, now: &Reading, tenants: usize) -> Self {
        let per_second = |before: u64, now: u64, passed: Duration| {
            8.0 * to_f64(now.saturating_sub(before)) / passed.as_secs_f64().max(1e-9)
        };
        let mut rates = vec![[0.0; RACKS]; tenants];
        for (host, (old, new)) in before.hosts.iter().zip(&now.hosts).enumerate() {
            for (tenant, rate) in rates.iter_mut().enumerate() {
                let name = tenant_name(tenant);
                let of = |reading: &(u64, BTreeMap<String, u64>)| {
                    reading.1.get(&name).copied().unwrap_or(0)
                };
                let passed = Duration::from_nanos(new.0.saturating_sub(old.0));
                rate[host / HOSTS] += per_second(of(old), of(new), passed);
            }
        }
        let core = [0, 1].map(|rack| {
            let ((from, old), (until, new)) = (before.core[rack], now.core[rack]);
            per_second(old, new, until.duration_since(from))
        });
        Self { tenants: rates, core }
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub vms: Vec<Vm>,
    /// URL of the controller's web page. `None` if the controller serves no page.
    pub page: Option<String>,
    hosts: Vec<Daemon>,
    controller: Daemon,
    dir: PathBuf,
    tag: String,
    plan: Plan,
    /// For each rack: the open file `/proc/net/dev` of its namespace. The lab itself reads the open
    /// file, so the time of a reading is exact. A separate program to read the counters would start
    /// after an unknown delay.
    counters: [File; RACKS],
}

impl World {
    /// Starts the bridges, the controller and the hosts, and waits until all hosts are connected to
    /// the controller.
    pub fn start(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        let dir = bed.dir().join(name);
        std::fs::create_dir(&dir).context("making a directory")?;
        let tag = format!("pf{}-{name}", std::process::id());
        underlay(bed, &tag)?;
        let counters = [counters_of(&format!("{tag}-r0"))?, counters_of(&format!("{tag}-r1"))?];
        let [agents, page] = free_ports()?;
        std::fs::write(dir.join("fabric.toml"), topology(plan))?;
        std::fs::write(dir.join("controller.toml"), controller(&dir, &tag, plan, agents, page))?;
        let mut command = penstock()?;
        command.args(["controller", "run", "--config"]).arg(dir.join("controller.toml"));
        let log = dir.join("controller.log");
        let controller = Daemon::start(&mut command, log, bed.guard())?;
        let page = plan.page.then(|| format!("http://127.0.0.1:{page}/"));
        let mut world = Self {
            vms: Vec::new(),
            page,
            hosts: Vec::new(),
            controller,
            dir,
            tag,
            plan: plan.clone(),
            counters,
        };
        await_ok("the controller", START_LIMIT, || {
            world.controller.check()?;
            let status = world.ask(&["status"]);
            Ok(status.and_then(|s| ensure_leads(&s)))
        })?;
        world.place()?;
        for host in 0..RACKS * HOSTS {
            world.start_host(bed, host, agents)?;
        }
        world.configure_vms()?;
        await_some("agents of all hosts", START_LIMIT, || {
            world.check()?;
            let status = world.ask(&["status"])?;
            Ok((status["hosts_connected"] == RACKS * HOSTS).then_some(()))
        })?;
        Ok(world)
    }

    /// Sends a command to the controller and returns its answer.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut command = penstock()?;
        command.arg("--socket").arg(self.dir.join("controller.sock")).arg("controller");
        let said = ask(command.args(words).arg("--json"))?;
        serde_json::from_str(&said).context("reading the controller's answer")
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

    /// Returns the rate of every link, in bits per second.
    pub fn link(&self) -> u64 {
        self.plan.link
    }

    /// Returns an error if the controller or a host has stopped.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.controller.check().context("the controller")?;
        for (host, daemon) in self.hosts.iter_mut().enumerate() {
            daemon.check().with_context(|| format!("host {host}"))?;
        }
        Ok(())
    }

    /// Asks the controller to place the tenants, and records the host of each VM.
    fn place(&mut self) -> anyhow::Result<()> {
        let file = self.dir.join("tenants.toml");
        std::fs::write(&file, tenants(&self.plan))?;
        let file = file.to_string_lossy().into_owned();
        self.ask(&["tenant", "add", &file])?;
        let mut used = [0; RACKS * HOSTS];
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
                    let place = Place { netns, ip };
                    let port = format!("vm{slot}");
                    self.vms.push(Vm { tenant, host, place, port });
                    used[host] += 1;
                }
            }
        }
        Ok(())
    }

    fn start_host(&mut self, bed: &Bed, host: usize, agents: u16) -> anyhow::Result<()> {
        let dir = self.dir.join(format!("host{host}"));
        std::fs::create_dir(&dir).context("making a directory")?;
        for vm in self.vms.iter().filter(|vm| vm.host == host) {
            netns(bed, &vm.place.netns)?;
        }
        let file = dir.join("host.toml");
        std::fs::write(&file, self.host_file(bed, host, agents)?)?;
        let mut command = penstock()?;
        command.args(["host", "run", "--config"]).arg(&file);
        let mut daemon = Daemon::start(&mut command, dir.join("host.log"), bed.guard())?;
        daemon.await_file(&dir.join("host.sock"), START_LIMIT)?;
        self.hosts.push(daemon);
        Ok(())
    }

    fn host_file(&self, bed: &Bed, host: usize, agents: u16) -> anyhow::Result<String> {
        let at = self.dir.join(format!("host{host}"));
        // The kernel processes a frame on the sender's core. So each core gets half of the hosts.
        let cores = [bed.worker_core(), bed.generator_core()];
        let (at, worker) = (at.display(), cores[host % 2]);
        let mut text = format!(
            "[host]\nname = \"server-{host}\"\nsocket = \"{at}/host.sock\"\n\
             state_dir = \"{at}/state\"\n\n[worker]\ncores = [{worker}]\nidle_backoff_us = 1000\n\
             idle_turns = 1\n\n\
             [fabric]\ncontrollers = [\"127.0.0.1:{agents}\"]\nuplink = \"up\"\n\n"
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
             egress = \"wfq\"\nwfq = {{ queues = {QUEUES} }}\n\n",
            self.tag
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

    /// Reads the byte counters of all hosts and racks.
    pub fn read(&self) -> anyhow::Result<Reading> {
        let mut hosts = Vec::new();
        for host in 0..self.hosts.len() {
            let mut command = penstock()?;
            command.arg("--socket").arg(self.dir.join(format!("host{host}/host.sock")));
            let said = ask(command.args(["stats", "--json"]))?;
            let stats: Value = serde_json::from_str(&said).context("reading counters")?;
            let at = stats["time_ns"].as_u64().context("counters without their time")?;
            let mut received: BTreeMap<String, u64> = BTreeMap::new();
            for vm in self.vms.iter().filter(|vm| vm.host == host) {
                *received.entry(tenant_name(vm.tenant)).or_default() +=
                    count(&stats, &vm.port, "net_received_bytes");
            }
            hosts.push((at, received));
        }
        let core = [self.read_core(0)?, self.read_core(1)?];
        Ok(Reading { hosts, core })
    }

    fn read_core(&self, rack: usize) -> anyhow::Result<(Instant, u64)> {
        let mut text = vec![0; 16 << 10];
        let at = clock::now();
        let read = self.counters[rack].read_at(&mut text, 0).context("reading counters")?;
        let text = String::from_utf8_lossy(&text[..read]);
        let uplink = text.lines().find_map(|line| line.trim_start().strip_prefix("uplink:"));
        // Eight columns with counts of received frames precede the sent bytes.
        let bytes = uplink.and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
        Ok((at, bytes.context("the counters of a rack's uplink")?))
    }
}

fn ensure_leads(status: &Value) -> anyhow::Result<()> {
    anyhow::ensure!(status["leads"] == true, "it does not lead yet");
    Ok(())
}

/// Returns two free TCP ports: for the controller's agents, and for its web page.
fn free_ports() -> anyhow::Result<[u16; 2]> {
    let bound = || std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (first, second) = (bound()?, bound()?);
    Ok([first.local_addr()?.port(), second.local_addr()?.port()])
}

/// Opens the kernel's file with the counters of the network interfaces in namespace `netns`. The
/// open file can be read repeatedly.
fn counters_of(netns: &str) -> anyhow::Result<File> {
    let path = penstock_guest::endpoint::netns_path(netns);
    let open = move || -> anyhow::Result<File> {
        let space = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        setns(&space, CloneFlags::CLONE_NEWNET).context("entering a rack's namespace")?;
        File::open("/proc/thread-self/net/dev").context("opening a rack's counters")
    };
    // A new thread opens the file, because the thread enters the namespace and never leaves it.
    let thread = std::thread::Builder::new().name("counters".to_owned()).spawn(open);
    let opened = thread.context("starting a thread")?.join();
    opened.map_err(|_| anyhow::anyhow!("the thread that opens counters panicked"))?
}

fn netns(bed: &Bed, name: &str) -> anyhow::Result<()> {
    bed.guard().take(&Ward::Netns(name.to_owned()))?;
    ask(Command::new("ip").args(["netns", "add", name]))?;
    Ok(())
}

/// Creates the Linux bridges of the racks and the core, and the links between the bridges.
fn underlay(bed: &Bed, tag: &str) -> anyhow::Result<()> {
    let mut switches: Vec<String> = (0..RACKS).map(|rack| format!("{tag}-r{rack}")).collect();
    switches.push(format!("{tag}-core"));
    for switch in &switches {
        netns(bed, switch)?;
        ip(switch, "link add bridge0 type bridge")?;
        ip(switch, "link set bridge0 type bridge mcast_snooping 0")?;
        ip(switch, "link set bridge0 addrgenmode none mtu 1600 up")?;
    }
    let core = format!("{tag}-core");
    for rack in 0..RACKS {
        let switch = format!("{tag}-r{rack}");
        cable(&switch, "uplink", &core, &format!("r{rack}"))?;
        join(&switch, "uplink")?;
        join(&core, &format!("r{rack}"))?;
        for nth in 0..HOSTS {
            let host = format!("{tag}-h{}", rack * HOSTS + nth);
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

fn topology(plan: &Plan) -> String {
    let rate = plan.link;
    format!(
        "[fabric]\nname = \"two racks\"\nqueues = {QUEUES}\n\n[servers]\nslots = {SLOTS}\n\n\
         [[tier]]\nfan_out = {HOSTS}\nrate = \"{rate}\"\n\n[[tier]]\nfan_out = {RACKS}\n\
         rate = \"{rate}\"\n"
    )
}

/// Returns the text of the tenants file for the controller. The tenants file allows at most half of
/// a tenant's VMs, rounded up, in one rack.
fn tenants(plan: &Plan) -> String {
    let tenant = |(tenant, (vms, rate)): (usize, &(usize, u64))| {
        let (name, half) = (tenant_name(tenant), vms.div_ceil(RACKS));
        format!(
            "[[tenant]]\nname = \"{name}\"\nvms = {vms}\nrate = \"{rate}\"\n\
             most_per_rack = {half}\n\n"
        )
    };
    plan.tenants.iter().enumerate().map(tenant).collect()
}

fn controller(dir: &std::path::Path, tag: &str, plan: &Plan, agents: u16, page: u16) -> String {
    let (at, millis) = (dir.display(), plan.interval.as_millis());
    let report = (millis / 4).max(50);
    let page = if plan.page { format!("page = \"127.0.0.1:{page}\"\n") } else { String::new() };
    let mut text = format!(
        "[controller]\nname = \"one\"\ntopology = \"fabric.toml\"\n\
         socket = \"{at}/controller.sock\"\ninterval_ms = {millis}\nreport_ms = {report}\n\
         agents = \"127.0.0.1:{agents}\"\nadvertise = \"http://127.0.0.1:{agents}\"\n{page}\n\
         [store]\npath = \"{at}/controller.redb\"\n\n[binding]\nmap = \"per-port-map\"\n"
    );
    let interfaces = |of: &[(String, String)]| {
        let of: Vec<_> = of.iter().map(|(to, name)| format!("{to} = [\"{name}\"]")).collect();
        of.join(", ")
    };
    let mut switch = |name: &str, netns: String, ports: &[(String, String)]| {
        let _ = write!(
            text,
            "\n[[switch]]\nname = \"{name}\"\ndriver = \"linux-tc\"\nnetns = \"{netns}\"\n\
             interfaces = {{ {} }}\n",
            interfaces(ports)
        );
    };
    for rack in 0..RACKS {
        let server = |nth: usize| (format!("server-{}", rack * HOSTS + nth), format!("h{nth}"));
        let mut ports: Vec<_> = (0..HOSTS).map(server).collect();
        ports.push(("core-0".to_owned(), "uplink".to_owned()));
        switch(&format!("rack-{rack}"), format!("{tag}-r{rack}"), &ports);
    }
    let racks: Vec<_> = (0..RACKS).map(|n| (format!("rack-{n}"), format!("r{n}"))).collect();
    switch("core-0", format!("{tag}-core"), &racks);
    text
}

#[cfg(test)]
mod tests {
    use penstock_controller::files::{TenantWish, parse_tenants, parse_topology};
    use penstock_fabric::tenant_placement::Datacenter;

    use super::super::guarantees::plan;
    use super::*;
    use crate::qshare::tenant_sizes;

    #[test]
    fn the_tenants_of_every_seed_have_a_place() {
        let refused = |seed: &u64| {
            let plan = plan(&tenant_sizes(*seed));
            let fabric = parse_topology(&topology(&plan), "fabric.toml").unwrap();
            let wishes = parse_tenants(&tenants(&plan), "tenants.toml", &fabric.topology, &[]);
            let mut datacenter =
                Datacenter::new(fabric.topology, fabric.headroom_permille, fabric.policy).unwrap();
            let place = |wish: &TenantWish| datacenter.place(&wish.request).err();
            let wishes = wishes.unwrap();
            let why: Vec<_> = wishes.iter().filter_map(place).map(|why| why.to_string()).collect();
            (!why.is_empty()).then(|| format!("seed {seed}: {}", why.join("; ")))
        };
        let refused: Vec<_> = (1..=50).filter_map(|seed| refused(&seed)).collect();
        assert!(refused.is_empty(), "{} seeds: {refused:#?}", refused.len());
    }
}
