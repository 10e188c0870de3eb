//! Starts the `penstock` program as a daemon, with its configuration and sockets in a separate
//! directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;
use serde_json::{Map, Value};

use super::plan::Plan;
use super::switch::{Case, LEAST_BITS, Switch, VM_A, VM_B, WorkerReading, fresh_dir, socket_in};
use super::through::{self, HOPS, Outside, Through};
use crate::penstock::penstock;
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::{Daemon, ThreadClock, ask, await_ok, await_some};

/// Maximum time until the daemon's first answer.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Maximum time until the daemon's ports listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// Whether the daemon's ports offer checksum and segmentation offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// The daemon's ports offer neither checksum nor segmentation offload.
    Off,
    /// The daemon's ports have checksum and segmentation offload, if the drivers negotiate the
    /// offloads.
    On,
}

/// Limits and schedule of the two ports, with the values that the configuration file has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Qos {
    /// Value of the worker's configuration key `schedule`.
    pub schedule: String,
    /// Value of the configuration key `ingress_policy` of both ports.
    pub policy: String,
    /// The key `egress` of the receiving port, or `None` if the port has no output queue. A port
    /// with an output queue has no tenant.
    pub egress: Option<&'static str>,
}

impl Default for Qos {
    fn default() -> Self {
        Self { schedule: "round-robin".to_owned(), policy: "none".to_owned(), egress: None }
    }
}

/// A running Penstock daemon, as a switch under test.
#[derive(Debug)]
pub(crate) struct Penstock {
    name: &'static str,
    daemon: Daemon,
    dir: PathBuf,
    listens: bool,
    tsc_hz: f64,
    workers: Vec<ThreadClock>,
    /// True if one worker shares its core with the load generator, and another worker has its own
    /// core.
    shares_core: bool,
    /// Settings of the daemon that the report states.
    settings: Map<String, Value>,
    before: Totals,
    waited_before_ns: u64,
}

/// Counters of the daemon since its start, summed over workers and ports.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    frames: u64,
    busy: u64,
    stolen: u64,
    sampled: u64,
    ingress: u64,
    classification: u64,
    egress: u64,
    cache_hits: u64,
    drops: u64,
}

impl Penstock {
    /// Starts the daemon with two vhost-user ports, `a` and `b`, and rules that connect them.
    pub fn start(bed: &Bed, offloads: Offloads) -> anyhow::Result<Self> {
        Self::start_as(bed, "penstock", offloads, Qos::default(), None)
    }

    /// Works like [`Self::start`], but without offloads. If `way` is set, frames leave the switch
    /// through one interface and return through another interface.
    pub fn start_through(bed: &Bed, way: Option<Through>) -> anyhow::Result<Self> {
        Self::start_as(bed, "penstock", Offloads::Off, Qos::default(), way)
    }

    /// Starts the daemon. `name` is the daemon's name in reports. The argument `qos` contains the
    /// limits and the schedule of the ports.
    pub fn start_as(
        bed: &Bed,
        name: &'static str,
        offloads: Offloads,
        qos: Qos,
        way: Option<Through>,
    ) -> anyhow::Result<Self> {
        let outside = way.map(|way| through::make(bed, way, "ours")).transpose()?;
        let text = |dir: &Path| configuration(dir, bed, offloads, &qos, outside.as_ref());
        let mut penstock = Self::run(bed, (name, name), text)?;
        outside.as_ref().map(Outside::join).transpose()?;
        let settings = &mut penstock.settings;
        settings.insert("penstock_idle_backoff_us".into(), bed.idle_backoff_us().into());
        if let Some(outside) = &outside {
            settings.insert("through".into(), outside.way.name().into());
        }
        let qos = format!("{}, {}", qos.schedule, qos.policy);
        settings.insert(format!("{name}_qos").replace('-', "_"), qos.into());
        Ok(penstock)
    }

    /// Starts the daemon according to `plan`, in the subdirectory `dir` of the experiment's
    /// temporary directory.
    pub fn by_plan(bed: &Bed, dir: &str, plan: &Plan) -> anyhow::Result<Self> {
        let cores = (bed.worker_core(), bed.generator_core());
        let started = Self::run(bed, ("penstock", dir), |dir| plan.configuration(dir, cores));
        let mut penstock = started.with_context(|| format!("starting {dir}"))?;
        penstock.listens = plan.listens;
        penstock.shares_core = plan.cores.len() > 1 && plan.cores.contains(&bed.generator_core());
        for worker in 1..plan.cores.len() {
            let thread = ThreadClock::find(penstock.daemon.id(), &format!("{WORKER}{worker}"))?;
            penstock.workers.push(thread);
        }
        if let Some(outside) = plan.uplink() {
            penstock.check_uplink(outside)?;
        }
        if plan.listens {
            await_some("sockets of the ports", LISTEN_LIMIT, || {
                penstock.daemon.check()?;
                Ok(plan.vms.iter().all(|vm| penstock.socket(&vm.name).exists()).then_some(()))
            })?;
        }
        Ok(penstock)
    }

    fn run(
        bed: &Bed,
        (name, dir): (&'static str, &str),
        configuration: impl FnOnce(&Path) -> String,
    ) -> anyhow::Result<Self> {
        let dir = fresh_dir(bed, dir)?;
        std::fs::write(dir.join("host.toml"), configuration(&dir))
            .context("writing the configuration")?;
        let (daemon, tsc_hz) = start_daemon(bed, &dir)?;
        let first = ThreadClock::find(daemon.id(), &format!("{WORKER}0"))?;
        Ok(Self {
            name,
            daemon,
            dir,
            listens: false,
            tsc_hz,
            workers: vec![first],
            shares_core: false,
            settings: Map::new(),
            before: Totals::default(),
            waited_before_ns: 0,
        })
    }

    /// Sends a command to the daemon's control socket and returns the answer.
    pub fn ctl(&self, words: &[&str]) -> anyhow::Result<String> {
        ctl(&self.dir.join("host.sock"), words)
    }

    /// Returns all counters of the daemon as JSON.
    pub fn stats(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.ctl(&["stats", "--json"])?).context("reading the counters")
    }

    /// Waits until the switch's ports on the interfaces of `outside` are up. Returns an error if
    /// the switch does not use AF_XDP on an interface of `outside`.
    fn check_uplink(&mut self, outside: &Outside) -> anyhow::Result<()> {
        for end in outside.ends {
            let port = await_some(&format!("uplink {end}"), LISTEN_LIMIT, || {
                self.daemon.check()?;
                let port: Value =
                    serde_json::from_str(&self.ctl(&["port", "show", end, "--json"])?)
                        .context("reading the state of the uplink")?;
                Ok((port["state"] == "up" || port["state"] == "error").then_some(port))
            })?;
            is_xdp(end, &port)?;
        }
        Ok(())
    }

    fn totals(&self) -> anyhow::Result<Totals> {
        totals(&self.stats()?)
    }
}

/// Returns an error if `port` does not use AF_XDP. If the kernel refuses XDP, the daemon attaches a
/// packet socket, which costs more cycles.
fn is_xdp(end: &str, port: &Value) -> anyhow::Result<()> {
    let features = port["features"].as_array().into_iter().flatten();
    let packet = features.into_iter().any(|feature| feature == "packet");
    let reason = port["error"].as_str().filter(|reason| !reason.is_empty());
    ensure!(
        port["state"] == "up" && !packet,
        "uplink {end}: no AF_XDP port: {}; it needs Linux 5.9, CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF \
         and locked memory (ulimit -l unlimited), which root has outside a container; or leave \
         --uplink out",
        reason.unwrap_or("the daemon gives no reason")
    );
    Ok(())
}

/// Prefix that the names of the workers' threads have.
const WORKER: &str = "penstock-w";

/// Runs the daemon with the configuration `host.toml` in `dir`. Waits until the daemon answers on
/// `host.sock` in `dir`. Returns the daemon, and the frequency of its cycle counter in Hz.
fn start_daemon(bed: &Bed, dir: &Path) -> anyhow::Result<(Daemon, f64)> {
    let mut command = penstock()?;
    command.args(["host", "run", "--config"]).arg(dir.join("host.toml"));
    command.env_remove("PENSTOCK_SOCKET");
    let mut daemon = Daemon::start(&mut command, dir.join("log"), bed.guard())?;
    let socket = dir.join("host.sock");
    let status = await_ok("answer of penstock", START_LIMIT, || {
        daemon.check()?;
        Ok(ctl(&socket, &["host", "show", "--json"]))
    });
    let status = status.with_context(|| daemon.last_words())?;
    let status: Value = serde_json::from_str(&status).context("reading the status")?;
    let tsc_hz = status["tsc_hz"].as_f64().context("the status has no tsc_hz")?;
    Ok((daemon, tsc_hz))
}

/// Sends a command to the daemon, and returns the answer.
fn ctl(socket: &Path, words: &[&str]) -> anyhow::Result<String> {
    ask(penstock()?.arg("--socket").arg(socket).args(words))
}

fn totals(stats: &Value) -> anyhow::Result<Totals> {
    let count = |of: &Value, name: &str| {
        of["counters"][name].as_u64().with_context(|| format!("no counter is called {name}"))
    };
    let mut sum = Totals::default();
    for worker in stats["workers"].as_array().context("no workers")? {
        sum.busy += count(worker, "cycles_charged")?;
    }
    for port in stats["ports"].as_array().context("no ports")? {
        sum.frames += count(port, "rx_frames")?;
        sum.stolen += count(port, "stolen")?;
        sum.sampled += count(port, "sampled_frames")?;
        sum.ingress += count(port, "cycles_ingress")?;
        sum.classification += count(port, "cycles_classification")?;
        sum.egress += count(port, "cycles_egress")?;
        sum.cache_hits += count(port, "cache_hits")?;
        let drops = port["drops"].as_object().context("no drops")?;
        sum.drops += drops.values().filter_map(Value::as_u64).sum::<u64>();
    }
    Ok(sum)
}

impl Totals {
    /// Returns the difference between these counters of the worker and the earlier counters
    /// `before`. If `with_stolen` is set, the busy cycles include the cycles for which the worker
    /// did not have its core.
    fn since(&self, before: &Self, with_stolen: bool) -> WorkerReading {
        let frames = self.frames - before.frames;
        let stolen = self.stolen - before.stolen;
        let sampled = self.sampled - before.sampled;
        let stage = |now: u64, then: u64| ratio(now - then, sampled);
        let charged = self.busy - before.busy;
        let busy_cycles = if with_stolen { charged + stolen } else { charged };
        let notes = vec![
            ("cycles_ingress", stage(self.ingress, before.ingress)),
            ("cycles_classification", stage(self.classification, before.classification)),
            ("cycles_egress", stage(self.egress, before.egress)),
            ("cache_hit_percent", 100.0 * ratio(self.cache_hits - before.cache_hits, frames)),
            ("stolen_percent", 100.0 * ratio(stolen, charged + stolen)),
            ("dropped", ratio(self.drops - before.drops, 1)),
        ];
        WorkerReading { frames, busy_cycles, waited_ns: 0, notes }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn ratio(above: u64, below: u64) -> f64 {
    above as f64 / below.max(1) as f64
}

impl Switch for Penstock {
    fn name(&self) -> &'static str {
        self.name
    }

    fn socket(&self, port: &str) -> PathBuf {
        socket_in(&self.dir, port)
    }

    fn listens(&self) -> bool {
        self.listens
    }

    fn tsc_hz(&self) -> f64 {
        self.tsc_hz
    }

    fn describe(&self, platform: &mut Map<String, Value>) {
        platform.insert("penstock".into(), env!("CARGO_PKG_VERSION").into());
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        platform.insert("penstock_profile".into(), profile.into());
        platform.insert("tsc_hz".into(), self.tsc_hz.into());
        platform.extend(self.settings.clone());
    }

    fn set_case(&mut self, _: Case) -> anyhow::Result<()> {
        // The rules are the same in every case, see `Case`.
        Ok(())
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.daemon.signal(Signal::SIGSTOP)
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.daemon.check()?;
        self.daemon.signal(Signal::SIGCONT)
    }

    fn workers_read(&self) -> usize {
        self.workers.len()
    }

    fn waited_ns(&self) -> u64 {
        self.workers.iter().map(ThreadClock::waited_ns).sum()
    }

    fn mark(&mut self) -> anyhow::Result<()> {
        self.before = self.totals()?;
        self.waited_before_ns = self.waited_ns();
        Ok(())
    }

    fn read(&mut self) -> anyhow::Result<WorkerReading> {
        let waited_ns = self.waited_ns() - self.waited_before_ns;
        // A peer that loses its core keeps counting cycles. Penstock leaves these cycles out, so
        // they are added here. If load and worker share a core, the load would be counted.
        let reading = self.totals()?.since(&self.before, !self.shares_core);
        Ok(WorkerReading { waited_ns, ..reading })
    }

    fn read_some(&mut self) -> anyhow::Result<WorkerReading> {
        let reading = self.read()?;
        ensure!(
            reading.frames > 0,
            "{} received no frame: {}",
            self.name,
            self.daemon.last_words()
        );
        Ok(reading)
    }

    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()> {
        let [policy, police] = bits.map_or([String::new(), String::new()], |bits| {
            let bits = bits.max(LEAST_BITS);
            let burst = (bits / 8.0 / 100.0).max(65_536.0);
            ["bps".to_owned(), format!("{{cir={bits:.0},cbs={burst:.0},ebs=0}}")]
        });
        let (policy, police) = (format!("ingress_policy={policy}"), format!("police={police}"));
        self.ctl(&["port", "set", port, &policy, &police, "--no-save"]).map(drop)
    }

    fn ask(&self, words: &[&str]) -> Option<anyhow::Result<String>> {
        Some(self.ctl(words))
    }
}

/// Returns the text of the daemon's configuration file.
fn configuration(
    dir: &Path,
    bed: &Bed,
    offloads: Offloads,
    qos: &Qos,
    outside: Option<&Outside>,
) -> String {
    let at = dir.display();
    let (worker, control) = (bed.worker_core(), bed.generator_core());
    let mut text = format!(
        "[host]\nname = \"bench\"\nsocket = \"{at}/host.sock\"\nstate_dir = \"{at}/state\"\n\n\
         [worker]\ncores = [{worker}]\ncontrol_cores = [{control}]\nidle_backoff_us = {}\n\
         schedule = \"{}\"\n\n[[tenant]]\nname = \"bench\"\n",
        bed.idle_backoff_us(),
        qos.schedule
    );
    let mut policy = format!("ingress_policy = \"{}\"\n", qos.policy);
    if qos.policy.starts_with("cycles") {
        // The core has enough cycles for both ports. With `cycles-minmax`, a port may also use the
        // unused cycles of the other.
        policy += &format!("cycles = {:.0}\n", 0.45 * bed.tsc_hz());
    }
    let on = offloads == Offloads::On;
    for port in ["a", "b"] {
        let owner = match qos.egress.filter(|_| port == "b") {
            None => "tenant = \"bench\"".to_owned(),
            // The link is faster than any core, so that frames wait only for the core.
            Some(egress) => format!("egress = \"{egress}\"\nlink = \"400G\"\nqueue = {{}}"),
        };
        text += &format!(
            "\n[[port]]\nname = \"{port}\"\n{owner}\n\
             vhost-user.mode = \"client\"\nvhost-user.socket = \"{at}/{port}.sock\"\n\
             vhost-user.offloads = {{ csum = {on}, tso = {on} }}\n{policy}"
        );
    }
    let hops = match outside {
        None => &[("a", "b", VM_B), ("b", "a", VM_A)][..],
        Some(outside) => {
            text += &outside.ports("");
            &HOPS
        }
    };
    for (from, to, vm) in hops {
        for (half, net) in [("low", "0.0.0.0/1"), ("high", "128.0.0.0/1")] {
            text += &format!(
                "\n[[rule]]\nname = \"{from}-{half}\"\npriority = 10\nport = \"{from}\"\n\
                 match = {{ dst_mac = \"{}\", dst = \"{net}\" }}\nactions = [\"output:{to}\"]\n",
                vm.mac()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_ports_and_charges_of_all_workers_are_added() {
        let port = |frames: u64| {
            serde_json::json!({"drops": {}, "counters": {
                "rx_frames": frames, "stolen": 7, "sampled_frames": 0, "cycles_ingress": 0,
                "cycles_classification": 0, "cycles_egress": 0, "cache_hits": 0
            }})
        };
        let worker = |charged: u64| serde_json::json!({"counters": {"cycles_charged": charged}});
        let stats = serde_json::json!({
            "ports": [port(30), port(50), port(20)], "workers": [worker(9_000), worker(3_500)]
        });
        let reading = totals(&stats).unwrap().since(&Totals::default(), false);
        assert_eq!((reading.frames, reading.busy_cycles), (100, 12_500));
    }

    #[test]
    fn a_packet_socket_is_no_af_xdp_uplink() {
        let port = |state: &str, feature: &str, error: &str| {
            let features = [feature];
            serde_json::json!({ "state": state, "features": features, "error": error })
        };
        assert!(is_xdp("u0", &port("up", "copy", "")).is_ok());
        for port in [port("up", "packet", "no CAP_BPF"), port("error", "", "no CAP_BPF")] {
            let error = is_xdp("u0", &port).unwrap_err().to_string();
            assert!(
                error.starts_with("uplink u0: no AF_XDP port: no CAP_BPF; it needs"),
                "{error}"
            );
        }
    }

    #[test]
    fn cycles_are_those_of_busy_turns_with_the_stolen_ones() {
        let counters = |frames: u64, busy: u64, stolen: u64| {
            let port = serde_json::json!({
                "rx_frames": frames, "stolen": stolen, "sampled_frames": frames,
                "cycles_ingress": 2 * frames, "cycles_classification": 3 * frames,
                "cycles_egress": 4 * frames, "cache_hits": frames
            });
            let none = serde_json::json!({});
            serde_json::json!({
                "ports": [{"port": "a", "counters": port, "drops": none}],
                "workers": [{"counters": {"cycles_charged": busy}}]
            })
        };
        let before = totals(&counters(10, 1000, 5)).unwrap();
        let after = totals(&counters(110, 21_000, 1005)).unwrap();
        let reading = after.since(&before, true);
        assert_eq!((reading.frames, reading.busy_cycles), (100, 21_000));
        assert_eq!(reading.notes[2], ("cycles_egress", 4.0));
        assert_eq!(after.since(&before, false).busy_cycles, 20_000);
        let error = totals(&serde_json::json!({"ports": [], "workers": [{"counters": {}}]}));
        assert!(error.unwrap_err().to_string().contains("cycles_charged"));
    }
}
