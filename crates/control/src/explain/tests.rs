//! Tests each limit of `penstock explain`, and the order of the limits.

use penstock_qos::cost_model::{Contract, Flows, Rate};
use penstock_qos::learner::{Breach, PortLearning};
use penstock_units::BitsPerSecond;

use super::*;
use crate::api::LinkPart;

const HZ: u64 = 2_000_000_000;

/// Returns the growth of the counters in a second in which two ports use all cycles of a worker.
/// The port `vm` sends only full batches.
fn full_core() -> Growth {
    let port = |name: &str, cycles: u64| PortGrowth {
        name: name.to_owned(),
        number: u16::from(name != "vm"),
        reading: PortReading {
            rx_frames: 1_000_000,
            rx_bytes: 100_000_000,
            rx_batches: 31_250,
            rx_full: 31_250,
            cycles,
            ..PortReading::default()
        },
        cycles: vec![cycles],
        policy: IngressPolicy::CyclesMinmax,
        entitled: 400_000_000,
        weight: 1,
        priority: 8,
        dscp: None,
        queues: Vec::new(),
        debt: 0,
        bought: None,
        shaped_bps: None,
        shallow: None,
        limits: [("`cir` of `police`", 4_000_000), ("`pps` of `police`", 1_000)],
        egress: Egress::Fifo,
    };
    Growth {
        nanos: 1_000_000_000,
        tsc_hz: HZ,
        capacity: 0,
        ports: vec![port("vm", 200_000_000), port("noisy", 1_790_000_000)],
        workers: vec![WorkerGrowth {
            reading: WorkerReading {
                cycles_charged: 1_990_000_000,
                cycles_idle: 10_000_000,
                ..WorkerReading::default()
            },
            stalled: false,
        }],
        links: Vec::new(),
        in_fabric: false,
        machine: None,
    }
}

fn status(state: &str) -> PortStatus {
    PortStatus { name: "vm".into(), state: state.into(), workers: vec![0], ..Default::default() }
}

fn ask(growth: &Growth) -> Explanation {
    explain(growth, &status("up")).unwrap()
}

fn dropped(growth: &mut Growth, reason: DropReason, frames: u64) {
    growth.ports[0].reading.drops[reason as usize] = frames;
}

#[test]
fn a_port_that_is_not_up_is_told_before_all_else() {
    let answer = explain(&full_core(), &status("waiting")).unwrap();
    assert_eq!(answer.found(), Limit::Attachment);
    assert_eq!(answer.why, "the port is waiting, so no frame can pass");
    let mut growth = full_core();
    growth.workers[0].stalled = true;
    assert_eq!(ask(&growth).why, "worker 0 is stalled and gives no heartbeat");
    assert!(explain(&growth, &PortStatus::default()).is_none(), "no such port");
}

#[test]
fn frames_above_its_police_are_its_own_rate() {
    let mut growth = full_core();
    growth.ports[0].policy = IngressPolicy::Bps;
    dropped(&mut growth, DropReason::Policed, 250_000);
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::OwnRate);
    let why = "`police` (policy bps) dropped 25.0 % of the port's frames";
    assert_eq!((answer.why.as_str(), answer.dropped_permille), (why, 250));
    growth.ports[0].shallow = Some(131_072);
    assert_eq!(ask(&growth).why, answer.why, "the VM sends no large segments");
    growth.ports[0].reading.rx_tso = 1;
    let why = format!(
        "{}; TCP of this VM backs off: bursts of 64 KiB meet a depth of 131072 bytes",
        answer.why
    );
    let answer = ask(&growth);
    assert_eq!(answer.why, why);
    assert!(answer.remedy.starts_with("leave out the burst of `police`"), "{}", answer.remedy);
    dropped(&mut growth, DropReason::Policed, 4_000);
    assert_ne!(ask(&growth).found(), Limit::OwnRate, "0.4 % are noise");
}

#[test]
fn frames_that_wait_for_the_rate_of_police_are_its_own_rate() {
    let mut growth = full_core();
    growth.ports[0].policy = IngressPolicy::Bps;
    let reading = &mut growth.ports[0].reading;
    (reading.rx_frames, reading.rx_bytes) = (1_000, 496_000);
    (reading.rx_batches, reading.rx_full, reading.police_waits) = (1_000, 0, 900);
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::OwnRate);
    assert_eq!(
        answer.why,
        "the port sends 4.0 Mbit/s, and its frames waited 900 times for the rate `cir` of \
         `police` (policy bps)"
    );
    assert!(answer.remedy.contains("raise `police`"), "{}", answer.remedy);
    growth.ports[0].reading.police_pps_waits = 950;
    let answer = ask(&growth);
    assert!(answer.why.contains("950 times for the rate `pps` of `police`"), "{}", answer.why);
    growth.ports[0].reading.send_waits = 990;
    let answer = ask(&growth);
    assert!(answer.why.contains("990 times for the limit `send` of its tenant"), "{}", answer.why);
    assert!(answer.remedy.contains("raise `send`"), "{}", answer.remedy);
    let reading = &mut growth.ports[0].reading;
    (reading.police_pps_waits, reading.send_waits) = (0, 0);
    let max = |rate| [("`max_rate` of `contract`", rate), ("`max_pps` of `contract`", 0)];
    growth.ports[0].limits = max(8_000_000);
    assert_eq!(ask(&growth).found(), Limit::Nothing, "only bursts wait, the rate is lower");
    growth.ports[0].limits = max(4_000_000);
    let answer = ask(&growth);
    assert!(answer.why.ends_with("900 times for the rate `max_rate` of `contract`"), "{answer:?}");
    assert!(answer.remedy.contains("raise this rate of the contract"), "{}", answer.remedy);
    // Short bursts wait now and then, but the rate does not limit the port.
    growth.ports[0].reading.police_waits = 100;
    assert_eq!(ask(&growth).found(), Limit::Nothing);
}

#[test]
fn frames_that_wait_for_a_receivers_limit_are_the_destination() {
    let mut growth = full_core();
    let reading = &mut growth.ports[0].reading;
    (reading.rx_frames, reading.rx_batches, reading.rx_full) = (1_000, 1_000, 0);
    reading.waited[part_of(Nanos::from_millis(2))] = 800;
    reading.waited[0] = 200;
    assert_eq!(ask(&growth).found(), Limit::Nothing, "they may have waited for a link");
    growth.ports[1].reading.receive_waits = 70;
    assert_eq!(ask(&growth).found(), Limit::Nothing, "frames to that port did not wait");
    growth.ports[1].reading.tx_waited[part_of(Nanos::from_millis(2))] = 800;
    let (answer, receiver) = (ask(&growth), growth.ports[1].name.clone());
    assert_eq!(answer.found(), Limit::Destination(receiver.clone()));
    // The port is a receiver too, but not of its own frames.
    let waits = growth.ports[1].reading.tx_waited;
    let own = &mut growth.ports[0].reading;
    (own.receive_waits, own.tx_waited) = (900, waits);
    assert_eq!(ask(&growth).found(), Limit::Destination(receiver.clone()));
    let why = format!("waited for the limit `receive` of {receiver}, which held frames back 70 ");
    assert!(answer.why.contains(&why), "{}", answer.why);
    growth.ports[1].queues = vec![QueueStatus::default()];
    let answer = ask(&growth);
    let why = format!("waited at {receiver} for the ceiling of their tenant, which held frames");
    assert!(answer.why.contains(&why), "{}", answer.why);
    assert!(answer.remedy.contains("`wfq.ceilings`"), "{}", answer.remedy);
}

#[test]
fn its_part_of_a_full_link_is_the_link() {
    let mut growth = full_core();
    let parts = vec![LinkPart { port: "vm".into(), bps: 2_475_000_000 }];
    growth.links = vec![LinkStatus {
        port: "up".into(),
        capacity_bps: 10_000_000_000,
        sent_permille: 990,
        limited: true,
        parts,
        ..LinkStatus::default()
    }];
    let reading = &mut growth.ports[0].reading;
    (reading.rx_batches, reading.link_waits) = (1_000, 900);
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Link("up".into()));
    assert_eq!(
        answer.why,
        "the link of up sends 99.0 % of 10.00 Gbit/s; the port's share is 2.47 Gbit/s, and \
         the port's frames waited 900 times for it"
    );
    // Before the handler activates limits, the full ring of the uplink yields the same verdict.
    let mut growth = Growth { links: growth.links, ..full_core() };
    dropped(&mut growth, DropReason::RingFull, 80_000);
    growth.ports.push(PortGrowth { name: "up".into(), ..PortGrowth::default() });
    growth.ports[2].reading.tx_drops[DropReason::RingFull as usize] = 90_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Link("up".into()));
    assert!(
        answer.why.ends_with("the link's ring was full for 8.0 % of the port's frames"),
        "{}",
        answer.why
    );
}

#[test]
fn who_waits_for_its_part_of_a_shared_output_is_told_so() {
    let mut growth = full_core();
    growth.ports[0].reading.held_back = 12;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Link(String::new()));
    assert!(
        answer.why.ends_with("is at the limit; the worker skipped the port 12 times"),
        "{}",
        answer.why
    );
    dropped(&mut growth, DropReason::QueueFull, 300_000);
    assert!(matches!(ask(&growth).found(), Limit::Destination(_)));
}

#[test]
fn whose_frames_wait_at_an_output_that_signals_congestion_is_told_so() {
    let mut growth = full_core();
    growth.ports.push(PortGrowth { name: "up".into(), ..PortGrowth::default() });
    let reading = &mut growth.ports[0].reading;
    (reading.queued, reading.rx_full, reading.throttled) = (40, 0, 0);
    growth.ports[2].reading.tx_queued = 60;
    assert_eq!(ask(&growth).found(), Limit::Nothing, "a burst that waits for a moment");
    growth.ports[2].reading.tx_trimmed = 7;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Link("up".into()));
    let why = "40 of the port's frames wait at up, a full output, which signalled congestion \
               7 times";
    assert_eq!(answer.why, why);
    dropped(&mut growth, DropReason::EarlySignal, 310_000);
    let lost = "; 31.0 % of the port's frames were dropped as early signals";
    assert_eq!(ask(&growth).why, format!("{why}{lost}"));
    dropped(&mut growth, DropReason::EarlySignal, 0);
    // Only a remedy that has an effect at this kind of output is given.
    for (egress, in_fabric, remedy) in [
        (Egress::FairShare, false, "raise `uplink_weight`"),
        (Egress::FqCodel, false, "raise `link` of the output, or divide it among tenants"),
        (Egress::Fifo, false, "raise `link` of the output, or divide it among tenants"),
        (Egress::Wfq, false, "raise the queue's weight in `wfq`"),
        (Egress::Wfq, true, "ask the controller"),
    ] {
        (growth.ports[2].egress, growth.in_fabric) = (egress, in_fabric);
        let answer = ask(&growth);
        assert!(answer.remedy.starts_with(remedy), "{egress:?}: {}", answer.remedy);
    }
    // A sender that ignores the signals, if there are any.
    growth.ports[2].reading.tx_trimmed = 0;
    growth.ports[0].reading.waited[part_of(Nanos::from_millis(2))] = 100;
    assert_eq!(ask(&growth).found(), Limit::Nothing, "short waits");
    growth.ports[0].reading.waited[part_of(Nanos::from_millis(20))] = 100;
    assert_eq!(ask(&growth).why, "40 of the port's frames wait at up, a full output");
    growth.ports[0].reading.queued = 0;
    assert_eq!(ask(&growth).found(), Limit::Nothing, "others' frames wait");
}

#[test]
fn a_full_ring_at_a_receiver_is_the_receiver() {
    let mut growth = full_core();
    dropped(&mut growth, DropReason::RingFull, 120_000);
    growth.ports[1].reading.tx_drops[DropReason::RingFull as usize] = 120_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Destination("noisy".into()));
    let why = "the ring or queue of noisy was full for 12.0 % of the port's frames";
    assert_eq!(answer.why, why);
    assert!(answer.remedy.starts_with("give the receiver longer rings"), "{}", answer.remedy);
    // The frames wait for the receiver's shaper.
    dropped(&mut growth, DropReason::QueueFull, 130_000);
    growth.ports[1].reading.tx_drops[DropReason::QueueFull as usize] = 130_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Destination("noisy".into()));
    assert!(answer.remedy.starts_with("raise `shape.receive`"), "{}", answer.remedy);
}

#[test]
fn a_full_receiver_is_told_from_another_that_refuses_more() {
    let mut growth = full_core();
    growth.ports.push(PortGrowth { name: "own".into(), number: 7, ..PortGrowth::default() });
    dropped(&mut growth, DropReason::RingFull, 120_000);
    growth.ports[0].reading.refused_at = [7 * 120_000];
    growth.ports[1].reading.tx_drops[DropReason::RingFull as usize] = 900_000;
    growth.ports[2].reading.tx_drops[DropReason::RingFull as usize] = 120_000;
    assert_eq!(ask(&growth).found(), Limit::Destination("own".into()));
    // Two receivers refused the port's frames, so the one that refused most counts.
    growth.ports[0].reading.refused_at = [7 * 60_000 + 60_000];
    assert_eq!(ask(&growth).found(), Limit::Destination("noisy".into()));
    // The port itself refuses frames of others, and none of its own.
    growth.ports[0].reading.tx_drops[DropReason::RingFull as usize] = 2_000_000;
    assert_eq!(ask(&growth).found(), Limit::Destination("noisy".into()));
    // A receiver that refuses frames for other reasons did not refuse the port's frames.
    growth.ports[1].reading.tx_drops.fill(0);
    growth.ports[1].reading.tx_drops[DropReason::TenantLimit as usize] = 900_000;
    assert_eq!(ask(&growth).found(), Limit::Destination("own".into()));
}

#[test]
fn a_core_that_other_programs_took_is_the_core_although_batches_are_not_full() {
    let mut growth = full_core();
    growth.ports[0].reading.rx_full = 1_000;
    let reading = &mut growth.workers[0].reading;
    (reading.cycles_charged, reading.cycles_idle) = (1_000_000_000, 200_000_000);
    reading.cycles_stolen = 800_000_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Core);
    assert_eq!(answer.why, "the core of worker 0 ran other programs for 40.0 % of the time");
    growth.ports[0].reading.rx_full = 0;
    assert_eq!(ask(&growth).found(), Limit::Nothing, "it sends little and has no backlog");
    growth.ports[0].reading.rx_full = 1_000;
    growth.workers[0].reading.cycles_charged = 700_000_000;
    assert_eq!(ask(&growth).found(), Limit::Nothing, "a quarter of the core was left");
}

#[test]
fn a_receiver_that_may_not_have_more_is_told_from_one_that_is_slow() {
    let mut growth = full_core();
    dropped(&mut growth, DropReason::TenantLimit, 120_000);
    growth.ports[1].reading.tx_drops[DropReason::TenantLimit as usize] = 120_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Destination("noisy".into()));
    assert_eq!(
        answer.why,
        "noisy received too much: `receive` of the tenant dropped 12.0 % of the frames"
    );
    assert!(answer.remedy.starts_with("raise `receive`"));
    // In a fabric, the controller may have set this limit.
    assert!(answer.remedy.contains("raise the tenant's guarantee"), "{}", answer.remedy);
}

#[test]
fn a_receiver_above_its_share_of_an_uplink_is_told_from_one_that_is_slow() {
    let mut growth = full_core();
    dropped(&mut growth, DropReason::InboundShare, 120_000);
    growth.ports[1].reading.tx_drops[DropReason::InboundShare as usize] = 120_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Destination("noisy".into()));
    assert_eq!(
        answer.why,
        "noisy received more than its share of this uplink: `inbound` dropped 12.0 % of the frames"
    );
    assert!(answer.remedy.starts_with("raise `uplink_weight`"));
}

#[test]
fn an_empty_bucket_that_got_what_it_bought_is_its_entitlement() {
    let mut growth = full_core();
    growth.ports[0].cycles = vec![401_400_000];
    growth.ports[0].reading.throttled = 1_268_000_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Entitlement);
    assert_eq!(
        answer.why,
        "the port used 401.4 Mcycles/s and is entitled to 400.0 Mcycles/s; it had frames but no \
         cycles for 63.4 % of the time"
    );
    assert!(answer.remedy.contains("`cycle_weight`"), "{}", answer.remedy);
}

/// Returns the same growth as [`full_core`], but the core is idle for nine tenths of the time.
fn idle_core() -> Growth {
    let mut growth = full_core();
    growth.workers[0].reading.cycles_charged = 200_000_000;
    growth.workers[0].reading.cycles_idle = 1_800_000_000;
    growth
}

#[test]
fn an_empty_bucket_on_an_idle_core_is_its_entitlement_however_little_it_used() {
    for bought in [1_000_000, 5_000_000] {
        let mut growth = idle_core();
        growth.ports[0].entitled = bought;
        growth.ports[0].cycles = vec![bought * 9 / 10];
        growth.ports[0].reading.throttled = 2_000_000_000;
        let answer = ask(&growth);
        assert_eq!(answer.found(), Limit::Entitlement, "{bought}: {}", answer.why);
        // If other ports fill the core, the neighbours are the limit. If the host took the core
        // away, the core is the limit.
        growth.workers = full_core().workers;
        assert_eq!(ask(&growth).found(), Limit::Neighbours);
        growth.workers = idle_core().workers;
        growth.workers[0].reading.cycles_stolen = 1_000_000_000;
        assert_eq!(ask(&growth).found(), Limit::Core);
    }
}

#[test]
fn a_debt_that_outlasts_the_window_is_its_entitlement() {
    let mut growth = full_core();
    let port = &mut growth.ports[0];
    (port.entitled, port.debt) = (400, 5_200);
    port.cycles.fill(0);
    (port.reading.rx_batches, port.reading.rx_full, port.reading.rx_frames) = (0, 0, 0);
    let answer = ask(&growth);
    assert_eq!((answer.found(), answer.throttled_permille), (Limit::Entitlement, 1_000));
    assert_eq!(
        answer.why,
        "the port's last batch overdrew its cycle bucket by 5200 cycles; at 400 cycles/s, the \
         port sends nothing \
         for 13 s"
    );
    // A port without purchased cycles has no bucket that holds it back.
    growth.ports[0].policy = IngressPolicy::None;
    assert_eq!(ask(&growth).found(), Limit::Nothing);
}

/// A contract of 4 Gbit/s in frames of 1,024 bytes. In a breach, the port sends 64 bytes.
fn bought(breach: bool) -> Bought {
    let contract = Contract {
        rate: Rate::Bits(BitsPerSecond(4_000_000_000)),
        sizes: "1024".parse().unwrap(),
        flows: Flows::Multiple,
    };
    let learned = PortLearning {
        breach: breach.then_some(Breach::Size { declared: 1_024.0, seen: 64.0 }),
        breach_for: Nanos::from_secs(if breach { 35 } else { 0 }),
        less_for: Nanos::from_secs(12),
        model_error: Some(0.01),
        ..PortLearning::default()
    };
    Bought::new(&contract, Some(&learned))
}

#[test]
fn the_first_line_is_about_what_was_bought() {
    let mut growth = full_core();
    growth.ports[0].bought = Some(bought(false));
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Neighbours);
    let verdict = "gets 20.8 % of the 4.00 Gbit/s it bought, because other ports use its core";
    assert_eq!((answer.verdict.as_str(), answer.since_ms), (verdict, Some(12_000)));
    // Frames of 4,884 bytes make it 39.1 Gbit/s.
    growth.ports[1].bought = Some(bought(false));
    let concerned = ask(&growth).concerned;
    assert_eq!((concerned[0].port.as_str(), concerned[0].got_permille), ("noisy", 208));
    growth.ports[0].reading.rx_bytes = 496_000_000;
    let answer = ask(&growth);
    assert_eq!(answer.verdict, "gets the 4.00 Gbit/s it bought");
    assert_eq!((answer.since_ms, answer.concerned.len()), (None, 0));
    growth.ports[0].reading.rx_full = 0;
    growth.ports[0].reading.rx_bytes = 246_000_000;
    let verdict = "sends 50.0 % of the 4.00 Gbit/s it bought, and nothing on this host limits it";
    assert_eq!(ask(&growth).verdict, verdict);
    // The model is wrong for this port, or for all ports.
    growth.ports[0].reading.rx_full = 31_250;
    growth.ports[0].cycles = vec![401_400_000];
    growth.ports[0].reading.throttled = 1_268_000_000;
    growth.ports[0].bought.as_mut().unwrap().set_model_error(0.3);
    let because = "because its frames cost 30 % more than the cost model says";
    assert!(ask(&growth).verdict.ends_with(because), "{}", ask(&growth).verdict);
    growth.machine = Some(MachineState { error: 0.25, lasts: Nanos::from_secs(62) });
    let verdict = ask(&growth).verdict;
    assert!(verdict.ends_with(", and those of all ports 25 % more, for 62 s"), "{verdict}");
    growth.ports[0].reading.throttled = 0;
    growth.ports[0].reading.rx_full = 0;
    // Frames that are dropped do not arrive.
    dropped(&mut growth, DropReason::Policed, 500_000);
    let verdict = "gets 25.0 % of the 4.00 Gbit/s it bought, because another limit of its own is \
                   lower";
    assert_eq!(ask(&growth).verdict, verdict);
}

#[test]
fn a_port_outside_its_profile_is_told_so_before_it_is_sold_more() {
    let mut growth = full_core();
    growth.ports[0].cycles = vec![401_400_000];
    growth.ports[0].reading.throttled = 1_268_000_000;
    growth.ports[0].bought = Some(bought(true));
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Entitlement);
    assert_eq!(
        answer.verdict,
        "gets 20.8 % of the 4.00 Gbit/s it bought, because its frames are 64 bytes and it was \
         sold 1024"
    );
    assert_eq!((answer.got_permille, answer.since_ms), (Some(208), Some(35_000)));
    let why = "the port sends traffic outside its contract's profile (the mean frame has 64 \
               bytes, but 1024 bytes were declared), and its cycles are computed for the declared \
               traffic; the port used 401.4 Mcycles/s";
    assert!(answer.why.starts_with(why), "{}", answer.why);
    let remedy = "make the VM send the traffic that its `contract` declares";
    assert!(answer.remedy.starts_with(remedy), "{}", answer.remedy);
    // Neighbours must leave the port only the cycles that its declared traffic needs.
    growth.ports[0].cycles = vec![200_000_000];
    growth.ports[0].reading.throttled = 0;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Neighbours);
    assert!(answer.why.contains("outside its contract's profile"), "{}", answer.why);
    assert!(answer.remedy.starts_with(remedy), "{}", answer.remedy);
}

#[test]
fn what_cannot_pass_frames_is_told_what_would_help_its_state() {
    let remedy = |state: &str| explain(&full_core(), &status(state)).unwrap().remedy;
    assert!(remedy("waiting").starts_with("start the VM"), "{}", remedy("waiting"));
    // The driver of a suspended guest has released the rings and is still connected.
    assert!(remedy("connected").starts_with("resume the VM"), "{}", remedy("connected"));
    assert!(remedy("down").contains("ip link set"), "{}", remedy("down"));
    assert!(remedy("error").contains("the error"), "{}", remedy("error"));
}

#[test]
fn less_than_it_bought_on_a_full_core_is_its_neighbours_and_they_are_named() {
    let answer = ask(&full_core());
    assert_eq!(answer.found(), Limit::Neighbours);
    assert_eq!(
        answer.why,
        "worker 0 is full, and other ports use 89.9 % of the worker's cycles, most of all noisy \
         with 89.9 %; the \
         port got 200.0 Mcycles/s and is entitled to 400.0 Mcycles/s"
    );
    let listed: Vec<(&str, u64)> =
        answer.consumers.iter().map(|c| (c.port.as_str(), c.used)).collect();
    assert_eq!(listed, [("noisy", 1_790_000_000), ("vm", 200_000_000)]);
    let shares: Vec<u64> = answer.consumers.iter().map(|c| c.share_permille).collect();
    assert_eq!(shares, [899, 101], "89.949 % and 10.050 %, rounded");
    let mut unmetered = full_core();
    unmetered.ports[0].policy = IngressPolicy::None;
    let answer = ask(&unmetered);
    assert_eq!(answer.found(), Limit::Neighbours);
    assert!(
        answer.remedy.starts_with("set `ingress_policy` = \"cycles-minmax\""),
        "{}",
        answer.remedy
    );
}

#[test]
fn a_core_that_it_has_to_itself_is_the_core() {
    let mut growth = full_core();
    growth.ports[0].cycles = vec![1_890_000_000];
    growth.ports[1].cycles = vec![100_000_000];
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Core);
    assert_eq!(
        answer.why,
        "worker 0 is 99.5 % busy, and this port used 94.9 % of the spent cycles (1.89 Gcycles/s)"
    );
    // The port got more cycles than it purchased, and the core has no more.
    growth.ports[0].cycles = vec![800_000_000];
    growth.ports[1].cycles = vec![1_190_000_000];
    assert_eq!(ask(&growth).found(), Limit::Core);
    // Other programs take the core away.
    growth.workers[0].reading.cycles_charged = 500_000_000;
    growth.workers[0].reading.cycles_idle = 500_000_000;
    growth.workers[0].reading.cycles_stolen = 1_000_000_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Core);
    assert_eq!(answer.why, "the core of worker 0 ran other programs for 50.0 % of the time");
}

#[test]
fn a_capped_core_is_full_at_its_cap() {
    let mut growth = full_core();
    growth.workers[0].reading.cycles_charged = 1_200_000_000;
    growth.workers[0].reading.cycles_idle = 800_000_000;
    assert_eq!(ask(&growth).found(), Limit::Nothing);
    growth.capacity = 1_200_000_000;
    assert_eq!(ask(&growth).found(), Limit::Neighbours);
}

#[test]
fn a_port_whose_batches_are_not_full_sends_less() {
    let mut growth = full_core();
    growth.ports[0].reading.rx_full = 1_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Nothing);
    assert_eq!(
        answer.why,
        "the port sends 1.0 Mframes/s, 832.0 Mbit/s, and has no backlog; the port uses 200.0 \
         Mcycles/s and is entitled to 400.0 Mcycles/s"
    );
}

#[test]
fn a_port_that_bought_nothing_is_told_what_it_is_sure_of() {
    let mut growth = full_core();
    growth.ports[0].policy = IngressPolicy::None;
    growth.ports[0].entitled = 20_000_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Neighbours);
    let floor = "; the port purchased no cycles: 20.0 Mcycles/s are guaranteed, plus a weighted \
                 share of spare cycles, and it used 200.0 Mcycles/s";
    assert!(answer.why.ends_with(floor), "{}", answer.why);
}

#[test]
fn a_port_whose_frames_never_had_a_turn_is_held_by_its_neighbours() {
    let mut growth = full_core();
    let reading = &mut growth.ports[0].reading;
    (reading.rx_batches, reading.rx_full, reading.rx_frames, reading.kept_waiting) = (0, 0, 0, 40);
    growth.ports[0].cycles.fill(0);
    assert_eq!(ask(&growth).found(), Limit::Neighbours);
    growth.ports[0].reading.kept_waiting = 0;
    assert_eq!(ask(&growth).found(), Limit::Nothing);
}

#[test]
fn a_full_queue_of_a_port_is_named_with_its_weight() {
    let queue = |queue, weight, dscps: &[u32], drops| QueueStatus {
        queue,
        weight,
        dscps: dscps.to_vec(),
        drops,
        ..QueueStatus::default()
    };
    let mut growth = full_core();
    dropped(&mut growth, DropReason::QueueFull, 250_000);
    let queues = vec![queue(0, 5, &[0], 90_000), queue(1, 30, &[8], 250_000), queue(2, 1, &[], 0)];
    growth.ports.push(PortGrowth { name: "up".into(), queues, ..PortGrowth::default() });
    growth.ports[2].reading.tx_drops[DropReason::QueueFull as usize] = 340_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Link("up".into()));
    let full = "was full for 25.0 % of the port's frames";
    // If the tenant has no code point, the queue with the most drops is named.
    assert_eq!(answer.why, format!("queue 1 of up (weight 30 of 36) {full}"));
    assert!(answer.remedy.contains("`wfq`"), "{}", answer.remedy);
    growth.ports[0].dscp = Some(0);
    let why = ask(&growth).why;
    assert_eq!(why, format!("queue 0 of up (weight 5 of 36) {full}"));
    // In a fabric, the controller sets weights and code points.
    growth.in_fabric = true;
    let remedy = ask(&growth).remedy;
    assert!(remedy.contains("penstock controller explain") && !remedy.contains("wfq"), "{remedy}");
}

#[test]
fn a_vm_that_loses_frames_at_an_output_with_shares_learns_how_to_get_more() {
    let mut growth = full_core();
    dropped(&mut growth, DropReason::QueueFull, 250_000);
    let egress = Egress::FairShare;
    growth.ports.push(PortGrowth { name: "up".into(), egress, ..PortGrowth::default() });
    growth.ports[2].reading.tx_drops[DropReason::QueueFull as usize] = 250_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Link("up".into()));
    assert_eq!(answer.why, "the port's queue at up was full for 25.0 % of its frames");
    assert!(answer.remedy.starts_with("raise `uplink_weight`"), "{}", answer.remedy);
    // Frames that wait too long are lost, too.
    dropped(&mut growth, DropReason::QueueFull, 0);
    dropped(&mut growth, DropReason::QueueLate, 250_000);
    growth.ports[2].reading.tx_drops[DropReason::QueueLate as usize] = 250_000;
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Link("up".into()));
    assert_eq!(answer.why, "the port's queue at up was too slow for 25.0 % of its frames");
}

#[test]
fn a_port_at_the_rate_of_its_shaper_is_limited_by_its_own_rate() {
    let mut growth = full_core();
    let reading = &mut growth.ports[0].reading;
    (reading.rx_frames, reading.rx_bytes) = (1_000, 496_000);
    (reading.rx_batches, reading.rx_full) = (1_000, 0);
    (reading.shaped[0], reading.shaped[40]) = (100, 900);
    assert_eq!(ask(&growth).found(), Limit::Nothing, "without a shaper");
    growth.ports[0].shaped_bps = Some(4_000_000);
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::OwnRate);
    assert_eq!(
        answer.why,
        "the port sends 4.0 Mbit/s of its limit `shape.send` 4.0 Mbit/s; the shaper delayed 90.0 % \
         of the frames"
    );
    assert!(answer.remedy.contains("`shape.send`"), "{}", answer.remedy);
    // The shaper spreads bursts of a slower stream over time, but does not limit the stream's rate.
    growth.ports[0].shaped_bps = Some(5_000_000);
    assert_eq!(ask(&growth).found(), Limit::Nothing);
    // Neither reason for drops is noticeable alone, and the port is below the rate of its shaper.
    let mut both = growth.clone();
    dropped(&mut both, DropReason::Policed, 4);
    dropped(&mut both, DropReason::SendLimit, 3);
    let answer = ask(&both);
    assert_eq!(answer.found(), Limit::OwnRate);
    assert!(answer.why.contains("`police`"), "{}", answer.why);
    // The shaper is faster than the VM, and delays few frames.
    growth.ports[0].shaped_bps = Some(4_000_000);
    let reading = &mut growth.ports[0].reading;
    (reading.shaped[0], reading.shaped[40]) = (600, 400);
    assert_eq!(ask(&growth).found(), Limit::Nothing);
}

#[test]
fn a_port_without_a_limit_names_the_reason_of_its_drops() {
    let mut growth = full_core();
    growth.ports[0].reading.rx_full = 0;
    assert!(ask(&growth).remedy.contains("inside the VM"));
    dropped(&mut growth, DropReason::NoDestination, 990_000);
    dropped(&mut growth, DropReason::Rule, 10_000);
    let answer = ask(&growth);
    assert_eq!(answer.found(), Limit::Nothing);
    let named = "99.0 % of the port's frames are dropped as `no-destination`: no other port is in \
                 the";
    assert!(answer.why.contains(named), "{}", answer.why);
    assert!(answer.remedy.contains("stats --drops"), "{}", answer.remedy);
}
