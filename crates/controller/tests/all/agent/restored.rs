//! Tests a store that was restored from an older copy. A restored store starts with lower epochs
//! than the hosts have seen. An operator's command raises the store's epochs permanently.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use penstock_controller::agent::AgentSettings;
use penstock_controller::agents::{AgentServer, Identity, Limits, Registry, serve};
use penstock_controller::carry_out::Crew;
use penstock_controller::fabric_state::Fabric;
use penstock_controller::hosts::Hosts;
use penstock_controller::leader::{Settings as LeaderSettings, begin_observing};
use penstock_controller::service::{Controller, LEASE, Operator, Setup};
use penstock_controller::store::{Embedded, Store};
use penstock_controller::wire::v1::operator_service_server::OperatorService as _;
use penstock_controller::wire::v1::{RaiseEpochRequest, SetModeRequest};
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{Regular, Tier, Topology};
use penstock_testing::{TempDir, patience, temp_dir};
use penstock_units::BitsPerSecond;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::agent::bed::{FakeSide, REPORT_MILLIS, Running};
use crate::common::etcd::Cluster;

fn topology() -> Topology {
    let tiers = vec![Tier { fan_out: 3, uplinks: 1, rate: BitsPerSecond(1_000_000_000) }];
    Regular { slots: 10, tiers }.build().unwrap()
}

fn fabric() -> Fabric {
    let settings = Settings { queues: 4, ..Settings::new(Mode::StaticMap) };
    Fabric::new(topology(), 0, Policy { queues: 4, ..Policy::default() }, settings).unwrap()
}

/// Leading controller with a store and a port for agents.
struct Leader {
    controller: Arc<Controller>,
    registry: Arc<Registry>,
    endpoint: String,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Leader {
    async fn start(store: Arc<dyn Store>) -> Self {
        let registry = Arc::new(Registry::new(Box::new(topology())));
        let hosts = Arc::clone(&registry);
        let make = move || {
            let hosts = Arc::clone(&hosts) as Arc<dyn Hosts>;
            Ok((fabric(), Crew::new([].into(), hosts, Duration::from_secs(5))))
        };
        let controller = Controller::new(Setup {
            name: "one".to_owned(),
            advertise: String::new(),
            interval: Duration::from_millis(100),
            leader: LeaderSettings::default(),
            store,
            hosts: Arc::clone(&registry),
            make: Box::new(make),
        });
        let (stop, stopping) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&controller).run(stopping.clone()));
        let (known, leading) = (Arc::clone(&registry), controller.leading());
        let server = AgentServer::new(known, leading, Identity::Trusted, REPORT_MILLIS);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        tasks.spawn(async move {
            let mut stopping = stopping;
            let stop = async { drop(stopping.wait_for(|stop| *stop).await) };
            serve(listener, server, None, Limits::default(), stop).await.unwrap();
        });
        let leader = Self { controller, registry, endpoint, stop, tasks };
        leader.status("it leads", |status| status["leads"] == true).await;
        leader
    }

    async fn status(&self, what: &str, until: impl Fn(&Value) -> bool) -> Value {
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
        timeout(patience(), wait).await.unwrap_or_else(|_| panic!("in vain: {what}"))
    }

    async fn epoch(&self) -> u64 {
        self.status("any", |_| true).await["stamp"]["epoch"].as_u64().unwrap()
    }

    async fn raise(&self, at_least: u64) -> Result<Value, tonic::Status> {
        let read = Arc::new(|_: &str, _: &Topology, _: &[String]| Ok(Vec::new()));
        let operator = Operator::new(Arc::clone(&self.controller), read);
        let raised = operator.raise_epoch(tonic::Request::new(RaiseEpochRequest { at_least }));
        Ok(serde_json::from_str(&raised.await?.into_inner().text).unwrap())
    }

    async fn set_mode(&self, mode: &str) {
        let read = Arc::new(|_: &str, _: &Topology, _: &[String]| Ok(Vec::new()));
        let operator = Operator::new(Arc::clone(&self.controller), read);
        operator
            .set_mode(tonic::Request::new(SetModeRequest { mode: mode.to_owned() }))
            .await
            .unwrap();
    }

    async fn end(mut self) {
        self.stop.send_replace(true);
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        timeout(patience(), ended).await.expect("it ends");
    }
}

/// Starts an agent whose plan file remains after the agent has ended.
async fn agent(dir: &TempDir, leader: &Leader, side: &Arc<FakeSide>) -> Running {
    let plan = dir.join("server-0.plan");
    let mut settings = AgentSettings::new("server-0", vec![], None, &plan);
    settings.pause = (Duration::from_millis(5), Duration::from_millis(40));
    Running::start(settings, std::slice::from_ref(&leader.endpoint), side)
}

/// Waits until the agent has applied a plan of the epoch `epoch`.
async fn follows(agent: &mut Running, epoch: u64) {
    let applied = move |stamp: penstock_controller::Stamp| stamp.epoch == epoch;
    agent.until("follows", |state| state.applied.is_some_and(applied)).await;
}

/// Runs a leader for two terms after the store was copied, so the copy does not contain these
/// terms. Returns the epoch of the last term.
async fn terms(
    dir: &TempDir,
    side: &Arc<FakeSide>,
    store: impl AsyncFn() -> Arc<dyn Store>,
) -> u64 {
    let mut epoch = 0;
    for _ in 0..2 {
        let leader = Leader::start(store().await).await;
        epoch = leader.epoch().await;
        let mut agent = agent(dir, &leader, side).await;
        follows(&mut agent, epoch).await;
        agent.end().await;
        leader.end().await;
    }
    epoch
}

/// Checks that hosts follow the controller again after a restore. The leader uses the restored
/// older copy of the store, and `epoch` is the last epoch that the host has seen.
async fn recovers(
    dir: &TempDir,
    side: &Arc<FakeSide>,
    epoch: u64,
    store: impl AsyncFn() -> Arc<dyn Store>,
) {
    let restored = store().await;
    begin_observing(&*restored).await.unwrap();
    let leader = Leader::start(restored).await;
    let status = leader.status("any", |_| true).await;
    assert_eq!(status["mode"], "observe", "{status}");
    assert_eq!(status["stamp"]["generation"], 0, "nothing was decided: {status}");
    leader.set_mode("active").await;
    assert!(leader.epoch().await < epoch, "the copy is older");
    let mut host = agent(dir, &leader, side).await;
    // The host refuses the controller, and both sides report the remedy. The host's plan stays in
    // force.
    let remedy = format!("penstock controller epoch --at-least {}", epoch + 1);
    let told = |error: &String| error.contains(&remedy);
    let state = host.until("told", |state| state.last_error.as_ref().is_some_and(told)).await;
    assert_eq!((state.counts.sessions, state.told.epoch), (0, epoch));
    let status = leader.status("known", |status| !status["later"].is_null()).await;
    let later = &status["later"];
    assert_eq!((later["hosts"].as_u64(), later["host"].as_str()), (Some(1), Some("server-0")));
    assert_eq!(later["at_least"].as_u64(), Some(epoch + 1));

    let absurd = leader.raise(u64::MAX).await.unwrap_err();
    assert_eq!(absurd.code(), tonic::Code::InvalidArgument, "{absurd}");
    assert!(leader.registry.later().contains_key("server-0"));
    let raised = leader.raise(epoch + 1).await.unwrap();
    assert_eq!(raised["epoch"].as_u64(), Some(epoch + 1));
    follows(&mut host, epoch + 1).await;
    assert!(leader.registry.later().is_empty());
    // A lower number changes nothing and ends no session.
    let sessions = leader.registry.counts().sessions;
    assert_eq!(leader.raise(3).await.unwrap()["epoch"].as_u64(), Some(epoch + 1));
    assert_eq!(leader.registry.counts().sessions, sessions);
    host.end().await;
    leader.end().await;

    // The offset survives the leader.
    let leader = Leader::start(store().await).await;
    let next = leader.epoch().await;
    assert!(next > epoch + 1, "{next}");
    let mut host = agent(dir, &leader, side).await;
    follows(&mut host, next).await;
    host.end().await;
    leader.end().await;
}

#[tokio::test]
async fn a_store_restored_from_a_file_is_believed_after_the_command() {
    let (dir, side) = (temp_dir(), Arc::new(FakeSide::default()));
    let (path, copy) = (dir.join("store.redb"), dir.join("copy.redb"));
    let store = async || Arc::new(Embedded::open(&path).await.unwrap()) as Arc<dyn Store>;
    terms(&dir, &side, store).await;
    std::fs::copy(&path, &copy).unwrap();
    let epoch = terms(&dir, &side, store).await;
    std::fs::copy(&copy, &path).unwrap();
    recovers(&dir, &side, epoch, store).await;
}

#[tokio::test]
async fn an_etcd_restored_from_a_copy_is_believed_after_the_command() {
    let Some(mut cluster) = Cluster::start().await else { return };
    let (dir, side) = (temp_dir(), Arc::new(FakeSide::default()));
    let open = |cluster: &Cluster| {
        let store = Arc::new(cluster.store(Duration::from_secs(5))) as Arc<dyn Store>;
        async move || Arc::clone(&store)
    };
    terms(&dir, &side, open(&cluster)).await;
    cluster.save("copy").await;
    let epoch = terms(&dir, &side, open(&cluster)).await;
    cluster.restore("copy").await;
    recovers(&dir, &side, epoch, open(&cluster)).await;
}

/// A controller revokes its lease when it stops, so the next controller need not wait for the end
/// of the lease.
#[tokio::test]
async fn a_leader_that_was_told_to_end_is_followed_at_once() {
    let Some(cluster) = Cluster::start().await else { return };
    let store = || Arc::new(cluster.store(Duration::from_secs(5))) as Arc<dyn Store>;
    Leader::start(store()).await.end().await;
    let ended = Instant::now();
    Leader::start(store()).await.end().await;
    let took = ended.elapsed();
    assert!(took < LEASE / 2, "{took:?} of the {LEASE:?} of a lease");
}
