//! Tests of polls on a simulated processor, with simulated threads and simulated time. The
//! simulation chooses the running thread by the scheduling thread's temporary real-time policies,
//! as Linux would. The simulation writes the procfs files that the scheduling thread reads.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use penstock_testing::{TempDir, temp_dir};
use penstock_units::Weight;
use penstock_vcpu::Contract;
use penstock_vcpu::admission::{Claim, Limits, admit};
use proptest::prelude::*;

use super::*;
use crate::boost::seat::Seat;
use crate::boost::tests::boost;
use crate::lease::Identity;
use crate::policy::Policy;
use crate::weight::Weigher;

/// Simulated time of one step.
const STEP: Nanos = Nanos::from_micros(50);
/// Time for which the fair class lets a thread run before the next thread.
const FAIR: Nanos = Nanos::from_millis(3);
const MS: u64 = 1_000_000;
const BEGIN: Nanos = Nanos::from_secs(1_000);

/// Behaviour of a simulated thread. A simulated thread repeats a script with the times for which it
/// sleeps and works. A thread that does not sleep always has work.
#[derive(Clone, Debug)]
struct Guest {
    mode: Mode,
    deadline_ms: u64,
    script: Vec<(Nanos, Nanos)>,
}

/// State of a simulated vCPU thread.
#[derive(Debug)]
struct Thread {
    /// The files `schedstat` and `stat` of the simulated thread.
    files: [File; 2],
    /// Last content of the files `schedstat` and `stat` of the simulated thread.
    written: [String; 2],
    ran: Nanos,
    waited: Nanos,
    turns: u64,
    /// Current step of the simulated thread's script.
    at: usize,
    asleep_until: Option<Nanos>,
    to_do: Nanos,
    /// Time since which the simulated thread waits to run.
    since: Nanos,
    /// Real-time priority that the simulated thread had at the last step because of a temporary
    /// real-time policy.
    priority: u8,
    /// Whether an event woke the simulated thread while it was blocked with a real-time policy, and
    /// the thread still has this policy.
    woken_to_run: bool,
    /// Time for which the simulated thread ran on a standing lease (a blocked thread's real-time
    /// policy) while another thread also had a standing lease.
    used: Nanos,
    used_most: Nanos,
    /// Longest wait of the simulated thread with a standing lease (the real-time policy of a
    /// blocked thread).
    waited_most: Nanos,
    /// Longest time for which the simulated thread was runnable and did not run.
    away_most: Nanos,
}

impl Thread {
    fn new(task: &Path, to_do: Nanos) -> Self {
        std::fs::create_dir_all(task).unwrap();
        let none = Nanos(0);
        Self {
            files: ["schedstat", "stat"].map(|name| File::create(task.join(name)).unwrap()),
            written: [String::new(), String::new()],
            ran: none,
            waited: none,
            turns: 0,
            at: 0,
            asleep_until: None,
            to_do,
            since: BEGIN,
            priority: 0,
            woken_to_run: false,
            used: none,
            used_most: none,
            waited_most: none,
            away_most: none,
        }
    }

    fn is_runnable(&self) -> bool {
        self.asleep_until.is_none()
    }

    /// Writes the simulated thread's state to the thread's files.
    fn write(&mut self) {
        let Self { ran, waited, turns, .. } = self;
        let state = if self.asleep_until.is_none() { 'R' } else { 'S' };
        // Numbers only grow, so the new text covers the old text.
        let texts = [format!("{} {} {turns}\n", ran.0, waited.0), format!("1 (x) {state} 1\n")];
        for (at, text) in texts.into_iter().enumerate() {
            if text != self.written[at] {
                self.files[at].write_all_at(text.as_bytes(), 0).unwrap();
                self.written[at] = text;
            }
        }
    }
}

struct World {
    boost: Boost,
    _dir: TempDir,
    guests: Vec<Guest>,
    threads: Vec<Thread>,
    /// Runnable threads in the order in which they became runnable.
    queue: VecDeque<usize>,
    running: Option<usize>,
    turn: Nanos,
    /// Number of polls of the scheduling thread so far.
    polls: u64,
}

fn lent(_: u32, _: Policy) -> Result<(), PolicyError> {
    Ok(())
}

impl World {
    fn new(guests: &[Guest]) -> Self {
        let dir = temp_dir();
        let me = Identity { pid: 1, tid: 1, started: 1 };
        let mut boost = boost(&dir, me);
        boost.parts.lending.store(true, std::sync::atomic::Ordering::Relaxed);
        let count = u64::try_from(guests.len()).unwrap();
        let task = |at: usize| dir.join(at.to_string());
        let mut threads = Vec::new();
        for (at, guest) in guests.iter().enumerate() {
            let deadline = Nanos::from_millis(guest.deadline_ms);
            let contract = match guest.mode {
                Mode::None => Contract::by_credit(Weight::ONE),
                mode => Contract::real_time(mode, deadline, Weight::ONE),
            };
            let mut thread = Thread::new(&task(at), guest.script[0].1);
            thread.write();
            threads.push(thread);
            let tid = u32::try_from(at).unwrap();
            let seat = Seat {
                vm: format!("vm{at}").into(),
                thread: Identity { pid: tid, tid, started: 1 },
                slot: at,
                saved: Policy::DEFAULT,
                contract,
                base_ppm: 1_000_000,
                share_ppm: 1_000_000 / count,
                weigher: Weigher::Nice,
            };
            let vcpu = boost.admit(BEGIN, &seat).unwrap();
            let sitter = Sitter::open(&task(at), seat, (vcpu, 0), BEGIN, lent).unwrap();
            boost.queue.wake(BEGIN, vcpu, Cause::Timer);
            boost.sitters.push(sitter);
        }
        for next in
            [&mut boost.due, &mut boost.next_tick, &mut boost.next_account, &mut boost.next_report]
        {
            *next = BEGIN;
        }
        let (guests, queue) = (guests.to_vec(), (0..guests.len()).collect());
        Self { boost, _dir: dir, guests, threads, queue, running: None, turn: BEGIN, polls: 0 }
    }

    fn lent(&self, at: usize) -> Lent {
        self.boost.sitters[at].lent
    }

    fn priority(&self, at: usize) -> u8 {
        self.lent(at).priority().unwrap_or(0)
    }

    /// Chooses the first thread with the highest priority as the next thread. A running real-time
    /// thread continues if the other threads have at most the same priority.
    fn choose(&mut self, now: Nanos) {
        for at in 0..self.threads.len() {
            let priority = self.priority(at);
            let was = std::mem::replace(&mut self.threads[at].priority, priority);
            // If a thread's priority is raised, Linux puts the thread behind the threads that
            // already have this priority.
            let waits = self.queue.iter().position(|other| *other == at);
            if let Some(place) = waits.filter(|_| priority > was) {
                self.queue.remove(place);
                self.queue.push_back(at);
            }
        }
        let top = (0..self.threads.len()).filter(|at| self.threads[*at].is_runnable());
        let top = top.map(|at| self.priority(at)).max();
        let Some(top) = top else {
            self.running = None;
            return;
        };
        let goes_on = self.running.filter(|at| {
            let in_turn = top > 0 || now.saturating_sub(self.turn) < FAIR;
            self.threads[*at].is_runnable() && self.priority(*at) == top && in_turn
        });
        if goes_on.is_some() {
            return;
        }
        // A preempted thread stays first. A thread at the end of its turn becomes the last.
        if let Some(was) = self.running.take().filter(|at| self.threads[*at].is_runnable()) {
            self.threads[was].since = now;
            if self.priority(was) < top {
                self.queue.push_front(was)
            } else {
                self.queue.push_back(was)
            }
        }
        let place = self.queue.iter().position(|at| self.priority(*at) == top).unwrap();
        let next = self.queue.remove(place).unwrap();
        let thread = &mut self.threads[next];
        let wait = now.saturating_sub(thread.since);
        thread.waited += wait;
        thread.turns += 1;
        thread.used = Nanos(0);
        thread.away_most = thread.away_most.max(wait);
        if std::mem::take(&mut thread.woken_to_run) {
            thread.waited_most = thread.waited_most.max(wait);
        }
        (self.running, self.turn) = (Some(next), now);
    }

    /// Simulates one step of the running thread.
    fn step(&mut self, now: Nanos) {
        for at in 0..self.threads.len() {
            let stands = self.lent(at) == Lent::Standing;
            let nothing = self.lent(at) == Lent::No;
            let thread = &mut self.threads[at];
            if thread.asleep_until.is_some_and(|until| until <= now) {
                (thread.asleep_until, thread.since, thread.used) = (None, now, Nanos(0));
                thread.woken_to_run = stands;
                self.queue.push_back(at);
            }
            // If the temporary policy was ended for lack of credits, the thread no longer needs to
            // run at once.
            self.threads[at].woken_to_run &= !nothing;
        }
        self.choose(now);
        let Some(at) = self.running else { return };
        let stand = |at: &usize| self.lent(*at) == Lent::Standing;
        let beside = stand(&at) && (0..self.threads.len()).filter(stand).count() > 1;
        let script = &self.guests[at].script;
        let thread = &mut self.threads[at];
        thread.ran += STEP;
        thread.used = if beside { thread.used + STEP } else { Nanos(0) };
        thread.used_most = thread.used_most.max(thread.used);
        thread.to_do = thread.to_do.saturating_sub(STEP);
        if thread.to_do == Nanos(0) {
            thread.at = (thread.at + 1) % script.len();
            let (sleep, work) = script[thread.at];
            thread.to_do = work;
            if sleep > Nanos(0) {
                thread.asleep_until = Some(now + STEP + sleep);
                self.running = None;
            }
        }
    }

    fn run(&mut self, time: Nanos) {
        let (mut now, mut next) = (BEGIN, BEGIN);
        while now < BEGIN + time {
            if now >= next {
                self.threads.iter_mut().for_each(Thread::write);
                self.boost.due = next;
                self.boost.poll(now);
                next = self.boost.next(now);
                self.polls += 1;
            }
            self.step(now);
            now += STEP;
        }
    }
}

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

fn hog() -> Guest {
    Guest { mode: Mode::None, deadline_ms: 0, script: vec![(Nanos(0), us(10_000_000))] }
}

/// Makes a thread that has little work at first, so that its credits later suffice for much work at
/// once.
fn sleeper(deadline_ms: u64, until_ms: u64, work_ms: u64) -> Guest {
    let script = vec![
        (Nanos(0), us(100)),
        (Nanos(until_ms * MS), Nanos(work_ms * MS)),
        (Nanos(50 * MS), us(50)),
    ];
    Guest { mode: Mode::Periodic, deadline_ms, script }
}

/// Longest time for which a vCPU may run on a standing lease (the real-time policy of a blocked
/// vCPU). A vCPU that answers an event takes up to half a real-time slice. The scheduling thread
/// notices at most one real-time slice later that the vCPU continues to run.
const A_SLICE_AND_A_HALF: Nanos = Nanos(SLICE.0 * 3 / 2);

#[test]
fn of_three_that_are_woken_at_once_each_has_its_turn_soon() {
    // No vCPU has run on its standing lease for a long time, so the scheduling thread examines
    // these vCPUs rarely.
    let guests = [sleeper(3, 200, 30), sleeper(3, 201, 30), sleeper(3, 201, 30), hog()];
    let mut world = World::new(&guests);
    world.run(Nanos::from_millis(260));
    for (at, thread) in world.threads.iter().take(3).enumerate() {
        assert!(
            thread.used_most <= A_SLICE_AND_A_HALF,
            "thread {at} keeps its real-time slice for {:?}",
            thread.used_most
        );
        let most = Nanos(2 * A_SLICE_AND_A_HALF.0);
        assert!(thread.waited_most <= most, "{at} waits for {:?}", thread.waited_most);
    }
}

#[test]
fn who_is_due_does_not_wait_for_those_that_were_woken() {
    let due = Guest { mode: Mode::Periodic, deadline_ms: 1, ..hog() };
    let mut guests = vec![due];
    guests.extend((0..8).map(|_| sleeper(20, 200, 10)));
    let mut world = World::new(&guests);
    world.run(Nanos::from_millis(260));
    let away = world.threads[0].away_most;
    assert!(away <= Nanos(2 * MS), "the thread was runnable and did not run for {away:?}");
}

#[test]
fn one_standing_lease_alone_costs_no_more_polls_than_ticks() {
    let mut world = World::new(&[sleeper(3, 2_000, 1), hog()]);
    world.run(Nanos::from_millis(1_000));
    assert!(world.polls < 200, "{}", world.polls);
}

fn script() -> impl Strategy<Value = Vec<(Nanos, Nanos)>> {
    let sleep = prop_oneof![3 => 100_u64..4_000, 2 => 4_000_u64..60_000];
    let work = prop_oneof![6 => 50_u64..400, 3 => 400_u64..1_500, 1 => 1_500_u64..20_000];
    let step = (sleep, work).prop_map(|(sleep, work)| (us(sleep), us(work)));
    prop::collection::vec(step, 4..20)
}

fn guests() -> impl Strategy<Value = Vec<Guest>> {
    let mode = prop_oneof![Just(Mode::Periodic), Just(Mode::Aperiodic)];
    let one = (mode, 1_u64..30, script());
    let one = one.prop_map(|(mode, deadline_ms, script)| Guest { mode, deadline_ms, script });
    let some = (prop::collection::vec(one, 2..8), 0_usize..3);
    some.prop_map(|(guests, hogs)| {
        // The test uses as many deadlines as admission accepts.
        let share_ppm = 1_000_000 / (u64::try_from(guests.len() + hogs).unwrap());
        let (mut kept, mut claims) = (Vec::new(), Vec::new());
        for guest in guests {
            claims.push(Claim { deadline: Nanos(guest.deadline_ms * MS), share_ppm });
            match admit(&claims, false, Limits::default()) {
                Ok(()) => kept.push(guest),
                Err(_) => drop(claims.pop()),
            }
        }
        kept.extend((0..hogs).map(|_| hog()));
        kept
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Tests any number of vCPUs that have a real-time policy while blocked, with events that wake
    /// the vCPUs at any time. While several vCPUs have the real-time policy of blocked vCPUs, no
    /// vCPU may run on this policy for longer than a slice and a half. Each vCPU must run within
    /// its deadline plus two real-time slices.
    #[test]
    fn a_standing_lease_keeps_nobody_from_its_own(guests in guests()) {
        prop_assume!(guests.len() > 1);
        let mut world = World::new(&guests);
        world.run(Nanos::from_millis(600));
        for (guest, thread) in guests.iter().zip(&world.threads) {
            prop_assert!(
                thread.used_most <= A_SLICE_AND_A_HALF,
                "deadline {} ms: the thread keeps its real-time slice for {:?}",
                guest.deadline_ms, thread.used_most
            );
            let most = Nanos(guest.deadline_ms * MS) + SLICE + SLICE;
            prop_assert!(
                thread.waited_most <= most,
                "{} ms: the woken thread waits for {:?}", guest.deadline_ms, thread.waited_most
            );
        }
    }
}
