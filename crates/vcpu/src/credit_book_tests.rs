//! Tests of the accounting rules of Xen's credit scheduler, one test for each rule.

use super::*;

fn contract(weight: u64, cap_pct: u16, io_reserve_pct: u8) -> Contract {
    let weight = Weight::new(weight).unwrap();
    Contract { cap_pct, io_reserve_pct, ..Contract::by_credit(weight) }
}

/// Makes a credit book with one active vCPU for each contract.
fn active(terms: CreditTerms, cpus: u16, contracts: &[Contract]) -> (CreditBook, Vec<VcpuId>) {
    let mut book = CreditBook::new(terms, cpus);
    let vcpus: Vec<_> = contracts.iter().map(|c| book.open(c, 1).unwrap().1[0]).collect();
    vcpus.iter().for_each(|vcpu| book.tick(*vcpu));
    (book, vcpus)
}

fn credits(book: &CreditBook, vcpus: &[VcpuId]) -> Vec<i64> {
    vcpus.iter().map(|vcpu| book.credit(*vcpu)).collect()
}

const BUSY: fn(VcpuId) -> bool = |_| true;

#[test]
fn an_epoch_is_divided_by_weight_and_rounded_up() {
    let (mut book, vcpus) =
        active(CreditTerms::XEN, 1, &[contract(256, 0, 0), contract(512, 0, 0)]);
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [100, 200]);
    let seven = vec![contract(256, 0, 0); 7];
    let (mut book, vcpus) = active(CreditTerms::XEN, 1, &seven);
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [43; 7], "301 of 300");
    let (mut book, vcpus) = active(CreditTerms::FINE, 1, &seven);
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [4_285_715; 7]);
}

#[test]
fn ten_credits_a_millisecond_are_burned_and_the_remainder_is_kept() {
    let (mut book, vcpus) = active(CreditTerms::XEN, 1, &[contract(256, 0, 0)]);
    for _ in 0..3 {
        book.burn(vcpus[0], Nanos(40_000));
    }
    assert_eq!(book.credit(vcpus[0]), -1, "0.12 ms");
    book.burn(vcpus[0], Nanos(80_000));
    assert_eq!(book.credit(vcpus[0]), -2, "0.2 ms");
    book.burn(vcpus[0], CreditTerms::EPOCH);
    assert_eq!(book.credit(vcpus[0]), -302);
}

#[test]
fn an_overdrawn_vcpu_is_over_and_bounded_by_an_epoch() {
    let (mut book, vcpus) = active(CreditTerms::XEN, 1, &[contract(256, 0, 0); 2]);
    book.burn(vcpus[0], Nanos::from_millis(30));
    book.account(BUSY);
    // Each vCPU gets 150 credits. The first had -300, so it has -150 now.
    assert_eq!(credits(&book, &vcpus), [-150, 150]);
    assert_eq!((book.class(vcpus[0]), book.class(vcpus[1])), (Class::Over, Class::Under));
    book.burn(vcpus[0], Nanos::from_millis(60));
    book.account(BUSY);
    assert_eq!(book.credit(vcpus[0]), -300);
}

#[test]
fn above_an_epoch_a_vcpu_stops_earning_and_keeps_half() {
    let (mut book, vcpus) = active(CreditTerms::XEN, 1, &[contract(256, 0, 0); 2]);
    book.account(BUSY);
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [300, 300]);
    assert!(book.active(vcpus[0]));
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [225, 225]);
    assert!(!book.active(vcpus[0]) && !book.active(vcpus[1]));
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [225, 225]);
    // The vCPU runs at a tick, so it earns again. The vCPU gets all credits, up to the number that
    // it could use.
    book.tick(vcpus[0]);
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [262, 225]);
}

#[test]
fn a_negative_balance_is_handed_out_as_well() {
    let (mut book, vcpus) = active(CreditTerms::XEN, 1, &[contract(256, 0, 0); 2]);
    vcpus.iter().for_each(|vcpu| book.burn(*vcpu, Nanos::from_millis(25)));
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [-100, -100]);
    // The vCPUs get the 300 credits of the epoch and the 200 missing credits.
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [150, 150]);
}

#[test]
fn credits_that_a_vm_cannot_use_go_to_those_after_it() {
    // There are two processors. The heavy VM's share exceeds the time that its single vCPU could
    // use.
    let (mut book, vcpus) =
        active(CreditTerms::XEN, 2, &[contract(100, 0, 0), contract(900, 0, 0)]);
    // The VM that became active last gets its credits first. The heavy VM's share is 540 of 600
    // credits. The heavy VM gets at most 300 credits, and the light VM gets the other 240 credits.
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [300, 300]);
}

#[test]
fn a_vm_that_could_not_use_all_is_served_first_from_then_on() {
    let (mut book, vcpus) =
        active(CreditTerms::XEN, 2, &[contract(900, 0, 0), contract(100, 0, 0)]);
    // The light VM gets its 60 credits first. The heavy VM cannot use all its credits, and no VM
    // comes after it.
    book.account(BUSY);
    assert_eq!(credits(&book, &vcpus), [300, 60]);
    vcpus.iter().for_each(|vcpu| book.burn(*vcpu, Nanos::from_millis(30)));
    book.account(BUSY);
    assert_eq!(book.credit(vcpus[0]), 300);
    assert!(book.credit(vcpus[1]) > -300 + 60 + 60, "{}", book.credit(vcpus[1]));
}

#[test]
fn weight_counts_for_each_active_vcpu() {
    let mut book = CreditBook::new(CreditTerms::XEN, 1);
    let pair = book.open(&contract(256, 0, 0), 2).unwrap();
    let one = book.open(&contract(256, 0, 0), 1).unwrap();
    for vcpu in pair.1.iter().chain(&one.1) {
        book.tick(*vcpu);
    }
    book.account(BUSY);
    assert_eq!(credits(&book, &[pair.1[0], pair.1[1], one.1[0]]), [100; 3]);
    book.close(pair.0);
    book.account(BUSY);
    assert_eq!(
        book.credit(one.1[0]),
        200,
        "the vCPU's 300 credits are above an epoch, so they are halved"
    );
    assert!(!book.has(pair.1[0]) && book.vcpus(pair.0).is_empty());
}

#[test]
fn a_cap_parks_and_unparks_without_a_boost() {
    let (mut book, vcpus) = active(CreditTerms::XEN, 1, &[contract(256, 50, 0)]);
    let v = vcpus[0];
    book.burn(v, Nanos::from_millis(30));
    assert_eq!(
        book.account(BUSY),
        Parking::default(),
        "a debt of 150 credits is not above the limit of 150"
    );
    assert_eq!(book.credit(v), -150);
    book.burn(v, Nanos::from_millis(30));
    assert_eq!(book.account(BUSY).parked, [v]);
    assert_eq!((book.credit(v), book.parked(v)), (-300, true));
    book.boost(v, true);
    assert_eq!(book.class(v), Class::Over);
    assert_eq!(book.account(BUSY).unparked, []);
    assert_eq!(book.account(BUSY).unparked, [v]);
    assert_eq!((book.class(v), book.parked(v)), (Class::Under, false));
}

#[test]
fn only_a_vcpu_with_credits_is_boosted_until_a_tick_finds_it_running() {
    let (mut book, vcpus) = active(CreditTerms::XEN, 1, &[contract(256, 0, 0); 2]);
    book.boost(vcpus[0], false);
    assert_eq!(book.class(vcpus[0]), Class::Boost);
    book.tick(vcpus[0]);
    assert_eq!(book.class(vcpus[0]), Class::Under);
    book.burn(vcpus[0], Nanos::from_millis(30));
    book.account(BUSY);
    book.boost(vcpus[0], true);
    assert_eq!(book.class(vcpus[0]), Class::Over, "it has no reserve");
}

#[test]
fn a_reserve_wakes_one_that_is_over_and_pays_for_what_it_runs() {
    let (mut book, vcpus) =
        active(CreditTerms::XEN, 1, &[contract(256, 0, 10), contract(256, 0, 0)]);
    let v = vcpus[0];
    book.burn(v, Nanos::from_millis(30));
    book.account(BUSY);
    assert_eq!((book.credit(v), book.reserve(v)), (-165, 15));
    book.boost(v, false);
    assert_eq!(book.class(v), Class::Over, "a timer is not an external event");
    book.boost(v, true);
    assert_eq!(book.class(v), Class::Boost);
    assert_eq!(book.drawing(v), Some(Nanos::from_micros(1_500)));
    book.burn(v, Nanos::from_millis(1));
    assert_eq!((book.credit(v), book.reserve(v)), (-165, 5));
    book.end_drawing(v);
    assert_eq!((book.class(v), book.drawing(v)), (Class::Over, None));
    // The unused part of the reserve stays, and the next part is added.
    book.account(BUSY);
    assert_eq!(book.reserve(v), 5 + 15);
}

#[test]
fn by_penstocks_terms_a_waiting_vcpu_earns_and_an_idle_one_does_not() {
    let epoch = CreditTerms::FINE.epoch();
    let (mut book, vcpus) = active(CreditTerms::FINE, 3, &[contract(1, 0, 0); 2]);
    book.account(|vcpu| vcpu == vcpus[0]);
    assert_eq!(credits(&book, &vcpus), [epoch, epoch]);
    // Of three epochs' credits, only one epoch's are distributed, because the vCPUs already have
    // the others.
    book.account(|vcpu| vcpu == vcpus[0]);
    assert_eq!(credits(&book, &vcpus), [epoch + epoch / 2, (epoch + epoch / 2) / 2]);
    assert!(book.active(vcpus[0]) && !book.active(vcpus[1]));
    book.burn(vcpus[0], Nanos::from_secs(1));
    book.account(BUSY);
    assert_eq!(book.credit(vcpus[0]), -10 * epoch);
}

#[test]
fn by_penstocks_terms_activity_does_not_depend_on_ticks() {
    let mut book = CreditBook::new(CreditTerms::FINE, 1);
    let vms: Vec<_> = (0..3).map(|_| book.open(&contract(1, 0, 0), 1).unwrap().1[0]).collect();
    book.burn(vms[0], Nanos(1));
    book.account(|vcpu| vcpu == vms[1]);
    assert_eq!(credits(&book, &vms), [14_999_999, 15_000_000, 0]);
}
