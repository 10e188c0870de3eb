//! Runs the load generator's loop.

use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::report::{IntervalReport, LoadReport, VmReport};
use super::spec::{Destination, LoadSpec, SIZES};
use super::vm::{LoadVm, VmCounters};
use crate::clock;
use crate::driver::DriverError;

/// Reason why a load run did not start, or was aborted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The virtio-net device of a VM failed.
    #[error("vm {vm}")]
    Vm {
        /// Name of the VM with the failed device.
        vm: String,
        #[source]
        source: DriverError,
    },
    /// The destination of a VM's frames is an unknown VM.
    #[error("vm {vm} sends to `{to}`, which is not a vm of this run")]
    NoSuchVm {
        vm: String,
        /// Name of the destination, which is not a VM of the run.
        to: String,
    },
    /// A frame size is outside the allowed range.
    #[error("vm {vm}: size {size} is not within 64..=9018")]
    Size { vm: String, size: u16 },
    /// The generator's loop could not be pinned to its CPU core.
    #[error("pinning the loop to core {core}")]
    Pin {
        core: usize,
        #[source]
        source: nix::errno::Errno,
    },
    /// The thread of the generator's loop panicked.
    #[error("the generator's thread panicked")]
    Panicked,
}

/// Time between two checks of whether the switch is connected, in nanoseconds.
const WATCH_NS: u64 = 20_000_000;
/// Time without an arriving frame after which the loop stops receiving at the end of a run.
const DRAIN: Duration = Duration::from_millis(100);

impl LoadSpec {
    /// Attaches all VMs to the switch, sends for the requested time, and reports the results. The
    /// generator's loop runs in its own thread, so that the caller's CPU affinity is unchanged.
    ///
    /// # Errors
    /// Returns an error if the specification contradicts itself, a VM cannot attach, or a device
    /// fails.
    pub fn run(&self, each: impl FnMut(&IntervalReport) + Send) -> Result<LoadReport, LoadError> {
        self.check()?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.run_here(each));
            thread.join().unwrap_or(Err(LoadError::Panicked))
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        for vm in &self.vms {
            if let Some(to) = vm.to.as_ref().and_then(Destination::vm)
                && !self.vms.iter().any(|v| v.name == to)
            {
                return Err(LoadError::NoSuchVm { vm: vm.name.clone(), to: to.to_owned() });
            }
            let mixes = vm.phases.iter().filter_map(|p| p.sizes.as_ref()).chain([&vm.sizes]);
            for (size, _) in mixes.flat_map(|m| &m.0) {
                if !SIZES.contains(size) {
                    return Err(LoadError::Size { vm: vm.name.clone(), size: *size });
                }
            }
        }
        Ok(())
    }

    fn run_here(&self, each: impl FnMut(&IntervalReport)) -> Result<LoadReport, LoadError> {
        if let Some(core) = self.core {
            let mut cpus = CpuSet::new();
            cpus.set(core)
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus))
                .map_err(|source| LoadError::Pin { core, source })?;
        }
        let mut vms = Vec::new();
        for (i, spec) in self.vms.iter().enumerate() {
            let failed = |source| LoadError::Vm { vm: spec.name.clone(), source };
            vms.push(LoadVm::connect(self, i).map_err(failed)?);
        }
        for vm in &mut vms {
            vm.announce().map_err(|source| LoadError::Vm { vm: vm.name().to_owned(), source })?;
        }
        Run::new(self, vms).run(each)
    }
}

/// Counters of the loop and of all VMs at one moment.
#[derive(Debug, Clone, Default)]
struct Mark {
    at_ns: u64,
    busy_ns: u64,
    wait_ns: u64,
    vms: Vec<VmCounters>,
}

struct Run<'a> {
    spec: &'a LoadSpec,
    vms: Vec<LoadVm>,
    start: Instant,
    busy_ns: u64,
    turns: u64,
}

impl<'a> Run<'a> {
    fn new(spec: &'a LoadSpec, vms: Vec<LoadVm>) -> Self {
        Self { spec, vms, start: clock::now(), busy_ns: 0, turns: 0 }
    }

    fn now_ns(&self) -> u64 {
        clock::nanos(clock::now().duration_since(self.start))
    }

    fn run(mut self, mut each: impl FnMut(&IntervalReport)) -> Result<LoadReport, LoadError> {
        self.start = clock::now();
        let warm_ns = secs_ns(self.spec.warmup_secs);
        let end_ns = warm_ns + secs_ns(self.spec.secs);
        let interval_ns = self.spec.interval_secs.map(secs_ns).filter(|ns| *ns > 0);
        let (mut first, mut last) = (self.mark(), self.mark());
        // Without a warm-up, counting starts before the first frame. With one, it starts after a
        // turn.
        let mut warm = warm_ns == 0;
        let mut now = self.now_ns();
        let mut next_watch = now + WATCH_NS;
        let mut next_report = interval_ns.map(|ns| warm_ns + ns);
        while now < end_ns {
            let moved = self.turn(now)?;
            let then = self.now_ns();
            if moved > 0 {
                self.busy_ns += then - now;
            }
            now = then;
            if !warm && now >= warm_ns {
                warm = true;
                first = self.mark();
                last = first.clone();
            }
            if now >= next_watch {
                next_watch = now + WATCH_NS;
                self.watch()?;
            }
            if let (Some(at), Some(step)) = (next_report, interval_ns)
                && now >= at
            {
                next_report = Some(at + step);
                let mark = self.mark();
                each(&self.interval(&last, &mark, first.at_ns));
                last = mark;
            }
        }
        let sent = self.mark();
        self.drain();
        let mut total = self.mark();
        // Rates use only the time of sending. Frames that arrive later reduce the count of lost
        // frames.
        total.at_ns = sent.at_ns;
        total.busy_ns = sent.busy_ns;
        total.wait_ns = sent.wait_ns;
        let all = self.interval(&first, &total, first.at_ns);
        Ok(LoadReport {
            secs: all.at_secs,
            touch: self.spec.touch,
            busy_percent: all.busy_percent,
            run_queue_wait_percent: all.run_queue_wait_percent,
            turns: self.turns,
            vms: all.vms,
        })
    }

    fn turn(&mut self, now_ns: u64) -> Result<usize, LoadError> {
        self.turns += 1;
        let mut moved = 0;
        for vm in &mut self.vms {
            moved += vm
                .turn(now_ns, self.spec.burst)
                .map_err(|source| LoadError::Vm { vm: vm.name().to_owned(), source })?;
        }
        Ok(moved)
    }

    fn watch(&mut self) -> Result<(), LoadError> {
        for vm in &mut self.vms {
            vm.keep_connected()
                .map_err(|source| LoadError::Vm { vm: vm.name().to_owned(), source })?;
        }
        Ok(())
    }

    /// Receives frames until no frame has arrived for [`DRAIN`]. Receiving stops at the latest one
    /// hour after the start of the run.
    fn drain(&mut self) {
        let mut quiet = clock::now();
        while quiet.elapsed() < DRAIN && self.start.elapsed() < Duration::from_secs(3600) {
            if self.vms.iter_mut().map(LoadVm::receive).sum::<usize>() > 0 {
                quiet = clock::now();
            }
        }
    }

    fn mark(&mut self) -> Mark {
        Mark {
            at_ns: self.now_ns(),
            busy_ns: self.busy_ns,
            wait_ns: run_queue_wait_ns(),
            vms: self.vms.iter_mut().map(LoadVm::counters).collect(),
        }
    }

    fn interval(&self, from: &Mark, to: &Mark, zero_ns: u64) -> IntervalReport {
        let secs = ns_secs(to.at_ns - from.at_ns).max(1e-9);
        let vms = self.vms.iter().zip(from.vms.iter().zip(&to.vms));
        IntervalReport {
            at_secs: ns_secs(to.at_ns - zero_ns),
            busy_percent: ns_secs(to.busy_ns - from.busy_ns) / secs * 100.0,
            run_queue_wait_percent: ns_secs(to.wait_ns - from.wait_ns) / secs * 100.0,
            vms: vms.map(|(vm, (a, b))| vm_report(vm, a, b, secs)).collect(),
        }
    }
}

fn vm_report(vm: &LoadVm, a: &VmCounters, b: &VmCounters, secs: f64) -> VmReport {
    let tx_frames = b.tx_frames - a.tx_frames;
    let rx_frames = b.sink.frames - a.sink.frames;
    let rx_bytes = b.sink.bytes - a.sink.bytes;
    let bits = |frames: u64, bytes: u64| per_sec((bytes + 4 * frames) * 8, secs);
    VmReport {
        name: vm.name().to_owned(),
        tx_frames,
        tx_frames_per_sec: per_sec(tx_frames, secs),
        tx_bits_per_sec: bits(tx_frames, b.tx_bytes - a.tx_bytes),
        tx_ring_full: b.tx_ring_full - a.tx_ring_full,
        rx_frames,
        rx_bytes,
        rx_frames_per_sec: per_sec(rx_frames, secs),
        rx_bits_per_sec: bits(rx_frames, rx_bytes),
        rx_bad: b.sink.bad - a.sink.bad,
        rx_other: b.sink.other - a.sink.other,
        // Late frames may have reduced the count below its value at the interval's start.
        rx_lost: b.sink.lost.saturating_sub(a.sink.lost),
        rx_reordered: b.sink.reordered - a.sink.reordered,
        reconnects: b.reconnects - a.reconnects,
        features: vm.features(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "frame and byte counts of a run are far below 2^52")]
fn per_sec(count: u64, secs: f64) -> f64 {
    count as f64 / secs
}

fn secs_ns(secs: f64) -> u64 {
    clock::nanos(Duration::try_from_secs_f64(secs).unwrap_or_default())
}

fn ns_secs(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

/// Nanoseconds in which this thread was runnable but did not run, since the thread's start. 0 if
/// the kernel does not count this time.
#[must_use]
pub fn run_queue_wait_ns() -> u64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
