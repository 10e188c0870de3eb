//! Tests of cycle buckets and of the batch scheduler in the production worker. Each VM must get its
//! purchased cycles.

use penstock_dataplane::schedule::{Readiness, ScheduleKind};
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_sim::{Costs, PortHandle, SinkSpec, SourceSpec, StageCost, World, WorldConfig};
use penstock_units::{CyclesPerSecond, Nanos, Priority, TscRate, Weight};

const HZ: u64 = 2_200_000_000;

/// Costs similar to the costs of the paper's switch: about 1,300 cycles for a small frame.
const COSTS: Costs = Costs {
    ingress: StageCost { batch: 1_000.0, frame: 400.0, byte: 0.2 },
    classification: StageCost { batch: 200.0, frame: 300.0, byte: 0.0 },
    miss: 300.0,
    egress: StageCost { batch: 1_500.0, frame: 500.0, byte: 1.5 },
    ..Costs::EXAMPLE
};

/// A simulated world in which all VMs but the last VM send to the last VM.
struct Bed {
    world: World,
    senders: Vec<PortHandle>,
    sink: PortHandle,
}

/// Purchased cycles and traffic of a sending VM. The VM sends `rate` frames of `size` bytes per
/// second.
#[derive(Clone, Copy)]
struct Sender {
    qos: PortQos,
    size: usize,
    rate: u64,
    flows: u16,
}

fn qos(ingress: IngressPolicy, percent: u64, weight: u64, priority: u64) -> PortQos {
    PortQos {
        ingress,
        entitlement: CyclesPerSecond(HZ / 100 * percent),
        weight: Weight::new(weight).unwrap(),
        priority: Priority::new(priority).unwrap(),
        ..PortQos::default()
    }
}

/// Returns a sender with more frames of 1,024 bytes than the worker's core can forward.
fn sender(qos: PortQos) -> Sender {
    Sender { qos, size: 1_024, rate: 800_000, flows: 4 }
}

/// Returns a sender with many flows, and with more frames of 64 bytes than the worker's core can
/// forward.
fn flood(qos: PortQos) -> Sender {
    Sender { qos, size: 60, rate: 1_800_000, flows: 500 }
}

impl Bed {
    fn new(config: &WorldConfig, senders: &[Sender]) -> Self {
        let tsc = TscRate::from_hz(HZ);
        let mut world = World::with_config(config, tsc, COSTS, 64, 7);
        let ports: Vec<PortHandle> =
            senders.iter().map(|_| world.add_vm(1, 256, SinkSpec::default()).unwrap()).collect();
        let sink = world.add_vm(1, 256, SinkSpec::default()).unwrap();
        // The receiver sends one frame, so that the switch learns its address and floods nothing.
        let hello = SourceSpec {
            target: World::mac_of(0),
            sizes: vec![(60, 1)],
            frames_per_second: 1,
            flows: 1,
            from: Nanos::ZERO,
            until: Nanos(1),
            loss_ppm: 0,
        };
        world.set_source(sink, hello.clone());
        let target = World::mac_of(u16::try_from(senders.len()).unwrap());
        for (port, sender) in ports.iter().zip(senders) {
            world.set_qos(*port, sender.qos);
            let source = SourceSpec {
                target,
                sizes: vec![(sender.size, 1)],
                frames_per_second: sender.rate,
                flows: sender.flows,
                from: Nanos::from_micros(10),
                until: Nanos::from_secs(10),
                ..hello.clone()
            };
            world.set_source(*port, source);
        }
        Self { world, senders: ports, sink }
    }

    /// Returns each sender's share of the worker's core between two times, in percent.
    fn shares(&mut self, from_ms: u64, until_ms: u64) -> Vec<f64> {
        self.world.run_until(Nanos::from_millis(from_ms));
        let cycles = |bed: &Self| -> Vec<u64> {
            bed.senders.iter().map(|vm| bed.world.port(*vm).cycles).collect()
        };
        let before = cycles(self);
        self.world.run_until(Nanos::from_millis(until_ms));
        let spent = HZ as f64 / 1_000.0 * (until_ms - from_ms) as f64;
        let after = cycles(self);
        let share = |(after, before): (u64, u64)| 100.0 * (after - before) as f64 / spent;
        after.into_iter().zip(before).map(share).collect()
    }
}

fn hbs() -> WorldConfig {
    WorldConfig { schedule: ScheduleKind::Hbs, ..WorldConfig::default() }
}

/// Returns worker configurations with each schedule, and with each treatment (`Readiness`) of queue
/// pairs without frames.
fn all() -> [WorldConfig; 3] {
    [WorldConfig::default(), hbs(), WorldConfig { readiness: Readiness::Demotion, ..hbs() }]
}

#[track_caller]
fn close(got: &[f64], want: &[f64], off: f64) {
    let near = got.iter().zip(want).all(|(got, want)| (got - want).abs() <= off);
    assert!(near && got.len() == want.len(), "{got:?} for {want:?}");
}

use IngressPolicy::{CyclesMinmax, CyclesStrict};

#[test]
fn a_victim_keeps_what_it_bought_against_a_flood_of_small_frames() {
    for config in all() {
        for priority in [1, 8] {
            let victim = sender(qos(CyclesMinmax, 60, 1, 8));
            let noisy = flood(qos(CyclesMinmax, 40, 1, priority));
            let shares = Bed::new(&config, &[victim, noisy]).shares(40, 160);
            close(&shares, &[60.0, 40.0], 0.5);
        }
    }
}

#[test]
fn strict_ports_get_what_they_bought_and_no_more() {
    for config in all() {
        let senders = [sender(qos(CyclesStrict, 36, 1, 1)), flood(qos(CyclesStrict, 9, 1, 2))];
        let mut bed = Bed::new(&config, &senders);
        close(&bed.shares(20, 140), &[36.0, 9.0], 0.2);
        assert_eq!(bed.world.port(bed.sink).rx_frames, 1);
    }
}

#[test]
fn minmax_ports_share_what_is_idle_by_weight() {
    for config in all() {
        let sold = |weight, percent| qos(CyclesMinmax, percent, weight, 3);
        let mut senders =
            vec![sender(sold(1, 10)), flood(sold(1, 10)), sender(sold(2, 20)), sender(sold(2, 20))];
        let third = 40.0 / 3.0;
        let want = [10.0 + third / 2.0, 10.0 + third / 2.0, 20.0 + third, 20.0 + third];
        close(&Bed::new(&config, &senders).shares(40, 160), &want, 0.3);
        // One VM is idle, and the others also share its purchased cycles.
        senders[3].rate = 1;
        close(&Bed::new(&config, &senders).shares(40, 160), &[25.0, 25.0, 50.0, 0.0], 0.5);
    }
}

#[test]
fn a_capped_worker_spends_no_more_than_it_may() {
    for config in all() {
        let capacity = Some(CyclesPerSecond(HZ / 2));
        let senders = [sender(qos(CyclesMinmax, 10, 1, 1)), sender(qos(CyclesMinmax, 20, 1, 1))];
        let shares = Bed::new(&WorldConfig { capacity, ..config }, &senders).shares(20, 140);
        close(&shares, &[20.0, 30.0], 0.2);
    }
}

/// Ports of the first class always have a backlog, and share the worker with ports of a lower
/// class.
#[test]
fn no_class_starves_another_of_what_it_bought() {
    for readiness in [Readiness::Pending, Readiness::Demotion] {
        let mut senders: Vec<Sender> = Vec::new();
        for class in 1..=4 {
            (0..3).for_each(|_| senders.push(flood(qos(CyclesMinmax, 8, 1, class))));
        }
        let shares = Bed::new(&WorldConfig { readiness, ..hbs() }, &senders).shares(50, 250);
        close(&shares, &[100.0 / 12.0; 12], 0.2);
    }
}

#[test]
fn ports_without_a_bucket_live_beside_metered_ones() {
    for config in all() {
        let free = Sender { rate: 100_000, ..sender(PortQos::default()) };
        let metered = sender(qos(CyclesMinmax, 30, 1, 4));
        let mut bed = Bed::new(&config, &[free, metered]);
        let shares = bed.shares(20, 140);
        let sum: f64 = shares.iter().sum();
        assert!((97.0..=100.1).contains(&sum) && shares[0] > 5.0, "{shares:?}");
        let passed = bed.world.worker();
        assert!(passed.refills > 2_000, "{passed:?}");
    }
}
