//! A switch in the test's process, with one worker and vhost-user ports.
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::sync::Arc;
use std::time::Instant;

use penstock_dataplane::counters::{PortCounters, PortReading};
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::vhost_user::{SocketMode, VhostUser, VhostUserConfig};
use penstock_dataplane::port::{AttachState, AttachStatus};
use penstock_dataplane::snapshot::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::tsc;
use penstock_dataplane::worker::{WorkerConfig, WorkerHandle, Workers, spawn};
use penstock_guest::driver::{self, DriverConfig, VirtioNet, VnetHdr};
pub use penstock_testing::wait_until as wait;
use penstock_testing::{TempDir, patience, temp_dir};
use penstock_units::{MacAddr, Nanos, PortId, Vid, WorkerId};

#[derive(Clone)]
pub struct Port {
    pub mode: SocketMode,
    pub queue_pairs: u16,
    pub offloads: OffloadCaps,
    pub tenant: u16,
}

impl Default for Port {
    fn default() -> Self {
        Self { mode: SocketMode::Server, queue_pairs: 1, offloads: OffloadCaps::ALL, tenant: 1 }
    }
}

struct Attached {
    vhost: VhostUser,
    counters: Arc<PortCounters>,
    spec: Port,
}

pub struct Rig {
    dir: TempDir,
    pub worker: WorkerHandle,
    ports: Vec<Option<Attached>>,
    generation: u64,
    gone: PortReading,
}

impl Rig {
    pub fn start(ports: &[Port]) -> Self {
        Self::on_core(ports, None)
    }

    pub fn on_core(ports: &[Port], core: Option<u32>) -> Self {
        let worker = spawn(WorkerConfig {
            id: WorkerId(0),
            core,
            idle_backoff: if core.is_some() { Nanos::ZERO } else { Nanos::from_micros(50) },
            fdb_entries: 1024,
            seed: 1,
            tsc: tsc::calibrate(),
            max_ports: 16,
            ..WorkerConfig::default()
        })
        .unwrap();
        let mut rig = Self {
            dir: temp_dir(),
            worker,
            ports: Vec::new(),
            generation: 0,
            gone: PortReading::default(),
        };
        for (i, port) in ports.iter().enumerate() {
            rig.ports.push(None);
            rig.add(i, port);
        }
        rig
    }

    pub fn add(&mut self, i: usize, spec: &Port) {
        let config = VhostUserConfig {
            mode: spec.mode,
            queue_pairs: spec.queue_pairs,
            offloads: spec.offloads,
            ..VhostUserConfig::new(&format!("vm{i}"), self.dir.join(format!("{i}.sock")))
        };
        let id = PortId(u16::try_from(i).unwrap());
        let (mut vhost, queues) =
            VhostUser::start(config, id, Workers::from(self.worker.clone())).unwrap();
        let counters = Arc::new(PortCounters::default());
        self.worker.attach_port(id, queues, Arc::clone(&counters)).unwrap();
        vhost.serve().unwrap();
        self.ports[i] = Some(Attached { vhost, counters, spec: spec.clone() });
        self.swap();
    }

    pub fn remove(&mut self, i: usize) {
        let mut port = self.ports[i].take().unwrap();
        self.swap();
        port.vhost.stop();
        self.worker.detach_port(PortId(u16::try_from(i).unwrap())).unwrap();
        self.gone.merge(&port.counters.read());
    }

    /// Gives the worker a new configuration, in which every tenant has one untagged network with
    /// all ports of the tenant.
    fn swap(&mut self) {
        self.generation += 1;
        let mut domains: Vec<Domain> = Vec::new();
        let mut policies = Vec::new();
        for (i, port) in self.ports.iter().enumerate() {
            let Some(port) = port else {
                policies.push(None);
                continue;
            };
            let tenant = port.spec.tenant;
            let at = domains.iter().position(|d| d.tenant == Some(tenant)).unwrap_or_else(|| {
                let members = Box::new([]);
                domains.push(Domain { tenant: Some(tenant), vid: 0, members, fdb_limit: 1024 });
                domains.len() - 1
            });
            let id = u16::try_from(i).unwrap();
            domains[at].members = domains[at].members.iter().copied().chain([id]).collect();
            let domain = u16::try_from(at).unwrap();
            let policy = PortPolicy::access(id, Some(tenant), Vid::UNTAGGED, domain).finish();
            policies.push(Some(Arc::new(policy)));
        }
        let snapshot = Snapshot::new(self.generation, policies, domains, Vec::new(), 300);
        self.worker.swap_snapshot(Arc::new(snapshot)).unwrap();
    }

    fn port(&self, i: usize) -> &Attached {
        self.ports[i].as_ref().unwrap()
    }

    /// Returns the configuration for a driver on the other side of port `i`'s socket.
    pub fn driver(&self, i: usize) -> DriverConfig {
        let mut config = DriverConfig::new(self.dir.join(format!("{i}.sock")));
        config.mode = match self.port(i).spec.mode {
            SocketMode::Server => driver::SocketMode::Client,
            SocketMode::Client => driver::SocketMode::Server,
        };
        config
    }

    pub fn counters(&self, i: usize) -> PortReading {
        self.port(i).counters.read()
    }

    pub fn status(&self, i: usize) -> AttachStatus {
        self.port(i).vhost.status()
    }

    pub fn state(&self, i: usize) -> AttachState {
        self.status(i).state
    }

    pub fn queues_up(&self, i: usize) -> u16 {
        self.status(i).queues_up
    }

    pub fn wait_up(&self, n: usize) {
        self.wait_up_of(&(0..n).collect::<Vec<_>>());
    }

    pub fn wait_up_of(&self, ports: &[usize]) {
        let up = |i: &usize| self.status(*i).queues_up == self.port(*i).spec.queue_pairs;
        wait("the ports are up", || ports.iter().all(up));
    }

    pub fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        wait(what, || done(self));
    }

    /// Waits until each port's session has ended and the worker has released both directions of the
    /// port. The counter `queues_up` is not sufficient, because it is already zero when only one
    /// direction is released.
    pub fn wait_gone_of(&self, ports: &[usize]) {
        let gone = |i: &usize| matches!(self.state(*i), AttachState::Waiting | AttachState::Error);
        wait("the ports have let go", || ports.iter().all(gone));
    }

    /// Checks at a batch boundary that the worker's and the ports' counters add up.
    pub fn check(&self) {
        let readings = self.worker.checkpoint().unwrap();
        let (mut forwarded, mut delivered) = (self.gone.forwarded, self.gone.tx_frames);
        for (id, reading) in &readings {
            assert_eq!(reading.unaccounted(), 0, "port {id}: {reading:?}");
            forwarded += reading.forwarded;
            delivered += reading.tx_frames;
        }
        assert_eq!(forwarded, delivered);
    }
}

impl Rig {
    /// Prints the state and the counters of each port, to explain a failed test.
    fn tell(&self) {
        for (i, port) in self.ports.iter().enumerate() {
            let Some(port) = port else { continue };
            eprintln!("port {i}: {:?}\n  {:?}", port.vhost.status(), port.counters.read());
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        for port in self.ports.iter_mut().flatten() {
            port.vhost.stop();
        }
        let _ = self.worker.stop();
    }
}

/// Connects a prepared driver. The call retries until the switch accepts the connection.
pub fn attach(driver: &mut VirtioNet) {
    wait("the driver is connected", || driver.try_reconnect().unwrap().is_some());
}

pub fn mac(i: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, i])
}

/// Sends a broadcast from `mac`, which `other` receives. From the broadcast the switch learns the
/// port of `mac`.
pub fn announce(driver: &mut VirtioNet, mac: MacAddr, other: &mut VirtioNet) {
    send(driver, &VnetHdr::default(), &frame(mac, MacAddr::BROADCAST, 60, 0));
    receive(other, 1);
}

/// Builds a UDP frame of `len` bytes with a payload that depends on `n`.
pub fn frame(from: MacAddr, to: MacAddr, len: usize, n: u32) -> Vec<u8> {
    flow_frame(from, to, len, n, 7)
}

pub fn flow_frame(from: MacAddr, to: MacAddr, len: usize, n: u32, port: u16) -> Vec<u8> {
    let mut f = headers(from, to, len, 17);
    f.extend(port.to_be_bytes());
    f.extend([0, 9]);
    f.extend(u16::try_from(len - 34).unwrap().to_be_bytes());
    f.extend([0, 0]);
    let fill = (0..=250_u8).cycle().skip(n as usize % 251);
    f.extend(n.to_be_bytes().into_iter().chain(fill).take(len - 42));
    f
}

pub fn headers(from: MacAddr, to: MacAddr, len: usize, proto: u8) -> Vec<u8> {
    let mut f = [to.0, from.0].concat();
    f.extend([8, 0, 0x45, 0]);
    f.extend(u16::try_from(len - 14).unwrap().to_be_bytes());
    f.extend([0, 1, 0x40, 0, 64, proto, 0, 0, 10, 0, 0, from.0[5], 10, 0, 0, to.0[5]]);
    let sum = penstock_dataplane::finish::sum(&f[14..34], 0);
    let sum = penstock_dataplane::finish::checksum(sum);
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    f
}

/// Builds a large TCP segment with the virtio header that a guest's stack would send.
pub fn tcp_segment(from: MacAddr, to: MacAddr, payload: usize, mss: u16) -> (VnetHdr, Vec<u8>) {
    let mut f = headers(from, to, 54 + payload, 6);
    f.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 1, 0, 0, 0, 0]);
    let length = u64::try_from(20 + payload).unwrap();
    let pseudo = penstock_dataplane::finish::sum(&f[26..34], 6 + length);
    let pseudo = !penstock_dataplane::finish::checksum(pseudo);
    f[50..52].copy_from_slice(&pseudo.to_be_bytes());
    f.extend((0..=250_u8).cycle().take(payload));
    let header = VnetHdr {
        flags: 1,
        gso_type: 1,
        hdr_len: 54,
        gso_size: mss,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    (header, f)
}

pub fn send(driver: &mut VirtioNet, header: &VnetHdr, frame: &[u8]) {
    send_on(driver, 0, header, frame);
}

pub fn send_on(driver: &mut VirtioNet, queue: usize, header: &VnetHdr, frame: &[u8]) {
    let tx = &mut driver.pair(queue).tx;
    let mut slot = None;
    wait("a free slot", || {
        tx.reclaim(|_| ());
        slot = tx.take();
        slot.is_some()
    });
    let slot = slot.unwrap();
    tx.slot_mut(slot)[12..12 + frame.len()].copy_from_slice(frame);
    tx.push(slot, header, frame.len()).unwrap();
    tx.publish();
}

/// Returns all frames that have arrived at the driver.
pub fn drain(driver: &mut VirtioNet) -> Vec<(VnetHdr, Vec<u8>)> {
    drain_queue(driver, 0)
}

pub fn drain_queue(driver: &mut VirtioNet, queue: usize) -> Vec<(VnetHdr, Vec<u8>)> {
    let mut got = Vec::new();
    let rx = &mut driver.pair(queue).rx;
    rx.recv(256, |f| {
        let mut bytes = Vec::new();
        f.append_to(&mut bytes);
        got.push((f.hdr, bytes));
    });
    rx.publish();
    got
}

/// Waits until exactly `n` frames have arrived at the driver, and returns them.
pub fn receive(driver: &mut VirtioNet, n: usize) -> Vec<(VnetHdr, Vec<u8>)> {
    let mut got = Vec::new();
    let start = Instant::now();
    while got.len() < n {
        got.extend(drain(driver));
        let missing = n - got.len().min(n);
        assert!(start.elapsed() < patience(), "{missing} of {n} frames did not arrive");
        std::thread::yield_now();
    }
    assert_eq!(got.len(), n);
    got
}
