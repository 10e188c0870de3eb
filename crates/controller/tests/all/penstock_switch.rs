//! Tests the driver `penstock` with the daemon's service, over a Unix socket and over mutual TLS.
//! The data path of the daemon is simulated in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use penstock_controller::Stamp;
use penstock_controller::agent::SideError;
use penstock_controller::agents::{PemFiles, ServerTls};
use penstock_controller::southbound::penstock::{Address, PenstockSwitch, Tls};
use penstock_controller::southbound::{
    Change, DriverError, PortInfo, PortState, QueueCounters, SwitchDriver as _, SwitchState, diff,
    survey,
};
use penstock_controller::switch::wire::v1;
use penstock_controller::switch::wire::v1::switch_service_server::{
    SwitchService, SwitchServiceServer,
};
use penstock_controller::switch::{
    FabricSwitch, PortReading, SwitchServer, SwitchSide, Who, serve,
};
use penstock_testing::{TempDir, temp_dir};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::common::authority::Authority;

/// Simulated data path with two ports of eight queues.
#[derive(Debug, Default)]
struct FakeSide {
    ports: Mutex<BTreeMap<String, PortState>>,
    /// Number of times that the switch has read its data path.
    reads: AtomicU32,
    applied: Mutex<u32>,
    fails: Mutex<bool>,
}

#[async_trait]
impl SwitchSide for FakeSide {
    async fn read(&self) -> Result<BTreeMap<String, PortReading>, SideError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let ports = self.ports.lock().unwrap();
        let one = |name: &str| {
            let told = ports.get(name).cloned().unwrap_or_default();
            // As in the real data path, every queue has a weight of at least 1.
            let weight = |queue| told.weights.get(queue).copied().unwrap_or(0).max(1);
            let state = PortState { weights: (0..8).map(weight).collect(), map: told.map };
            let counter = |queue| QueueCounters {
                port: name.to_owned(),
                queue,
                packets: 3 + u64::from(queue),
                bytes: 300,
                dropped: 1,
                waiting: Some(u64::from(queue)),
            };
            let reading = PortReading { queues: 8, state, counters: (0..8).map(counter).collect() };
            (name.to_owned(), reading)
        };
        Ok(["e0", "e1"].map(one).into())
    }

    async fn apply(&self, ports: &BTreeMap<String, PortState>) -> Result<(), SideError> {
        if *self.fails.lock().unwrap() {
            return Err(SideError("the worker has ended".to_owned()));
        }
        *self.ports.lock().unwrap() = ports.clone();
        *self.applied.lock().unwrap() += 1;
        Ok(())
    }
}

/// Switch that serves controllers. Dropping the [`Bed`] stops the switch.
struct Bed {
    dir: TempDir,
    side: Arc<FakeSide>,
    switch: Arc<FabricSwitch>,
    task: JoinHandle<()>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn ports() -> [PortInfo; 2] {
    let rate = penstock_units::BitsPerSecond(1_000_000_000);
    ["e0", "e1"].map(|name| PortInfo { name: name.to_owned(), rate })
}

fn stamp(epoch: u64, generation: u64) -> Stamp {
    Stamp { epoch, generation }
}

fn changes() -> Vec<Change> {
    let map = |port: &str| Change::Map { port: port.into(), dscp: 8, queue: 1 };
    let weights = vec![0, 30];
    vec![map("e0"), map("e1"), Change::Weigh { port: "e1".into(), weights }]
}

impl Bed {
    async fn start(dir: TempDir) -> Self {
        let side = Arc::new(FakeSide::default());
        let plan = dir.join("plan");
        let switch = FabricSwitch::new("leaf1", &plan, Arc::clone(&side) as Arc<dyn SwitchSide>);
        switch.take_up().await.unwrap();
        let switch = Arc::new(switch);
        let _ = std::fs::remove_file(dir.join("socket"));
        let listener = UnixListener::bind(dir.join("socket")).unwrap();
        let server = SwitchServer::new(Arc::clone(&switch), Who::Connected);
        let server = Server::builder().add_service(SwitchServiceServer::new(server));
        let serving = server.serve_with_incoming(UnixListenerStream::new(listener));
        let task = tokio::spawn(async { serving.await.unwrap() });
        Self { dir, side, switch, task }
    }

    /// Restarts the switch with the files of its previous run.
    async fn restart(mut self) -> Self {
        self.task.abort();
        let dir = std::mem::replace(&mut self.dir, temp_dir());
        Self::start(dir).await
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    fn driver(&self) -> PenstockSwitch {
        PenstockSwitch::new("leaf1", &ports(), 8, Address::Socket(self.socket())).unwrap()
    }

    fn applied(&self) -> u32 {
        *self.side.applied.lock().unwrap()
    }
}

/// Process of a switch, which has a runtime of its own. The switch does not take up a saved state.
struct SwitchProcess {
    runtime: Option<Runtime>,
    switch: Arc<FabricSwitch>,
    /// Number of connections that controllers have made.
    connections: Arc<AtomicU32>,
}

impl SwitchProcess {
    fn start(dir: &Path) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let side: Arc<dyn SwitchSide> = Arc::new(FakeSide::default());
        let switch = Arc::new(FabricSwitch::new("leaf1", &dir.join("plan"), side));
        let server = SwitchServer::new(Arc::clone(&switch), Who::Connected);
        let server = Server::builder().add_service(SwitchServiceServer::new(server));
        let connections = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&connections);
        let _ = std::fs::remove_file(dir.join("socket"));
        let inside = runtime.enter();
        let listener = UnixListener::bind(dir.join("socket")).unwrap();
        drop(inside);
        let incoming = UnixListenerStream::new(listener).map(move |connection| {
            counted.fetch_add(1, Ordering::Relaxed);
            connection
        });
        runtime.spawn(async { server.serve_with_incoming(incoming).await.unwrap() });
        Self { runtime: Some(runtime), switch, connections }
    }

    fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Ends the process without notice to its clients, and waits until all connections are closed.
    fn kill(mut self) {
        let runtime = self.runtime.take();
        // A runtime must not end inside another runtime.
        std::thread::spawn(move || drop(runtime)).join().unwrap();
    }
}

impl Drop for SwitchProcess {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tokio::test]
async fn a_driver_keeps_its_connection_until_the_switch_restarts() {
    let dir = temp_dir();
    let address = Address::Socket(dir.join("socket"));
    let driver = PenstockSwitch::new("leaf1", &ports(), 8, address).unwrap();
    let process = SwitchProcess::start(&dir);
    let run = driver.run_id().await.unwrap();
    assert_eq!(run.as_deref(), Some(process.switch.run()));
    driver.apply(stamp(1, 1), &changes()).await.unwrap();
    assert_eq!(driver.counters().await.unwrap().len(), 16);
    assert_eq!(driver.run_id().await.unwrap(), run);
    assert_eq!(process.connections(), 1);

    // The first request after a restart succeeds.
    process.kill();
    let process = SwitchProcess::start(&dir);
    assert_eq!(driver.run_id().await.unwrap().as_deref(), Some(process.switch.run()));
    assert_eq!(driver.read_back().await.unwrap().stamp, Stamp::default());
    assert_eq!(process.connections(), 1);

    process.kill();
    let error = driver.read_back().await.unwrap_err();
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("/socket: "), "{error}");
    let process = SwitchProcess::start(&dir);
    assert_eq!(driver.run_id().await.unwrap().as_deref(), Some(process.switch.run()));

    // A request that the switch refuses ends its connection.
    let unknown = Change::Unmap { port: "e9".into(), dscp: 8 };
    driver.apply(stamp(2, 1), &[unknown]).await.unwrap_err();
    driver.read_back().await.unwrap();
    assert_eq!(process.connections(), 2);
}

#[tokio::test]
async fn a_question_for_the_run_does_not_read_the_data_path() {
    let bed = Bed::start(temp_dir()).await;
    let reads = || bed.side.reads.load(Ordering::Relaxed);
    let (driver, before) = (bed.driver(), reads());
    assert_eq!(driver.run_id().await.unwrap().as_deref(), Some(bed.switch.run()));
    assert_eq!(reads(), before);
    driver.read_back().await.unwrap();
    assert_eq!(reads(), before + 1);
}

/// Service of a daemon of an earlier release, which always answers with the whole state.
struct Earlier(SwitchServer);

#[async_trait]
impl SwitchService for Earlier {
    async fn get_state(
        &self,
        mut request: Request<v1::GetStateRequest>,
    ) -> Result<Response<v1::State>, Status> {
        request.get_mut().run_only = false;
        self.0.get_state(request).await
    }

    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<v1::Applied>, Status> {
        self.0.apply(request).await
    }

    async fn get_counters(
        &self,
        request: Request<v1::GetCountersRequest>,
    ) -> Result<Response<v1::Counters>, Status> {
        self.0.get_counters(request).await
    }
}

#[tokio::test]
async fn a_daemon_of_an_earlier_release_also_tells_its_run() {
    let bed = Bed::start(temp_dir()).await;
    let socket = bed.dir.join("earlier");
    let listener = UnixListener::bind(&socket).unwrap();
    let earlier = Earlier(SwitchServer::new(Arc::clone(&bed.switch), Who::Connected));
    let server = Server::builder().add_service(SwitchServiceServer::new(earlier));
    let serving = server.serve_with_incoming(UnixListenerStream::new(listener));
    let serving = tokio::spawn(async { serving.await.unwrap() });
    let driver = PenstockSwitch::new("leaf1", &ports(), 8, Address::Socket(socket)).unwrap();
    assert_eq!(driver.run_id().await.unwrap().as_deref(), Some(bed.switch.run()));
    serving.abort();
}

#[tokio::test]
async fn changes_are_read_back_and_idempotent_and_late_ones_refused() {
    let bed = Bed::start(temp_dir()).await;
    let can = bed.driver().capabilities().await.unwrap();
    assert_eq!(
        (can.queues, can.weights, can.remap, can.map_per_port),
        (8, (1, 10_000), true, true)
    );
    let fresh = bed.driver().read_back().await.unwrap();
    assert_eq!((fresh.stamp, &fresh.ports["e0"]), (Stamp::default(), &PortState::default()));
    let words = bed.driver().words(&changes()).await.unwrap();
    assert_eq!(words[1], "port e1: wfq = { weights = [1, 30], map = { 8 = 1 } }");
    assert_eq!((words.len(), bed.applied()), (2, 0), "nothing was done");

    bed.driver().apply(stamp(3, 1), &changes()).await.unwrap();
    let is = bed.driver().read_back().await.unwrap();
    let state = |weights: &[u32]| PortState { weights: weights.into(), map: [(8, 1)].into() };
    assert_eq!(
        (is.stamp, &is.ports["e0"], &is.ports["e1"]),
        (stamp(3, 1), &state(&[]), &state(&[0, 30]))
    );
    bed.driver().apply(stamp(3, 1), &changes()).await.unwrap();
    assert_eq!(bed.applied(), 1, "all of it at once, and only once");

    let late = bed.driver().apply(stamp(2, 99), &[]).await;
    let (has, told) = (stamp(3, 1), stamp(2, 99));
    assert_eq!(late, Err(DriverError::Fenced { switch: "leaf1".into(), has, told }));
    assert_eq!(bed.switch.status().borrow().late, 1);

    let mut wanted = is.clone();
    wanted.ports.insert("e0".into(), PortState { weights: vec![5, 5], map: [(9, 7)].into() });
    bed.driver().apply(stamp(3, 2), &diff(&is, &wanted)).await.unwrap();
    assert_eq!(bed.driver().read_back().await.unwrap().ports, wanted.ports);
    let counters = bed.driver().counters().await.unwrap();
    assert_eq!((counters.len(), counters[9].queue, counters[9].packets), (16, 1, 4));
    assert_eq!(counters[9].waiting, Some(1));
}

#[tokio::test]
async fn it_is_in_force_again_after_a_restart_and_so_is_its_stamp() {
    let bed = Bed::start(temp_dir()).await;
    bed.driver().apply(stamp(3, 1), &changes()).await.unwrap();
    let told = bed.driver().read_back().await.unwrap();
    let run = bed.driver().run_id().await.unwrap();
    assert!(run.is_some() && bed.driver().run_id().await.unwrap() == run);
    let bed = bed.restart().await;
    assert_ne!(bed.driver().run_id().await.unwrap(), run);
    assert_eq!(bed.driver().read_back().await.unwrap(), told);
    let late = bed.driver().apply(stamp(2, 1), &[]).await;
    assert!(matches!(late, Err(DriverError::Fenced { .. })), "{late:?}");
    // The difference between the data path and the intended state restores the missing state.
    bed.side.ports.lock().unwrap().clear();
    let is = bed.driver().read_back().await.unwrap();
    assert_eq!(is.ports["e1"], PortState { weights: vec![0, 1], map: [].into() });
    bed.driver().apply(stamp(3, 1), &diff(&is, &told)).await.unwrap();
    assert_eq!(bed.driver().read_back().await.unwrap(), told);
}

#[tokio::test]
async fn a_state_that_cannot_be_stored_is_in_force_and_its_stamp_survives_a_restart() {
    let bed = Bed::start(temp_dir()).await;
    bed.driver().apply(stamp(3, 1), &changes()).await.unwrap();
    std::fs::create_dir(bed.dir.join("plan.new")).unwrap();
    let unmap = [Change::Unmap { port: "e0".into(), dscp: 8 }];
    bed.driver().apply(stamp(4, 1), &unmap).await.unwrap();
    assert!(bed.switch.status().borrow().unkept);
    assert!(bed.driver().read_back().await.unwrap().ports["e0"].map.is_empty());
    let bed = bed.restart().await;
    let is = bed.driver().read_back().await.unwrap();
    assert_eq!((is.stamp, &is.ports["e1"]), (stamp(4, 1), &PortState::default()));
    let late = bed.driver().apply(stamp(3, 9), &[]).await;
    assert!(matches!(late, Err(DriverError::Fenced { .. })), "{late:?}");
}

#[tokio::test]
async fn impossible_or_failed_changes_have_no_effect_and_are_reported() {
    let bed = Bed::start(temp_dir()).await;
    bed.driver().apply(stamp(1, 1), &changes()).await.unwrap();
    let before = bed.driver().read_back().await.unwrap();
    let map = |port: &str, dscp, queue| Change::Map { port: port.into(), dscp, queue };
    for (change, why) in [
        (map("e9", 8, 1), "port e9"),
        (map("e0", 8, 8), "queues 0 to 7"),
        (map("e0", 0, 1), "code points 1 to 63"),
        (Change::Weigh { port: "e0".into(), weights: vec![1, 10_001] }, "weights from 1 to 10000"),
    ] {
        let told = [map("e0", 30, 3), change];
        let error = bed.driver().apply(stamp(1, 2), &told).await.unwrap_err();
        assert!(matches!(error, DriverError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(bed.driver().read_back().await.unwrap(), before);
    }
    *bed.side.fails.lock().unwrap() = true;
    let error = bed.driver().apply(stamp(1, 3), &[map("e0", 30, 3)]).await.unwrap_err();
    assert!(error.to_string().contains("the worker has ended"), "{error}");
    assert_eq!(bed.driver().read_back().await.unwrap(), before);

    let other = PenstockSwitch::new("leaf2", &ports(), 8, Address::Socket(bed.socket())).unwrap();
    let error = other.read_back().await.unwrap_err().to_string();
    assert!(error.contains("this is switch leaf1, not leaf2"), "{error}");
    let nobody = Address::Socket(bed.dir.join("nobody"));
    let error = PenstockSwitch::new("leaf1", &ports(), 8, nobody).unwrap().read_back().await;
    assert!(matches!(error, Err(DriverError::Unreachable { .. })), "{error:?}");
}

#[tokio::test]
async fn a_port_that_the_daemon_lacks_is_left_out_and_the_others_are_not() {
    let bed = Bed::start(temp_dir()).await;
    let rate = penstock_units::BitsPerSecond(1_000_000_000);
    let more = ["e0", "e7"].map(|name| PortInfo { name: name.to_owned(), rate });
    let more = PenstockSwitch::new("leaf1", &more, 8, Address::Socket(bed.socket())).unwrap();
    let is = more.read_back().await.unwrap();
    assert_eq!(is.ports.keys().collect::<Vec<_>>(), ["e0"]);
    let why = &is.left_out["e7"];
    assert!(why.contains("leaf1 has no port e7") && why.contains("egress = \"wfq\""), "{why}");
    let weights = PortState { weights: vec![1, 7], map: [(8, 1)].into() };
    let ports = [("e0".to_owned(), weights.clone()), ("e7".to_owned(), weights.clone())].into();
    let wanted = SwitchState { ports, ..SwitchState::default() };
    let changes = survey(&more, &wanted).await.unwrap().changes;
    more.apply(stamp(1, 1), &changes).await.unwrap();
    assert_eq!(more.read_back().await.unwrap().ports["e0"], weights);
    assert_eq!(survey(&more, &wanted).await.unwrap().changes, []);
}

#[tokio::test]
async fn of_two_controllers_at_once_the_later_prevails() {
    let bed = Bed::start(temp_dir()).await;
    let weigh = |weight| [Change::Weigh { port: "e0".into(), weights: vec![1, weight] }];
    let tell = |generation, weight| {
        let driver = bed.driver();
        async move { driver.apply(stamp(7, generation), &weigh(weight)).await }
    };
    for round in 0..20 {
        let (old, new) = (2 * round + 1, 2 * round + 2);
        let (first, second) = tokio::join!(tell(old, 3), tell(new, 4));
        assert_eq!(second, Ok(()));
        assert!(matches!(first, Ok(()) | Err(DriverError::Fenced { .. })), "{first:?}");
        let is = bed.driver().read_back().await.unwrap();
        assert_eq!((is.stamp, &is.ports["e0"].weights[..]), (stamp(7, new), &[1, 4][..]));
    }
}

#[tokio::test]
async fn over_the_network_only_who_is_named_is_heard() {
    let bed = Bed::start(temp_dir()).await;
    let authority = Authority::new();
    let file = |name: &str, text: &str| {
        let path = bed.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = authority.sign("leaf1.test");
    let ca = file("ca.pem", &authority.pem());
    let files = PemFiles {
        ca: ca.clone(),
        certificate: file("leaf.pem", &certificate),
        key: file("leaf.key", &key),
        crl: None,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let who = Who::Named(["controller".to_owned()].into());
    let server = SwitchServer::new(Arc::clone(&bed.switch), who);
    let tls = ServerTls::open(files).unwrap();
    let serving = tokio::spawn(serve(listener, server, tls, std::future::pending()));
    let driver = |by: &Authority, named: &str, server_name: &str| {
        let (certificate, key) = by.sign(named);
        let tls = Tls {
            ca: ca.clone(),
            certificate: file("me.pem", &certificate),
            key: file("me.key", &key),
            server_name: server_name.to_owned(),
        };
        let address = Address::Tcp(format!("localhost:{port}"), tls);
        PenstockSwitch::new("leaf1", &ports(), 8, address).unwrap()
    };
    let controller = driver(&authority, "controller", "leaf1.test");
    controller.apply(stamp(1, 1), &changes()).await.unwrap();
    assert_eq!(controller.read_back().await.unwrap().stamp, stamp(1, 1));
    let host = driver(&authority, "server-0", "leaf1.test");
    let error = host.apply(stamp(9, 9), &[]).await.unwrap_err();
    assert!(matches!(error, DriverError::Refused { .. }), "{error}");
    let why = "server-0; controllers of this switch are controller";
    assert!(error.to_string().contains(why), "{error}");
    // Both drivers read the same files, which are for server-0 by now.
    let error = controller.read_back().await.unwrap_err();
    assert!(error.to_string().contains(why), "a connection with former files: {error}");
    let impostor = driver(&Authority::new(), "controller", "leaf1.test");
    let error = impostor.read_back().await.unwrap_err();
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
    let elsewhere = driver(&authority, "controller", "leaf2.test");
    let error = elsewhere.read_back().await.unwrap_err();
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
    assert_eq!(bed.driver().read_back().await.unwrap().stamp, stamp(1, 1));
    serving.abort();
}
