//! Implements the real data path: worker threads, vhost-user sockets, TAP, packet and AF_XDP
//! interfaces.

use core::hash::{BuildHasher, Hasher};
use std::collections::BTreeMap;
use std::hash::RandomState;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use penstock_dataplane::capture::{CaptureTerms, Tally};
use penstock_dataplane::classify::Station;
use penstock_dataplane::confine;
use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::kept::{Kept, KeptTsc};
use penstock_dataplane::port::packet::{Packet, PacketConfig};
use penstock_dataplane::port::tap::{Tap, TapConfig};
use penstock_dataplane::port::vhost_user::{self, VhostUser, VhostUserConfig};
use penstock_dataplane::port::xdp::{self, Xdp, XdpConfig};
use penstock_dataplane::port::{AttachStatus, PortQueue};
use penstock_dataplane::schedule::{self, ScheduleKind};
use penstock_dataplane::snapshot::Snapshot;
use penstock_dataplane::tsc;
use penstock_dataplane::worker::{FdbChunk, WorkerConfig, WorkerError, Workers};
use penstock_qos::c2tb::Spare;
use penstock_units::{MacAddr, Nanos, PortId, QueueId, TscRate, WorkerId};

use super::data_path::{AttachError, DataPath, Link, home};
use crate::config::{
    self, Attachment, HostConfig, Machine, Offloads, PORTS_MAX, Schedule, Seccomp, SocketMode,
    ZeroCopy,
};

/// The real data path of this machine.
pub(super) struct LiveSwitch {
    workers: Workers,
    cores: Vec<Option<u32>>,
    tsc: KeptTsc,
    started: Nanos,
    kept: Arc<KeptPorts>,
}

/// State that the former process left, by port. A port takes its state when it attaches.
#[derive(Debug)]
pub(super) struct KeptPorts(Mutex<BTreeMap<String, Kept>>);

impl KeptPorts {
    pub(super) fn new(kept: Vec<Kept>) -> Self {
        let kept = kept.into_iter().map(|kept| (kept.port().to_owned(), kept));
        Self(Mutex::new(kept.collect()))
    }

    fn tsc(&self) -> Option<KeptTsc> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values().find_map(Kept::tsc)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn take(&self, port: &str) -> Option<Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(port)
    }

    /// Ends the sessions that no port took.
    pub(super) fn drop_rest(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl LiveSwitch {
    /// Calibrates the time-stamp counter, unless the former process did, and starts the workers.
    pub(super) fn start(
        config: &HostConfig,
        machine: &Machine,
        kept: Arc<KeptPorts>,
    ) -> Result<Self, WorkerError> {
        let mut cores: Vec<_> = config.worker.cores.iter().copied().map(Some).collect();
        if cores.is_empty() {
            cores.push(machine.default_core());
        }
        confine::set_mode(match config.host.seccomp {
            Seccomp::On => confine::Mode::On,
            Seccomp::Log => confine::Mode::Log,
            Seccomp::Off => confine::Mode::Off,
        });
        let kept_tsc = kept.tsc().and_then(KeptTsc::after_restart);
        let tsc = kept_tsc.unwrap_or_else(|| KeptTsc::measured(tsc::calibrate()));
        let settings = WorkerConfig {
            id: WorkerId(0),
            core: None,
            idle_backoff: Nanos::from_micros(config.worker.idle_backoff_us.into()),
            idle_turns: config.worker.idle_turns,
            schedule: match config.worker.schedule {
                Schedule::RoundRobin => ScheduleKind::RoundRobin,
                Schedule::Hbs => ScheduleKind::Hbs,
            },
            readiness: match config.worker.readiness {
                config::Readiness::Pending => schedule::Readiness::Pending,
                config::Readiness::Demotion => schedule::Readiness::Demotion,
            },
            spare: match config.worker.spare_cycles {
                config::SpareCycles::Pool => Spare::Pool,
                config::SpareCycles::Printed => Spare::Printed,
            },
            refill: Nanos::from_micros(config.worker.refill_us.into()),
            capacity: config.worker.capacity.map(|capacity| capacity.0),
            fdb_entries: usize::try_from(config.forwarding.fdb_entries).unwrap_or(usize::MAX),
            // The standard library seeds this hasher once per process from the kernel's random
            // numbers.
            seed: RandomState::new().build_hasher().finish(),
            tsc: tsc.rate(),
            max_ports: PORTS_MAX,
        };
        let workers = Workers::spawn(&settings, &cores)?;
        if !kept.is_empty() {
            // No sender's frames are taken before its receivers are back.
            workers.pause()?;
        }
        Ok(Self { workers, cores, tsc, started: tsc::raw_clock(), kept })
    }

    fn join(
        &self,
        id: PortId,
        queues: Vec<Box<dyn PortQueue>>,
        worker: Option<u16>,
        counters: &PortCounterSets,
    ) -> Result<(), AttachError> {
        let home = |queue| home(id, queue, worker, self.cores.len());
        self.workers.attach_port(id, queues, home, counters).map_err(|error| AttachError {
            problem: error.to_string(),
            remedy: "see the daemon's log".to_owned(),
        })
    }
}

impl DataPath for LiveSwitch {
    fn attach(
        &self,
        id: PortId,
        name: &str,
        attachment: &Attachment,
        worker: Option<u16>,
        counters: &PortCounterSets,
    ) -> Result<Arc<dyn Link>, AttachError> {
        let kept = self.kept.take(name);
        let link: Arc<dyn Link> = match attachment {
            Attachment::VhostUser(_) => {
                let Some(config) = vhost_config(name, attachment).transpose()? else {
                    unreachable!("the attachment is `vhost-user`")
                };
                let (mut vhost, queues) =
                    VhostUser::start(config, id, self.workers.clone()).map_err(refused)?;
                self.join(id, queues, worker, counters)?;
                if let Err(error) = vhost.serve_from(kept).map_err(refused) {
                    vhost.stop();
                    drop(self.workers.detach_port(id));
                    return Err(error);
                }
                Arc::new(VhostLink(Mutex::new(vhost)))
            }
            Attachment::Tap(config::Tap { interface, netns, queues, offloads, mtu }) => {
                let config = TapConfig {
                    interface: interface.clone(),
                    netns: netns.as_ref().map(PathBuf::from),
                    queues: queues.0,
                    offloads: caps(*offloads),
                    mtu: *mtu,
                };
                let (tap, queues) = Tap::open_from(&config, kept).map_err(refused)?;
                self.join(id, queues, worker, counters)?;
                Arc::new(tap)
            }
            Attachment::Packet(config::Packet { interface, netns, offloads }) => {
                let (packet, queues) = Packet::open(&PacketConfig {
                    interface: interface.clone(),
                    netns: netns.as_ref().map(PathBuf::from),
                    offloads: caps(*offloads),
                })
                .map_err(refused)?;
                self.join(id, queues, worker, counters)?;
                Arc::new(packet)
            }
            Attachment::Xdp(config::Xdp { interface, netns, queues, zero_copy }) => {
                let (link, queues) = open_xdp(
                    name,
                    &XdpConfig {
                        interface: interface.clone(),
                        netns: netns.as_ref().map(PathBuf::from),
                        queues: queues.0,
                        zero_copy: match zero_copy {
                            ZeroCopy::Auto => xdp::ZeroCopy::Auto,
                            ZeroCopy::Never => xdp::ZeroCopy::Never,
                        },
                    },
                )?;
                self.join(id, queues, worker, counters)?;
                link
            }
        };
        Ok(link)
    }

    fn detach(&self, id: PortId, link: Arc<dyn Link>) -> Result<(), WorkerError> {
        // The session ends first, because it makes the worker release the guest's memory.
        link.close();
        self.workers.detach_port(id).map(drop)
    }

    fn place(&self, id: PortId, queues: u16, worker: Option<u16>) -> Result<usize, WorkerError> {
        // A packet socket has one queue, even if the configuration names more.
        let there = self.owners(id, queues).len();
        let queues = queues.min(u16::try_from(there).unwrap_or(queues).max(1));
        self.workers.move_port(id, queues, |queue| home(id, queue, worker, self.cores.len()))
    }

    fn owners(&self, id: PortId, queues: u16) -> Vec<u16> {
        let owner = |queue| self.workers.owner(id, QueueId(queue)).map(|owner| owner.0);
        (0..queues).filter_map(owner).collect()
    }

    fn swap_snapshot(&self, snapshot: Arc<Snapshot>) -> Result<(), WorkerError> {
        self.workers.swap_snapshot(&snapshot)
    }

    fn checkpoint(&self) -> Result<Vec<(PortId, PortReading)>, WorkerError> {
        self.workers.checkpoint()
    }

    fn fdb_chunk(&self, from: usize, max: usize) -> Result<FdbChunk, WorkerError> {
        self.workers.fdb_chunk(from, max)
    }

    fn fdb_flush(&self, port: Option<PortId>, domain: Option<u16>) -> Result<usize, WorkerError> {
        self.workers.fdb_flush(port, domain)
    }

    fn fdb_static(
        &self,
        domain: u16,
        mac: MacAddr,
        port: PortId,
        add: bool,
    ) -> Result<(), WorkerError> {
        self.workers.fdb_static(domain, mac, port, add)
    }

    fn fdb_relearn(&self, stations: Vec<Station>) -> Result<(), WorkerError> {
        self.workers.fdb_relearn(stations)
    }

    fn workers(&self) -> Vec<(WorkerReading, Option<u32>)> {
        let readings = self.workers.handles().iter().map(|handle| handle.counters().read());
        readings.zip(self.cores.iter().copied()).collect()
    }

    fn tsc(&self) -> TscRate {
        self.tsc.rate()
    }

    fn kept_tsc(&self) -> KeptTsc {
        self.tsc
    }

    fn uptime(&self) -> Nanos {
        tsc::raw_clock().saturating_sub(self.started)
    }

    fn stop(&self) -> Result<(), WorkerError> {
        self.workers.stop()
    }

    fn pause(&self) -> Result<(), WorkerError> {
        self.workers.pause()?;
        self.workers.send_waiting()
    }

    fn resume(&self) {
        self.workers.resume();
    }

    fn capture(&self, id: u64, terms: &dyn Fn() -> Box<CaptureTerms>) -> Result<bool, WorkerError> {
        self.workers.capture(id, terms)
    }

    fn capture_next(
        &self,
        id: u64,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<(Vec<u8>, Tally)>, WorkerError> {
        self.workers.capture_next(id, spare)
    }

    fn capture_end(&self, id: u64) {
        self.workers.capture_end(id);
    }
}

struct VhostLink(Mutex<VhostUser>);

impl Link for VhostLink {
    fn status(&self) -> AttachStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).status()
    }

    fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stop();
    }

    fn await_continued(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).await_continued();
    }

    fn take_over(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take_over();
    }

    fn begin_to_keep(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).begin_to_keep();
    }

    fn has_ended(&self, wait_ms: u8) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).has_ended(wait_ms)
    }

    fn give_up(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).give_up();
    }

    fn keep(&self, _: &str) -> Option<Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keep()
    }
}

impl Link for Tap {
    fn close(&self) {
        self.close();
    }

    fn take_over(&self) {
        self.take_over();
    }

    fn keep(&self, name: &str) -> Option<Kept> {
        Some(self.keep(name))
    }

    fn status(&self) -> AttachStatus {
        self.status()
    }

    fn is_gone(&self) -> bool {
        self.is_gone()
    }
}

impl Link for Packet {
    fn status(&self) -> AttachStatus {
        self.status()
    }

    fn is_gone(&self) -> bool {
        self.is_gone()
    }
}

impl Link for Xdp {
    fn status(&self) -> AttachStatus {
        self.status()
    }

    fn is_gone(&self) -> bool {
        self.is_gone()
    }
}

/// Packet socket that an `xdp` port uses if AF_XDP was refused, with the reason of the refusal.
struct FallBack {
    packet: Packet,
    reason: String,
}

impl Link for FallBack {
    fn status(&self) -> AttachStatus {
        let mut status = self.packet.status();
        status.features.insert(0, "packet");
        status.error =
            Some(format!("attached as packet, because XDP was refused: {}", self.reason));
        status
    }

    fn is_gone(&self) -> bool {
        self.packet.is_gone()
    }
}

type Opened = (Arc<dyn Link>, Vec<Box<dyn PortQueue>>);

/// Opens an interface through AF_XDP. If the kernel or the driver refuses AF_XDP, the function
/// opens a packet socket instead. Returns an error if the interface does not exist or is in use.
fn open_xdp(name: &str, config: &XdpConfig) -> Result<Opened, AttachError> {
    let reason = match Xdp::open(config) {
        Ok((xdp, queues)) => return Ok((Arc::new(xdp), queues)),
        Err(error) if error.is_refusal() => error,
        Err(error) => return Err(refused(error)),
    };
    let offloads = OffloadCaps::ALL;
    let (interface, netns) = (config.interface.clone(), config.netns.clone());
    match Packet::open(&PacketConfig { interface, netns, offloads }) {
        Ok((packet, queues)) => {
            tracing::warn!(port = name, %reason, "XDP was refused; the port is attached as packet");
            Ok((Arc::new(FallBack { packet, reason: reason.to_string() }), queues))
        }
        Err(error) => {
            let (xdp, packet) = (refused(reason), refused(error));
            let problem = format!(
                "{}; the fallback to a packet port also failed: {}",
                xdp.problem, packet.problem
            );
            Err(AttachError { problem, remedy: packet.remedy })
        }
    }
}

fn refused(error: impl core::error::Error) -> AttachError {
    let text = error.to_string();
    let (problem, remedy) = text.split_once("; ").unwrap_or((&text, "see the daemon's log"));
    AttachError { problem: problem.to_owned(), remedy: remedy.to_owned() }
}

fn caps(offloads: Offloads) -> OffloadCaps {
    let Offloads { csum, tso } = offloads;
    OffloadCaps { csum, tso4: tso, tso6: tso, uso: tso }
}

/// Converts a vhost-user attachment to the data path's configuration. Returns `None` if the
/// attachment is not of the type `vhost-user`.
fn vhost_config(
    name: &str,
    attachment: &Attachment,
) -> Option<Result<VhostUserConfig, AttachError>> {
    let Attachment::VhostUser(vhost) = attachment else { return None };
    let number =
        |name: &Option<String>, file| name.as_deref().map(|name| account(name, file)).transpose();
    let config = |socket_owner, socket_group| VhostUserConfig {
        name: name.to_owned(),
        path: vhost.socket.clone(),
        mode: match vhost.mode {
            SocketMode::Server => vhost_user::SocketMode::Server,
            SocketMode::Client => vhost_user::SocketMode::Client,
        },
        queue_pairs: vhost.queues.0,
        offloads: caps(vhost.offloads),
        socket_mode: vhost.socket_mode.map_or(0o600, |mode| mode.0),
        socket_owner,
        socket_group,
    };
    let owner = number(&vhost.socket_owner, "/etc/passwd");
    let group = || number(&vhost.socket_group, "/etc/group");
    Some(owner.and_then(|owner| Ok(config(owner, group()?))))
}

/// Returns the number of the user or group `name`, which the function looks up in `file`.
fn account(name: &str, file: &str) -> Result<u32, AttachError> {
    config::account(name, Path::new(file)).ok_or_else(|| AttachError {
        problem: format!("{name:?} is not in {file}"),
        remedy: "write another name, or the numeric ID".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_number() {
        assert_eq!(account("root", "/etc/passwd"), Ok(0));
        assert_eq!(account("107", "/nowhere"), Ok(107));
        assert!(account("nobody-of-that-name", "/etc/group").is_err());
    }
}
