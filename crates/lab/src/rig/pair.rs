//! The load generator of the benchmarks: two or more VMs in one polling loop. The VMs are connected
//! to a switch once, and send in windows. Between two windows no frame is in flight, so a switch's
//! counters belong to one window.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use penstock_dataplane::tsc::{CycleCounter as _, Tsc};
use penstock_dataplane::worker::RunQueueWait;

use super::Timed;
use super::fleet::{BURST, CONNECT_SECS, Fleet, LARGEST};
use super::link::{Link, Rounds};
use super::stats::to_f64;
use super::switch::{PairVm, Switch, VM_A, VM_B};
use penstock_guest::clock;
use penstock_guest::driver::{Features, SocketMode};
use penstock_guest::load::{
    Destination, LoadSpec, LoadVm, Phase, Rate, SizeMix, VmCounters, VmSpec, run_queue_wait_ns,
};

/// If no frame arrives for this time, the load generator assumes that no frame is in flight.
const SILENCE: Duration = Duration::from_millis(20);
/// Maximum time for the wait until no frame is in flight.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Number of turns of the loop between two checks of the connection to the switch.
const WATCH_EVERY: u32 = 1 << 20;
/// Time after which a frame that was sent alone counts as lost.
const FRAME_LIMIT: Duration = Duration::from_millis(100);
/// Number of frames that all VMs together send in a round. If the VMs sent more frames in a round,
/// large frames would fill the ring between two workers.
const ROUND: usize = 1024;
/// Maximum number of frames that one VM sends in a round: at most half of the smallest usual ring.
const ROUND_OF_VM: usize = 128;
/// Maximum time that the load generator waits for the frames of a round. A round in which a frame
/// was lost ends after 20 ms.
const ROUND_LIMIT: Duration = Duration::from_millis(20);
/// The longest latency, in nanoseconds, that can be distinguished from longer latencies.
const LATENCY_MAX_NS: u64 = 1_000_000_000;

/// Counts of offered and received frames of all VMs in a window. At the end of the window, no frame
/// is in flight.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SettledWindow {
    /// Seconds for which the VMs sent.
    pub secs: f64,
    /// Seconds until the last frame moved. If many rings are full, frames still move for some time
    /// after the last frame was sent.
    pub moving_secs: f64,
    /// Number of frames that the VMs wrote to their rings.
    pub tx_frames: u64,
    /// Number of received frames, including frames that arrived after the end of sending.
    pub rx_frames: u64,
    /// Number of bytes in the received frames, without FCS.
    pub rx_bytes: u64,
    /// Number of received frames with wrong bytes.
    pub bad: u64,
    /// Seconds in turns of the loop that neither sent nor received a frame. If the ring is full,
    /// the generator waits for the switch in a turn that moves no frame.
    pub idle_secs: f64,
    /// Nanoseconds for which the generator waited for its core.
    pub waited_ns: u64,
}

impl SettledWindow {
    /// Returns the number of frames that were sent and did not arrive.
    pub fn lost(&self) -> u64 {
        self.tx_frames.saturating_sub(self.rx_frames)
    }
}

impl Paced {
    /// Returns the number of due frames that did not arrive: refused by the ring, or missing at the
    /// receiver.
    pub fn lost(&self) -> u64 {
        self.refused + self.missing
    }
}

impl Timed for SettledWindow {
    fn secs(&self) -> f64 {
        self.secs
    }

    fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}

/// Latencies of frames that were sent one at a time.
#[derive(Debug, Clone)]
pub(crate) struct Latencies {
    pub secs: f64,
    /// Number of frames that did not arrive within [`FRAME_LIMIT`].
    pub lost: u64,
    /// Nanoseconds for which the generator waited for its core.
    pub waited_ns: u64,
    nanos: Histogram<u64>,
}

impl Latencies {
    /// Returns the percentile `percentile` (0 to 100) of the latencies, in nanoseconds.
    pub fn percentile(&self, percentile: f64) -> u64 {
        self.nanos.value_at_percentile(percentile)
    }

    /// Returns the number of received frames.
    pub fn frames(&self) -> u64 {
        self.nanos.len()
    }
}

/// Counters of a run at a fixed rate, since the start of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Paced {
    /// Number of frames that should have been sent at the configured rate.
    pub due: u64,
    /// Number of due frames that a full ring refused.
    pub refused: u64,
    /// Number of sequence numbers that have not arrived at the receiver so far.
    pub missing: u64,
    /// Longest time between two turns of the loop since the last report, in nanoseconds.
    pub gap_ns: u64,
    /// Nanoseconds for which the generator waited for its core.
    pub waited_ns: u64,
}

impl Fleet {
    /// Creates a fleet of two VMs: the first VM sends, and the second VM receives. Waits until
    /// `switch` has connected to both VMs.
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
        vms[0].to = Some(Destination::Vm("b".to_owned()));
        let mut spec = LoadSpec::new(vms, 0.0);
        spec.touch = link.touch;
        spec.wait_secs = CONNECT_SECS;
        let mut pair = Self::connect(&spec)?;
        pair.settle();
        Ok(pair)
    }

    /// Sets the load that all VMs send from now on.
    pub fn send(&mut self, sizes: &SizeMix, flows: u32, rate: Rate) {
        let phase = Phase {
            at_secs: 0.0,
            rate: Some(rate),
            sizes: Some(sizes.clone()),
            flows: Some(flows),
        };
        self.vms.iter_mut().for_each(|vm| vm.change(&phase));
    }

    /// Sends for `secs` seconds, and then waits until no frame is in flight.
    pub fn run_and_settle(&mut self, secs: f64) -> anyhow::Result<SettledWindow> {
        let before = self.totals();
        let waited = run_queue_wait_ns();
        let began = self.now_ns();
        let end = began + clock::nanos(Duration::try_from_secs_f64(secs)?);
        self.vms.iter_mut().for_each(|vm| vm.restart_pacing(began));
        let (mut idle_ns, mut now) = (0, began);
        let mut until_watch = WATCH_EVERY;
        while now < end {
            let moved = self.burst(now)?;
            until_watch -= 1;
            if until_watch == 0 {
                until_watch = WATCH_EVERY;
                self.vms.iter_mut().try_for_each(LoadVm::keep_connected)?;
            }
            let then = self.now_ns();
            if moved == 0 {
                idle_ns += then - now;
            }
            now = then;
        }
        let waited_ns = run_queue_wait_ns() - waited;
        let last = self.settle();
        let after = self.totals();
        Ok(SettledWindow {
            secs: Duration::from_nanos(now - began).as_secs_f64(),
            moving_secs: last
                .saturating_duration_since(self.start)
                .saturating_sub(Duration::from_nanos(began))
                .as_secs_f64(),
            tx_frames: after.tx_frames - before.tx_frames,
            rx_frames: after.sink.frames - before.sink.frames,
            rx_bytes: after.sink.bytes - before.sink.bytes,
            bad: after.sink.bad - before.sink.bad,
            idle_secs: Duration::from_nanos(idle_ns).as_secs_f64(),
            waited_ns,
        })
    }

    /// Sends one burst from every VM, and receives the frames that have arrived. Returns the number
    /// of frames that were sent or received. If the load generator sends in rounds, the call also
    /// waits until the switch has taken the frames.
    fn burst(&mut self, now: u64) -> anyhow::Result<usize> {
        if self.rounds == Rounds::Never {
            let mut moved = 0;
            for vm in &mut self.vms {
                moved += vm.turn(now, BURST)?;
            }
            return Ok(moved);
        }
        let each = (ROUND / self.vms.len()).clamp(BURST, ROUND_OF_VM);
        let (mut sent, mut came, began) = (0, 0, clock::now());
        for vm in &mut self.vms {
            sent += vm.send_turn(now, each)?;
        }
        loop {
            let (mut taken, before) = (true, came);
            for vm in &mut self.vms {
                came += vm.receive();
                taken &= vm.outstanding() == 0;
            }
            let arrived = self.rounds == Rounds::UntilTaken || came >= sent;
            if (taken && arrived) || began.elapsed() > ROUND_LIMIT {
                return Ok(sent + came);
            }
            if came == before {
                // The worker on this core runs now.
                std::thread::yield_now();
            }
        }
    }

    /// Sends one frame after the other for `time`. A frame is sent when the previous frame has
    /// arrived.
    pub fn one_at_a_time(&mut self, time: Duration, tsc_hz: f64) -> anyhow::Result<Latencies> {
        let mut nanos = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)?;
        let (began, waited) = (clock::now(), run_queue_wait_ns());
        let limit_cycles = FRAME_LIMIT.as_secs_f64() * tsc_hz;
        let mut lost = 0;
        while began.elapsed() < time {
            // A turn creates and publishes the frame. The switch gets the frame only after the
            // publication, so the measured time includes the creation of one frame. This is the
            // same for both switches.
            let sent = Tsc.now().0;
            anyhow::ensure!(
                self.vms[0].turn(0, 1)? == 1,
                "the sender's ring is full although no frame is in flight"
            );
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

    /// Sends `rate` frames per second. If a full ring refuses a due frame, the frame is lost and is
    /// not sent later. Calls `each` with the counters about every `interval`.
    pub fn paced(
        &mut self,
        rate: f64,
        secs: f64,
        interval: Duration,
        mut each: impl FnMut(Paced) -> anyhow::Result<()>,
    ) -> anyhow::Result<Paced> {
        let before = self.counters();
        let missing = before.1.sink.lost;
        // The file is opened only once, because the ring may overflow in the time that opening
        // takes.
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
                // The time of the report does not count as a gap. It is always the same, and
                // shorter than the time in which a ring fills. Losses because of the report count.
                now = self.now_ns();
            }
            let then = self.now_ns();
            paced.gap_ns = paced.gap_ns.max(then - now);
            now = then;
        }
        paced.waited_ns = waited() - waited_before;
        self.settle();
        let after = self.counters();
        // If the last frames are lost, no sequence number after them is missing. Only the
        // difference of the counts shows these losses.
        let sent = after.0.tx_frames - before.0.tx_frames;
        paced.missing = sent.saturating_sub(after.1.sink.frames - before.1.sink.frames);
        anyhow::ensure!(
            after.1.sink.bad == before.1.sink.bad,
            "{} frames arrived with wrong bytes",
            after.1.sink.bad - before.1.sink.bad
        );
        Ok(paced)
    }

    /// Returns the number of frames that each VM received from each sender since the start. In the
    /// result, the first index is the receiver's number, and the second index is the sender's
    /// number.
    pub fn arrived(&self) -> Vec<Vec<u64>> {
        self.vms.iter().map(|vm| vm.arrived().map(|arrived| arrived.frames).collect()).collect()
    }

    /// Returns the counts of frames and bytes of all VMs together.
    fn totals(&mut self) -> VmCounters {
        let mut sum = VmCounters::default();
        for vm in self.vms.iter_mut().map(LoadVm::counters) {
            sum.tx_frames += vm.tx_frames;
            sum.sink.frames += vm.sink.frames;
            sum.sink.bytes += vm.sink.bytes;
            sum.sink.bad += vm.sink.bad;
        }
        sum
    }

    /// Returns the counters of the sending and of the receiving VM.
    fn counters(&mut self) -> (VmCounters, VmCounters) {
        (self.vms[0].counters(), self.vms[1].counters())
    }

    /// Receives until the switch has returned all sent frames, and no frame has arrived for
    /// [`SILENCE`]. Returns the time at which the last frame moved.
    fn settle(&mut self) -> Instant {
        let began = clock::now();
        let mut quiet = began;
        while quiet.elapsed() < SILENCE && began.elapsed() < SILENCE_LIMIT {
            let mut moving = 0;
            for vm in &mut self.vms {
                moving += vm.receive() + vm.outstanding();
            }
            if moving > 0 {
                quiet = clock::now();
            }
        }
        quiet
    }
}

/// Rounds a computed count down to a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^52")]
fn whole(count: f64) -> u64 {
    count as u64
}
