//! A switch process with one configuration, and its VMs. The process runs during a measurement and
//! is stopped (SIGSTOP) otherwise.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;
use penstock_qos::cost_model::{RingKind, Stages};
use serde_json::Value;

use crate::table::to_f64;
use penstock_guest::bed::Bed;
use penstock_guest::bed::distance::{Kept, alike, round_trip_ns};
use penstock_guest::bed::guard::THIS_PROGRAM;
use penstock_guest::bed::process::{Daemon, ThreadClock, ask, await_ok};
use penstock_guest::clock;
use penstock_guest::driver::{Features, SocketMode};
use penstock_guest::load::{
    Destination, LoadSpec, LoadVm, Phase, Rate, SizeMix, VmSpec, run_queue_wait_ns,
};
use penstock_guest::mac::Mac;

/// Longest wait for the started daemon.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time without ring activity after which no frame counts as in flight.
const SILENCE: Duration = Duration::from_millis(4);
/// Longest wait until no frame is in flight.
const SILENCE_LIMIT: Duration = Duration::from_secs(2);
/// Descriptors of each sender's ring.
const RING: u16 = 256;
/// Descriptors of the receiver's ring.
const RING_OF_ALL: u16 = 1024;
/// Part of the core that the senders of a calibration buy, with strict cycles. A sender with a
/// contract is limited by its cycles, not by the speed of the core: its ring is full, so that its
/// batches are full, and the worker pauses between them. The costs of a frame differ from those of
/// a core that is full with the frames of one VM.
const SOLD: f64 = 0.15;
/// A window is measured again if the worker or a VM waits for its core during more than this part
/// of the window.
const QUIET: f64 = 0.01;
/// Limit on windows without a usable reading, for each sample.
const MISSED_MAX: usize = 10;
/// Disturbance of a window in which the cores moved, as a share of the window.
const MOVED: f64 = 1.0;
/// Number of rounds of the load generator between two readings of the clock.
const TURNS: u32 = 8;

#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub name: String,
    /// Kind of the rings of all VMs.
    pub ring: RingKind,
    /// Number of VMs that send. All senders send to one further VM.
    pub senders: usize,
    /// Number of workers of the switch.
    pub workers: usize,
    /// Configuration keys of the senders' ports, of the receiver's port, and of the tenant.
    pub keys: [&'static str; 3],
    /// VLAN of the senders' ports; `None` means untagged.
    pub vlan: Option<u16>,
    /// Whether the receiver wants an interrupt for the frames that it receives.
    pub interrupts: bool,
    /// Rules of the switch, as `[[rule]]` tables of its configuration file.
    pub rules: String,
    /// Further keys of `[worker]`, and further sections.
    pub head: String,
    /// Part of the core's cycles that the senders buy together; 0 if they buy none, or if their
    /// keys have contracts.
    pub sold: f64,
}

impl Setting {
    /// Returns a setting in which one VM sends to another without tags. The VM bought [`SOLD`] of
    /// the core.
    pub fn plain(name: impl Into<String>, ring: RingKind, rules: String) -> Self {
        let (keys, head) = ([""; 3], "schedule = \"hbs\"\n".to_owned());
        let (name, vlan, interrupts) = (name.into(), None, false);
        let (senders, workers, sold) = (1, 1, SOLD);
        Self { name, ring, senders, workers, keys, vlan, interrupts, rules, head, sold }
    }

    /// Returns the keys with which a sender's port buys its part of the core.
    fn bought(&self, bed: &Bed) -> String {
        if self.sold <= 0.0 {
            return String::new();
        }
        let senders = to_f64((self.senders as u64).max(1));
        let cycles = self.sold * bed.tsc_hz() / senders;
        format!("ingress_policy = \"cycles-strict\"\ncycles = {cycles:.0}\n")
    }

    fn configuration(&self, dir: &std::path::Path, bed: &Bed) -> anyhow::Result<String> {
        let at = dir.display();
        let (workers, control) = (bed.worker_cores(self.workers)?, bed.generator_core());
        let ([senders, receiver, tenant], bought) = (self.keys, self.bought(bed));
        let mut text = format!(
            "[host]\nname = \"calibrate\"\nsocket = \"{at}/host.sock\"\n\
             state_dir = \"{at}/state\"\n\n[worker]\ncores = {workers:?}\n\
             control_cores = [{control}]\nidle_backoff_us = 0\n{}\n\
             [[tenant]]\nname = \"t\"\n{tenant}\n",
            self.head
        );
        for at_port in 0..=self.senders {
            let name = vm_name(at_port);
            let (keys, bought) =
                if at_port == 0 { (receiver, "") } else { (senders, bought.as_str()) };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "\n[[port]]\nname = \"{name}\"\ntenant = \"t\"\n\
                 vhost-user.mode = \"client\"\nvhost-user.socket = \"{at}/{name}.sock\"\n{keys}\n\
                 {bought}"
            );
            // The switch knows the receiver's address from the start. On a trunk, the receiver's
            // untagged announcement has no effect.
            if at_port == 0 {
                text += "mac = [\"52:54:00:00:05:01\"]\n";
            }
        }
        Ok(text + &self.rules)
    }

    fn load(&self, dir: &std::path::Path) -> LoadSpec {
        let vms = (0..=self.senders).map(|number| {
            let name = vm_name(number);
            let last = u8::try_from(number + 1).unwrap_or(u8::MAX);
            let socket = dir.join(format!("{name}.sock"));
            let mac = Mac([0x52, 0x54, 0, 0, 5, last]);
            let mut vm = VmSpec::new(&name, socket, mac, Ipv4Addr::new(10, 0, 0, last));
            vm.mode = SocketMode::Server;
            vm.ring_size = RING;
            vm.sizes = SizeMix::fixed(1518);
            if self.ring == RingKind::Packed {
                vm.wanted = vm.wanted | Features::RING_PACKED;
            }
            if number == 0 {
                // The ring has room for a burst of every sender.
                vm.ring_size = RING_OF_ALL;
                vm.interrupts = self.interrupts;
            } else {
                vm.to = Some(Destination::Vm(vm_name(0)));
                vm.vlan = self.vlan;
                vm.rate = Rate::Stop;
            }
            vm
        });
        let mut spec = LoadSpec::new(vms.collect(), 0.0);
        spec.touch = true;
        spec.wait_secs = START_LIMIT.as_secs_f64();
        spec
    }
}

/// Returns the name of a VM. The VM with number 0 is the receiver.
fn vm_name(number: usize) -> String {
    format!("v{number}")
}

#[derive(Debug, Clone)]
pub(super) struct Load {
    pub sizes: SizeMix,
    pub flows: u32,
    pub rate: Rate,
    /// Number of frames that a VM publishes at once.
    pub burst: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub warm_secs: f64,
    pub window_secs: f64,
    /// Limit on measurements of one window, if other work disturbs the window.
    pub tries: usize,
    /// Distance of the cores at which all windows are measured; `None` means any distance.
    pub kept: Option<Kept>,
}

impl Times {
    /// Whether a window at other distances is to be repeated.
    fn repeats(self, apart: Apart) -> bool {
        self.kept.is_some_and(|kept| kept.lasts() && !kept.is(apart.nanos()))
    }
}

/// Results of one measured window, for all senders together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// Cycles per frame that the worker charged to the senders, by stage.
    pub stages: Stages,
    /// Mean number of frames in a batch.
    pub batch: f64,
    /// Share of the window in which a thread waited for its core. The field has the worker's share
    /// or the load generator's share, whichever is greater.
    pub waited: f64,
    pub apart: Apart,
}

/// How far the cores of worker and load are apart before and after a window, in nanoseconds. A
/// hypervisor may move its processors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Apart {
    before: Option<f64>,
    after: Option<f64>,
}

impl Apart {
    /// Returns the distance, if it was known and did not change.
    pub fn nanos(self) -> Option<f64> {
        let (before, after) = (self.before?, self.after?);
        alike(before, after).then(|| f64::midpoint(before, after))
    }

    #[cfg(test)]
    pub const fn between(before: f64, after: f64) -> Self {
        Self { before: Some(before), after: Some(after) }
    }

    #[cfg(test)]
    pub const fn still(nanos: f64) -> Self {
        Self::between(nanos, nanos)
    }

    /// Whether the cores moved during the window.
    pub fn moved(self) -> bool {
        matches!((self.before, self.after), (Some(before), Some(after)) if !alike(before, after))
    }
}

/// What a port got that sent as fast as it could.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivered {
    /// Frames per second that arrived at the receiver.
    pub rate: f64,
    /// Part of the looks at the sender's ring that found no frame, so that the sender had sent less
    /// than it was permitted.
    pub starved: f64,
    pub apart: Apart,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    frames: u64,
    batches: u64,
    cycles: u64,
    stages: [u64; 3],
    dropped: u64,
}

/// Reason for which a window was not measured.
#[derive(Debug)]
enum Missed {
    /// The window has no usable reading.
    Window(anyhow::Error),
    /// The rig failed.
    All(anyhow::Error),
}

impl From<anyhow::Error> for Missed {
    fn from(error: anyhow::Error) -> Self {
        Self::All(error)
    }
}

#[derive(Debug)]
pub(super) struct Rig {
    daemon: Daemon,
    socket: PathBuf,
    worker: ThreadClock,
    name: String,
    /// Cores of the load generator and of the worker.
    cores: [u32; 2],
    /// The port whose counters are read; `None` means all ports.
    only: Option<&'static str>,
    /// VMs at the switch's ports, which send and receive frames. The list of VMs is empty if the
    /// module `offload` uses the switch's sockets.
    vms: Vec<LoadVm>,
}

impl Rig {
    /// Starts the switch, attaches the VMs, and stops the switch.
    pub fn start(bed: &Bed, setting: &Setting) -> anyhow::Result<Self> {
        Self::start_with(bed, setting, || Ok(()))
    }

    /// Works like [`Self::start`], and calls `join` after the switch has made its ports.
    pub fn start_with(
        bed: &Bed,
        setting: &Setting,
        join: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let (mut rig, dir) = Self::daemon(bed, setting)?;
        join()?;
        let spec = setting.load(&dir);
        let vms = bed.on_generator_core(|| {
            let connect = |number| Ok(LoadVm::connect(&spec, number)?);
            let vms: anyhow::Result<Vec<LoadVm>> = (0..spec.vms.len()).map(connect).collect();
            let mut vms = vms?;
            vms.iter_mut().try_for_each(LoadVm::announce)?;
            settle(&mut vms);
            Ok(vms)
        });
        rig.vms = vms.with_context(|| format!("{}: {}", rig.name, rig.daemon.last_words()))?;
        rig.daemon.signal(Signal::SIGSTOP)?;
        Ok(rig)
    }

    /// Starts the switch without VMs. Returns the process of the switch, and the directory of its
    /// sockets.
    pub fn daemon(bed: &Bed, setting: &Setting) -> anyhow::Result<(Self, PathBuf)> {
        let name = setting.name.clone();
        let dir = bed.dir().join(&name);
        std::fs::create_dir(&dir).context("making a directory")?;
        let file = dir.join("host.toml");
        std::fs::write(&file, setting.configuration(&dir, bed)?).context("writing a file")?;
        let mut command = Command::new(THIS_PROGRAM);
        command.args(["host", "run", "--config"]).arg(&file).env_remove("PENSTOCK_SOCKET");
        let mut daemon = Daemon::start(&mut command, dir.join("log"), bed.guard())?;
        let socket = dir.join("host.sock");
        let up = await_ok("answer of penstock", START_LIMIT, || {
            daemon.check()?;
            let mut show = Command::new(THIS_PROGRAM);
            let show = show.arg("--socket").arg(&socket).args(["host", "show", "--json"]);
            Ok(ask(show))
        });
        up.with_context(|| daemon.last_words())?;
        let worker = ThreadClock::find(daemon.id(), "penstock-w")?;
        let cores = [bed.generator_core(), bed.worker_core()];
        Ok((Self { daemon, socket, worker, name, cores, only: None, vms: Vec::new() }, dir))
    }

    /// Returns how far the cores are apart. The switch must be stopped.
    fn distance(&self) -> anyhow::Result<Option<f64>> {
        let [load, worker] = self.cores;
        round_trip_ns(load, worker)
    }

    /// Waits until the cores are at the distance at which windows are measured, and returns the
    /// distance. The switch must be stopped.
    fn wait(&self, times: Times) -> anyhow::Result<Option<f64>> {
        times.kept.map_or_else(|| self.distance(), |kept| kept.wait(self.cores))
    }

    /// Stops the process with SIGSTOP, which frees its core.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.daemon.signal(Signal::SIGSTOP)
    }

    /// Sends `load` in several windows, and returns the reading of the window that other work
    /// disturbed least.
    pub fn sample(&mut self, bed: &Bed, load: &Load, times: Times) -> anyhow::Result<Reading> {
        let mut vms = self.vms_with(&[load]);
        let reading = self.measure(times, &mut |secs| {
            bed.on_generator_core(|| drive(&mut vms, secs, load.burst))
        });
        self.vms = vms;
        reading
    }

    /// Returns the VMs. From now on, each sender sends the load in its place of `loads`, which
    /// begins again after its end.
    fn vms_with(&mut self, loads: &[&Load]) -> Vec<LoadVm> {
        let mut vms = std::mem::take(&mut self.vms);
        for (vm, load) in vms.iter_mut().skip(1).zip(loads.iter().cycle()) {
            vm.change(&Phase {
                at_secs: 0.0,
                rate: Some(load.rate),
                sizes: Some(load.sizes.clone()),
                flows: Some(load.flows),
            });
        }
        vms
    }

    /// Changes a key of a port of the running switch.
    pub fn change(&self, port: &str, key: &str) -> anyhow::Result<()> {
        self.daemon.signal(Signal::SIGCONT)?;
        let mut command = Command::new(THIS_PROGRAM);
        command.arg("--socket").arg(&self.socket).args(["port", "set", port, key, "--no-save"]);
        let told = ask(&mut command);
        self.pause()?;
        told.map(drop).with_context(|| format!("{}: {}", self.name, self.daemon.last_words()))
    }

    /// Sends `loads`, one for each sender, in several windows. Returns what arrived from each
    /// sender in the window that other work disturbed least.
    pub fn deliver(
        &mut self,
        bed: &Bed,
        loads: &[&Load],
        times: Times,
    ) -> anyhow::Result<Vec<Delivered>> {
        let burst = loads.first().context("no load")?.burst;
        let mut vms = self.vms_with(loads);
        let best = (0..times.tries).try_fold(None, |best: Option<(f64, Vec<Delivered>)>, _| {
            if best.as_ref().is_some_and(|(waited, _)| *waited <= QUIET) {
                return anyhow::Ok(best);
            }
            let next = loop {
                let next = self.deliver_once(bed, &mut vms, times, burst)?;
                if !next.1.first().is_some_and(|of| times.repeats(of.apart)) {
                    break next;
                }
            };
            let quieter = best.as_ref().is_none_or(|(waited, _)| next.0 < *waited);
            Ok(if quieter { Some(next) } else { best })
        });
        self.vms = vms;
        Ok(best?.context("no window was measured")?.1)
    }

    /// Returns the part of one window in which a thread waited for its core, and what arrived.
    fn deliver_once(
        &mut self,
        bed: &Bed,
        vms: &mut [LoadVm],
        times: Times,
        burst: usize,
    ) -> anyhow::Result<(f64, Vec<Delivered>)> {
        let far = self.wait(times)?;
        self.daemon.check()?;
        self.daemon.signal(Signal::SIGCONT)?;
        let before = self.worker.waited_ns();
        let seen = bed.on_generator_core(|| delivered(vms, times, burst));
        let worker_ns = self.worker.waited_ns() - before;
        self.pause()?;
        let apart = Apart { before: far, after: self.distance()? };
        let (mut got, generator_ns) = seen?;
        got.iter_mut().for_each(|of| of.apart = apart);
        let secs = times.warm_secs + times.window_secs;
        let waited = to_f64(worker_ns.max(generator_ns)) / 1e9 / secs;
        Ok((if apart.moved() { MOVED } else { waited }, got))
    }

    /// Measures the switch while the closure `drive` sends frames. The closure `drive` sends for
    /// the number of seconds in its argument, and returns when no frame is in flight. The closure
    /// `drive` returns the nanoseconds for which the generator waited for its core.
    pub fn measure(
        &mut self,
        times: Times,
        drive: &mut dyn FnMut(f64) -> anyhow::Result<u64>,
    ) -> anyhow::Result<Reading> {
        let (mut best, mut missed): (Option<Reading>, usize) = (None, 0);
        let mut tried = 0;
        while tried < times.tries {
            let reading = match self.measure_once(times, drive) {
                Ok(reading) => reading,
                // A switch that lost its core for all of a short window has nothing to read.
                Err(Missed::Window(_)) if missed < MISSED_MAX => {
                    missed += 1;
                    continue;
                }
                Err(Missed::Window(error)) => {
                    let words = format!("{}: {}", self.name, self.daemon.last_words());
                    return Err(error.context(words));
                }
                Err(Missed::All(error)) => return Err(error),
            };
            if times.repeats(reading.apart) {
                continue;
            }
            tried += 1;
            if best.is_none_or(|best| reading.waited < best.waited) {
                best = Some(reading);
            }
            if best.is_some_and(|best| best.waited <= QUIET) {
                break;
            }
        }
        best.context("no window was measured")
    }

    fn measure_once(
        &mut self,
        times: Times,
        drive: &mut dyn FnMut(f64) -> anyhow::Result<u64>,
    ) -> Result<Reading, Missed> {
        let far = self.wait(times)?;
        self.daemon.check()?;
        self.daemon.signal(Signal::SIGCONT)?;
        drive(times.warm_secs)?;
        let (before, waited) = (self.totals()?, self.worker.waited_ns());
        let generator_ns = drive(times.window_secs)?;
        let worker_ns = self.worker.waited_ns() - waited;
        let waited = to_f64(worker_ns.max(generator_ns)) / 1e9 / times.window_secs;
        let reading = self.totals()?.since(&before, waited).map_err(Missed::Window);
        self.pause()?;
        let apart = Apart { before: far, after: self.distance()? };
        let reading = reading?;
        let waited = if apart.moved() { MOVED } else { reading.waited };
        Ok(Reading { apart, waited, ..reading })
    }

    /// Makes all further readings count only the frames and costs of one port.
    pub fn count_only(&mut self, port: &'static str) {
        self.only = Some(port);
    }

    /// Returns the part of the frames to a port that the port dropped since the switch started.
    pub fn tx_dropped_part(&self, port: &str) -> anyhow::Result<f64> {
        self.daemon.signal(Signal::SIGCONT)?;
        let stats = self.stats();
        self.pause()?;
        let stats = stats?;
        let ports = stats["ports"].as_array().context("no ports")?;
        let port = ports.iter().find(|of| of["port"] == port).context("the port is missing")?;
        let drops = port["tx_drops"].as_object().context("no drops")?;
        let dropped: u64 = drops.values().filter_map(Value::as_u64).sum();
        let sent = port["counters"]["tx_frames"].as_u64().context("no counter tx_frames")?;
        Ok(to_f64(dropped) / to_f64((sent + dropped).max(1)))
    }

    fn totals(&self) -> anyhow::Result<Totals> {
        totals(&self.stats()?, self.only)
    }

    fn stats(&self) -> anyhow::Result<Value> {
        let mut command = Command::new(THIS_PROGRAM);
        let text = ask(command.arg("--socket").arg(&self.socket).args(["stats", "--json"]))?;
        serde_json::from_str(&text).context("reading the counters")
    }
}

/// Sends for `secs` seconds and waits until no frame is in flight.
fn drive(vms: &mut [LoadVm], secs: f64, burst: usize) -> anyhow::Result<u64> {
    let (began, waited) = (clock::now(), run_queue_wait_ns());
    vms.iter_mut().for_each(|vm| vm.restart_pacing(0));
    let mut elapsed = Duration::ZERO;
    while elapsed.as_secs_f64() < secs {
        let now = clock::nanos(elapsed);
        for _ in 0..TURNS {
            for vm in vms.iter_mut() {
                vm.turn(now, burst)?;
            }
            if let Some(receiver) = vms.first_mut() {
                while receiver.receive() > 0 {}
            }
        }
        elapsed = began.elapsed();
    }
    let waited = run_queue_wait_ns() - waited;
    settle(vms);
    Ok(waited)
}

/// Sends as fast as possible. Returns what arrived from each sender after the warm-up, and the
/// nanoseconds for which the generator waited for its core.
fn delivered(
    vms: &mut [LoadVm],
    times: Times,
    burst: usize,
) -> anyhow::Result<(Vec<Delivered>, u64)> {
    let (began, waited) = (clock::now(), run_queue_wait_ns());
    vms.iter_mut().for_each(|vm| vm.restart_pacing(0));
    let (mut looks, mut empty) = (0_u64, vec![0_u64; vms.len().saturating_sub(1)]);
    let mut warm: Option<(Duration, Vec<u64>)> = None;
    let mut elapsed = Duration::ZERO;
    while elapsed.as_secs_f64() < times.warm_secs + times.window_secs {
        let now = clock::nanos(elapsed);
        for _ in 0..TURNS {
            looks += 1;
            for (vm, empty) in vms.iter_mut().skip(1).zip(&mut empty) {
                *empty += u64::from(vm.outstanding() == 0);
                vm.turn(now, burst)?;
            }
            if let Some(receiver) = vms.first_mut() {
                while receiver.receive() > 0 {}
            }
        }
        elapsed = began.elapsed();
        if warm.is_none() && elapsed.as_secs_f64() >= times.warm_secs {
            warm = Some((elapsed, arrived(vms)));
            looks = 0;
            empty.fill(0);
        }
    }
    let (after, waited) = (arrived(vms), run_queue_wait_ns() - waited);
    let (since, before) = warm.context("the window is too short")?;
    settle(vms);
    let secs = (elapsed - since).as_secs_f64();
    let of = |((after, before), empty): ((u64, u64), u64)| Delivered {
        rate: to_f64(after - before) / secs,
        starved: to_f64(empty) / to_f64(looks.max(1)),
        apart: Apart::default(),
    };
    Ok((after.into_iter().zip(before).zip(empty).map(of).collect(), waited))
}

/// Returns the number of frames that arrived at the receiver from each sender.
fn arrived(vms: &[LoadVm]) -> Vec<u64> {
    vms.first().into_iter().flat_map(LoadVm::arrived).skip(1).map(|from| from.frames).collect()
}

fn settle(vms: &mut [LoadVm]) {
    let began = clock::now();
    let mut quiet = began;
    while quiet.elapsed() < SILENCE && began.elapsed() < SILENCE_LIMIT {
        let moved: usize = vms.iter_mut().map(LoadVm::receive).sum();
        let under_way: usize = vms.iter_mut().map(LoadVm::outstanding).sum();
        if moved + under_way > 0 {
            quiet = clock::now();
        }
    }
}

fn totals(stats: &Value, only: Option<&str>) -> anyhow::Result<Totals> {
    let mut sum = Totals::default();
    let counted = |port: &&Value| only.is_none_or(|only| port["port"] == only);
    for port in stats["ports"].as_array().context("no ports")?.iter().filter(counted) {
        let count = |name: &str| {
            port["counters"][name].as_u64().with_context(|| format!("no counter is called {name}"))
        };
        sum.frames += count("rx_frames")?;
        sum.batches += count("rx_batches")?;
        sum.cycles += count("cycles")?;
        let names = ["cycles_ingress", "cycles_classification", "cycles_egress"];
        for (stage, name) in sum.stages.iter_mut().zip(names) {
            *stage += count(name)?;
        }
        let drops = port["drops"].as_object().context("no drops")?;
        sum.dropped += drops.values().filter_map(Value::as_u64).sum::<u64>();
    }
    Ok(sum)
}

impl Totals {
    /// Returns the cycles charged per frame, divided among the stages as in the sampled batches.
    fn since(&self, before: &Self, waited: f64) -> anyhow::Result<Reading> {
        let frames = self.frames - before.frames;
        let dropped = self.dropped - before.dropped;
        ensure!(
            frames > 0,
            "the switch took no frame; a thread waited for its core for {:.0} % of the time; \
             end other programs, or choose other cores with --worker-core and --generator-core",
            100.0 * waited
        );
        ensure!(dropped * 20 < frames, "the switch dropped {dropped} of {frames} frames");
        let cycles = to_f64(self.cycles - before.cycles);
        let stages: Vec<f64> =
            self.stages.iter().zip(before.stages).map(|(now, then)| to_f64(now - then)).collect();
        let sampled: f64 = stages.iter().sum();
        let batches = self.batches - before.batches;
        ensure!(
            sampled > 0.0,
            "none of {batches} batches with {frames} frames was sampled; the window is too short"
        );
        let part = |stage: usize| cycles / to_f64(frames) * stages[stage] / sampled;
        Ok(Reading {
            stages: Stages { ingress: part(0), classification: part(1), egress: part(2) },
            batch: to_f64(frames) / to_f64(batches.max(1)),
            waited,
            apart: Apart::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_charged_is_divided_as_the_samples_say() {
        let stats = |n: u64| {
            let counters = serde_json::json!({
                "rx_frames": 64 * n, "rx_batches": 2 * n, "cycles": 6_400 * n,
                "cycles_ingress": 100 * n, "cycles_classification": 50 * n, "cycles_egress": 50 * n
            });
            serde_json::json!({"ports": [{"counters": counters, "drops": {}}]})
        };
        let (before, after) = (totals(&stats(1), None).unwrap(), totals(&stats(11), None).unwrap());
        let reading = after.since(&before, 0.0).unwrap();
        assert_eq!(reading.stages, Stages { ingress: 50.0, classification: 25.0, egress: 25.0 });
        assert!((reading.batch - 32.0).abs() < 1e-9);
        assert!(after.since(&after, 0.0).is_err());
        let other = totals(&stats(1), Some("v1")).unwrap();
        assert_eq!((other.frames, other.cycles), (0, 0), "the port has no name");
    }
}
