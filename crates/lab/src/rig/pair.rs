//! The load generator of the benchmarks: two VMs in one polling loop. They are connected once, and
//! driven in windows. Between windows no frame is under way, so a switch's counters belong to one
//! window.

use std::time::Duration;

use hdrhistogram::Histogram;
use penstock_dataplane::tsc::{CycleCounter as _, Tsc};
use penstock_dataplane::worker::RunQueueWait;

use super::Timed;
use super::fleet::{BURST, CONNECT_SECS, Fleet, LARGEST};
use super::stats::to_f64;
use super::switch::{PairVm, Switch, VM_A, VM_B};
use penstock_guest::clock;
use penstock_guest::driver::{Features, SocketMode};
use penstock_guest::load::{LoadSpec, Phase, Rate, SizeMix, VmCounters, VmSpec, run_queue_wait_ns};

/// If a ring is silent for this time, no frame is under way.
const SILENCE: Duration = Duration::from_millis(20);
/// The longest wait for silence.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Turns between two checks whether the switch is connected.
const WATCH_EVERY: u32 = 1 << 20;
/// Longest wait for a single frame.
const FRAME_LIMIT: Duration = Duration::from_millis(100);
/// The longest latency that can be distinguished from longer ones.
const LATENCY_MAX_NS: u64 = 1_000_000_000;

/// Settings for the attachment of a pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Whether the rings are packed.
    pub packed: bool,
    /// Whether every byte is written and verified.
    pub touch: bool,
}

/// Offered and received frames of a window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PairWindow {
    /// Seconds of sending.
    pub secs: f64,
    /// Frames given to the ring.
    pub tx_frames: u64,
    /// Frames that arrived, including those after the end of sending.
    pub rx_frames: u64,
    /// Bytes of these frames in the ring.
    pub rx_bytes: u64,
    /// Frames with wrong bytes.
    pub bad: u64,
    /// Seconds spent in loop iterations that neither sent nor received a frame. If more frames were
    /// due than the ring had room for, the generator waited for the switch in this time.
    pub idle_secs: f64,
    /// Nanoseconds for which the generator was runnable and did not run.
    pub waited_ns: u64,
}

impl PairWindow {
    /// Frames that were sent and did not arrive.
    pub fn lost(&self) -> u64 {
        self.tx_frames.saturating_sub(self.rx_frames)
    }
}

impl Paced {
    /// Frames that were due and did not arrive.
    pub fn lost(&self) -> u64 {
        self.refused + self.missing
    }
}

impl Timed for PairWindow {
    fn secs(&self) -> f64 {
        self.secs
    }

    fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}

/// Latencies of frames that are sent one at a time.
#[derive(Debug, Clone)]
pub(crate) struct Latencies {
    /// Seconds in all.
    pub secs: f64,
    /// Frames that did not come within [`FRAME_LIMIT`].
    pub lost: u64,
    /// Nanoseconds for which the generator was runnable and did not run.
    pub waited_ns: u64,
    nanos: Histogram<u64>,
}

impl Latencies {
    /// The latency in nanoseconds that `percentile` percent of the frames do not exceed.
    pub fn percentile(&self, percentile: f64) -> u64 {
        self.nanos.value_at_percentile(percentile)
    }

    /// Frames that came.
    pub fn frames(&self) -> u64 {
        self.nanos.len()
    }
}

/// Counters of a paced run at one moment, since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Paced {
    /// Frames that were due.
    pub due: u64,
    /// Of these, frames that the ring refused.
    pub refused: u64,
    /// Sequence numbers missing at the receiver so far.
    pub missing: u64,
    /// The longest time between two turns of the loop since the last report.
    pub gap_ns: u64,
    /// Nanoseconds for which the generator was runnable and did not run.
    pub waited_ns: u64,
}

/// A fleet of two: the first VM sends and the second one receives.
impl Fleet {
    /// Listens for `switch`, and waits until it has connected to both VMs.
    pub fn pair(switch: &dyn Switch, link: &Link) -> anyhow::Result<Self> {
        let vm = |name, of: PairVm| {
            let mut vm = VmSpec::new(name, switch.socket(name), of.mac(), of.ip());
            vm.mode = SocketMode::Server;
            vm.ring_size = link.ring_size;
            if link.packed {
                vm.wanted = vm.wanted | Features::RING_PACKED;
            }
            vm.sizes = SizeMix::fixed(LARGEST);
            vm
        };
        let mut vms = vec![vm("a", VM_A), vm("b", VM_B)];
        vms[0].to = Some("b".to_owned());
        let mut spec = LoadSpec::new(vms, 0.0);
        spec.touch = link.touch;
        spec.wait_secs = CONNECT_SECS;
        let mut pair = Self::connect(&spec)?;
        pair.settle();
        Ok(pair)
    }

    /// Sets the load from here on.
    pub fn send(&mut self, sizes: &SizeMix, flows: u32, rate: Rate) {
        let phase = Phase {
            at_secs: 0.0,
            rate: Some(rate),
            sizes: Some(sizes.clone()),
            flows: Some(flows),
        };
        self.vms[0].change(&phase);
    }

    /// Sends for `secs`, then waits until nothing is under way.
    pub fn run_and_settle(&mut self, secs: f64) -> anyhow::Result<PairWindow> {
        let before = self.counters();
        let waited = run_queue_wait_ns();
        let began = self.now_ns();
        let end = began + clock::nanos(Duration::try_from_secs_f64(secs)?);
        self.vms[0].restart_pacing(began);
        let (mut idle_ns, mut now) = (0, began);
        let mut until_watch = WATCH_EVERY;
        while now < end {
            let moved = self.vms[0].turn(now, BURST)? + self.vms[1].receive();
            until_watch -= 1;
            if until_watch == 0 {
                until_watch = WATCH_EVERY;
                self.vms[0].keep_connected()?;
                self.vms[1].keep_connected()?;
            }
            let then = self.now_ns();
            if moved == 0 {
                idle_ns += then - now;
            }
            now = then;
        }
        let waited_ns = run_queue_wait_ns() - waited;
        self.settle();
        let after = self.counters();
        Ok(PairWindow {
            secs: Duration::from_nanos(now - began).as_secs_f64(),
            tx_frames: after.0.tx_frames - before.0.tx_frames,
            rx_frames: after.1.sink.frames - before.1.sink.frames,
            rx_bytes: after.1.sink.bytes - before.1.sink.bytes,
            bad: after.1.sink.bad - before.1.sink.bad,
            idle_secs: Duration::from_nanos(idle_ns).as_secs_f64(),
            waited_ns,
        })
    }

    /// Sends one frame after the other for `time`, each when the previous one has come.
    pub fn one_at_a_time(&mut self, time: Duration, tsc_hz: f64) -> anyhow::Result<Latencies> {
        let mut nanos = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)?;
        let (began, waited) = (clock::now(), run_queue_wait_ns());
        let limit_cycles = FRAME_LIMIT.as_secs_f64() * tsc_hz;
        let mut lost = 0;
        while began.elapsed() < time {
            // A turn makes, publishes and stamps the frame. The switch cannot have it before the
            // publication. So the making of one frame is part of the measurement, for both switches
            // alike.
            let sent = Tsc.now().0;
            anyhow::ensure!(self.vms[0].turn(0, 1)? == 1, "the ring took no frame");
            let cycles = loop {
                let came = self.vms[1].receive();
                let cycles = to_f64(Tsc.now().0.saturating_sub(sent));
                if came > 0 {
                    break Some(cycles);
                }
                if cycles > limit_cycles {
                    break None;
                }
            };
            match cycles {
                Some(cycles) => nanos.saturating_record(whole(cycles / tsc_hz * 1e9)),
                None => {
                    lost += 1;
                    self.settle();
                }
            }
        }
        let waited_ns = run_queue_wait_ns() - waited;
        Ok(Latencies { secs: began.elapsed().as_secs_f64(), lost, waited_ns, nanos })
    }

    /// Sends `rate` frames per second by the clock. A frame that is due and that the ring refuses
    /// is lost, and is not sent later. `each` gets the counters about every `interval`.
    pub fn paced(
        &mut self,
        rate: f64,
        secs: f64,
        interval: Duration,
        mut each: impl FnMut(Paced) -> anyhow::Result<()>,
    ) -> anyhow::Result<Paced> {
        let before = self.counters();
        let missing = before.1.sink.lost;
        // The file is opened only once, because opening it takes as long as the ring can hold
        // frames.
        let wait = RunQueueWait::of_this_thread();
        let waited = || wait.as_ref().map_or(0, |w| w.read().0);
        let waited_before = waited();
        let began = self.now_ns();
        let end = began + clock::nanos(Duration::try_from_secs_f64(secs)?);
        let interval_ns = clock::nanos(interval);
        let (mut paced, mut now, mut next_look) =
            (Paced::default(), began, began.saturating_add(interval_ns));
        while now < end {
            let due = whole(rate * Duration::from_nanos(now - began).as_secs_f64());
            while paced.due < due {
                let burst = usize::try_from(due - paced.due).map_or(BURST, |n| n.min(BURST));
                let sent = self.vms[0].turn(now, burst)?;
                self.vms[1].receive();
                paced.due += sent as u64;
                if sent < burst {
                    paced.refused += due - paced.due;
                    paced.due = due;
                }
            }
            self.vms[1].receive();
            if now >= next_look {
                next_look = now.saturating_add(interval_ns);
                paced.missing = self.vms[1].counters().sink.lost.saturating_sub(missing);
                paced.waited_ns = waited() - waited_before;
                each(paced)?;
                paced.gap_ns = 0;
                // The time of the report does not count as a gap: it is the same every time, and a
                // ring lasts longer. Losses that the report causes count.
                now = self.now_ns();
            }
            let then = self.now_ns();
            paced.gap_ns = paced.gap_ns.max(then - now);
            now = then;
        }
        paced.waited_ns = waited() - waited_before;
        self.settle();
        let after = self.counters();
        // The last frames leave no gap behind them. The difference of the counts shows those that
        // never came.
        let sent = after.0.tx_frames - before.0.tx_frames;
        paced.missing = sent.saturating_sub(after.1.sink.frames - before.1.sink.frames);
        anyhow::ensure!(
            after.1.sink.bad == before.1.sink.bad,
            "{} frames arrived with wrong bytes",
            after.1.sink.bad - before.1.sink.bad
        );
        Ok(paced)
    }

    fn counters(&mut self) -> (VmCounters, VmCounters) {
        (self.vms[0].counters(), self.vms[1].counters())
    }

    /// Receives until the switch has returned all sent frames, and nothing has come for a while.
    fn settle(&mut self) {
        let began = clock::now();
        let mut quiet = began;
        while quiet.elapsed() < SILENCE && began.elapsed() < SILENCE_LIMIT {
            if self.vms[0].receive() + self.vms[1].receive() > 0 || self.vms[0].outstanding() > 0 {
                quiet = clock::now();
            }
        }
    }
}

/// Converts a count that was computed as a fraction.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^52")]
fn whole(count: f64) -> u64 {
    count as u64
}
