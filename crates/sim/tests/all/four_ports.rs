//! Tests with four simulated VMs, a lossy wire and a slow receiver. The counters must include all
//! frames, and two runs with the same seed must give the same result.

use penstock_dataplane::counters::PortReading;
use penstock_dataplane::drop::DropReason;
use penstock_sim::{Costs, PortHandle, SinkSpec, SinkStats, SourceSpec, SourceStats, World};
use penstock_units::{Nanos, TscRate};

const END: Nanos = Nanos::from_millis(50);

struct Outcome {
    vms: Vec<(SourceStats, SinkStats, PortReading)>,
    unsent: Vec<usize>,
    cycles: (u64, u64),
}

/// VMs 0, 1 and 2 send to VM 3, and VM 3 sends to VM 0. VM 3 can receive 2 million frames/s. The
/// wire of VM 1 loses 1 % of the frames.
fn run(seed: u64, rates: [u64; 4]) -> Outcome {
    let mut world = World::new(TscRate::from_hz(2_000_000_000), Costs::EXAMPLE, 8, seed);
    let slow = SinkSpec { frames_per_second: Some(2_000_000) };
    let sinks = [SinkSpec::default(), SinkSpec::default(), SinkSpec::default(), slow];
    let vms: Vec<PortHandle> =
        sinks.iter().map(|&sink| world.add_vm(1, 256, sink).expect("attaches")).collect();
    for (i, &vm) in vms.iter().enumerate() {
        world.set_source(
            vm,
            SourceSpec {
                target: World::mac_of(if i == 3 { 0 } else { 3 }),
                sizes: vec![(60, 7), (570, 4), (1514, 1)],
                frames_per_second: rates[i],
                flows: 5,
                from: Nanos(0),
                until: END,
                loss_ppm: if i == 1 { 10_000 } else { 0 },
            },
        );
    }
    world.run_until(END + Nanos::from_millis(5));
    let worker = world.worker();
    Outcome {
        vms: vms.iter().map(|&v| (world.sent(v), world.received(v), world.port(v))).collect(),
        unsent: vms.iter().map(|&v| world.unsent(v)).collect(),
        cycles: (worker.cycles_charged, worker.cycles_idle),
    }
}

#[test]
fn counters_add_up_with_loss_and_a_slow_receiver() {
    let outcome = run(1, [2_000_000, 1_000_000, 500_000, 300_000]);
    let (mut forwarded, mut delivered) = (0, 0);
    for ((sent, received, port), unsent) in outcome.vms.iter().zip(&outcome.unsent) {
        assert_eq!(sent.made, sent.lost + sent.refused + sent.sent);
        assert_eq!(port.rx_frames + *unsent as u64, sent.sent);
        assert_eq!(port.unaccounted(), 0, "{port:?}");
        assert!(received.frames <= port.tx_frames);
        forwarded += port.forwarded;
        delivered += port.tx_frames;
    }
    assert_eq!(forwarded, delivered);
    // 3.5 M frames/s go to a receiver of 2 M. The rest is dropped at its ring and counted on both
    // sides.
    let full = DropReason::RingFull as usize;
    let at_target = outcome.vms[3].2.tx_drops[full];
    let at_sources: u64 = outcome.vms[..3].iter().map(|vm| vm.2.drops[full]).sum();
    assert_eq!(at_target, at_sources);
    assert!(at_target > 50_000, "the slow receiver drops: {at_target}");
    let got = outcome.vms[3].1.frames;
    assert!((100_000..=111_000).contains(&got), "2 M frames/s for 50-55 ms: {got}");
    // Only VM 1's wire loses frames.
    assert!((300..=700).contains(&outcome.vms[1].0.lost), "{}", outcome.vms[1].0.lost);
    assert_eq!(outcome.vms[0].0.lost + outcome.vms[2].0.lost, 0);
    // VM 0 is not affected: all frames from VM 3 arrive in order. VM 0 also gets frames that were
    // flooded while addresses were unknown.
    let copies: u64 = outcome.vms.iter().map(|vm| vm.2.replicated).sum();
    assert!((1..=200).contains(&copies), "{copies}");
    let beside = outcome.vms[0].1.frames - outcome.vms[3].0.sent;
    assert!(beside <= copies, "{beside} of {copies}");
    assert!(outcome.vms.iter().all(|vm| vm.1.reordered == 0));
}

#[test]
fn charged_cycles_are_elapsed_cycles() {
    let outcome = run(2, [400_000, 200_000, 100_000, 100_000]);
    let charged: u64 = outcome.vms.iter().map(|vm| vm.2.cycles).sum();
    assert_eq!(charged, outcome.cycles.0, "what ports are charged is what the worker was busy");
    let total = outcome.cycles.0 + outcome.cycles.1;
    let due = 2_000_000_000 / 1000 * 55;
    // Skipped idle time counts as idle cycles. Only the last skip is not counted.
    assert!(total.abs_diff(due) < 10_000, "{total} of {due}");
}

#[test]
fn a_seed_replays_exactly_and_another_does_not() {
    let rates = [2_000_000, 1_000_000, 500_000, 300_000];
    let (a, b, c) = (run(7, rates), run(7, rates), run(8, rates));
    assert!(a.vms == b.vms && a.cycles == b.cycles && a.unsent == b.unsent);
    assert!(a.vms != c.vms);
}

/// Runs twenty simulated VMs. Each VM sends a frame every 10 ms, and the VMs send one after the
/// other.
fn with_pauses(seed: u64) -> (Vec<PortReading>, u64, u64) {
    let mut world = World::new(TscRate::from_hz(2_000_000_000), Costs::EXAMPLE, 20, seed);
    let vms: Vec<PortHandle> =
        (0..20).map(|_| world.add_vm(1, 256, SinkSpec::default()).expect("attaches")).collect();
    for from in 0..20_u16 {
        let spec = SourceSpec {
            target: World::mac_of((from + 1) % 20),
            sizes: vec![(60, 1)],
            frames_per_second: 100,
            flows: 1,
            from: Nanos::from_micros(500 * u64::from(from)),
            until: Nanos::from_secs(1),
            loss_ppm: 0,
        };
        world.set_source(vms[usize::from(from)], spec);
    }
    world.run_until(Nanos::from_secs(1));
    let worker = world.worker();
    (vms.iter().map(|&vm| world.port(vm)).collect(), worker.wakes, worker.resting)
}

#[test]
fn a_resting_queue_pair_is_woken_by_its_bell_and_loses_nothing() {
    let (ports, wakes, resting) = with_pauses(3);
    assert!(ports.iter().all(|port| (99..=100).contains(&port.rx_frames)), "none is forgotten");
    assert!(wakes >= 1_000, "most speak after their rest began: {wakes}");
    assert_eq!(resting, 12, "all but 8");
    assert_eq!((ports, wakes, resting), with_pauses(3), "a seed replays");
}

/// Runs six simulated VMs on `workers` workers. Each VM sends to the next VM, which another worker
/// serves.
fn ring_of_six(workers: u16, seed: u64) -> (Vec<(SourceStats, SinkStats, PortReading)>, u64) {
    let rate = TscRate::from_hz(2_000_000_000);
    let mut world = World::with_workers(workers, rate, Costs::EXAMPLE, 6, seed);
    let vms: Vec<PortHandle> =
        (0..6).map(|_| world.add_vm(1, 256, SinkSpec::default()).expect("attaches")).collect();
    for (from, &vm) in (0..6_u16).zip(&vms) {
        let spec = SourceSpec {
            target: World::mac_of((from + 1) % 6),
            sizes: vec![(60, 7), (570, 4), (1514, 1)],
            frames_per_second: 4_000_000,
            flows: 5,
            from: Nanos(0),
            until: Nanos::from_millis(10),
            loss_ppm: 0,
        };
        world.set_source(vm, spec);
    }
    world.run_until(Nanos::from_millis(15));
    let all = vms.iter().map(|&v| (world.sent(v), world.received(v), world.port(v))).collect();
    (all, world.worker().taken_over)
}

#[test]
fn two_workers_replay_to_the_last_frame_and_carry_what_one_cannot() {
    let (two, handed) = ring_of_six(2, 5);
    for (n, (_, sink, port)) in two.iter().enumerate() {
        assert_eq!((port.unaccounted(), port.queued), (0, 0), "VM {n}");
        assert_eq!(sink.reordered, 0, "VM {n}");
    }
    assert!(handed > 50_000, "every frame crosses: {handed}");
    assert!((two, handed) == ring_of_six(2, 5), "a seed replays");
    let got = |vms: &[(SourceStats, SinkStats, PortReading)]| -> u64 {
        vms.iter().map(|vm| vm.1.frames).sum()
    };
    let ((two, _), (one, none)) = (ring_of_six(2, 5), ring_of_six(1, 5));
    assert_eq!(none, 0, "a worker that is alone hands nothing over");
    assert!(got(&two) > got(&one), "{} with two, {} with one", got(&two), got(&one));
}
