//! The plan of a live fabric, and the files that describe the fabric to its controller.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Maximum number of VMs on a host: one more than in the paper's testbed. If the tenants' numbers
/// of VMs are odd, the same rack gets the larger half of every tenant's VMs and needs the extra
/// slot.
const SLOTS: usize = 11;

/// Hosts, tenants and settings of a live fabric. The fabric has a switch for each rack, and one
/// core switch above all racks.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Number of hosts in each rack.
    pub racks: Vec<usize>,
    /// Rate of every link, in bits per second.
    pub link: u64,
    /// Number of queues of each port, including the shared queue.
    pub queues: usize,
    /// Time between two decisions of the controller.
    pub interval: Duration,
    /// Each tenant's number of VMs, and the guarantee of each VM in each direction, in bits per
    /// second.
    pub tenants: Vec<(usize, u64)>,
    pub spread: Spread,
    pub control: Control,
    /// Whether the controller starts in the mode `hold`, in which no tenant gets a queue.
    pub hold: bool,
    /// Whether the controller serves its web page.
    pub page: bool,
    /// Whether the hosts allocate rates to pairs of VMs, so that tenants without a queue also use
    /// bandwidth that nobody else uses.
    pub spare: bool,
}

/// Bound on the VMs of a tenant in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// At most half of a tenant's VMs, rounded up, are in one rack.
    HalfPerRack,
    /// At most one VM of a tenant is on a host.
    OnePerHost,
}

/// Controllers of a fabric, and the kind of its core switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// One controller, with its store in a file. All switches are Linux bridges.
    One,
    /// Two controllers that share an etcd, for experiments with faults. The core switch is a
    /// Penstock process, and the racks' switches are Linux bridges. A host's agent reaches the
    /// controllers through relays of its own.
    Two,
}

impl Control {
    /// Returns the names of the controllers.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::One => &["one"],
            Self::Two => &["one", "two"],
        }
    }
}

/// Addresses and directories of a running controller.
#[derive(Debug, Clone, Copy)]
pub(super) struct ControllerPlaces<'a> {
    pub name: &'a str,
    /// URL of etcd. `None` if the controller's store is a file.
    pub etcd: Option<&'a str>,
    /// Directory of the controller's socket and store.
    pub dir: &'a Path,
    /// Prefix of the names of all network namespaces.
    pub tag: &'a str,
    /// TCP port for the hosts' agents.
    pub agents: u16,
    /// TCP port of the web page.
    pub page: u16,
}

/// Returns the name of the tenant with index `tenant`, such as `t1` for 0.
pub(super) fn tenant_name(tenant: usize) -> String {
    format!("t{}", tenant + 1)
}

impl Plan {
    /// Returns the number of hosts in all racks.
    pub fn hosts(&self) -> usize {
        self.racks.iter().sum()
    }

    /// Returns the numbers of the hosts in a rack.
    pub fn hosts_of(&self, rack: usize) -> Range<usize> {
        let first: usize = self.racks[..rack].iter().sum();
        first..first + self.racks[rack]
    }

    /// Returns the number of the rack that contains `host`.
    pub fn rack_of(&self, host: usize) -> usize {
        let here = |rack: &usize| self.hosts_of(*rack).contains(&host);
        (0..self.racks.len()).find(here).unwrap_or(0)
    }

    /// Returns the text of the controller's topology file.
    pub fn topology(&self) -> String {
        let Self { link, queues, .. } = self;
        let mut text = format!("[fabric]\nname = \"racks of hosts\"\nqueues = {queues}\n");
        let mut add = |section: &str| text += section;
        for host in 0..self.hosts() {
            add(&format!("\n[[server]]\nname = \"server-{host}\"\nslots = {SLOTS}\n"));
        }
        for rack in 0..self.racks.len() {
            add(&format!("\n[[switch]]\nname = \"rack-{rack}\"\n"));
        }
        add("\n[[switch]]\nname = \"core-0\"\n");
        let cable = |from: String, to: &str| {
            format!("\n[[link]]\nfrom = \"{from}\"\nto = \"{to}\"\nrate = \"{link}\"\n")
        };
        for host in 0..self.hosts() {
            let rack = format!("rack-{}", self.rack_of(host));
            add(&cable(format!("server-{host}"), &rack));
        }
        for rack in 0..self.racks.len() {
            add(&cable(format!("rack-{rack}"), "core-0"));
        }
        text
    }

    /// Returns the text of the controller's tenants file.
    pub fn tenants(&self) -> String {
        let tenant = |(tenant, (vms, rate)): (usize, &(usize, u64))| {
            let name = tenant_name(tenant);
            let bound = match self.spread {
                Spread::HalfPerRack => format!("most_per_rack = {}", vms.div_ceil(2)),
                Spread::OnePerHost => "most_per_server = 1".to_owned(),
            };
            format!("[[tenant]]\nname = \"{name}\"\nvms = {vms}\nrate = \"{rate}\"\n{bound}\n\n")
        };
        self.tenants.iter().enumerate().map(tenant).collect()
    }

    /// Returns the text of a controller's configuration file. A rack's switch has the interfaces
    /// `h0`, `h1` and so on to its hosts, and `uplink` to the core switch. The core switch has the
    /// interfaces `r0`, `r1` and so on to the racks.
    pub fn controller(&self, at: ControllerPlaces<'_>) -> String {
        let ControllerPlaces { name, etcd, dir, tag, agents, page } = at;
        let (dir, millis) = (dir.display(), self.interval.as_millis());
        let report = (millis / 4).max(50);
        let page = if self.page { format!("page = \"127.0.0.1:{page}\"\n") } else { String::new() };
        // An agent that followed the name of the leader would not use its relay.
        let advertise = match self.control {
            Control::One => format!("advertise = \"http://127.0.0.1:{agents}\"\n"),
            Control::Two => String::new(),
        };
        let store = match etcd {
            Some(url) => format!("endpoints = [\"{url}\"]"),
            None => format!("path = \"{dir}/controller.redb\""),
        };
        let mut text = format!(
            "[controller]\nname = \"{name}\"\ntopology = \"fabric.toml\"\n\
             socket = \"{dir}/{name}.sock\"\ninterval_ms = {millis}\nreport_ms = {report}\n\
             agents = \"127.0.0.1:{agents}\"\n{advertise}{page}\n\
             [store]\n{store}\n\n[binding]\nmap = \"per-port-map\"\n"
        );
        let mut switch = |name: &str, driver: String, ports: &[(String, String)]| {
            let ports: Vec<_> = ports.iter().map(|(to, of)| format!("{to} = [\"{of}\"]")).collect();
            let _ = write!(
                text,
                "\n[[switch]]\nname = \"{name}\"\n{driver}\ninterfaces = {{ {} }}\n",
                ports.join(", ")
            );
        };
        let bridge = |netns: String| format!("driver = \"linux-tc\"\nnetns = \"{netns}\"");
        for rack in 0..self.racks.len() {
            let hosts = self.hosts_of(rack).enumerate();
            let mut ports: Vec<_> =
                hosts.map(|(nth, host)| (format!("server-{host}"), format!("h{nth}"))).collect();
            ports.push(("core-0".to_owned(), "uplink".to_owned()));
            switch(&format!("rack-{rack}"), bridge(format!("{tag}-r{rack}")), &ports);
        }
        let racks = 0..self.racks.len();
        let racks: Vec<_> = racks.map(|n| (format!("rack-{n}"), format!("r{n}"))).collect();
        let core = match self.control {
            Control::One => bridge(format!("{tag}-core")),
            Control::Two => {
                format!("driver = \"penstock\"\naddress = \"unix://{dir}/core/host.sock\"")
            }
        };
        switch("core-0", core, &racks);
        text
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use penstock_controller::files::{TenantWish, load_controller, parse_tenants, parse_topology};
    use penstock_fabric::tenant_placement::Datacenter;
    use penstock_fabric::topology::NodeId;

    use super::*;

    /// Places the tenants of a plan as the controller does. Returns the number of each tenant's VMs
    /// on each server, and the refusals.
    pub fn placed(plan: &Plan) -> (Vec<BTreeMap<String, u32>>, Vec<String>) {
        let fabric = parse_topology(&plan.topology(), "fabric.toml").unwrap();
        let wishes = parse_tenants(&plan.tenants(), "tenants.toml", &fabric.topology, &[]).unwrap();
        let mut datacenter =
            Datacenter::new(fabric.topology, fabric.headroom_permille, fabric.policy).unwrap();
        let (mut places, mut refused) = (Vec::new(), Vec::new());
        for TenantWish { request, .. } in &wishes {
            match datacenter.place(request) {
                Ok(slot) => {
                    let name = |server: NodeId| datacenter.topology().name(server).to_string();
                    let slots = &datacenter.tenant(slot).unwrap().placement.entry.slots;
                    let on = slots.iter().map(|(server, vms)| (name(*server), *vms));
                    places.push(on.collect());
                }
                Err(why) => refused.push(why.to_string()),
            }
        }
        (places, refused)
    }

    #[test]
    fn racks_need_not_be_equal() {
        let plan = Plan {
            racks: vec![4, 3, 3],
            link: 50_000_000,
            queues: 6,
            interval: Duration::from_secs(4),
            tenants: vec![(10, 1_000_000)],
            spread: Spread::OnePerHost,
            control: Control::One,
            hold: false,
            page: false,
            spare: false,
        };
        assert_eq!((plan.hosts(), plan.hosts_of(1)), (10, 4..7));
        assert_eq!([0, 3, 4, 6, 7, 9].map(|host| plan.rack_of(host)), [0, 0, 1, 1, 2, 2]);
        let fabric = parse_topology(&plan.topology(), "fabric.toml").unwrap();
        let sizes = (0..fabric.topology.layers()).map(|n| fabric.topology.layer(n).count());
        assert_eq!(sizes.collect::<Vec<_>>(), [10, 3, 1], "four switches");
        let (places, refused) = placed(&plan);
        assert!(refused.is_empty(), "{refused:?}");
        assert!(places[0].len() == 10 && places[0].values().all(|vms| *vms == 1), "{places:?}");
    }

    #[test]
    fn a_controllers_file_is_valid_with_each_kind_of_control() {
        let dir = penstock_testing::temp_dir();
        for (control, etcd) in [(Control::One, None), (Control::Two, Some("http://127.0.0.1:2"))] {
            let plan = Plan {
                racks: vec![2, 1],
                link: 50_000_000,
                queues: 8,
                interval: Duration::from_secs(4),
                tenants: vec![(3, 1_000_000)],
                spread: Spread::OnePerHost,
                control,
                hold: false,
                page: false,
                spare: false,
            };
            std::fs::write(dir.join("fabric.toml"), plan.topology()).unwrap();
            for &name in control.names() {
                let (dir, tag) = (&*dir, "pf");
                let places = ControllerPlaces { name, etcd, dir, tag, agents: 7, page: 8 };
                let file = dir.join(format!("{name}.toml"));
                std::fs::write(&file, plan.controller(places)).unwrap();
                let read = load_controller(&file).unwrap();
                assert_eq!(read.switches.len(), 3, "{control:?}");
            }
        }
    }
}
