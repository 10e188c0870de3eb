//! Tests that one decision for several frames (a burst) gives each VM the bytes that it gets with
//! one decision for each frame. A VM that gets frames during a burst gets its share at once.

use penstock_qos::discipline::{Discipline, QUANTUM};
use penstock_qos::eevdf::Eevdf;
use penstock_qos::fair_share::{Bound, Capacity, Departure, Excess, FairShare, Offer};
use penstock_qos::vtrr::Vtrr;
use penstock_units::{Nanos, Weight};
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::prop_fair_share::{Lengths, SEGMENT, weight};

pub(crate) const BOUND: Bound =
    Bound { bytes: u64::MAX, wait: Nanos(u64::MAX), excess: Excess::Hold };

/// Tenants with several VMs. Each VM always has two queued frames, and its frame lengths do not
/// depend on the order of departures.
pub(crate) struct Bed {
    pub(crate) fair: FairShare<u32>,
    lengths: Vec<Lengths>,
    pub(crate) sent: Vec<u64>,
}

impl Bed {
    /// `tenants` lists the weight of each tenant, and the weights of the tenant's VMs.
    pub(crate) fn new(tenants: &[(u64, Vec<u64>)], seed: u64) -> Self {
        let vms: usize = tenants.iter().map(|(_, vms)| vms.len()).sum();
        let frames = u32::try_from(2 * vms).unwrap();
        let fair = FairShare::new(Capacity { tenants: tenants.len(), vms, frames });
        let lengths = (0..vms as u64).map(|vm| Lengths(seed.wrapping_add(vm << 40))).collect();
        let mut bed = Self { fair, lengths, sent: vec![0; vms] };
        bed.join(tenants);
        (0..vms).for_each(|vm| bed.fill(vm));
        bed
    }

    pub(crate) fn join(&mut self, tenants: &[(u64, Vec<u64>)]) {
        let mut slot = 0;
        for (tenant, (of, vms)) in tenants.iter().enumerate() {
            assert!(self.fair.set_tenant(tenant, weight(*of)));
            for of in vms {
                assert!(self.fair.set_vm(slot, tenant, weight(*of), BOUND));
                slot += 1;
            }
        }
    }

    fn fill(&mut self, vm: usize) {
        while self.fair.backlog(vm).0 < 2 {
            let bytes = self.lengths[vm].of(vm);
            assert_eq!(self.fair.offer(vm, 0, bytes, Nanos(0)), Offer::Queued);
        }
    }

    /// Sends a frame. If `single` is true, the next frame needs another decision.
    pub(crate) fn next(&mut self, single: bool) -> Departure<u32> {
        let departure = self.fair.next(Nanos(0), |_, _| unreachable!()).unwrap();
        if single {
            self.fair.settle();
        }
        self.sent[departure.vm] += u64::from(departure.bytes);
        self.fill(departure.vm);
        departure
    }
}

/// Returns up to `count` tenants with up to four VMs each, with weights 1 to 20.
pub(crate) fn tenants(
    count: core::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Vec<(u64, Vec<u64>)>> {
    prop::collection::vec((1..=20_u64, prop::collection::vec(1..=20_u64, 1..=4)), count)
}

/// Lets two to twelve clients with the weights `weights` send frames. Checks that an allowance
/// permits only frames for which the discipline picks the same client again.
fn allowances_hold(
    discipline: &mut dyn Discipline,
    weights: &[u64],
    seed: u64,
) -> Result<(), TestCaseError> {
    let mut lengths: Vec<_> = (0..weights.len() as u64).map(|n| Lengths(seed ^ n << 40)).collect();
    let mut heads = Vec::new();
    for (slot, of) in weights.iter().enumerate() {
        heads.push(lengths[slot].of(slot));
        discipline.join(slot, weight(*of));
        discipline.backlogged(slot, heads[slot]);
    }
    for _ in 0..2_000 {
        let slot = discipline.pick().unwrap();
        let (allowance, mut sent) = (discipline.allowance(), 0);
        prop_assert!(allowance.permits(0, heads[slot]), "the first frame may always go");
        while allowance.permits(sent, heads[slot]) {
            prop_assert_eq!(discipline.pick(), Some(slot));
            let bytes = heads[slot];
            heads[slot] = lengths[slot].of(slot);
            discipline.charge(slot, bytes, heads[slot]);
            sent += bytes;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 30, ..Config::default() })]

    #[test]
    fn an_allowance_permits_what_the_discipline_would_pick(
        weights in prop::collection::vec(1..=10_000_u64, 2..=12), seed in any::<u64>(),
    ) {
        allowances_hold(&mut Vtrr::new(weights.len()), &weights, seed)?;
        allowances_hold(&mut Eevdf::new(weights.len()), &weights, seed)?;
    }

    /// Tests VTRR, with which the order of departures stays exactly the same.
    #[test]
    fn bursts_of_few_tenants_keep_the_order_of_single_decisions(
        tenants in tenants(1..=12), seed in any::<u64>(),
    ) {
        let (mut bursts, mut singles) = (Bed::new(&tenants, seed), Bed::new(&tenants, seed));
        for n in 0..10_000 {
            let (one, other) = (bursts.next(false), singles.next(true));
            prop_assert_eq!(one, other, "frame {} of {:?}", n, tenants);
        }
    }

    /// Tests EEVDF, with which rounding may change the order of departures.
    #[test]
    fn bursts_of_many_tenants_send_the_bytes_of_single_decisions(
        tenants in tenants(33..=60), seed in any::<u64>(),
    ) {
        let (mut bursts, mut singles) = (Bed::new(&tenants, seed), Bed::new(&tenants, seed));
        for _ in 0..10 {
            for _ in 0..2_000 {
                bursts.next(false);
                singles.next(true);
            }
            for (vm, (one, other)) in bursts.sent.iter().zip(&singles.sent).enumerate() {
                let most = u64::from(QUANTUM) + 2 * SEGMENT;
                prop_assert!(one.abs_diff(*other) <= most, "VM {}: {} and {}", vm, one, other);
            }
        }
    }

    /// Tests that a VM that sent alone does not pay for the bytes that nobody else wanted, and that
    /// it does not keep its place either.
    #[test]
    fn a_newcomer_gets_its_share_at_once(
        alone in 1..3_000_u32, same_tenant in any::<bool>(), many in any::<bool>(),
        bytes in prop_oneof![Just(88_u32), Just(1_538), Just(9_038)],
    ) {
        let members = if many { 40 } else { 2 };
        let capacity = Capacity { tenants: members, vms: 2, frames: 4 };
        let mut fair = FairShare::<u32>::new(capacity);
        for tenant in 0..members {
            fair.set_tenant(tenant, Weight::ONE);
        }
        fair.set_vm(0, 0, Weight::ONE, BOUND);
        fair.set_vm(1, usize::from(!same_tenant), Weight::ONE, BOUND);
        let mut sent = [0_u64; 2];
        let step = |fair: &mut FairShare<u32>, vms: usize| {
            for vm in 0..vms {
                while fair.backlog(vm).0 < 2 {
                    assert_eq!(fair.offer(vm, 0, bytes, Nanos(0)), Offer::Queued);
                }
            }
            fair.next(Nanos(0), |_, _| unreachable!()).unwrap().vm
        };
        for _ in 0..alone {
            prop_assert_eq!(step(&mut fair, 1), 0);
        }
        for _ in 0..500 {
            sent[step(&mut fair, 2)] += u64::from(bytes);
            let most = u64::from(3 * QUANTUM + 2 * bytes);
            prop_assert!(sent[0].abs_diff(sent[1]) <= most, "{:?}", sent);
        }
    }
}
