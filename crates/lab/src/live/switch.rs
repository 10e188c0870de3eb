//! A switch under a plan: ours, or OVS-DPDK with `ingress_policing_rate`, seen alike.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::plan::{Plan, Policy};
use crate::bench::ours::{WORKER, ctl, start_daemon};
use crate::bench::ovs::{OvsDpdk, Tso};
use crate::bench::subject::Subject as _;
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::{Daemon, ThreadClock, await_some};

/// The least limit: the configuration takes no less, and 0 is none to the peer.
const LEAST_BITS: f64 = 8_000.0;
/// How long the ports may take to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// A switch that runs by a plan.
pub(crate) trait Switch: std::fmt::Debug + Send + Sync {
    /// Where the VM of port `port` attaches.
    fn socket(&self, port: &str) -> PathBuf;
    /// Whether the switch listens there.
    fn listens(&self) -> bool;
    /// Stops it where it is.
    fn pause(&mut self) -> anyhow::Result<()>;
    /// Lets it go on.
    fn resume(&mut self) -> anyhow::Result<()>;
    /// How long its worker was runnable and did not run, since its start.
    fn waited_ns(&self) -> u64;
    /// Starts counting.
    fn mark(&mut self) -> anyhow::Result<()>;
    /// Since the mark: frames, and cycles of turns that moved some, core taken away included.
    fn read(&mut self) -> anyhow::Result<(u64, u64)>;
    /// Limits what a port sends to `bits` a second of a policer's own counting; none: no limit.
    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()>;
    /// The same switch, where it is ours.
    fn ours(&self) -> Option<&Ours> {
        None
    }
}

/// Our daemon.
#[derive(Debug)]
pub(crate) struct Ours {
    daemon: Daemon,
    dir: PathBuf,
    listens: bool,
    worker: ThreadClock,
    before: (u64, u64),
}

impl Ours {
    /// Starts it in a directory `name` of its own.
    pub fn start(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        let dir = bed.dir().join(name);
        // Of an earlier run of the same name, whose daemon has ended.
        if dir.exists() {
            std::fs::remove_dir_all(&dir).context("clearing a directory")?;
        }
        std::fs::create_dir(&dir).context("making a directory")?;
        let text = plan.configuration(&dir, (bed.worker_core(), bed.generator_core()));
        std::fs::write(dir.join("host.toml"), text).context("writing the configuration")?;
        let (mut daemon, _) =
            start_daemon(bed, &dir).with_context(|| format!("starting {name}"))?;
        let worker = ThreadClock::find(daemon.id(), WORKER)?;
        if plan.listens {
            await_some("sockets of the ports", LISTEN_LIMIT, || {
                daemon.check()?;
                let all = plan.vms.iter().all(|vm| dir.join(format!("{}.sock", vm.name)).exists());
                Ok(all.then_some(()))
            })?;
        }
        Ok(Self { daemon, dir, listens: plan.listens, worker, before: (0, 0) })
    }

    /// Asks the daemon.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        ctl(&self.dir.join("host.sock"), words)
    }

    /// All its counters.
    pub fn stats(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.ask(&["stats", "--json"])?).context("reading the counters")
    }

    fn totals(&self) -> anyhow::Result<(u64, u64)> {
        let stats = self.stats()?;
        let all = |of: &str, name: &str| {
            stats[of].as_array().into_iter().flatten().map(|o| &o["counters"][name]).try_fold(
                0,
                |sum, count| {
                    let count = count.as_u64().with_context(|| format!("{of} have no {name}"))?;
                    anyhow::Ok(sum + count)
                },
            )
        };
        let busy = all("workers", "cycles_busy")? + all("ports", "stolen")?;
        Ok((all("ports", "rx_frames")?, busy))
    }
}

/// A counter of one port.
pub(crate) fn count(stats: &Value, port: &str, name: &str) -> u64 {
    let ports = stats["ports"].as_array().into_iter().flatten();
    let of = ports.into_iter().find(|p| p["port"] == port);
    of.and_then(|p| p["counters"][name].as_u64()).unwrap_or(0)
}

impl Switch for Ours {
    fn socket(&self, port: &str) -> PathBuf {
        self.dir.join(format!("{port}.sock"))
    }

    fn listens(&self) -> bool {
        self.listens
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.daemon.signal(Signal::SIGSTOP)
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.daemon.check()?;
        self.daemon.signal(Signal::SIGCONT)
    }

    fn waited_ns(&self) -> u64 {
        self.worker.waited_ns()
    }

    fn mark(&mut self) -> anyhow::Result<()> {
        self.before = self.totals()?;
        Ok(())
    }

    fn read(&mut self) -> anyhow::Result<(u64, u64)> {
        let (frames, busy) = self.totals()?;
        Ok((frames - self.before.0, busy - self.before.1))
    }

    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()> {
        let [policy, police] = bits.map_or([String::new(), String::new()], |bits| {
            let bits = bits.max(LEAST_BITS);
            let burst = (bits / 8.0 / 100.0).max(65_536.0);
            ["bps".to_owned(), format!("{{cir={bits:.0},cbs={burst:.0},ebs=0}}")]
        });
        let (policy, police) = (format!("ingress_policy={policy}"), format!("police={police}"));
        self.ask(&["port", "set", port, &policy, &police, "--no-save"]).map(drop)
    }

    fn ours(&self) -> Option<&Ours> {
        Some(self)
    }
}

/// OVS-DPDK, its ports limited by `ingress_policing_rate` where the plan says `bps`.
#[derive(Debug)]
pub(crate) struct Peer {
    ovs: OvsDpdk,
}

impl Peer {
    /// Starts it in a directory `name` of its own.
    pub fn start(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        ensure!(!plan.offloads, "the peer takes part without offloads only");
        let dir = bed.dir().join(name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).context("clearing a directory")?;
        }
        let ports: Vec<&str> = plan.vms.iter().map(|vm| vm.name.as_str()).collect();
        let mut ovs = OvsDpdk::start_ports(bed, name, Tso::Off, &ports)?;
        ovs.set_rules(&plan.flows())?;
        let mut peer = Self { ovs };
        for vm in plan.vms.iter().filter(|vm| vm.bound.policy == Policy::Bps) {
            peer.limit(&vm.name, Some(vm.bound.bits))?;
        }
        Ok(peer)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in kbit/s")]
fn whole(rate: f64) -> u64 {
    rate as u64
}

impl Switch for Peer {
    fn socket(&self, port: &str) -> PathBuf {
        self.ovs.socket(port)
    }

    fn listens(&self) -> bool {
        false
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.ovs.pause()
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.ovs.resume()
    }

    fn waited_ns(&self) -> u64 {
        self.ovs.worker_waited_ns()
    }

    fn mark(&mut self) -> anyhow::Result<()> {
        self.ovs.mark()
    }

    fn read(&mut self) -> anyhow::Result<(u64, u64)> {
        let reading = self.ovs.read()?;
        Ok((reading.frames, reading.busy_cycles))
    }

    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()> {
        // A burst of 10 ms of the rate, as its documentation advises; 0 is no limit.
        let kbits = whole(bits.map_or(0.0, |bits| bits.max(LEAST_BITS)) / 1000.0);
        self.ovs.police(port, kbits, kbits / 100)
    }
}
