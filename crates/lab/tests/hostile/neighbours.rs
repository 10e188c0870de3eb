//! Measures how much of its rate a neighbour keeps while a hostile guest acts. Runs with the
//! hostile act alternate with runs without the act.
//!
//! # Approach
//!
//! Two neighbours send 200,000 frames per second to each other, in ticks of one millisecond. A
//! frame counts as lost if the sender's ring is full when the frame is due, or if the frame does
//! not arrive.
//!
//! In the runs without the hostile act, a thread keeps the core of the hostile guest busy. Runs
//! with and without the hostile act therefore differ only in the guest's requests to the switch.
//! Worker and neighbours run at the highest priority, so that the load of the processor does not
//! matter.
//!
//! The measurement divides the median fraction of delivered frames with the hostile act by the
//! median fraction without the act. A gap is the longest time, in ticks, in which a neighbour
//! received no frame from the other neighbour. A tick does not count if the thread that runs the
//! neighbours slept through the tick.
#![allow(unsafe_code, reason = "priorities of threads have no safe Rust wrapper")]
#![expect(clippy::disallowed_methods, reason = "measures rates against the clock")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use penstock_guest::driver::VirtioNet;

use crate::acts::{ACTS, Act, FAULTS, Stage};
use crate::rig::{Rig, announce, frame, mac};
use crate::{ports, stage};

const PER_TICK: u64 = 200;
const TICK: Duration = Duration::from_millis(1);
const PAIRS: usize = 5;

fn seconds() -> f64 {
    std::env::var("HOSTILE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2.0)
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core).unwrap();
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

/// Gives the highest priority to all threads of this process whose names begin with `name`. If
/// `name` is `None`, only the calling thread gets the highest priority. Only root may set the
/// highest priority of a thread.
fn favour(name: Option<&str>) {
    let me = nix::unistd::gettid().to_string();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let thread = task.file_name().into_string().unwrap();
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.map_or(thread == me, |name| comm.starts_with(name)) {
            // SAFETY: the call takes three numbers and no pointer. WHY: there is no safe form.
            let done =
                unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.parse().unwrap(), -20) };
            assert_eq!(done, 0, "run as root");
        }
    }
}

/// Keeps the calling thread at the highest priority until this value is dropped.
struct Favoured;

impl Favoured {
    fn this_thread() -> Self {
        favour(None);
        Self
    }
}

impl Drop for Favoured {
    fn drop(&mut self) {
        // SAFETY: the call takes three numbers and no pointer. WHY: there is no safe form.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
    }
}

/// A guest that sends frames and counts the frames that it receives.
struct Neighbour {
    device: VirtioNet,
    bytes: Vec<u8>,
    from: [u8; 6],
}

impl Neighbour {
    fn tick(&mut self) -> (u64, u64) {
        let tx = self.device.tx();
        tx.reclaim(|_| ());
        let mut sent = 0;
        while sent < PER_TICK {
            let Some(slot) = tx.take() else { break };
            tx.slot_mut(slot)[..12].fill(0);
            tx.slot_mut(slot)[12..12 + self.bytes.len()].copy_from_slice(&self.bytes);
            tx.push_prepared(slot, self.bytes.len()).unwrap();
            sent += 1;
        }
        tx.publish();
        (sent, self.receive())
    }

    fn receive(&mut self) -> u64 {
        let (mut own, from) = (0, self.from);
        self.device.rx().recv(4096, |f| own += u64::from(f.first()[6..12] == from));
        own
    }
}

/// Counts of the frames that two neighbours of the hostile guest exchanged in one run.
#[derive(Debug, Default)]
struct Reading {
    due: u64,
    delivered: u64,
    /// Longest time in which a neighbour received no frame, in ticks.
    gap: u32,
}

impl Reading {
    fn kept(&self) -> f64 {
        self.delivered as f64 / self.due as f64
    }

    fn add(&mut self, other: &Self) {
        self.due += other.due;
        self.delivered += other.delivered;
        self.gap = self.gap.max(other.gap);
    }
}

/// Sends and counts frames between both neighbours for `seconds` seconds.
fn exchange(neighbours: &mut [Neighbour; 2], seconds: f64) -> Reading {
    let start = Instant::now();
    let mut reading = Reading::default();
    let mut silent = [0_u32; 2];
    let mut tick = start;
    while start.elapsed().as_secs_f64() < seconds {
        // If this thread slept through a tick, the tick is skipped, because the test measures only
        // the switch.
        tick = (tick + TICK).max(Instant::now());
        while Instant::now() < tick {
            let _ = nix::poll::poll(&mut [], nix::poll::PollTimeout::from(1_u8));
        }
        for (neighbour, silent) in neighbours.iter_mut().zip(&mut silent) {
            reading.due += PER_TICK;
            let came = neighbour.tick().1;
            reading.delivered += came;
            *silent = if came == 0 { *silent + 1 } else { 0 };
            reading.gap = reading.gap.max(*silent);
        }
    }
    let end = Instant::now();
    while end.elapsed() < Duration::from_millis(50) {
        reading.delivered += neighbours.iter_mut().map(Neighbour::receive).sum::<u64>();
    }
    reading
}

/// Loads the core of the hostile guest, without any request to the switch.
fn burn(stage: &Stage) {
    while !stage.stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

fn neighbours(rig: &Rig) -> [Neighbour; 2] {
    let connect = |i: usize, from: u8| {
        let mut config = rig.driver(i);
        config.ring_size = 1024;
        let bytes = frame(mac(u8::try_from(i).unwrap()), mac(from), 60, 0);
        Neighbour { device: VirtioNet::connect(config).unwrap(), bytes, from: mac(from).0 }
    };
    let mut both = [connect(0, 1), connect(1, 0)];
    rig.wait_up(2);
    let [a, b] = &mut both;
    announce(&mut a.device, mac(0), &mut b.device);
    announce(&mut b.device, mac(1), &mut a.device);
    both
}

/// Lets the neighbours exchange frames for `seconds` while the hostile act `act` runs.
fn beside(rig: &Rig, both: &mut [Neighbour; 2], act: fn(&Stage), seconds: f64) -> Reading {
    let stage = stage(rig);
    std::thread::scope(|scope| {
        let hostile = scope.spawn(|| act(&stage));
        let _priority = Favoured::this_thread();
        let reading = exchange(both, seconds);
        stage.stop.store(true, Ordering::Relaxed);
        hostile.join().unwrap();
        reading
    })
}

fn run(act: fn(&Stage)) -> Reading {
    let rig = Rig::on_core(&ports(), Some(1));
    pin(0);
    let mut both = neighbours(&rig);
    favour(Some("penstock-w"));
    beside(&rig, &mut both, act, seconds())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Longest time in ticks in which a neighbour may receive no frame because of a hostile act.
const GAP_MOST: u32 = 20;
/// Name of the hostile act that may delay neighbours for longer than [`GAP_MOST`] once a minute.
/// The kernel needs about 220 ms to punch a hole of 1 GiB.
const PUNCHES: &str = "punches holes";

#[test]
#[ignore = "a measurement: wants an idle machine with two cores"]
fn neighbours_keep_their_rate() {
    let only = std::env::var("HOSTILE_ACT").unwrap_or_default();
    let mut failed = Vec::new();
    println!("{:<30} {:>9} {:>9} {:>9}  gap, ms", "act", "without", "with", "kept");
    for (name, act) in ACTS.into_iter().filter(|(name, _): &Act| name.contains(&only)) {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let mut gaps = [0, 0];
        for _ in 0..PAIRS {
            for (act, kept, gap) in
                [(burn as fn(&Stage), &mut without, 0), (act as fn(&Stage), &mut with, 1)]
            {
                let reading = run(act);
                kept.push(reading.kept());
                gaps[gap] = gaps[gap].max(reading.gap);
            }
        }
        let (without, with) = (median(without), median(with));
        let [gap, gap_with] = gaps;
        let kept = with / without;
        println!("{name:<30} {without:>9.4} {with:>9.4} {kept:>9.4}  {gap} and {gap_with}");
        let silent = gap_with > GAP_MOST.max(gap) && !name.starts_with(PUNCHES);
        if kept < 0.99 || silent {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "below 99 %, or silent for longer than 20 ms: {failed:?}");
}

/// Duration of the test that repeats the acts in [`FAULTS`], in seconds.
const LOOP: f64 = 600.0;
/// Duration in seconds of each hostile act in the test that repeats the acts in [`FAULTS`]. Before
/// each hostile act, the neighbours run without the act for a fifth of this duration.
const SLICE: f64 = 5.0;

/// For ten minutes, a peer damages memory that the switch maps, with one hostile act after the
/// other.
#[test]
#[ignore = "a measurement: wants an idle machine with two cores"]
fn ten_minutes_of_faults_cost_the_neighbours_nothing() {
    let _one = crate::alone();
    let before = crate::left();
    {
        let rig = Rig::on_core(&ports(), Some(1));
        pin(0);
        let mut both = neighbours(&rig);
        favour(Some("penstock-w"));
        let (mut without, mut with) = (Reading::default(), Reading::default());
        let all = std::env::var("HOSTILE_LOOP").ok().and_then(|s| s.parse().ok()).unwrap_or(LOOP);
        let start = Instant::now();
        for (name, act) in FAULTS.map(|act| ACTS[act]).into_iter().cycle() {
            without.add(&beside(&rig, &mut both, burn, SLICE / 5.0));
            let reading = beside(&rig, &mut both, act, SLICE);
            println!("{name:<30} kept {:.4}, gap {} ms", reading.kept(), reading.gap);
            with.add(&reading);
            if start.elapsed().as_secs_f64() > all {
                break;
            }
        }
        println!("without: {:.5}, gap {} ms", without.kept(), without.gap);
        println!("with:    {:.5}, gap {} ms", with.kept(), with.gap);
        assert!(with.kept() > 0.99 * without.kept(), "{with:?}, without {without:?}");
        assert!(with.gap <= GAP_MOST.max(without.gap), "{with:?}, without {without:?}");
    }
    assert_eq!(crate::left(), before, "descriptors, mapped bytes and mappings");
}
