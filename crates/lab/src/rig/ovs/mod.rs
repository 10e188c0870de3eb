//! An OVS-DPDK of our own: database, switch and sockets are in one directory. Its devices have a
//! network namespace, and the system's own OVS is not touched.
//!
//! # Source
//!
//! `ovs-vswitchd.conf.db(5)`; OVS's documentation of DPDK and of vhost-user ports.
//!
//! # Approach
//!
//! OVS gets the configuration in which it performs best:
//!
//! - ports of type `dpdkvhostuserclient`;
//! - one PMD thread on the worker's core;
//! - hugepages;
//! - its own metrics off (`pmd-perf-metrics`), because they cost cycles;
//! - its control threads on the generator's core, where frames never wait for them.

mod perf;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::{Map, Value};

use super::plan::{Plan, Policy};
use super::switch::{Case, LEAST_BITS, Switch, VM_A, VM_B, WorkerReading, fresh_dir, socket_in};
use super::through::{ENDS, HOPS, Outside, Through};
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::{Daemon, ThreadClock, ask};
use perf::PmdReading;

/// The Debian package that contains OVS-DPDK.
const PACKAGE: &str = "openvswitch-switch-dpdk";
const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const START_LIMIT: Duration = Duration::from_secs(30);
/// Memory for OVS's packet buffers, in MiB.
const SOCKET_MEM: u64 = 1024;
/// 2 MiB pages for guests, in addition to `SOCKET_MEM`.
const GUEST_PAGES: u64 = 64;

/// How OVS handles segmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tso {
    /// OVS's default: neither segmentation nor checksum offload.
    Off,
    /// Sets `userspace-tso-enable`.
    On,
}

/// A running OVS with a bridge of vhost-user ports.
#[derive(Debug)]
pub(crate) struct OvsDpdk {
    // The switch ends before its database.
    switch: Daemon,
    _database: Daemon,
    dir: PathBuf,
    tso: Tso,
    outside: Option<Outside>,
    version: String,
    core: u32,
    tsc_hz: f64,
    pmd: ThreadClock,
    before: PmdReading,
    waited_before_ns: u64,
}

/// Checks whether OVS-DPDK can run here.
///
/// # Errors
///
/// Fails with the remedy if it is not installed or this process is not root.
pub(crate) fn check() -> anyhow::Result<()> {
    let found = [VSWITCHD, SCHEMA].iter().all(|file| Path::new(file).exists());
    ensure!(
        found,
        "peer ovs-dpdk: {VSWITCHD} is not there; install Debian's package {PACKAGE} \
         (apt-get install {PACKAGE})"
    );
    ensure!(
        nix::unistd::geteuid().is_root(),
        "peer ovs-dpdk: needs root for hugepages and a network namespace; run as root, or leave \
         --peer out"
    );
    Ok(())
}

impl OvsDpdk {
    /// Starts database and switch, and adds the bridge and its ports.
    pub fn start(bed: &Bed, tso: Tso) -> anyhow::Result<Self> {
        let name = if tso == Tso::On { "ovs-tso" } else { "ovs" };
        let mut ovs = Self::start_in(bed, name, tso, &["a", "b"], None)?;
        ovs.set_case(Case::L3)?;
        Ok(ovs)
    }

    /// Adds interfaces through which frames leave and come back in, if `way` is given.
    pub fn start_through(bed: &Bed, way: Option<Through>) -> anyhow::Result<Self> {
        let outside = way.map(|way| Outside::make(bed, way, "ovs")).transpose()?;
        let mut ovs = Self::start_in(bed, "ovs", Tso::Off, &["a", "b"], outside)?;
        ovs.set_case(Case::L3)?;
        Ok(ovs)
    }

    /// Starts OVS according to `plan` in directory `name` of the bed. Ports that bought bits are
    /// limited by `ingress_policing_rate`.
    pub fn by_plan(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        ensure!(!plan.offloads, "OVS-DPDK runs a plan without offloads only");
        let ports: Vec<&str> = plan.vms.iter().map(|vm| vm.name.as_str()).collect();
        let mut ovs = Self::start_in(bed, name, Tso::Off, &ports, None)?;
        ovs.set_rules(&plan.flows())?;
        for vm in plan.vms.iter().filter(|vm| vm.bound.policy == Policy::Bps) {
            ovs.limit(&vm.name, Some(vm.bound.bits))?;
        }
        Ok(ovs)
    }

    /// Starts OVS with these ports, which are numbered from 1, and without flows.
    fn start_in(
        bed: &Bed,
        name: &str,
        tso: Tso,
        ports: &[&str],
        outside: Option<Outside>,
    ) -> anyhow::Result<Self> {
        check()?;
        bed.need_hugepages(SOCKET_MEM / 2 + GUEST_PAGES)?;
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
        configure(&dir, bed, tso)?;

        // A bridge makes devices of fixed names. A namespace of its own keeps them apart.
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
        let made = add_ports(&dir, ports, outside.as_ref());
        if made.is_err() {
            switch.check()?;
        }
        made.with_context(|| format!("ovs-vswitchd said:\n{}", switch.last_words()))?;
        let pmd = ThreadClock::find(switch.id(), "pmd-c")?;
        let version = ask(Command::new(VSWITCHD).arg("--version"))?;
        let version = version.lines().map(str::trim).collect::<Vec<_>>().join(", ");
        let (core, tsc_hz) = (bed.worker_core(), bed.tsc_hz());
        Ok(Self {
            switch,
            _database: database,
            dir,
            tso,
            outside,
            version,
            core,
            tsc_hz,
            pmd,
            before: PmdReading::default(),
            waited_before_ns: 0,
        })
    }

    /// Replaces all flows.
    fn set_rules(&mut self, rules: &[String]) -> anyhow::Result<()> {
        ask(Command::new("ovs-ofctl").arg("del-flows").arg(self.bridge()))?;
        for rule in rules {
            ask(Command::new("ovs-ofctl").arg("add-flow").arg(self.bridge()).arg(rule))?;
        }
        // Flows of the former table disappear when OVS next checks them. This command makes it
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
        let core = self.core.to_string();
        let perf = self.appctl(&["dpif-netdev/pmd-perf-show", "-nh", "-pmd", &core])?;
        perf::parse(&perf)
    }
}

/// Makes an OVS program use only its directory, and write its log to standard error.
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

/// Writes the settings that must be in the database before the switch starts.
fn configure(dir: &Path, bed: &Bed, tso: Tso) -> anyhow::Result<()> {
    vsctl(dir, &words("--no-wait init"))?;
    let mut set = words("--no-wait set Open_vSwitch .");
    let mask = |core: u32| format!("{:#x}", 1_u64 << core);
    set.extend([
        "other_config:dpdk-init=true".to_owned(),
        format!("other_config:dpdk-lcore-mask={}", mask(bed.generator_core())),
        format!("other_config:dpdk-socket-mem={SOCKET_MEM}"),
        "other_config:dpdk-extra=--in-memory --no-pci --no-telemetry".to_owned(),
        format!("other_config:pmd-cpu-mask={}", mask(bed.worker_core())),
    ]);
    if tso == Tso::On {
        set.push("other_config:userspace-tso-enable=true".to_owned());
    }
    vsctl(dir, &set)?;
    Ok(())
}

/// Makes the bridge and its ports.
fn add_ports(dir: &Path, ports: &[&str], outside: Option<&Outside>) -> anyhow::Result<()> {
    vsctl(dir, &words("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure"))?;
    let ready = vsctl(dir, &words("get Open_vSwitch . dpdk_initialized"))?;
    if ready.trim() != "true" {
        bail!("DPDK did not start; are {SOCKET_MEM} MiB of 2 MiB hugepages free?");
    }
    for (number, port) in (1..).zip(ports) {
        let mut add = words(&format!(
            "add-port br0 {port} -- set Interface {port} type=dpdkvhostuserclient \
             ofport_request={number}"
        ));
        let socket = socket_in(dir, port);
        add.push(format!("options:vhost-server-path={}", socket.display()));
        vsctl(dir, &add)?;
    }
    let Some(outside) = outside else { return Ok(()) };
    for (number, end) in (ports.len() + 1..).zip(ENDS) {
        let kind = outside.way.in_ovs(end);
        let add =
            format!("add-port br0 {end} -- set Interface {end} ofport_request={number} {kind}");
        vsctl(dir, &words(&add))?;
        let error = vsctl(dir, &words(&format!("get Interface {end} error")))?;
        ensure!(error.trim() == "[]", "OVS has no port {end}: {}", error.trim());
    }
    outside.join()
}

/// The flow table of a case.
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
            // The kernel's stacks behind the ports send ARP requests. Penstock learns the
            // addresses.
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

    fn waited_ns(&self) -> u64 {
        self.pmd.waited_ns()
    }

    fn mark(&mut self) -> anyhow::Result<()> {
        self.before = self.pmd()?;
        self.waited_before_ns = self.pmd.waited_ns();
        Ok(())
    }

    fn read(&mut self) -> anyhow::Result<WorkerReading> {
        let waited_ns = self.pmd.waited_ns() - self.waited_before_ns;
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
        ensure!(reading.frames > 0, "OVS took no frame:\n{}", self.switch.last_words());
        Ok(reading)
    }

    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()> {
        // A burst of 10 ms of the rate, as OVS's documentation advises. 0 is no limit.
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
