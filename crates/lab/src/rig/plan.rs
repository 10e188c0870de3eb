//! Plan of a live experiment, with VMs, their purchases and their destinations.
//!
//! # Approach
//!
//! Penstock and OVS-DPDK get the same network from one plan. In Penstock and in OVS, each sender
//! has three rules. The first rule has the highest priority, and drops frames with UDP source ports
//! below 1024, as a security group may do. The rule for low UDP ports matches no frame, because the
//! load generator uses only higher ports. The second and the third rule match the destination of a
//! frame. Without the rule for low UDP ports, frames of many flows would cost as much as frames of
//! one flow.
//!
//! All VMs send if each VM sends to all others (a mesh) or to an uplink. If all VMs send, or if all
//! receive from an uplink, the plan has only two rules for each destination. These rules apply to
//! all ports.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use super::link::{Link, Rounds};
use super::through::{Outside, STATION};
use penstock_guest::load::Destination;
use penstock_guest::mac::Mac;

/// Limits on the traffic that a VM sends. The fields have the same values as the keys of the VM's
/// port in Penstock's configuration file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Bound {
    /// Value of the configuration key `ingress_policy` of the VM's port.
    pub policy: Policy,
    /// Cycles per second that the VM bought; only for [`Policy::Strict`] and [`Policy::Minmax`].
    pub cycles: f64,
    /// Bits per second that the VM bought, FCS included; only for [`Policy::Bps`].
    pub bits: f64,
    /// Weight of the VM's share of spare cycles.
    pub weight: u16,
    /// Latency class. Class 1 is served first. If the class is 0, the configuration does not set
    /// the latency class.
    pub priority: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The port has no limit. Only the worker's schedule determines how many cycles the port gets.
    #[default]
    None,
    /// The port has a limit in bits per second.
    Bps,
    /// The port has a strict limit in cycles per second.
    Strict,
    /// The port has a limit in cycles per second, and may also use a share of spare cycles.
    Minmax,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Vm {
    /// Name of the VM and of its port.
    pub name: String,
    /// Name of the VM to which this VM sends. `None` if this VM sends nothing.
    pub to: Option<String>,
    /// Whether the VM writes the sending time into its frames.
    pub stamped: bool,
    pub bound: Bound,
    /// The VM's tenant, and the tenant's weight. `None` if the VM belongs to the common tenant
    /// `lab`.
    pub tenant: Option<(String, u32)>,
    /// Whether the VM answers the VMs that send to it. The VMs that send to the answering VM may
    /// belong to any tenant. The switch delivers an answer to the VM that the answer's destination
    /// address names. Only Penstock, and not OVS, supports VMs that answer.
    pub answers: bool,
    /// Further lines for the table of the VM's port in Penstock's configuration.
    pub more: String,
    /// Whether the VM's port has no tenant, like an uplink. If the VM's port has no tenant, the
    /// common tenant `lab` has a VLAN.
    pub shared: bool,
    /// Maximum rate at which the VM empties its ring, in bits per second, or 0 for no limit.
    pub drains: f64,
    /// Whether the VM requests an interrupt for the frames that it receives.
    pub interrupts: bool,
    /// Whether the VM notifies the switch in each turn of the load generator.
    pub kicks: bool,
}

impl Vm {
    /// Creates a VM that sends to the VM `to`.
    pub fn sender(name: impl Into<String>, to: &str, bound: Bound) -> Self {
        Self { name: name.into(), to: Some(to.to_owned()), bound, ..Self::default() }
    }

    /// Creates a VM that only receives.
    pub fn sink(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Makes the VM write the sending time into its frames.
    pub fn stamped(mut self) -> Self {
        self.stamped = true;
        self
    }
}

/// Destinations that all VMs of a plan have in common.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AllTo {
    /// Each VM sends to all other VMs, in turn.
    Others,
    /// All VMs send to a station behind an uplink.
    Uplink(Outside),
    /// VMs with a destination send every second frame to a station behind an uplink.
    Half(Outside),
    /// A station behind an uplink sends to all VMs, and VMs answer the station. The uplink has no
    /// tenant. The common tenant `lab` has a VLAN, which the uplink is in. Rules and not VLANs send
    /// the frames to VMs of other tenants.
    From(Outside),
}

/// All VMs of an experiment, and the configuration of the workers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    /// Cores on which the switch's workers run. If `cores` is empty, the switch has one worker on
    /// the default core. Ports are assigned to the workers in turn, and an uplink is assigned to
    /// the first worker.
    pub cores: Vec<u32>,
    /// Longest sleep of an idle worker, in microseconds. If the longest sleep is 0, the worker
    /// always polls.
    pub idle_backoff_us: u32,
    /// Destinations that all VMs have in common. `None` if each VM has its own destination
    /// ([`Vm::to`]).
    pub all_to: Option<AllTo>,
    /// Whether the load generator of a benchmark waits for the switch.
    pub rounds: Rounds,
    /// Rings and frame contents of all VMs. `None` selects the settings of live experiments.
    pub link: Option<Link>,
    /// Value of the workers' configuration key `schedule`. If the schedule is empty, the workers
    /// have the default schedule.
    pub schedule: String,
    /// Further lines for the workers' tables in Penstock's configuration.
    pub worker: String,
    pub vms: Vec<Vm>,
    /// Whether ports offer checksum and segmentation offload.
    pub offloads: bool,
    /// Number of queue pairs of each VM. If the number is 0, each VM has one queue pair.
    pub pairs: u16,
    /// Whether the ports listen on their vhost-user sockets, instead of connecting to them.
    pub listens: bool,
    /// Whether endpoints and programs get a real-time priority. The value has no effect if the
    /// experiment raises no priorities. Real-time priority is meant for latency measurements in
    /// which the core is mostly idle.
    pub prompt: bool,
    /// MTU in bytes of the interfaces in network namespaces. An MTU of 0 means 1,500 bytes.
    pub mtu: u16,
    /// Time for which each frame to a network namespace waits in the namespace's NIC, in
    /// microseconds. A round trip is longer by twice the time.
    pub delay_us: u32,
}

impl Plan {
    /// Creates a plan with the schedule `schedule` for the workers. The ports of the plan listen
    /// and have no offloads.
    pub fn new(schedule: &str, vms: Vec<Vm>) -> Self {
        Self { schedule: schedule.to_owned(), vms, listens: true, ..Self::default() }
    }

    pub fn mac(number: usize) -> Mac {
        let [high, low] = Self::id(number);
        Mac([0x52, 0x54, 0, high, 5, low])
    }

    pub fn ip(number: usize) -> Ipv4Addr {
        let [high, low] = Self::id(number);
        Ipv4Addr::new(10, high, low, 1)
    }

    fn id(number: usize) -> [u8; 2] {
        u16::try_from(number + 1).unwrap_or(u16::MAX).to_be_bytes()
    }

    /// Returns the destination of VM `number`, or `None` if the VM only receives.
    pub fn destination(&self, number: usize) -> Option<Destination> {
        match &self.all_to {
            None => self.vms[number].to.clone().map(Destination::Vm),
            Some(AllTo::From(_)) => None,
            Some(AllTo::Others) => Some(Destination::Others),
            Some(AllTo::Uplink(_)) => Some(Destination::Outside(STATION.0, STATION.1)),
            Some(AllTo::Half(_)) => {
                let to = self.vms[number].to.clone()?;
                Some(Destination::Half(to, STATION.0, STATION.1))
            }
        }
    }

    /// Returns the uplink to which VMs send, or from which they receive, if the plan has an uplink.
    pub fn uplink(&self) -> Option<&Outside> {
        match &self.all_to {
            Some(AllTo::Uplink(outside) | AllTo::Half(outside) | AllTo::From(outside)) => {
                Some(outside)
            }
            Some(AllTo::Others) | None => None,
        }
    }

    /// Returns the common destinations of all VMs: name of the port, number of the port (from 1),
    /// and MAC address.
    fn common_targets(&self) -> Vec<(&str, usize, Mac)> {
        let vms = self.vms.iter().enumerate();
        let vms = vms.map(|(n, vm)| (vm.name.as_str(), n + 1, Self::mac(n)));
        let ends = self.uplink().map_or(&[][..], |outside| outside.ends).iter();
        let ends = ends.map(|end| (*end, self.vms.len() + 1, STATION.0));
        match &self.all_to {
            None => Vec::new(),
            Some(AllTo::Others) => vms.collect(),
            Some(AllTo::Uplink(_) | AllTo::Half(_)) => ends.collect(),
            Some(AllTo::From(_)) => vms.chain(ends).collect(),
        }
    }

    pub fn number(&self, name: &str) -> Option<usize> {
        self.vms.iter().position(|vm| vm.name == name)
    }

    fn has_vlan(&self) -> bool {
        matches!(self.all_to, Some(AllTo::From(_))) || self.vms.iter().any(|vm| vm.shared)
    }

    /// Returns the line with the VLAN of a port that is in the network of the tenant `lab`.
    fn vlan(&self) -> &'static str {
        if self.has_vlan() { "vlan = 100\n" } else { "" }
    }

    /// Returns the senders of the plan: index, VM, and index of the destination.
    fn ways(&self) -> impl Iterator<Item = (usize, &Vm, usize)> {
        self.vms.iter().enumerate().filter_map(|(number, vm)| {
            let to = vm.to.as_deref().and_then(|to| self.number(to))?;
            Some((number, vm, to))
        })
    }

    /// Returns the text of Penstock's configuration file in `dir`. `worker` and `control` are the
    /// cores of the worker and of the control threads.
    pub fn configuration(&self, dir: &Path, (worker, control): (u32, u32)) -> String {
        let at = dir.display();
        let schedule = if self.schedule.is_empty() { "round-robin" } else { &self.schedule };
        let cores = if self.cores.is_empty() { &[worker][..] } else { &self.cores };
        let mut text = format!(
            "[host]\nname = \"lab\"\nsocket = \"{at}/host.sock\"\nstate_dir = \"{at}/state\"\n\n\
             [worker]\ncores = {cores:?}\ncontrol_cores = [{control}]\nidle_backoff_us = {}\n\
             schedule = \"{schedule}\"\n{}\n[[tenant]]\nname = \"lab\"\n{}",
            self.idle_backoff_us,
            self.worker,
            if self.has_vlan() { "vlans = [100]\n" } else { "" },
        );
        let tenants: BTreeMap<&str, u32> =
            self.vms.iter().filter_map(|vm| vm.tenant.as_ref()).map(|(n, w)| (&**n, *w)).collect();
        for (name, weight) in tenants {
            let _ = write!(text, "\n[[tenant]]\nname = \"{name}\"\nuplink_weight = {weight}\n");
        }
        for (number, vm) in self.vms.iter().enumerate() {
            self.port(&mut text, vm, dir);
            if cores.len() > 1 {
                // Writing into a String cannot fail.
                let _ = writeln!(text, "worker = {}", number % cores.len());
            }
        }
        if let Some(outside) = self.uplink() {
            let worker = if cores.len() > 1 { "worker = 0\n" } else { "" };
            text.push_str(&outside.ports(&format!("{}{worker}", self.vlan())));
        }
        for (name, _, mac) in self.common_targets() {
            output_rules(&mut text, name, "", (name, mac));
        }
        for (from, vm, to) in self.ways() {
            if self.vms[to].answers {
                self.way_and_back(&mut text, from, to);
            } else {
                self.rules(&mut text, vm, to);
            }
        }
        text
    }

    fn port(&self, text: &mut String, vm: &Vm, dir: &Path) {
        let (name, on) = (&vm.name, self.offloads);
        let mode = if self.listens { "server" } else { "client" };
        let tenant = match &vm.tenant {
            _ if vm.shared => String::new(),
            None => "tenant = \"lab\"\n".to_owned(),
            Some((tenant, _)) => format!("tenant = \"{tenant}\"\n"),
        };
        let vlan = if vm.tenant.is_none() { self.vlan() } else { "" };
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "\n[[port]]\nname = \"{name}\"\n{tenant}{vlan}\
             vhost-user.mode = \"{mode}\"\nvhost-user.socket = \"{}/{name}.sock\"\n\
             vhost-user.offloads = {{ csum = {on}, tso = {on} }}\n{}",
            dir.display(),
            vm.more
        );
        if self.pairs > 1 {
            let _ = writeln!(text, "vhost-user.queues = {}", self.pairs);
        }
        let bound = &vm.bound;
        let policy = match bound.policy {
            Policy::None => String::new(),
            Policy::Bps => {
                // The burst is 10 ms of the rate, as for the peer, and at least 64 KiB.
                let burst = (bound.bits / 8.0 / 100.0).max(65_536.0);
                format!(
                    "ingress_policy = \"bps\"\n\
                     police = {{ cir = {:.0}, cbs = {burst:.0}, ebs = 0 }}\n",
                    bound.bits
                )
            }
            Policy::Strict => {
                format!("ingress_policy = \"cycles-strict\"\ncycles = {:.0}\n", bound.cycles)
            }
            Policy::Minmax => format!(
                "ingress_policy = \"cycles-minmax\"\ncycles = {:.0}\ncycle_weight = {}\n",
                bound.cycles,
                bound.weight.max(1)
            ),
        };
        text.push_str(&policy);
        if bound.priority > 0 {
            let _ = writeln!(text, "priority = {}", bound.priority);
        }
    }

    /// Adds a rule for each direction to Penstock's configuration. All frames from the port of
    /// `from` go to `to`. Frames from the port of `to` that have the MAC address of `from` go to
    /// `from`.
    fn way_and_back(&self, text: &mut String, from: usize, to: usize) {
        let (source, target, mac) = (&self.vms[from].name, &self.vms[to].name, Self::mac(from));
        let _ = write!(
            text,
            "\n[[rule]]\nname = \"{source}-there\"\npriority = 10\nport = \"{source}\"\n\
             actions = [\"output:{target}\"]\n\
             \n[[rule]]\nname = \"{source}-back\"\npriority = 10\nport = \"{target}\"\n\
             match = {{ dst_mac = \"{mac}\" }}\nactions = [\"output:{source}\"]\n"
        );
    }

    fn rules(&self, text: &mut String, vm: &Vm, to: usize) {
        let (from, dst, mac) = (&vm.name, &self.vms[to].name, Self::mac(to));
        let _ = write!(
            text,
            "\n[[rule]]\nname = \"{from}-group\"\npriority = 20\nport = \"{from}\"\n\
             match = {{ proto = \"udp\", src_port = \"1-1023\" }}\nactions = [\"drop\"]\n"
        );
        output_rules(text, from, &format!("port = \"{from}\"\n"), (dst, mac));
    }

    /// Returns the flow table for OVS. Port numbers count from 1 in the order of the VMs.
    pub fn flows(&self) -> Vec<String> {
        let mut flows = Vec::new();
        for (from, _, to) in self.ways() {
            let (from, out, mac) = (from + 1, to + 1, Self::mac(to));
            flows.push(format!("priority=20,udp,in_port={from},tp_src=0x0000/0xfc00,actions=drop"));
            for (_, net) in HALVES {
                flows.push(format!(
                    "priority=10,ip,in_port={from},dl_dst={mac},nw_dst={net},actions=output:{out}"
                ));
            }
        }
        for (_, out, mac) in self.common_targets() {
            for (_, net) in HALVES {
                flows
                    .push(format!("priority=10,ip,dl_dst={mac},nw_dst={net},actions=output:{out}"));
            }
        }
        flows
    }
}

/// Names and prefixes of the two halves of the IPv4 address space.
const HALVES: [(&str, &str); 2] = [("low", "0.0.0.0/1"), ("high", "128.0.0.0/1")];

/// Adds the two rules that send IP frames for address `mac` to port `to`. The argument `of` is a
/// line of configuration that restricts the rules to a source port, or an empty string.
fn output_rules(text: &mut String, name: &str, of: &str, (to, mac): (&str, Mac)) {
    for (half, net) in HALVES {
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "\n[[rule]]\nname = \"{name}-{half}\"\npriority = 10\n{of}\
             match = {{ dst_mac = \"{mac}\", dst = \"{net}\" }}\n\
             actions = [\"output:{to}\"]\n"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let bound = Bound { policy: Policy::Minmax, cycles: 2e8, weight: 4, ..Bound::default() };
        let capped = Bound { policy: Policy::Bps, bits: 1e9, priority: 2, ..Bound::default() };
        let vms =
            vec![Vm::sender("vm1", "s", bound), Vm::sender("vm2", "s", capped), Vm::sink("s")];
        Plan::new("hbs", vms)
    }

    #[test]
    fn a_plan_says_who_bought_what() {
        let text = plan().configuration(Path::new("/d"), (1, 0));
        for part in [
            "schedule = \"hbs\"",
            "ingress_policy = \"cycles-minmax\"\ncycles = 200000000\ncycle_weight = 4\n",
            "police = { cir = 1000000000, cbs = 1250000, ebs = 0 }\npriority = 2\n",
            "socket = \"/d/s.sock\"",
            "dst_mac = \"52:54:00:00:05:03\"",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn both_switches_get_the_same_rules() {
        let plan = plan();
        let text = plan.configuration(Path::new("/d"), (1, 0));
        assert_eq!(text.matches("[[rule]]").count(), plan.flows().len());
        assert!(plan.flows()[1].contains("in_port=1,dl_dst=52:54:00:00:05:03"));
    }

    #[test]
    fn a_mesh_has_two_rules_for_each_destination_and_ports_on_all_workers() {
        let vms = (1..=300).map(|n| Vm::sink(&format!("vm{n}"))).collect();
        let mut plan = Plan::new("", vms);
        (plan.all_to, plan.cores) = (Some(AllTo::Others), vec![1, 0]);
        let text = plan.configuration(Path::new("/d"), (1, 0));
        assert!(text.contains("cores = [1, 0]\n"), "{text}");
        for worker in ["worker = 0\n", "worker = 1\n"] {
            assert_eq!(text.matches(worker).count(), 150, "{worker}");
        }
        let flows = plan.flows();
        assert_eq!((text.matches("[[rule]]").count(), flows.len()), (600, 600));
        let first = "priority=10,ip,dl_dst=52:54:00:00:05:01,nw_dst=0.0.0.0/1,actions=output:1";
        assert_eq!(flows[0], first);
        assert_eq!(plan.destination(7), Some(Destination::Others));
        let macs: std::collections::BTreeSet<_> = (0..300).map(|n| Plan::mac(n).0).collect();
        assert_eq!(macs.len(), 300);
    }

    #[test]
    fn frames_for_an_uplink_have_the_address_of_a_station() {
        let mut plan = Plan::new("", vec![Vm::sink("vm1"), Vm::sink("vm2")]);
        let (way, netns) = (super::super::through::Through::Xdp, "there".to_owned());
        plan.all_to = Some(AllTo::Uplink(Outside { way, netns, ends: &["u0"] }));
        let text = plan.configuration(Path::new("/d"), (1, 0));
        assert!(text.contains("name = \"u0\"\nxdp.interface = \"u0\"\nxdp.netns = \"there\"\n"));
        assert!(text.contains("actions = [\"output:u0\"]") && !text.contains("\"u1\""), "{text}");
        assert_eq!(plan.destination(1), Some(Destination::Outside(STATION.0, STATION.1)));
        assert!(plan.flows()[0].ends_with("actions=output:3"), "{:?}", plan.flows());
        let Some(AllTo::Uplink(outside)) = plan.all_to.take() else { panic!("no uplink") };
        (plan.vms[0].to, plan.all_to) = (Some("vm2".to_owned()), Some(AllTo::Half(outside)));
        let text = plan.configuration(Path::new("/d"), (1, 0));
        for to in ["output:u0", "output:vm2"] {
            assert!(text.contains(&format!("actions = [\"{to}\"]")), "{to} is missing in\n{text}");
        }
        let half = Destination::Half("vm2".to_owned(), STATION.0, STATION.1);
        assert_eq!([0, 1].map(|vm| plan.destination(vm)), [Some(half), None]);
    }
}
