//! Runs controllers on loopback with certificates, and agents with a simulated switch.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use penstock_controller::Stamp;
use penstock_controller::agent::{
    Agent, AgentSettings, AgentState, AgentTls, Carried, HostSide, SideError,
};
use penstock_controller::agents::{
    AgentCounts, AgentServer, Identity, Known, Leading, Limits, Registry, ServerTls, serve,
};
use penstock_controller::hosts::{HostPlan, HostTenant};
use penstock_testing::{TempDir, patience, temp_dir};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use crate::common::authority::Authority;

/// Time between two reports of an agent in these tests, in milliseconds.
pub const REPORT_MILLIS: u64 = 20;
/// DNS name in the certificates of all controllers in these tests.
pub const CONTROLLER: &str = "controller.test";

#[derive(Debug)]
struct Three;

impl Known for Three {
    fn is_host(&self, name: &str) -> bool {
        ["server-0", "server-1", "server-2"].contains(&name)
    }

    fn count(&self) -> usize {
        3
    }
}

/// Directory and CA of a test.
pub struct Bed {
    pub dir: TempDir,
    pub authority: Authority,
}

impl Bed {
    pub fn new() -> Self {
        Self { dir: temp_dir(), authority: Authority::new() }
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns settings for the agent of `host`. The agent's certificate has the name `named` and
    /// is signed by the CA `by`.
    pub fn settings(&self, host: &str, by: &Authority, named: &str) -> AgentSettings {
        let (certificate, key) = by.sign(named);
        let tls = AgentTls {
            ca: self.file("ca.pem", &self.authority.pem()),
            certificate: self.file(&format!("{host}.pem"), &certificate),
            key: self.file(&format!("{host}.key"), &key),
            crl: None,
            server_name: CONTROLLER.to_owned(),
        };
        let plan = self.dir.join(format!("{host}.plan"));
        let mut settings = AgentSettings::new(host, vec![], Some(tls), &plan);
        settings.pause = (Duration::from_millis(5), Duration::from_millis(40));
        settings.interval = Duration::from_millis(REPORT_MILLIS);
        settings.connect_limit = Duration::from_secs(10);
        settings
    }

    /// Starts a controller at the address `at`. If `at` is `None`, the controller listens on an
    /// unused TCP port.
    pub async fn controller(&self, at: Option<SocketAddr>, leading: Leading) -> Controller {
        self.controller_with(at, leading, Limits::default()).await
    }

    pub async fn controller_with(
        &self,
        at: Option<SocketAddr>,
        leading: Leading,
        limits: Limits,
    ) -> Controller {
        let (certificate, key) = self.authority.sign(CONTROLLER);
        let ca = self.authority.pem();
        let tls = ServerTls::new(ca.as_bytes(), certificate.as_bytes(), key.as_bytes()).unwrap();
        Self::serve(at, leading, limits, tls).await
    }

    /// Starts a leading controller with the certificates `tls`.
    pub async fn controller_by(&self, tls: ServerTls) -> Controller {
        Self::serve(None, leads(), Limits::default(), tls).await
    }

    async fn serve(
        at: Option<SocketAddr>,
        leading: Leading,
        limits: Limits,
        tls: ServerTls,
    ) -> Controller {
        let at = at.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let registry = Arc::new(Registry::new(Box::new(Three)));
        let (leading, leads) = watch::channel(leading);
        let server =
            AgentServer::new(Arc::clone(&registry), leads, Identity::Certificate, REPORT_MILLIS);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            serve(listener, server, Some(tls), limits, stop).await.unwrap();
        });
        Controller { registry, leading, address, stop: Some(stop), task }
    }
}

/// Returns the leadership of a controller that leads from the start.
pub fn leads() -> Leading {
    Leading::Here(Stamp { epoch: 1, generation: 0 })
}

/// Running controller of a test, with its address and counters.
pub struct Controller {
    pub registry: Arc<Registry>,
    pub leading: watch::Sender<Leading>,
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Controller {
    pub fn endpoint(&self) -> String {
        format!("localhost:{}", self.address.port())
    }

    /// Waits until the controller's counters satisfy the condition `so`.
    pub async fn counts(&self, what: &str, so: impl Fn(&AgentCounts) -> bool) -> AgentCounts {
        let mut counts = self.registry.watch_counts();
        let reached = timeout(patience(), counts.wait_for(|counts| so(counts))).await;
        let reached = reached.map(|counts| *counts.unwrap());
        reached.unwrap_or_else(|_| panic!("{what}: {:?}", self.registry.counts()))
    }

    pub async fn end(mut self) {
        drop(self.stop.take());
        timeout(patience(), self.task).await.expect("it ends").unwrap();
    }
}

/// Simulated switch of a host, in memory.
#[derive(Debug, Default)]
pub struct FakeSide {
    pub counters: Mutex<BTreeMap<String, Carried>>,
    pub plans: Mutex<Vec<HostPlan>>,
    pub fails: Mutex<Option<String>>,
}

impl FakeSide {
    pub fn stamps(&self) -> Vec<Stamp> {
        self.plans.lock().unwrap().iter().map(|plan| plan.stamp).collect()
    }
}

#[async_trait]
impl HostSide for FakeSide {
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError> {
        let mut counters = self.counters.lock().unwrap();
        counters.values_mut().for_each(|carried| carried.sent += 1_000);
        Ok(counters.clone())
    }

    async fn apply(&self, plan: &HostPlan) -> Result<(), SideError> {
        if let Some(problem) = self.fails.lock().unwrap().clone() {
            return Err(SideError(problem));
        }
        self.plans.lock().unwrap().push(plan.clone());
        Ok(())
    }
}

/// Running agent of a test, with its state.
pub struct Running {
    pub state: watch::Receiver<AgentState>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(settings: AgentSettings, to: &[String], side: &Arc<FakeSide>) -> Self {
        let settings = AgentSettings { endpoints: to.to_vec(), ..settings };
        let agent = Agent::new(settings, Arc::clone(side) as Arc<dyn HostSide>).unwrap();
        let state = agent.state();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(agent.run(async { drop(stopped.await) }));
        Self { state, stop, task }
    }

    /// Waits until the agent's state satisfies the condition `so`.
    pub async fn until(&mut self, what: &str, so: impl Fn(&AgentState) -> bool) -> AgentState {
        let reached = timeout(patience(), self.state.wait_for(|state| so(state))).await;
        let reached = reached.map(|state| state.unwrap().clone());
        reached.unwrap_or_else(|_| panic!("{what}: {:?}", self.state.borrow()))
    }

    pub async fn end(self) {
        drop(self.stop);
        timeout(patience(), self.task).await.expect("it ends").unwrap();
    }
}

/// Returns a plan with one tenant.
pub fn plan(epoch: u64, generation: u64, dscp: u8) -> HostPlan {
    let tenant =
        HostTenant { name: "a".into(), dscp, vms: 1, send: 1, recv: 1, ..HostTenant::default() };
    let stamp = Stamp { epoch, generation };
    HostPlan { stamp, tenants: vec![tenant], uplinks: BTreeMap::new() }
}
