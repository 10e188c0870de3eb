//! These tests run a worker turn by turn, and look at the claims of its ports at an output with
//! fair shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_qos::shaper::Smoothing;
use penstock_units::{BitsPerSecond, Cycles, Vid, Weight};

use super::*;
use crate::batch::Batch;
use crate::counters::{Counter, PortCounters};
use crate::offload::OffloadCaps;
use crate::port::memory_queue::{MemoryDriver, MemoryFrame, MemoryQueue, memory_queue};
use crate::port::{Pending, PortQueue, TxOutcome};
use crate::queue::{Order, Pacing, QueueHome, QueueTerms, ShapeTerms, ShaperKind};
use crate::schedule::ScheduleKind;
use crate::snapshot::{Domain, PortPolicy, Snapshot};
use crate::tsc::{Stage, VirtualCounter, Work};
use crate::unit::OUTPUT;
use crate::worker::aside::Why;
use crate::worker::{Turn, Worker, WorkerConfig};

/// Port with the output. The ports with lower numbers send to it.
const UP: u16 = 3;

/// A cycle counter that advances by 100 ns in each stage of a batch.
#[derive(Clone, Debug, Default)]
struct Ticking(VirtualCounter);

impl CycleCounter for Ticking {
    fn now(&self) -> Cycles {
        self.0.now()
    }

    fn spent(&self, stage: Stage, _: &Work) {
        if !matches!(stage, Stage::Look | Stage::Refill) {
            self.0.advance(Cycles(100));
        }
    }
}

/// A queue pair that counts the worker's looks at its ring.
struct Counting {
    pair: MemoryQueue,
    looks: Arc<AtomicUsize>,
}

impl PortQueue for Counting {
    fn pending(&mut self, now: Cycles) -> Pending {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.pair.pending(now)
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        self.pair.rx_burst(batch);
    }

    fn backlog(&mut self) -> Option<usize> {
        self.pair.backlog()
    }

    fn tx_ready(&self) -> bool {
        self.pair.tx_ready()
    }

    fn caps(&self) -> OffloadCaps {
        self.pair.caps()
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        self.pair.tx_burst(batch, frames)
    }

    fn rest(&mut self) -> bool {
        true
    }
}

struct Bed {
    worker: Worker<Ticking>,
    drivers: Vec<MemoryDriver>,
    /// For each port, the number of looks at its ring.
    looks: Vec<Arc<AtomicUsize>>,
}

impl Bed {
    /// Creates a worker with the schedule `round-robin`.
    fn new(pacing: Pacing, change: impl Fn(&mut PortPolicy)) -> Self {
        Self::scheduled(ScheduleKind::RoundRobin, pacing, change)
    }

    /// Creates a worker that knows where [`UP`] is. `change` modifies the policy of each port.
    fn scheduled(schedule: ScheduleKind, pacing: Pacing, change: impl Fn(&mut PortPolicy)) -> Self {
        let config = WorkerConfig { max_ports: 8, schedule, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, Ticking::default(), None);
        let (mut drivers, mut looks) = (Vec::new(), Vec::new());
        for port in (0..=UP).map(PortId) {
            let (pair, driver) = memory_queue(4_096, OffloadCaps::ALL);
            let counted = Arc::new(AtomicUsize::new(0));
            let pair = Counting { pair, looks: Arc::clone(&counted) };
            looks.push(counted);
            let pairs: Vec<Box<dyn PortQueue>> = vec![Box::new(pair)];
            assert!(worker.attach(port, pairs, Arc::new(PortCounters::default())).is_ok());
            drivers.push(driver);
        }
        let terms = QueueTerms { order: Order::FairShare, pacing, ..QueueTerms::default() };
        let home = QueueHome::new(terms, 8, 8);
        let policy = |id| {
            let mut policy = PortPolicy::access(id, Some(1), Vid::UNTAGGED, 0);
            policy.queue = (id == UP).then(|| Arc::clone(&home));
            change(&mut policy);
            Some(Arc::new(policy.finish()))
        };
        let ports: Vec<u16> = (0..=UP).collect();
        let policies = ports.iter().copied().map(policy).collect();
        let domain =
            Domain { tenant: Some(1), vid: 0, members: ports.into_boxed_slice(), fdb_limit: 64 };
        let snapshot = Snapshot::new(1, policies, vec![domain], Vec::new(), 300);
        worker.swap_snapshot(Arc::new(snapshot));
        let mut hello = frame(UP, 0);
        hello[..6].fill(0xff);
        assert!(drivers[usize::from(UP)].send(MemoryFrame::plain(hello)));
        while worker.turn() != Turn::Idle {}
        Self { worker, drivers, looks }
    }

    /// Puts frames to [`UP`] into the ring of a port.
    fn send(&self, port: u16, frames: usize) {
        for _ in 0..frames {
            let frame = MemoryFrame::plain(frame(port, UP));
            assert!(self.drivers[usize::from(port)].send(frame));
        }
    }

    fn turns(&mut self, turns: usize) {
        (0..turns).for_each(|_| _ = self.worker.turn());
    }

    /// Lets idle turns of the worker pass for slightly longer than `time`.
    fn pause(&mut self, time: Nanos) {
        self.worker.ctx.counter.0.advance(Cycles(time.0));
        // The first turn takes the time, and the second turn looks at the rings.
        self.turns(2);
    }

    fn looks(&self, port: usize) -> usize {
        self.looks[port].load(Ordering::Relaxed)
    }

    /// Takes all frames that arrived at [`UP`], and returns their number.
    fn received(&self) -> usize {
        core::iter::from_fn(|| self.drivers[usize::from(UP)].receive()).count()
    }

    /// Returns the class in which the output of [`UP`] has its turns. Returns `None` if the output
    /// is not in the schedule.
    fn class(&self) -> Option<Priority> {
        let state = self.worker.roster.schedule.state(Unit { port: PortId(UP), queue: OUTPUT });
        state.map(|(class, _)| class)
    }

    /// Returns the number of the worker's turns that moved frames, and the number of frames that
    /// waited at [`UP`].
    fn counted(&self) -> (u64, u64) {
        let turns = self.worker.ctx.counters().busy_turns.get();
        let waited = &self.worker.ctx.of(PortId(UP)).unwrap().tx_waited;
        (turns, waited.iter().map(Counter::get).sum())
    }

    fn queue(&mut self) -> &mut OutputQueue {
        self.worker.ctx.ports[usize::from(UP)].output.as_deref_mut().unwrap()
    }
}

fn frame(from: u16, to: u16) -> Vec<u8> {
    let [from, to] = [from, to].map(|port| u8::try_from(port).unwrap());
    let mut bytes = vec![0x52, 0, 0, 0, 0, to, 0x52, 0, 0, 0, 0, from, 0x88, 0xb5];
    bytes.resize(60, 7);
    bytes
}

#[test]
fn a_port_whose_claim_the_output_withdrew_keeps_its_turn() {
    let mut bed = Bed::new(Pacing::None, |_| {});
    [0, 1].iter().for_each(|port| bed.send(*port, 2_000));
    bed.turns(20);
    assert!([0, 1].iter().all(|port| bed.queue().has_claim(*port)));
    let from = source_of(PortId(1), &bed.worker.ctx.snapshot);
    bed.queue().claim(&from, 0);
    let unsent = bed.drivers[1].unsent();
    bed.turns(12);
    assert!(bed.drivers[1].unsent() < unsent && bed.queue().has_claim(1));
}

/// Returns the port and the length of each run of batches that ports 0 and 1 have in `turns` turns,
/// without the first and the last run.
fn runs(bed: &mut Bed, turns: usize) -> Vec<(usize, usize)> {
    let mut order = Vec::new();
    for _ in 0..turns {
        let unsent = bed.drivers[0].unsent();
        bed.turns(1);
        order.push(usize::from(bed.drivers[0].unsent() == unsent));
    }
    let runs: Vec<_> = order.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    runs[1..runs.len() - 1].to_vec()
}

#[test]
fn one_choice_suffices_for_several_batches_if_few_ports_have_claims() {
    let mut bed = Bed::new(Pacing::None, |_| {});
    [0, 1].iter().for_each(|port| bed.send(*port, 4_000));
    bed.turns(20);
    let before = (bed.worker.ctx.counters().read(), bed.counted().1);
    // Each port has half of the eight batches of a rotation. The next rotation may begin with the
    // port that was the last one.
    let runs = runs(&mut bed, 80);
    assert!(runs.len() >= 10, "{runs:?}");
    assert!(runs.iter().all(|(_, batches)| [4, 8].contains(batches)), "{runs:?}");
    let grown = bed.worker.ctx.counters().read().since(&before.0);
    assert!((19..=22).contains(&grown.share_choices), "{} choices", grown.share_choices);
    assert_eq!((grown.unchosen_batches, bed.counted().1), (0, before.1));
}

/// Two batches of port 0 leave less than a batch in its ring, or a batch.
#[test]
fn an_output_chooses_again_if_the_ring_has_less_than_a_batch() {
    for (left, choices) in [(31, 1), (32, 0)] {
        let mut bed = Bed::new(Pacing::None, |_| {});
        bed.send(0, 64 + left);
        bed.turns(3);
        assert_eq!((bed.received(), bed.queue().again()), (64, Some(0)));
        let Worker { ctx, outputs, .. } = &mut bed.worker;
        let before = ctx.counters().read().share_choices;
        assert_eq!(outputs.claims.choice(ctx, PortId(UP)), Choice::Poll(0));
        assert_eq!(ctx.counters().read().share_choices - before, choices, "{left} frames");
    }
}

/// Port 1 has an eighth of the weight of port 0, so it gives away most of its turns.
#[test]
fn a_port_with_a_small_share_waits_no_longer_because_of_runs() {
    let mut bed = Bed::new(Pacing::None, |policy| {
        policy.share.vm = Weight::new(if policy.id == 0 { 8 } else { 1 }).unwrap();
    });
    [0, 1].iter().for_each(|port| bed.send(*port, 4_000));
    bed.turns(20);
    let waited = bed.counted().1;
    let runs = runs(&mut bed, 90);
    let of = |port: usize| runs.iter().filter(move |run| run.0 == port).map(|run| run.1);
    assert!(of(1).all(|batches| batches == 1) && of(0).any(|batches| batches >= 8), "{runs:?}");
    assert_eq!(bed.counted().1, waited, "the worker never polled port 1 unchosen");
}

#[test]
fn frames_behind_a_claim_leave_as_soon_as_the_claim_ends() {
    let mut bed = Bed::new(Pacing::None, |_| {});
    bed.send(0, 40);
    bed.turns(1);
    bed.send(1, 5);
    bed.turns(2);
    assert_eq!(bed.received(), 32);
    assert!(bed.queue().has_claim(0) && bed.queue().len() == 5, "5 frames wait behind a claim");
    bed.turns(4);
    assert_eq!(bed.received(), 13);
}

/// Batches of two ports are never full. Each takes one turn of the worker. If its frames waited, it
/// would take another turn to send them.
#[test]
fn short_batches_take_one_turn_and_do_not_wait() {
    let mut bed = Bed::new(Pacing::None, |_| {});
    let round = |bed: &mut Bed, turns| {
        [0, 1].iter().for_each(|port| bed.send(*port, 5));
        bed.turns(turns);
        assert_eq!(bed.received(), 10);
    };
    round(&mut bed, 3);
    let before = bed.counted();
    assert_eq!(before.1, 10, "the first batch of each port waits");
    let counters = bed.worker.ctx.counters().read();
    assert!(counters.cycles_queued > 0);
    (0..100).for_each(|_| round(&mut bed, 2));
    assert_eq!(bed.counted(), (before.0 + 200, before.1));
    let grown = bed.worker.ctx.counters().read().since(&counters);
    assert_eq!((grown.share_choices, grown.unchosen_batches, grown.cycles_queued), (200, 0, 0));
    assert!((100..=200).contains(&grown.share_looks), "{} looks", grown.share_looks);
    assert!(bed.queue().is_empty() && !bed.queue().has_claims());
}

/// The rings of three tenants' ports always have 20 frames, so that no batch is full.
#[test]
fn short_batches_are_shared_by_weight() {
    let mut bed = Bed::new(Pacing::None, |policy| {
        policy.tenant = Some(policy.id);
        policy.share.tenant = Weight::new(if policy.id == 0 { 2 } else { 1 }).unwrap();
    });
    let (mut sent, mut received) = ([0_usize; 3], 0);
    for _ in 0..3_000 {
        for (port, sent) in (0..).zip(&mut sent) {
            let missing = 20 - bed.drivers[usize::from(port)].unsent();
            bed.send(port, missing);
            *sent += missing;
        }
        bed.turns(1);
        received += bed.received();
    }
    let [heavy, light, _] = sent;
    assert!(heavy.abs_diff(2 * light) <= light / 10, "{sent:?}");
    let (_, waited) = bed.counted();
    assert!(waited <= 60 && received > 59_000, "{waited} of {received} frames waited");
}

/// Port 0 has four times the weight of port 1, and uses most turns of port 1.
#[test]
fn the_worker_looks_at_the_ring_of_a_port_with_a_claim_only_if_it_polls_the_port() {
    let mut bed = Bed::new(Pacing::None, |policy| {
        policy.share.vm = Weight::new(if policy.id == 0 { 4 } else { 1 }).unwrap();
    });
    [0, 1].iter().for_each(|port| bed.send(*port, 4_000));
    bed.turns(20);
    assert!([0, 1].iter().all(|port| bed.queue().has_claim(*port)));
    let (looks, unsent) = (bed.looks(1), bed.drivers[1].unsent());
    bed.turns(60);
    let batches = (unsent - bed.drivers[1].unsent()) / 32;
    assert!((8..=16).contains(&batches), "{batches} of 60 batches are of port 1");
    let looks = bed.looks(1) - looks;
    assert!(looks <= batches + 1, "{looks} looks for {batches} batches");
}

/// Port 0 sends so little to two outputs that its batches are short.
#[test]
fn a_port_whose_frames_go_elsewhere_does_not_keep_its_output() {
    let mut bed = Bed::new(Pacing::None, |_| {});
    bed.send(0, 5);
    bed.turns(2);
    assert_eq!(bed.received(), 5);
    assert_eq!(bed.worker.outputs.claims.output_of(PortId(0)), Some(PortId(UP)));
    let mut hello = frame(2, 0);
    hello[..6].fill(0xff);
    assert!(bed.drivers[2].send(MemoryFrame::plain(hello)));
    bed.turns(2);
    assert_eq!(bed.received(), 1, "all ports get the first frame of port 2");
    assert!(bed.drivers[0].send(MemoryFrame::plain(frame(0, 2))));
    bed.turns(1);
    assert_eq!(bed.worker.outputs.claims.output_of(PortId(0)), None);
    assert!(!bed.queue().has_claims() && bed.queue().is_empty());
}

#[test]
fn a_port_with_an_empty_ring_has_no_claim_although_the_link_is_busy() {
    let mut bed = Bed::new(Pacing::Link(BitsPerSecond(11_000_000_000)), |_| {});
    bed.send(0, 32);
    bed.turns(2);
    assert_eq!(bed.received(), 32);
    assert!(bed.queue().has_claim(0) && bed.queue().is_empty());
    bed.turns(1);
    assert!(!bed.queue().has_claim(0) && bed.worker.outputs.claims.looks() == 1);
    bed.turns(usize::from(EMPTY_MAX));
    assert!(!bed.worker.outputs.claims.is_empty());
    assert_eq!(bed.worker.outputs.claims.looks(), 0, "no output looks at the empty ring any more");
    bed.pause(KNOWN_FOR);
    assert!(bed.worker.outputs.claims.is_empty());
}

/// The worker looks at the empty ring of port 0 many times between two batches.
#[test]
fn a_batch_after_a_pause_passes_without_waiting() {
    let mut bed = Bed::new(Pacing::None, |_| {});
    bed.send(0, 5);
    bed.turns(2);
    assert_eq!((bed.received(), bed.counted().1), (5, 5), "the first batch waits");
    for _ in 0..20 {
        bed.turns(100);
        bed.pause(Nanos::from_millis(40));
        bed.send(0, 5);
        bed.turns(1);
        assert_eq!((bed.received(), bed.counted().1), (5, 5));
    }
    bed.pause(KNOWN_FOR);
    bed.send(0, 5);
    bed.turns(2);
    assert_eq!((bed.received(), bed.counted().1), (5, 10));
}

/// The schedule has more units than the worker always polls.
#[test]
fn a_port_at_rest_has_no_known_output() {
    let mut bed = Bed::new(Pacing::None, |_| {});
    bed.send(0, 5);
    bed.turns(2);
    let output = Unit { port: PortId(0), queue: OUTPUT };
    (0..8).for_each(|_| bed.worker.roster.schedule.add(output, Priority::FIRST));
    bed.turns(8);
    assert!(!bed.worker.outputs.claims.is_empty());
    bed.pause(Nanos::from_millis(2));
    assert!(!bed.worker.roster.polls(Unit { port: PortId(0), queue: QueueId(0) }));
    assert!(bed.worker.outputs.claims.is_empty());
}

#[test]
fn no_frame_waits_behind_the_claim_of_a_port_that_waits_for_its_shaper() {
    let rate = BitsPerSecond(1_000_000);
    let kind = ShaperKind::Smooth(Smoothing::DEFAULT);
    let mut bed = Bed::new(Pacing::None, |policy| {
        policy.shape = (policy.id == 0).then_some(ShapeTerms { rate, kind });
    });
    bed.send(0, 200);
    let waits = |bed: &Bed| bed.worker.roster.is_aside(PortId(0), Why::Shaped);
    for _ in 0..400 {
        if !waits(&bed) {
            bed.turns(1);
        }
    }
    bed.turns(4);
    let _ = bed.received();
    assert!(waits(&bed) && bed.drivers[0].unsent() > 0, "frames wait in the ring");
    assert!(bed.queue().has_claim(0) && bed.queue().is_empty());
    bed.send(1, 5);
    bed.turns(2);
    assert_eq!(bed.received(), 5);
    assert!(!bed.queue().has_claim(0) && bed.queue().is_empty());
}

/// Gives port 1 the first class. The other ports have the last class.
fn classes(policy: &mut PortPolicy) {
    policy.qos.priority = if policy.id == 1 { Priority::FIRST } else { Priority::LAST };
}

#[test]
fn with_hbs_the_output_chooses_among_the_sources_of_a_class() {
    let mut bed = Bed::scheduled(ScheduleKind::Hbs, Pacing::None, |policy| {
        policy.share.vm = Weight::new(if policy.id == 0 { 2 } else { 1 }).unwrap();
    });
    [0, 1].iter().for_each(|port| bed.send(*port, 4_000));
    bed.turns(100);
    let [heavy, light] = [0, 1].map(|port: usize| 4_000 - bed.drivers[port].unsent());
    // A run of port 0 has six batches.
    assert!(heavy.abs_diff(2 * light) <= 16 * 32, "{heavy} and {light} frames");
    assert!([0, 1].iter().all(|port| bed.queue().has_claim(*port)) && bed.queue().is_empty());
}

#[test]
fn frames_of_an_earlier_class_do_not_wait_for_claims_of_a_later_class() {
    let mut bed = Bed::scheduled(ScheduleKind::Hbs, Pacing::None, classes);
    bed.send(0, 1_000);
    bed.turns(3);
    assert_eq!((bed.received(), bed.class()), (64, None));
    assert!(bed.queue().has_claim(0) && bed.queue().is_empty(), "the second batch passed");
    bed.send(1, 5);
    bed.turns(1);
    assert!(!bed.queue().has_claim(0) && bed.queue().len() == 5);
    assert_eq!(bed.class(), Some(Priority::FIRST));
    bed.turns(1);
    assert_eq!(bed.received(), 5);
    bed.turns(2);
    assert_eq!((bed.received(), bed.class()), (64, None));
    assert!(bed.queue().has_claim(0), "the port has a claim again");
}

#[test]
fn an_output_has_its_turns_in_the_class_of_its_claims_until_an_earlier_class_sends() {
    let mut bed = Bed::scheduled(ScheduleKind::Hbs, Pacing::None, classes);
    bed.send(0, 1_000);
    bed.turns(1);
    assert!(bed.queue().has_claim(0) && bed.queue().len() == 32);
    assert_eq!(bed.class(), Some(Priority::LAST));
    bed.send(1, 5);
    bed.turns(1);
    assert!(!bed.queue().has_claim(0) && bed.queue().len() == 37);
    assert_eq!(bed.class(), Some(Priority::FIRST));
    bed.turns(2);
    assert_eq!((bed.received(), bed.class()), (37, None));
}

/// The full batch of port 1 withdraws the claim of port 0, and gives port 1 a claim.
#[test]
fn an_output_leaves_a_later_class_when_an_earlier_one_has_the_claims() {
    let mut bed = Bed::scheduled(ScheduleKind::Hbs, Pacing::None, classes);
    bed.send(0, 1_000);
    bed.turns(1);
    assert_eq!(bed.class(), Some(Priority::LAST));
    bed.send(1, 40);
    bed.turns(1);
    assert!(bed.queue().has_claim(1) && !bed.queue().has_claim(0));
    assert_eq!((bed.queue().len(), bed.class()), (64, Some(Priority::FIRST)));
}

#[test]
fn a_source_of_a_later_class_has_no_claim_beside_an_earlier_class() {
    let mut bed = Bed::scheduled(ScheduleKind::Hbs, Pacing::None, classes);
    bed.send(1, 40);
    bed.turns(1);
    assert!(bed.queue().has_claim(1));
    assert_eq!(bed.class(), Some(Priority::FIRST));
    let Worker { ctx, outputs, .. } = &mut bed.worker;
    let claims = &mut outputs.claims;
    assert!(!claims.admits(ctx, PortId(0), PortId(UP)), "port 1 has a claim");
    assert!(claims.admits(ctx, PortId(1), PortId(UP)));
    claims.withdraw(ctx, PortId(1));
    assert!(!claims.admits(ctx, PortId(0), PortId(UP)), "frames of port 1 wait");
    assert!(claims.admits(ctx, PortId(1), PortId(UP)));
}
