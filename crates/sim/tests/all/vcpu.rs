//! Tests of simulated machines with several processors, with a driver domain, and with VMs that
//! start and stop.

use penstock_sim::vcpu::{Background, Frame, GuestSpec, Idle, Machine};
use penstock_units::{CpuId, Nanos, Weight};
use penstock_vcpu::credit1::Credit1;
use penstock_vcpu::double_queue::DoubleQueue;
use penstock_vcpu::{Contract, Mode, VcpuScheduler};

const MS: fn(u64) -> Nanos = Nanos::from_millis;

fn hog() -> Contract {
    Contract::by_credit(Weight::ONE)
}

/// Returns the processor time of each guest, in percent of a processor.
fn shares<S: VcpuScheduler>(machine: &mut Machine<S>, secs: u64) -> Vec<f64> {
    let guests: Vec<_> =
        (0..3).map(|_| machine.start(&hog(), CpuId(0), GuestSpec::hog()).unwrap()).collect();
    machine.run_until(Nanos::from_secs(secs));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let pct = |ns: u64| ns as f64 / 1e7 / secs as f64;
    guests.iter().map(|guest| pct(machine.used(*guest).0)).collect()
}

#[test]
fn three_hogs_divide_two_processors() {
    let ours = shares(&mut Machine::new(DoubleQueue::new(2), 2, 1), 30);
    assert!(ours.iter().all(|pct| (pct - 66.67).abs() < 1.0), "{ours:?}");
    let xen = shares(&mut Machine::new(Credit1::new(2), 2, 1), 30);
    assert!((xen.iter().sum::<f64>() - 200.0).abs() < 0.1, "no processor idles: {xen:?}");
}

#[test]
fn frames_pass_through_the_driver_domain_on_a_busy_processor() {
    let mut machine = Machine::new(DoubleQueue::new(2), 2, 1);
    machine.start_driver(&Contract::driver(Weight::ONE), CpuId(0)).unwrap();
    machine.start(&hog(), CpuId(0), GuestSpec::hog()).unwrap();
    let contract = Contract::real_time(Mode::Aperiodic, MS(3), Weight::ONE);
    let server = machine.start(&contract, CpuId(1), GuestSpec::hog()).unwrap();
    machine.start(&hog(), CpuId(1), GuestSpec::hog()).unwrap();
    for n in 0..500 {
        let at = Nanos::from_micros(7_300 * (n + 1));
        machine.arrive(at, server, Frame::Ping(at));
    }
    machine.run_until(Nanos::from_secs(5));
    assert_eq!(machine.sent().len(), 500);
    let delay = |sent: &penstock_sim::vcpu::Sent| match sent.frame {
        Frame::Ping(from) | Frame::Stream(from) => sent.at.saturating_sub(from),
    };
    let most = machine.sent().iter().map(delay).max().unwrap();
    // The bound is 3.5 ms, plus the time of the answer and two times that of the driver domain.
    assert!(most <= Nanos::from_micros(3_500 + 70), "{most:?}");
    let least = machine.sent().iter().map(delay).min().unwrap();
    assert_eq!(least, Nanos::from_micros(70));
}

#[test]
fn a_stopped_vm_leaves_its_share_to_the_others() {
    let mut machine = Machine::new(DoubleQueue::new(1), 1, 1);
    let first = machine.start(&hog(), CpuId(0), GuestSpec::hog()).unwrap();
    let second = machine.start(&hog(), CpuId(0), GuestSpec::hog()).unwrap();
    machine.run_until(MS(3_000));
    machine.stop(first);
    machine.stop(first);
    let (gone, before) = (machine.used(first), machine.used(second));
    machine.run_until(MS(4_000));
    assert_eq!((machine.used(first), machine.used(second)), (gone, before + MS(1_000)));
}

#[test]
fn a_guest_that_gives_up_its_processor_is_activated_when_it_is_due() {
    let stream = (0..100).map(|n| Nanos::from_micros(n * 1_700)).collect::<Vec<_>>();
    let lates = |idle| {
        let mut machine = Machine::new(DoubleQueue::new(1), 1, 1);
        let spec = GuestSpec {
            background: Background::None,
            stream: (stream.clone(), Nanos::from_micros(20)),
            answer: Nanos(0),
            idle,
        };
        let contract = Contract::real_time(Mode::Periodic, MS(5), Weight::ONE);
        machine.start(&contract, CpuId(0), spec).unwrap();
        machine.run_until(MS(300));
        assert_eq!(machine.sent().len(), 100);
        let late = |s: &penstock_sim::vcpu::Sent| match s.frame {
            Frame::Ping(due) | Frame::Stream(due) => s.at.saturating_sub(due),
        };
        machine.sent().iter().map(late).max().unwrap()
    };
    assert_eq!(lates(Idle::Blocks), Nanos::from_micros(20));
    let activated = lates(Idle::ActivatedAfter(MS(10)));
    assert!(activated > MS(8) && activated <= MS(11), "{activated:?}");
    let by_deadline = lates(Idle::Yields);
    assert!(by_deadline > MS(3) && by_deadline <= Nanos::from_micros(5_700), "{by_deadline:?}");
}
