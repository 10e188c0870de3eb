//! Tests claims at an output with `fair-share`. A claim has the turns of a waiting frame of the
//! same length, and a VM's waiting frames come before its claim.

use std::collections::VecDeque;

use penstock_qos::fair_share::{Bound, Capacity, FairShare, Offer, Turn};
use penstock_units::{Nanos, Weight};
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::prop_burst::{BOUND, tenants};
use crate::prop_fair_share::{Lengths, SEGMENT, weight};

/// Returns an output with the given tenants, and its number of VMs. `tenants` lists the weight of
/// each tenant, and the weights of the tenant's VMs.
fn output(tenants: &[(u64, Vec<u64>)]) -> (FairShare<u32>, usize) {
    let vms: usize = tenants.iter().map(|(_, vms)| vms.len()).sum();
    let frames = u32::try_from(2 * vms).unwrap();
    let mut fair = FairShare::new(Capacity { tenants: tenants.len(), vms, frames });
    let mut slot = 0;
    for (tenant, (of, vms)) in tenants.iter().enumerate() {
        assert!(fair.set_tenant(tenant, weight(*of)));
        for of in vms {
            assert!(fair.set_vm(slot, tenant, weight(*of), BOUND));
            slot += 1;
        }
    }
    (fair, vms)
}

/// A VM that begins and ceases to send.
struct Sender {
    awake: bool,
    /// Whether the frames of the VM stay in its ring, so that the VM has a claim.
    claims: bool,
    lengths: Lengths,
    /// Lengths of the VM's next frames.
    next: VecDeque<u32>,
}

/// Lets the VMs have frames at the output `frames`. At the output `claims`, half of the VMs have
/// claims for the same frames.
fn fill(frames: &mut FairShare<u32>, claims: &mut FairShare<u32>, vm: usize, sender: &mut Sender) {
    while sender.awake && sender.next.len() < 2 {
        let bytes = sender.lengths.of(vm);
        sender.next.push_back(bytes);
        assert_eq!(frames.offer(vm, 0, bytes, Nanos(0)), Offer::Queued);
        if !sender.claims {
            assert_eq!(claims.offer(vm, 0, bytes, Nanos(0)), Offer::Queued);
        } else if sender.next.len() == 1 {
            claims.claim(vm, bytes);
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 40, ..Config::default() })]

    #[test]
    fn a_claim_has_the_turns_of_a_waiting_frame(
        tenants in prop_oneof![tenants(1..=12), tenants(33..=50)], seed in any::<u64>(),
    ) {
        let ((mut frames, vms), (mut claims, _)) = (output(&tenants), output(&tenants));
        let sender = |vm: u64| Sender {
            awake: !vm.is_multiple_of(3),
            claims: vm.is_multiple_of(2),
            lengths: Lengths(seed.wrapping_add(vm << 40)),
            next: VecDeque::new(),
        };
        let mut senders: Vec<_> = (0..vms as u64).map(sender).collect();
        let mut chance = Lengths(seed);
        for n in 0..5_000 {
            let at = usize::try_from(chance.next()).unwrap();
            if at.is_multiple_of(5) {
                let sender = &mut senders[at % vms];
                sender.awake = !sender.awake;
            }
            for (vm, sender) in senders.iter_mut().enumerate() {
                fill(&mut frames, &mut claims, vm, sender);
            }
            let departure = frames.next(Nanos(0), |_, _| unreachable!());
            let departure = departure.map(|departure| (departure.vm, departure.bytes));
            let passed = match claims.turn() {
                None => None,
                Some(Turn::Frame) => {
                    let frame = claims.next(Nanos(0), |_, _| unreachable!()).unwrap();
                    prop_assert!(!senders[frame.vm].claims);
                    senders[frame.vm].next.pop_front();
                    Some((frame.vm, frame.bytes))
                }
                Some(Turn::Claim(vm)) => {
                    prop_assert!(senders[vm].claims);
                    prop_assert_eq!(claims.next(Nanos(0), |_, _| unreachable!()), None);
                    let bytes = senders[vm].next.pop_front().unwrap();
                    let next = senders[vm].next.front().copied().unwrap_or(0);
                    claims.passed(vm, (1, bytes), next);
                    Some((vm, bytes))
                }
            };
            prop_assert_eq!(passed, departure, "frame {} of {:?}", n, tenants);
        }
    }

    /// Tests that VMs get their shares if the claims are wrong about the lengths of batches, and if
    /// VMs pass several batches in a row.
    #[test]
    fn wrong_claims_change_no_share(
        weights in prop_oneof![
            prop::collection::vec(1..=10_u64, 2..=12),
            prop::collection::vec(1..=10_u64, 33..=60),
        ],
        seed in any::<u64>(), runs in any::<bool>(),
    ) {
        let tenants: Vec<_> = weights.iter().map(|of| (*of, vec![1])).collect();
        let (mut fair, vms) = output(&tenants);
        let mut lengths: Vec<_> =
            (0..vms as u64).map(|vm| Lengths(seed.wrapping_add(vm << 40))).collect();
        (0..vms).for_each(|vm| fair.claim(vm, 1_000));
        let mut sent = vec![0_u64; vms];
        for _ in 0..60_000 {
            let again = fair.again(8).filter(|_| runs).map(Turn::Claim);
            let Some(Turn::Claim(vm)) = again.or_else(|| fair.turn()) else {
                unreachable!("each VM has a claim")
            };
            let (bytes, claim) = (lengths[vm].of(3), lengths[vm].of(3));
            fair.passed(vm, (1, bytes), claim);
            sent[vm] += u64::from(bytes);
        }
        let (all, sum) = (sent.iter().sum::<u64>(), weights.iter().sum::<u64>());
        for (weight, sent) in weights.iter().zip(&sent) {
            let due = all / sum * weight;
            prop_assert!(sent.abs_diff(due) <= due / 100 + 8 * SEGMENT, "{} of {}", sent, due);
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Offer(usize, u32),
    Claim(usize, u32),
    /// What the output sends next leaves. The fields are the bytes of a VM that has a claim, and
    /// the VM's next claim.
    Turn(u32, u32),
    Settle,
    Withdraw,
    Tenant(usize, u64),
    Vm(usize, usize, u64),
    RemoveVm(usize),
    RemoveTenant(usize),
}

fn event(tenants: usize) -> impl Strategy<Value = Event> {
    let claim = || prop_oneof![1 => Just(0_u32), 3 => 64..65_536_u32];
    prop_oneof![
        8 => (0..tenants * 2, 64..65_536_u32).prop_map(|(vm, bytes)| Event::Offer(vm, bytes)),
        8 => (0..tenants * 2, claim()).prop_map(|(vm, bytes)| Event::Claim(vm, bytes)),
        16 => (64..65_536_u32, claim()).prop_map(|(bytes, claim)| Event::Turn(bytes, claim)),
        1 => Just(Event::Settle),
        1 => Just(Event::Withdraw),
        2 => (0..tenants, 1..=9_u64).prop_map(|(t, w)| Event::Tenant(t, w)),
        4 => (0..tenants * 2, 0..tenants, 1..=9_u64).prop_map(|(v, t, w)| Event::Vm(v, t, w)),
        1 => (0..tenants * 2).prop_map(Event::RemoveVm),
        1 => (0..tenants).prop_map(Event::RemoveTenant),
    ]
}

proptest! {
    #![proptest_config(Config { cases: 512, ..Config::default() })]

    /// Tests for any order of events, with and without claims, that each queued frame is sent
    /// exactly once, and that a VM's frames stay in order and come before its claim. Tests that the
    /// output always has a turn while a frame waits or a VM has a claim. A VM with a claim may pass
    /// several batches in a row only while no frame waits.
    #[test]
    fn frames_and_claims_have_turns_in_order(
        (tenants, events) in prop_oneof![Just(3_usize), Just(40)].prop_flat_map(|n| {
            (Just(n), prop::collection::vec(event(n), 1..600))
        }),
        claims in any::<bool>(),
    ) {
        let vms = tenants * 2;
        let mut fair = FairShare::<u32>::new(Capacity { tenants, vms, frames: 64 });
        let (mut waiting, mut item) = (vec![VecDeque::<u32>::new(); vms], 0);
        // Most tenants exist from the start, so that both disciplines are used.
        for slot in 0..tenants {
            fair.set_tenant(slot, Weight::ONE);
            fair.set_vm(slot, slot, Weight::ONE, Bound::default());
        }
        for event in events {
            let event = match event {
                Event::Claim(vm, bytes) if !claims => Event::Offer(vm, bytes.max(64)),
                event => event,
            };
            match event {
                Event::Offer(vm, bytes) => {
                    item += 1;
                    if fair.offer(vm, item, bytes, Nanos(0)) == Offer::Queued {
                        waiting[vm].push_back(item);
                    }
                }
                Event::Claim(vm, bytes) => {
                    fair.claim(vm, bytes);
                    let there = fair.account(vm).is_some();
                    prop_assert_eq!(fair.claimed(vm), if there { bytes } else { 0 });
                }
                Event::Turn(bytes, claim) => {
                    let any = waiting.iter().any(|queue| !queue.is_empty());
                    if let Some(vm) = fair.again(8) {
                        prop_assert!(!any && fair.claimed(vm) > 0);
                        fair.passed(vm, (1, bytes), claim);
                        prop_assert_eq!(fair.claimed(vm), claim);
                        continue;
                    }
                    let claimed = (0..vms).any(|vm| fair.claimed(vm) > 0);
                    prop_assert_eq!(fair.has_claims(), claimed);
                    let turn = if claims { fair.turn() } else { any.then_some(Turn::Frame) };
                    prop_assert_eq!(turn.is_some(), any || claimed);
                    let departure = fair.next(Nanos(0), |_, _| unreachable!());
                    prop_assert_eq!(departure.is_some(), turn == Some(Turn::Frame));
                    if let Some(departure) = departure {
                        prop_assert_eq!(waiting[departure.vm].pop_front(), Some(departure.item));
                    }
                    if let Some(Turn::Claim(vm)) = turn {
                        prop_assert!(waiting[vm].is_empty() && fair.claimed(vm) > 0);
                        fair.passed(vm, (1, bytes), claim);
                        prop_assert_eq!(fair.claimed(vm), claim);
                    }
                }
                Event::Settle => fair.settle(),
                Event::Withdraw => {
                    fair.withdraw_claims();
                    prop_assert!((0..vms).all(|vm| fair.claimed(vm) == 0));
                }
                Event::Tenant(slot, of) => _ = fair.set_tenant(slot, weight(of)),
                Event::Vm(vm, tenant, of) => {
                    fair.set_vm(vm, tenant, weight(of), Bound::default());
                }
                Event::RemoveVm(vm) => {
                    fair.remove_vm(vm, |lost| assert_eq!(waiting[vm].pop_front(), Some(lost)));
                    prop_assert!(waiting[vm].is_empty() && fair.claimed(vm) == 0);
                }
                Event::RemoveTenant(slot) => {
                    fair.remove_tenant(slot, |vm, lost| {
                        assert_eq!(waiting[vm].pop_front(), Some(lost));
                    });
                }
            }
            let all: usize = waiting.iter().map(VecDeque::len).sum();
            prop_assert_eq!(fair.len() as usize, all);
        }
        fair.withdraw_claims();
        while let Some(departure) = fair.next(Nanos(0), |_, _| unreachable!()) {
            prop_assert_eq!(waiting[departure.vm].pop_front(), Some(departure.item));
        }
        prop_assert!(waiting.iter().all(VecDeque::is_empty));
    }
}
