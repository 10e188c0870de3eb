//! A simulated fabric for the tests of the page. The fabric has two racks of servers, switches, a
//! controller that leads, agents that report, and the page. One switch of the simulated fabric has
//! a name that contains a script.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock_controller::Stamp;
use penstock_controller::agents::{Leading, Registry};
use penstock_controller::carry_out::{Crew, Interface, Switch};
use penstock_controller::fabric_state::Fabric;
use penstock_controller::intent::{ClassRecord, SpreadRecord, TenantSpec};
use penstock_controller::leader::Settings as LeaderSettings;
use penstock_controller::service::{Controller, Operator, Setup};
use penstock_controller::southbound::{Capabilities, PortInfo, SimSwitch, SwitchDriver};
use penstock_controller::store::{Embedded, Store};
use penstock_controller::wire::v1::operator_service_server::OperatorService as _;
use penstock_controller::wire::v1::{self, TomlText};
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{LinkSpec, NodeId, NodeSpec, Topology, TopologySpec};
use penstock_testing::{TempDir, temp_dir};
use penstock_units::{BitsPerSecond, Nanos};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Address of the controller that other controllers send to their agents.
pub const ADVERTISED: &str = "192.0.2.7:9750";
/// Name, number of VMs (one per server), guarantee of each VM in Mbit/s, and sending rate of each
/// VM in Mbit/s.
pub const TENANTS: [(&str, u32, u64, u64); 6] = [
    ("web", 10, 60, 55),
    ("search", 10, 40, 48),
    ("batch-analytics", 8, 80, 96),
    ("video", 8, 50, 21),
    ("backup", 6, 30, 4),
    ("idle", 1, 100, 0),
];
/// Name of a switch that would run as a script if the page treated the name as markup.
pub const HOSTILE: &str = "<script>document.title='owned'</script>";
/// Name of the server that disconnects from the controller during the test.
pub const AWAY: &str = "rack2-server5";
const QUEUES: u8 = 4;
const RATE: BitsPerSecond = BitsPerSecond(1_000_000_000);
const INTERVAL: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(30);

fn topology() -> Topology {
    let node = |name: &str, slots| NodeSpec { name: name.to_owned(), slots };
    let link = |child: &str, parent: &str| LinkSpec {
        child: child.to_owned(),
        parent: parent.to_owned(),
        rate: RATE,
    };
    let mut spec = TopologySpec::default();
    for (rack, name) in [(1, "rack-1"), (2, HOSTILE)] {
        spec.nodes.push(node(name, None));
        for server in 1..=5 {
            let server = format!("rack{rack}-server{server}");
            spec.nodes.push(node(&server, Some(10)));
            spec.links.push(link(&server, name));
        }
        for core in ["core-1", "core-2"] {
            spec.links.push(link(name, core));
        }
    }
    spec.nodes.extend([node("core-1", None), node("core-2", None)]);
    spec.build().unwrap()
}

fn fabric() -> Fabric {
    let settings = Settings {
        queues: QUEUES,
        hold: 0,
        drain: Nanos(1_000_000),
        ..Settings::new(Mode::PerPortMap)
    };
    let policy = Policy { queues: QUEUES.into(), ..Policy::default() };
    Fabric::new(topology(), 0, policy, settings).unwrap()
}

type Switches = BTreeMap<NodeId, Arc<SimSwitch>>;

fn switches() -> Switches {
    let topology = topology();
    let can = Capabilities::new(QUEUES, 8);
    let nodes = (1..topology.layers()).flat_map(|layer| topology.layer(layer));
    let switch = |node: NodeId| {
        let down = topology.down(node).map(|link| topology.child(link));
        let far = down.chain(topology.up(node).map(|link| topology.parent(link)));
        let port = |far| PortInfo { name: topology.name(far).to_string(), rate: RATE };
        let ports: Vec<PortInfo> = far.map(port).collect();
        (node, Arc::new(SimSwitch::new(topology.name(node), can.clone(), &ports)))
    };
    nodes.map(switch).collect()
}

fn crew(switches: &Switches, hosts: Arc<Registry>) -> Crew {
    let (topology, empty) = (topology(), fabric());
    let one = |(node, switch): (&NodeId, &Arc<SimSwitch>)| {
        let driver: Arc<dyn SwitchDriver> = Arc::<SimSwitch>::clone(switch);
        let port = |port: penstock_fabric::queue_binding::Port| {
            let far = if port.up { topology.parent(port.link) } else { topology.child(port.link) };
            (port, Interface { names: vec![topology.name(far).to_string()] })
        };
        let ports = empty.ports_of(*node).into_iter().map(port).collect();
        (*node, Switch { driver, ports, canary: false })
    };
    Crew::new(switches.iter().map(one).collect(), hosts, Duration::from_secs(1))
}

fn tenants() -> Vec<TenantSpec> {
    let tenant = |(name, vms, mbit, _): (&str, u32, u64, u64)| {
        let rate = mbit * 1_000_000;
        TenantSpec {
            name: name.to_owned(),
            classes: vec![ClassRecord { vms, send: rate, recv: rate }],
            spread: vec![SpreadRecord { layer: 0, most_vms: Some(1), least_domains: None }],
            ..TenantSpec::default()
        }
    };
    // The last tenant requires more than the fabric has.
    TENANTS.into_iter().chain([("science", 10, 900, 0)]).map(tenant).collect()
}

/// The running controller, agents and page of a test. Controller, agents and page run until this
/// value is stopped or dropped.
#[derive(Debug)]
pub struct World {
    pub address: SocketAddr,
    pub controller: Arc<Controller>,
    pub switches: Switches,
    store: Arc<dyn Store>,
    _folder: Option<TempDir>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl World {
    /// Starts the controller, the agents and the page, and waits until the controller leads with
    /// all tenants.
    pub async fn start() -> Self {
        let folder = temp_dir();
        let store = Embedded::open(&folder.join("controller.redb")).await.unwrap();
        let mut world = Self::with("one", Arc::new(store), switches());
        world._folder = Some(folder);
        let mut leading = world.controller.leading();
        let topology = topology();
        for server in topology.layer(0).map(|server| topology.name(server).to_string()) {
            let hosts = Arc::clone(world.controller.hosts());
            world.tasks.spawn(agent(hosts, server));
        }
        let operator =
            Operator::new(Arc::clone(&world.controller), Arc::new(|_, _, _| Ok(tenants())));
        let add = async {
            loop {
                drop(
                    leading.wait_for(|leading| matches!(leading, Leading::Here(_))).await.unwrap(),
                );
                match operator.add_tenants(tonic::Request::new(TomlText::default())).await {
                    Ok(added) => return added.into_inner().text,
                    // On a busy machine the lease may expire before the request. The controller
                    // then leads again.
                    Err(lost) => assert_eq!(lost.code(), tonic::Code::FailedPrecondition, "{lost}"),
                }
            }
        };
        let text = tokio::time::timeout(LIMIT, add).await.unwrap();
        assert!(text.contains("science"), "one is refused: {text}");
        // A tenant receives queues while all of its hosts are connected, and keeps them afterwards.
        let all_queues = u64::from(QUEUES) - 1;
        world.status(|status| status["with_queues"].as_u64() >= Some(all_queues)).await;
        let hosts = world.controller.hosts();
        let (number, _) = hosts.begin(AWAY, Stamp::default()).unwrap();
        hosts.end(AWAY, number);
        world
    }

    /// Starts a second controller that uses the same store and does not lead.
    pub async fn follower(&self) -> Self {
        Self::with("two", Arc::clone(&self.store), self.switches.clone())
    }

    fn with(name: &str, store: Arc<dyn Store>, switches: Switches) -> Self {
        let hosts = Arc::new(Registry::new(Box::new(topology())));
        let (of_crew, told) = (switches.clone(), Arc::clone(&hosts));
        let setup = Setup {
            name: name.to_owned(),
            advertise: ADVERTISED.to_owned(),
            interval: INTERVAL,
            leader: LeaderSettings { verify_every: 1, ..LeaderSettings::default() },
            store: Arc::clone(&store),
            hosts,
            make: Box::new(move || Ok((fabric(), crew(&of_crew, Arc::clone(&told))))),
        };
        let controller = Controller::new(setup);
        let (stop, stopping) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&controller).run(stopping.clone()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = super::serve(listener, Arc::clone(&controller), stopping);
        tasks.spawn(async move { served.await.unwrap() });
        Self { address, controller, switches, store, _folder: None, stop, tasks }
    }

    /// Waits until the controller has completed `more` further control intervals.
    pub async fn intervals(&self, more: u64) {
        let number = |status: &Value| status["last_interval"]["number"].as_u64();
        let until = number(&self.status(|_| true).await).unwrap() + more;
        self.status(|status| number(status) >= Some(until)).await;
    }

    /// Waits until the controller knows the leader.
    pub async fn follows(&self) -> Value {
        self.status(|status| status["leader"].as_str().is_some_and(|who| !who.is_empty())).await
    }

    async fn status(&self, until: impl Fn(&Value) -> bool) -> Value {
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        let wait = async {
            loop {
                looks.tick().await;
                let status = self.controller.view("status", "").await.unwrap();
                if until(&status) {
                    return status;
                }
            }
        };
        tokio::time::timeout(LIMIT, wait).await.unwrap()
    }

    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // Agents never end by themselves. The controller and the page must end.
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(5), ended).await;
        let address = self.address;
        assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the page ended");
    }
}

/// Simulates a host's agent: follows plans and reports traffic of tenants' VMs, until the agent's
/// session ends.
async fn agent(hosts: Arc<Registry>, host: String) {
    let (number, mut messages) = hosts.begin(&host, Stamp::default()).unwrap();
    let mut reports = tokio::time::interval(INTERVAL / 2);
    let (mut count, mut tenants): (u64, Vec<String>) = (0, Vec::new());
    loop {
        tokio::select! {
            message = messages.recv() => match message.and_then(|message| message.message) {
                Some(v1::controller_message::Message::Plan(plan)) => {
                    tenants = plan.tenants.iter().map(|tenant| tenant.name.clone()).collect();
                    let applied = v1::Applied { stamp: plan.stamp, ..v1::Applied::default() };
                    hosts.applied(&host, number, applied).unwrap();
                }
                Some(_) => {}
                None => return,
            },
            _ = reports.tick() => {
                count += 1;
                let used = tenants.iter().map(|name| usage(name, count)).collect();
                let report = v1::Report { number: count, millis: 100, tenants: used };
                hosts.report(&host, number, report).unwrap();
            }
        }
    }
}

/// Usage of a tenant's VM in 100 ms. The usage varies around the VM's rate, so that the graph shows
/// a change.
fn usage(name: &str, count: u64) -> v1::TenantUsage {
    let mbit = TENANTS.iter().find(|(tenant, ..)| *tenant == name).map_or(0, |(.., mbit)| *mbit);
    let wave = 80 + (count * 7 + mbit) % 41;
    let sent_bytes = mbit * 12_500 * wave / 100;
    let received_bytes = sent_bytes * 3 / 4;
    v1::TenantUsage { name: name.to_owned(), sent_bytes, received_bytes }
}
