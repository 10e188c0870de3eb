//! Tests the guarantees of the `fair-share` discipline. Weights divide the bytes for any frame
//! sizes, flows and VMs. The module [`crate::prop_claims`] tests that no frame is lost or
//! reordered, and that no capacity stays unused while frames wait.

use penstock_qos::fair_share::{Bound, Capacity, Departure, FairShare, Offer};
use penstock_units::{Nanos, Weight};
use proptest::prelude::*;
use proptest::test_runner::Config;

pub(crate) const SEGMENT: u64 = 65_536;

pub(crate) fn weight(weight: u64) -> Weight {
    Weight::new(weight).unwrap()
}

/// A fast random number generator, because a test run needs a million frame lengths.
pub(crate) struct Lengths(pub(crate) u64);

impl Lengths {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    /// Returns a frame length for a kind of client: short frames, an MTU, large segments, or a mix.
    pub(crate) fn of(&mut self, kind: usize) -> u32 {
        let octave = self.next() % 11;
        let bytes = match kind % 4 {
            0 => 64,
            1 => 1_514,
            2 => SEGMENT - self.next() % 2_000,
            _ => ((64 << octave) / 2 + self.next() % (64 << octave)).clamp(64, SEGMENT),
        };
        u32::try_from(bytes).unwrap()
    }
}

/// In the test, each tenant has a single VM. Each VM of the test output always has two queued
/// frames.
struct Bed {
    fair: FairShare<u32>,
    lengths: Lengths,
    sent: Vec<u64>,
    awake: Vec<bool>,
}

impl Bed {
    fn new(weights: &[u64], seed: u64) -> Self {
        let n = weights.len();
        let frames = u32::try_from(2 * n).unwrap();
        let mut fair = FairShare::new(Capacity { tenants: n, vms: n, frames });
        for (slot, of) in weights.iter().enumerate() {
            assert!(fair.set_tenant(slot, weight(*of)));
            let bound = Bound { bytes: u64::MAX, wait: Nanos(u64::MAX), ..Bound::default() };
            assert!(fair.set_vm(slot, slot, Weight::ONE, bound));
        }
        let mut bed = Self { fair, lengths: Lengths(seed), sent: vec![0; n], awake: vec![true; n] };
        (0..n).for_each(|vm| bed.fill(vm));
        bed
    }

    fn fill(&mut self, vm: usize) {
        while self.awake[vm] && self.fair.account(vm).unwrap().queued_frames < 2 {
            let bytes = self.lengths.of(vm);
            assert_eq!(self.fair.offer(vm, 0, bytes, Nanos(0)), Offer::Queued);
        }
    }

    fn next(&mut self) -> Option<Departure<u32>> {
        let departure = self.fair.next(Nanos(0), |_, _| unreachable!())?;
        self.sent[departure.vm] += u64::from(departure.bytes);
        self.fill(departure.vm);
        Some(departure)
    }

    fn run(&mut self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            left = left.saturating_sub(u64::from(self.next().unwrap().bytes));
        }
    }
}

/// Checks that each client gets its share of the sent bytes. A client's bytes may differ from its
/// share by 0.1 % or by two segments, whichever is more.
pub(crate) fn due(weights: &[u64], sent: &[u64]) -> Result<(), TestCaseError> {
    let all: u64 = sent.iter().sum();
    let sum: u64 = weights.iter().sum();
    for (slot, (weight, sent)) in weights.iter().zip(sent).enumerate() {
        let due = u64::try_from(u128::from(all) * u128::from(*weight) / u128::from(sum)).unwrap();
        let slack = (due / 1_000).max(2 * SEGMENT);
        prop_assert!(sent.abs_diff(due) <= slack, "{slot}: {sent} of {due}, {weights:?}");
    }
    Ok(())
}

fn few() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        prop::collection::vec(1..=10_u64, 2..=32),
        prop::collection::vec(1..=10_000_u64, 2..=32),
        (2..=32_usize).prop_map(|n| [vec![n as u64 - 1], vec![1; n - 1]].concat()),
    ]
}

fn many() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        prop::collection::vec(1..=10_u64, 33..=1_000),
        prop::collection::vec(1..=10_000_u64, 33..=1_000),
        (33..=1_000_usize).prop_map(|n| [vec![n as u64 - 1], vec![1; n - 1]].concat()),
    ]
}

proptest! {
    #![proptest_config(Config { cases: 10, ..Config::default() })]

    /// Tests that each of 2 to 32 tenants gets its share in ten seconds at 400 Mbit/s.
    #[test]
    fn few_tenants_get_their_due_bytes_for_any_sizes(weights in few(), seed in any::<u64>()) {
        let mut bed = Bed::new(&weights, seed);
        bed.run(500_000_000);
        prop_assert_eq!(bed.fair.discipline_name(), "vtrr");
        due(&weights, &bed.sent)?;
    }

    /// Tests that each of 33 to 1,000 tenants gets its share.
    #[test]
    fn many_tenants_get_their_due_bytes_for_any_sizes(
        weights in many(), seed in any::<u64>(),
    ) {
        let mut bed = Bed::new(&weights, seed);
        bed.run(500_000_000);
        prop_assert_eq!(bed.fair.discipline_name(), "eevdf");
        due(&weights, &bed.sent)?;
    }

    /// Tests that the other tenants share the whole link when some tenants stop sending. Tests that
    /// stopped tenants get their shares again when they send again.
    #[test]
    fn an_idle_tenants_share_is_used_by_the_others_at_once(
        n in prop_oneof![3..=32_usize, 33..=200_usize], idle in 1..100_usize, seed in any::<u64>(),
    ) {
        let weights: Vec<u64> = (0..n as u64).map(|slot| 1 + slot % 5).collect();
        let idle = idle.min(n - 2);
        let mut bed = Bed::new(&weights, seed);
        bed.run(100_000_000);
        bed.awake[..idle].fill(false);
        // The queued frames of the tenants that stopped are sent first.
        while (0..idle).any(|vm| bed.fair.account(vm).unwrap().queued_frames > 0) {
            bed.next();
        }
        bed.sent.fill(0);
        // A cycle has one turn of 4 KiB for each unit of weight.
        let cycle = 4_096 * weights[idle..].iter().sum::<u64>();
        bed.run(20 * cycle + 100_000_000);
        prop_assert!(bed.sent[..idle].iter().all(|sent| *sent == 0));
        due(&weights[idle..], &bed.sent[idle..])?;
        bed.awake.fill(true);
        (0..idle).for_each(|vm| bed.fill(vm));
        bed.sent.fill(0);
        bed.run(20 * cycle + 200_000_000);
        due(&weights, &bed.sent)?;
    }

    /// Tests that a tenant with more VMs and more waiting frames gets no larger share. Tests that
    /// the VMs of a tenant with many VMs get equal parts.
    #[test]
    fn more_vms_and_flows_gain_nothing(vms in 1..40_usize, seed in any::<u64>()) {
        let capacity = Capacity { tenants: 2, vms: 1 + vms, frames: 10_000 };
        let mut fair = FairShare::<u32>::new(capacity);
        let bound = Bound { bytes: u64::MAX, wait: Nanos(u64::MAX), ..Bound::default() };
        for vm in 0..=vms {
            fair.set_tenant(usize::from(vm > 0), Weight::ONE);
            fair.set_vm(vm, usize::from(vm > 0), Weight::ONE, bound);
        }
        let (mut lengths, mut sent) = (Lengths(seed), vec![0_u64; 1 + vms]);
        while sent.iter().sum::<u64>() < 500_000_000 {
            for vm in 0..=vms {
                // The first tenant's VM has one waiting frame, and the other VMs have twenty.
                let waiting = if vm == 0 { 1 } else { 20 };
                while fair.account(vm).unwrap().queued_frames < waiting {
                    fair.offer(vm, 0, lengths.of(3), Nanos(0));
                }
            }
            for _ in 0..20 {
                let Some(departure) = fair.next(Nanos(0), |_, _| unreachable!()) else { break };
                sent[departure.vm] += u64::from(departure.bytes);
                if departure.vm == 0 {
                    fair.offer(0, 0, lengths.of(3), Nanos(0));
                }
            }
        }
        let theirs: u64 = sent[1..].iter().sum();
        // A tenant with one waiting frame loses the rest of its turn after each frame.
        prop_assert!(sent[0].abs_diff(theirs) <= 2 * SEGMENT + theirs / 1_000, "{sent:?}");
        for one in &sent[1..] {
            let due = theirs / vms as u64;
            prop_assert!(one.abs_diff(due) <= 2 * SEGMENT + due / 100, "{one} of {due}");
        }
    }
}
