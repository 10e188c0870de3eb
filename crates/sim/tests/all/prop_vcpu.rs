//! Tests of the vCPU scheduler's invariants for any set of VMs. The scheduler meets admitted
//! deadlines, gives shares by weight, and starves no VM. Two runs with the same seed give the same
//! result.

use penstock_sim::Rng;
use penstock_sim::vcpu::{Background, Frame, GuestId, GuestSpec, Idle, Machine};
use penstock_units::{CpuId, Nanos, Weight};
use penstock_vcpu::admission::{Claim, Limits, admit};
use penstock_vcpu::credit_book::CreditTerms;
use penstock_vcpu::deadline_queue::SLICE;
use penstock_vcpu::double_queue::DoubleQueue;
use penstock_vcpu::{Contract, Mode};
use proptest::prelude::*;

const MS: fn(u64) -> Nanos = Nanos::from_millis;

#[derive(Debug, Clone, Copy)]
struct Vm {
    mode: Mode,
    deadline_slots: u64,
    weight: u16,
    background: Background,
    idle: Idle,
}

fn background() -> impl Strategy<Value = Background> {
    let on_off = (1..60_u64, 1..60_u64).prop_map(|(burst, pause)| Background::OnOff {
        burst: Nanos::from_micros(100 * burst),
        pause: Nanos::from_micros(200 * pause),
    });
    let batches = (10..200_u64, 1..100_u64).prop_map(|(period, part)| Background::Batches {
        period: MS(period),
        work: Nanos::from_micros(period * part * 5),
        spread_pct: 50,
    });
    prop_oneof![3 => Just(Background::Hog), 1 => on_off, 1 => batches]
}

fn vm(background: impl Strategy<Value = Background>) -> impl Strategy<Value = Vm> {
    let modes = prop_oneof![
        2 => Just(Mode::None),
        2 => Just(Mode::Periodic),
        2 => Just(Mode::Aperiodic)
    ];
    let idle = prop_oneof![Just(Idle::Blocks), Just(Idle::Yields)];
    (modes, 1..30_u64, 1..=10_u16, background, idle).prop_map(
        |(mode, deadline_slots, weight, background, idle)| {
            // Only periodic work returns without the scheduler's help.
            let idle = if mode == Mode::Periodic { idle } else { Idle::Blocks };
            Vm { mode, deadline_slots, weight, background, idle }
        },
    )
}

/// Returns the contracts of VMs on one processor. A VM has no deadline if admission control refuses
/// its deadline.
fn admitted(vms: &[Vm]) -> Vec<Contract> {
    let all: u64 = vms.iter().map(|vm| u64::from(vm.weight)).sum();
    let mut claims = Vec::new();
    let one = |vm: &Vm| {
        let weight = Weight::new(u64::from(vm.weight)).unwrap();
        let deadline = Nanos(vm.deadline_slots * SLICE.0);
        let share_ppm = 1_000_000 * u64::from(vm.weight) / all;
        if !vm.mode.is_real_time() {
            return Contract::by_credit(weight);
        }
        claims.push(Claim { deadline, share_ppm });
        if admit(&claims, false, Limits::default()).is_ok() {
            return Contract::real_time(vm.mode, deadline, weight);
        }
        claims.pop();
        Contract::by_credit(weight)
    };
    vms.iter().map(one).collect()
}

type World = Machine<DoubleQueue>;

/// Creates a machine with one processor that runs `vms`. Pings arrive every few ms at all VMs that
/// answer.
fn world(vms: &[Vm], contracts: &[Contract], seed: u64, until: Nanos) -> (World, Vec<GuestId>) {
    let mut machine = Machine::new(DoubleQueue::new(1), 1, seed);
    let start = |(vm, contract): (&Vm, &Contract)| {
        let mut spec = GuestSpec { background: vm.background, idle: vm.idle, ..GuestSpec::hog() };
        if contract.mode != Mode::Periodic {
            spec.idle = Idle::Blocks;
        }
        machine.start(contract, CpuId(0), spec).unwrap()
    };
    let guests: Vec<_> = vms.iter().zip(contracts).map(start).collect();
    let mut rng = Rng::new(seed);
    for (guest, contract) in guests.iter().zip(contracts) {
        let mut at = Nanos(0);
        while contract.mode == Mode::Aperiodic && at < until {
            at += Nanos(3_000_000 + rng.below(40_000_000));
            machine.arrive(at, *guest, Frame::Ping(at));
        }
    }
    (machine, guests)
}

/// Maximum additional time until a VM answers a ping, because the VM may have to answer several
/// pings.
const ANSWERS: Nanos = Nanos::from_micros(500);

/// Tolerance in ns for a VM's processor time in a window, which is two time slices. A VM may be one
/// slice ahead or behind at each end of a window.
const SLICES: u64 = 60_000_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_admitted_deadline_is_missed(
        vms in prop::collection::vec(vm(background()), 1..9),
        seed in 0..u64::MAX,
    ) {
        let contracts = admitted(&vms);
        let (mut machine, guests) = world(&vms, &contracts, seed, MS(4_000));
        machine.run_until(MS(4_000));
        for (guest, contract) in guests.iter().zip(&contracts) {
            let waits = machine.waits(*guest);
            let kept = contract.deadline + SLICE;
            match contract.mode {
                Mode::Periodic => prop_assert!(waits.longest <= kept, "{waits:?} {contract:?}"),
                Mode::Aperiodic => {
                    prop_assert!(waits.longest_event <= kept, "{waits:?} {contract:?}");
                    for sent in machine.sent().iter().filter(|sent| sent.guest == *guest) {
                        let Frame::Ping(from) = sent.frame else { continue };
                        let took = sent.at.saturating_sub(from);
                        prop_assert!(took <= kept + ANSWERS, "{took:?} {contract:?}");
                    }
                }
                Mode::None | Mode::Driver => {}
            }
        }
    }

    #[test]
    fn a_vm_with_endless_work_gets_its_share_and_no_vm_starves(
        vms in prop::collection::vec(vm(Just(Background::Hog)), 2..9),
        seed in 0..u64::MAX,
    ) {
        let contracts = admitted(&vms);
        let windows = 60;
        let window = Nanos(10 * CreditTerms::EPOCH.0);
        let (mut machine, guests) = world(&vms, &contracts, seed, Nanos(window.0 * windows));
        let all: u64 = vms.iter().map(|vm| u64::from(vm.weight)).sum();
        let due = |vm: &Vm, time: Nanos| time.0 * u64::from(vm.weight) / all;
        let mut before = vec![Nanos(0); vms.len()];
        for at in 1..=windows {
            machine.run_until(Nanos(window.0 * at));
            for ((guest, vm), before) in guests.iter().zip(&vms).zip(&mut before) {
                // Ten epochs are ten slices, which cannot be divided by three. Shares are therefore
                // exact to 1 % of the window plus SLICES. The missing slices follow in the next
                // window.
                let used = machine.used(*guest);
                let got = used.saturating_sub(std::mem::replace(before, used));
                let off = got.0.abs_diff(due(vm, window));
                prop_assert!(off <= window.0 / 100 + SLICES, "{off} ns of {vm:?}");
                // These deviations do not accumulate.
                let all_time = Nanos(window.0 * at);
                let off = used.0.abs_diff(due(vm, all_time));
                prop_assert!(off <= SLICES, "{off} ns of {vm:?}");
            }
        }
        let time = Nanos(window.0 * windows);
        for (guest, vm) in guests.iter().zip(&vms) {
            let off = machine.used(*guest).0.abs_diff(due(vm, time));
            prop_assert!(off <= time.0 / 100, "{off} ns in {time:?} of {vm:?}");
            let longest = machine.waits(*guest).longest;
            let bound = 2 * 30_000_000 * all / u64::from(vm.weight);
            prop_assert!(longest.0 <= bound, "{longest:?}, {vm:?}");
        }
    }

    #[test]
    fn a_seed_replays(
        vms in prop::collection::vec(vm(background()), 1..7),
        seed in 0..u64::MAX,
    ) {
        let run = || {
            let contracts = admitted(&vms);
            let (mut machine, guests) = world(&vms, &contracts, seed, MS(1_000));
            machine.run_until(MS(1_000));
            let of = |guest: &GuestId| (machine.used(*guest), machine.waits(*guest));
            let used: Vec<_> = guests.iter().map(of).collect();
            (machine.sent().to_vec(), used, machine.switches())
        };
        prop_assert_eq!(run(), run());
    }
}
