use super::*;
use crate::discipline::QUANTUM;

fn weight(weight: u64) -> Weight {
    Weight::new(weight).unwrap()
}

fn bed(tenants: &[(u64, &[u64])]) -> FairShare<u32> {
    let vms = tenants.iter().map(|t| t.1.len()).sum();
    let mut fair = FairShare::new(Capacity { tenants: tenants.len(), vms, frames: 1_000 });
    let mut slot = 0;
    for (tenant, (of_tenant, of_vms)) in tenants.iter().enumerate() {
        assert!(fair.set_tenant(tenant, weight(*of_tenant)));
        for of_vm in *of_vms {
            assert!(fair.set_vm(slot, tenant, weight(*of_vm), Bound::default()));
            slot += 1;
        }
    }
    fair
}

/// Sends `n` frames while every VM is backlogged, and returns the bytes that each VM sent.
fn saturate(fair: &mut FairShare<u32>, sizes: &[u32], n: usize) -> Vec<u64> {
    let mut sent = vec![0; sizes.len()];
    for _ in 0..n {
        for (vm, bytes) in sizes.iter().enumerate() {
            while fair.account(vm).unwrap().queued_frames < 2 {
                assert_eq!(fair.offer(vm, 0, *bytes, Nanos(0)), Offer::Queued);
            }
        }
        let departure = fair.next(Nanos(0), |_, _| unreachable!()).unwrap();
        sent[departure.vm] += u64::from(departure.bytes);
    }
    sent
}

#[test]
fn tenants_share_by_weight_and_each_divides_its_share_among_its_vms() {
    let mut fair = bed(&[(5, &[1, 1, 1]), (3, &[1, 3]), (1, &[1])]);
    let sizes = [64, 1_514, 65_000, 300, 9_000, 64];
    let sent = saturate(&mut fair, &sizes, 400_000);
    let all: u64 = sent.iter().sum();
    let due = [5.0 / 27.0, 5.0 / 27.0, 5.0 / 27.0, 1.0 / 12.0, 3.0 / 12.0, 1.0 / 9.0];
    for (vm, (sent, due)) in sent.iter().zip(due).enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a test")]
        let off = *sent as f64 - due * all as f64;
        assert!(off.abs() < 140_000.0, "VM {vm}: {off} of {all}");
    }
}

#[test]
fn a_vm_of_the_smallest_weight_gets_its_share() {
    let mut fair = bed(&[(1, &[1, 10_000])]);
    let sent = saturate(&mut fair, &[64, 64], 200_020);
    assert!((19..=21).contains(&(sent[0] / 64)), "{sent:?}");
}

#[test]
fn frames_above_a_bound_are_held_or_dropped_and_counted() {
    let mut fair = bed(&[(1, &[1, 1])]);
    let bound = Bound { bytes: 3_000, wait: Nanos(100), excess: Excess::Hold };
    fair.set_vm(0, 0, Weight::ONE, bound);
    fair.set_vm(1, 0, Weight::ONE, Bound { excess: Excess::Drop, ..bound });
    assert_eq!(fair.offer(0, 1, 64_000, Nanos(0)), Offer::Queued, "an empty queue takes any");
    assert_eq!(fair.offer(0, 2, 64, Nanos(0)), Offer::Held(Full::Bytes));
    assert_eq!(fair.offer(1, 3, 1_500, Nanos(0)), Offer::Queued);
    assert_eq!(fair.offer(1, 4, 1_500, Nanos(50)), Offer::Queued);
    assert_eq!(fair.offer(1, 5, 1, Nanos(50)), Offer::Dropped(Full::Bytes));
    let mut late = Vec::new();
    let first = fair.next(Nanos(101), |vm, item| late.push((vm, item)));
    let second = fair.next(Nanos(101), |vm, item| late.push((vm, item)));
    let items = [first, second].map(|d| d.map(|d| (d.item, d.waited.0)));
    assert!(items.contains(&Some((1, 101))) && items.contains(&Some((4, 51))), "{items:?}");
    assert_eq!(late, [(1, 3)]);
    assert_eq!(fair.offer(0, 6, 64, Nanos(0)), Offer::Queued);
    assert_eq!(fair.offer(0, 7, 64, Nanos(100)), Offer::Held(Full::Wait));
    let (held, dropped) = (fair.account(0).unwrap(), fair.account(1).unwrap());
    assert_eq!((held.held, held.queued_frames, held.sent_frames), (2, 1, 1));
    assert_eq!((dropped.dropped_full, dropped.dropped_late, dropped.sent_frames), (1, 1, 1));
    assert_eq!(fair.offer(9, 0, 64, Nanos(0)), Offer::Dropped(Full::Nobody));
}

#[test]
fn the_pool_limits_all_queues_and_gets_every_frame_back() {
    let mut fair = FairShare::<u32>::new(Capacity { tenants: 1, vms: 2, frames: 3 });
    fair.set_tenant(0, Weight::ONE);
    fair.set_vm(0, 0, Weight::ONE, Bound::default());
    fair.set_vm(1, 0, Weight::ONE, Bound::default());
    for round in 0..10 {
        assert_eq!(fair.offer(0, 1, 64, Nanos(0)), Offer::Queued);
        assert_eq!(fair.offer(0, 2, 64, Nanos(0)), Offer::Queued);
        assert_eq!(fair.offer(1, 3, 64, Nanos(0)), Offer::Queued);
        assert_eq!(fair.offer(1, 4, 64, Nanos(0)), Offer::Held(Full::Frames));
        let mut lost = Vec::new();
        if round % 2 == 0 {
            fair.remove_vm(0, |item| lost.push(item));
            assert_eq!(lost, [1, 2]);
            fair.set_vm(0, 0, Weight::ONE, Bound::default());
        } else {
            fair.remove_tenant(0, |vm, item| lost.push(10 * u32::try_from(vm).unwrap() + item));
            assert_eq!(lost, [1, 2, 13]);
            assert!(fair.set_tenant(0, Weight::ONE));
            fair.set_vm(0, 0, Weight::ONE, Bound::default());
            fair.set_vm(1, 0, Weight::ONE, Bound::default());
        }
        while fair.next(Nanos(0), |_, _| unreachable!()).is_some() {}
        assert!(fair.is_empty());
    }
}

#[test]
fn the_discipline_follows_the_number_of_tenants_and_shares_hold_through_the_change() {
    let capacity = Capacity { tenants: 40, vms: 40, frames: 200 };
    let mut fair = FairShare::<u32>::new(capacity);
    let mut sizes = Vec::new();
    for tenant in 0..40 {
        assert_eq!(fair.discipline_name(), if tenant <= VTRR_MAX { "vtrr" } else { "eevdf" });
        fair.set_tenant(tenant, weight(1 + tenant as u64 % 2));
        fair.set_vm(tenant, tenant, Weight::ONE, Bound::default());
        sizes.push(1_000);
        saturate(&mut fair, &sizes, 100);
    }
    for tenant in (VTRR_AGAIN..40).rev() {
        assert_eq!(fair.discipline_name(), "eevdf");
        fair.remove_tenant(tenant, |_, _| {});
    }
    assert_eq!(fair.discipline_name(), "vtrr");
    sizes.truncate(VTRR_AGAIN);
    let sent = saturate(&mut fair, &sizes, 36_000);
    for (tenant, sent) in sent.iter().enumerate() {
        let due = 1_000_000 * (1 + tenant as u64 % 2);
        assert!(sent.abs_diff(due) <= 2 * u64::from(QUANTUM), "{tenant}: {sent}");
    }
}
