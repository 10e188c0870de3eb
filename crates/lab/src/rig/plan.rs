//! The participants of a live experiment: VMs, their purchases and their destinations.
//!
//! # Approach
//!
//! Our switch and the peer get the same network from one plan. For each sender there is a rule of
//! higher priority that looks at the UDP ports of the sender's frames. It represents a security
//! group that hits nothing. Two more rules look at the destination. Without the first rule no
//! decision would depend on ports, and a switch would not have to distinguish flows. "Many flows"
//! would then cost such a switch nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use penstock_guest::mac::Mac;

/// Limits of a VM's sending, in the configuration's words.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Bound {
    /// The port's `ingress_policy`.
    pub policy: Policy,
    /// Cycles per second that the VM bought.
    pub cycles: f64,
    /// Bits per second that the VM bought, FCS included. Used by `bps`.
    pub bits: f64,
    /// Weight of the VM's share of spare cycles.
    pub weight: u16,
    /// Latency class. 1 is served first. 0 leaves the key out.
    pub priority: u8,
}

/// Ingress policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// No limit except the port's turn.
    #[default]
    None,
    /// Bits per second.
    Bps,
    /// Cycles, no more than bought.
    Strict,
    /// Cycles, and a share of spare cycles.
    Minmax,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Vm {
    /// Name of the VM and of its port.
    pub name: String,
    /// The VM to which this VM sends. A VM without one is a sink.
    pub to: Option<String>,
    /// Whether the VM's frames carry the time at which they were sent.
    pub stamped: bool,
    pub bound: Bound,
    /// The VM's tenant, and the tenant's weight. `None`: the tenant that all share.
    pub tenant: Option<(String, u32)>,
    /// Whether this VM answers the VMs of any tenant that send to it. All frames of those VMs go to
    /// this VM, and its own frames go to the VMs that they address. Such a plan is for our switch
    /// only.
    pub answers: bool,
    /// Further lines of the table of the VM's port.
    pub more: String,
    /// Whether the VM's port has no tenant, as an uplink has none. Tenants then have a VLAN.
    pub shared: bool,
    /// Rate at which the VM empties its ring, in bits per second. 0: all at once.
    pub drains: f64,
}

impl Vm {
    /// A VM that sends to `to`.
    pub fn sender(name: impl Into<String>, to: &str, bound: Bound) -> Self {
        Self { name: name.into(), to: Some(to.to_owned()), bound, ..Self::default() }
    }

    /// A VM that only receives.
    pub fn sink(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// The same VM, with stamped frames.
    pub fn stamped(mut self) -> Self {
        self.stamped = true;
        self
    }
}

/// All VMs, and the configuration of the worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    /// `schedule` of the worker. Empty: the default.
    pub schedule: String,
    /// Further lines of the worker's table.
    pub worker: String,
    pub vms: Vec<Vm>,
    /// Whether ports offer checksum and segmentation offload.
    pub offloads: bool,
    /// Whether the ports listen on their sockets. Otherwise they connect.
    pub listens: bool,
    /// Whether endpoints and programs run in real time on their core, if priorities are raised at
    /// all. This is for load that leaves the core idle and is measured in time.
    pub prompt: bool,
    /// The largest IP packet of a namespace's interface. 0: 1,500 bytes.
    pub mtu: u16,
}

impl Plan {
    /// A plan for the load generator: ports listen and have no offloads.
    pub fn new(schedule: &str, vms: Vec<Vm>) -> Self {
        Self { schedule: schedule.to_owned(), vms, listens: true, ..Self::default() }
    }

    /// The MAC address of VM `number`.
    pub fn mac(number: usize) -> Mac {
        Mac([0x52, 0x54, 0, 0, 5, u8::try_from(number + 1).unwrap_or(u8::MAX)])
    }

    /// The IP address of VM `number`.
    pub fn ip(number: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, u8::try_from(number + 1).unwrap_or(u8::MAX), 1)
    }

    /// The index of the VM called `name`.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.vms.iter().position(|vm| vm.name == name)
    }

    fn has_vlan(&self) -> bool {
        self.vms.iter().any(|vm| vm.shared)
    }

    /// Senders with their indices and the indices of their destinations.
    fn ways(&self) -> impl Iterator<Item = (usize, &Vm, usize)> {
        self.vms.iter().enumerate().filter_map(|(number, vm)| {
            let to = vm.to.as_deref().and_then(|to| self.number(to))?;
            Some((number, vm, to))
        })
    }

    /// The configuration file of our daemon in `dir`, with these cores.
    pub fn configuration(&self, dir: &Path, (worker, control): (u32, u32)) -> String {
        let at = dir.display();
        let schedule = if self.schedule.is_empty() { "round-robin" } else { &self.schedule };
        let mut text = format!(
            "[host]\nname = \"lab\"\nsocket = \"{at}/host.sock\"\nstate_dir = \"{at}/state\"\n\n\
             [worker]\ncores = [{worker}]\ncontrol_cores = [{control}]\nidle_backoff_us = 0\n\
             schedule = \"{schedule}\"\n{}\n[[tenant]]\nname = \"lab\"\n{}",
            self.worker,
            if self.has_vlan() { "vlans = [100]\n" } else { "" },
        );
        let tenants: BTreeMap<&str, u32> =
            self.vms.iter().filter_map(|vm| vm.tenant.as_ref()).map(|(n, w)| (&**n, *w)).collect();
        for (name, weight) in tenants {
            let _ = write!(text, "\n[[tenant]]\nname = \"{name}\"\nuplink_weight = {weight}\n");
        }
        for vm in &self.vms {
            self.port(&mut text, vm, dir);
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
        let vlan = if self.has_vlan() { "vlan = 100\n" } else { "" };
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "\n[[port]]\nname = \"{name}\"\n{tenant}{vlan}\
             vhost-user.mode = \"{mode}\"\nvhost-user.socket = \"{}/{name}.sock\"\n\
             vhost-user.offloads = {{ csum = {on}, tso = {on} }}\n{}",
            dir.display(),
            vm.more
        );
        let bound = &vm.bound;
        let policy = match bound.policy {
            Policy::None => String::new(),
            Policy::Bps => {
                // The burst is 10 ms, as the peer has it, and at least 64 KiB.
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

    /// Adds the rules that send all frames of `from` to `to`, and the frames that `to` addresses to
    /// `from` back.
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
        for (half, net) in [("low", "0.0.0.0/1"), ("high", "128.0.0.0/1")] {
            let _ = write!(
                text,
                "\n[[rule]]\nname = \"{from}-{half}\"\npriority = 10\nport = \"{from}\"\n\
                 match = {{ dst_mac = \"{mac}\", dst = \"{net}\" }}\n\
                 actions = [\"output:{dst}\"]\n"
            );
        }
    }

    /// The flow table of OVS. Ports are numbered from 1 in the order of the VMs.
    pub fn flows(&self) -> Vec<String> {
        let mut flows = Vec::new();
        for (from, _, to) in self.ways() {
            let (from, out, mac) = (from + 1, to + 1, Self::mac(to));
            flows.push(format!("priority=20,udp,in_port={from},tp_src=0x0000/0xfc00,actions=drop"));
            for net in ["0.0.0.0/1", "128.0.0.0/1"] {
                flows.push(format!(
                    "priority=10,ip,in_port={from},dl_dst={mac},nw_dst={net},actions=output:{out}"
                ));
            }
        }
        flows
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
}
