//! Test of a Penstock switch in a running fabric. A controller process configures the queues of a
//! switch process. Real packets of two tenants have the code points and share a link by the weights
//! that the controller configured. While other tenants start and end, all frames of the two tenants
//! with real packets stay in their own queues. After a kill, the switch continues with its
//! settings. If the switch restarts with an empty disk, the controller configures the queues of the
//! switch again. Without root the test is skipped.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use penstock_controller::agent::{Agent, AgentSettings, Carried, HostSide, SideError};
use penstock_controller::hosts::HostPlan;
use penstock_controller::southbound::penstock::{Address, PenstockSwitch, Tls};
use penstock_controller::southbound::{PortInfo, SwitchDriver as _};
use penstock_testing::{TempDir, temp_dir};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::authority::Authority;
use crate::support;
use crate::support::controller::{Controller, TAKE_OVER, until};
use crate::support::flows::{Flows, Namespace};
use crate::support::{Daemon, namespace_options};

const SOON: Duration = Duration::from_secs(30);
/// How many windows decide whether weights divide a link.
const WINDOWS: usize = 9;
/// The fabric has one rack with three servers. Two servers host the tenants with real traffic, and
/// the third hosts other tenants.
const TOPOLOGY: &str = "[fabric]\nname = \"one rack\"\nqueues = 8\n\n[servers]\nslots = 10\n\n\
    [[tier]]\nfan_out = 3\nrate = \"1G\"\n";
/// A switch that forwards frames between two shared ports and keeps their code points.
const SWITCH: &str = r#"[[tenant]]
name = "fabric"

[[port]]
name = "left"
packet.interface = "left0"
link = "100M"
egress = "wfq"

[[port]]
name = "right"
packet.interface = "right0"
link = "100M"
egress = "wfq"

[[port]]
name = "third"
tap.interface = "third0"
link = "100M"
egress = "wfq"

[switch]
name = "rack-0"
listen = "127.0.0.1:7100"
tls = { ca = "ca.pem", cert = "leaf.pem", key = "leaf.key" }
"#;

/// A simulated host. The simulated host confirms every plan, and its tenants send as much as they
/// may.
#[derive(Debug, Default)]
struct FakeHost {
    sent: Mutex<u64>,
    plan: Mutex<HostPlan>,
}

#[tonic::async_trait]
impl HostSide for FakeHost {
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError> {
        let mut sent = self.sent.lock().unwrap();
        *sent += 20_000_000;
        let carried = Carried { sent: *sent, received: *sent };
        let tenants = ["web", "mail", "bulk"].map(|name| (name.to_owned(), carried));
        Ok(tenants.into())
    }

    async fn apply(&self, plan: &HostPlan) -> Result<(), SideError> {
        *self.plan.lock().unwrap() = plan.clone();
        Ok(())
    }
}

impl FakeHost {
    /// Code point of a tenant's frames. 0 means that the tenant shares queue 0.
    fn code_point(&self, tenant: &str) -> u8 {
        let plan = self.plan.lock().unwrap();
        plan.tenants.iter().find(|t| t.name == tenant).map_or(0, |tenant| tenant.dscp)
    }
}

/// A controller with three hosts, and the folder of its files.
struct Fabric {
    folder: TempDir,
    controller: Controller,
    hosts: Vec<Arc<FakeHost>>,
    _agents: Runtime,
}

impl Fabric {
    fn start(socket: &Path) -> Self {
        let folder = temp_dir();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let keys = format!("agents = \"127.0.0.1:{port}\"\n");
        let store = format!(
            "path = {:?}\n\n[binding]\nmap = \"per-egress-map\"\ndrain_ms = 50\n",
            folder.join("store.redb")
        );
        let switch = format!(
            "\n[[switch]]\nname = \"rack-0\"\ndriver = \"penstock\"\naddress = \"unix://{}\"\n\
             interfaces = {{ server-0 = [\"left\"], server-1 = [\"right\"], \
             server-2 = [\"third\"] }}\n",
            socket.display()
        );
        let controller = Controller::with(&folder, "one", &keys, &store, TOPOLOGY, &switch);
        let (agents, mut hosts) = (Runtime::new().unwrap(), Vec::new());
        for n in 0..3 {
            let host = Arc::new(FakeHost::default());
            let (name, plan) = (format!("server-{n}"), folder.join(format!("plan-{n}")));
            let to = vec![format!("127.0.0.1:{port}")];
            let settings = AgentSettings::new(&name, to, None, &plan);
            let side = Arc::clone(&host) as Arc<dyn HostSide>;
            agents.spawn(Agent::new(settings, side).unwrap().run(std::future::pending()));
            hosts.push(host);
        }
        until(TAKE_OVER, "it leads", || controller.leads());
        Self { folder, controller, hosts, _agents: agents }
    }

    /// Adds a tenant with one VM on each server, and waits until the tenant has a code point on all
    /// hosts.
    fn add(&self, name: &str, rate: &str) {
        let file = self.folder.join(format!("{name}.toml"));
        let text = format!(
            "[[tenant]]\nname = \"{name}\"\nvms = 3\nrate = \"{rate}\"\nmost_per_server = 1\n"
        );
        fs::write(&file, text).unwrap();
        let (fine, answer) =
            self.controller.ask(&["tenant", "add", file.to_str().unwrap()]).unwrap();
        assert!(fine, "{answer}");
        until(SOON, "a code point", || self.hosts.iter().all(|host| host.code_point(name) != 0));
    }

    fn code_point(&self, tenant: &str) -> u8 {
        self.hosts[0].code_point(tenant)
    }

    fn up_to_date(&self) -> bool {
        self.controller
            .ask(&["status"])
            .is_some_and(|(_, status)| status["out_of_date"].as_array().is_some_and(Vec::is_empty))
    }
}

/// Creates namespaces at two ports of a switch that has just started.
fn plug(daemon: &Daemon) -> (Namespace, Namespace) {
    let (left, right) = (Namespace::new(), Namespace::new());
    left.join(daemon, "left0", "10.9.0.1");
    right.join(daemon, "right0", "10.9.0.2");
    until(SOON, "its ports to be up", || {
        let ports = daemon.ask("port list --json").json();
        ports.as_array().unwrap().iter().take(2).all(|port| port["state"] == "up")
    });
    (left, right)
}

fn queues(daemon: &Daemon) -> Vec<Value> {
    let stats = daemon.ask("stats right --json").json();
    stats["ports"][0]["queues"].as_array().unwrap().clone()
}

/// Returns the number of the queue to which the port `right` maps code point `dscp`.
fn queue_of(daemon: &Daemon, dscp: u8) -> usize {
    let has = |queue: &Value| queue["dscps"].as_array().unwrap().iter().any(|d| *d == dscp);
    queues(daemon).iter().position(has).unwrap()
}

/// Returns the weight and the code points of each queue of the port `right`. The result has no code
/// points for queue 0, which the tenants without a code point share.
fn told(daemon: &Daemon) -> Vec<(u64, Value)> {
    let one = |(n, queue): (usize, &Value)| {
        let dscps = if n == 0 { Value::Null } else { queue["dscps"].clone() };
        (queue["weight"].as_u64().unwrap(), dscps)
    };
    queues(daemon).iter().enumerate().map(one).collect()
}

fn count(queue: &Value, key: &str) -> u64 {
    queue[key].as_u64().unwrap()
}

fn certificates(scratch: &TempDir, authority: &Authority) {
    let (certificate, key) = authority.sign("leaf.test");
    for (name, text) in [("ca.pem", authority.pem()), ("leaf.pem", certificate), ("leaf.key", key)]
    {
        fs::write(scratch.join(name), text).unwrap();
    }
}

/// Reads the number of the switch's last decision (its stamp) over the network, as a controller
/// with a certificate.
fn over_tls(daemon: &Daemon, authority: &Authority) -> String {
    let at = |name: &str| daemon.scratch.join(name);
    let (certificate, key) = authority.sign("controller");
    fs::write(at("me.pem"), certificate).unwrap();
    fs::write(at("me.key"), key).unwrap();
    let (ca, certificate, key) = (at("ca.pem"), at("me.pem"), at("me.key"));
    let tls = Tls { ca, certificate, key, server_name: "leaf.test".to_owned() };
    let rate = penstock_units::BitsPerSecond(1);
    let ports = ["left", "right", "third"].map(|name| PortInfo { name: name.to_owned(), rate });
    let address = Address::Tcp("127.0.0.1:7100".to_owned(), tls);
    let switch = PenstockSwitch::new("rack-0", &ports, 8, address).unwrap();
    let namespace = fs::File::open(format!("/proc/{}/ns/net", daemon.pid())).unwrap();
    let ask = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(switch.read_back()).unwrap().stamp.to_string()
    };
    std::thread::spawn(ask).join().unwrap()
}

/// Checks that weights divide the link while each flow could use the whole link. A sender that gets
/// no processor time for a while leaves its queue empty, and the other flow gets the link, as it
/// should. So a window counts only if frames of both flows wait at each reading, and the median of
/// the windows that count decides: what is wrong in the division itself is wrong in all of them.
fn divides(daemon: &Daemon, queues: [usize; 2]) {
    let mut off = Vec::new();
    until(2 * SOON, "windows in which both flows have frames that wait", || {
        off.extend(window(daemon, queues));
        off.len() == WINDOWS
    });
    off.sort_by(f64::total_cmp);
    assert!(off[WINDOWS / 2] < 0.02, "the parts differ from the weights by {off:?}");
}

/// Returns by which part the division of the link differs from the weights, or `None` if one of the
/// two queues was empty at a reading.
#[expect(clippy::cast_precision_loss, reason = "some millions")]
fn window(daemon: &Daemon, [one, other]: [usize; 2]) -> Option<f64> {
    let wait = |queues: &[Value]| {
        [one, other].iter().all(|queue| count(&queues[*queue], "backlog_frames") > 0)
    };
    let before = queues(daemon);
    let (mut grown, mut waited) = ([0; 2], wait(&before));
    until(SOON, "bytes to leave the queues", || {
        let after = queues(daemon);
        waited &= wait(&after);
        grown = [one, other].map(|q| count(&after[q], "bytes") - count(&before[q], "bytes"));
        !waited || grown.iter().sum::<u64>() >= 3_000_000
    });
    let weights = [one, other].map(|queue| count(&before[queue], "weight"));
    let (got, due) = (grown[0] as f64 / grown[1] as f64, weights[0] as f64 / weights[1] as f64);
    println!("weights {weights:?} gave {grown:?} bytes, {got:.3} where {due:.3} was due");
    waited.then_some((got / due - 1.0).abs())
}

#[test]
fn a_controller_divides_a_switch_of_ours_among_tenants() {
    if namespace_options() != Some(&["--net"]) {
        penstock_testing::skip("two namespaces and a switch between them need root");
        return;
    }
    let (scratch, authority) = (temp_dir(), Authority::new());
    certificates(&scratch, &authority);
    fs::write(scratch.join("host.toml"), support::configuration(&scratch, SWITCH)).unwrap();
    let Some(daemon) = Daemon::start_in(scratch) else { return };
    let (left, right) = plug(&daemon);
    let fabric = Fabric::start(&daemon.socket());
    fabric.add("web", "300M");
    fabric.add("mail", "100M");
    let [web, mail] = ["web", "mail"].map(|name| fabric.code_point(name));
    let (of_web, of_mail) = (queue_of(&daemon, web), queue_of(&daemon, mail));
    assert!(of_web != of_mail && of_web != 0 && of_mail != 0, "{:?}", told(&daemon));
    let flows = Flows::start(&left, &right, [(5_001, web), (5_002, mail)]);
    divides(&daemon, [of_web, of_mail]);

    // Another tenant starts and ends. No frame of the two tenants enters another queue at any time.
    let shared = || count(&queues(&daemon)[0], "frames");
    let (before, sent) = (shared(), count(&queues(&daemon)[of_web], "frames"));
    fabric.add("bulk", "50M");
    assert_ne!(queue_of(&daemon, fabric.code_point("bulk")), 0);
    assert!(fabric.controller.ask(&["tenant", "remove", "bulk"]).unwrap().0);
    until(SOON, "its queue to be free", || {
        told(&daemon).iter().flat_map(|(_, dscps)| dscps.as_array().cloned()).flatten().count() == 2
    });
    let in_shared = shared() - before;
    let passed = count(&queues(&daemon)[of_web], "frames") - sent;
    println!("{passed} frames of web while another came and went, {in_shared} in queue 0");
    assert!(passed > 500 && in_shared < 20, "{passed} and {in_shared}: ARP and the like");
    assert_eq!([web, mail].map(|dscp| queue_of(&daemon, dscp)), [of_web, of_mail]);
    drop(flows);

    // The switch reports its counters in three ways.
    let counters = fabric.controller.ask(&["switch-counters"]).unwrap().1;
    let counted = counters["rack-0"].as_array().unwrap();
    assert!(
        counted.iter().any(|q| q["port"] == "right"
            && q["queue"] == of_web
            && q["bytes"].as_u64() > Some(1_000_000)),
        "{counters}"
    );
    let stamp = daemon.ask("host show --json").json()["switch"]["told"].clone();
    assert_eq!(stamp, over_tls(&daemon, &authority));
    daemon.ask("stats --check").ok();

    // After a kill, the switch continues with its settings before a controller connects.
    until(SOON, "all to be up to date", || fabric.up_to_date());
    let was = told(&daemon);
    drop((left, right));
    let scratch = daemon.kill();
    let daemon = Daemon::start_in(scratch).unwrap();
    assert_eq!(told(&daemon), was);
    let (left, right) = plug(&daemon);
    let flows = Flows::start(&left, &right, [(5_001, web), (5_002, mail)]);
    divides(&daemon, [of_web, of_mail]);
    drop((flows, left, right));

    // With an empty disk, the controller configures the switch again.
    let scratch = daemon.kill();
    fs::remove_dir_all(scratch.join("state")).unwrap();
    let daemon = Daemon::start_in(scratch).unwrap();
    let begin = until(SOON, "it to be set up again", || told(&daemon) == was);
    println!("an empty switch was set up again after {begin:?}");
}
