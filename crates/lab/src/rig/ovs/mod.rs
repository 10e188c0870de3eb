//! Starts a separate OVS-DPDK. The database, switch and sockets of the separate OVS-DPDK are in one
//! directory. OVS's network devices are in a separate network namespace. An OVS that the system
//! runs already is not affected.
//!
//! # Source
//!
//! The settings are documented in `ovs-vswitchd.conf.db(5)`, and in OVS's pages about DPDK and
//! vhost-user ports.
//!
//! # Approach
//!
//! OVS has the configuration with the best performance:
//!
//! - The ports have the type `dpdkvhostuserclient`.
//! - There is one PMD thread on the core of each worker, and ports belong to the threads in turn.
//! - OVS uses hugepages.
//! - OVS's own metrics (`pmd-perf-metrics`) are off, because they cost cycles.
//! - OVS's control threads run on the generator's core, where frames never wait for these threads.
//!
//! A PMD thread counts time without its core as work. If a PMD thread shares its core with the load
//! generator, the module ignores the thread's counters, unless OVS has only this PMD thread. If
//! counters of a PMD thread are not read, the reported cycles and packets are the sums over the
//! other PMD threads.

mod perf;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::{Map, Value};

use super::plan::{Plan, Policy};
use super::switch::{Case, LEAST_BITS, Switch, VM_A, VM_B, WorkerReading, fresh_dir, socket_in};
use super::through::{self, HOPS, Outside, Through, in_ovs};
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::{Daemon, ThreadClock, ask};
use perf::PmdReading;

/// Name of the Debian package that contains OVS-DPDK.
const PACKAGE: &str = "openvswitch-switch-dpdk";
const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const START_LIMIT: Duration = Duration::from_secs(30);
/// Memory for packet buffers of OVS, in MiB.
const SOCKET_MEM: u64 = 1024;
/// Minimum number of 2 MiB pages for guests, in addition to `SOCKET_MEM`.
const GUEST_PAGES: u64 = 64;
/// Number of 2 MiB pages for each guest. The rings of a guest, with 256 descriptors each, and their
/// buffers take one or two 2 MiB pages.
const PAGES_PER_GUEST: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tso {
    /// The default of OVS: neither segmentation nor checksum offload.
    Off,
    /// OVS offers checksum and segmentation offload, because `userspace-tso-enable` is set.
    On,
}

/// A running OVS-DPDK with a bridge of vhost-user ports, as a switch under test.
#[derive(Debug)]
pub(crate) struct OvsDpdk {
    // The switch ends before its database.
    switch: Daemon,
    _database: Daemon,
    dir: PathBuf,
    tso: Tso,
    outside: Option<Outside>,
    version: String,
    tsc_hz: f64,
    /// PMD threads with counters that the module reads: core and clock of each thread.
    pmds: Vec<(u32, ThreadClock)>,
    before: PmdReading,
    waited_before_ns: u64,
}

/// Checks whether OVS-DPDK can run on this machine.
///
/// # Errors
///
/// Returns an error if OVS-DPDK is not installed, or if this process is not root.
pub(crate) fn check() -> anyhow::Result<()> {
    let found = [VSWITCHD, SCHEMA].iter().all(|file| Path::new(file).exists());
    ensure!(
        found,
        "peer ovs-dpdk: {VSWITCHD} not found; install Debian's package {PACKAGE} \
         (apt-get install {PACKAGE})"
    );
    ensure!(
        nix::unistd::geteuid().is_root(),
        "peer ovs-dpdk: needs root for hugepages and a network namespace; run as root, or leave \
         --peer out"
    );
    Ok(())
}

/// Cores and sleep time of OVS's PMD threads.
#[derive(Debug)]
struct Threads {
    cores: Vec<u32>,
    /// Longest sleep of an idle PMD thread, in microseconds. If the longest sleep is 0, the thread
    /// always polls.
    sleep_us: u32,
}

impl Threads {
    /// Returns the settings for one PMD thread on the worker's core, which always polls.
    fn alone(bed: &Bed) -> Self {
        Self { cores: vec![bed.worker_core()], sleep_us: 0 }
    }
}

/// Returns the number of 2 MiB pages for OVS and `guests` guests.
fn pages(guests: usize) -> u64 {
    let guests = u64::try_from(guests).unwrap_or(u64::MAX);
    SOCKET_MEM / 2 + GUEST_PAGES.max(guests.saturating_mul(PAGES_PER_GUEST))
}

/// Reserves 2 MiB pages for OVS and the guests of `switches` switches with `guests` guests each.
/// Call the function before the first guest is connected, so that all guests have pages of the same
/// kind.
pub(crate) fn reserve_pages(bed: &Bed, switches: usize, guests: usize) -> anyhow::Result<()> {
    bed.need_hugepages(pages(switches * guests))
}

/// Returns the cores of the PMD threads from which this module reads counters.
fn cores_read(cores: &[u32], load: u32) -> Vec<u32> {
    let own: Vec<u32> = cores.iter().copied().filter(|core| *core != load).collect();
    if own.is_empty() { cores.to_vec() } else { own }
}

/// Returns the OVS setting that assigns port `number` to the PMD thread of a core in `cores`.
/// Returns `None` if `cores` has a single core.
fn affinity(cores: &[u32], number: usize) -> Option<String> {
    let core = cores.get(number % cores.len().max(1)).filter(|_| cores.len() > 1)?;
    Some(format!("other_config:pmd-rxq-affinity=0:{core}"))
}

impl OvsDpdk {
    /// Starts the database and the switch of OVS, and adds a bridge with the ports `a` and `b`.
    pub fn start(bed: &Bed, tso: Tso) -> anyhow::Result<Self> {
        let name = if tso == Tso::On { "ovs-tso" } else { "ovs" };
        let threads = Threads::alone(bed);
        let mut ovs = Self::start_in(bed, name, tso, &["a", "b"], &threads, None)?;
        ovs.set_case(Case::L3)?;
        Ok(ovs)
    }

    /// Works like [`Self::start`], but without offloads. If `way` is set, frames leave the switch
    /// through one interface and return through another interface.
    pub fn start_through(bed: &Bed, way: Option<Through>) -> anyhow::Result<Self> {
        let outside = way.map(|way| through::make(bed, way, "ovs")).transpose()?;
        let threads = Threads::alone(bed);
        let mut ovs = Self::start_in(bed, "ovs", Tso::Off, &["a", "b"], &threads, outside)?;
        ovs.set_case(Case::L3)?;
        Ok(ovs)
    }

    /// Starts OVS according to `plan`, in the subdirectory `name` of the experiment's temporary
    /// directory. OVS's `ingress_policing_rate` limits ports with a `Bps` policy.
    pub fn by_plan(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        ensure!(!plan.offloads, "OVS-DPDK: a plan with offloads is not supported; use one without");
        let ports: Vec<&str> = plan.vms.iter().map(|vm| vm.name.as_str()).collect();
        let mut threads = Threads::alone(bed);
        if !plan.cores.is_empty() {
            threads = Threads { cores: plan.cores.clone(), sleep_us: plan.idle_backoff_us };
        }
        let outside = plan.uplink().cloned();
        let mut ovs = Self::start_in(bed, name, Tso::Off, &ports, &threads, outside)?;
        ovs.set_rules(&plan.flows())?;
        for vm in plan.vms.iter().filter(|vm| vm.bound.policy == Policy::Bps) {
            ovs.limit(&vm.name, Some(vm.bound.bits))?;
        }
        Ok(ovs)
    }

    /// Starts OVS with the given PMD threads and ports, and without flows. The first port has
    /// number 1.
    fn start_in(
        bed: &Bed,
        name: &str,
        tso: Tso,
        ports: &[&str],
        threads: &Threads,
        outside: Option<Outside>,
    ) -> anyhow::Result<Self> {
        let cores = &threads.cores;
        check()?;
        bed.need_hugepages(pages(ports.len()))?;
        let dir = fresh_dir(bed, name)?;
        ask(in_dir(&mut Command::new("ovsdb-tool"), &dir)
            .arg("create")
            .args([dir.join("conf.db"), SCHEMA.into()]))?;
        let mut command = pinned("ovsdb-server", bed.generator_core());
        in_dir(&mut command, &dir)
            .arg(dir.join("conf.db"))
            .arg(format!("--remote=punix:{}", dir.join("db.sock").display()))
            .arg(format!("--unixctl={}", dir.join("ovsdb.ctl").display()));
        let mut database = Daemon::start(&mut command, dir.join("ovsdb.log"), bed.guard())?;
        database.await_file(&dir.join("db.sock"), START_LIMIT)?;
        configure(&dir, bed, tso, threads)?;

        // OVS creates devices with fixed names for a bridge. In a separate namespace they cannot
        // conflict with others.
        let mut command = match &outside {
            None => Command::new("unshare"),
            Some(_) => Command::new("nsenter"),
        };
        let net = |outside: &Outside| format!("--net=/run/netns/{}", outside.netns);
        command.arg(outside.as_ref().map_or_else(|| "--net".to_owned(), net));
        command.args(["--", "taskset", "-c", &bed.generator_core().to_string(), VSWITCHD]);
        in_dir(&mut command, &dir)
            .arg(format!("unix:{}", dir.join("db.sock").display()))
            .arg(format!("--unixctl={}", dir.join("vswitchd.ctl").display()));
        let mut switch = Daemon::start(&mut command, dir.join("vswitchd.log"), bed.guard())?;
        switch.await_file(&dir.join("vswitchd.ctl"), START_LIMIT)?;
        let made = add_ports(&dir, ports, cores, outside.as_ref());
        if made.is_err() {
            switch.check()?;
        }
        made.with_context(|| format!("ovs-vswitchd said:\n{}", switch.last_words()))?;
        let pmd = |core: u32| {
            let thread = ThreadClock::find(switch.id(), &format!("pmd-c{core:02}"));
            thread.map(|thread| (core, thread))
        };
        let pmds = cores_read(cores, bed.generator_core()).into_iter().map(pmd);
        let pmds = pmds.collect::<anyhow::Result<Vec<_>>>()?;
        let version = ask(Command::new(VSWITCHD).arg("--version"))?;
        let version = version.lines().map(str::trim).collect::<Vec<_>>().join(", ");
        let tsc_hz = bed.tsc_hz();
        Ok(Self {
            switch,
            _database: database,
            dir,
            tso,
            outside,
            version,
            tsc_hz,
            pmds,
            before: PmdReading::default(),
            waited_before_ns: 0,
        })
    }

    /// Replaces all flows of the bridge.
    fn set_rules(&mut self, rules: &[String]) -> anyhow::Result<()> {
        ask(Command::new("ovs-ofctl").arg("del-flows").arg(self.bridge()))?;
        for rule in rules {
            ask(Command::new("ovs-ofctl").arg("add-flow").arg(self.bridge()).arg(rule))?;
        }
        // OVS removes cached flows of the old table only at its next check. This command starts the
        // check.
        self.appctl(&["revalidator/purge"])?;
        Ok(())
    }

    fn bridge(&self) -> String {
        format!("unix:{}", self.dir.join("br0.mgmt").display())
    }

    fn appctl(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("ovs-appctl");
        ask(command.arg("-t").arg(self.dir.join("vswitchd.ctl")).args(words))
    }

    fn pmd(&self) -> anyhow::Result<PmdReading> {
        let mut sum = PmdReading::default();
        for (core, _) in &self.pmds {
            let core = core.to_string();
            let perf = self.appctl(&["dpif-netdev/pmd-perf-show", "-nh", "-pmd", &core])?;
            sum = sum.with(&perf::parse(&perf)?);
        }
        Ok(sum)
    }
}

/// Sets the environment of an OVS program so that the program uses only files in `dir`.
fn in_dir<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(name, dir);
    }
    command
}

fn pinned(program: &str, core: u32) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

fn vsctl(dir: &Path, words: &[String]) -> anyhow::Result<String> {
    let mut command = Command::new("ovs-vsctl");
    command.arg("--timeout=30").arg(format!("--db=unix:{}", dir.join("db.sock").display()));
    ask(command.args(words))
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Writes the settings that must be in OVS's database before the switch starts.
fn configure(dir: &Path, bed: &Bed, tso: Tso, threads: &Threads) -> anyhow::Result<()> {
    vsctl(dir, &words("--no-wait init"))?;
    let mut set = words("--no-wait set Open_vSwitch .");
    let mask =
        |cores: &[u32]| format!("{:#x}", cores.iter().fold(0_u128, |mask, core| mask | 1 << core));
    set.extend([
        "other_config:dpdk-init=true".to_owned(),
        format!("other_config:dpdk-lcore-mask={}", mask(&[bed.generator_core()])),
        format!("other_config:dpdk-socket-mem={SOCKET_MEM}"),
        "other_config:dpdk-extra=--in-memory --no-pci --no-telemetry".to_owned(),
        format!("other_config:pmd-cpu-mask={}", mask(&threads.cores)),
    ]);
    if threads.sleep_us > 0 {
        // OVS 3.1 has the first name, and later versions the second one.
        let names = ["pmd-maxsleep", "pmd-sleep-max"];
        set.extend(names.map(|name| format!("other_config:{name}={}", threads.sleep_us)));
    }
    if tso == Tso::On {
        set.push("other_config:userspace-tso-enable=true".to_owned());
    }
    vsctl(dir, &set)?;
    Ok(())
}

/// Creates the bridge and its ports. Vhost-user ports belong to the PMD threads of `cores` in turn,
/// and interfaces belong to the first PMD thread.
fn add_ports(
    dir: &Path,
    ports: &[&str],
    cores: &[u32],
    outside: Option<&Outside>,
) -> anyhow::Result<()> {
    vsctl(dir, &words("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure"))?;
    let ready = vsctl(dir, &words("get Open_vSwitch . dpdk_initialized"))?;
    if ready.trim() != "true" {
        bail!("DPDK did not start; make sure that {SOCKET_MEM} MiB of 2 MiB hugepages are free");
    }
    for (number, port) in (1..).zip(ports) {
        let mut add = words(&format!(
            "add-port br0 {port} -- set Interface {port} type=dpdkvhostuserclient \
             ofport_request={number}"
        ));
        let socket = socket_in(dir, port);
        add.push(format!("options:vhost-server-path={}", socket.display()));
        add.extend(affinity(cores, number - 1));
        vsctl(dir, &add)?;
    }
    let Some(outside) = outside else { return Ok(()) };
    for (number, end) in (ports.len() + 1..).zip(outside.ends) {
        let kind = in_ovs(outside.way, end);
        let add =
            format!("add-port br0 {end} -- set Interface {end} ofport_request={number} {kind}");
        let mut add = words(&add);
        add.extend(affinity(cores, 0));
        vsctl(dir, &add)?;
        let error = vsctl(dir, &words(&format!("get Interface {end} error")))?;
        ensure!(error.trim() == "[]", "OVS could not create port {end}: {}", error.trim());
    }
    outside.join()
}

/// Returns the OVS flow table for a benchmark's case.
fn rules(case: Case, outside: bool) -> Vec<String> {
    let number =
        |port: &str| 1 + ["a", "b", "u0", "u1"].iter().position(|p| *p == port).unwrap_or(0);
    let hops = if outside { &HOPS[..] } else { &[("a", "b", VM_B), ("b", "a", VM_A)] };
    let hops = hops.iter().map(|(from, to, vm)| (number(from), number(to), vm));
    match case {
        Case::SimpleMatch => {
            hops.map(|(from, to, _)| format!("in_port={from},actions=output:{to}")).collect()
        }
        Case::L3 => {
            let mut rules = Vec::new();
            for (from, to, vm) in hops {
                for net in ["0.0.0.0/1", "128.0.0.0/1"] {
                    rules.push(format!(
                        "priority=10,ip,in_port={from},dl_dst={},nw_dst={net},actions=output:{to}",
                        vm.mac()
                    ));
                }
            }
            // The kernel's network stacks at the ports send ARP requests. Penstock needs no rules
            // for them, because it learns addresses.
            if !outside {
                rules.push("priority=5,arp,in_port=1,actions=output:2".into());
                rules.push("priority=5,arp,in_port=2,actions=output:1".into());
            }
            rules
        }
    }
}

impl Switch for OvsDpdk {
    fn name(&self) -> &'static str {
        match self.tso {
            Tso::Off => "ovs-dpdk",
            Tso::On => "ovs-dpdk-tso",
        }
    }

    fn socket(&self, port: &str) -> PathBuf {
        socket_in(&self.dir, port)
    }

    fn listens(&self) -> bool {
        false
    }

    fn tsc_hz(&self) -> f64 {
        self.tsc_hz
    }

    fn describe(&self, platform: &mut Map<String, Value>) {
        platform.insert("ovs".into(), self.version.clone().into());
    }

    fn set_case(&mut self, case: Case) -> anyhow::Result<()> {
        self.set_rules(&rules(case, self.outside.is_some()))
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.switch.signal(Signal::SIGSTOP)
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.switch.check()?;
        self.switch.signal(Signal::SIGCONT)
    }

    fn workers_read(&self) -> usize {
        self.pmds.len()
    }

    fn waited_ns(&self) -> u64 {
        self.pmds.iter().map(|(_, thread)| thread.waited_ns()).sum()
    }

    fn mark(&mut self) -> anyhow::Result<()> {
        self.before = self.pmd()?;
        self.waited_before_ns = self.waited_ns();
        Ok(())
    }

    fn read(&mut self) -> anyhow::Result<WorkerReading> {
        let waited_ns = self.waited_ns() - self.waited_before_ns;
        let pmd = self.pmd()?.since(&self.before);
        let share = |hits: u64| percent(hits, pmd.packets);
        let notes = vec![
            ("simple_match_percent", share(pmd.simple_match_hits)),
            ("emc_percent", share(pmd.emc_hits)),
            ("smc_percent", share(pmd.smc_hits)),
            ("megaflow_percent", share(pmd.megaflow_hits)),
            ("upcall_percent", share(pmd.upcalls)),
            ("packets_per_batch", percent(pmd.sent, pmd.batches) / 100.0),
        ];
        let (frames, busy_cycles) = (pmd.packets, pmd.busy_cycles);
        Ok(WorkerReading { frames, busy_cycles, waited_ns, notes })
    }

    fn read_some(&mut self) -> anyhow::Result<WorkerReading> {
        let reading = self.read()?;
        ensure!(reading.frames > 0, "OVS received no frame:\n{}", self.switch.last_words());
        Ok(reading)
    }

    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()> {
        // The burst is 10 ms of the rate, as the documentation of OVS recommends. A rate of 0 means
        // no limit.
        let kbits = whole(bits.map_or(0.0, |bits| bits.max(LEAST_BITS)) / 1000.0);
        let burst = kbits / 100;
        let limits = format!(
            "set Interface {port} ingress_policing_rate={kbits} ingress_policing_burst={burst}"
        );
        vsctl(&self.dir, &words(&limits)).map(drop)
    }

    fn ask(&self, _: &[&str]) -> Option<anyhow::Result<String>> {
        None
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in kbit/s")]
fn whole(rate: f64) -> u64 {
    rate as u64
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_beside_the_load_is_read_only_if_it_is_alone() {
        assert_eq!(cores_read(&[1], 0), [1]);
        assert_eq!(cores_read(&[1, 0], 0), [1]);
        assert_eq!(cores_read(&[3, 2], 0), [3, 2]);
        assert_eq!(cores_read(&[0], 0), [0]);
    }

    #[test]
    fn ports_belong_to_the_threads_in_turn() {
        assert_eq!(affinity(&[1], 0), None);
        let ports: Vec<_> = (0..3).filter_map(|port| affinity(&[1, 0], port)).collect();
        let set = |core: u32| format!("other_config:pmd-rxq-affinity=0:{core}");
        assert_eq!(ports, [set(1), set(0), set(1)]);
    }
}
