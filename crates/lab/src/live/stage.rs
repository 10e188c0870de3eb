//! Real programs behind a Penstock switch. Each VM of a plan is a network namespace with an
//! endpoint as its NIC.
//!
//! # Approach
//!
//! The switch's worker has its own core. Endpoints, kernel stacks and all programs share the
//! generator's core. To make the switch the bottleneck, figures cap the worker's `capacity`,
//! equally for every policy. A guard removes namespaces, daemons and files after a run. Rates come
//! from the switch's counters of the frames that each port sent.
//!
//! If a figure measures times, endpoints and programs get real-time priority ([`Plan::prompt`]).
//! Without real-time priority, a kernel that preempts only at its tick lets other programs keep the
//! core for 4 ms.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::penstock::penstock;
use crate::rig::penstock::Penstock;
use crate::rig::plan::Plan;
use crate::rig::stats::to_f64;
use crate::rig::switch::{Switch, count};
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::{Ward, end_inside};
use penstock_guest::bed::process::{Daemon, ask, await_ok, await_some};
use penstock_guest::clock;

/// Maximum time until the namespaces exist and packets pass.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Arguments of `chrt` for round-robin scheduling at the lowest real-time priority.
const REAL_TIME: [&str; 2] = ["-r", "1"];

/// A switch with a namespace behind each of its ports.
#[derive(Debug)]
pub(crate) struct Stage {
    // Declared before the switch, so that the programs end first.
    programs: Vec<Option<Daemon>>,
    _endpoint: Daemon,
    ours: Penstock,
    dir: PathBuf,
    core: String,
    prompt: bool,
    namespaces: Vec<(String, String)>,
}

/// Counters of all ports of the switch at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// Nanoseconds from the daemon's start to the reading. The lab's own clock would add the time
    /// that the reading takes to arrive.
    at_ns: u64,
    stats: Value,
}

impl Reading {
    #[cfg(test)]
    pub fn new(at_ns: u64, stats: Value) -> Self {
        Self { at_ns, stats }
    }

    /// Returns the bits per second, FCS included, that the VM at `port` sent since the reading
    /// `before`. A large segment counts as the frames that it becomes on the wire.
    pub fn bps(&self, before: &Self, port: &str) -> f64 {
        self.wire_bps(before, port, 4.0)
    }

    /// Works like [`Self::bps`], with `overhead` bytes for each frame instead of the FCS.
    pub fn wire_bps(&self, before: &Self, port: &str, overhead: f64) -> f64 {
        let of = |name: &str| self.per_second(before, port, name);
        let frames = of("rx_frames") - of("rx_tso") + of("rx_segments");
        8.0 * (of("rx_bytes") + of("rx_segment_headers") + overhead * frames)
    }

    /// Returns the increase per second of the port's counter `name` since the reading `before`.
    pub fn per_second(&self, before: &Self, port: &str, name: &str) -> f64 {
        let grown = self.grown(before, port, name);
        1e9 * to_f64(grown) / to_f64(self.at_ns.saturating_sub(before.at_ns).max(1))
    }

    /// Returns the seconds from the reading `before` to this reading.
    pub fn secs_since(&self, before: &Self) -> f64 {
        to_f64(self.at_ns.saturating_sub(before.at_ns)) / 1e9
    }

    /// Returns the increase of the port's counter `name` since the reading `before`.
    pub fn grown(&self, before: &Self, port: &str, name: &str) -> u64 {
        count(&self.stats, port, name).saturating_sub(count(&before.stats, port, name))
    }

    /// Returns the number of frames from the port that left a queue of an output since the reading
    /// `before`.
    pub fn waited(&self, before: &Self, port: &str) -> u64 {
        let all = |stats: &Value| {
            let mut ports = stats["ports"].as_array().into_iter().flatten();
            let of = ports.find(|of| of["port"] == port);
            of.and_then(|of| of["delays"]["waited"]["frames"].as_u64()).unwrap_or(0)
        };
        all(&self.stats).saturating_sub(all(&before.stats))
    }

    /// Returns the value of the port's gauge `name`, for example `queued`, or 0 if there is none.
    pub fn level(&self, port: &str, name: &str) -> u64 {
        count(&self.stats, port, name)
    }

    /// Returns the increase of the counter `name` of the first worker since the reading `before`.
    pub fn worker_grown(&self, before: &Self, name: &str) -> u64 {
        let of = |stats: &Value| stats["workers"][0]["counters"][name].as_u64().unwrap_or(0);
        of(&self.stats).saturating_sub(of(&before.stats))
    }

    /// Returns the number of frames from and to the port that were dropped since the reading
    /// `before`.
    pub fn dropped(&self, before: &Self, port: &str) -> u64 {
        let all = |stats: &Value| {
            let ports = stats["ports"].as_array().into_iter().flatten();
            let of = ports.filter(|of| of["port"] == port);
            let drops = of.flat_map(|of| [&of["drops"], &of["tx_drops"]]);
            let counts = drops.filter_map(Value::as_object).flat_map(|of| of.values());
            counts.filter_map(Value::as_u64).sum::<u64>()
        };
        all(&self.stats).saturating_sub(all(&before.stats))
    }
}

impl Stage {
    /// Starts the switch, and a network namespace with an endpoint behind each port.
    pub fn start(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        let ours = Penstock::by_plan(bed, name, plan)?;
        let dir = bed.dir().join(format!("{name}-programs"));
        if !dir.exists() {
            std::fs::create_dir(&dir).context("making a directory")?;
        }
        let core = bed.generator_core().to_string();
        let mut command = penstock()?;
        command.args(["endpoint", "--create-netns", "--core", &core]);
        let mut namespaces = Vec::new();
        for (number, vm) in plan.vms.iter().enumerate() {
            let netns = format!("pl{}-{name}-{number}", std::process::id());
            bed.guard().take(&Ward::Netns(netns.clone()))?;
            let offloads = if plan.offloads { "on" } else { "off" };
            let mtu = if plan.mtu == 0 { 1_500 } else { plan.mtu };
            command.arg("--nic").arg(format!(
                "socket={},mode=client,netns={netns},mac={},ip={}/8,offloads={offloads},mtu={mtu},\
                 queues={},delay-us={}",
                ours.socket(&vm.name).display(),
                Plan::mac(number),
                Plan::ip(number),
                plan.pairs.max(1),
                plan.delay_us,
            ));
            namespaces.push((vm.name.clone(), netns));
        }
        let mut endpoint = Daemon::start(&mut command, dir.join("endpoint.log"), bed.guard())?;
        let log = dir.join("endpoint.log");
        await_some("endpoints", START_LIMIT, || {
            endpoint.check()?;
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            Ok(said.lines().any(|line| line == "ready").then_some(()))
        })?;
        let prompt = plan.prompt && bed.raises_priority();
        if prompt {
            let id = endpoint.id().to_string();
            ask(Command::new("chrt").args(["-a", "-p"]).args(REAL_TIME).arg(&id))?;
        }
        let programs = Vec::new();
        Ok(Self { programs, _endpoint: endpoint, ours, dir, core, prompt, namespaces })
    }

    /// Returns the directory of the files that the stage creates.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens the network namespace of `vm`.
    pub fn namespace(&self, vm: &str) -> anyhow::Result<File> {
        let path = self.netns(vm)?;
        File::open(&path).with_context(|| path)
    }

    fn netns(&self, vm: &str) -> anyhow::Result<String> {
        let netns = self.namespaces.iter().find(|(name, _)| name == vm);
        let (_, netns) = netns.with_context(|| format!("no VM is named {vm}"))?;
        Ok(format!("/run/netns/{netns}"))
    }

    /// Builds a command that runs in the namespace of `vm`, on the generator's core.
    pub fn inside(&self, vm: &str, program: &str, words: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.netns(vm)?));
        command.args(["--", "taskset", "-c", &self.core]);
        if self.prompt {
            command.arg("chrt").args(REAL_TIME);
        }
        command.arg(program).args(words);
        Ok(command)
    }

    /// Starts a program in the namespace of `vm`, and returns the program's number. The program
    /// ends when the `Stage` is dropped.
    pub fn start_program(
        &mut self,
        bed: &Bed,
        vm: &str,
        program: &str,
        words: &[&str],
    ) -> anyhow::Result<usize> {
        let number = self.programs.len();
        let log = self.log(number);
        let mut command = self.inside(vm, program, words)?;
        self.programs.push(Some(Daemon::start(&mut command, log, bed.guard())?));
        Ok(number)
    }

    fn log(&self, program: usize) -> PathBuf {
        self.dir.join(format!("program-{program}.log"))
    }

    /// Waits until a program ends, and returns the program's output. Returns an error if the
    /// program still runs after the time `limit`.
    pub fn await_program(&mut self, program: usize, limit: Duration) -> anyhow::Result<String> {
        let running = self.programs.get_mut(program).and_then(Option::as_mut);
        running.context("no such program")?.await_end(limit)?;
        self.said(program)
    }

    /// Returns the text that a program has printed so far.
    pub fn said(&self, program: usize) -> anyhow::Result<String> {
        std::fs::read_to_string(self.log(program)).context("reading a program's output")
    }

    /// Waits until a program has printed `text`. Returns an error if the program does not print
    /// `text` within the time `limit`, or ends before it prints `text`.
    pub fn await_said(
        &mut self,
        program: usize,
        text: &str,
        limit: Duration,
    ) -> anyhow::Result<()> {
        await_some(&format!("output `{text}` of a program"), limit, || {
            let running = self.programs.get_mut(program).and_then(Option::as_mut);
            running.context("no such program")?.check()?;
            Ok(self.said(program)?.contains(text).then_some(()))
        })
    }

    /// Returns the number of programs that the stage has started so far.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    pub fn end_programs(&mut self, which: std::ops::Range<usize>) {
        for program in self.programs.get_mut(which).into_iter().flatten() {
            drop(program.take());
        }
    }

    /// Waits until `vm` can open a TCP connection to `port` of VM number `to`.
    pub fn await_tcp(&self, vm: &str, to: usize, port: u16) -> anyhow::Result<()> {
        let what = format!("port {port} of {}", Plan::ip(to));
        await_ok(&what, START_LIMIT, || {
            let address = format!("/dev/tcp/{}/{port}", Plan::ip(to));
            let probe = format!("exec 3<>{address}");
            let mut command = self.inside(vm, "timeout", &["1", "bash", "-c", &probe])?;
            Ok(ask(&mut command).map(drop))
        })
    }

    /// Sets a configuration key of a port, for example `queue={ bytes = 4096 }`. The switch does
    /// not save the value in its configuration file, and loses the value when it ends.
    pub fn set(&self, port: &str, change: &str) -> anyhow::Result<()> {
        self.ours.ctl(&["port", "set", port, change, "--no-save"]).map(drop)
    }

    /// Sets or clears configuration keys of an object, for example of `port` `vm`, in one change.
    pub fn change(&self, what: &str, name: &str, changes: &[&str]) -> anyhow::Result<()> {
        let words = [&[what, "set", name][..], changes, &["--no-save"]].concat();
        self.ours.ctl(&words).map(drop)
    }

    /// Limits the rate at which a port's VM sends, in bits per second without FCS.
    pub fn limit(&mut self, port: &str, bits: f64) -> anyhow::Result<()> {
        self.ours.limit(port, Some(bits))
    }

    /// Returns the nanoseconds for which the worker has waited for its core since the worker's
    /// start.
    pub fn waited_ns(&self) -> u64 {
        self.ours.waited_ns()
    }

    /// Waits until hardly any frame comes from the VM at `port`. After a flood, frames may wait in
    /// the VM's ring, and they would take the rate of the next stream.
    ///
    /// # Errors
    /// Returns an error if the VM still sends after [`START_LIMIT`].
    pub fn await_silence(&self, port: &str) -> anyhow::Result<()> {
        let began = clock::now();
        loop {
            let readings = self.watch(0.2, Duration::from_millis(100))?;
            if let [first, .., last] = &readings[..]
                && last.grown(first, port, "rx_frames") < 10
            {
                return Ok(());
            }
            anyhow::ensure!(began.elapsed() < START_LIMIT, "{port} does not stop sending");
        }
    }

    pub fn read(&self) -> anyhow::Result<Reading> {
        let stats = self.ours.stats()?;
        let at_ns = stats["time_ns"].as_u64().context("counters without their time")?;
        Ok(Reading { at_ns, stats })
    }

    /// Reads the counters immediately, and then every `step` for `secs` seconds.
    pub fn watch(&self, secs: f64, step: Duration) -> anyhow::Result<Vec<Reading>> {
        let began = clock::now();
        let mut readings = vec![self.read()?];
        while began.elapsed().as_secs_f64() < secs {
            clock::wait_readable(None, step);
            readings.push(self.read()?);
        }
        Ok(readings)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.programs.clear();
        self.namespaces.iter().for_each(|(_, netns)| end_inside(netns));
    }
}

/// Returns the mean rate at which the VM at `port` sent during `readings`, in bits per second.
/// Returns NaN if `readings` has fewer than two entries.
pub(crate) fn mean_bps(readings: &[Reading], port: &str) -> f64 {
    match readings {
        [first, .., last] => last.bps(first, port),
        _ => f64::NAN,
    }
}
