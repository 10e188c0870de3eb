//! Tests that a tenant or VM that joins again with the same weight changes no later departure. If a
//! tenant or VM gets another weight, the other tenants and VMs keep their accounts.

use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::prop_burst::{BOUND, Bed, tenants};
use crate::prop_fair_share::{Lengths, due, weight};

/// Number of frames that all VMs of a test send.
const FRAMES: usize = 50_000;

proptest! {
    #![proptest_config(Config { cases: 20, ..Config::default() })]

    #[test]
    fn joining_again_changes_no_later_departure(
        tenants in prop_oneof![tenants(1..=12), tenants(33..=50)],
        every in 1..100_usize, seed in any::<u64>(),
    ) {
        let (mut once, mut often) = (Bed::new(&tenants, seed), Bed::new(&tenants, seed));
        for n in 0..5_000 {
            if n % every == 0 {
                often.join(&tenants);
            }
            prop_assert_eq!(once.next(false), often.next(false), "frame {} of {:?}", n, &tenants);
        }
    }

    /// Tests that the other tenants share by weight while the weight of the last tenant changes.
    #[test]
    fn a_tenants_new_weight_moves_no_bytes_between_the_others(
        weights in prop_oneof![
            prop::collection::vec(1..=10_u64, 3..=12),
            prop::collection::vec(1..=10_u64, 33..=60),
        ],
        every in 1..100_usize, seed in any::<u64>(),
    ) {
        let tenants: Vec<_> = weights.iter().map(|of| (*of, vec![1])).collect();
        let (mut bed, last, mut new) =
            (Bed::new(&tenants, seed), weights.len() - 1, Lengths(seed));
        for n in 0..FRAMES {
            if n % every == 0 {
                prop_assert!(bed.fair.set_tenant(last, weight(1 + new.next() % 10)));
            }
            bed.next(false);
        }
        due(&weights[..last], &bed.sent[..last])?;
    }

    /// Tests that the other VMs share by weight while the weight of the tenant's last VM changes.
    #[test]
    fn a_vms_new_weight_moves_no_bytes_between_the_others(
        weights in prop::collection::vec(1..=10_u64, 3..=12),
        every in 1..100_usize, seed in any::<u64>(),
    ) {
        let (mut bed, last, mut new) =
            (Bed::new(&[(1, weights.clone())], seed), weights.len() - 1, Lengths(seed));
        for n in 0..FRAMES {
            if n % every == 0 {
                let of = weight(1 + new.next() % 50);
                prop_assert!(bed.fair.set_vm(last, 0, of, BOUND));
            }
            bed.next(false);
        }
        due(&weights[..last], &bed.sent[..last])?;
    }
}
