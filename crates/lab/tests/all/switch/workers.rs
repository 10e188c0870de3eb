//! Tests with two workers, each in its own thread. The workers exchange frames between their
//! vhost-user ports while ports move from one worker to the other.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::port::vhost_user::{VhostUser, VhostUserConfig};
use penstock_dataplane::snapshot::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::tsc;
use penstock_dataplane::worker::{WorkerConfig, Workers};
use penstock_guest::driver::{DriverConfig, VirtioNet, VnetHdr};
use penstock_testing::{TempDir, temp_dir};
use penstock_units::{Nanos, PortId, QueueId, TscRate, Vid, WorkerId};

use crate::switch::rig::{announce, drain, flow_frame, frame, mac, receive, send, wait};

const PORTS: u16 = 2;

struct Bed {
    dir: TempDir,
    workers: Workers,
    ports: Vec<VhostUser>,
    counters: Vec<PortCounterSets>,
}

impl Bed {
    /// Starts two workers. Worker `n` serves port `n`.
    fn start() -> Self {
        let rate: TscRate = tsc::calibrate();
        let config = WorkerConfig {
            id: WorkerId(0),
            core: None,
            idle_backoff: Nanos::from_micros(50),
            fdb_entries: 256,
            seed: 1,
            tsc: rate,
            max_ports: 8,
            ..WorkerConfig::default()
        };
        let workers = Workers::spawn(&config, &[None, None]).unwrap();
        let mut bed = Self { dir: temp_dir(), workers, ports: Vec::new(), counters: Vec::new() };
        for n in 0..PORTS {
            let config = VhostUserConfig::new(&format!("vm{n}"), bed.socket(n));
            let counters = PortCounterSets::new(2);
            let (mut vhost, queues) =
                VhostUser::start(config, PortId(n), bed.workers.clone()).unwrap();
            let home = |_: QueueId| WorkerId(n);
            bed.workers.attach_port(PortId(n), queues, home, &counters).unwrap();
            vhost.serve().unwrap();
            bed.ports.push(vhost);
            bed.counters.push(counters);
        }
        let policy = |n| PortPolicy::access(n, Some(1), Vid::UNTAGGED, 0).finish();
        let policies = (0..PORTS).map(|n| Some(Arc::new(policy(n)))).collect();
        let members = (0..PORTS).collect();
        let domain = Domain { tenant: Some(1), vid: 0, members, fdb_limit: 64 };
        let snapshot = Snapshot::new(1, policies, vec![domain], Vec::new(), 300);
        bed.workers.swap_snapshot(&Arc::new(snapshot)).unwrap();
        bed
    }

    fn socket(&self, n: u16) -> PathBuf {
        self.dir.join(format!("{n}.sock"))
    }

    /// Connects both drivers, and lets both workers learn the drivers' addresses.
    fn drivers(&self) -> (VirtioNet, VirtioNet) {
        let connect = |n| VirtioNet::connect(DriverConfig::new(self.socket(n))).unwrap();
        let (mut a, mut b) = (connect(0), connect(1));
        wait("the ports are up", || self.ports.iter().all(|p| p.status().queues_up == 1));
        announce(&mut a, mac(0), &mut b);
        announce(&mut b, mac(1), &mut a);
        (a, b)
    }

    /// Checks that the workers' counters add up while no frame is in transit between the workers.
    fn check(&self) {
        let readings = self.workers.checkpoint().unwrap();
        for (id, reading) in &readings {
            assert_eq!((reading.unaccounted(), reading.queued), (0, 0), "port {id}: {reading:?}");
        }
        let forwarded: u64 = readings.iter().map(|(_, r)| r.forwarded).sum();
        assert_eq!(forwarded, readings.iter().map(|(_, r)| r.tx_frames).sum::<u64>());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for (n, port) in (0..).zip(&mut self.ports) {
            port.stop();
            let _ = self.workers.detach_port(PortId(n));
        }
        let _ = self.workers.stop();
    }
}

#[test]
fn frames_of_all_sizes_cross_workers_whole() {
    let bed = Bed::start();
    let (mut a, mut b) = bed.drivers();
    for n in 0..300 {
        let len = 60 + n as usize * 4;
        send(&mut a, &VnetHdr::default(), &frame(mac(0), mac(1), len, n));
        assert_eq!(receive(&mut b, 1)[0].1, frame(mac(0), mac(1), len, n));
    }
    let taken_over = |w: usize| bed.workers.handles()[w].counters().taken_over.get();
    assert!(taken_over(1) >= 300, "port 1's worker sent what port 0's took");
    bed.check();
}

/// Ends the second thread of a test when this value is dropped. Without this guard, a failed
/// assertion would wait for the second thread forever.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn ports_move_between_workers_and_no_frame_is_lost_or_overtaken() {
    const FRAMES: u32 = 30_000;
    const ON_THE_WAY: u32 = 100;
    let bed = Bed::start();
    let (mut a, mut b) = bed.drivers();
    let (end, mut moves) = (AtomicBool::new(false), 0);
    let (mut sent, mut next) = (0, 0);
    std::thread::scope(|scope| {
        let ended = Ended(&end);
        let mover = scope.spawn(|| {
            let mut moved = 0;
            // The ports go through all four assignments to workers. In two of them, one worker
            // serves both ports.
            for (port, to) in [(0, 1), (1, 0), (0, 0), (1, 1)].into_iter().cycle() {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                moved += bed.workers.move_port(PortId(port), 1, |_| WorkerId(to)).unwrap();
                bed.check();
                std::thread::yield_now();
            }
            moved
        });
        wait("all frames have crossed", || {
            while sent < FRAMES && sent - next < ON_THE_WAY {
                let port = u16::try_from(sent % 4).unwrap();
                let bytes = flow_frame(mac(0), mac(1), 64 + sent as usize % 1400, sent, port);
                send(&mut a, &VnetHdr::default(), &bytes);
                sent += 1;
            }
            for (_, bytes) in drain(&mut b) {
                let port = u16::try_from(next % 4).unwrap();
                let due = flow_frame(mac(0), mac(1), 64 + next as usize % 1400, next, port);
                assert!(bytes == due, "frame {next}: lost, overtaken or torn");
                next += 1;
            }
            next == FRAMES || mover.is_finished()
        });
        drop(ended);
        moves = mover.join().unwrap();
    });
    assert_eq!(next, FRAMES);
    assert!(moves >= 4, "{moves} moves while frames crossed");
    let owners: Vec<_> = (0..PORTS).map(|n| bed.workers.owner(PortId(n), QueueId(0))).collect();
    assert!(owners.iter().all(Option::is_some), "{owners:?}");
    let sent: u64 = bed.counters[0].read().rx_frames;
    assert_eq!(sent, u64::from(FRAMES) + 1, "with the announcement");
    bed.check();
}

#[test]
fn a_driver_that_comes_back_finds_its_port_where_it_moved() {
    let bed = Bed::start();
    let (mut a, mut b) = bed.drivers();
    assert_eq!(bed.workers.move_port(PortId(0), 1, |_| WorkerId(1)).unwrap(), 1);
    assert_eq!(bed.workers.move_port(PortId(0), 1, |_| WorkerId(1)).unwrap(), 0, "it is there");
    assert!(bed.workers.move_port(PortId(7), 1, |_| WorkerId(1)).is_err(), "no such port");
    a.reconnect().unwrap();
    wait("the port is up", || bed.ports[0].status().queues_up == 1);
    send(&mut a, &VnetHdr::default(), &frame(mac(0), mac(1), 200, 1));
    assert_eq!(receive(&mut b, 1)[0].1, frame(mac(0), mac(1), 200, 1));
    send(&mut b, &VnetHdr::default(), &frame(mac(1), mac(0), 200, 2));
    assert_eq!(receive(&mut a, 1)[0].1, frame(mac(1), mac(0), 200, 2));
    bed.check();
}
